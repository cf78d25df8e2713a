"""The pages: each block of Python runs, and prints what the page says."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import smelt
from smelt import events
from smelt.capture.driver.cache_entries import Entry, Record
from smelt.config import Config
from smelt.reasons import Reason
from smelt.report import report_data
from smelt.report.traces import Trace
from tests.harness import pages


@pytest.mark.parametrize("page", pages.programs(), ids=lambda page: page.stem)
def test_blocks_print_what_the_page_says(page: Path):
    for block, output in zip(pages.blocks(page.read_text()), pages.printed(page), strict=True):
        if output is not None and pages.differs(block, output):
            at = f"{pages.name_of(page)}:{block.first}"
            pytest.fail(f"{at}:\n{block.body}\nprints\n{output}\nand the page says\n{block.output}")


def test_no_python_of_a_page_is_overlooked():
    """In a list, with other fences, or as `py`, a block would be no block to `pages.blocks`."""
    python = re.compile(r"^[ >]*(?:```+|~~~+) *\{?[ .]*(?:py|Py|ipython|pycon)", re.M)
    for page in pages.PAGES:
        text = page.read_text()
        read = [block["language"] for block in pages.BLOCK.finditer(text)]
        assert len(python.findall(text)) == read.count("python"), page


def test_docs_stay_short():
    """docs/ holds at most 45,000 words (`wc -w docs/*.md`): an addition replaces something else."""
    words = {page.name: len(page.read_text().split()) for page in pages.PAGES if page.parent.name == "docs"}
    longest = sorted(words, key=words.__getitem__, reverse=True)[:5]
    assert sum(words.values()) <= 45_000, f"the longest pages: {', '.join(longest)}"


def test_the_index_leads_to_every_page():
    """It links each guide; from page to page its links reach all."""
    link = re.compile(r"\]\(([^)#\s]+\.md)")
    links = {
        page: {(page.parent / to).resolve() for to in link.findall(page.read_text())} for page in pages.PAGES
    }
    docs, index = pages.ROOT / "docs", pages.ROOT / "docs/index.md"
    guides = re.search(r"- Guides:\n(.*?)\n  - ", (pages.ROOT / "mkdocs.yml").read_text(), re.S)
    assert guides and {docs / page for page in re.findall(r": (\S+\.md)", guides[1])} <= links[index]
    reached, waiting = {index}, [index]
    while waiting:
        found = links[waiting.pop()] & links.keys() - reached
        reached |= found
        waiting += found
    assert {page for page in links if page.parent == docs} <= reached


def test_the_reference_names_what_is_public():
    text = (pages.ROOT / "docs/api.md").read_text()
    public = {
        name for name in smelt.__all__ if getattr(getattr(smelt, name), "__module__", "").startswith("smelt")
    }
    assert {"compile", "Program", "load_cache"} <= public <= {*re.findall(r"\w+", text)}


PAGE = """
```python
def f():
    return 1
```

<!-- needs smelt.nothing -->
```python
print(smelt.nothing)
```
```text
```

<!-- not run -->
```python
while True: ...
```

Text.

```python
print(f(), f.__code__.co_firstlineno, object(), sep="\\n")
```

```text
1
...
<object object at 0x1>
```
"""


def test_a_page_is_read_as_a_program(tmp_path: Path):
    page = tmp_path / "a-page.md"
    page.write_text(PAGE)
    found = pages.blocks(PAGE)
    assert [(b.first, b.needed, b.output.count("\n")) for b in found] == [
        (1, None, 0), (4, "smelt.nothing", 0), (6, None, 3)
    ]  # fmt: skip
    assert pages.program(PAGE).splitlines()[3] == "print(smelt.nothing)"
    first, second, third = pages.printed(page)
    assert (first, second) == ("", None)
    assert third is not None and third.startswith("1\n1\n<object object at 0x")
    assert not pages.differs(found[2], third)
    assert pages.differs(found[2], "2" + third) and pages.differs(found[0], "more")


@pytest.mark.parametrize(
    "above", ["", "```python\n1\n```\n```text\n```\n", "<!-- not run -->\n```python\n1\n```\n"]
)
def test_an_output_of_nothing_is_an_error(above: str):
    with pytest.raises(ValueError, match="an output stands behind no block"):
        pages.blocks(f"{above}\n```text\n1\n```\n")


def test_outputs_are_written_where_they_differ():
    page = "```python\nprint(2)\n```\n\n```text\n1\n```\n"
    assert pages.written(page, ["2\n"]) == page.replace("1", "2")
    assert pages.written(page, ["1\n"]) == page
    example = page.replace("```text", "<!-- an example -->\n```text")
    assert pages.written(example, ["2\n"]) == example


def test_dots_stand_for_what_differs_from_run_to_run():
    page = "```python\nf()\n```\n\n```text\nin … s\n...\nend\n```\n"
    assert pages.written(page, ["in 0.3 s\nmore\nend\n"]) == page
    assert pages.written(page, ["in 0.3\nat 0.4 s\nend\n"]) != page


def test_a_block_that_fails_is_named(tmp_path: Path):
    page = tmp_path / "a-page.md"
    page.write_text("```python\n1 / 0\n```\n")
    with pytest.raises(RuntimeError, match=r"a-page.md: block 1 fails(.|\n)*a_page.py\", line 1"):
        list(pages.printed(page))


def test_pages_are_built_without_a_warning_and_want_nothing_from_elsewhere(tmp_path: Path):
    pytest.importorskip("mkdocs", reason="requirements/docs.txt is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", tmp_path],
        cwd=pages.ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    fetched = re.compile(r"<(?:script|link|img|iframe)[^>]* (?:src|href)=\"?https?:[^>]*>")
    assert [hit for page in tmp_path.rglob("*.html") for hit in fetched.findall(page.read_text())] == []
    assert 'data-linenos="' in (tmp_path / "first-steps.html").read_text()
    named = {*re.findall(r'id="(smelt\.[^"]+)"', (tmp_path / "api.html").read_text())}
    parts = [kind for kind in vars(report_data).values() if dataclasses.is_dataclass(kind)]
    for kind in (Config, Entry, Record, Reason, Trace, events.Event, *parts):
        assert {
            f"{kind.__module__}.{kind.__name__}.{field.name}" for field in dataclasses.fields(kind)
        } <= named
    assert {
        "smelt.report.explanation.Explanation.result",
        "smelt.report.explanation.Explanation.save",
    } <= named
