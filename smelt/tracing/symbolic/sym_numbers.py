"""Symbolic ints and floats that programs and torch hold: `Int` and `Float`, subclasses of `torch.SymInt` and
`torch.SymFloat` around a `Symbol` (`sym_nodes.py`). Their operators create symbols; code that needs the number itself
specializes it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from smelt.shapes.expr import Expr, Size
from smelt.tracing.symbolic.size_arithmetic import COMPARED


def _binary(
    op: str, function: Callable[[Any, Any], Any], reflected: bool = False
) -> Callable[[Any, Any], Any]:
    """A binary operator: symbolic for numbers, on the specialized number for other operands."""

    def method(self: Any, other: Any) -> Any:
        kind = type(other)
        symbols = self.node.symbols
        if kind in NUMBERS or kind is int or kind is float or kind is bool:
            a, b = self.node, symbols.symbol(other)
            if op in COMPARED:
                return symbols.program_comparison(op, a, b)
            return symbols.call(op, b, a) if reflected else symbols.call(op, a, b)
        if isinstance(other, torch.Tensor) or other is None or kind is str:
            return NotImplemented
        return (
            function(other, self.node.specialize()) if reflected else function(self.node.specialize(), other)
        )

    return method


def _specializing(function: Callable[..., Any], reflected: bool = False) -> Callable[..., Any]:
    """A special method that specializes the number."""

    def method(self: Any, *others: Any) -> Any:
        if others and isinstance(others[0], torch.Tensor):
            return NotImplemented
        value = self.node.specialize()
        return (
            function(specialize(others[0]), value) if reflected else function(value, *map(specialize, others))
        )

    return method


def _truth(number: Any) -> bool:
    symbols = number.node.symbols
    return bool(symbols.program_comparison("ne", number.node, symbols.symbol(0)))


def _methods() -> dict[str, Any]:
    """All special methods of a number: those of torch.SymInt do not specialize."""
    methods: dict[str, Any] = {}
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        function = getattr(operator, name)
        methods[f"__{name}__"] = _binary(name, function)
        methods[f"__r{name}__"] = _binary(name, function, reflected=True)
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        methods[f"__{name}__"] = _binary(name, getattr(operator, name))
    for name in ("and_", "or_", "xor", "lshift", "rshift"):
        methods[f"__{name.rstrip('_')}__"] = _specializing(getattr(operator, name))
        methods[f"__r{name.rstrip('_')}__"] = _specializing(getattr(operator, name), reflected=True)
    for name in ("neg", "abs", "trunc", "floor", "ceil"):
        methods[f"__{name}__"] = lambda self, op=name: self.node.call(op)
    for name, function in (
        ("int", int), ("float", float), ("complex", complex), ("hash", hash), ("repr", repr), ("str", str),
        ("format", format), ("divmod", divmod), ("invert", operator.invert),
    ):  # fmt: skip
        methods[f"__{name}__"] = _specializing(function)
    methods["__rdivmod__"] = _specializing(divmod, reflected=True)
    methods["__index__"] = _specializing(operator.index)
    methods["__pos__"] = lambda self: self
    methods["__bool__"] = _truth
    methods["__round__"] = lambda self, digits=None: rounded(self, digits)
    methods["__reduce_ex__"] = lambda self, protocol: (type(self.node.value), (self.node.specialize(),))
    methods["__copy__"] = lambda self: self
    methods["__deepcopy__"] = lambda self, memo: self
    return methods


Int: Any = type("Int", (torch.SymInt,), {**_methods(), "__doc__": "A symbolic int.", "__module__": __name__})
Float: Any = type(
    "Float", (torch.SymFloat,), {**_methods(), "__doc__": "A symbolic float.", "__module__": __name__}
)

NUMBERS: frozenset[type] = frozenset({Int, Float})
# C++ returns the base classes around our symbols.
SYMBOLIC: frozenset[type] = NUMBERS | {torch.SymInt, torch.SymFloat}
PLAIN_TYPE: dict[type, type] = {Int: int, Float: float, torch.SymInt: int, torch.SymFloat: float}


def wrapped(symbol: Any) -> Any:
    """The number that holds a symbol."""
    return Int(symbol) if type(symbol.value) is int else Float(symbol)


def is_ragged(value: Any) -> bool:
    """Whether it is a ragged size of nested tensors, which torch handles itself: it has no value."""
    return type(value) is torch.SymInt and value.node.is_nested_int()  # type: ignore[no-any-return, union-attr]


def wrap_symbolic(value: Any) -> Any:
    """A symbolic number returned by C++ or C code, as an `Int` or `Float`."""
    is_base = type(value) in SYMBOLIC and type(value) not in NUMBERS
    return wrapped(value.node) if is_base and not is_ragged(value) else value


def size_of(value: Any) -> Size:
    """The size of a number from C++ or Python. A number that cannot be a size is specialized."""
    if type(value) not in SYMBOLIC:
        number: int = value
        return number
    size = value.node.as_size()
    return specialize(value) if size is None else size  # type: ignore[no-any-return]


def is_size(value: Any) -> bool:
    """Whether it is a symbolic size without unbacked symbols."""
    if type(value) is not Int or not isinstance(value.node.size, Expr):
        return False
    return not value.node.symbols.unbacked.occurs_in(value.node.size)


def specialize(value: Any) -> Any:
    """The plain number of this call, specialized; other objects unchanged."""
    return value.node.specialize() if type(value) in SYMBOLIC and not is_ragged(value) else value


def hint(value: Any) -> Any:
    """The plain number of this call, not specialized: only its type may be used."""
    return value.node.value if type(value) in SYMBOLIC and not is_ragged(value) else value


def rounded(value: Any, digits: int | None = None) -> Any:
    """`round(value, digits)`."""
    symbols = value.node.symbols
    if digits is None:
        return symbols.call("round", value.node)
    return symbols.call("round_to", value.node, symbols.symbol(specialize(digits)))
