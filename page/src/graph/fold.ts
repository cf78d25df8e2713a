// A graph folded by module: a module that is closed is drawn as one box, which stands for all nodes inside.
import type { Graph, Node } from "../data";

export interface Group {
  path: string;
  parent: string; // "" for the graph itself
  children: string[];
  nodes: number; // inside, at any depth
  own: number; // inside, in none of its children
}

export interface Item {
  id: string; // the name of a node, or of a module with a slash before it
  group: Group | null; // of a closed module
  nodes: number[]; // what it stands for
  inputs: number[]; // other items
  users: number[];
}

export interface Visible {
  items: Item[];
  of: Int32Array; // item by node
}

const AT_ONCE = 300; // boxes drawn at first, at most: the rest is folded
const ALONE = 3; // items that say too little

export class Foldable {
  readonly nodes: Node[];
  readonly byName = new Map<string, number>();
  readonly inputs: number[][];
  readonly users: number[][];
  readonly groups = new Map<string, Group>();
  /** The modules that a node is in, from the outermost. */
  readonly paths: string[][];

  constructor(graph: Graph) {
    this.nodes = graph.nodes;
    this.nodes.forEach((node, i) => this.byName.set(node.name, i));
    this.inputs = this.nodes.map((node) => [
      ...new Set(node.inputs.map((name) => this.byName.get(name)).filter((i) => i !== undefined)),
    ]);
    this.users = this.nodes.map(() => []);
    this.inputs.forEach((inputs, i) => inputs.forEach((input) => this.users[input].push(i)));
    this.paths = this.nodes.map((node) => prefixes(node.module));
    this.nodes.forEach((node, i) => {
      if (!node.module && isGiven(node)) this.paths[i] = common(this.users[i].map((user) => this.paths[user]));
    });
    this.groups.set("", { path: "", parent: "", children: [], nodes: 0, own: 0 });
    for (const path of this.paths) this.count(path);
  }

  private count(path: string[]) {
    let parent = this.groups.get("")!;
    parent.nodes += 1;
    for (const prefix of path) {
      let group = this.groups.get(prefix);
      if (!group) {
        this.groups.set(prefix, (group = { path: prefix, parent: parent.path, children: [], nodes: 0, own: 0 }));
        parent.children.push(prefix);
      }
      group.nodes += 1;
      parent = group;
    }
    parent.own += 1;
  }

  /** All of a small graph; of another, modules from the outermost inwards as long as what is drawn stays readable. */
  openAtFirst(): Set<string> {
    const all = [...this.groups.keys()];
    if (this.nodes.length <= AT_ONCE) return new Set(all);
    const open = new Set([""]);
    const root = this.groups.get("")!;
    let drawn = root.own + root.children.length;
    let level = root.children;
    while (level.length) {
      const inside = level.map((path) => this.groups.get(path)!);
      const more = inside.reduce((sum, g) => sum + g.own + g.children.length - 1, 0);
      if (drawn > ALONE && drawn + more > AT_ONCE) break;
      level.forEach((path) => open.add(path));
      drawn += more;
      level = inside.flatMap((g) => g.children);
    }
    return open;
  }

  visible(open: Set<string>): Visible {
    const items: Item[] = [];
    const of = new Int32Array(this.nodes.length);
    const closed = new Map<string, number>();
    this.nodes.forEach((node, i) => {
      const path = this.paths[i].find((prefix) => !open.has(prefix));
      let at = path === undefined ? undefined : closed.get(path);
      if (at === undefined) {
        at = items.length;
        const group = path === undefined ? null : this.groups.get(path)!;
        items.push({ id: group ? "/" + group.path : node.name, group, nodes: [], inputs: [], users: [] });
        if (path !== undefined) closed.set(path, at);
      }
      items[at].nodes.push(i);
      of[i] = at;
    });
    items.forEach((item, at) => {
      const inputs = new Set<number>();
      for (const node of item.nodes) for (const input of this.inputs[node]) inputs.add(of[input]);
      inputs.delete(at);
      item.inputs = [...inputs];
      for (const input of item.inputs) items[input].users.push(at);
    });
    return { items, of };
  }

  /** Opens what a node is in. */
  reveal(open: Set<string>, node: number): Set<string> {
    return new Set([...open, ...this.paths[node]]);
  }

  search(text: string): number[] {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return [];
    const found: number[] = [];
    this.nodes.forEach((node, i) => {
      const all = `${node.name} ${node.op} ${node.target} ${node.shape ?? ""} ${node.dtype ?? ""} ${node.module ?? ""}`.toLowerCase();
      if (words.every((word) => all.includes(word))) found.push(i);
    });
    return found;
  }
}

/** Inputs and parameters are of no module: they are drawn inside the one that alone uses them. */
const isGiven = (node: Node): boolean => node.op === "placeholder" || node.op === "get_attr";

function prefixes(module: string | null | undefined): string[] {
  if (!module) return [];
  const parts = module.split(".");
  return parts.map((_, i) => parts.slice(0, i + 1).join("."));
}

function common(paths: string[][]): string[] {
  if (!paths.length) return [];
  let depth = Math.min(...paths.map((path) => path.length));
  while (depth > 0 && paths.some((path) => path[depth - 1] !== paths[0][depth - 1])) depth -= 1;
  return paths[0].slice(0, depth);
}
