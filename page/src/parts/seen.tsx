// Long lists and texts: what is drawn is what has been seen, so that a report of any size opens at once.
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { count } from "../format";
import { spans, tokenLines } from "./python";

const ROWS = 40; // drawn together
const LINES = 200;
const MARGIN = "600px"; // around the window
const SEARCHED = 20; // rows, from which on one can search

/** Whether the element has come into the window, or `now`. */
function useSeen<T extends Element>(now: boolean) {
  const [seen, see] = useState(now);
  const ref = useRef<T>(null);
  useEffect(() => {
    if (seen) return;
    if (now) return see(true);
    const observer = new IntersectionObserver((all) => all.some((one) => one.isIntersecting) && see(true), { rootMargin: MARGIN });
    observer.observe(ref.current!);
    return () => observer.disconnect();
  }, [seen, now]);
  return [ref, seen || now] as const;
}

function pieces<T>(all: T[], size: number): T[][] {
  return Array.from({ length: Math.ceil(all.length / size) }, (_, i) => all.slice(i * size, (i + 1) * size));
}

interface RowsProps<T> {
  rows: T[];
  row: (row: T, index: number) => ComponentChildren;
  columns: number;
  height?: number; // pixels of a row that is not drawn yet
  chosen?: number; // index of a row to draw in any case
}

/** The bodies of a table. */
export function Rows<T>({ rows, row, columns, height = 26, chosen = 0 }: RowsProps<T>) {
  return (
    <>
      {pieces(rows, ROWS).map((piece, i) => (
        <Body key={i} now={i === 0 || i === Math.floor(chosen / ROWS)} height={piece.length * height} columns={columns}>
          {() => piece.map((item, at) => row(item, i * ROWS + at))}
        </Body>
      ))}
    </>
  );
}

function Body({ now, height, columns, children }: { now: boolean; height: number; columns: number; children: () => ComponentChildren }) {
  const [ref, seen] = useSeen<HTMLTableSectionElement>(now);
  return <tbody ref={ref}>{seen ? children() : <tr style={{ height: `${height}px` }} aria-hidden="true"><td colSpan={columns} /></tr>}</tbody>;
}

/** Python in colours where it has been seen; the rest is plain, for the search of the browser. */
export function LongPython({ text }: { text: string }) {
  const parts = useMemo(() => pieces(text.split("\n"), LINES).map((lines) => lines.join("\n")), [text]);
  return (
    <>
      {parts.map((part, i) => (
        <Part key={i} text={i + 1 < parts.length ? part + "\n" : part} />
      ))}
    </>
  );
}

function Part({ text }: { text: string }) {
  const [ref, seen] = useSeen<HTMLSpanElement>(false);
  const lines = useMemo(() => (seen ? tokenLines(text) : []), [seen, text]);
  return <span ref={ref}>{seen ? lines.map((line, i) => <>{i > 0 && "\n"}{spans(line)}</>) : text}</span>;
}

/** The rows whose text has all words that the reader asks for, and the field to ask in, if the rows are many. */
export function useSearch<T>(rows: T[], text: (row: T) => string, what: string): [found: T[], field: ComponentChildren] {
  const [query, search] = useState("");
  const found = useMemo(() => {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    return words.length ? rows.filter((row) => words.every((word) => text(row).toLowerCase().includes(word))) : rows;
  }, [rows, query]);
  if (rows.length <= SEARCHED) return [rows, null];
  const field = (
    <label class="search">
      <span class="label">Search {what}</span>
      <input type="search" value={query} onInput={(event) => search(event.currentTarget.value)} />
      <span class="dim" role="status">{query.trim() ? `${count(found.length, "row")} found` : ""}</span>
    </label>
  );
  return [found, field];
}
