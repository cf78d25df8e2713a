// The modules of a graph as a tree, each of which can be opened and closed in the drawing.
import type { Foldable } from "../graph/fold";

interface Props {
  foldable: Foldable;
  open: Set<string>;
  fold: (path: string, to: boolean) => void;
}

export function Modules({ foldable, open, fold, all }: Props & { all: (to: boolean) => void }) {
  const root = foldable.groups.get("")!;
  if (!root.children.length) return <p class="dim">The nodes of this graph are in no module.</p>;
  return (
    <>
      <p class="bar">
        <span class="label">Modules</span>
        <button onClick={() => all(true)}>Open all</button>
        <button onClick={() => all(false)}>Fold all</button>
      </p>
      <Level paths={root.children} foldable={foldable} open={open} fold={fold} label="Modules" />
    </>
  );
}

function Level({ paths, foldable, open, fold, label }: Props & { paths: string[]; label?: string }) {
  return (
    <ul class="tree" aria-label={label}>
      {paths.map((path) => {
        const group = foldable.groups.get(path)!;
        const is = open.has(path);
        const name = group.parent ? path.slice(group.parent.length + 1) : path;
        return (
          <li>
            <button class="link mono" aria-expanded={is} title={path} onClick={() => fold(path, !is)}>
              <span class="twist" aria-hidden="true">
                {is ? "\u25be" : "\u25b8"}
              </span>
              {name} <span class="dim">{group.nodes}</span>
            </button>
            {is && group.children.length > 0 && <Level paths={group.children} foldable={foldable} open={open} fold={fold} />}
          </li>
        );
      })}
    </ul>
  );
}
