"""Expressions over Python numbers that are known only when a compiled frame runs: counters, learning rates, steps.

An `Expression` is an immutable tree over *leaves* (where a number is found; opaque here) and constants. Its value is what
Python computes: every operation is a function of C on exact ints and floats, so evaluating one runs no user code. What
always holds: within one `Table` equal expressions are the same object, and an expression has at least one leaf.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Number = int | float


class Operation(NamedTuple):
    """What an operation computes and how it is written. `partial`: it may raise, or give another type, for other values
    of the same types. `steps`: functions of C that compute it one after the other, where it is not one itself."""

    function: Callable[..., Any]
    text: str
    partial: bool = False
    steps: tuple[Any, ...] = ()


def _calls(names: str, module: Any, partial: bool) -> dict[str, Operation]:
    prefix = "" if module is builtins else f"{module.__name__}."
    return {n: Operation(getattr(module, n), f"{prefix}{n}({{}})", partial) for n in names.split()}


def float32(number: Number) -> float:
    """The number as a float of 32 bits holds it."""
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


@dataclass(frozen=True, eq=False, slots=True)
class Expression:
    """`op` is a key of OPERATIONS and `args` are Expressions, or "leaf" with (key,), or "const" with (number,). `size`
    counts the operations, as often as they are written."""

    op: str
    args: tuple[Any, ...]
    size: int = 0

    def __str__(self) -> str:
        return text(self, str)


class Table:
    """Makes expressions, equal ones once."""

    def __init__(self) -> None:
        self._known: dict[Any, Expression] = {}

    def leaf(self, key: Any) -> Expression:
        """The number that is found at `key`; keys are told apart by identity."""
        return self._made(("leaf", id(key)), "leaf", (key,), 0)

    def const(self, number: Number) -> Expression:
        """A number that never changes; 1, 1.0 and True differ, and so do 0.0 and -0.0."""
        return self._made(("const", type(number), repr(number)), "const", (number,), 0)

    def call(self, op: str, *args: Expression) -> Expression:
        """The operation that is a key of OPERATIONS, on these operands."""
        return self._made((op, *map(id, args)), op, args, 1 + sum(a.size for a in args))

    def _made(self, key: Any, op: str, args: tuple[Any, ...], size: int) -> Expression:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Expression(op, args, size)
        return found


def leaves(expression: Expression) -> tuple[Any, ...]:
    """The keys of its leaves, each once, in order of first use."""
    return tuple(dict.fromkeys(_leaves(expression)))


def _leaves(expression: Expression) -> Iterator[Any]:
    if expression.op == "leaf":
        yield expression.args[0]
    elif expression.op != "const":
        for argument in expression.args:
            yield from _leaves(argument)


def evaluate(expression: Expression, read: Callable[[Any], Number]) -> Any:
    """Its value; `read` gives the number at a leaf. Raises what the arithmetic raises."""
    if expression.op == "leaf":
        return read(expression.args[0])
    if expression.op == "const":
        return expression.args[0]
    return OPERATIONS[expression.op].function(*(evaluate(a, read) for a in expression.args))


def text(expression: Expression, leaf: Callable[[Any], str]) -> str:
    """Python source (over `math`); `leaf` writes a leaf."""
    if expression.op == "leaf":
        return leaf(expression.args[0])
    if expression.op == "const":
        return number_text(expression.args[0])
    return OPERATIONS[expression.op].text.format(*(text(a, leaf) for a in expression.args))


def number_text(number: Number) -> str:
    """A literal; negative ones in parentheses, since `-1 ** x` is something else."""
    if type(number) is float and not math.isfinite(number):
        return "math.nan" if number != number else "math.inf" if number > 0 else "(-math.inf)"
    written = repr(number)
    return f"({written})" if written.startswith("-") else written


def postfix(expression: Expression, leaf: Callable[[Any], tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...]:
    """Postfix form for the native evaluator: what `leaf` gives, ("const", number), or a function and the number of its
    operands; behind them stands the key of the operation, if it is one function."""
    if expression.op == "leaf":
        return (leaf(expression.args[0]),)
    if expression.op == "const":
        return (("const", expression.args[0]),)
    steps = [step for a in expression.args for step in postfix(a, leaf)]
    operation = OPERATIONS[expression.op]
    if not operation.steps:
        return (*steps, (operation.function, len(expression.args), expression.op))
    first, *rest = operation.steps
    return (*steps, (first, len(expression.args)), *((function, 1) for function in rest))
