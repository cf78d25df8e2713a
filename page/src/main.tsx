import { render } from "preact";
import { App } from "./app";
import { read } from "./data";
import { index } from "./lines";
import "./style.css";

const report = read(JSON.parse(document.getElementById("report")!.textContent!));
document.title = `${report.name} \u2013 smelt report`;
render(<App report={report} lines={index(report)} />, document.getElementById("page")!);
