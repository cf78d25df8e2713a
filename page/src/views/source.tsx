// The user's source, a mark beside each line to which something happened, and what that was beside it.
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { ViewProps } from "../app";
import type { Source } from "../data";
import { base, count } from "../format";
import { EVENTS, EVENT_TEXT, type Happened } from "../lines";
import { Empty } from "../parts/common";
import { Python, spans, tokenLines } from "../parts/python";
import { Rows } from "../parts/seen";
import { href } from "../route";
import { Reason } from "./breaks";

export function SourceView({ report, lines, route }: ViewProps) {
  const files = useMemo(() => [...new Set(report.sources.map((s) => s.file))], [report]);
  useEffect(() => () => scrollTo(0, 0), []); // the next view begins at its top
  if (!files.length) return <Empty>No source: no file of the program could be read.</Empty>;
  const file = route.rest[0] && files.includes(route.rest[0]) ? route.rest[0] : files[0];
  const happened = lines.get(file) ?? new Map<number, Happened>();
  const chosen = route.rest[1] ? Number(route.rest[1]) : null;
  const shown = chosen ?? firstMark(happened);
  return (
    <div class="split">
      <div class="pane listing">
        <div class="bar">
          {files.length > 1 ? (
            <label>
              File{" "}
              <select value={file} onChange={(event) => (location.hash = href("source", event.currentTarget.value))}>
                {files.map((name) => (
                  <option value={name}>{name}</option>
                ))}
              </select>
            </label>
          ) : (
            <span class="mono dim">{file}</span>
          )}
          <Legend />
        </div>
        <div class="lines">
          {report.sources
            .filter((source) => source.file === file)
            .map((source) => (
              <Listing key={source.first_line} source={source} happened={happened} chosen={chosen} shown={shown} />
            ))}
        </div>
      </div>
      <aside class="pane detail" aria-label="What happened on the line" aria-live="polite">
        {chosen == null ? <Hint happened={happened} file={file} /> : <Detail happened={happened.get(chosen)} line={chosen} file={file} />}
      </aside>
    </div>
  );
}

function Legend() {
  return (
    <ul class="legend" aria-label="Marks">
      {EVENTS.map((event) => (
        <li>
          <span class={"mark " + event} aria-hidden="true">
            {EVENT_TEXT[event][0]}
          </span>
          {EVENT_TEXT[event][1]}
        </li>
      ))}
    </ul>
  );
}

const HEADER = 90; // pixels, which stay over what is scrolled

interface ListingProps {
  source: Source;
  happened: Map<number, Happened>;
  chosen: number | null;
  shown: number | null; // the line to have in the window
}

function Listing({ source, happened, chosen, shown }: ListingProps) {
  const lines = useMemo(() => tokenLines(source.text.replace(/\n$/, "")), [source]);
  const at = shown == null ? 0 : shown - source.first_line;
  const table = useRef<HTMLTableElement>(null);
  const stepped = useRef(false); // by a key
  /** Arrow keys go to the next line that has something to say. */
  const onKeyDown = (event: KeyboardEvent) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    const marked = [...happened.keys()].filter((n) => n >= source.first_line && n < source.first_line + lines.length).sort((a, b) => a - b);
    const next = marked[marked.indexOf(Number(document.activeElement?.textContent)) + by];
    if (next === undefined) return;
    event.preventDefault();
    stepped.current = true;
    location.hash = href("source", source.file, next);
  };
  useEffect(() => {
    const row = table.current?.querySelector("tr.shown");
    if (stepped.current) row?.querySelector<HTMLElement>(".number a")?.focus({ preventScroll: true });
    stepped.current = false;
    const place = row?.getBoundingClientRect();
    if (place && (place.top < HEADER || place.bottom > innerHeight)) row!.scrollIntoView({ block: "center" });
  }, [shown, source]);
  return (
    <table class="listing-lines" ref={table} onKeyDown={onKeyDown}>
      <Rows
        rows={lines}
        columns={3}
        height={19}
        chosen={at}
        row={(line, i) => {
          const number = source.first_line + i;
          const here = happened.get(number);
          return (
            <Row key={number} number={number} file={source.file} here={here} chosen={number === chosen} shown={number === shown}>
              {spans(line)}
            </Row>
          );
        }}
      />
    </table>
  );
}

interface RowProps {
  number: number;
  file: string;
  here: Happened | undefined;
  chosen: boolean;
  shown: boolean;
  children: preact.ComponentChildren;
}

