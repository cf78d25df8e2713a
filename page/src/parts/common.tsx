// What several views show in one way: a line of the source, code, a section that has nothing to say, a table.
import type { ComponentChildren } from "preact";
import type { Line } from "../data";
import { base } from "../format";
import { href } from "../route";
import { LongPython } from "./seen";

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

export function Where({ line }: { line: Line | string | null | undefined }) {
  if (line == null) return null;
  if (typeof line === "string") return <span class="mono">{line}</span>;
  return (
    <a class="mono" href={href("source", line.file, line.line)} title={line.function ? `${line.file}, ${line.function}` : line.file}>
      {base(line.file)}:{line.line}
    </a>
  );
}

/** Python, or anything else that has lines. It scrolls by itself, so the keyboard must reach it. */
export function Code({ text, label, plain }: { text: string; label: string; plain?: boolean }) {
  return (
    <pre class="code" tabIndex={0} role="region" aria-label={label}>
      <code>{plain ? text : <LongPython text={text} />}</code>
    </pre>
  );
}

/** `bodies`: children are the bodies of the table, not its rows. */
export function Table({ head, label, children, bodies }: { head: [string, string?][]; label: string; children: ComponentChildren; bodies?: boolean }) {
  return (
    <div class="scroll" role="region" aria-label={label} tabIndex={0}>
      <table aria-label={label}>
        <thead>
          <tr>
            {head.map(([text, kind]) => (
              <th scope="col" class={kind}>
                {text}
              </th>
            ))}
          </tr>
        </thead>
        {bodies ? children : <tbody>{children}</tbody>}
      </table>
    </div>
  );
}

export function Section({ title, note, children }: { title: string; note?: ComponentChildren; children: ComponentChildren }) {
  return (
    <section aria-label={title}>
      <h2>
        {title}
        {note != null && <span class="note"> {note}</span>}
      </h2>
      {children}
    </section>
  );
}
