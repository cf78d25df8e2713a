// One graph at a time: its modules as a tree, a drawing, what is known of the chosen node, and its code.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ViewProps } from "../app";
import type { Graph } from "../data";
import { count } from "../format";
import { Drawing, label } from "../graph/drawing";
import { Foldable, type Item } from "../graph/fold";
import { Code, Empty, Section, Where } from "../parts/common";
import { href } from "../route";
import { Modules } from "./modules";

const LISTED = 200; // results of a search

export function Graphs({ report, route }: ViewProps) {
  const { graphs } = report;
  if (!graphs.length)
    return (
      <Section title="Graphs" note={0}>
        <Empty>No graphs: nothing was captured that computes.</Empty>
      </Section>
    );
  const graph = graphs.find((g) => String(g.id) === route.rest[0]) ?? graphs[0];
  return (
    <>
      <div class="bar">
        <label>
          Graph{" "}
          <select value={String(graph.id)} onChange={(event) => (location.hash = href("graphs", event.currentTarget.value))}>
            {graphs.map((g) => (
              <option value={String(g.id)}>{`${g.id}: ${g.level} of ${g.frame}, ${g.nodes.length} nodes`}</option>
            ))}
          </select>
        </label>
      </div>
      {graph.nodes.length ? (
        <One key={graph.id} graph={graph} name={route.rest[1] ?? null} />
      ) : (
        <Empty>This graph has no nodes.</Empty>
      )}
      {graph.code && (
        <details class="entry">
          <summary>Code of graph {graph.id}</summary>
          <Code text={graph.code} label={`Code of graph ${graph.id}`} />
        </details>
      )}
    </>
  );
}

function One({ graph, name }: { graph: Graph; name: string | null }) {
  const foldable = useMemo(() => new Foldable(graph), [graph]);
  const named = name === null ? undefined : foldable.byName.get(name);
  const [open, setOpen] = useState(() => {
    const first = foldable.openAtFirst();
    return named === undefined ? first : foldable.reveal(first, named);
  });
  const [chosenId, choose] = useState<string | null>(named === undefined ? null : name);
  const [query, search] = useState("");
  const canvas = useRef<HTMLCanvasElement>(null);
  const drawing = useRef<Drawing | null>(null);
  const anchor = useRef<{ before: string; after: string } | undefined>(undefined);

  const visible = useMemo(() => foldable.visible(open), [foldable, open]);
  const chosen = chosenId === null ? -1 : visible.items.findIndex((item) => item.id === chosenId);
  const found = useMemo(() => foldable.search(query), [foldable, query]);

  const fold = (path: string, to: boolean) => {
    const next = new Set(open);
    if (to) next.add(path);
    else for (const other of open) if (other === path || other.startsWith(path + ".")) next.delete(other);
    const inside = foldable.paths.findIndex((paths) => paths.includes(path));
    const first = foldable.visible(to ? next : open);
    const node = first.items[first.of[inside]]?.id ?? "";
    anchor.current = to ? { before: "/" + path, after: node } : { before: node, after: "/" + path };
    setOpen(next);
    choose(to ? node : "/" + path);
  };
  const toggle = (item: Item) => item.group && fold(item.group.path, true);
  const goTo = (node: number) => {
    if (foldable.paths[node].some((path) => !open.has(path))) setOpen(foldable.reveal(open, node));
    choose(foldable.nodes[node].name);
  };

  const latest = useRef({ visible, toggle });
  latest.current = { visible, toggle };
  useEffect(() => {
    const made = new Drawing(canvas.current!, foldable, {
      choose: (item) => choose(item === null ? null : latest.current.visible.items[item].id),
      toggle: (item) => latest.current.toggle(latest.current.visible.items[item]),
    });
    drawing.current = made;
    return () => made.destroy();
  }, [foldable]);
  useEffect(() => {
    drawing.current!.show(visible, anchor.current);
    anchor.current = undefined;
  }, [visible]);
  useEffect(() => {
    if (named !== undefined) goTo(named);
  }, [name]);
  useEffect(() => {
    drawing.current!.mark(chosen < 0 ? null : chosen, new Set(found.map((node) => visible.of[node])));
    if (chosen >= 0) drawing.current!.centre(chosen);
  }, [chosen, found, visible]);

  const onKeyDown = (event: KeyboardEvent) => {
    const made = drawing.current!;
    const item = chosen < 0 ? null : visible.items[chosen];
    if (event.key.startsWith("Arrow") && event.shiftKey) {
      const [x, y] = { ArrowUp: [0, 60], ArrowDown: [0, -60], ArrowLeft: [60, 0], ArrowRight: [-60, 0] }[event.key]!;
      made.pan(x, y);
    } else if (event.key.startsWith("Arrow")) {
      const next = item ? made.neighbour(chosen, event.key) : 0;
      if (next !== null && visible.items[next]) choose(visible.items[next].id);
    } else if (event.key === "+" || event.key === "=") made.scale(1.3);
    else if (event.key === "-") made.scale(1 / 1.3);
    else if (event.key === "0") made.overview();
    else if (event.key === "Enter" && item) toggle(item);
    else if (event.key === "Backspace" && item) closeAround(item);
    else if (event.key === "Escape") choose(null);
    else return;
    event.preventDefault();
  };
  const closeAround = (item: Item) => {
    const path = item.group ? item.group.parent : (foldable.paths[item.nodes[0]].at(-1) ?? "");
    if (path) fold(path, false);
  };

  return (
    <div class="graph">
      <div class="pane modules">
        <label class="search">
          <span class="label">Search</span>
          <input
            type="search"
            value={query}
            placeholder="name, operator, shape"
            onInput={(event) => search(event.currentTarget.value)}
            onKeyDown={(event) => event.key === "Enter" && found.length && goTo(found[0])}
          />
        </label>
        {query.trim() ? (
          <>
            <p class="dim" role="status">
              {found.length ? count(found.length, "node") + " found" : "No node is like this."}
            </p>
            <ul class="plain results">
              {found.slice(0, LISTED).map((i) => (
                <li>
                  <button class="link mono" onClick={() => goTo(i)}>
                    {foldable.nodes[i].name}
                  </button>{" "}
                  <span class="dim mono">{foldable.nodes[i].target}</span>
                </li>
              ))}
            </ul>
            {found.length > LISTED && <p class="dim">and {found.length - LISTED} more</p>}
          </>
        ) : (
          <Modules foldable={foldable} open={open} fold={fold} all={(to) => setOpen(to ? new Set(foldable.groups.keys()) : new Set([""]))} />
        )}
      </div>
      <div class="pane canvas">
        <canvas
          ref={canvas}
          tabIndex={0}
          role="application"
          aria-label={`Drawing of graph ${graph.id}, ${visible.items.length} boxes for ${graph.nodes.length} nodes`}
          aria-describedby="graph-keys"
          onKeyDown={onKeyDown}
        />
        <div class="tools">
          <button onClick={() => drawing.current!.scale(1.4)} aria-label="Zoom in">
            +
          </button>
          <button onClick={() => drawing.current!.scale(1 / 1.4)} aria-label="Zoom out">
            {"\u2212"}
          </button>
          <button onClick={() => drawing.current!.overview()}>Fit</button>
        </div>
        <p class="keys" id="graph-keys">
          Drag to pan, wheel to zoom, double-click a module to open it. Keys: arrows walk along edges, Shift with arrows pans, + {"\u2212"} 0
          zoom, Enter opens a module, Backspace closes it.
        </p>
      </div>
      <aside class="pane detail" aria-label="The chosen node" aria-live="polite">
        {chosen < 0 ? (
          <p class="dim">
            {count(visible.items.length, "box", "boxes")} for {count(graph.nodes.length, "node")}. Choose one to see what it is.
          </p>
        ) : (
          <Detail foldable={foldable} item={visible.items[chosen]} items={visible.items} choose={choose} fold={fold} />
        )}
      </aside>
    </div>
  );
}