function Row({ number, file, here, chosen, shown, children }: RowProps) {
  const events = EVENTS.filter((event) => here?.events.has(event));
  const words = events.map((event) => EVENT_TEXT[event][1]).join(", ");
  const classes = [events.length && "has", chosen && "chosen", shown && "shown", ...events.map((event) => "is-" + event)];
  const go = () => {
    if (here && !getSelection()?.toString()) location.hash = href("source", file, number);
  };
  return (
    <tr class={classes.filter(Boolean).join(" ")} onClick={go}>
      <td class="marks">
        <div>
          {events.map((event) => (
            <span class={"mark " + event} title={EVENT_TEXT[event][1]} aria-hidden="true">
              {EVENT_TEXT[event][0]}
            </span>
          ))}
        </div>
      </td>
      <td class="number">
        {here ? (
          <a href={href("source", file, number)} aria-label={`Line ${number}: ${words}`} aria-current={chosen ? "true" : undefined}>
            {number}
          </a>
        ) : (
          number
        )}
      </td>
      <td class="text">
        <code>{children}</code>
      </td>
    </tr>
  );
}

/** The first line to which something happened. */
function firstMark(happened: Map<number, Happened>): number | null {
  const marked = [...happened].filter(([, { events }]) => events.size > 0);
  return marked.length ? Math.min(...marked.map(([number]) => number)) : null;
}

function Hint({ happened, file }: { happened: Map<number, Happened>; file: string }) {
  const marked = [...happened].filter(([, { events }]) => events.size > 0);
  const first = firstMark(happened);
  return (
    <>
      <h2>{base(file)}</h2>
      {first != null ? (
        <>
          <p>Choose a line to see what happened there; the arrow keys go from mark to mark.</p>
          <p>
            <a href={href("source", file, first)}>The first is line {first}</a>
          </p>
          <dl class="facts-list">
            {EVENTS.map((event) => {
              const n = marked.filter(([, { events }]) => events.has(event)).length;
              return (
                <>
                  <dt>{EVENT_TEXT[event][1]}</dt>
                  <dd>{count(n, "line")}</dd>
                </>
              );
            })}
          </dl>
        </>
      ) : (
        <Empty>Nothing happened on the lines of this file.</Empty>
      )}
    </>
  );
}

function Detail({ happened, line, file }: { happened: Happened | undefined; line: number; file: string }) {
  return (
    <>
      <h2>
        <span class="mono">
          {base(file)}:{line}
        </span>
      </h2>
      {!happened && <Empty>Nothing of note happened on this line.</Empty>}
      {happened && (
        <>
          <p class="dim">{EVENTS.filter((e) => happened.events.has(e)).map((e) => EVENT_TEXT[e][1]).join(", ")}</p>
          {[...happened.breaks, ...happened.eager].map((reason) => (
            <Reason reason={reason} />
          ))}
          <Recompiled happened={happened} />
          <Guards happened={happened} />
          <Nodes happened={happened} />
          <KernelsHere happened={happened} />
        </>
      )}
    </>
  );
}

function Recompiled({ happened: { recompiles } }: { happened: Happened }) {
  if (!recompiles.length) return null;
  return (
    <>
      <h3>Recompiled</h3>
      <ul class="plain">
        {recompiles.map((r) => (
          <li>
            <code>
              <Python text={r.guard} />
            </code>
            <br />
            was <code>{r.was}</code>, now <code>{r.now}</code> <span class="dim">(entry {r.entry} of {r.frame})</span>
          </li>
        ))}
      </ul>
    </>
  );
}

function Guards({ happened: { guards } }: { happened: Happened }) {
  if (!guards.length) return null;
  return (
    <>
      <h3>
        Guards <span class="note">{guards.length}</span>
      </h3>
      <ul class="plain">
        {guards.map(({ guard, frame, entry }) => (
          <li>
            <code>
              <Python text={guard.text} />
            </code>{" "}
            <a class="dim" href={href("entries", frame, entry)}>
              entry {entry}
            </a>
          </li>
        ))}
      </ul>
    </>
  );
}

function Nodes({ happened: { nodes } }: { happened: Happened }) {
  if (!nodes.length) return null;
  return (
    <>
      <h3>
        Operators <span class="note">{nodes.length}</span>
      </h3>
      <ul class="plain">
        {nodes.slice(0, 100).map(({ graph, node }) => (
          <li>
            <a class="mono" href={href("graphs", graph.id, node.name)}>
              {node.name}
            </a>{" "}
            <span class="mono">{node.target}</span>{" "}
            <span class="dim">
              {graph.level} graph {graph.id}
            </span>
          </li>
        ))}
      </ul>
      {nodes.length > 100 && <p class="dim">and {nodes.length - 100} more</p>}
    </>
  );
}

function KernelsHere({ happened: { kernels } }: { happened: Happened }) {
  if (!kernels.length) return null;
  return (
    <>
      <h3>
        Kernels <span class="note">{kernels.length}</span>
      </h3>
      <ul class="plain">
        {kernels.map(({ kernel, index }) => (
          <li>
            <a class="mono" href={href("kernels", index)}>
              {kernel.name}
            </a>
          </li>
        ))}
      </ul>
    </>
  );
}
