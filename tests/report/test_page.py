"""The HTML report, in Chromium: what each view says, that nothing leaves the page or gets in, and that it can be read and
worked by everybody."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from smelt.report import html_report as pages
from smelt.report.report_data import OF_COST, OF_RESUME_FUNCTION
from tests.harness import reports
from tests.harness.browser import chromium, contains, counts, focuses, has, opened, says, visit

ROOT = Path(__file__).parents[2]
VIEWS = ("overview", "source", "breaks", "fallbacks", "recompiles", "entries", "graphs", "kernels", "memory")
LINE = f"source/{quote(reports.FILE, safe='')}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def sample(folder: Path) -> Path:
    pages.write(folder / "sample.html", reports.sample())
    return folder / "sample.html"


@pytest.fixture(scope="module")
def large(folder: Path) -> Path:
    pages.write(folder / "large.html", reports.layered(5000))
    return folder / "large.html"


# --------------------------------------------------------------------------------------------------- the file


def test_the_page_is_built_from_these_sources():
    """The hash as page/build.mjs makes it."""
    paths = [*(ROOT / "page/src").rglob("*"), *map((ROOT / "page").joinpath, ("build.mjs", "package.json"))]
    paths += [ROOT / "page/package-lock.json", ROOT / "page/tsconfig.json"]
    names = sorted(path.relative_to(ROOT / "page").as_posix() for path in paths if path.is_file())
    found = hashlib.sha256()
    for name in names:
        found.update(name.encode() + b"\0" + (ROOT / "page" / name).read_bytes() + b"\0")
    built = (ROOT / "smelt/report/page.html").read_text(encoding="utf-8")
    assert f'name="smelt-page-sources" content="{found.hexdigest()}"' in built, "run: make page"


def embedded(path: Path) -> str:
    [text] = re.findall(r'<script type="application/json" id="report">(.*?)</script>', path.read_text(), re.S)
    return text


def test_data_cannot_leave_their_element(tmp_path: Path):
    data = {"name": "</script><!-- <b> & \u2028\u2029 \ud800 é", "breaks": []}
    pages.write(tmp_path / "page.html", data)
    text = embedded(tmp_path / "page.html")
    assert text.isascii() and not set("<>&") & set(text)
    assert json.loads(text) == data


def test_numbers_that_json_does_not_know_are_unknown(tmp_path: Path):
    pages.write(
        tmp_path / "page.html", {"kernels": [{"us": float("nan"), "flops": float("inf"), "nodes": (1.5,)}]}
    )
    assert json.loads(embedded(tmp_path / "page.html")) == {
        "kernels": [{"us": None, "flops": None, "nodes": [1.5]}]
    }


def test_what_is_no_json_is_refused(tmp_path: Path):
    with pytest.raises(TypeError):
        pages.write(tmp_path / "page.html", {"name": object()})
    assert not (tmp_path / "page.html").exists()


# --------------------------------------------------------------------------------------------------- the views

SAID = {
    "overview": ["Block.forward", "torch 2.13.0+cpu", "2 threads", "run eagerly", "eager 1.31 MiB", "60.8 ms", "Own time"],
    "source": ["/home/ada/models/block.py", "h = self.norm(x)", "broke the graph", "3 lines", "The first is line 15"],
    f"{LINE}/17": [reports.GATE, "use torch.where or torch.cond", "aten.sum.default"],
    f"{LINE}/16": ["was 3, now 4", "L['scale'] == 3", "relu_mul_sum_1", "aten.addmm.default"],
    f"{LINE}/3": ["Nothing of note happened on this line"],
    "breaks": [reports.GATE, "block.py:17", "if h.sum() > 0:", f"costs 0.12 ms a call, {OF_COST}", "Stack, 2 lines"],
    "fallbacks": ["zlib.crc32", "call it outside the compiled function"],
    "recompiles": ["122 ms", "L['scale'] == 3"],
    "entries": ["3 guards", "s0 = L['x'].shape[0]", OF_RESUME_FUNCTION.format("forward"), "def compiled(self, x, scale):"],
    "graphs": ["0: aten of forward, 10 nodes", "10 boxes for 10 nodes", "Code of graph 0"],
    "graphs/0/addmm": ["aten.addmm.default", "[s0, 1024]", "block.py:16", "Reads 3", "Read by 1"],
    "graphs/1": ["This graph has no nodes"],
    "kernels": ["layer_norm_0", "64 KiB", "33.6 M", "24.4", "610 µs", "2.26 GB/s", "is not generated", "2×"],
    "kernels/2": ["512 KiB moved", "for j in range(256):", "relu, mul, sum_1", "block.py:16, no line"],
    "memory": ["576 KiB", "1.31 MiB", "43%", "peak 512 KiB", "As a table, 3 steps", "peak 12 B", "forward: 1 value"],
}  # fmt: skip


def test_views_say_what_the_data_hold(browser: Any, sample: Path):
    with opened(browser, sample) as page:
        for view, words in SAID.items():
            visit(page, view)
            for said in words:
                contains(page, "body", said)


def test_a_view_can_be_linked_to(browser: Any, sample: Path):
    for view in ("graphs/0/addmm", f"{LINE}/17", "entries/forward/1"):
        with opened(browser, sample, view) as page:
            for said in SAID.get(view, ["Entry 1"]):
                contains(page, "main", said)


EMPTY = {
    "overview": "No phase was timed",
    "source": "No source",
    "breaks": "No graph breaks",
    "fallbacks": "No fallbacks",
    "recompiles": "No recompiles",
    "entries": "No entries",
    "graphs": "No graphs",
    "kernels": "No kernels",
    "memory": "Nothing is saved",
}


def test_each_empty_section_says_so(browser: Any, tmp_path: Path):
    pages.write(tmp_path / "page.html", {})
    assert set(EMPTY) == set(VIEWS)
    with opened(browser, tmp_path / "page.html") as page:
        for view, said in EMPTY.items():
            visit(page, view)
            contains(page, "main", said)
            assert "is generated" not in page.inner_text("main")  # nor is any not


def test_timeline_and_charts_are_drawn(browser: Any, sample: Path):
    with opened(browser, sample) as page:
        counts(page, ".phase", 16)
        page.click("nav >> text=Kernels")
        counts(page, ".roofline circle", 3)
        page.click(".roofline a[aria-label^='aten.addmm']")
        says(page, "aside h2", "aten.addmm")
        page.click("nav >> text=Memory")
        counts(page, "svg rect.hover", 4)


def test_the_overview_says_what_to_do_first(browser: Any, tmp_path: Path):
    """What runs eagerly, else the most expensive break, else the guard that failed most often, else the longest kernel."""
    data = reports.sample()
    [gate], [failed] = data["breaks"], data["recompiles"]
    dearer = gate | {"line": reports.at(16), "cost_ms": 2.5}
    data |= {"breaks": [gate, dearer], "recompiles": [failed | {"guard": "once"}, failed, failed]}
    for view, said, other in (
        ("fallbacks", "fallback at block.py:19: call it outside the compiled function", "graph break at"),
        ("breaks", "graph break at block.py:16, which costs 2.5 ms a call: use torch.where", "guard"),
        ("recompiles", "guard L['scale'] == 3, which failed in 2 calls: it was 3, then 4", "once"),
        ("kernels/1", "kernel aten.addmm, which takes 610 µs of 652 µs", "guard"),
    ):
        pages.write(tmp_path / "page.html", data)
        with opened(browser, tmp_path / "page.html") as page:
            text = page.inner_text("section p >> nth=0").replace("\u00a0", " ")
            assert f"Start with the {said}" in text and other not in text
            page.click("section p a >> nth=0")
            assert page.url.endswith(f"#{view}")
            if view == "breaks":
                says(page, "article .at a", ["block.py:16", "block.py:17"])
        data[{"fallbacks": "eager"}.get(view, view.partition("/")[0])] = []


def test_time_inside_another_phase_is_counted_once(browser: Any, sample: Path):
    with opened(browser, sample) as page:
        own = dict(
            row.replace("\u00a0", " ").split("\t")[::2][:2]
            for row in page.locator("tbody tr").all_inner_texts()
        )
        assert (own["backend"], own["compile"]) == ("0 ms", "60.8 ms")
        lanes = (
            page.locator(".bars").first.locator(".phase").evaluate_all("all => all.map(one => one.style.top)")
        )
        assert lanes == ["0px", "0px"] + ["20px"] * 6


def test_kernels_without_times_lie_by_bytes_and_flops(browser: Any, tmp_path: Path):
    data = reports.sample()
    for kernel in data["kernels"]:
        kernel["us"] = kernel["bytes_per_second"] = None
    pages.write(tmp_path / "page.html", data)
    with opened(browser, tmp_path / "page.html", "kernels") as page:
        assert page.locator(".roofline circle").count() == 3
        assert "bytes read and written" in page.locator(".roofline").text_content()


def test_kernels_are_sorted_by_a_column(browser: Any, sample: Path):
    with opened(browser, sample, "kernels") as page:
        page.click("th button:has-text('Flops/byte')")
        says(page, "td.name", ["aten.addmm", "layer_norm_0", "relu_mul_sum_1"])
        says(page, "th[aria-sort=descending]", re.compile("^Flops/byte"))
        page.click("th button:has-text('Flops/byte')")
        says(page, "td.name >> nth=0", "relu_mul_sum_1")


def test_a_line_is_marked_with_what_happened_to_it(browser: Any, sample: Path):
    with opened(browser, sample, "source") as page:
        assert (
            page.get_attribute(".number a >> text=16", "aria-label")
            == "Line 16: captured, guarded, recompiled"
        )
        page.click(".text >> text=h.sum()")
        says(page, "aside h2", "block.py:17")


def many(rows: int) -> dict[str, Any]:
    """A report with so many guards, kernels and lines of source."""
    data = reports.sample()
    [first, *_] = [entry for frame in data["frames"] for entry in frame["entries"]]
    first["guards"] = [
        {"text": f"L['x{i}'] == {i}", "source": f"L['x{i}']", "line": None} for i in range(rows)
    ]
    first["source"] = "\n".join(f"x{i} = {i}" for i in range(rows))
    data["kernels"] = [data["kernels"][0] | {"name": f"kernel_{i}", "us": 1.0 * (i % 7)} for i in range(rows)]
    data["sources"] = [{"file": reports.FILE, "first_line": 1, "text": "x = 1\n" * rows}]
    return data


def test_rows_are_drawn_when_they_are_seen(browser: Any, tmp_path: Path):
    pages.write(tmp_path / "page.html", many(3000))
    assert set(json.loads(embedded(tmp_path / "page.html"))) == {"gzip"}
    assert (tmp_path / "page.html").stat().st_size < 500_000
    with opened(browser, tmp_path / "page.html", "entries") as page:
        for view, query, found in (
            ("entries", "x2999", "L['x2999'] == 2999"),
            ("kernels", "el_2998", "kernel_2998"),
        ):
            visit(page, view)
            assert page.evaluate("document.querySelectorAll('main table tr').length") < 300
            page.fill("input[type=search] >> nth=0", query)
            contains(page, "main", "1 row found")
            contains(page, "main", found)
            page.fill("input[type=search] >> nth=0", "")
        assert page.inner_text("td.name >> nth=0") == "kernel_6"  # the longest first
        visit(page, "kernels/2997")
        has(page, "tr.chosen a", "aria-current", "true")
        visit(page, f"{LINE}/2500")
        contains(page, "tr.chosen", "2500")
        assert page.evaluate("document.querySelectorAll('main table tr').length") < 400


def test_the_source_opens_at_its_first_mark(browser: Any, sample: Path):
    with opened(browser, sample) as page:
        page.set_viewport_size({"width": 1280, "height": 260})
        visit(page, "source")
        contains(page, "tr.shown", "15")
        top, height = page.evaluate(
            "[document.querySelector('tr.shown').getBoundingClientRect().top, innerHeight]"
        )
        assert 0 < top < height and page.evaluate("scrollY") > 0
        visit(page, "entries")
        assert page.evaluate("scrollY") == 0


# ------------------------------------------------------------------------------------------------ nothing gets in


def hostile(value: Any, keep: tuple[str, ...] = ("kind", "level", "op", "events")) -> Any:
    """The report with markup in each of its strings."""
    if isinstance(value, str):
        return f"</script><img src=x onerror=alert(1)><script>alert(2)</script><!--{value}\u2028'\"`${{alert(3)}}"
    if isinstance(value, dict):
        return {key: item if key in keep else hostile(item) for key, item in value.items()}
    return [hostile(item) for item in value] if isinstance(value, list) else value


def test_markup_in_the_data_is_text(browser: Any, tmp_path: Path):
    """`opened` sees dialogs, complaints and requests."""
    pages.write(tmp_path / "page.html", hostile(reports.sample()))
    with opened(browser, tmp_path / "page.html") as page:
        scripts = page.locator("script").count()
        for view in VIEWS:
            visit(page, view)
            if view not in ("overview", "graphs"):
                contains(page, "main", "<img src=x onerror=alert(1)>")
            assert page.locator("img").count() == 0 and page.locator("script").count() == scripts


def test_a_script_or_request_that_got_in_would_be_stopped(browser: Any, sample: Path):
    with opened(browser, sample) as page:
        policy = page.get_attribute("meta[http-equiv]", "content")
        assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy


# ----------------------------------------------------------------------------------------------------- graphs


def drawn(page: Any) -> int:
    """How many boxes were drawn last, once they are."""
    has(page, "canvas", "data-drawn", re.compile("[1-9]"))
    return int(page.get_attribute("canvas", "data-drawn"))


def shown(page: Any) -> bytes:
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.locator("canvas").screenshot()


def changes(page: Any, before: bytes) -> bytes:
    """Waits until the drawing is another one."""
    for _ in range(50):
        if (after := shown(page)) != before:
            return after
    raise AssertionError("the drawing stayed as it was")


def test_a_large_graph_is_folded_and_can_be_panned(browser: Any, large: Path):
    with opened(browser, large, "graphs") as page:
        contains(page, "aside", "200 boxes for 5,001 nodes")
        assert 0 < drawn(page) < 100
        before = shown(page)
        page.locator("canvas").hover()
        page.mouse.down()
        page.mouse.move(500, 200, steps=4)
        page.mouse.up()
        moved = changes(page, before)
        page.mouse.wheel(0, 300)
        changes(page, moved)


def test_all_of_a_large_graph_opens(browser: Any, large: Path):
    with opened(browser, large, "graphs") as page:
        page.click("text=Open all")
        says(page, "aside", re.compile("^5,001"))
        assert 0 < drawn(page) < 1000  # no more than is in the window
        page.click("text=Fit")
        has(page, "canvas", "data-drawn", "5001")
        page.click("text=Fold all")
        has(page, "canvas", "data-drawn", "1")


def test_a_large_graph_without_modules_opens(browser: Any, folder: Path):
    pages.write(folder / "flat.html", reports.layered(5000, modules=False))
    with opened(browser, folder / "flat.html", "graphs") as page:
        assert 0 < drawn(page) < 1000
        contains(page, ".modules", "are in no module")


def test_modules_open_and_fold(browser: Any, large: Path):
    with opened(browser, large, "graphs") as page:
        page.click(".tree button[title='layers.7']")
        has(page, ".tree button[title='layers.7']", "aria-expanded", "true")
        counts(page, ".tree button[title^='layers.7.']", 3)
        page.click(".tree button[title='layers.7.mlp']")
        says(page, "aside h2", re.compile("^(mlp_7_0|w_7_mlp)$"))
        page.click("aside >> text=Fold")
        says(page, "aside h2", "layers.7.mlp")


def test_a_search_goes_to_a_folded_node(browser: Any, large: Path):
    with opened(browser, large, "graphs") as page:
        page.fill("input[type=search]", "attention_42")
        says(page, ".modules [role=status]", "11 nodes found")
        page.press("input[type=search]", "Enter")
        says(page, "aside h2", "attention_42_0")
        page.fill("input[type=search]", "no such node")
        contains(page, ".modules", "No node is like this")


# --------------------------------------------------------------------------------------------------- everybody

CONTRASTS = """() => {
  document.querySelectorAll("details").forEach((one) => (one.open = true));
  const rgba = (text) => {
    const parts = text.match(/[\\d.]+/g).map(Number);
    return parts.length < 4 ? [...parts, 1] : parts;
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const ground = (element) => {
    const behind = [];
    for (let at = element; at; at = at.parentElement) behind.push(rgba(getComputedStyle(at).backgroundColor));
    return behind.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const words = [...element.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join("");
    if (!words || element.closest("script, title, noscript") || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const colour = rgba(element instanceof SVGElement ? style.fill : style.color);
    const ratio = contrast(over(colour, ground(element)), ground(element));
    if (ratio < 4.5) found.push(`${words.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  const style = getComputedStyle(document.documentElement);
  const probe = document.createElement("i");
  document.body.append(probe);
  const named = (name) => ((probe.style.color = style.getPropertyValue("--" + name)), rgba(getComputedStyle(probe).color));
  for (const text of ["ink", "dim"])
    for (const below of ["paper", "raised"])
      if (contrast(named(text), named(below)) < 4.5) found.push(`drawing: ${text} on ${below}`);
  if (contrast(named("ink"), named("found")) < 4.5) found.push("drawing: ink on found");
  probe.remove();
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_contrast(browser: Any, sample: Path, scheme: str):
    with opened(browser, sample, scheme=scheme) as page:
        ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert ground == {"light": "rgb(247, 247, 245)", "dark": "rgb(17, 19, 21)"}[scheme]
        for view in (*VIEWS, f"{LINE}/17", f"{LINE}/16", "graphs/0/addmm", "kernels/1"):
            visit(page, view)
            assert page.evaluate(CONTRASTS) == [], view


WIDER = """() => [document.documentElement, ...document.querySelectorAll(".entry .scroll, .figures, .timeline")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.className || one.tagName)"""
SMALL = """() => [...document.querySelectorAll("svg text")].filter((one) => one.getBoundingClientRect().height < 9).length"""


def test_a_narrow_window_shows_all_columns_and_legible_charts(browser: Any, tmp_path: Path):
    data = reports.sample()
    data["frames"][0]["entries"][0]["guards"][0]["source"] = "L['self']" + "._modules['layer']" * 6
    pages.write(tmp_path / "page.html", data)
    with opened(browser, tmp_path / "page.html") as page:
        page.set_viewport_size({"width": 390, "height": 844})
        for view in VIEWS:
            visit(page, view)
            assert page.evaluate(WIDER) == [], view
            assert page.evaluate(SMALL) == 0, view
        visit(page, f"{LINE}/17")
        assert page.locator("aside h2").bounding_box()["y"] < 844  # what was chosen is in sight


def test_a_drawing_follows_a_change_of_scheme(browser: Any, sample: Path):
    with opened(browser, sample, "graphs") as page:
        drawn(page)
        light = shown(page)
        page.emulate_media(color_scheme="dark")
        changes(page, light)


NAMELESS = """() => {
  const used = [...document.querySelectorAll("a, button, input, select, canvas, svg[role], [role=region]")];
  const label = (one) => one.getAttribute("aria-label") || one.closest("label")?.textContent || one.textContent;
  return used.filter((one) => !label(one).trim()).map((one) => one.outerHTML);
}"""
REPEATED = """() => {
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  return ids.filter((id, i) => ids.indexOf(id) !== i);
}"""


def test_all_that_can_be_used_has_a_name(browser: Any, sample: Path):
    with opened(browser, sample) as page:
        assert page.locator("h1").count() == 1
        for view in VIEWS:
            visit(page, view)
            assert page.evaluate(NAMELESS) == []
            assert page.evaluate(REPEATED) == []
            assert page.locator("nav [aria-current=page]").count() == 1


def test_the_keyboard_reaches_the_views(browser: Any, sample: Path):
    with opened(browser, sample) as page:
        page.keyboard.press("Tab")
        focuses(page, "Skip to content")
        for title in ("Overview", "Source", "Breaks 1"):
            page.keyboard.press("Tab")
            focuses(page, title)
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid"
        page.keyboard.press("Enter")
        page.wait_for_selector("main.view-breaks")
        focuses(page, "Breaks")  # the view itself: what is read next is in it
        page.keyboard.press("Tab")
        focuses(page, "block.py:17")
        page.keyboard.press("Enter")
        page.wait_for_selector("main.view-source")
        says(page, "aside h2", "block.py:17")
        page.go_back()
        page.wait_for_selector("main.view-breaks")


def test_arrow_keys_go_from_mark_to_mark(browser: Any, sample: Path):
    with opened(browser, sample, "source") as page:
        page.focus(".number a >> text=15")
        for line in (16, 17):
            page.keyboard.press("ArrowDown")
            says(page, "aside h2", f"block.py:{line}")
            focuses(page, re.compile(f"^Line {line}: "))  # it moves after a frame
        focuses(page, re.compile("^Line 17: captured, broke the graph"))
        page.keyboard.press("ArrowUp")
        says(page, "aside h2", "block.py:16")


def test_the_keyboard_walks_a_graph(browser: Any, sample: Path):
    with opened(browser, sample, "graphs") as page:
        drawn(page)
        page.focus("canvas")
        for key, name in (
            ("ArrowDown", "x"),
            ("ArrowDown", "norm"),
            ("ArrowDown", "addmm"),
            ("ArrowUp", "bias"),
        ):
            page.keyboard.press(key)
            says(page, "aside h2", f"{name}")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Backspace")
        says(page, "aside h2", "up")
        page.keyboard.press("Enter")
        says(page, "aside h2", re.compile("^(?!up)"))
        before = shown(page)
        page.keyboard.press("Shift+ArrowDown")
        changes(page, before)
        page.keyboard.press("Escape")
        contains(page, "aside", "Choose one")
