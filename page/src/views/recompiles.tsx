// Why a function has more than one entry: the guards that failed, in order of time.
import type { ViewProps } from "../app";
import { count, ms } from "../format";
import { Empty, Section, Table, Where } from "../parts/common";
import { Python } from "../parts/python";
import { href } from "../route";

export function Recompiles({ report }: ViewProps) {
  const { recompiles, counts } = report;
  const note = recompiles.length > counts.recompiles ? `${counts.recompiles}, ${count(recompiles.length, "rejection")}` : counts.recompiles;
  return (
    <Section title="Recompile history" note={note}>
      {recompiles.length ? (
        <div class="stacked">
          <Table
            label="Recompiles"
            head={[["At", "n"], ["Frame"], ["Entry", "n"], ["Guard that failed"], ["Was"], ["Now"], ["Line"]]}
          >
            {recompiles.map((r) => (
              <tr>
                <td class="n" data-label="At">{ms(r.at_ms)}</td>
                <td class="mono">{r.frame}</td>
                <td class="n" data-label="Entry">
                  <a href={href("entries", r.frame, r.entry)}>{r.entry}</a>
                </td>
                <td class="wrap">
                  <code>
                    <Python text={r.guard} />
                  </code>
                </td>
                <td class="mono" data-label="Was">{r.was}</td>
                <td class="mono" data-label="Now">{r.now}</td>
                <td>
                  <Where line={r.line} />
                </td>
              </tr>
            ))}
          </Table>
        </div>
      ) : (
        <Empty>No recompiles: {counts.entries ? "no entry rejected a call that the report observed." : "nothing was compiled."}</Empty>
      )}
    </Section>
  );
}
