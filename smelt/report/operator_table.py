"""Every ATen operator of the installed torch and how smelt treats a call of it: the source of docs/operators.md.

python -m smelt.report.operator_table > docs/operators.md
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import torch

from smelt.graph.operator_effects import effects, is_composite
from smelt.ops.functional_variants import pure_of
from smelt.ops.registry import Operator, row
from smelt.torch_private import OpOverload, all_operator_names

HEAD = f"""# What becomes of each ATen operator

The registry (`smelt/ops/registry.py`) has rows for some operators that compute with tensors. The schema and torch's tags
decide for the others, listed here for torch {torch.__version__.split("+")[0]}; `out=` overloads are left out.
`smelt ops NAME` prints the treatment of any operator. `python -m smelt.report.operator_table` writes this page.
"""

# In order: the first that applies to an overload is its fate.
FATES = {
    "composite": "autograd decomposes it before anything is recorded",
    "lowered": "loops",
    "ruled": "a rule of its own records it (`smelt/ops/trace_rules.py`)",
    "rewritten": "it writes an argument: recorded as its functional variant",
    "writes": "it writes an argument and has no functional variant: the graph breaks",
    "values": "its result's size, or a number, depends on data: a constant if that is known, else a graph break",
    "random": "an extern call in program order, never run twice",
    "view": "an extern call whose result aliases its argument; nothing fuses through it",
    "out": "an extern call that writes into planned memory",
    "called": "an extern call that allocates its result",
}
NEED_NO_ROW = ("composite", "rewritten")  # the operators that these become may have rows


def operators() -> Iterator[OpOverload]:
    """The overloads of ATen operators that compute with tensors, by name, without `out=` forms."""
    for name in sorted({n for n in all_operator_names() if n.startswith("aten::")}):
        base, _, overload = name.removeprefix("aten::").partition(".")
        packet = getattr(torch.ops.aten, base, None)
        op = getattr(packet, overload or "default", None)
        if isinstance(op, OpOverload) and _computes(op):
            yield op


def _computes(op: Any) -> bool:
    types = [str(a.type) for a in (*op._schema.arguments, *op._schema.returns)]
    return any("Tensor" in t for t in types) and not any(a.is_out for a in op._schema.arguments)


def fates() -> dict[OpOverload, str]:
    """The treatment of each operator; a key of `FATES`."""
    return {op: fate(op) for op in operators()}


def fate(op: OpOverload) -> str:
    """The treatment of a call of `op`; a key of `FATES`."""
    does = effects(op)
    answers: dict[str, bool] = {
        "lowered": row(op).lowering is not None,
        "composite": is_composite(op),
        "ruled": row(op).trace_rule is not None,
        "rewritten": bool(does.writes) and pure_of(op) is not None,
        "writes": bool(does.writes),
        "values": does.data_dependent or does.dynamic_shape,
        "random": does.random,
        "view": does.view,
        "out": row(op).out is not None,
    }
    return next((name for name in FATES if answers.get(name)), "called")


def page() -> str:
    """The text of docs/operators.md."""
    found = fates()
    parts = [HEAD]
    for name, what in FATES.items():
        ops = [op for op, f in found.items() if f == name]
        rowless = [op for op in ops if row(op) == Operator()]
        listed = "" if name in NEED_NO_ROW or not rowless else f"\n\n{_names(rowless)}"
        parts.append(f"## {name}: {what}\n\n{len(ops)} overloads, {len(rowless)} without a row.{listed}\n")
    return "\n".join(parts)


def _names(ops: list[OpOverload]) -> str:
    """The names of `ops`, with the overloads of one operator in braces."""
    by_base = groupby(sorted(str(op).split(".")[1:] for op in ops), lambda parts: parts[0])
    names = (f"`{base}.{{{','.join(overload for _, overload in of)}}}`" for base, of in by_base)
    return "\n".join(textwrap.wrap(", ".join(names).replace(".{default}", ""), 120))


def short(op: OpOverload) -> str:
    """The name without its redundant parts: `sin`, `add.Tensor`."""
    return str(op).removeprefix("aten.").removesuffix(".default")


if __name__ == "__main__":
    sys.stdout.write(page())
