// The whole in figures, and the time of each phase on one axis.
import { useMemo } from "preact/hooks";
import type { ViewProps } from "../app";
import type { Phase, Report } from "../data";
import { bytes, count, ms, us } from "../format";
import { Empty, Section, Table, Where } from "../parts/common";
import { ticks } from "../parts/scale";
import { href } from "../route";
import { byCost } from "./breaks";

export function Overview({ report }: ViewProps) {
  return (
    <>
      <Section title="In short">
        <First report={report} />
        <Figures report={report} />
        <Notes report={report} />
      </Section>
      <Section title="Time of compilation" note={report.compile_ms == null ? null : ms(report.compile_ms)}>
        {report.phases.length ? <Timeline phases={report.phases} /> : <Empty>No phase was timed.</Empty>}
      </Section>
    </>
  );
}

/** What to do first: about what runs eagerly, else the most expensive break, else the guard that failed most often, else the
 * longest kernel. */
function First({ report: { eager, breaks, recompiles, kernels } }: { report: Report }) {
  const [reason] = [...eager, ...byCost(breaks)];
  if (reason) {
    const [view, kind] = eager.length ? ["fallbacks", "fallback"] : ["breaks", "graph break"];
    const cost = reason.cost_ms == null ? "" : `, which costs ${ms(reason.cost_ms)} a call`;
    return (
      <p>
        Start with the <a href={href(view)}>{kind}</a> at <Where line={reason.line} />
        {cost}: {reason.hint || reason.summary}
      </p>
    );
  }
  const failures = (guard: string) => recompiles.filter((r) => r.guard === guard).length;
  const [failed] = recompiles.toSorted((a, b) => failures(b.guard) - failures(a.guard));
  if (failed) {
    return (
      <p>
        Start with the guard <code>{failed.guard}</code>, which failed in <a href={href("recompiles")}>{count(failures(failed.guard), "call")}</a>: it
        was {failed.was}, then {failed.now}
      </p>
    );
  }
  const [longest] = kernels.filter((k) => k.us != null).toSorted((a, b) => b.us! - a.us!);
  return longest ? (
    <p>
      Start with the kernel <a href={href("kernels", kernels.indexOf(longest))}>{longest.name}</a>, which takes {us(longest.us)} of{" "}
      {us(kernels.reduce((sum, k) => sum + (k.us ?? 0), 0))}
    </p>
  ) : null;
}

/** The time of compilation before a time, without what the program did between compilations. */
function compileClock(phases: Phase[]): (at: number) => number {
  const runs: [from: number, to: number][] = [];
  for (const phase of phases.toSorted((a, b) => a.start_ms - b.start_ms)) {
    const last = runs.at(-1);
    if (last && phase.start_ms <= last[1]) last[1] = Math.max(last[1], end(phase));
    else runs.push([phase.start_ms, end(phase)]);
  }
  return (at) => runs.reduce((sum, [from, to]) => sum + Math.max(0, Math.min(at, to) - from), 0);
}

const end = (phase: Phase): number => phase.start_ms + phase.ms;

function Figures({ report }: { report: Report }) {
  const { graphs, recompiles, entries, guards, kernels, extern_calls } = report.counts;
  const levels = [...new Set(report.graphs.map((g) => g.level))];
  const { saved_bytes, eager_saved_bytes } = report.memory;
  const figures: [string, string, string, string?][] = [
    ["breaks", "Graph breaks", String(report.breaks.length)],
    ["fallbacks", "Fallbacks", String(report.eager.length), report.eager.length ? "reasons to run eagerly" : ""],
    ["recompiles", "Recompiles", String(recompiles)],
    ["entries", "Entries", String(entries), count(guards, "guard")],
    ["graphs", "Graphs", graphs == null ? "\u2013" : String(graphs), levels.length ? `levels: ${levels.join(", ")}` : ""],
    ["kernels", "Generated kernels", String(kernels), `and ${count(extern_calls, "ATen call")}`],
    ["memory", "Saved for backward", bytes(saved_bytes), eager_saved_bytes == null ? "" : `eager ${bytes(eager_saved_bytes)}`],
  ];
  return (
    <ul class="figures">
      {figures.map(([view, name, value, more]) => (
        <li>
          <a href={href(view)}>
            <span class="name">{name}</span>
            <span class="value">{value}</span>
            <span class="more">{more}</span>
          </a>
        </li>
      ))}
    </ul>
  );
}

