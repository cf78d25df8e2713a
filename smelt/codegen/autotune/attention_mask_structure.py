"""Masks that depend on indices alone: keys whose scores are minus infinity for a query."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from smelt.codegen.llvm.gemm.epilogue import COL, ROW
from smelt.loops.kernel_ir import Value
from smelt.shapes.expr import Size, affine


def key_bound(score: Value) -> int | None:
    """The least known n for which `score` is minus infinity at each COL above ROW + n; None if there is none."""
    if score.op != "where":
        return None
    condition, a, b = score.args
    if _hides(b):
        return _least(_bound(condition, True), key_bound(a))
    return _least(_bound(condition, False), key_bound(b)) if _hides(a) else None


def _hides(value: Value) -> bool:
    return value.op == "const" and value.args[0] == -math.inf


def _bound(condition: Value, holds: bool) -> int | None:
    """The least n for which COL is at most ROW + n where `condition` is `holds`."""
    return _BOUNDS[condition.op](condition, holds) if condition.op in _BOUNDS else None


def _least(a: int | None, b: int | None) -> int | None:
    """The bound if both conditions hold."""
    return min((n for n in (a, b) if n is not None), default=None)


def _most(a: int | None, b: int | None) -> int | None:
    """The bound if one of the conditions holds."""
    return None if a is None or b is None else max(a, b)


def _of_two(condition: Value, holds: bool) -> int | None:
    """The bound of a conjunction or disjunction: both operands are `holds`, or one of them is."""
    if condition.dtype is not torch.bool or any(x.dtype is not torch.bool for x in condition.args):
        return None
    a, b = (_bound(x, holds) for x in condition.args)
    return _least(a, b) if holds is condition.op.endswith("_and") else _most(a, b)


def _of_not(condition: Value, holds: bool) -> int | None:
    (x,) = condition.args
    return _bound(x, not holds) if x.dtype is torch.bool else None


def _of_chosen(condition: Value, holds: bool) -> int | None:
    """The bound of a choice between numbers: `True if c else False`."""
    c, a, b = condition.args
    if a.op != "const" or b.op != "const" or bool(a.args[0]) == bool(b.args[0]):
        return None
    return _bound(c, holds == bool(a.args[0]))


def _of_order(condition: Value, holds: bool) -> int | None:
    """The bound of a comparison of indices, which says that a - b is at least, or at most, a number."""
    sides = [_index_expression(x) for x in condition.args]
    if any(side is None for side in sides):
        return None
    a, b = sides
    op = condition.op if holds else _OTHERWISE[condition.op]
    larger, smaller = (a, b) if op in ("ge", "gt") else (b, a)
    assert larger is not None and smaller is not None
    return _distance(larger - smaller if op in ("ge", "le") else larger - smaller - 1)


def _distance(e: Size) -> int | None:
    """The n of ROW + n - COL, which is at least 0."""
    of_row = affine(e, ROW)
    of_column = affine(of_row[1], COL) if of_row is not None and of_row[0] == 1 else None
    if of_column is None or of_column[0] != -1 or not isinstance(of_column[1], int):
        return None
    return of_column[1]


def _index_expression(value: Value) -> Size | None:
    """A value computed from indices (index expressions do not wrap around)."""
    if value.op not in ("index", "const") or value.dtype is not torch.int64:
        return None
    e: Size = value.args[0]
    return e


_OTHERWISE = dict(ge="lt", lt="ge", gt="le", le="gt")
_BOUNDS: dict[str, Callable[[Value, bool], int | None]] = dict(
    logical_and=_of_two, bitwise_and=_of_two, logical_or=_of_two, bitwise_or=_of_two, logical_not=_of_not,
    bitwise_not=_of_not, where=_of_chosen, ge=_of_order, gt=_of_order, le=_of_order, lt=_of_order,
)  # fmt: skip
