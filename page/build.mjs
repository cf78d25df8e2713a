// Builds ../smelt/report/page.html: one file with script and style inside, which asks for nothing else. It holds a hash of
// all that it is built from, by which tests/report/test_page.py knows when it is stale.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join, relative, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));

function sources() {
  const inside = readdirSync(join(here, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(here, join(entry.parentPath, entry.name)).split(sep).join("/"));
  const paths = [...inside, "build.mjs", "package.json", "package-lock.json", "tsconfig.json"].sort();
  const hash = createHash("sha256");
  for (const path of paths) hash.update(path + "\0").update(readFileSync(join(here, path))).update("\0");
  return hash.digest("hex");
}

const { outputFiles, metafile } = await build({
  absWorkingDir: here,
  entryPoints: ["src/main.tsx"],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "ascii",
  legalComments: "none",
  outdir: "out",
  write: false,
  metafile: true,
});
const text = (ending) => outputFiles.find((file) => file.path.endsWith(ending)).text.trim();
const script = text(".js").replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--");
const style = text(".css");
const allowed = (part) => `'sha256-${createHash("sha256").update(part).digest("base64")}'`;
// Whatever the data hold, the browser runs this script alone and opens no connection.
const policy =
  `default-src 'none'; script-src ${allowed(script)}; style-src ${allowed(style)}; ` +
  "base-uri 'none'; form-action 'none'";

/** What the licences of the packages inside ask to be kept. */
function licences() {
  const inputs = Object.keys(metafile.inputs).join("\n");
  const packages = [...new Set([...inputs.matchAll(/node_modules\/((?:@[^/\n]+\/)?[^/\n]+)/g)].map(([, name]) => name))].sort();
  return packages.map((name) => {
    const folder = join(here, "node_modules", name);
    const { version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
    return `${name} ${version}\n\n${readFileSync(join(folder, file), "utf8").trim()}`;
  });
}

writeFileSync(
  join(here, "../smelt/report/page.html"),
  `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="smelt-page-sources" content="${sources()}">
<title>smelt report</title>
<style>${style}</style>
</head>
<body>
<div id="page"></div>
<noscript>This report is drawn by the script that it holds: please allow scripts.</noscript>
<script type="application/json" id="report">@REPORT@</script>
<script>${script}</script>
<script type="text/plain">
The script above is built from page/ of smelt and holds:

${licences().join("\n\n")}
</script>
</body>
</html>
`,
);
