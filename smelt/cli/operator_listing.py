"""The text of `smelt ops`: the primitives of loops, and the treatment of each ATen operator."""

from __future__ import annotations

import difflib
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import get_args

from smelt.loops.kernel_ir import POINTWISE, ReductionKind
from smelt.ops.registry import REGISTRY
from smelt.report.operator_table import FATES, fates, short


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
