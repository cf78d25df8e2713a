"""Numbers of the program that 0-d tensors of the graph hold: the counters of loops.

After the loop such a number is a `NumberProxy`. Inside of it, where operators take it like an int or a float, it is symbolic
(`HeldNumber`). Python's arithmetic with it is an expression, which `tensor_of` computes in int64 and float64. The results
are Python's: floats are IEEE doubles, and `_bound` refuses ints that may exceed 64 bits, or 53 where they become floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import unsupported
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.vm.vm import VM
from smelt.reasons import DATA_DEPENDENT
from smelt.shapes.expr import Expression, Sym
from smelt.shapes.number_operations import Number
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.sym_nodes import Symbol
from smelt.tracing.symbolic.sym_numbers import NUMBERS, hint
from smelt.tracing.symbolic.unbacked_numbers import HeldNumber, held_leaves

DTYPES: dict[type, torch.dtype] = {int: torch.int64, float: torch.float64}
Held = Mapping[HeldNumber, FakeTensor]

# A counter starts below `_MOST_AT_FIRST` and moves by at most `MOST_ADDED` in a step, so in 2**39 steps, which take days, it
# stays below `_MOST`.
_MOST_AT_FIRST = 1 << 51
MOST_ADDED = 1 << 12
_MOST = 1 << 52
_MOST_EXACT = 1 << 53  # as a float


def _refuse(what: str) -> Exception:
    return unsupported(what, DATA_DEPENDENT)


def is_number(value: object) -> bool:
    """Whether a value is an int or a float that a tensor can hold; bools are not."""
    kind = value.kind if isinstance(value, NumberProxy) else type(value)
    return kind in DTYPES or kind in NUMBERS


def kind_of(value: object) -> type:
    """int or float, of a number."""
    return value.kind if isinstance(value, NumberProxy) else type(hint(value))


def held_number(vm: VM, name: str, value: object) -> HeldNumber:
    """A number with the name of a variable whose first value is `value`."""
    first = value if type(value) in DTYPES else -math.inf
    known = value.example() if isinstance(value, NumberProxy) else hint(value)
    what = f"a number that a loop computes, `{name}`"
    return HeldNumber(Sym(name), what, cast(int, known), first=cast(float, first))


def symbolic(vm: VM, held: HeldNumber) -> object:
    """The symbolic number for it."""
    return vm.env.numbers.symbols().leaf(held, held.hint)


def final_number(held: HeldNumber, tensor: FakeTensor) -> NumberProxy:
    """The number that `tensor` holds after a loop."""
    return NumberProxy(tensor, _MOST if type(held.hint) is int else 0)


def _expression(number: object) -> Expression:
    """The expression of a symbolic number."""
    return cast(Symbol, number.node).expression  # type: ignore[attr-defined]


def leaf_of(vm: VM, held: HeldNumber) -> Expression:
    """The expression that is the number itself."""
    return _expression(symbolic(vm, held))


def is_held(value: object) -> bool:
    """Whether a number is computed from one that a tensor holds."""
    return type(value) in NUMBERS and bool(held_leaves(_expression(value)))


def first_tensor(vm: VM, value: object, name: str) -> FakeTensor:
    """A 0-d tensor of the number `value`, with which the variable `name` enters a loop."""
    most = value.most if isinstance(value, NumberProxy) else abs(cast(float, value))
    if kind_of(value) is int and not most < _MOST_AT_FIRST:  # guarded for a symbolic number
        raise _refuse(f"`{name}` is a large int")
    return tensor_of(vm, value)


def tensor_of(vm: VM, value: object, held: Held | None = None) -> FakeTensor:
    """A 0-d tensor of a number, of int64 or float64. `held`: the tensors of numbers, other than their carriers. Raises
    Unsupported where it may differ from what Python computes."""
    if isinstance(value, NumberProxy):
        return cast(FakeTensor, value.tensor)
    if is_held(value):
        expression = _expression(value)
        return _computed(vm, expression, {} if held is None else held)
    full = vm.call_native(torch.full, ((), value), {"dtype": DTYPES[kind_of(value)]})
    return cast(FakeTensor, full)


def _computed(vm: VM, expression: Expression, held: Held) -> FakeTensor:
    if expression.op == "const":
        return tensor_of(vm, expression.args[0])
    if expression.op == "leaf":
        (key,) = expression.args
        if not isinstance(key, HeldNumber):
            raise _refuse("a number that a loop computes is combined with one that changes from call to call")
        return held.get(key, cast(FakeTensor, key.carrier))
    compute = _OPERATIONS.get(expression.op)
    if compute is None:
        raise _refuse(f"{expression} is not computed in tensors")
    _bound(expression)
    operands = [_computed(vm, a, held) for a in expression.args]
    divisor = expression.args[-1]
    if expression.op in ("truediv", "floordiv", "mod") and not (_least(divisor) > 0 or _is_nonzero(divisor)):
        raise _refuse(f"{expression} may divide by zero")
    if expression.op in ("floordiv", "mod") and _has_float(operands):
        raise _refuse(f"{expression} is not computed in tensors")
    if expression.op in ("truediv", "float") or _has_float(operands):
        if any(a.dtype is torch.int64 and _bound(e) > _MOST_EXACT for a, e in zip(operands, expression.args)):
            raise _refuse(f"{expression} may exceed 53 bits")
        operands = [_as_float(vm, a) for a in operands]
    return cast(FakeTensor, compute(vm, *operands))


def _is_nonzero(expression: Expression) -> bool:
    return expression.op == "const" and bool(expression.args[0])


def _least(expression: Expression) -> Number:
    """A lower bound of a number."""
    if expression.op == "const":
        return cast(Number, expression.args[0])
    if expression.op == "leaf":
        return cast(Number, getattr(expression.args[0], "least", -math.inf))
    if expression.op == "abs":
        return 0
    bounds = [_least(a) for a in expression.args]
    if expression.op in ("add", "float"):
        return sum(bounds)
    return bounds[0] * bounds[1] if expression.op == "mul" and min(bounds) >= 0 else -math.inf


def set_least(held: HeldNumber, values: Sequence[object]) -> bool:
    """Set the lower bound of a number: its first value for an int that no step decreases, else minus infinity. Return
    whether the bound changed. `values`: the values of the number after a step."""
    before = held.least
    plain = [v for v in values if not is_held(v)]
    rises = type(held.hint) is int and not plain and all(_rise(_expression(v), held) >= 0 for v in values)
    held.least = held.first if rises else -math.inf
    return held.least != before


def _rise(expression: Expression, held: HeldNumber) -> Number:
    """The constant that the expression adds to the number; minus infinity for another expression."""
    if expression.op == "leaf":
        return 0 if expression.args[0] is held else -math.inf
    if expression.op == "add":
        return sum(a.args[0] if a.op == "const" else _rise(a, held) for a in expression.args)
    return -math.inf


def _has_float(tensors: list[FakeTensor]) -> bool:
    return any(t.dtype is torch.float64 for t in tensors)


def _as_float(vm: VM, tensor: FakeTensor) -> FakeTensor:
    return cast(FakeTensor, vm.call_native(torch.Tensor.double, (tensor,)))


def _native(fn: Callable[..., object], **options: object) -> Callable[..., object]:
    return lambda vm, *operands: vm.call_native(fn, operands, options)


_OPERATIONS: dict[str, Callable[..., object]] = {
    "add": _native(torch.add), "sub": _native(torch.sub), "mul": _native(torch.mul), "truediv": _native(torch.div),
    "floordiv": _native(torch.div, rounding_mode="floor"), "mod": _native(torch.remainder), "neg": _native(torch.neg),
    "abs": _native(torch.abs), "float": lambda vm, value: value,
}  # fmt: skip


def _bound(expression: Expression) -> Number:
    """The largest absolute value of an int. Raises Unsupported for one that may exceed 64 bits."""
    if expression.op == "const":
        return abs(expression.args[0]) if type(expression.args[0]) is int else 0
    if expression.op == "leaf":
        return _MOST
    bounds = [_bound(a) for a in expression.args]
    if expression.op == "mul":
        most = bounds[0] * bounds[1]
    else:
        most = sum(bounds) if expression.op in ("add", "sub") else bounds[0]
    if most >= 1 << 63:
        raise _refuse(f"{expression} may exceed 64 bits")
    return most


def check_next(value: object, held: HeldNumber, name: str) -> None:
    """Raise Unsupported for a value that a step gives to the variable if its type changes, or if an int grows too fast."""
    if kind_of(value) is not kind_of(held.hint):
        raise _refuse(f"the loop changes the type of `{name}`")
    added = _added(_expression(value)) if is_held(value) else 0
    if kind_of(value) is int and (added > MOST_ADDED or _is_large(value)):
        raise _refuse(f"the int `{name}` may exceed 64 bits")


def _is_large(value: object) -> bool:
    return isinstance(value, NumberProxy) and value.most >= _MOST_AT_FIRST


def _added(expression: Expression) -> Number:
    """How much `expression` adds to a counter; infinity for another expression."""
    if expression.op == "leaf":
        return 0
    if expression.op in ("add", "sub"):
        first, second = expression.args
        if expression.op == "add" and first.op == "const":
            first, second = second, first
        if second.op == "const":
            return _added(first) + abs(second.args[0])
    return float("inf")


def compared_tensors(vm: VM, a: object, b: object) -> tuple[FakeTensor, FakeTensor]:
    """0-d tensors of two numbers that are compared. Raises Unsupported where a comparison in float64 may differ from
    Python's, which is exact."""
    operands = []
    for value, other in ((a, b), (b, a)):
        tensor = tensor_of(vm, value)
        if kind_of(value) is int and kind_of(other) is float:
            if is_held(value) and _bound(_expression(value)) > _MOST_EXACT:
                raise _refuse("an int that may exceed 53 bits is compared with a float")
            tensor = _as_float(vm, tensor)
        operands.append(tensor)
    return operands[0], operands[1]
