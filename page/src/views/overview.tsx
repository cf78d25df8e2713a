// The whole in figures, and the time of each phase on one axis.
import { useMemo } from "preact/hooks";
import type { ViewProps } from "../app";
import type { Phase, Report } from "../data";
import { bytes, count, ms } from "../format";
import { Empty, Section, Table } from "../parts/common";
import { ticks } from "../parts/scale";
import { href } from "../route";

export function Overview({ report }: ViewProps) {
  return (
    <>
      <Section title="In short">
        <Figures report={report} />
      </Section>
      <Section title="Time of compilation" note={report.phases.length ? ms(span(report.phases)) : null}>
        {report.phases.length ? <Timeline phases={report.phases} /> : <Empty>No phase was timed.</Empty>}
      </Section>
    </>
  );
}

const span = (phases: Phase[]): number =>
  Math.max(...phases.map((p) => p.start_ms + p.ms)) - Math.min(...phases.map((p) => p.start_ms));

function Figures({ report }: { report: Report }) {
  const generated = report.kernels.filter((k) => k.kind !== "extern").length;
  const entries = report.frames.reduce((n, f) => n + f.entries.length, 0);
  const guards = report.frames.reduce((n, f) => n + f.entries.reduce((m, e) => m + e.guards.length, 0), 0);
  const { saved_bytes, eager_saved_bytes } = report.memory;
  const figures: [string, string, string, string?][] = [
    ["breaks", "Graph breaks", String(report.breaks.length), report.eager.length ? `${report.eager.length} ran eagerly` : ""],
    ["recompiles", "Recompiles", String(report.recompiles.length)],
    ["entries", "Entries", String(entries), count(guards, "guard")],
    ["graphs", "Graphs", String(report.graphs.length), count(report.graphs.reduce((n, g) => n + g.nodes.length, 0), "node")],
    ["kernels", "Kernels", String(report.kernels.length), `${generated} generated`],
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

interface Bar extends Phase {
  lane: number;
}

/** One group of rows for each frame; phases that overlap (one inside another) take rows of their own. */
function rows(phases: Phase[]): { frame: string; bars: Bar[]; lanes: number }[] {
  const frames = [...new Set(phases.map((p) => p.frame))];
  return frames.map((frame) => {
    const ends: number[] = [];
    const bars = phases
      .filter((p) => p.frame === frame)
      .sort((a, b) => a.start_ms - b.start_ms || b.ms - a.ms)
      .map((phase) => {
        let lane = ends.findIndex((end) => end <= phase.start_ms + 1e-6);
        if (lane < 0) lane = ends.length;
        ends[lane] = phase.start_ms + phase.ms;
        return { ...phase, lane };
      });
    return { frame, bars, lanes: ends.length };
  });
}

function Timeline({ phases }: { phases: Phase[] }) {
  const groups = useMemo(() => rows(phases), [phases]);
  const start = Math.min(...phases.map((p) => p.start_ms));
  const length = span(phases) || 1;
  const names = [...new Set(phases.map((p) => p.name))];
  const percent = (value: number) => `${(100 * value) / length}%`;
  const total = (name: string) => phases.reduce((sum, p) => sum + (p.name === name ? p.ms : 0), 0);
  const all = phases.reduce((sum, p) => sum + p.ms, 0) || 1;
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
                  class={"phase hue-" + (names.indexOf(bar.name) % 8)}
                  style={{ left: percent(bar.start_ms - start), width: percent(bar.ms), top: `${bar.lane * 20}px` }}
                  title={`${bar.name}: ${ms(bar.ms)} from ${ms(bar.start_ms)}`}
                >
                  {bar.ms / length > 0.06 ? bar.name : ""}
                </span>
              ))}
            </div>
          </div>
        ))}
      </div>
      <Table label="Time by phase" head={[["Phase"], ["Times", "n"], ["Time", "n"], ["Share"]]}>
        {names
          .toSorted((a, b) => total(b) - total(a))
          .map((name) => (
            <tr>
              <th scope="row">
                <i class={"key hue-" + (names.indexOf(name) % 8)} aria-hidden="true" />
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
