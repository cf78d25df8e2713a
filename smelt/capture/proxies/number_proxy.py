"""`NumberProxy`, the proxy of a Python number that a tensor of the graph holds: the result of `item()`, or a number that
differs by branch.

Arithmetic and comparisons of such numbers are recorded as operators on 0-d tensors of float64, int64 or bool, which compute
what Python computes. The graph checks that a divisor is not zero. Other operators that may raise, those that round
differently, and everything that needs the number itself raise Unreadable. The compiled frame calls `item()` where the number
leaves it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.proxies.text_proxy import unreadable
from smelt.tracing.symbolic.sym_numbers import NUMBERS, Int

MAX_EXACT = 1 << 53  # up to here, an integer is exact as a float
_FLOATS = (torch.float32, torch.float64)


class NumberProxy:
    """A number with the value of `tensor`, a 0-d fake of float64, int64 or bool that nothing writes. `most`: of an int, the
    largest absolute value; at most 2**53."""

    __slots__ = ("most", "tensor")

    def __init__(self, tensor: torch.Tensor, most: int = 0) -> None:
        self.tensor, self.most = tensor, most

    @property
    def kind(self) -> type:
        """The class of the number."""
        return _KINDS[self.tensor.dtype]

    def as_float(self) -> NumberProxy:
        """The float of the same value."""
        return self if self.kind is float else NumberProxy(self.tensor.to(torch.float64))

    def example(self) -> float:
        """A number of its class."""
        return self.kind(1)

    def condition(self) -> torch.Tensor:
        """Its truth value, as a tensor."""
        return self.tensor if self.kind is bool else self.tensor != 0

    def __neg__(self) -> object:
        return NumberProxy(-_not_bool(self, operator.neg), self.most)

    def __pos__(self) -> object:
        return NumberProxy(_not_bool(self, operator.pos), self.most)

    def __abs__(self) -> object:
        return NumberProxy(_not_bool(self, abs).abs(), self.most)

    def __getattr__(self, name: str) -> object:
        raise unreadable(f"float.{name} of a number that a tensor holds", self)


_KINDS: dict[torch.dtype, type] = {torch.bool: bool, torch.int64: int, torch.float64: float}


def _not_bool(value: NumberProxy, fn: Callable[..., object]) -> torch.Tensor:
    if value.kind is bool:
        raise unreadable(f"{fn.__name__}() of a bool that a tensor holds", value)
    return value.tensor


def _refused_method(name: str) -> Callable[..., object]:
    def refuse(self: NumberProxy, *args: object) -> object:
        raise unreadable(f"{name} of a number that a tensor holds", self)

    return refuse


for _name in (
    "bool", "str", "repr", "format", "hash", "int", "float", "complex", "index", "invert", "round", "trunc", "floor", "ceil",
    "copy", "deepcopy", "reduce_ex", "eq", "ne", "lt", "le", "gt", "ge", "add", "radd", "mul", "rmul",
):  # fmt: skip
    setattr(NumberProxy, f"__{_name}__", _refused_method(f"__{_name}__"))

_EQUALITY = (operator.eq, operator.ne)
_NEVER_EQUAL = frozenset({str, bytes, type(None), tuple, list, dict})  # classes whose objects equal no number
_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
_EXACT = (operator.add, operator.sub, operator.mul)  # in Python and on tensors
_DIVISIONS = (operator.truediv, operator.itruediv)
_ROUNDED_DOWN = (operator.floordiv, operator.mod)  # of ints
_LOGIC = (operator.and_, operator.or_, operator.xor)
_AUGMENTED = {
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv, operator.ifloordiv: operator.floordiv, operator.imod: operator.mod,
    operator.iand: operator.and_, operator.ior: operator.or_, operator.ixor: operator.xor,
}  # fmt: skip


def binary(
    fn: Callable[..., object], left: object, right: object, assume: Callable[[torch.Tensor], bool]
) -> object:
    """`fn(left, right)`, one of which is a NumberProxy. `assume`: records a check that a condition holds, or returns
    False. Raises Unreadable for what is not recorded."""
    if fn in _EQUALITY and not _NEVER_EQUAL.isdisjoint((type(left), type(right))):
        return fn is operator.ne
    found = None
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        found = _with_tensor(fn, left, right)
    elif _is_number(left) and _is_number(right):
        fn = _AUGMENTED.get(fn, fn)
        kinds = [v.kind if type(v) is NumberProxy else type(v) for v in (left, right)]
        most = 0
        if int in kinds and Int in kinds:
            raise unreadable("an int that a tensor holds with one that changes", left, right)
        if kinds == [int, int] and fn is not operator.truediv:
            most = _largest(fn, left, right)
        else:  # the int of a mixed pair is exact as a float
            left, right = (
                v.as_float() if type(v) is NumberProxy and v.kind is int else v for v in (left, right)
            )
        operands = [v.tensor if type(v) is NumberProxy else v for v in (left, right)]
        if bool not in kinds:
            divides = fn is operator.truediv and _is_divisor(right, assume)
            if divides and type(left) is not NumberProxy:  # `Tensor.__rtruediv__` rounds twice
                operands[0] = torch.full_like(cast(torch.Tensor, operands[1]), cast(float, left))
            rounds_down = fn in _ROUNDED_DOWN and kinds == [int, int] and _is_divisor(right, assume)
            is_recorded = fn in _COMPARISONS or fn in _EXACT or divides or rounds_down
            found = fn(*operands) if is_recorded and most <= MAX_EXACT else None
        elif kinds == [bool, bool] and (fn in _LOGIC or fn in _EQUALITY):
            found = fn(*operands)
        found = None if found is None else NumberProxy(cast(torch.Tensor, found), most)
    if found is None:
        raise unreadable(f"operator.{fn.__name__} of a number that a tensor holds", left, right)
    return found


def _largest(fn: Callable[..., object], left: object, right: object) -> int:
    """The largest absolute value of `fn` of two ints."""
    a, b = (v.most if type(v) is NumberProxy else abs(cast(int, v)) for v in (left, right))
    return a * b if fn is operator.mul else a + b


def _is_divisor(value: object, assume: Callable[[torch.Tensor], bool]) -> bool:
    """Whether a division by the number does not raise, or the graph checks it."""
    return assume(value.tensor != 0) if type(value) is NumberProxy else value != 0


def _is_number(value: object) -> bool:
    if type(value) is int:
        return abs(value) <= MAX_EXACT
    return type(value) in (float, bool, NumberProxy) or type(value) in NUMBERS


def _with_tensor(fn: Callable[..., object], left: object, right: object) -> object | None:
    """`fn` of a tensor and a number, which has the tensor's dtype in the computation; None if it is not recorded."""
    number, tensor = (left, right) if type(left) is NumberProxy else (right, left)
    number, tensor = cast(NumberProxy, number), cast(torch.Tensor, tensor)
    of_ints = number.kind is int and tensor.dtype is torch.int64
    if number.kind is bool or not (of_ints or tensor.dtype in _FLOATS):
        return None
    if tensor.device != number.tensor.device or (of_ints and fn in _DIVISIONS):
        return None
    scalar = number.tensor.to(tensor.dtype)
    if fn is operator.truediv and number is left:  # as `Tensor.__rtruediv__`
        return tensor.reciprocal() * scalar
    divides = fn in _DIVISIONS and tensor.device.type == "cpu"
    if not (fn in _COMPARISONS or fn in _EXACT or _AUGMENTED.get(fn) in _EXACT or divides):
        return None
    return fn(scalar, tensor) if number is left else fn(tensor, scalar)
