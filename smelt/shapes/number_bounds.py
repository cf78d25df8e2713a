"""Interval analysis of number expressions.

Every operation here is monotone in each operand over the operands' ranges, and so is floating-point rounding. The extremes
of the result are therefore among its values at the corners.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from smelt.shapes.expr import Expression, Size
from smelt.shapes.number_operations import OPERATIONS, Number

# The least and the largest number, which share the type of all numbers between them; None: not known.
Bounds = tuple[Number, Number] | None

_COMPARED: dict[str, Callable[[tuple[Number, Number], tuple[Number, Number]], bool | None]] = {
    "lt": lambda a, b: _decided(a[1] < b[0], a[0] >= b[1]),
    "le": lambda a, b: _decided(a[1] <= b[0], a[0] > b[1]),
    "gt": lambda a, b: _decided(a[0] > b[1], a[1] <= b[0]),
    "ge": lambda a, b: _decided(a[0] >= b[1], a[1] < b[0]),
    "eq": lambda a, b: _decided(a[0] == a[1] == b[0] == b[1], a[1] < b[0] or b[1] < a[0]),
    "ne": lambda a, b: _decided(a[1] < b[0] or b[1] < a[0], a[0] == a[1] == b[0] == b[1]),
}
_MONOTONE = frozenset(
    ("add", "sub", "mul", "neg", "int", "float", "float32", "round", "floor", "ceil", "trunc", "min", "max")
)


def _decided(always: bool, never: bool) -> bool | None:
    return True if always else False if never else None


def always(expression: Expression, expected: object, leaves: Mapping[Any, Bounds]) -> bool:
    """Whether the expression is `expected` (True, False), or has exactly that type (int, float), for all values of its
    leaves within their bounds."""
    compare = _COMPARED.get(expression.op)
    if compare is None:
        found = bounds(expression, leaves)
        return found is not None and type(found[0]) is expected
    left, right = (bounds(a, leaves) for a in expression.args)
    return left is not None and right is not None and compare(left, right) is expected


def bounds(expression: Size | Expression, leaves: Mapping[Any, Bounds]) -> Bounds:
    """The range of the expression; None where it is not known, or where the expression may raise, be NaN, or have another
    type."""
    if isinstance(expression, int):
        return expression, expression
    if expression.op == "leaf":
        return leaves.get(expression.args[0])
    if expression.op == "const":
        return _found([expression.args[0]])
    operands = [bounds(a, leaves) for a in expression.args]
    known = [found for found in operands if found is not None]
    if len(known) != len(operands) or not _is_monotone(expression.op, known):
        return None
    compute = OPERATIONS[expression.op].function
    try:
        corners = [compute(*corner) for corner in itertools.product(*known)]
    except (ArithmeticError, ValueError):  # int(inf)
        return None
    if expression.op == "abs" and known[0][0] < 0 < known[0][1]:
        corners.append(type(corners[0])(0))
    return _found(corners)


def _is_monotone(op: str, operands: list[tuple[Number, Number]]) -> bool:
    if op == "truediv":
        low, high = operands[1]
        return (low > 0 or high < 0) and all(map(math.isfinite, (*operands[0], low, high)))
    return op in _MONOTONE or op == "abs"


def _found(values: list[Number]) -> Bounds:
    """The bounds of these values; None unless they are numbers of one type."""
    if len({type(v) for v in values}) != 1 or any(operator.ne(v, v) for v in values):
        return None
    return (min(values), max(values)) if type(values[0]) in (int, float) else None
