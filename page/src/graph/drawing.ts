// Draws a layout on a canvas: what is within the window and no more, without text where it would be too small to read.
import { select } from "d3-selection";
import { zoom, zoomIdentity, type D3ZoomEvent, type ZoomTransform } from "d3-zoom";
import type { Foldable, Item, Visible } from "./fold";
import { layout, type Box, type Edge, type Layout } from "./layout";

const TEXT_FROM = 0.45; // scale
const [LINE, PAD] = [15, 8];
const LABEL = 30; // characters

export interface Label {
  title: string;
  note: string;
}

export function label(foldable: Foldable, item: Item): Label {
  if (item.group) {
    const { path, nodes } = item.group;
    return { title: path.match(/([^.]*\.)?[^.]*$/)![0], note: `${nodes} nodes` };
  }
  const node = foldable.nodes[item.nodes[0]];
  const call = node.op === "placeholder" || node.op === "output" || node.op === "get_attr" ? node.name : shortTarget(node.target || node.name);
  const shape = [node.shape, node.dtype].filter(Boolean).join(" ");
  return { title: call, note: shape || (call === node.name ? node.op : node.name) };
}

const shortTarget = (target: string): string => target.replace(/^(torch\.ops\.)?aten\./, "").replace(/\.default$/, "");
const cut = (text: string): string => (text.length > LABEL ? text.slice(0, LABEL - 1) + "\u2026" : text);

interface Colours {
  ink: string;
  dim: string;
  line: string;
  paper: string;
  group: string;
  given: string;
  found: string;
  accent: string;
}

export interface Handlers {
  choose(item: number | null): void;
  toggle(item: number): void;
}

