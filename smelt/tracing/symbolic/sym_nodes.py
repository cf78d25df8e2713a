"""What a symbolic number holds: a `Symbol`, which torch's C++ code asks for arithmetic and comparisons as it asks a SymNode
of torch's own. It hands them on to the `Symbols` of its trace (its attribute `symbols`), which make it
(`symbolic_numbers.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.shapes.expr import Expression, Size
from smelt.shapes.number_operations import Number
from smelt.tracing.symbolic.size_arithmetic import COMPARED, ROUNDED
from smelt.tracing.symbolic.sym_numbers import NUMBERS, wrapped
from smelt.tracing.symbolic.unbacked_numbers import data_leaf_of


class Undecided:
    """What a comparison of the program's gives that data decide: `op` (`lt`, `eq`) of the two sizes is `holds`."""

    def __init__(self, symbols: Any, op: str, a: Size, b: Size, holds: bool) -> None:
        self._symbols, self._op, self._a, self._b, self._holds = symbols, op, a, b, holds

    @property
    def expression(self) -> Expression:
        """What Python computes for it."""
        op = self._op if self._holds else {"lt": "ge", "eq": "ne"}[self._op]
        return self._symbols.comparison(op, self._a, self._b)

    def assume(self, answer: bool) -> None:
        """From now on it is that, which the graph checks."""
        self._symbols.assume(self._op, self._a, self._b, answer is self._holds)

    def __bool__(self) -> bool:
        raise self._symbols.known.refusal(self._op, self._a, self._b)


class Symbol:
    """What torch calls a SymNode: C++ asks it for arithmetic and comparisons by the names of its methods."""

    __slots__ = ("expression", "size", "symbols", "value")

    def __init__(self, symbols: Any, expression: Expression, value: Number, size: Size | None = None) -> None:
        self.symbols = symbols
        self.expression = expression
        self.value = value
        self.size = size  # of what is made of sizes and ints alone

    def plain(self) -> Any:
        """The number, pinned, unless another capture will know it."""
        size = self.as_size() if self.expression.op in ROUNDED else self.size
        if type(size) is not int and not self.symbols.is_narrowed(size):
            self.symbols.pin(self.expression)
        return self.value

    def as_size(self) -> Size | None:
        """The size that it is, or is taken for from now on; None where it is none."""
        if self.size is None and type(self.value) is int:
            self.size = self.symbols.taken_for_size(self.expression)
        return self.size

    def number(self) -> Any:
        """The number that holds this symbol: symbolic, unless it is the same for all sizes."""
        return self.size if type(self.size) is int else wrapped(self)

    def call(self, op: str, *others: Symbol) -> Any:
        """The operation (a key of `OPERATIONS`) with this symbol as its first operand: see `Symbols.call`."""
        return self.symbols.call(op, self, *others)

    def fits_a_tensor(self) -> bool:
        """Whether it is a float or an int of 64 bits, which is required of later calls too."""
        if type(self.value) is float or self.expression.op == "leaf" or self.size is not None:
            return True
        if data_leaf_of(self.expression) is not None:  # it raises when the graph runs
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

    def sym_sum(self, numbers: list[Symbol]) -> Symbol:
        total: Any = 0
        for number in numbers:
            total = total + number.number()
        return self.symbols.symbol(total)

    def sym_not(self) -> Symbol:
        return self.wrap_bool(not self.plain())

    def sym_and(self, other: Symbol) -> Symbol:
        return self.wrap_bool(self.plain() and other.plain())

    def sym_or(self, other: Symbol) -> Symbol:
        return self.wrap_bool(self.plain() or other.plain())

    and_, or_ = sym_and, sym_or

    def clone(self) -> Symbol:
        return self

    def str(self) -> str:
        return f"<{self.expression}>"

    _graph_repr = __repr__ = str


class Deferred(Symbol):
    """The bool of a comparison that data decide."""

    __slots__ = ("_a", "_b", "_op")

    def __init__(self, symbols: Any, expression: Expression, op: str, a: Size, b: Size) -> None:
        super().__init__(symbols, expression, False)
        self._op, self._a, self._b = op, a, b

    def plain(self) -> Any:
        """What it is assumed to be."""
        return self.symbols.compare(self._op, self._a, self._b)

    def is_constant(self) -> bool:
        """No: data decide."""
        return False

    def guard_or_false(self, file: str, line: int) -> bool:
        """Either answer would do."""
        return False

    def guard_or_true(self, file: str, line: int) -> bool:
        """Either answer would do."""
        return True

    def statically_known_true(self, file: str, line: int) -> bool:
        """It is not known."""
        return False


def _node_method(op: str) -> Callable[..., Symbol]:
    def method(self: Symbol, *others: Symbol) -> Symbol:
        symbols = self.symbols
        key = (op, self.size, *[o.size for o in others])  # C++ asks the same of sizes again and again
        known = symbols.of_sizes.get(key)
        if known is not None:
            return known
        deferred = symbols.deferred(op, self, *others) if op in COMPARED else None
        if deferred is not None:
            return deferred
        made = self.call(op, *others)
        found: Symbol = made.node if type(made) in NUMBERS else symbols.symbol(made)
        if None not in key:
            symbols.of_sizes[key] = found
        return found

    return method


# Methods of a SymNode by the operation they are.
_NODE_OPERATIONS = {
    **{n: n for n in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "abs")},
    **{n: n for n in ("lt", "le", "gt", "ge", "eq", "ne")},
    "int_floordiv": "floordiv", "int_truediv": "truediv", "float_truediv": "truediv", "float_pow": "pow",
    "pow_by_natural": "pow", "sym_min": "min", "sym_max": "max", "sym_float": "float", "sym_int": "int",
    "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "round_to",
}  # fmt: skip


for _name, _op in _NODE_OPERATIONS.items():
    setattr(Symbol, _name, _node_method(_op))
