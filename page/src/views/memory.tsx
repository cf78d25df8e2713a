// What is kept for backward, against eager's, and how memory goes up and down while the plan runs.
import type { ViewProps } from "../app";
import type { Saved as SavedValues, Step } from "../data";
import { bytes, count } from "../format";
import { Empty, Section, Table, Where } from "../parts/common";
import { Rows } from "../parts/seen";
import { ticks } from "../parts/scale";
import { href } from "../route";

export function Memory({ report: { memory, graphs } }: ViewProps) {
  const { saved_bytes, eager_saved_bytes, timeline } = memory;
  const runs = [...new Set(timeline.map((step) => step.graph))];
  const peak = Math.max(0, ...timeline.map((step) => step.bytes));
  return (
    <>
      <Section title="Saved for backward">
        {saved_bytes == null && eager_saved_bytes == null ? (
          <Empty>Nothing is saved: no backward was compiled.</Empty>
        ) : (
          <Saved saved={saved_bytes} eager={eager_saved_bytes} />
        )}
        {memory.graphs.filter((graph) => graph.values.length).map((graph) => (
          <Values graph={graph} />
        ))}
      </Section>
      <Section title="Memory over time" note={timeline.length ? `peak ${bytes(peak)}` : null}>
        {timeline.length ? (
          runs.map((id) => {
            const graph = graphs.find((g) => g.id === id);
            const title = graph ? `${graph.level} of ${graph.frame}` : "";
            return <Run title={title} id={id} timeline={timeline.filter((step) => step.graph === id)} />;
          })
        ) : (
          <Empty>No plan was recorded, so there is no memory to show.</Empty>
        )}
      </Section>
    </>
  );
}

interface RunProps {
  title: string;
  id: number | null;
  timeline: Step[];
}

function Run({ title, id, timeline }: RunProps) {
  const peak = Math.max(...timeline.map((step) => step.bytes));
  return (
    <div class="run">
      {id != null && (
        <h3>
          <a href={href("graphs", id)}>Graph {id}</a> <span class="note">{[title, `peak ${bytes(peak)}`].filter(Boolean).join(", ")}</span>
        </h3>
      )}
      <Steps timeline={timeline} peak={peak} />
      <details>
        <summary>As a table, {count(timeline.length, "step")}</summary>
        <Table bodies label="Memory by step" head={[["#", "n"], ["Step"], ["Memory", "n"]]}>
          <Rows rows={timeline} columns={3} row={(step, i) => (
            <tr>
              <td class="n">{i}</td>
              <td class="mono">{step.step}</td>
              <td class="n">{bytes(step.bytes)}</td>
            </tr>
          )} />
        </Table>
      </details>
    </div>
  );
}

/** What one graph keeps, most first. */
function Values({ graph }: { graph: SavedValues }) {
  return (
    <details>
      <summary>
        <span class="mono">{graph.frame}</span>: {count(graph.values.length, "value")}, {bytes(graph.saved_bytes)}
      </summary>
      <Table bodies label={`Saved by ${graph.frame}`} head={[["Value"], ["Bytes", "n"], ["Why"], ["Line"]]}>
        <Rows
          rows={graph.values.toSorted((a, b) => (b.bytes ?? 0) - (a.bytes ?? 0))}
          columns={4}
          row={(value) => (
            <tr>
              <td class="mono">{value.name}</td>
              <td class="n">{bytes(value.bytes)}</td>
              <td>{value.why}</td>
              <td>
                <Where line={value.line} />
              </td>
            </tr>
          )}
        />
      </Table>
    </details>
  );
}

function Saved({ saved, eager }: { saved: number | null; eager: number | null }) {
  const most = Math.max(saved ?? 0, eager ?? 0) || 1;
  return (
    <Table label="Memory saved for backward" head={[["By"], ["Bytes", "n"], ["Share"]]}>
      {(
        [
          ["smelt", saved],
          ["eager", eager],
        ] as const
      ).map(([name, value]) => (
        <tr>
          <th scope="row">{name}</th>
          <td class="n">{bytes(value)}</td>
          <td class="share">
            <i class="meter" style={{ width: `${(100 * (value ?? 0)) / most}%` }} />
            <span>{value == null ? "" : Math.round((100 * value) / most) + "%"}</span>
          </td>
        </tr>
      ))}
    </Table>
  );
}

const WIDTH = 960;
const HEIGHT = 180;
const LEFT = 76;
const BOTTOM = 24;

function Steps({ timeline, peak }: { timeline: Step[]; peak: number }) {
  const width = (WIDTH - LEFT - 8) / timeline.length;
  const x = (i: number) => LEFT + i * width;
  const y = (value: number) => HEIGHT - BOTTOM - (value / (peak || 1)) * (HEIGHT - BOTTOM - 10);
  const path = timeline.map((step, i) => `V${y(step.bytes).toFixed(1)}H${x(i + 1).toFixed(1)}`).join("");
  const ground = y(0);
  return (
    <svg class="chart" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`Memory at each of ${timeline.length} steps, at most ${bytes(peak)}`}>
      {memoryTicks(peak).map((tick) => (
        <g>
          <line class="grid" x1={LEFT} x2={WIDTH - 8} y1={y(tick)} y2={y(tick)} />
          <text x={LEFT - 8} y={y(tick) + 4} text-anchor="end">
            {bytes(tick)}
          </text>
        </g>
      ))}
      <path class="area" d={`M${LEFT} ${ground}${path}V${ground}Z`} />
      <path class="edge" d={`M${LEFT} ${ground}${path}`} />
      {timeline.map((step, i) => (
        <rect class="hover" x={x(i)} y={0} width={width} height={ground}>
          <title>{`${i}: ${step.step}, ${bytes(step.bytes)}`}</title>
        </rect>
      ))}
      <text x={LEFT} y={HEIGHT - 6}>
        step 0
      </text>
      <text x={WIDTH - 8} y={HEIGHT - 6} text-anchor="end">
        {timeline.length - 1}
      </text>
    </svg>
  );
}

/** Round in units of 1024, as the labels are. */
function memoryTicks(peak: number): number[] {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log(peak || 1) / Math.log(1024)));
  return ticks(0, peak / unit, 4).map((tick) => tick * unit);
}
