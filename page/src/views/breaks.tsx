// Why the program is not one graph, and why calls ran eagerly: each reason, with what to do about it.
import type { ViewProps } from "../app";
import type { Break } from "../data";
import { count, ms } from "../format";
import { Empty, Section, Where } from "../parts/common";
import { Python } from "../parts/python";

export function Breaks({ report }: ViewProps) {
  return (
    <Section title="Graph breaks" note={report.breaks.length}>
      {report.breaks.length ? (
        <List reasons={byCost(report.breaks)} />
      ) : (
        <Empty>No graph breaks: {report.counts.entries ? "each captured call is one graph." : "nothing was captured."}</Empty>
      )}
    </Section>
  );
}

export function Fallbacks({ report }: ViewProps) {
  return (
    <Section title="Reasons to run eagerly" note={report.eager.length}>
      {report.eager.length ? (
        <List reasons={report.eager} />
      ) : (
        <Empty>{report.counts.entries ? "No fallbacks: no call ran eagerly." : "No fallbacks: nothing was captured."}</Empty>
      )}
    </Section>
  );
}

/** The most expensive first. */
export const byCost = (breaks: Break[]): Break[] => breaks.toSorted((a, b) => (b.cost_ms ?? 0) - (a.cost_ms ?? 0));

function List({ reasons }: { reasons: Break[] }) {
  return (
    <ol class="reasons">
      {reasons.map((reason) => (
        <li>
          <Reason reason={reason} />
        </li>
      ))}
    </ol>
  );
}

export function Reason({ reason }: { reason: Break }) {
  const { line, stack, hint, detail } = reason;
  return (
    <article class="reason">
      <h3>{reason.summary || reason.id}</h3>
      {line && (
        <p class="at">
          <Where line={line} />
          {line.text && (
            <code class="quoted">
              <Python text={line.text.trim()} />
            </code>
          )}
        </p>
      )}
      {detail && <p>{detail}</p>}
      {hint && (
        <p>
          <span class="label">What to do</span> {hint}
        </p>
      )}
      <p class="facts">
        <span class="mono">{reason.id}</span>
        <span>
          in <span class="mono">{reason.frame}</span>
        </span>
        {reason.cost_ms != null && <span>costs {ms(reason.cost_ms)} a call, excluding compilation and lost fusion</span>}
      </p>
      {stack.length > 0 && (
        <details>
          <summary>Stack, {count(stack.length, "line")}</summary>
          <ol class="stack">
            {stack.map((place) => (
              <li>
                <Where line={place} />{" "}
                {typeof place !== "string" && place.text && <code>{place.text.trim()}</code>}
              </li>
            ))}
          </ol>
        </details>
      )}
    </article>
  );
}
