// The report as it is embedded in the page (what `Explanation.to_dict()` gives). Anything may be missing: `read` fills in
// empty lists, so that views need not ask.

export interface Line {
  file: string;
  line: number;
  text?: string | null;
  function?: string | null;
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
  source?: string | null;
  line?: Line | null;
}
export interface Entry {
  number: number;
  guards: Guard[];
  seconds: number | null;
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
  line: Line | null;
  call: number; // of which call: other entries may have rejected it, too
  compiled: boolean;
}
export interface Counts {
  graphs: number | null; // captured ones that compute, whatever the number of their levels
  recompiles: number;
  entries: number;
  guards: number;
  kernels: number; // generated
  extern_calls: number;
}
export interface Note {
  view: string;
  text: string;
}
export interface Node {
  name: string;
  op: string;
  target: string;
  inputs: string[];
  type: string; // dtype and shape
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
  bytes_per_second: number | null; // none where the sizes of what was timed are not known
  nodes: string[];
  lines: (Line | string)[];
}
export interface Step {
  step: string;
  bytes: number;
  graph: number | null;
}
export interface Saved {
  frame: string;
  saved_bytes: number | null;
  eager_saved_bytes: number | null;
  values: { name: string; kind: string; bytes: number | null; why: string; line: Line | string | null }[];
}
export interface Report {
  name: string;
  smelt: string;
  torch: string;
  device: string;
  threads: number | null;
  counts: Counts;
  compile_ms: number | null; // without what the program did between compilations
  notes: Note[];
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
    timeline: Step[];
    graphs: Saved[];
  };
  lines: { file: string; line: number; events: string[] }[];
}

type Raw = Record<string, any>;
const list = (value: unknown): any[] => (Array.isArray(value) ? value : []);
const number = (value: unknown): number | null => (typeof value === "number" ? value : null);
const text = (value: unknown): string => (value == null ? "" : String(value));

/** A line as an object, or as text such as `model.py:3 in Model.forward`. Text that is no line stays text. */
function line(value: unknown): Line | string | null {
  if (value == null) return null;
  if (typeof value === "object") return typeof (value as Raw).line === "number" ? (value as Line) : null;
  const found = /^(.+):(\d+)(?: in (.*))?$/.exec(String(value));
  return found ? { file: found[1], line: Number(found[2]), function: found[3] ?? null } : String(value);
}

const place = (value: unknown): Line | null => {
  const found = line(value);
  return typeof found === "object" ? found : null;
};

const shape = (value: unknown): string => (Array.isArray(value) ? `[${value.map(shape).join(", ")}]` : text(value));

function reason(raw: Raw): Break {
  return {
    ...(raw as Break),
    frame: text(raw.frame),
    id: text(raw.id),
    summary: text(raw.summary),
    line: place(raw.line),
    stack: list(raw.stack).map(line).filter((at) => at !== null),
    cost_ms: number(raw.cost_ms),
  };
}

/** The figures of the report; those that it lacks, from its lists. */
function counts(raw: Raw): Counts {
  const entries = list(raw.frames).flatMap((f) => list(f.entries));
  const generated = list(raw.kernels).filter((k) => k.kind !== "extern").length;
  return {
    graphs: null,
    recompiles: list(raw.recompiles).length,
    entries: entries.length,
    guards: entries.reduce((n, e) => n + list(e.guards).length, 0),
    kernels: generated,
    extern_calls: list(raw.kernels).length - generated,
    ...raw.counts,
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
    counts: counts(raw),
    compile_ms: number(raw.compile_ms),
    notes: list(raw.notes).map((n) => ({ view: text(n.view), text: text(n.text) })),
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
        guards: list(e.guards).map((g) => ({ ...g, text: text(g.text), line: place(g.line) })),
        seconds: number(e.seconds),
        source: text(e.source),
        sizes: list(e.sizes).map(text),
        graphs: list(e.graphs),
      })),
    })),
    breaks: list(raw.breaks).map(reason),
    eager: list(raw.eager).map(reason),
    recompiles: list(raw.recompiles).map((r, index) => ({
      call: r.call ?? index,
      compiled: r.compiled ?? true,
      frame: text(r.frame),
      entry: r.entry ?? 0,
      guard: text(r.guard),
      was: text(r.was),
      now: text(r.now),
      at_ms: number(r.at_ms),
      line: place(r.line),
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
        type: text(n.type) || `${text(n.dtype)}${shape(n.shape)}`,
        line: place(n.line),
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
      bytes_per_second: number(k.bytes_per_second),
      nodes: list(k.nodes).map(text),
      lines: list(k.lines).map(line).filter((at) => at !== null),
    })),
    externs: list(raw.externs),
    not_fused: list(raw.not_fused),
    memory: {
      saved_bytes: number(memory.saved_bytes),
      eager_saved_bytes: number(memory.eager_saved_bytes),
      timeline: list(memory.timeline).map((s) => ({ step: text(s.step), bytes: number(s.bytes) ?? 0, graph: s.graph ?? null })),
      graphs: list(memory.graphs).map((g) => ({
        frame: text(g.frame),
        saved_bytes: number(g.saved_bytes),
        eager_saved_bytes: number(g.eager_saved_bytes),
        values: list(g.values).map((v) => ({ ...v, name: text(v.name), bytes: number(v.bytes), line: line(v.line) })),
      })),
    },
    lines: list(raw.lines).map((l) => ({ file: text(l.file), line: l.line, events: list(l.events).map(text) })),
  };
}
