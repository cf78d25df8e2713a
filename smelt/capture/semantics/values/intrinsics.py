"""What the instructions CALL_INTRINSIC_1 and CALL_INTRINSIC_2 of CPython 3.12 do, by number.

Type parameters and `type` statements are made by the interpreter itself: their bounds and values are evaluated lazily, in
the scope they were written in, which no public constructor can do.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable

from smelt._native import isinstance
from smelt.capture.base.bytecode import PY313


def _stop_iteration_error(error: object) -> object:
    if isinstance(error, StopIteration):
        changed = RuntimeError("generator raised StopIteration")
        changed.__cause__ = changed.__context__ = error
        return changed
    return error


def _operand(a: object) -> object:
    return a


def _operands(a: object, b: object) -> object:
    return a, b


def _native(number: int, arity: int) -> Callable[..., object]:
    """(globals of the frame, operands) -> what the interpreter's own intrinsic makes of them."""
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
PREP_RERAISE_STAR = 1  # of CALL_INTRINSIC_2: 3.11 has an instruction for it
BINARY: dict[int, Callable[..., object]] = _table(
    2, range(2, 6 if PY313 else 5)
)  # a bound and a constrained TypeVar; __type_params__; the default of a type parameter
