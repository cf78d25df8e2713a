// Python in four shades: keywords, strings, numbers, comments. A tokenizer of one expression; what it does not know is plain.
import type { JSX } from "preact";

const TOKEN =
  /(#.*)|((?:\b[rbfuRBFU]{1,2})?(?:"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?))|\b(and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield|None|True|False)\b|\b(\d[\w.]*)/g;
const KINDS = ["comment", "string", "keyword", "number"];

export interface Token {
  text: string;
  kind: string | null;
}

export function tokens(text: string): Token[] {
  const found: Token[] = [];
  let end = 0;
  for (const match of text.matchAll(TOKEN)) {
    if (match.index > end) found.push({ text: text.slice(end, match.index), kind: null });
    found.push({ text: match[0], kind: KINDS[match.slice(1).findIndex((group) => group !== undefined)] });
    end = match.index + match[0].length;
  }
  if (end < text.length) found.push({ text: text.slice(end), kind: null });
  return found;
}

/** One list of tokens for each line; a string of several lines is cut. */
export function tokenLines(text: string): Token[][] {
  const lines: Token[][] = [[]];
  for (const token of tokens(text))
    token.text.split("\n").forEach((part, i) => {
      if (i) lines.push([]);
      if (part) lines[lines.length - 1].push({ text: part, kind: token.kind });
    });
  return lines;
}

export const spans = (line: Token[]): (string | JSX.Element)[] =>
  line.map(({ text, kind }) => (kind ? <span class={"py-" + kind}>{text}</span> : text));

export function Python({ text }: { text: string }) {
  return <>{spans(tokens(text))}</>;
}
