// The kernels: what they move and compute, where that puts them between memory and arithmetic, and their loops.
import { useMemo, useState } from "preact/hooks";
import type { ViewProps } from "../app";
import type { Kernel, Report } from "../data";
import { bandwidth, bytes, count, flops, intensity, us } from "../format";
import { Code, Empty, Section, Table, Where } from "../parts/common";
import { Rows, useSearch } from "../parts/seen";
import { href } from "../route";
import { Roofline } from "./roofline";

export interface Row {
  kernel: Kernel;
  index: number;
  moved: number | null;
  intensity: number | null;
}

function rowsOf(report: Report): Row[] {
  return report.kernels.map((kernel, index) => {
    const { reads_bytes: reads, writes_bytes: writes } = kernel;
    const moved = reads == null && writes == null ? null : (reads ?? 0) + (writes ?? 0);
    return { kernel, index, moved, intensity: moved && kernel.flops != null ? kernel.flops / moved : null };
  });
}

const COLUMNS: [title: string, kind: string, key: (row: Row) => number | string | null][] = [
  ["#", "n", (r) => r.index],
  ["Kernel", "", (r) => r.kernel.name],
  ["Kind", "", (r) => r.kernel.kind],
  ["Graph", "n", (r) => r.kernel.graph],
  ["Reads", "n", (r) => r.kernel.reads_bytes],
  ["Writes", "n", (r) => r.kernel.writes_bytes],
  ["Flops", "n", (r) => r.kernel.flops],
  ["Flops/byte", "n", (r) => r.intensity],
  ["Time", "n", (r) => r.kernel.us],
  ["Bytes/s", "n", (r) => r.kernel.bytes_per_second],
];

export function Kernels({ report, route }: ViewProps) {
  const rows = useMemo(() => rowsOf(report), [report]);
  const chosen = rows[Number(route.rest[0] ?? NaN)] ?? null;
  return (
    <>
      <div class="split">
        <div class="pane">
          <Section title="Kernels" note={`${count(report.counts.kernels, "generated kernel")}, ${count(report.counts.extern_calls, "ATen call")}`}>
            {report.notes
              .filter((note) => note.view === "kernels")
              .map((note) => (
                <p>{note.text}</p>
              ))}
            {rows.length ? (
              <>
                <Roofline rows={rows} chosen={chosen} />
                <List rows={rows} chosen={chosen} />
              </>
            ) : (
              <Empty>No kernels: nothing was generated, and no library was called.</Empty>
            )}
          </Section>
          <Refused report={report} />
        </div>
        <aside class="pane detail" aria-label="The kernel" aria-live="polite">
          {chosen ? <Detail row={chosen} report={report} /> : <p class="dim">Choose a kernel to read its loops.</p>}
        </aside>
      </div>
    </>
  );
}

function List({ rows, chosen }: { rows: Row[]; chosen: Row | null }) {
  const timed = rows.some((row) => row.kernel.us != null);
  const [[column, down], order] = useState<[number | null, boolean]>([null, true]); // at first by time, then by size
  const [found, search] = useSearch(rows, ({ kernel }) => `${kernel.name} ${kernel.kind} ${kernel.nodes.join(" ")}`, "kernels");
  const columns = timed ? COLUMNS : COLUMNS.slice(0, -2);
  const sorted = useMemo(() => {
    if (column === null) return found.toSorted((a, b) => (b.kernel.us ?? 0) - (a.kernel.us ?? 0) || (b.moved ?? 0) - (a.moved ?? 0));
    const key = COLUMNS[column][2];
    const sign = down ? -1 : 1;
    return [...found].sort((a, b) => {
      const [p, q] = [key(a), key(b)];
      if (p == null || q == null) return Number(p == null) - Number(q == null); // what is not known comes last
      return sign * (p < q ? -1 : p > q ? 1 : 0);
    });
  }, [found, column, down]);
  return (
    <>
    {search}
    <div class="scroll" role="region" aria-label="Kernels" tabIndex={0}>
      <table aria-label="Kernels">
        <thead>
          <tr>
            {columns.map(([title, kind], i) => (
              <th scope="col" class={kind} aria-sort={i === column ? (down ? "descending" : "ascending") : undefined}>
                <button onClick={() => order([i, i === column ? !down : kind === "n" && i > 0])}>
                  {title}
                  <span aria-hidden="true">{i === column ? (down ? " \u2193" : " \u2191") : ""}</span>
                </button>
              </th>
            ))}
          </tr>
        </thead>
        <Rows
          rows={sorted}
          columns={columns.length}
          chosen={sorted.findIndex(({ index }) => index === chosen?.index)}
          row={({ kernel, index, intensity: perByte }) => (
            <tr class={index === chosen?.index ? "chosen" : undefined}>
              <td class="n dim">{index}</td>
              <td class="name">
                <a class="mono" href={href("kernels", index)} aria-current={index === chosen?.index ? "true" : undefined} title={kernel.name}>
                  {kernel.name}
                </a>
              </td>
              <td>{kernel.kind}</td>
              <td class="n">{kernel.graph}</td>
              <td class="n">{bytes(kernel.reads_bytes)}</td>
              <td class="n">{bytes(kernel.writes_bytes)}</td>
              <td class="n">{flops(kernel.flops)}</td>
              <td class="n">{intensity(perByte)}</td>
              {timed && <td class="n">{us(kernel.us)}</td>}
              {timed && <td class="n">{bandwidth(kernel.bytes_per_second)}</td>}
            </tr>
          )}
        />
      </table>
    </div>
    </>
  );
}

