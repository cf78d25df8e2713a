"""Symbolic numbers: real `torch.SymInt` and `torch.SymFloat` objects that stand for numbers which change from call to call.

A symbolic number (`Int`, `Float`) holds a `Symbol`: an expression (`smelt.graph.numbers`) and the value that it has in the
call being traced. Arithmetic builds expressions. A comparison is decided at once by the value, and what was decided is
required of later calls. Whatever needs the number itself (an index, a hash, text, C code that wants an int) *pins* it: the
numbers it was computed from are then required to be the same again, and the plain number is used. So a symbolic number is
safe in the hands of any code; at worst it is not symbolic any more.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.graph.numbers import OPERATIONS, Expression, Number, Table, leaves

MAX_SIZE = 100  # operations of an expression; a larger one is pinned


class PlainNumbersOnly(Unsupported):
    """Something is to be captured that cannot hold symbolic numbers, wherever they may be in it."""


class Symbols:
    """The symbolic numbers of one trace.

    Args:
        pin: `pin(key, value)` is called once for each leaf whose value the trace comes to depend on.
        require: `require(expression, expected)`: the trace depends on the expression being `expected` (True, False), or
            of exactly that type (int, float).
    """

    def __init__(
        self, pin: Callable[[Any, Number], None], require: Callable[[Expression, Any], None]
    ) -> None:
        self._pin = pin
        self._require = require
        self._table = Table()
        self._values: dict[Any, Number] = {}
        self._pinned: set[Any] = set()
        self._refused: PlainNumbersOnly | None = None

    @contextmanager
    def refused(self, error: PlainNumbersOnly) -> Iterator[None]:
        """Raises `error` where a symbolic number is used inside, of which the trace does not come to depend that way."""
        before, self._refused = self._refused, error
        try:
            yield
        finally:
            self._refused = before

    def check(self) -> None:
        """A symbolic number is used: raises where none may be."""
        if self._refused is not None:
            raise self._refused

    def release(self) -> None:
        """Capture is over: graphs that name symbols must not keep alive what it looked at."""
        self._pin = self._require = _over

    def leaf(self, key: Any, value: Number) -> Int | Float:
        """The symbolic number found at `key` (hashable by identity), now `value`."""
        self.check()
        self._values[key] = value
        return _wrapped(Symbol(self, self._table.leaf(key), value))

    def symbol(self, value: Any) -> Symbol:
        """`value` (symbolic or not) as an operand."""
        if type(value) in NUMBERS:
            found: Symbol = value.node
            return found
        return Symbol(self, self._table.const(value), value)

    def is_pinned(self, expression: Expression) -> bool:
        """Whether the trace depends on the value of every leaf already."""
        return all(key in self._pinned for key in leaves(expression))

    def pin(self, expression: Expression) -> None:
        """The trace depends on the value that the expression has now: its leaves must be the same at later calls."""
        for key in leaves(expression):
            if key not in self._pinned:
                self.check()
                self._pinned.add(key)
                self._pin(key, self._values[key])

    def call(self, op: str, *operands: Symbol) -> Any:
        """The operation on these operands: a symbolic number, or a plain one where nothing in it may change. Raises what
        the operation raises."""
        self.check()
        expression = self._table.call(op, *(o.expression for o in operands))
        try:
            value = OPERATIONS[op].function(*(o.value for o in operands))
        except Exception:
            self.pin(expression)  # whoever handles it depends on these numbers
            raise
        if type(value) is bool:
            return self.decide(expression, value)
        if self.is_pinned(expression):
            return value
        if expression.size > MAX_SIZE or type(value) not in (int, float):
            self.pin(expression)
            return value
        if OPERATIONS[op].partial:
            self._require(expression, type(value))
        return _wrapped(Symbol(self, expression, value))

    def decide(self, expression: Expression, value: bool) -> bool:
        """The answer to a comparison, which is required of later calls."""
        if not self.is_pinned(expression):
            self._require(expression, value)
        return value


def _over(*what: Any) -> None:
    raise RuntimeError(f"a guard on {what[0]} after capture")


class Symbol:
    """What torch calls a SymNode: C++ asks it for arithmetic and comparisons by the names of its methods."""

    __slots__ = ("expression", "symbols", "value")

    def __init__(self, symbols: Symbols, expression: Expression, value: Number) -> None:
        self.symbols = symbols
        self.expression = expression
        self.value = value

    def plain(self) -> Any:
        """The number, pinned."""
        self.symbols.pin(self.expression)
        return self.value

    def number(self) -> Any:
        """The symbolic number that holds this symbol."""
        return _wrapped(self)

    def call(self, op: str, *others: Symbol) -> Any:
        """The operation (a key of `OPERATIONS`) with this symbol as its first operand: see `Symbols.call`."""
        return self.symbols.call(op, self, *others)

    def fits_a_tensor(self) -> bool:
        """Whether it is a float or an int of 64 bits, which is required of later calls too."""
        if type(self.value) is float or self.expression.op == "leaf":
            return True
        size = self.call("abs")
        return bool(size < 1 << 63)

    # ---- what C++ asks, under the names and with the arguments of torch's SymNode

    def is_int(self) -> bool:
        return type(self.value) is int

    def is_float(self) -> bool:
        return type(self.value) is float

    def is_bool(self) -> bool:
        return type(self.value) is bool

    def is_nested_int(self) -> bool:
        return False

    def is_constant(self) -> bool:
        return self.symbols.is_pinned(self.expression)

    def is_symbolic(self) -> bool:
        return True

    def has_hint(self) -> bool:
        return True

    def _no_constant(self) -> None:
        return None

    nested_int = constant_int = constant_bool = maybe_as_int = maybe_as_float = maybe_as_bool = _no_constant

    def guard_int(self, file: str, line: int) -> int:
        return int(self.plain())

    def guard_float(self, file: str, line: int) -> float:
        return float(self.plain())

    def guard_bool(self, file: str, line: int) -> bool:
        return bool(self.plain())

    guard_size_oblivious = guard_or_false = guard_or_true = expect_true = expect_size = guard_bool

    def statically_known_true(self, file: str, line: int) -> bool:
        return self.symbols.is_pinned(self.expression) and bool(self.value)

    def int_(self) -> int:
        return int(self.plain())

    def bool_(self) -> bool:
        return bool(self.plain())

    def wrap_int(self, number: int) -> Symbol:
        return self.symbols.symbol(number)

    wrap_float = wrap_bool = wrap_int

    def clone(self) -> Symbol:
        return self

    def str(self) -> str:
        return f"<{self.expression}>"

    _graph_repr = __repr__ = str

    def __getattr__(self, name: Any) -> Callable[..., Symbol]:
        op = _NODE_OPERATIONS.get(name)
        if op is None:
            raise AttributeError(name)

        def method(*others: Symbol) -> Symbol:
            made = self.call(op, *others)
            return made.node if type(made) in NUMBERS else self.symbols.symbol(made)

        return method


# Methods of a SymNode by the operation they are.
_NODE_OPERATIONS = {
    **{n: n for n in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "abs")},
    **{n: n for n in ("lt", "le", "gt", "ge", "eq", "ne")},
    "int_floordiv": "floordiv", "int_truediv": "truediv", "float_truediv": "truediv", "float_pow": "pow",
    "pow_by_natural": "pow", "sym_min": "min", "sym_max": "max", "sym_float": "float", "sym_int": "int",
    "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "round_to",
}  # fmt: skip


def _binary(op: str, plain: Callable[[Any, Any], Any], reflected: bool = False) -> Callable[[Any, Any], Any]:
    """An operator: symbolic with numbers, on the pinned number with what else may be there."""

    def method(self: Any, other: Any) -> Any:
        kind = type(other)
        symbols: Symbols = self.node.symbols
        if kind in NUMBERS or kind is int or kind is float or kind is bool:
            a, b = self.node, symbols.symbol(other)
            return symbols.call(op, b, a) if reflected else symbols.call(op, a, b)
        if isinstance(other, torch.Tensor) or other is None or kind is str:
            return NotImplemented
        return plain(other, self.node.plain()) if reflected else plain(self.node.plain(), other)

    return method


def _pinned(function: Callable[..., Any], reflected: bool = False) -> Callable[..., Any]:
    """A special method that needs the number itself."""

    def method(self: Any, *others: Any) -> Any:
        if others and isinstance(others[0], torch.Tensor):
            return NotImplemented
        value = self.node.plain()
        return function(plain(others[0]), value) if reflected else function(value, *map(plain, others))

    return method


def _methods() -> dict[str, Any]:
    """The special methods of a number, all of them: those of torch.SymInt know nothing of pinning."""
    made: dict[str, Any] = {}
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        function = getattr(operator, name)
        made[f"__{name}__"] = _binary(name, function)
        made[f"__r{name}__"] = _binary(name, function, reflected=True)
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        made[f"__{name}__"] = _binary(name, getattr(operator, name))
    for name in ("and_", "or_", "xor", "lshift", "rshift"):
        made[f"__{name.rstrip('_')}__"] = _pinned(getattr(operator, name))
        made[f"__r{name.rstrip('_')}__"] = _pinned(getattr(operator, name), reflected=True)
    for name in ("neg", "abs", "trunc", "floor", "ceil"):
        made[f"__{name}__"] = lambda self, op=name: self.node.call(op)
    for name, function in (
        ("int", int), ("float", float), ("complex", complex), ("hash", hash), ("repr", repr), ("str", str),
        ("format", format), ("divmod", divmod), ("invert", operator.invert),
    ):  # fmt: skip
        made[f"__{name}__"] = _pinned(function)
    made["__rdivmod__"] = _pinned(divmod, reflected=True)
    made["__index__"] = _pinned(operator.index)
    made["__pos__"] = lambda self: self
    made["__bool__"] = lambda self: self.node.call("ne", self.node.symbols.symbol(0))
    made["__round__"] = lambda self, digits=None: rounded(self, digits)
    made["__reduce_ex__"] = lambda self, protocol: (type(self.node.value), (self.node.plain(),))
    made["__copy__"] = lambda self: self
    made["__deepcopy__"] = lambda self, memo: self
    return made


Int: Any = type("Int", (torch.SymInt,), {**_methods(), "__doc__": "A symbolic int.", "__module__": __name__})
Float: Any = type(
    "Float", (torch.SymFloat,), {**_methods(), "__doc__": "A symbolic float.", "__module__": __name__}
)

NUMBERS: frozenset[type] = frozenset({Int, Float})
# C++ gives back the base classes around our symbols.
SYMBOLIC: frozenset[type] = NUMBERS | {torch.SymInt, torch.SymFloat}
PLAIN_TYPE: dict[type, type] = {Int: int, Float: float, torch.SymInt: int, torch.SymFloat: float}


def _wrapped(symbol: Symbol) -> Any:
    return Int(symbol) if type(symbol.value) is int else Float(symbol)


def own(value: Any) -> Any:
    """What C++ or C code gave, as a number of ours."""
    return _wrapped(value.node) if type(value) in SYMBOLIC and type(value) not in NUMBERS else value


def plain(value: Any) -> Any:
    """The number, pinned; anything else as it is."""
    return value.node.plain() if type(value) in SYMBOLIC else value


def hint(value: Any) -> Any:
    """The number in this call, not pinned: only its type may be looked at."""
    return value.node.value if type(value) in SYMBOLIC else value


def plain_parts(value: Any, depth: int = 4) -> Any:
    """`value` with plain numbers in it, pinned. Lists and dictionaries stay the same objects: to the program nothing
    changes."""
    kind = type(value)
    if kind in SYMBOLIC:
        return plain(value)
    if not depth or kind not in _PARTS:
        return value
    return _PARTS[kind](value, depth - 1)


def _plain_tuple(value: tuple[Any, ...], depth: int) -> tuple[Any, ...]:
    items = [plain_parts(v, depth) for v in value]
    return value if all(a is b for a, b in zip(items, value)) else tuple(items)


def _plain_list(value: list[Any], depth: int) -> list[Any]:
    for i, item in enumerate(value):
        found = plain_parts(item, depth)
        if found is not item:
            value[i] = found
    return value


def _plain_dict(value: dict[Any, Any], depth: int) -> dict[Any, Any]:
    for key, item in value.items():
        found = plain_parts(item, depth)
        if found is not item:
            value[key] = found
    return value


def _plain_slice(value: slice, depth: int) -> slice:
    parts = (value.start, value.stop, value.step)
    return slice(*map(plain, parts)) if any(type(p) in SYMBOLIC for p in parts) else value


_PARTS: dict[type, Callable[[Any, int], Any]] = {
    tuple: _plain_tuple, list: _plain_list, dict: _plain_dict, slice: _plain_slice,
}  # fmt: skip


def settled(value: Any) -> Any:
    """`value` as an operator is given it: numbers that may not change, or fit no tensor, are plain ones."""
    kind = type(value)
    if kind in SYMBOLIC:
        if not value.node.fits_a_tensor() or value.node.is_constant():
            return plain(value)
        return value
    if kind is list or kind is tuple:
        return kind(map(settled, value))
    return {k: settled(v) for k, v in value.items()} if kind is dict else value


def has_symbols(value: Any) -> bool:
    """Whether there is a symbolic number in `value`."""
    if type(value) in SYMBOLIC:
        return True
    if isinstance(value, (list, tuple)):
        return any(map(has_symbols, value))
    if isinstance(value, slice):
        return has_symbols((value.start, value.stop, value.step))
    return isinstance(value, dict) and any(map(has_symbols, value.values()))


def rounded(value: Any, digits: int | None = None) -> Any:
    """`round(value, digits)`."""
    symbols: Symbols = value.node.symbols
    if digits is None:
        return symbols.call("round", value.node)
    return symbols.call("round_to", value.node, symbols.symbol(plain(digits)))


def _symbols(args: Any) -> Symbols:
    found: Symbols = next(a for a in args if type(a) in NUMBERS).node.symbols
    return found


def _function(op: str) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        symbols = _symbols(args)
        return symbols.call(op, *map(symbols.symbol, args))

    return function


def _power(*args: Any) -> Any:
    return operator.pow(*args) if len(args) == 2 else pow(*map(plain, args))


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


# Functions of C that take symbolic numbers and give expressions, by what they do; on plain numbers otherwise.
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    int: _function("int"), float: _function("float"), abs: _function("abs"), round: rounded,
    pow: _power, divmod: _divmod, min: _extreme("min"), max: _extreme("max"),
    math.pow: _function("pow_float"),
    **{getattr(math, n): _function(n) for n in (
        "sqrt", "exp", "expm1", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
        "tanh", "asinh", "acosh", "atanh", "floor", "ceil", "trunc", "erf", "erfc", "fabs", "isnan", "isinf", "isfinite",
        "degrees", "radians", "fmod", "atan2", "copysign",
    )},
    math.hypot: lambda *a: _function("hypot")(*a) if len(a) == 2 else math.hypot(*map(plain, a)),
    math.log: lambda *a: _function("log" if len(a) == 1 else "log_base")(*a),
    math.isclose: lambda *a: math.isclose(*map(plain, a)),
}  # fmt: skip
_OPERANDS = frozenset({int, float, bool})


def apply(fn: Any, args: Any, kwargs: Any) -> Any:
    """`fn` on arguments of which some are symbolic numbers: an expression where there is one, else NotImplemented."""
    function = FUNCTIONS.get(fn) if not kwargs else None
    if function is None or not all(type(a) in NUMBERS or type(a) in _OPERANDS for a in args):
        return NotImplemented
    return function(*args)
