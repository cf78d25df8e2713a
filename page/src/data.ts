// The report as it is embedded in the page (what `Explanation.to_dict()` gives). Anything may be missing: `read` fills in
// empty lists, so that views need not ask.

export interface Line {
  file: string;
  line: number;
  text?: string | null;
}
export interface Source {
  file: string;
  first_line: number;
  text: string;
}
export interface Phase {
  name: string;
  frame: string;
  start_ms: number;
  ms: number;
}
export interface Guard {
  text: string;
  origin?: string | null;
  line?: Line | null;
}
export interface Entry {
  number: number;
  guards: Guard[];
  hits: number | null;
  source: string;
  sizes: string[];
  graphs: number[];
}
export interface Frame {
  name: string;
  resumes: string | null;
  entries: Entry[];
}
export interface Break {
  frame: string;
  id: string;
  summary: string;
  detail?: string | null;
  hint?: string | null;
  line?: Line | null;
  stack: (Line | string)[];
  cost_ms: number | null;
}
export interface Recompile {
  frame: string;
  entry: number;
  guard: string;
  was: string;
  now: string;
  at_ms: number | null;
}
export interface Node {
  name: string;
  op: string;
  target: string;
  inputs: string[];
  shape?: string | null;
  dtype?: string | null;
  line?: Line | null;
  module?: string | null;
}
export interface Graph {
  id: number;
  frame: string;
  level: string;
  code: string;
  nodes: Node[];
}
export interface Kernel {
  name: string;
  graph: number | null;
  code: string;
  kind: string;
  reads_bytes: number | null;
  writes_bytes: number | null;
  flops: number | null;
  us: number | null;
  nodes: string[];
  lines: (Line | string)[];
}
export interface Report {
  name: string;
  smelt: string;
  torch: string;
  device: string;
  threads: number | null;
  sources: Source[];
  phases: Phase[];
  frames: Frame[];
  breaks: Break[];
  eager: Break[];
  recompiles: Recompile[];
  graphs: Graph[];
  kernels: Kernel[];
  externs: { target: string; why: string }[];
  not_fused: { a: string; b: string; why: string }[];
  memory: {
    saved_bytes: number | null;
    eager_saved_bytes: number | null;
    timeline: { step: string; bytes: number }[];
  };
  lines: { file: string; line: number; events: string[] }[];
}

type Raw = Record<string, any>;
const list = (value: unknown): any[] => (Array.isArray(value) ? value : []);
const number = (value: unknown): number | null => (typeof value === "number" ? value : null);
const text = (value: unknown): string => (value == null ? "" : String(value));

function reason(raw: Raw): Break {
  return {
    ...(raw as Break),
    frame: text(raw.frame),
    id: text(raw.id),
    summary: text(raw.summary),
    stack: list(raw.stack),
    cost_ms: number(raw.cost_ms),
  };
}

export function read(raw: Raw): Report {
  const memory: Raw = raw.memory ?? {};
  return {
    name: text(raw.name) || "report",
    smelt: text(raw.smelt),
    torch: text(raw.torch),
    device: text(raw.device),
    threads: number(raw.threads),
    sources: list(raw.sources).map((s) => ({ file: text(s.file), first_line: s.first_line ?? 1, text: text(s.text) })),
    phases: list(raw.phases).map((p) => ({
      name: text(p.name),
      frame: text(p.frame),
      start_ms: number(p.start_ms) ?? 0,
      ms: number(p.ms) ?? 0,
    })),
    frames: list(raw.frames).map((f) => ({
      name: text(f.name),
      resumes: f.resumes ?? null,
      entries: list(f.entries).map((e, index) => ({
        number: e.number ?? index,
        guards: list(e.guards).map((g) => ({ ...g, text: text(g.text) })),
        hits: number(e.hits),
        source: text(e.source),
        sizes: list(e.sizes).map(text),
        graphs: list(e.graphs),
      })),
    })),
    breaks: list(raw.breaks).map(reason),
    eager: list(raw.eager).map(reason),
    recompiles: list(raw.recompiles).map((r) => ({
      frame: text(r.frame),
      entry: r.entry ?? 0,
      guard: text(r.guard),
      was: text(r.was),
      now: text(r.now),
      at_ms: number(r.at_ms),
    })),
    graphs: list(raw.graphs).map((g, index) => ({
      id: g.id ?? index,
      frame: text(g.frame),
      level: text(g.level),
      code: text(g.code),
      nodes: list(g.nodes).map((n) => ({
        ...n,
        name: text(n.name),
        op: text(n.op),
        target: text(n.target),
        inputs: list(n.inputs).map(text),
      })),
    })),
    kernels: list(raw.kernels).map((k) => ({
      name: text(k.name),
      graph: k.graph ?? null,
      code: text(k.code),
      kind: text(k.kind),
      reads_bytes: number(k.reads_bytes),
      writes_bytes: number(k.writes_bytes),
      flops: number(k.flops),
      us: number(k.us),
      nodes: list(k.nodes).map(text),
      lines: list(k.lines),
    })),
    externs: list(raw.externs),
    not_fused: list(raw.not_fused),
    memory: {
      saved_bytes: number(memory.saved_bytes),
      eager_saved_bytes: number(memory.eager_saved_bytes),
      timeline: list(memory.timeline),
    },
    lines: list(raw.lines).map((l) => ({ file: text(l.file), line: l.line, events: list(l.events).map(text) })),
  };
}
