"""The operations of expressions: what Python computes for each, and how Python source writes it.

Each is a C function on exact ints and floats, so an evaluation runs no user code.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Number = int | float


class Operation(NamedTuple):
    """A function and its source text. `partial`: for other values of the same types it may raise or return another type.
    `steps`: C functions to apply in order, where no single one computes the operation."""

    function: Callable[..., Any]
    text: str
    partial: bool = False
    steps: tuple[Any, ...] = ()


def _calls(names: str, module: Any, partial: bool) -> dict[str, Operation]:
    prefix = "" if module is builtins else f"{module.__name__}."
    return {n: Operation(getattr(module, n), f"{prefix}{n}({{}})", partial) for n in names.split()}


def float32(number: Number) -> float:
    """The number rounded to a 32-bit float."""
    return float(np.float32(number))


OPERATIONS: dict[str, Operation] = {
    "float32": Operation(float32, "float(float32({}))", steps=(np.float32, float)),
    "add": Operation(operator.add, "({} + {})"),
    "sub": Operation(operator.sub, "({} - {})"),
    "mul": Operation(operator.mul, "({} * {})"),
    "truediv": Operation(operator.truediv, "({} / {})", partial=True),
    "floordiv": Operation(operator.floordiv, "({} // {})", partial=True),
    "mod": Operation(operator.mod, "({} % {})", partial=True),
    "pow": Operation(operator.pow, "({} ** {})", partial=True),
    "neg": Operation(operator.neg, "(-{})"),
    "lt": Operation(operator.lt, "({} < {})"),
    "le": Operation(operator.le, "({} <= {})"),
    "gt": Operation(operator.gt, "({} > {})"),
    "ge": Operation(operator.ge, "({} >= {})"),
    "eq": Operation(operator.eq, "({} == {})"),
    "ne": Operation(operator.ne, "({} != {})"),
    "min": Operation(min, "min({}, {})", partial=True),
    "max": Operation(max, "max({}, {})", partial=True),
    "round_to": Operation(round, "round({}, {})", partial=True),
    **_calls("abs", builtins, False),
    **_calls("int float round", builtins, True),
    **_calls("sqrt exp expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
             "floor ceil trunc erf erfc fabs isnan isinf isfinite degrees radians", math, True),
    "pow_float": Operation(math.pow, "math.pow({}, {})", partial=True),
    "fmod": Operation(math.fmod, "math.fmod({}, {})", partial=True),
    "atan2": Operation(math.atan2, "math.atan2({}, {})"),
    "copysign": Operation(math.copysign, "math.copysign({}, {})", partial=True),
    "hypot": Operation(math.hypot, "math.hypot({}, {})", partial=True),
    "log_base": Operation(math.log, "math.log({}, {})", partial=True),
}  # fmt: skip

# The comparison that is false where one is true.
OPPOSITES = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
