import { render } from "preact";
import { App } from "./app";
import { read } from "./data";
import { index } from "./lines";
import "./style.css";

/** The embedded data: JSON, or its gzip in base64. */
async function embedded() {
  const data = JSON.parse(document.getElementById("report")!.textContent!);
  if (typeof data.gzip !== "string") return data;
  const bytes = Uint8Array.from(atob(data.gzip), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

void embedded().then((data) => {
  const report = read(data);
  document.title = `${report.name} \u2013 smelt report`;
  render(<App report={report} lines={index(report)} />, document.getElementById("page")!);
});
