// What happened to each line of the user's source: everything in the report that names the line, found once.
import type { Break, Graph, Guard, Kernel, Line, Node, Recompile, Report } from "./data";

export const EVENTS = ["captured", "break", "eager", "guarded", "recompiled"] as const;
export type Event = (typeof EVENTS)[number];
export const EVENT_TEXT: Record<Event, [mark: string, words: string]> = {
  captured: ["", "captured"],
  break: ["B", "broke the graph"],
  eager: ["E", "ran eagerly"],
  guarded: ["G", "guarded"],
  recompiled: ["R", "recompiled"],
};

export interface Happened {
  events: Set<Event>;
  breaks: Break[];
  eager: Break[];
  guards: { frame: string; entry: number; guard: Guard }[];
  recompiles: Recompile[];
  nodes: { graph: Graph; node: Node }[];
  kernels: { kernel: Kernel; index: number }[];
}

export type Lines = Map<string, Map<number, Happened>>;

const isLine = (value: unknown): value is Line =>
  typeof value === "object" && value !== null && typeof (value as Line).line === "number";

export function index(report: Report): Lines {
  const lines: Lines = new Map();
  const at = (place: unknown): Happened | null => {
    if (!isLine(place)) return null;
    let file = lines.get(place.file);
    if (!file) lines.set(place.file, (file = new Map()));
    let found = file.get(place.line);
    if (!found) {
      found = { events: new Set(), breaks: [], eager: [], guards: [], recompiles: [], nodes: [], kernels: [] };
      file.set(place.line, found);
    }
    return found;
  };
  const note = (place: unknown, event: Event | null, add: (happened: Happened) => void) => {
    const happened = at(place);
    if (!happened) return;
    if (event) happened.events.add(event);
    add(happened);
  };
  for (const { file, line, events } of report.lines)
    for (const event of events)
      if ((EVENTS as readonly string[]).includes(event)) note({ file, line }, event as Event, () => {});
  for (const b of report.breaks) note(b.line, "break", (h) => h.breaks.push(b));
  for (const b of report.eager) note(b.line, "eager", (h) => h.eager.push(b));
  for (const frame of report.frames)
    for (const entry of frame.entries)
      for (const guard of entry.guards)
        note(guard.line, "guarded", (h) => h.guards.push({ frame: frame.name, entry: entry.number, guard }));
  for (const r of report.recompiles) note(guardLine(report, r), "recompiled", (h) => h.recompiles.push(r));
  for (const graph of report.graphs)
    for (const node of graph.nodes) note(node.line, "captured", (h) => h.nodes.push({ graph, node }));
  report.kernels.forEach((kernel, i) => {
    for (const line of kernel.lines) note(line, null, (h) => h.kernels.push({ kernel, index: i }));
  });
  return lines;
}

/** A recompilation names its guard by text alone: the line is that of the guard of this text in the frame. */
function guardLine(report: Report, recompile: Recompile): Line | null {
  const entries = report.frames.filter((f) => f.name === recompile.frame).flatMap((f) => f.entries);
  const guards = [...entries.filter((e) => e.number === recompile.entry), ...entries].flatMap((e) => e.guards);
  return guards.find((g) => g.text === recompile.guard && g.line)?.line ?? null;
}
