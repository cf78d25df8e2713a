// The compiled entries of each function: when one is taken (its guards), and what then runs (its source).
import { useEffect } from "preact/hooks";
import type { ViewProps } from "../app";
import type { Entry, Frame } from "../data";
import { count, ms } from "../format";
import { Code, Empty, Section, Table, Where } from "../parts/common";
import { Python } from "../parts/python";
import { Rows, useSearch } from "../parts/seen";
import { href } from "../route";

export function Entries({ report, route }: ViewProps) {
  const [frame, number] = route.rest;
  useEffect(() => {
    const index = report.frames.findIndex((f) => f.name === frame && f.entries.some((e) => String(e.number) === number));
    document.getElementById(anchor(index, number))?.scrollIntoView({ block: "start" });
  }, [frame, number]);
  if (!report.frames.length)
    return (
      <Section title="Entries" note={0}>
        <Empty>No entries: nothing was compiled.</Empty>
      </Section>
    );
  return (
    <>
      {report.frames.map((f, index) => (
        <Section title={f.name} note={count(f.entries.length, "entry", "entries")}>
          {f.resumes && <p class="note">the rest of {f.resumes} after a graph break; stack_0, stack_1, ... are intermediate values of {f.resumes}</p>}
          {f.entries.length ? f.entries.map((e) => <One frame={f} id={anchor(index, e.number)} entry={e} open={!frame || (frame === f.name && number === String(e.number))} />) : <Empty>No entry was compiled.</Empty>}
        </Section>
      ))}
    </>
  );
}

const anchor = (frame: number, entry: string | number) => `entry-${frame}-${entry}`;

function One({ frame, id, entry, open }: { frame: Frame; id: string; entry: Entry; open: boolean }) {
  const [guards, search] = useSearch(entry.guards, (g) => `${g.text} ${g.source} ${g.line?.file}:${g.line?.line}`, "guards");
  return (
    <details class="entry stacked" id={id} open={open}>
      <summary>
        <span class="label">Entry {entry.number}</span>{" "}
        <span class="note">
          {count(entry.guards.length, "guard")}
          {entry.seconds != null && `, compiled in ${ms(1000 * entry.seconds)}`}
        </span>
      </summary>
      <p class="facts">
        {entry.graphs.map((id) => (
          <a href={href("graphs", id)}>graph {id}</a>
        ))}
        {entry.sizes.map((size) => (
          <span class="mono">{size}</span>
        ))}
      </p>
      {search}
      {entry.guards.length ? (
        <Table bodies label={`Guards of entry ${entry.number} of ${frame.name}`} head={[["Guard"], ["Origin"], ["Line"]]}>
          <Rows
            rows={guards}
            columns={3}
            row={(guard) => (
            <tr>
              <td class="wrap">
                <code>
                  <Python text={guard.text} />
                </code>
              </td>
              <td class="mono dim">{guard.source}</td>
              <td>
                <Where line={guard.line} />
              </td>
            </tr>
            )}
          />
        </Table>
      ) : (
        <Empty>No guards: the entry serves every call.</Empty>
      )}
      {entry.source && <Code text={entry.source} label={`Source of entry ${entry.number} of ${frame.name}`} />}
    </details>
  );
}
