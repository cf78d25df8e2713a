// Frames around the open modules of a drawing. The layout does not keep the boxes of a module together: a frame is drawn
// only where nothing of another module lies inside it, so that it never says what is not so.
import type { Foldable, Item } from "./fold";
import type { Box } from "./layout";

export interface Frame extends Box {
  path: string;
}

export const TITLE = 15; // height
const SIDE = 6;
const NESTED = 2; // frames around each other, at most: more would reach into the boxes above

export function frames(foldable: Foldable, items: Item[], boxes: Box[], open: Set<string>): Frame[] {
  const members = new Map<string, number[]>();
  items.forEach((item, i) => {
    const around = item.group ? foldable.around(item.group.path) : foldable.paths[item.nodes[0]];
    for (const path of around) {
      const list = members.get(path);
      if (list) list.push(i);
      else members.set(path, [i]);
    }
  });
  const found: Frame[] = [];
  for (const [path, inside] of members) {
    const level = height(foldable, path, open);
    if (inside.length < 2 || level > NESTED) continue;
    const frame = around(inside.map((i) => boxes[i]), level);
    const own = new Set(inside);
    if (!boxes.some((box, i) => !own.has(i) && overlap(box, frame))) found.push({ path, ...frame });
  }
  return found;
}

/** How many frames may lie within each other here: 1 where no module inside is open. */
function height(foldable: Foldable, path: string, open: Set<string>): number {
  const inside = foldable.groups.get(path)!.children.filter((child) => open.has(child));
  return 1 + Math.max(0, ...inside.map((child) => height(foldable, child, open)));
}

function around(boxes: Box[], level: number): Box {
  const x = Math.min(...boxes.map((b) => b.x)) - SIDE * level;
  const y = Math.min(...boxes.map((b) => b.y)) - TITLE * level;
  return {
    x,
    y,
    width: Math.max(...boxes.map((b) => b.x + b.width)) + SIDE * level - x,
    height: Math.max(...boxes.map((b) => b.y + b.height)) + (SIDE - 2) * level - y,
  };
}

const overlap = (a: Box, b: Box): boolean =>
  a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
