"""The table of reasons as Markdown: `python -m smelt.report.reasons_page > docs/graph-breaks.md`."""

from __future__ import annotations

import sys

from smelt.reasons import REASONS, ReasonKind

_HEAD = """\
# Graph breaks, and calls that run eagerly

Where smelt cannot capture an instruction, the graph breaks: smelt compiles the code before and after it, and Python runs
the instruction. If a break is impossible there (inside a function that native code calls), the nearest call that can run
eagerly is the break. If there is none, the whole call runs eagerly. Results are eager's in each case.
[Graph breaks by example](breaks-by-example.md) shows causes and fixes.

`smelt.report.inspect.reasons(compiled)` lists the reasons of a compiled callable. Each has a `kind` (a row below; ids are
stable), a `detail` that names the function or object, the user's `line`, and the `stack` of user lines that led there. With
`fullgraph=True` the first one is raised as `smelt.errors.Unsupported` (its `.reason`). Code that prints, logs or warns does
not break the graph by itself: the compiled frame runs it after the graph, in program order.

`python -m smelt.report.reasons_page` writes this page from `smelt/reasons.py`.

| id | what happened | for example | what to do |
| --- | --- | --- | --- |
"""


def markdown() -> str:
    """The page: one row for each kind of reason, in the order of `smelt/reasons.py`."""
    return _HEAD + "".join(map(_row, REASONS.values()))


def _row(kind: ReasonKind) -> str:
    example = f"`{kind.example}`" if kind.example else ""
    cells = (f"`{kind.id}`", kind.summary, example, kind.hint)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