export class Drawing {
  private layout!: Layout;
  private visible!: Visible;
  private labels: Label[] = [];
  private at: ZoomTransform = zoomIdentity;
  private readonly zoom;
  private chosen: number | null = null;
  private found = new Set<number>();
  private pending = 0;
  private colours!: Colours;
  private readonly stop: () => void;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly foldable: Foldable,
    handlers: Handlers,
  ) {
    this.zoom = zoom<HTMLCanvasElement, unknown>()
      .scaleExtent([0.005, 4])
      .on("zoom", (event: D3ZoomEvent<HTMLCanvasElement, unknown>) => {
        this.at = event.transform;
        this.draw();
      });
    const selection = select(canvas).call(this.zoom).on("dblclick.zoom", null);
    selection.on("click", (event: MouseEvent) => handlers.choose(this.under(event)));
    selection.on("dblclick", (event: MouseEvent) => {
      const item = this.under(event);
      if (item !== null) handlers.toggle(item);
    });
    const resized = new ResizeObserver(() => this.resize());
    resized.observe(canvas);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const recolour = () => {
      this.readColours();
      this.draw();
    };
    dark.addEventListener("change", recolour);
    this.readColours();
    this.resize();
    this.stop = () => {
      resized.disconnect();
      dark.removeEventListener("change", recolour);
      cancelAnimationFrame(this.pending);
    };
  }

  destroy() {
    this.stop();
  }

  /** Lays out what is visible now. `anchor` (an item before, and the same after) stays where it is in the window. */
  show(visible: Visible, anchor?: { before: string; after: string }) {
    const was = anchor && this.visible ? this.boxOf(anchor.before) : null;
    this.visible = visible;
    this.labels = visible.items.map((item) => label(this.foldable, item));
    const index = new Map(visible.items.map((item, i) => [item, i]));
    this.layout = layout(visible.items, (item) => {
      const { title, note } = this.labels[index.get(item)!];
      const characters = Math.min(LABEL, Math.max(title.length, note.length * 0.92));
      return { width: Math.max(56, Math.ceil(characters * 6.7) + 2 * PAD), height: 2 * LINE + PAD };
    });
    const now = was && anchor ? this.boxOf(anchor.after) : null;
    if (was && now) {
      const { k } = this.at;
      this.move(zoomIdentity.translate(this.at.x + (was.x - now.x) * k, this.at.y + (was.y - now.y) * k).scale(k));
    } else this.fit();
  }

  mark(chosen: number | null, found: Set<number>) {
    this.chosen = chosen;
    this.found = found;
    this.draw();
  }

  /** All of it where that can be read, else its beginning. */
  fit() {
    const { width, height } = this.canvas.getBoundingClientRect();
    if (!width || !this.layout.boxes.length) return;
    const whole = Math.min((width - 32) / this.layout.width, (height - 32) / this.layout.height, 1);
    const k = Math.max(whole, Math.min(0.85, (width - 32) / this.layout.width), 0.02);
    if (whole >= k) return this.overview();
    const first = this.layout.boxes.filter((box) => box.y < box.height);
    const x = first.reduce((sum, box) => sum + box.x + box.width / 2, 0) / first.length;
    this.move(zoomIdentity.translate(width / 2 - x * k, 16).scale(k));
  }

  overview() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const k = Math.min((width - 32) / (this.layout.width || 1), (height - 32) / (this.layout.height || 1), 1);
    this.move(zoomIdentity.translate((width - this.layout.width * k) / 2, (height - this.layout.height * k) / 2).scale(k));
  }

  scale(by: number) {
    select(this.canvas).call(this.zoom.scaleBy, by);
  }

  pan(x: number, y: number) {
    select(this.canvas).call(this.zoom.translateBy, x / this.at.k, y / this.at.k);
  }

  /** Brings a box into the window if it is not there, or is too small to read. */
  centre(item: number) {
    const { width, height } = this.canvas.getBoundingClientRect();
    const box = this.layout.boxes[item];
    const k = Math.max(this.at.k, 0.7);
    const [x, y] = this.at.apply([box.x + box.width / 2, box.y + box.height / 2]);
    if (k === this.at.k && x > 60 && y > 30 && x < width - 60 && y < height - 30) return;
    this.move(zoomIdentity.translate(width / 2 - (box.x + box.width / 2) * k, height / 2 - (box.y + box.height / 2) * k).scale(k));
  }

  /** The nearest box in a direction: among inputs (up), users (down), or beside it in its layer. */
  neighbour(item: number, key: string): number | null {
    const { inputs, users } = this.visible.items[item];
    if (key === "ArrowUp") return inputs[0] ?? null;
    if (key === "ArrowDown") return users[0] ?? null;
    const own = this.layout.boxes[item];
    const sign = key === "ArrowLeft" ? -1 : 1;
    let best: number | null = null;
    this.layout.boxes.forEach((box, i) => {
      const by = sign * (box.x - own.x);
      if (i === item || by <= 0 || Math.abs(box.y - own.y) > own.height) return;
      if (best === null || by < sign * (this.layout.boxes[best].x - own.x)) best = i;
    });
    return best;
  }

  /** For tests and screen readers: how many boxes were drawn last, of how many. */
  drawn = 0;

  private move(to: ZoomTransform) {
    select(this.canvas).call(this.zoom.transform, to);
  }

  private boxOf(id: string): Box | null {
    const i = this.visible.items.findIndex((item) => item.id === id);
    return i < 0 ? null : this.layout.boxes[i];
  }

  private under(event: MouseEvent): number | null {
    const { left, top } = this.canvas.getBoundingClientRect();
    const [x, y] = this.at.invert([event.clientX - left, event.clientY - top]);
    const i = this.layout.boxes.findIndex((b) => x >= b.x && y >= b.y && x <= b.x + b.width && y <= b.y + b.height);
    return i < 0 ? null : i;
  }

  private resize() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.max(1, Math.round(width * ratio));
    this.canvas.height = Math.max(1, Math.round(height * ratio));
    this.draw();
  }

  private readColours() {
    const style = getComputedStyle(this.canvas);
    const named = (name: string) => style.getPropertyValue("--" + name).trim();
    this.colours = {
      ink: named("ink"), dim: named("dim"), line: named("edge"), paper: named("paper"),
      group: named("raised"), given: named("paper"), found: named("found"), accent: named("accent"),
    };
  }

  private draw() {
    if (this.pending || !this.layout) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.paint();
    });
  }

  private paint() {
    const context = this.canvas.getContext("2d")!;
    const ratio = devicePixelRatio || 1;
    const { k } = this.at;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.setTransform(ratio * k, 0, 0, ratio * k, ratio * this.at.x, ratio * this.at.y);
    const [left, top] = this.at.invert([0, 0]);
    const [right, bottom] = this.at.invert([this.canvas.width / ratio, this.canvas.height / ratio]);
    this.paintEdges(context, k, { left, top, right, bottom });
    this.drawn = 0;
    context.textBaseline = "alphabetic";
    this.layout.boxes.forEach((box, i) => {
      if (box.x > right || box.x + box.width < left || box.y > bottom || box.y + box.height < top) return;
      this.paintBox(context, k, box, i);
      this.drawn += 1;
    });
    this.canvas.dataset.drawn = String(this.drawn);
  }

  private paintEdges(context: CanvasRenderingContext2D, k: number, window: { left: number; top: number; right: number; bottom: number }) {
    const { line, accent } = this.colours;
    const within = ({ points }: Edge) => {
      const [a, b] = [points[0], points[points.length - 1]];
      return !(Math.max(a[1], b[1]) < window.top || Math.min(a[1], b[1]) > window.bottom ||
        Math.max(...points.map((p) => p[0])) < window.left || Math.min(...points.map((p) => p[0])) > window.right);
    };
    const own = (edge: Edge) => edge.from === this.chosen || edge.to === this.chosen;
    const stroke = (edges: Edge[], colour: string, width: number) => {
      context.beginPath();
      for (const edge of edges) trace(context, edge.points);
      context.strokeStyle = colour;
      context.lineWidth = width / Math.min(k, 1) ** 0.6;
      context.stroke();
    };
    const seen = this.layout.edges.filter(within);
    stroke(seen.filter((edge) => !own(edge)), line, 1);
    stroke(seen.filter(own), accent, 2);
  }

  private paintBox(context: CanvasRenderingContext2D, k: number, box: Box, i: number) {
    const { ink, dim, paper, group, found, accent, line } = this.colours;
    const item = this.visible.items[i];
    const op = item.group ? "" : this.foldable.nodes[item.nodes[0]].op;
    const given = op === "placeholder" || op === "output" || op === "get_attr";
    context.beginPath();
    context.roundRect(box.x, box.y, box.width, box.height, given ? box.height / 2 : item.group ? 0 : 3);
    context.fillStyle = this.found.has(i) ? found : item.group ? group : paper;
    context.fill();
    context.strokeStyle = i === this.chosen ? accent : item.group ? dim : line;
    context.lineWidth = i === this.chosen ? 2.5 / Math.min(k, 1) : 1 / Math.min(k, 1) ** 0.6;
    context.stroke();
    if (k < TEXT_FROM) return;
    const { title, note } = this.labels[i];
    const x = box.x + PAD + (given ? 2 : 0);
    context.fillStyle = ink;
    context.font = `${item.group ? "600 " : ""}11px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace`;
    context.fillText(cut(title), x, box.y + LINE, box.width - PAD);
    context.fillStyle = dim;
    context.font = '10px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace';
    context.fillText(cut(note), x, box.y + 2 * LINE - 1, box.width - PAD);
  }
}

/** A smooth line through the points that leaves and arrives vertically. */
function trace(context: CanvasRenderingContext2D, points: [number, number][]) {
  const [[x0, y0], ...rest] = points;
  const [x1, y1] = rest[rest.length - 1];
  context.moveTo(x0, y0);
  if (rest.length === 1) {
    const bend = (y1 - y0) / 2;
    context.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
    return;
  }
  for (let i = 0; i < rest.length - 1; i++) {
    const [x, y] = rest[i];
    const [nx, ny] = rest[i + 1];
    const last = i === rest.length - 2;
    context.quadraticCurveTo(x, y, last ? nx : (x + nx) / 2, last ? ny : (y + ny) / 2);
  }
}
