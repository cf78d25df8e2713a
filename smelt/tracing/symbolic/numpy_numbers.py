"""Proxies for NumPy scalars whose number is symbolic: results such as `n % numpy.int64(64)` of a size `n`, and scalars of
the environment that change from call to call. Torch calls keep them symbolic. Arithmetic and comparisons keep those of 64
bits symbolic. Any other use specializes them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from smelt.tracing.symbolic.sym_numbers import Float, Int, is_size, specialize


class NumpyNumber:
    """Proxy for `scalar(number)`, where `number` is symbolic."""

    __slots__ = ("number",)
    scalar: ClassVar[type[np.int64 | np.float64 | np.float32]]

    def __init__(self, number: Any) -> None:
        number.node.symbols.has_proxies = True
        self.number = number

    def specialize(self) -> Any:
        """The NumPy scalar of this call."""
        return self.scalar(specialize(self.number))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.specialize(), name)


def _specializing_method(name: str) -> Callable[..., Any]:
    def method(self: NumpyNumber, *others: Any) -> Any:
        return getattr(self.specialize(), name)(*others)

    return method


_ARITHMETIC = (
    "add",
    "sub",
    "mul",
    "floordiv",
    "mod",
    "truediv",
    "pow",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
    "divmod",
)
for _name in (
    *_ARITHMETIC, *(f"r{name}" for name in _ARITHMETIC), "eq", "ne", "lt", "le", "gt", "ge", "hash", "bool", "int", "float",
    "complex", "index", "neg", "pos", "abs", "invert", "round", "repr", "str", "format", "copy", "deepcopy", "reduce_ex",
):  # fmt: skip
    setattr(NumpyNumber, f"__{_name}__", _specializing_method(f"__{_name}__"))


class NumpyInt(NumpyNumber):
    """Proxy for `numpy.int64(number)`."""

    __slots__ = ()
    scalar = np.int64


class NumpyFloat(NumpyNumber):
    """Proxy for `numpy.float64(number)`."""

    __slots__ = ()
    scalar = np.float64


class NumpySingle(NumpyNumber):
    """Proxy for `numpy.float32(number)`."""

    __slots__ = ()
    scalar = np.float32


# By the class of a NumPy scalar: its proxy.
PROXY_OF: dict[type, type[NumpyNumber]] = {cls.scalar: cls for cls in (NumpyInt, NumpyFloat, NumpySingle)}
NUMPY_NUMBERS = frozenset(PROXY_OF.values())

_COMPUTED: dict[Any, Callable[[Any, Any], Any]] = {
    operator.add: operator.add, operator.sub: operator.sub, operator.mul: operator.mul,
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
}  # fmt: skip
_DIVIDED: dict[Any, Callable[[Any, Any], Any]] = {
    operator.floordiv: operator.floordiv, operator.mod: operator.mod,
    operator.ifloordiv: operator.floordiv, operator.imod: operator.mod,
}  # fmt: skip
_COMPARED = frozenset({operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge})
_MOST = 1 << 62  # of a plain number; beyond 64 bits NumPy raises or wraps around


def operate(fn: Any, left: Any, right: Any) -> Any:
    """`fn(left, right)` of a NumPy scalar and a number, one of them symbolic; NotImplemented where it needs plain
    numbers."""
    if not {NumpyFloat, np.float64}.isdisjoint((type(left), type(right))):
        return _operate_on_floats(fn, left, right)
    a, b = _number(left), _number(right)
    if a is None or b is None:
        return NotImplemented
    if fn in _COMPARED:
        return np.bool_(fn(a, b))
    compute = _COMPUTED.get(fn) or (_DIVIDED.get(fn) if type(b) is int and b > 0 else None)
    return NotImplemented if compute is None else numpy_int(compute(a, b))


def _operate_on_floats(fn: Any, left: Any, right: Any) -> Any:
    """The same of a `numpy.float64`, whose sums, differences and products are those of Python's floats."""
    numbers = [
        v.number if type(v) is NumpyFloat else float(v) if type(v) is np.float64 else v for v in (left, right)
    ]
    if not all(type(n) in (int, float, Int, Float) for n in numbers):
        return NotImplemented
    if fn in _COMPARED:
        return np.bool_(fn(*numbers))
    divides = fn in (operator.truediv, operator.itruediv) and type(numbers[1]) in (int, float) and numbers[1]
    compute = operator.truediv if divides else _COMPUTED.get(fn)
    number = NotImplemented if compute is None else compute(*numbers)
    return NumpyFloat(number) if type(number) is Float else NotImplemented


def _number(value: Any) -> Any:
    """The value as an int; None for other objects, and for ints that do not fit."""
    number = value.number if type(value) is NumpyInt else int(value) if type(value) is np.int64 else value
    return number if type(number) in (int, Int) and _fits(number) else None


def _fits(number: Any) -> bool:
    return is_size(number) or -_MOST < number < _MOST


def numpy_int(number: Any) -> Any:
    """`numpy.int64(number)`; NotImplemented where that needs a plain number."""
    if type(number) is int:
        return np.int64(number) if abs(number) < _MOST else NotImplemented
    return NumpyInt(number) if type(number) is Int and _fits(number) else NotImplemented


def _product(values: Any) -> Any:
    factors = list(values) if type(values) in (list, tuple) or hasattr(values, "numel") else []
    is_symbolic = Int in map(type, factors) and all(map(_is_int, factors))
    return numpy_int(math.prod(factors)) if is_symbolic else NotImplemented


def _is_int(value: Any) -> bool:
    return type(value) is int or type(value) is Int


# NumPy functions of sizes that return a `NumpyInt`; NotImplemented where they need plain numbers.
FUNCTIONS: dict[Any, Callable[[Any], Any]] = {np.int64: numpy_int, np.prod: _product}


def unwrap_numpy_numbers(value: Any, depth: int = 4) -> Any:
    """`value` with symbolic numbers in place of proxies, as torch accepts them."""
    kind = type(value)
    if kind in NUMPY_NUMBERS:
        return value.number
    if kind is slice:
        bounds = (value.start, value.stop, value.step)
        return slice(*map(unwrap_numpy_numbers, bounds)) if NumpyInt in map(type, bounds) else value
    if not depth or kind not in (list, tuple):
        return value
    items = [unwrap_numpy_numbers(item, depth - 1) for item in value]
    return value if all(a is b for a, b in zip(items, value)) else kind(items)
