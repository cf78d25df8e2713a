// Where boxes lie: in layers, each below all that it reads. Up to some hundred boxes by dagre, which takes care that few
// lines cross and is slow for thousands; beyond, by the same idea with less care, in time linear in what is drawn.
import { Graph as Dagre, layout as dagreLayout } from "@dagrejs/dagre";
import type { Item } from "./fold";

export interface Box {
  x: number; // left
  y: number; // top
  width: number;
  height: number;
}
export interface Edge {
  from: number;
  to: number;
  points: [number, number][];
}
export interface Layout {
  boxes: Box[];
  edges: Edge[];
  width: number;
  height: number;
}

export type Size = (item: Item) => { width: number; height: number };

const CAREFUL = 300; // boxes
const CAREFUL_EDGES = 900;
const [GAP_X, GAP_Y] = [14, 34];

export function layout(items: Item[], size: Size): Layout {
  const edges = items.reduce((sum, item) => sum + item.inputs.length, 0);
  return items.length <= CAREFUL && edges <= CAREFUL_EDGES ? careful(items, size) : cheap(items, size);
}

function careful(items: Item[], size: Size): Layout {
  const graph = new Dagre();
  graph.setGraph({ rankdir: "TB", nodesep: GAP_X, ranksep: GAP_Y, marginx: 0, marginy: 0 });
  graph.setDefaultEdgeLabel(() => ({}));
  items.forEach((item, i) => graph.setNode(String(i), size(item)));
  items.forEach((item, to) => item.inputs.forEach((from) => graph.setEdge(String(from), String(to))));
  dagreLayout(graph);
  const boxes = items.map((_, i) => {
    const { x, y, width, height } = graph.node(String(i)) as Box;
    return { x: x - width / 2, y: y - height / 2, width, height };
  });
  const edges = graph.edges().map(({ v, w }) => ({
    from: Number(v),
    to: Number(w),
    points: (graph.edge(v, w) as { points: { x: number; y: number }[] }).points.map((p): [number, number] => [p.x, p.y]),
  }));
  return bounded(boxes, edges);
}

function cheap(items: Item[], size: Size): Layout {
  const layers = order(items, layerOf(items));
  const boxes: Box[] = new Array(items.length);
  let y = 0;
  for (const layer of layers) {
    const sizes = layer.map((i) => size(items[i]));
    // Each box below the middle of what it reads, as far as its neighbours leave room. What comes from outside, such as
    // weights, does not count beside what is computed: it would bend every path to its side.
    const wanted = layer.map((i, k) => {
      const placed = items[i].inputs.filter((input) => boxes[input]);
      const computed = placed.filter((input) => items[input].inputs.length);
      const above = (computed.length ? computed : placed).map((input) => middle(boxes[input]));
      return above.length ? above.reduce((a, b) => a + b) / above.length - sizes[k].width / 2 : null;
    });
    let right = -Infinity;
    const lefts = layer.map((_, k) => {
      const left = Math.max(wanted[k] ?? (right === -Infinity ? 0 : right), right);
      right = left + sizes[k].width + GAP_X;
      return left;
    });
    const asked = wanted.map((w, k) => (w === null ? null : w - lefts[k])).filter((w) => w !== null);
    const shift = asked.length ? asked.reduce((a, b) => a + b) / asked.length : -(right - GAP_X) / 2;
    layer.forEach((i, k) => (boxes[i] = { x: lefts[k] + shift, y, ...sizes[k] }));
    y += Math.max(...sizes.map((s) => s.height)) + GAP_Y;
  }
  const edges = items.flatMap((item, to) => item.inputs.map((from): Edge => ({ from, to, points: route(boxes[from], boxes[to], to) })));
  return bounded(boxes, edges);
}

/** From the foot of one box to the head of another; past the layers between along the right side, where it can be seen. */
function route(a: Box, b: Box, lane: number): [number, number][] {
  const [start, end]: [number, number][] = [
    [middle(a), a.y + a.height],
    [middle(b), b.y],
  ];
  if (end[1] - start[1] < 3 * GAP_Y || Math.abs(start[0] - end[0]) > a.width + b.width) return [start, end];
  const side = Math.max(a.x + a.width, b.x + b.width) + 16 + 8 * (lane % 4);
  const [above, below] = [start[1] + GAP_Y / 2, end[1] - GAP_Y / 2];
  return [start, [side, above], [side, above + GAP_Y], [side, below - GAP_Y], [side, below], end];
}

const middle = (box: Box): number => box.x + box.width / 2;

/** One more than the deepest of what an item reads. Items are in order of their first node, so that what comes later is
 * part of a cycle through a closed module and does not count. What reads nothing lies just above its first user. */
function layerOf(items: Item[]): number[] {
  const layer = new Array<number>(items.length).fill(0);
  items.forEach((item, i) => {
    for (const input of item.inputs) if (input < i) layer[i] = Math.max(layer[i], layer[input] + 1);
  });
  items.forEach((item, i) => {
    if (!item.inputs.length && item.users.length) layer[i] = Math.max(0, Math.min(...item.users.map((user) => layer[user])) - 1);
  });
  return layer;
}

/** The items of each layer from left to right: four sweeps, each to the mean place of the neighbours in the last layers. */
function order(items: Item[], layer: number[]): number[][] {
  const layers: number[][] = Array.from({ length: Math.max(-1, ...layer) + 1 }, () => []);
  layer.forEach((l, i) => layers[l].push(i));
  const place = new Float64Array(items.length);
  const note = (row: number[]) => row.forEach((i, k) => (place[i] = (k + 1) / (row.length + 1)));
  layers.forEach(note);
  for (let sweep = 0; sweep < 4; sweep++) {
    const down = sweep % 2 === 0;
    for (const row of down ? layers : [...layers].reverse()) {
      const mean = new Map(
        row.map((i) => {
          const near = down ? items[i].inputs : items[i].users;
          return [i, near.length ? near.reduce((sum, n) => sum + place[n], 0) / near.length : place[i]];
        }),
      );
      row.sort((a, b) => mean.get(a)! - mean.get(b)!);
      note(row);
    }
  }
  return layers.filter((row) => row.length);
}

function bounded(boxes: Box[], edges: Edge[]): Layout {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const box of boxes) {
    left = Math.min(left, box.x);
    top = Math.min(top, box.y);
    right = Math.max(right, box.x + box.width);
    bottom = Math.max(bottom, box.y + box.height);
  }
  if (!boxes.length) [left, top, right, bottom] = [0, 0, 0, 0];
  for (const box of boxes) {
    box.x -= left;
    box.y -= top;
  }
  for (const edge of edges) edge.points = edge.points.map(([x, y]) => [x - left, y - top]);
  return { boxes, edges, width: right - left, height: bottom - top };
}
