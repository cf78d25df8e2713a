"""One-hot sums: where(position == target, value, 0) over the positions of a row.

The element at the target of a cross entropy is such a sum. A program that has the whole row needs no pass for it: the
sum is the value at that position, computed once, and 0 if the target is not a position of the row. (Sums of one number
and zeros are exact; a sum loses only the sign of a negative zero, which this preserves.)
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.loops.kernel_ir import ReduceStage, Reduction, Value, walk
from smelt.shapes.expr import Size, Sym, free_syms


@dataclass(frozen=True)
class Selected:
    """The reduction of `value` at loop `sym` = `target`, a number of int64, if that is in [0, size)."""

    sym: Sym
    size: Size
    target: Value
    value: Value


def selected(r: Reduction, stage: ReduceStage) -> Selected | None:
    """The selected value of the reduction; None if it is another sum."""
    if (
        r.kind != "sum"
        or r.value.op != "where"
        or len(stage.loops) != 1
        or not r.value.dtype.is_floating_point
    ):
        return None
    condition, value, other = r.value.args
    (loop,) = stage.loops
    if condition.op != "eq" or other.op != "const" or other.args[0] != 0:
        return None
    for position, target in (condition.args, condition.args[::-1]):
        if position.op == "index" and position.args[0] == loop.sym and not _varies(target, loop.sym):
            return Selected(loop.sym, loop.size, target, value)
    return None


def _varies(value: Value, sym: Sym) -> bool:
    indices = (v.args[1] if v.op == "load" else v.args[0] for v in walk([value]) if v.op in ("load", "index"))
    return any(sym in free_syms(e) for e in indices)
