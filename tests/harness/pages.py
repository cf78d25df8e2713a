"""The pages as programs: a page's ```python blocks, one after another, are a file, whose lines its outputs name.

The ```text block behind a ```python block is what that prints; a block without one prints nothing. (What is shown beside
programs is in blocks without a language.) A comment on the line above a block says where that is not so:

    <!-- needs smelt.explain -->    the block, and its output, only where smelt has that name
    <!-- not run -->                the block is for show
    <!-- an example -->             the output differs from run to run: the first line is compared, without numbers

A line `...` of an output stands for any number of lines, `…` for any text within a line. `python -m tests.harness.pages
[PAGE ...]` runs all pages, or those named, and writes what their blocks print into them.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.harness import processes

ROOT = Path(__file__).parents[2]
COMPILER = (
    "torch",
    "smelt.callables",
    "smelt.backends.smelt",
    "smelt.codegen.cpu_launches",
)  # imported once for all pages
PAGES = (*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")))
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>.+?) -->\n)?^```(?P<language>python|text)\n(?P<body>.*?)^```$", re.M | re.S
)

# Run as a process: blocks as JSON on stdin, what each printed as JSON on stdout.
RUN = """
import contextlib, io, json, linecache, sys, types
name, blocks = json.load(sys.stdin)
import smelt
main = sys.modules["__main__"] = types.ModuleType("__main__")
main.__file__ = name
def here(needed):
    owner, _, attribute = needed.rpartition(".")
    return hasattr(sys.modules[owner], attribute)
for first, body, needed in blocks:
    printed = None
    if needed is None or here(needed):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\\n" * (first - 1) + body, name, "exec"), main.__dict__)
        printed = printed.getvalue()
    print(json.dumps(printed), flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A ```python block: its code begins at line `first` of the page's program; `needed` is a name of smelt's, or None.
    `output`: what it should print; `at`: where that stands in the page (None: nowhere, it prints nothing)."""

    body: str
    first: int
    needed: str | None
    output: str
    at: tuple[int, int] | None
    exact: bool


def blocks(text: str) -> list[Block]:
    """The blocks of a page that are run, in order. Raises ValueError for a mark that is none, or an output of nothing."""
    found: list[Block] = []
    line = 1
    outputs = 0
    matches = [*BLOCK.finditer(text), None]
    for match, following in pairwise(matches):
        mark, body = match["mark"] or "", match["body"]
        if match["language"] == "text":
            outputs += 1
            continue
        needed = mark.removeprefix("needs ") if mark.startswith("needs ") else None
        if mark not in ("", "not run") and needed is None:
            raise ValueError(f"a block is marked {mark!r}")
        if mark != "not run":
            shown = following if following and following["language"] == "text" else None
            found.append(
                Block(
                    body,
                    line,
                    needed,
                    shown["body"] if shown else "",
                    shown.span("body") if shown else None,
                    not shown or shown["mark"] != "an example",
                )
            )
            line += body.count("\n") + 1
    if outputs > sum(block.at is not None for block in found):
        raise ValueError("an output stands behind no block that is run")
    return found


def programs() -> list[Path]:
    """The pages with blocks that are run."""
    return [page for page in PAGES if blocks(page.read_text())]


def program(text: str) -> str:
    """The page's blocks as one file."""
    return "\n".join(block.body for block in blocks(text))


def name_of(page: Path) -> str:
    """The file that a page is, as a program."""
    return page.stem.replace("-", "_") + ".py"


def printed(page: Path) -> Iterator[str | None]:
    """What each block of the page prints, None where it needs what is not there. A process of its own runs them, in an empty
    folder with the page's program in it, on one thread. Raises RuntimeError, with the traceback, where a block fails."""
    text = page.read_text()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name_of(page)).write_text(program(text))
        startup = _environment()
        done = processes.start(
            RUN,
            stdin=json.dumps([name_of(page), [(b.first, b.body, b.needed) for b in blocks(text)]]),
            cwd=folder,
            env=startup | {"TMPDIR": folder},
            imports=COMPILER,
            startup=startup,
            timeout=250,
        )
    if done.returncode:
        raise RuntimeError(f"{page.name}: block {len(done.stdout.splitlines()) + 1} fails\n{done.stderr}")
    return map(json.loads, done.stdout.splitlines())


def _environment() -> dict[str, str]:
    """Without the user's SMELT_ variables; smelt is that of this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SMELT_", "TORCH_"))}
    path = [str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path), "PYTHONHASHSEED": "0"}


def differs(block: Block, output: str) -> bool:
    """Whether `output` is not what the page says that the block prints."""
    if not block.exact:
        first = [
            re.sub(r"\s*[\d.]+", "0", normal(text).partition("\n")[0]) for text in (output, block.output)
        ]
        return not first[0] or first[0] != first[1]
    lines = [
        r"([^\n]*\n)*" if line == "..." else re.escape(line).replace("…", r"[^\n]*") + r"\n"
        for line in normal(block.output).splitlines()
    ]
    printed = "".join(f"{line}\n" for line in normal(output).splitlines())
    return not re.fullmatch("".join(lines), printed)


def normal(output: str) -> str:
    """`output` without what no two runs have in common, addresses and the checkout's folder, and without spaces at the ends
    of lines and empty lines at its end."""
    output = re.sub(r"0x[0-9a-f]+", "0x…", output.replace(f"{ROOT}/", ""))
    return "\n".join(line.rstrip() for line in output.rstrip().splitlines())


def written(text: str, outputs: list[str | None]) -> str:
    """The page with these outputs in it, where it has a ```text block for one and says something else."""
    found = [
        (b, o) for b, o in zip(blocks(text), outputs, strict=True) if b.at and o is not None and differs(b, o)
    ]
    for block, output in reversed(found):
        start, end = block.at
        text = text[:start] + normal(output) + "\n" + text[end:]
    return text


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:] or programs()):
        page.write_text(written(page.read_text(), list(printed(page))))
