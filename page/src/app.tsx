// The frame around the views: what was compiled, where one is, and the view itself.
import { Component, type ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Report } from "./data";
import type { Lines } from "./lines";
import { href, useRoute, type Route } from "./route";
import { Breaks, Fallbacks } from "./views/breaks";
import { Entries } from "./views/entries";
import { Graphs } from "./views/graphs";
import { Kernels } from "./views/kernels";
import { Memory } from "./views/memory";
import { Overview } from "./views/overview";
import { Recompiles } from "./views/recompiles";
import { SourceView } from "./views/source";

export interface ViewProps {
  report: Report;
  lines: Lines;
  route: Route;
}

interface View {
  id: string;
  title: string;
  count?: (report: Report) => number | null;
  show: (props: ViewProps) => ComponentChildren;
}

const VIEWS: View[] = [
  { id: "overview", title: "Overview", show: Overview },
  { id: "source", title: "Source", show: SourceView },
  { id: "breaks", title: "Breaks", count: (r) => r.breaks.length, show: Breaks },
  { id: "fallbacks", title: "Fallbacks", count: (r) => r.eager.length, show: Fallbacks },
  { id: "recompiles", title: "Recompiles", count: (r) => r.counts.recompiles, show: Recompiles },
  { id: "entries", title: "Entries", count: (r) => r.counts.entries, show: Entries },
  { id: "graphs", title: "Graphs", count: (r) => r.counts.graphs, show: Graphs },
  { id: "kernels", title: "Kernels", count: (r) => r.counts.kernels, show: Kernels },
  { id: "memory", title: "Memory", show: Memory },
];

/** One view that fails leaves the others to read. */
class Guarded extends Component<{ title: string; children: ComponentChildren }, { error: unknown }> {
  state = { error: null as unknown };
  componentDidCatch(error: unknown) {
    console.error(error);
    this.setState({ error });
  }
  render() {
    if (this.state.error == null) return this.props.children;
    return <p class="empty">This view could not be drawn: {String(this.state.error)}</p>;
  }
}

export function App({ report, lines }: { report: Report; lines: Lines }) {
  const route = useRoute();
  const view = VIEWS.find(({ id }) => id === route.view) ?? VIEWS[0];
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  useEffect(() => {
    if (first.current) first.current = false;
    else main.current?.focus({ preventScroll: true });
  }, [view.id]);
  const versions = [
    report.smelt && `smelt ${report.smelt}`,
    report.torch && `torch ${report.torch}`,
    report.device,
    report.threads != null && `${report.threads} thread${report.threads === 1 ? "" : "s"}`,
  ].filter(Boolean);
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          main.current?.focus();
        }}
      >
        Skip to content
      </a>
      <header>
        <h1 class="mono">{report.name}</h1>
        <p class="versions">{versions.join("  \u00b7  ")}</p>
        <nav aria-label="Views">
          {VIEWS.map(({ id, title, count }) => (
            <a href={href(id)} aria-current={id === view.id ? "page" : undefined}>
              {title}
              {count?.(report) != null && <span class="count"> {count(report)!.toLocaleString("en-US")}</span>}
            </a>
          ))}
        </nav>
      </header>
      <main id="main" ref={main} tabIndex={-1} class={"view-" + view.id} aria-label={view.title}>
        <Guarded key={view.id} title={view.title}>
          <view.show report={report} lines={lines} route={route} />
        </Guarded>
      </main>
    </>
  );
}
