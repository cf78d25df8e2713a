"""The table of reasons as Markdown: `python -m smelt.report.reasons_page > docs/graph-breaks.md`."""

from __future__ import annotations

import sys

from smelt.reasons import REASONS, ReasonKind

_HEAD = """\
# Graph breaks, and calls that run eagerly

Where smelt meets something that it cannot capture, the graph breaks: what comes before and after is compiled, and what
stood in the way runs as it is, in between. Where a graph cannot break (inside a function that native code calls, for
one) the break moves out to the nearest call that can be made as it is; where there is none, the call runs eagerly.
Results are eager's in each case. `smelt.report.inspect.reasons(compiled)` lists the reasons of one compiled
callable; with `fullgraph=True` the first of them is raised as `smelt.errors.Unsupported` (its `.reason`).

A reason has a `kind` (a row below; ids are stable), a `detail` that names the function or object, the user's `line`, and
the `stack` of user lines that led there. What prints, logs or warns does not break by itself: it is done by the
compiled frame after the graph has run, in program order, with eager's text and places.

This page is printed from `smelt/reasons.py` by `python -m smelt.report.reasons_page`; a test compares the two.

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
