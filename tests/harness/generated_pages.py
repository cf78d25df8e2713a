"""Pages that are printed from tables of smelt: `python -m tests.harness.generated_pages` writes them.

docs/graph-breaks.md has the kinds of reasons, docs/operators.md how smelt treats each ATen operator.
"""

from __future__ import annotations

import textwrap
from itertools import groupby
from pathlib import Path

import torch

from smelt.cli.operator_listing import FATES, fates
from smelt.ops.registry import Operator, row
from smelt.reasons import REASONS, ReasonKind
from smelt.torch_private import OpOverload

DOCS = Path(__file__).parents[2] / "docs"
_NEED_NO_ROW = ("composite", "rewritten")  # the operators that these become may have rows

_REASONS = """\
# Graph breaks, and calls that run eagerly

Where smelt cannot capture an instruction, the graph breaks: smelt compiles the code before and after it, and Python runs
the instruction. If a break is impossible there (inside a function that native code calls), the nearest call that can run
eagerly is the break. If there is none, the whole call runs eagerly. Results are eager's in each case.
[Graph breaks by example](breaks-by-example.md) shows causes and fixes.

`smelt.report.inspect.reasons(compiled)` lists the reasons of a compiled callable. Each has a `kind` (a row below; ids are
stable), a `detail` that names the function or object, the user's `line`, and the `stack` of user lines that led there. With
`fullgraph=True` the first one is raised as `smelt.errors.Unsupported` (its `.reason`).

`python -m tests.harness.generated_pages` writes this page from `smelt/reasons.py`.

| id | what happened | for example | what to do |
| --- | --- | --- | --- |
"""
_OPERATORS = f"""# What becomes of each ATen operator

The registry (`smelt/ops/registry.py`) has rows for some operators that compute with tensors. The schema and torch's tags
decide for the others, listed here for torch {torch.__version__.split("+")[0]}; `out=` overloads are left out.
`smelt ops NAME` prints the treatment of any operator. `python -m tests.harness.generated_pages` writes this page.
"""


def graph_breaks() -> str:
    """docs/graph-breaks.md: one row for each kind of reason, in the order of `smelt/reasons.py`."""
    return _REASONS + "".join(map(_row, REASONS.values()))


def _row(kind: ReasonKind) -> str:
    example = f"`{kind.example}`" if kind.example else ""
    cells = (f"`{kind.id}`", kind.summary, example, kind.hint)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def operators() -> str:
    """docs/operators.md: the overloads of each fate, and those that have no row."""
    found = fates()
    parts = [_OPERATORS]
    for name, what in FATES.items():
        ops = [op for op, f in found.items() if f == name]
        rowless = [op for op in ops if row(op) == Operator()]
        listed = "" if name in _NEED_NO_ROW or not rowless else f"\n\n{_names(rowless)}"
        parts.append(f"## {name}: {what}\n\n{len(ops)} overloads, {len(rowless)} without a row.{listed}\n")
    return "\n".join(parts)


def _names(ops: list[OpOverload]) -> str:
    """The names of `ops`, with the overloads of one operator in braces."""
    by_base = groupby(sorted(str(op).split(".")[1:] for op in ops), lambda parts: parts[0])
    names = (f"`{base}.{{{','.join(overload for _, overload in of)}}}`" for base, of in by_base)
    return "\n".join(textwrap.wrap(", ".join(names).replace(".{default}", ""), 120))


PAGES = {"graph-breaks.md": graph_breaks, "operators.md": operators}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
