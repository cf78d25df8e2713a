// Why a function has more than one entry: the guards that failed, in order of time.
import type { ViewProps } from "../app";
import { ms } from "../format";
import { Empty, Section, Table } from "../parts/common";
import { Python } from "../parts/python";
import { href } from "../route";

export function Recompiles({ report }: ViewProps) {
  const { recompiles } = report;
  const frames = [...new Set(recompiles.map((r) => r.frame))];
  return (
    <>
      <Section title="Recompile history" note={recompiles.length}>
        {recompiles.length ? (
          <Table
            label="Recompiles"
            head={[["At", "n"], ["Frame"], ["Entry", "n"], ["Guard that failed"], ["Was"], ["Now"]]}
          >
            {recompiles.map((r) => (
              <tr>
                <td class="n">{ms(r.at_ms)}</td>
                <td class="mono">{r.frame}</td>
                <td class="n">
                  <a href={href("entries", r.frame, r.entry)}>{r.entry}</a>
                </td>
                <td class="wrap">
                  <code>
                    <Python text={r.guard} />
                  </code>
                </td>
                <td class="mono">{r.was}</td>
                <td class="mono">{r.now}</td>
              </tr>
            ))}
          </Table>
        ) : (
          <Empty>No recompiles: the first entry of each function served all calls.</Empty>
        )}
      </Section>
      {frames.length > 0 && (
        <Section title="By frame">
          <Table label="Recompiles by frame" head={[["Frame"], ["Recompiles", "n"], ["Guards that failed"]]}>
            {frames.map((frame) => {
              const own = recompiles.filter((r) => r.frame === frame);
              return (
                <tr>
                  <th scope="row" class="mono">
                    {frame}
                  </th>
                  <td class="n">{own.length}</td>
                  <td class="mono wrap">{[...new Set(own.map((r) => r.guard))].join("; ")}</td>
                </tr>
              );
            })}
          </Table>
        </Section>
      )}
    </>
  );
}
