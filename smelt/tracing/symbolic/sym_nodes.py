"""The node of a symbolic number: a `Symbol`, which torch's C++ code queries for arithmetic and comparisons as it
queries a torch SymNode. It delegates to the `Symbols` of its trace (`symbolic_numbers.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.shapes.expr import Expression, Size
from smelt.shapes.number_operations import Number
from smelt.tracing.symbolic.size_arithmetic import COMPARED, ROUNDED
from smelt.tracing.symbolic.sym_numbers import NUMBERS, wrapped
from smelt.tracing.symbolic.unbacked_numbers import unbacked_leaf_of


class UnbackedComparison:
    """The result of the program's comparison of unbacked numbers: `op` (`lt`, `eq`) of the two numbers is `holds`."""

    def __init__(self, symbols: Any, op: str, a: Symbol, b: Symbol, holds: bool) -> None:
        self._symbols, self._op, self._a, self._b, self._holds = symbols, op, a, b, holds

    @property
    def op(self) -> str:
        """The operator of the comparison; its negation if `holds` is False."""
        return self._op if self._holds else {"lt": "ge", "eq": "ne"}[self._op]

    @property
    def operands(self) -> tuple[Any, Any]:
        """The two numbers that it compares."""
        return self._a.number(), self._b.number()

    @property
    def expression(self) -> Expression:
        """The expression that Python computes for it."""
        return self._symbols.comparison(self.op, self._a, self._b)

    @property
    def is_of_sizes(self) -> bool:
        """Whether both numbers are sizes."""
        return self._a.size is not None and self._b.size is not None

    def assume(self, outcome: bool) -> None:
        """Assume this outcome from now on; the graph checks it. Raises Unsupported for numbers that are no sizes."""
        if not self.is_of_sizes:
            raise self._symbols.comparison_error(self.op, self._a, self._b)
        self._symbols.assume(self._op, self._a.size, self._b.size, outcome is self._holds)

    def __bool__(self) -> bool:
        raise self._symbols.comparison_error(self._op, self._a, self._b)


class Symbol:
    """What torch calls a SymNode: C++ queries arithmetic and comparisons by its method names."""

    __slots__ = ("expression", "size", "symbols", "value")

    def __init__(self, symbols: Any, expression: Expression, value: Number, size: Size | None = None) -> None:
        self.symbols = symbols
        self.expression = expression
        self.value = value
        self.size = size  # if computed from sizes and ints alone

    def specialize(self) -> Any:
        """The number of this call, specialized unless another capture will cover its range."""
        size = self.as_size() if self.expression.op in ROUNDED else self.size
        if type(size) is not int and not self.symbols.request_constant_range(size):
            self.symbols.specialize(self.expression)
        return self.value

    def as_size(self) -> Size | None:
        """The size that it is, or becomes from now on; None if it cannot be one."""
        if self.size is None and type(self.value) is int:
            self.size = self.symbols.size_of_expression(self.expression)
        return self.size

    def number(self) -> Any:
        """The number that holds this symbol: symbolic, unless it is the same for all sizes."""
        return self.size if type(self.size) is int else wrapped(self)

    def call(self, op: str, *others: Symbol) -> Any:
        """The operation `op` (a key of `OPERATIONS`) with this symbol as first operand: see `Symbols.call`."""
        return self.symbols.call(op, self, *others)

    def fits_a_tensor(self) -> bool:
        """Whether it is a float or a 64-bit int, which is required of later calls as well."""
        if type(self.value) is float or self.expression.op == "leaf" or self.size is not None:
            return True
        if unbacked_leaf_of(self.expression) is not None:  # the graph raises
            return True
        size = self.call("abs")
        return bool(size < 1 << 63)

    # ---- queries by C++, with the names and arguments of torch's SymNode

    def is_int(self) -> bool:
        return type(self.value) is int

    def is_float(self) -> bool:
        return type(self.value) is float

    def is_bool(self) -> bool:
        return type(self.value) is bool

    def is_nested_int(self) -> bool:
        return False

    def is_constant(self) -> bool:
        return self.symbols.is_specialized(self.expression)

    def is_symbolic(self) -> bool:
        return True

    def has_hint(self) -> bool:
        return True

    def _no_constant(self) -> None:
        return None

    nested_int = constant_int = constant_bool = maybe_as_int = maybe_as_float = maybe_as_bool = _no_constant

    def guard_int(self, file: str, line: int) -> int:
        return int(self.specialize())

    def guard_float(self, file: str, line: int) -> float:
        return float(self.specialize())

    def guard_bool(self, file: str, line: int) -> bool:
        return bool(self.specialize())

    guard_size_oblivious = guard_or_false = guard_or_true = expect_true = expect_size = guard_bool

    def statically_known_true(self, file: str, line: int) -> bool:
        return self.symbols.is_specialized(self.expression) and bool(self.value)

    def int_(self) -> int:
        return int(self.specialize())

    def bool_(self) -> bool:
        return bool(self.specialize())

    def wrap_int(self, number: int) -> Symbol:
        return self.symbols.symbol(number)

    wrap_float = wrap_bool = wrap_int

    def sym_sum(self, numbers: list[Symbol]) -> Symbol:
        total: Any = 0
        for number in numbers:
            total = total + number.number()
        return self.symbols.symbol(total)

    def sym_not(self) -> Symbol:
        return self.wrap_bool(not self.specialize())

    def sym_and(self, other: Symbol) -> Symbol:
        return self.wrap_bool(self.specialize() and other.specialize())

    def sym_or(self, other: Symbol) -> Symbol:
        return self.wrap_bool(self.specialize() or other.specialize())

    and_, or_ = sym_and, sym_or

    def clone(self) -> Symbol:
        return self

    def str(self) -> str:
        return f"<{self.expression}>"

    _graph_repr = __repr__ = str


