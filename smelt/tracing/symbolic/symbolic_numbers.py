"""Symbolic numbers: real `torch.SymInt` and `torch.SymFloat` objects for numbers that change from call to call.

A symbolic number (`Int`, `Float`) holds a `Symbol`: an expression (`smelt.shapes.expr`) and the value in the
call being traced. Arithmetic builds expressions. A comparison is decided at once by the value, and its outcome is
required of later calls. Code that needs the number itself (an index, a hash, text, C code that reads an int)
*specializes* it: the leaves it was computed from must then be the same in later calls, and the plain number is used.
So any code can use a symbolic number; at worst it is specialized.

Sizes of tensors that change are such numbers as well. Their symbols also hold a `Size`, which sums, products and
quotients of sizes keep: what is the same for all sizes is then decided without a guard.

An unbacked number (`UnbackedNumber`: the number of elements that a mask selects) has no value yet. What torch decides
by it is assumed; what the program decides by it breaks the graph, unless it is the same for all numbers of at least 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from smelt.errors import NeedsFixedSize, Unsupported
from smelt.graph.ir import TensorSpec
from smelt.reasons import DATA_DEPENDENT, Reason
from smelt.shapes.constant_ranges import constant_range
from smelt.shapes.divisibility import divisors_in, remainder_symbol, without_common_factors
from smelt.shapes.expr import (
    INFINITE,
    Atom,
    Expr,
    Expression,
    Quotient,
    Size,
    Sym,
    Table,
    bounds,
    free_syms,
    leaves,
)
from smelt.shapes.number_operations import OPERATIONS, OPPOSITES, Number
from smelt.tracing.symbolic.size_arithmetic import (
    COMPARED,
    MOST_ROUNDED,
    ROUNDED,
    Comparisons,
    compare_dividend,
    factor_of,
    simplify_comparison,
    size_result,
)
from smelt.tracing.symbolic.sym_nodes import DeferredComparison, Symbol, UnbackedComparison
from smelt.tracing.symbolic.sym_numbers import NUMBERS, Float, Int, wrapped
from smelt.tracing.symbolic.unbacked_numbers import (
    NumberCondition,
    UnbackedFacts,
    UnbackedNumber,
    held_leaves,
    unbacked_leaf_of,
)

T = TypeVar("T")
MAX_SIZE = 100  # operations of an expression; a larger one is specialized


class PlainNumbersOnly(Unsupported):
    """A capture that cannot hold symbolic numbers, wherever they occur in it."""


class Symbols:
    """The symbolic numbers of one trace.

    Args:
        specialize: `specialize(key, value)` is called once for each leaf whose value the trace comes to depend on.
        require: `require(expression, expected)`: the trace depends on the expression being `expected` (True,
            False), or of exactly that type (int, float).
        symbolize: `symbolize(key, value, sym)` returns the size for the number at `key`, an int of at least 2: the
            new symbol `sym`, or a size that it must equal; None to keep a plain number.
        request_divisor: `request_divisor(sym, divisor)` returns whether another capture may know the remainder of
            the size.
        request_range: `request_range(sym, low, high)` returns whether another capture will know that the size is
            in [low, high]; the result of this capture is then irrelevant.
        has_changed: `has_changed(sym)` returns whether the size was different in an earlier call.
    """

    def __init__(
        self,
        specialize: Callable[[Any, Number], None],
        require: Callable[[Expression, Any], None],
        symbolize: Callable[[Any, int, Sym], Size | None] = lambda key, value, sym: None,
        request_divisor: Callable[[Sym, int], bool] = lambda sym, divisor: False,
        request_range: Callable[[Sym, int, int], bool] = lambda sym, low, high: False,
        has_changed: Callable[[Sym], bool] = lambda sym: False,
    ) -> None:
        self._specialize = specialize
        self._require = require
        self._symbolize = symbolize
        self._request_divisor = request_divisor
        self._request_range = request_range
        self.has_changed = has_changed
        self._range_requests: dict[Expr, bool] = {}
        self._table = Table()
        self._values: dict[Any, Number] = {}
        self._specialized: set[Any] = set()
        self._size_keys: set[Any] = set()  # the keys of tensor sizes and strides
        self._sizes: dict[Size, Symbol] = {}  # symbols of sizes, by the size
        self._comparisons = Comparisons()
        self.node_results: dict[tuple[Any, ...], Symbol] = {}  # cached, by operation and operands
        self._expression_sizes: dict[Expression, Size | None] = {}  # by expression of a number
        self.numbers: dict[Sym, Symbol] = {}  # by size symbol that is not a tensor's size
        # Meta tensors with symbolic sizes, cached by the id of their spec and their bits (`_cached_meta`).
        self.metas: dict[tuple[int, tuple[bool, ...]], tuple[TensorSpec, torch.Tensor]] = {}
        self._constants: dict[int, Symbol] = {}
        self.has_proxies = False  # whether the program has symbolic ranges, lists or NumPy ints
        self.hints: dict[Sym, int] = {}  # values of size symbols in this call
        self.unbacked = UnbackedFacts()  # known and assumed facts
        self._refused: PlainNumbersOnly | None = None
        self._decides_for_torch = False
        self.pending_error: NeedsFixedSize | None = None  # raised in a comparison of the running call

    @contextmanager
    def refused(self, error: PlainNumbersOnly) -> Iterator[None]:
        """Context in which a symbolic number that is no tensor size raises `error` where it is used: the trace does
        not come to depend on it that way."""
        before, self._refused = self._refused, error
        try:
            yield
        finally:
            self._refused = before

    @contextmanager
    def decisions_of_torch(self) -> Iterator[None]:
        """Context of code that replaces a function of torch's: what it decides by an unbacked number is assumed."""
        before, self._decides_for_torch = self._decides_for_torch, True
        try:
            yield
        finally:
            self._decides_for_torch = before

    def check(self) -> None:
        """Raise if symbolic numbers may not be used now."""
        if self._refused is not None:
            raise self._refused

    def release(self) -> None:
        """End the capture: drop the callbacks, so that graphs with symbols do not keep captured objects alive."""
        self._specialize = self._require = self._symbolize = _after_capture
        self._request_divisor = self._request_range = self.has_changed = _after_capture
        self.pending_error = None  # its traceback holds frames

    def leaf(self, key: Any, value: Number) -> Int | Float:
        """The symbolic number found at `key` (hashable by identity), now `value`."""
        self.check()
        self._values[key] = value
        return wrapped(Symbol(self, self._table.leaf(key), value))

    def leaves(self) -> dict[Any, Size | Number]:
        """What each leaf of an expression is, by its key: a size, or the number of this call."""
        found: dict[Any, Size | Number] = dict(self._values)
        for size, symbol in self._sizes.items():
            if symbol.expression.op == "leaf":
                found[symbol.expression.args[0]] = size
        return found

    def size_leaf(
        self,
        key: Any,
        value: int,
        least: int = 2,
        most: int = INFINITE,
        divisor: int = 1,
        any_remainder: bool = False,
    ) -> Int:
        """The symbolic size found at `key`, now `value`: a symbol of its own, required to be in [least, most]; least
        >= 2. With a `divisor` of at most `value`: divisor times a symbol, plus the remainder, which later calls must
        repeat; or, with `any_remainder` and a nonzero remainder, another symbol for it."""
        if not 2 <= least <= value <= most or value < divisor:
            raise ValueError(f"a size of {value} is not symbolic in [{least}, {most}], by {divisor}")
        self._values[key] = value
        self._size_keys.add(key)
        leaf = self._table.leaf(key)
        least = max(least, divisor)
        for op, bound, unbounded in (("ge", least, 2), ("le", most, INFINITE)):
            if bound != unbounded:
                self._require(self._table.call(op, leaf, self._table.const(bound)), True)
        times, remainder = divmod(value, divisor)
        highest = most if most == INFINITE else (most - remainder) // divisor
        sym = Sym(self._next_name(), -(-(least - remainder) // divisor), highest)
        self.hints[sym] = times
        rest: Size = remainder
        if divisor > 1:
            by = self._table.const(divisor)
            modulo = self._table.call("mod", leaf, by)
            varies = any_remainder and remainder > 0 and divisor > 2
            self._require(
                self._table.call("eq", modulo, self._table.const(0 if varies else remainder)), not varies
            )
            self._sizes[sym] = Symbol(self, self._table.call("floordiv", leaf, by), times, sym)
            if varies:
                rest = remainder_symbol(len(self.hints) - len(self.unbacked.numbers), divisor)
                self.hints[rest] = remainder
                self._sizes[rest] = Symbol(self, modulo, remainder, rest)
        size = sym * divisor + rest
        self._sizes[size] = Symbol(self, leaf, value, size)
        self._expression_sizes[leaf] = size
        return wrapped(self._sizes[size])

    def stride_leaf(self, key: Any, value: int, extent: Size) -> tuple[Int, Int]:
        """The stride found at `key`, now `value`, which is larger than `extent`; and the gap between them, a symbol."""
        self._values[key] = value
        self._size_keys.add(key)
        leaf, least = self._table.leaf(key), self.symbol_of_size(extent)
        sym = Sym(self._next_name(), 1)
        self.hints[sym] = value - int(least.value)
        size = sym + extent
        self._sizes[size] = Symbol(self, leaf, value, size)
        self._expression_sizes[leaf] = size
        gap = self._table.call("sub", leaf, least.expression)
        self._sizes[sym] = Symbol(self, gap, self.hints[sym], sym)
        return wrapped(self._sizes[size]), wrapped(self._sizes[sym])

    def quotient_leaf(self, key: Any, value: int, by: Size) -> tuple[Int, Sym]:
        """The symbolic size found at `key`, now `value`, required to be a multiple of `by` of at least 2 * by; and the
        quotient, a symbol."""
        self._values[key] = value
        self._size_keys.add(key)
        leaf, divisor = self._table.leaf(key), self.symbol_of_size(by)
        times, remainder = divmod(value, int(divisor.value))
        if remainder or times < 2:
            raise ValueError(f"a size of {value} is no multiple of {divisor.value}")
        quotient = self._table.call("floordiv", leaf, divisor.expression)
        modulo = self._table.call("mod", leaf, divisor.expression)
        self._require(self._table.call("eq", modulo, self._table.const(0)), True)
        self._require(self._table.call("ge", quotient, self._table.const(2)), True)
        sym = Sym(self._next_name(), 2)
        self.hints[sym] = times
        self.numbers[sym] = self._sizes[sym] = Symbol(self, quotient, times, sym)
        size = by * sym
        self._sizes[size] = Symbol(self, leaf, value, size)
        self._expression_sizes[leaf], self._expression_sizes[quotient] = size, sym
        return wrapped(self._sizes[size]), sym

    def found_at(self, key: Any) -> tuple[Number, Size | None]:
        """The number at `key` in this call, and the size that stands for it, if one does."""
        return self._values[key], self._expression_sizes.get(self._table.leaf(key))

    def size_of_expression(self, expression: Expression) -> Size | None:
        """The size for a number that is used as one; None if it cannot be a size: it is negative, or not computed by
        sums, products and quotients."""
        if expression not in self._expression_sizes:
            self._expression_sizes[expression] = self._find_size(expression)
        return self._expression_sizes[expression]

    def _find_size(self, expression: Expression) -> Size | None:
        if expression.op == "const":
            number = expression.args[0]
            return number if type(number) is int else None
        if expression.op in ROUNDED:
            return self._rounded_size(expression.args[0], up=expression.op == "ceil")
        if expression.op != "leaf":
            sizes = [self.size_of_expression(e) for e in expression.args]
            operands = [s for s in sizes if s is not None]
            if len(operands) < len(sizes):
                return None
            if expression.op in ("min", "max"):
                return self._min_or_max(expression.op, *operands)
            return size_result(expression.op, operands, self._comparisons.is_positive)
        (key,) = expression.args
        value = self._values[key]
        sym = Sym(self._next_name(), 2)
        if type(value) is not int or abs(value) < 2 or key in self._specialized:
            return None
        if value < 0:
            return self._size_below_zero(key, value, sym)
        size = self._symbolize(key, value, sym)
        if size is not sym:
            return size
        self.check()
        self.hints[sym] = value
        self._require(self._table.call("ge", expression, self._table.const(2)), True)
        self.numbers[sym] = self._sizes[sym] = Symbol(self, expression, value, sym)
        return sym

    def _size_below_zero(self, key: Any, value: int, sym: Sym) -> Size | None:
        """The size for a number of at most -2: an index from the end."""
        if self._symbolize(key, -value, sym) is not sym:
            return None
        self.check()
        leaf = self._table.leaf(key)
        negated = self._table.call("neg", leaf)
        self._require(self._table.call("le", leaf, self._table.const(-2)), True)
        self.hints[sym] = -value
        self.numbers[sym] = self._sizes[sym] = Symbol(self, negated, -value, sym)
        self._expression_sizes[negated] = sym
        return -1 * sym

    def _rounded_size(self, expression: Expression, up: bool) -> Size | None:
        """The size of `int(n / 2)` or `int(n * 0.75)`, whose operand is a float; or of a rounded size."""
        scaled = factor_of(expression)
        size = self.size_of_expression(expression if scaled is None else scaled[0])
        if scaled is None:
            return size
        if size is None or bounds(size)[0] < 0 or self.unbacked.occurs_in(size):
            return None
        _, numerator, denominator = scaled
        self.at_most(size, MOST_ROUNDED)
        return (size * numerator + (denominator - 1 if up else 0)) // denominator

    def _next_name(self) -> str:
        return f"s{len(self.hints) - len(self.unbacked.numbers)}"

    def unbacked_leaf(self, number: UnbackedNumber) -> Int:
        """The unbacked size `number`, with its hint as value."""
        self.check()
        sym, leaf = number.sym, self._table.leaf(number)
        self.unbacked.numbers[sym] = number
        self.hints[sym] = number.hint
        self._sizes[sym] = Symbol(self, leaf, number.hint, sym)
        self._expression_sizes[leaf] = sym
        return wrapped(self._sizes[sym])

    def program_comparison(self, op: str, a: Symbol, b: Symbol) -> Any:
        """A comparison by the program: UnbackedComparison where unbacked sizes, or numbers in tensors, decide it."""
        canonical, left, right = _canonical_comparison(op, a, b)
        holds = op in ("lt", "gt", "eq")
        if a.size is None or b.size is None or not self.unbacked.occurs_in(a.size, b.size):
            number = unbacked_leaf_of(a.expression) or unbacked_leaf_of(b.expression)
            if number is None or self._decides_for_torch:
                return self.call(op, a, b)
            if held_leaves(a.expression) or held_leaves(b.expression):
                return UnbackedComparison(self, canonical, left, right, holds)
            raise self.comparison_error(op, a, b)
        self.check()
        outcome = self._known_outcome(*_canonical_comparison(op, a.size, b.size))
        return (
            UnbackedComparison(self, canonical, left, right, holds) if outcome is None else outcome is holds
        )

    def comparison_error(self, op: str, a: Symbol, b: Symbol) -> Unsupported:
        """The error for a comparison by the program that unbacked numbers decide."""
        if a.size is not None and b.size is not None:
            return self.unbacked.comparison_error(op, a.size, b.size)
        number = unbacked_leaf_of(a.expression) or unbacked_leaf_of(b.expression)
        what = self.comparison(op, a, b)
        return Unsupported(
            Reason(DATA_DEPENDENT, f"{what} decides, where {number} is {number and number.what}")
        )

    def require_equal(self, key: Any, other: Any) -> None:
        """Require the numbers at both keys to be equal at each call."""
        self._require(self._table.call("eq", self._table.leaf(key), self._table.leaf(other)), True)

    def require_size(self, key: Any, size: Expr) -> None:
        """Require the number at `key` to be this size at each call."""
        self._require(
            self._table.call("eq", self._table.leaf(key), self.symbol_of_size(size).expression), True
        )

    def symbol(self, value: Any) -> Symbol:
        """`value` (symbolic or not) as an operand."""
        if type(value) in NUMBERS:
            found: Symbol = value.node
            return found
        if type(value) is not int:
            return Symbol(self, self._table.const(value), value)
        constant = self._constants.get(value)
        if constant is None:
            constant = self._constants[value] = Symbol(self, self._table.const(value), value, value)
        return constant

    def symbol_of_size(self, size: Size) -> Symbol:
        """The symbol of a size: equal sizes have one."""
        found = self._sizes.get(size)
        if found is None:
            found = self._build_symbol(size) if isinstance(size, Expr) else self.symbol(size)
            self._sizes[size] = found
        return found

    def _build_symbol(self, size: Expr) -> Symbol:
        is_quotient = isinstance(size, Quotient)
        operands = [
            self.symbol_of_size(a) if is_quotient or isinstance(a, int | Atom) else self._build_symbol(a)
            for a in size.args
        ]
        total = self._apply(size.op, *operands)
        return Symbol(self, total.expression, total.value, size)

    def _apply(self, op: str, *operands: Symbol) -> Symbol:
        expression = self._table.call(op, *(o.expression for o in operands))
        return Symbol(self, expression, OPERATIONS[op].function(*(o.value for o in operands)))

    def in_size_symbols(self, expression: Expression) -> Expression | None:
        """The expression with size symbols as its leaves; None where a leaf is no size."""
        symbol_of = {symbol.expression: sym for sym, symbol in self._sizes.items() if isinstance(sym, Sym)}

        def converted(e: Expression) -> Expression | None:
            if e in symbol_of:
                return symbol_of[e]
            if e.op in ("const", "leaf"):
                return e if e.op == "const" else None
            args = [converted(a) for a in e.args]
            return None if None in args else self._table.call(e.op, *args)  # type: ignore[arg-type]

        return converted(expression)

    def number(self, size: Size) -> Any:
        """A size as a number that C++ accepts: an int or an Int."""
        return wrapped(self.symbol_of_size(size)) if isinstance(size, Expr) else size

    def layout(self, spec: TensorSpec) -> tuple[list[Any], list[Any], Any]:
        """(shape, stride, offset) of a spec as numbers that C++ accepts."""
        return [*map(self.number, spec.shape)], [*map(self.number, spec.stride)], self.number(spec.offset)

    def compare(self, op: str, a: Size, b: Size) -> bool:
        """A comparison (`lt`, `eq`, ...) of sizes. An outcome that is not the same for all sizes is required of later
        calls."""
        if op in ("ne", "ge", "le"):
            return not self.compare(OPPOSITES[op], a, b)
        if op == "gt":
            return self.compare("lt", b, a)
        outcome = self._known_outcome(op, a, b)
        if outcome is None and self.unbacked.occurs_in(a, b):
            return self._assumed(op, a, b, None)
        if outcome is None:
            simpler = compare_dividend(a - b) if op == "lt" else None
            if simpler is not None:
                smaller, size, than = simpler
                return self.compare("lt" if smaller else "ge", size, than)
            left, right = map(self.symbol_of_size, simplify_comparison(a, b))
            value: bool = OPERATIONS[op].function(left.value, right.value)
            if op == "eq" and value:
                self._check_divisible(a, b)
            outcome = self.guard_outcome(self._table.call(op, left.expression, right.expression), value)
            self._comparisons.record(op, a, b, outcome)
        return outcome

    def _known_outcome(self, op: str, a: Size, b: Size) -> bool | None:
        """The outcome of `lt` or `eq`, also by the sizes that are assumed to be equal; None where it is unknown."""
        outcome = self._comparisons.known_outcome(op, a, b)
        if outcome is None and self.unbacked.equalities:
            outcome = self._comparisons.known_outcome(op, self.unbacked.simplified(a - b), 0)
        return outcome

    def all_equal(self, pairs: Sequence[tuple[int | Int, int | Int]]) -> bool | None:
        """Whether the numbers of each pair are equal, if that is the same for all sizes, or can be one requirement on
        later calls: if they are not all equal, later calls must have some unequal pair. None where they must be
        compared one by one."""
        undecided = []
        for a, b in ((self.symbol(a), self.symbol(b)) for a, b in pairs):
            if a.size is None or b.size is None or self.unbacked.occurs_in(a.size, b.size):
                return None
            outcome = self._known_outcome("eq", a.size, b.size)
            if outcome is False:
                return False
            if outcome is None:
                undecided.append((simplify_comparison(a.size, b.size), a.value == b.value))
        if len(undecided) < 2 or all(equal for _, equal in undecided):
            return None
        self.check()
        total = self.symbol(0)
        for i, ((a_size, b_size), _) in enumerate(undecided):
            distance = self._apply(
                "abs", self._apply("sub", self.symbol_of_size(a_size), self.symbol_of_size(b_size))
            )
            total = self._apply("add", total, distance) if i else distance
        return self.guard_outcome(self._table.call("eq", total.expression, self._table.const(0)), False)

    def bounds(self, sym: Sym) -> tuple[int, int]:
        """The range required of this size symbol in later calls."""
        return self._comparisons.bounds(sym)

    def _check_divisible(self, a: Size, b: Size) -> None:
        """Raise NeedsFixedSize where two sizes are equal only for the current remainders of some symbols: results then
        have no quotients if another capture knows the remainders."""
        divisors = divisors_in((without_common_factors(a - b),))
        if divisors and all(self._request_divisor(sym, by) for sym, by in divisors.items()):
            self.pending_error = NeedsFixedSize(f"{a} is {b}", frozenset(divisors), divisors=divisors)
            raise self.pending_error

    def torch_comparison(self, op: str, a: Symbol, b: Symbol) -> Symbol | None:
        """A comparison of unbacked sizes by torch, which is assumed only where torch needs its outcome; None for other
        comparisons."""
        if a.size is None or b.size is None or not self.unbacked.occurs_in(a.size, b.size):
            return None
        if self._known_outcome(*_canonical_comparison(op, a.size, b.size)) is not None:
            return None
        return DeferredComparison(self, self._table.call(op, a.expression, b.expression), op, a.size, b.size)

    def comparison(self, op: str, a: Symbol, b: Symbol) -> Expression:
        """The expression of a comparison."""
        return self._table.call(op, a.expression, b.expression)

    def expect(self, op: str, a: Size, b: Size, outcome: bool) -> bool:
        """`compare`, but where unbacked sizes decide it, `outcome` is assumed."""
        if op in ("lt", "eq") and self.unbacked.occurs_in(a, b):
            known = self._known_outcome(op, a, b)
            return self._assumed(op, a, b, outcome) if known is None else known
        return self.compare(op, a, b)

    def assume(self, op: str, a: Size, b: Size, outcome: bool = True) -> None:
        """Assume this outcome of `lt` or `eq`; the graph checks it."""
        if self._known_outcome(op, a, b) is not outcome:
            self._assumed(op, a, b, outcome)

    def assume_equal(self, sizes: Mapping[Sym, Size]) -> bool:
        """Assume that these symbols equal these sizes; False, and nothing is assumed, if there are none or one differs."""
        if not sizes or any(self._known_outcome("eq", sym, size) is False for sym, size in sizes.items()):
            return False
        for sym, size in sizes.items():
            self.assume("eq", sym, size)
        return True

    def _assumed(self, op: str, a: Size, b: Size, outcome: bool | None) -> bool:
        """Assume an outcome of a comparison of unbacked sizes: `outcome`, or that of the hints."""
        if outcome is None:
            outcome = bool(
                OPERATIONS[op].function(self.symbol_of_size(a).value, self.symbol_of_size(b).value)
            )
        self.unbacked.assume(op, a, b, outcome)
        if op == "eq" and outcome:
            self.unbacked.add_equality(a, b)
        self._comparisons.record(op, a, b, outcome)
        return outcome

    def at_least(self, size: Size, least: int) -> None:
        """Require `size` to be at least `least`. Raises NeedsFixedSize where it is not."""
        if bounds(size)[0] < least and not self.compare("ge", size, least):
            ranges = constant_range(size, self.hints)
            divisors = {} if ranges else divisors_in((size,))
            raise NeedsFixedSize(
                f"{size} is less than {least}", free_syms(size), now=True, divisors=divisors, ranges=ranges
            )

    def is_specialized(self, expression: Expression) -> bool:
        """Whether the trace depends on the value of every leaf already."""
        return all(key in self._specialized for key in leaves(expression))

    def specialize(self, expression: Expression) -> None:
        """Make the trace depend on the current value of the expression: its leaves must be the same in later calls."""
        for key in leaves(expression):
            if isinstance(key, UnbackedNumber):
                raise Unsupported(Reason(DATA_DEPENDENT, f"the program needs the value of {key.what}"))
            if key not in self._specialized:
                if key not in self._size_keys:
                    self.check()
                self._specialize(key, self._values[key])  # C++ code may drop its exception and ask again
                self._specialized.add(key)

    def request_constant_range(self, size: Size | None) -> bool:
        """Whether a size that is needed as a number has the same value for a range of sizes, and another capture will
        know this range."""
        if not isinstance(size, Expr) or self.unbacked.occurs_in(size):
            return False
        accepted = self._range_requests.get(size)
        if accepted is None:
            ranges = constant_range(size, self.hints)
            accepted = bool(ranges) and all(self._request_range(sym, *ends) for sym, ends in ranges.items())
            self._range_requests[size] = accepted
        return accepted

    def call(self, op: str, *operands: Symbol) -> Any:
        """The operation on these operands: a symbolic number, or a plain one where it is specialized. Raises what the
        operation raises."""
        if any(o.size is None for o in operands):
            self.check()
        if any(isinstance(o.size, Expr) for o in operands):
            result = self._size_operation(op, operands)
            if result is not NotImplemented:
                return result
        expression = self._table.call(op, *(o.expression for o in operands))
        try:
            value = OPERATIONS[op].function(*(o.value for o in operands))
        except Exception:
            self.specialize(expression)  # its handler depends on these numbers
            raise
        if type(value) is bool:
            return self.guard_outcome(expression, value)
        if self.is_specialized(expression):
            return value
        if expression.n_operations > MAX_SIZE or type(value) not in (int, float):
            self.specialize(expression)
            return value
        if OPERATIONS[op].partial:
            self._require_type(expression, type(value))
        return wrapped(Symbol(self, expression, value))

    def _min_or_max(self, op: str, a: Size, b: Size) -> Size | None:
        """The smaller or larger of two sizes; None where unbacked sizes decide it."""
        if self.unbacked.occurs_in(a, b) and self._known_outcome("lt", a, b) is None:
            return None
        return a if self.compare("le" if op == "min" else "ge", a, b) else b

    def at_most(self, size: Size, most: int) -> None:
        """Require `size` to be at most `most`. Raises NeedsFixedSize where it is not."""
        if bounds(size)[1] > most and not self.compare("le", size, most):
            raise NeedsFixedSize(f"{size} is more than {most}", free_syms(size), now=True)

    def _size_operation(self, op: str, operands: tuple[Symbol, ...]) -> Any:
        """The operation on sizes whose result is a size or a comparison; NotImplemented for others."""
        sizes = [o.size for o in operands if o.size is not None]
        if len(sizes) != len(operands):
            return NotImplemented
        if op in COMPARED:
            return self.compare(op, *sizes)
        if op in ("min", "max"):
            size = self._min_or_max(op, *sizes)
        else:
            size = size_result(op, sizes, self._comparisons.is_positive)
        return NotImplemented if size is None else self.number(size)

    def guard_outcome(self, expression: Expression, value: bool) -> bool:
        """The outcome of a comparison, which is required of later calls."""
        if not self.is_specialized(expression):
            number = unbacked_leaf_of(expression)
            if number is None:
                self._require(expression, value)
            else:
                self._assume_number(expression, value, number)
        return value

    def _assume_number(self, expression: Expression, value: bool, number: UnbackedNumber) -> None:
        condition = self.in_size_symbols(expression)
        if condition is None:
            raise Unsupported(Reason(DATA_DEPENDENT, f"{expression}, where {number.what} decides"))
        self.unbacked.conditions.append(NumberCondition(condition, value))

    def _require_type(self, expression: Expression, kind: type) -> None:
        number = unbacked_leaf_of(expression)
        if number is not None:
            if expression.op in ("pow", "round_to"):
                raise Unsupported(Reason(DATA_DEPENDENT, f"{expression}, whose type {number.what} decides"))
            return  # the types of the operands determine that of other results
        self._require(expression, kind)


def _canonical_comparison(op: str, a: T, b: T) -> tuple[str, T, T]:
    """The `lt` or `eq` that decides a comparison: with the same outcome, or for `ge`, `le` and `ne` the opposite
    one."""
    left, right = (b, a) if op in ("gt", "le") else (a, b)
    return ("eq" if op in ("eq", "ne") else "lt"), left, right


def _after_capture(*what: Any) -> Any:
    raise RuntimeError(f"a guard on {what[0]} after capture")
