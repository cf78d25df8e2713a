"""The text of `smelt ops`: the primitives of loops, and how smelt treats each ATen operator of the installed torch."""

from __future__ import annotations

import difflib
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

import torch

from smelt.graph.operator_effects import effects, is_composite
from smelt.loops.kernel_ir import POINTWISE, ReductionKind
from smelt.ops.functional_variants import pure_of
from smelt.ops.registry import REGISTRY, row
from smelt.torch_private import OpOverload, all_operator_names

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


def operators() -> Iterator[OpOverload]:
    """The overloads of ATen operators that compute with tensors, by name, without `out=` overloads."""
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


def short(op: OpOverload) -> str:
    """The name without its redundant parts: `sin`, `add.Tensor`."""
    return str(op).removeprefix("aten.").removesuffix(".default")


def overview() -> str:
    """The primitive set, and the number of operators by treatment."""
    return "\n".join(_overview())


def _overview() -> Iterator[str]:
    yield f"Loops are made of {len(POINTWISE)} pointwise operations,"
    yield _wrapped(sorted(POINTWISE))
    yield "of loads, stores, constants, indices and casts, of reductions,"
    yield _wrapped(get_args(ReductionKind))
    yield "and of scans. What becomes of ATen's operators (`smelt ops NAME` for one):"
    counts = Counter(fates().values())
    for fate, what in FATES.items():
        yield f"{counts[fate]:>6}  {fate}: {what}"


def _wrapped(names: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    return textwrap.fill(", ".join(names), 100, initial_indent="  ", subsequent_indent="  ")


def about(name: str) -> str:
    """The treatment of one operator's overloads: `add`, `aten.add`, `aten::add.Tensor`. Raises LookupError for an
    unknown name, with the nearest."""
    asked = name.removeprefix("torch.ops.").removeprefix("aten").lstrip(".:")
    found = fates()
    rows = [op for op in found if asked in (short(op), f"{short(op)}.default", short(op).partition(".")[0])]
    if not rows:
        near = difflib.get_close_matches(asked, {short(op).partition(".")[0] for op in found}, 1)
        raise LookupError(f"no ATen operator {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return "\n".join(
        f"{short(op)}: {found[op]}: {FATES[found[op]]}"
        + (f" ({module.replace('.', '/')}.py)" if (module := REGISTRY.module(op)) else "")
        for op in rows
    )