function Detail({ row: { kernel, moved, intensity: perByte }, report }: { row: Row; report: Report }) {
  const graph = report.graphs.find((g) => g.id === kernel.graph);
  const known = new Set(graph?.nodes.map((node) => node.name));
  return (
    <>
      <h2 class="mono">{kernel.name}</h2>
      <p class="facts">
        <span>{kernel.kind}</span>
        <span>{bytes(moved)} moved</span>
        <span>{flops(kernel.flops)} flops</span>
        <span>{intensity(perByte)} flops/byte</span>
        {kernel.us != null && <span>{us(kernel.us)}</span>}
        {kernel.bytes_per_second != null && <span>{bandwidth(kernel.bytes_per_second)}</span>}
      </p>
      {kernel.nodes.length > 0 && (
        <p>
          <span class="label">Operators</span>{" "}
          {kernel.nodes.map((name, i) => (
            <>
              {i > 0 && ", "}
              {known.has(name) ? (
                <a class="mono" href={href("graphs", graph!.id, name)}>
                  {name}
                </a>
              ) : (
                <span class="mono">{name}</span>
              )}
            </>
          ))}
        </p>
      )}
      {kernel.lines.length > 0 && (
        <p>
          <span class="label">Lines</span>{" "}
          {kernel.lines.map((line, i) => (
            <>
              {i > 0 && ", "}
              <Where line={line} />
            </>
          ))}
        </p>
      )}
      {kernel.code ? <Code text={kernel.code} label={`Loops of ${kernel.name}`} plain /> : <Empty>It has no loops of its own.</Empty>}
    </>
  );
}

/** Rows that say the same once, with how often it was said. */
function distinct<T>(rows: T[], key: (row: T) => string): { row: T; times: number }[] {
  const found = new Map<string, { row: T; times: number }>();
  for (const row of rows) {
    const same = found.get(key(row));
    if (same) same.times += 1;
    else found.set(key(row), { row, times: 1 });
  }
  return [...found.values()];
}

const times = (n: number) => (n > 1 ? <span class="dim">{` ${n}\u00d7`}</span> : null);

function Refused({ report }: { report: Report }) {
  const externs = distinct(report.externs, (row) => JSON.stringify([row.target, row.why]));
  const none = report.kernels.length ? null : "Nothing was compiled into kernels.";
  const refused = distinct(report.not_fused, (row) => JSON.stringify([row.a, row.b, row.why]));
  return (
    <>
      <Section title="Left to libraries" note={externs.length}>
        {externs.length ? (
          <Table label="Left to libraries" head={[["Operator"], ["Why"]]}>
            {externs.map(({ row, times: n }) => (
              <tr>
                <td class="mono">
                  {row.target}
                  {times(n)}
                </td>
                <td class="wrap">{row.why}</td>
              </tr>
            ))}
          </Table>
        ) : (
          <Empty>{none ?? "Every operator is generated."}</Empty>
        )}
      </Section>
      <Section title="Not fused" note={refused.length}>
        {refused.length ? (
          <Table label="Not fused" head={[["Kernel"], ["with"], ["Why"]]}>
            {refused.map(({ row, times: n }) => (
              <tr>
                <td class="mono">{row.a}</td>
                <td class="mono">
                  {row.b}
                  {times(n)}
                </td>
                <td class="wrap">{row.why}</td>
              </tr>
            ))}
          </Table>
        ) : (
          <Empty>{none ?? "No fusion was refused."}</Empty>
        )}
      </Section>
    </>
  );
}
