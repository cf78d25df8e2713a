"""Handlers of CPython 3.12's CALL_INTRINSIC_1 and CALL_INTRINSIC_2, by number.

The interpreter itself creates type parameters and `type` aliases: their bounds and values are evaluated lazily in the scope
where they are written, which no public constructor supports.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable

from smelt._native import isinstance
from smelt.capture.base.bytecode import PY313


def _stop_iteration_error(error: object) -> object:
    if isinstance(error, StopIteration):
        replacement = RuntimeError("generator raised StopIteration")
        replacement.__cause__ = replacement.__context__ = error
        return replacement
    return error


def _operand(a: object) -> object:
    return a


def _operands(a: object, b: object) -> object:
    return a, b


def _native(number: int, arity: int) -> Callable[..., object]:
    """A function (globals of the frame, operands) that runs the interpreter's intrinsic."""
    instructions = [("RESUME", 0), *(("LOAD_FAST", i) for i in range(arity))]
    instructions += [(f"CALL_INTRINSIC_{arity}", number), ("RETURN_VALUE", 0)]
    raw = bytes(part for name, arg in instructions for part in (dis.opmap[name], arg))
    code = (_operand, _operands)[arity - 1].__code__.replace(co_code=raw, co_stacksize=arity)
    return lambda scope, *operands: types.FunctionType(code, scope)(*operands)


def _table(arity: int, numbers: range) -> dict[int, Callable[..., object]]:
    return {n: _native(n, arity) for n in numbers} if f"CALL_INTRINSIC_{arity}" in dis.opmap else {}


# handler(globals of the frame, operands)
UNARY: dict[int, Callable[..., object]] = {
    3: lambda scope, error: _stop_iteration_error(error),
    **_table(1, range(7, 12)),  # a TypeVar, ParamSpec, TypeVarTuple; Generic[...]; a type alias
}
PREP_RERAISE_STAR = 1  # in CALL_INTRINSIC_2; an instruction of its own in 3.11
# a bound and a constrained TypeVar; __type_params__; the default of a type parameter
BINARY: dict[int, Callable[..., object]] = _table(2, range(2, 6 if PY313 else 5))
