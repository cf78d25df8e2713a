"""Every ATen operator of the installed torch and how smelt treats a call of it: the source of docs/operators.md.

python -m smelt.report.operator_table > docs/operators.md
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import torch

from smelt.graph.operator_effects import effects, is_composite
from smelt.ops.functional_variants import pure_of
from smelt.ops.registry import Operator, row
from smelt.torch_private import OpOverload, all_operator_names

HEAD = f"""# What becomes of each ATen operator

Written by `python -m smelt.report.operator_table`, for torch {torch.__version__.split("+")[0]}; `tests/ops/test_registry.py`
compares. Operators that compute with tensors, without `out=` overloads. A row of the registry (`smelt/ops/registry.py`) says
what smelt knows of one beyond its schema; the overloads listed here have none, and their schema and torch's tags decide.
"""

# In order: the first that applies to an overload is its fate.
FATES = {
    "composite": "taken apart by autograd before anything is recorded",
    "lowered": "loops",
    "ruled": "treated by a rule of its own while it is recorded (`smelt/ops/trace_rules.py`)",
    "rewritten": "writes an argument: recorded as the operator that gives the new value",
    "writes": "writes an argument and has no pure counterpart: refused, the graph breaks there",
    "values": "its result's size, or a number, is in memory: a constant if that is known, else a graph break",
    "random": "called in the order of the program, never run twice",
    "view": "no work, but not fused through: called, and what it gives shares memory with its argument",
    "out": "called, writing into planned memory",
    "called": "called; it allocates its result",
}


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
        without = [op for op in ops if row(op) == Operator()]
        parts.append(f"## {name}: {what}\n\n{len(ops)} overloads. Without a row: {_text(without)}\n")
    return "\n".join(parts)


def _text(ops: list[OpOverload]) -> str:
    if not ops:
        return "none."
    names = sorted(map(short, ops))
    return f"{len(names)}.\n\n" + "\n".join(textwrap.wrap(", ".join(f"`{n}`" for n in names), 120))


def short(op: OpOverload) -> str:
    """The name without its redundant parts: `sin`, `add.Tensor`."""
    return str(op).removeprefix("aten.").removesuffix(".default")


if __name__ == "__main__":
    sys.stdout.write(page())