class DeferredComparison(Symbol):
    """The bool of a comparison of unbacked sizes by torch, which is assumed only if torch needs it."""

    __slots__ = ("_a", "_b", "_op")

    def __init__(self, symbols: Any, expression: Expression, op: str, a: Size, b: Size) -> None:
        super().__init__(symbols, expression, False)
        self._op, self._a, self._b = op, a, b

    def specialize(self) -> Any:
        """Its assumed outcome."""
        return self.symbols.compare(self._op, self._a, self._b)

    def is_constant(self) -> bool:
        """False: it depends on data."""
        return False

    def guard_or_false(self, file: str, line: int) -> bool:
        """Torch accepts either outcome."""
        return False

    def guard_or_true(self, file: str, line: int) -> bool:
        """Torch accepts either outcome."""
        return True

    def statically_known_true(self, file: str, line: int) -> bool:
        """It is unknown."""
        return False


def _node_method(op: str) -> Callable[..., Symbol]:
    def method(self: Symbol, *others: Symbol) -> Symbol:
        symbols = self.symbols
        if others and not isinstance(others[0], Symbol):
            return _with_ragged_size(op, self, others[0])
        key = (op, self.size, *[o.size for o in others])  # C++ repeats the same queries of sizes
        cached = symbols.node_results.get(key)
        if cached is not None:
            return cached
        deferred = symbols.torch_comparison(op, self, *others) if op in COMPARED else None
        if deferred is not None:
            return deferred
        number = self.call(op, *others)
        node: Symbol = number.node if type(number) in NUMBERS else symbols.symbol(number)
        if None not in key:
            symbols.node_results[key] = node
        return node

    return method


def _with_ragged_size(op: str, size: Symbol, ragged: Any) -> Any:
    """The result for a size and a ragged size of a nested tensor, which equals no number."""
    if op == "mul":
        return ragged.mul(size)
    if op not in ("eq", "ne"):
        raise ValueError(f"{op}: relation is indeterminate")
    return size.symbols.symbol(op == "ne")


# SymNode method -> operation.
_NODE_OPERATIONS = {
    **{n: n for n in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "abs")},
    **{n: n for n in ("lt", "le", "gt", "ge", "eq", "ne")},
    "int_floordiv": "floordiv", "int_truediv": "truediv", "float_truediv": "truediv", "float_pow": "pow",
    "pow_by_natural": "pow", "sym_min": "min", "sym_max": "max", "sym_float": "float", "sym_int": "int",
    "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "round_to",
}  # fmt: skip


for _name, _op in _NODE_OPERATIONS.items():
    setattr(Symbol, _name, _node_method(_op))