interface DetailProps {
  foldable: Foldable;
  item: Item;
  items: Item[];
  choose: (id: string) => void;
  fold: (path: string, to: boolean) => void;
}

function Detail({ foldable, item, items, choose, fold }: DetailProps) {
  const others = (title: string, list: number[]) =>
    list.length > 0 && (
      <>
        <h3>
          {title} <span class="note">{list.length}</span>
        </h3>
        <ul class="plain">
          {list.slice(0, 60).map((i) => (
            <li>
              <button class="link mono" onClick={() => choose(items[i].id)}>
                {items[i].group ? items[i].group.path : items[i].id}
              </button>{" "}
              <span class="dim mono">{label(foldable, items[i]).note}</span>
            </li>
          ))}
        </ul>
      </>
    );
  const around = item.group ? item.group.parent : (foldable.paths[item.nodes[0]].at(-1) ?? "");
  return (
    <>
      {item.group ? (
        <>
          <h2 class="mono">{item.group.path}</h2>
          <p>
            {count(item.group.nodes, "node")}, folded.{" "}
            <button onClick={() => fold(item.group!.path, true)}>Open</button>
          </p>
        </>
      ) : (
        <Facts foldable={foldable} node={item.nodes[0]} />
      )}
      {around && (
        <p>
          In <span class="mono">{around}</span> <button onClick={() => fold(around, false)}>Fold</button>
        </p>
      )}
      {others("Reads", item.inputs)}
      {others("Read by", item.users)}
    </>
  );
}

function Facts({ foldable, node: i }: { foldable: Foldable; node: number }) {
  const node = foldable.nodes[i];
  const facts: [string, preact.ComponentChildren][] = [
    ["Operation", node.op],
    ["Target", node.target],
    ["Shape", node.shape],
    ["Type", node.dtype],
    ["Line", node.line && <Where line={node.line} />],
  ];
  return (
    <>
      <h2 class="mono">{node.name}</h2>
      <dl class="facts-list">
        {facts
          .filter(([, value]) => value)
          .map(([name, value]) => (
            <>
              <dt>{name}</dt>
              <dd class="mono">{value}</dd>
            </>
          ))}
      </dl>
    </>
  );
}