/** Why something is missing, with what to do. */
function Notes({ report: { notes } }: { report: Report }) {
  return (
    <ul class="plain">
      {notes.map((note) => (
        <li>
          {note.view === "overview" ? note.text : <a href={href(note.view)}>{note.text}</a>}
        </li>
      ))}
    </ul>
  );
}

interface Bar extends Phase {
  lane: number;
  own: number; // ms, without the phases inside
}

const SLACK = 1e-3; // ms: ends are rounded apart from starts

/** One group of rows for each frame; a phase that lies inside another is below it. */
function rows(phases: Phase[]): { frame: string; bars: Bar[]; lanes: number }[] {
  const frames = [...new Set(phases.map((p) => p.frame))];
  return frames.map((frame) => {
    const around: Bar[] = [];
    const bars: Bar[] = [];
    for (const phase of phases.filter((p) => p.frame === frame).sort((a, b) => a.start_ms - b.start_ms || b.ms - a.ms)) {
      while (around.length && end(around.at(-1)!) <= phase.start_ms + SLACK) around.pop();
      const bar = { ...phase, lane: around.length, own: phase.ms };
      if (around.length) around.at(-1)!.own -= phase.ms;
      around.push(bar);
      bars.push(bar);
    }
    return { frame, bars, lanes: Math.max(...bars.map((bar) => bar.lane)) + 1 };
  });
}

function Timeline({ phases }: { phases: Phase[] }) {
  const groups = useMemo(() => rows(phases), [phases]);
  const clock = useMemo(() => compileClock(phases), [phases]);
  const length = clock(Infinity) || 1;
  const names = [...new Set(phases.map((p) => p.name))];
  const percent = (value: number) => `${(100 * value) / length}%`;
  const bars = groups.flatMap((group) => group.bars);
  const total = (name: string) => bars.reduce((sum, bar) => sum + (bar.name === name && bar.own > SLACK ? bar.own : 0), 0);
  const all = names.reduce((sum, name) => sum + total(name), 0) || 1;
  return (
    <>
      <div class="timeline" role="img" aria-label={`Phases of compilation over ${ms(length)}; the table below has the same`}>
        <div class="axis">
          {ticks(0, length, 8).map((tick) => (
            <span style={{ left: percent(tick) }}>{ms(tick)}</span>
          ))}
        </div>
        {groups.map(({ frame, bars, lanes }) => (
          <div class="track">
            <span class="mono track-name" title={frame}>
              {frame}
            </span>
            <div class="bars" style={{ height: `${lanes * 20}px` }}>
              {ticks(0, length, 8).map((tick) => (
                <i class="grid" style={{ left: percent(tick) }} />
              ))}
              {bars.map((bar) => (
                <span
                  class={"phase hue-" + (names.indexOf(bar.name) % 10)}
                  style={{ left: percent(clock(bar.start_ms)), width: percent(bar.ms), top: `${bar.lane * 20}px` }}
                  title={`${bar.name}: ${ms(bar.ms)} from ${ms(bar.start_ms)}`}
                >
                  {bar.ms / length > 0.06 ? bar.name : ""}
                </span>
              ))}
            </div>
          </div>
        ))}
      </div>
      <Table label="Time by phase" head={[["Phase"], ["Times", "n"], ["Own time", "n"], ["Share"]]}>
        {names
          .toSorted((a, b) => total(b) - total(a))
          .map((name) => (
            <tr>
              <th scope="row">
                <i class={"key hue-" + (names.indexOf(name) % 10)} aria-hidden="true" />
                {name}
              </th>
              <td class="n">{phases.filter((p) => p.name === name).length}</td>
              <td class="n">{ms(total(name))}</td>
              <td class="share">
                <i class="meter" style={{ width: `${(100 * total(name)) / all}%` }} />
                <span>{Math.round((100 * total(name)) / all)}%</span>
              </td>
            </tr>
          ))}
      </Table>
    </>
  );
}
