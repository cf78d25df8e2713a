"""C functions of symbolic numbers whose result is an expression."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from smelt.shapes.number_operations import OPERATIONS
from smelt.tracing.symbolic.sym_numbers import NUMBERS, rounded, specialize
from smelt.tracing.symbolic.symbolic_numbers import Symbols


def _symbols(args: Any) -> Symbols:
    symbols: Symbols = next(a for a in args if type(a) in NUMBERS).node.symbols
    return symbols


def _function(op: str) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        symbols = _symbols(args)
        return symbols.call(op, *map(symbols.symbol, args))

    return function


def _power(*args: Any) -> Any:
    return operator.pow(*args) if len(args) == 2 else pow(*map(specialize, args))


def _divmod(a: Any, b: Any) -> Any:
    return a // b, a % b


def _extreme(op: str) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        best = args[0]
        for value in args[1:]:
            symbols = _symbols((best, value)) if {type(best), type(value)} & NUMBERS else None
            if symbols is None:
                best = OPERATIONS[op].function(best, value)
            else:
                best = symbols.call(op, symbols.symbol(best), symbols.symbol(value))
        return best

    return function


# By C function: its implementation on symbolic numbers, which returns expressions where it can.
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    int: _function("int"), float: _function("float"), abs: _function("abs"), round: rounded,
    pow: _power, divmod: _divmod, min: _extreme("min"), max: _extreme("max"),
    math.pow: _function("pow_float"),
    **{getattr(math, n): _function(n) for n in (
        "sqrt", "exp", "expm1", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
        "tanh", "asinh", "acosh", "atanh", "floor", "ceil", "trunc", "erf", "erfc", "fabs", "isnan", "isinf", "isfinite",
        "degrees", "radians", "fmod", "atan2", "copysign",
    )},
    math.hypot: lambda *a: _function("hypot")(*a) if len(a) == 2 else math.hypot(*map(specialize, a)),
    math.log: lambda *a: _function("log" if len(a) == 1 else "log_base")(*a),
    math.isclose: lambda *a: math.isclose(*map(specialize, a)),
}  # fmt: skip
_OPERANDS = frozenset({int, float, bool})


def apply(fn: Any, args: Any, kwargs: Any) -> Any:
    """`fn` on arguments some of which are symbolic numbers: an expression if there is one, else NotImplemented."""
    function = FUNCTIONS.get(fn) if not kwargs else None
    if function is None or not all(type(a) in NUMBERS or type(a) in _OPERANDS for a in args):
        return NotImplemented
    return function(*args)
