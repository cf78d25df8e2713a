"""The table of reasons as Markdown: `python -m smelt.report.reasons > docs/reasons.md`."""

from __future__ import annotations

import sys

from smelt.reasons import REASONS, ReasonKind

_HEAD = """\
# Reasons

Why a call ran eagerly. `smelt.report.inspect.reasons(compiled)` lists them for one compiled callable; with
`fullgraph=True` the same reason is raised as `smelt.errors.Unsupported` (its `.reason`). A reason also has a `detail`,
the user's `line` and the `stack` of user lines that led there. Ids are stable. This page is printed from
`smelt/reasons.py` by `python -m smelt.report.reasons`; a test compares the two.

| id | what happened | what to do |
| --- | --- | --- |
"""


def markdown() -> str:
    """The page: one row for each kind of reason, in the order of `smelt/reasons.py`."""
    return _HEAD + "".join(map(_row, REASONS.values()))


def _row(kind: ReasonKind) -> str:
    cells = (f"`{kind.id}`", kind.summary, kind.hint)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
