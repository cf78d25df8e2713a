"""Reductions that end before their loop does: a chunk of a longer one, of which the last may be shorter.

`for i < n: sum(where(n*o + i < end, x[...], 0))` is `for i < min(n, end - n*o): sum(x[...])`: only the last vector has
a mask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from smelt.codegen.llvm.llvm_types import TYPES
from smelt.codegen.llvm.reduction_codegen import neutral
from smelt.loops.kernel_ir import Loop, ReduceStage, Reduction, Value
from smelt.shapes.expr import Size, Sym, affine, bounds, free_syms


@dataclass(frozen=True)
class Truncated:
    """`stage` has `count` points: `left`, but at least 0 and at most the original's `most`."""

    stage: ReduceStage
    count: Sym
    left: Size
    most: Size


def truncated(stage: ReduceStage) -> Truncated | None:
    """`stage` without the condition that ends it; None if it has none."""
    if len(stage.loops) != 1 or stage.stores:
        return None
    (loop,) = stage.loops
    condition, *others = {_condition(r) for r in stage.reductions}
    if condition is None or others or (left := _left(condition, loop)) is None:
        return None
    count = Sym(f"{loop.sym.name}_end", 0, bounds(loop.size)[1], likely=loop.sym.likely)
    without = _Assuming(condition)
    reductions = tuple(Reduction(r.name, r.kind, without(r.value.args[1])) for r in stage.reductions)
    rewritten = replace(stage, loops=(Loop(loop.sym, count),), reductions=reductions)
    return Truncated(rewritten, count, left, loop.size)


def _condition(r: Reduction) -> Value | None:
    """The condition outside of which the reduction adds its neutral element."""
    if r.value.op != "where" or r.kind in ("argmax", "argmin"):
        return None
    condition, _, otherwise = r.value.args
    changes = otherwise.op != "const" or otherwise.args[0] != neutral(r.kind, TYPES[r.value.dtype])
    return None if changes else condition


def _left(condition: Value, loop: Loop) -> Size | None:
    """The number of points of `loop` before `condition` becomes false; None if it is not such a bound."""
    if condition.op != "lt" or any(v.op not in ("index", "const") for v in condition.args):
        return None
    at, end = (v.args[0] for v in condition.args)
    line = affine(at, loop.sym)
    if line is None or line[0] != 1 or loop.sym in free_syms(end):
        return None
    return end - line[1]


class _Assuming:
    """Simplifies values under the assumption that a condition holds."""

    def __init__(self, condition: Value) -> None:
        self._done: dict[Value, Value] = {}
        self._condition = condition

    def __call__(self, v: Value) -> Value:
        found = self._done.get(v)
        if found is None:
            found = self._done[v] = self._rewritten(v)
        return found

    def _rewritten(self, v: Value) -> Value:
        if v.op == "where" and v.args[0] is self._condition:
            return self(v.args[1])
        if v.op == "load" and v.args[2] is self._condition:
            return Value("load", (*v.args[:2], None), v.dtype)
        return Value(v.op, tuple([self(a) if isinstance(a, Value) else a for a in v.args]), v.dtype)
