"""Symbolic numbers: real `torch.SymInt` and `torch.SymFloat` objects that stand for numbers which change from call to call.

A symbolic number (`Int`, `Float`) holds a `Symbol`: an expression (`smelt.shapes.expr`) and the value that it
has in the call being traced. Arithmetic builds expressions. A comparison is decided at once by the value, and what was
decided is required of later calls. Whatever needs the number itself (an index, a hash, text, C code that wants an int)
*pins* it: the numbers it was computed from are then required to be the same again, and the plain number is used. So a
symbolic number is safe in the hands of any code; at worst it is not symbolic any more.

The sizes of tensors are such numbers too, where they change. Their symbols hold a `Size` besides, which sums, products and
quotients of sizes keep: what is the same for all sizes is then decided without a guard.

A number that only the graph gives (`DataNumber`: how many elements a mask selects) has no value yet. What torch decides by
it is assumed; what the program decides by it ends the graph, unless it holds for all numbers from two on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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
from smelt.shapes.number_operations import OPERATIONS, Number
from smelt.tracing.symbolic.size_arithmetic import (
    COMPARED,
    MOST_ROUNDED,
    ROUNDED,
    Comparisons,
    computed,
    factor_of,
    of_dividend,
    reduced,
)
from smelt.tracing.symbolic.sym_nodes import Deferred, Symbol, Undecided
from smelt.tracing.symbolic.sym_numbers import NUMBERS, Float, Int, wrapped
from smelt.tracing.symbolic.unbacked_numbers import DataNumber, Known, NumberCondition, data_leaf_of

MAX_SIZE = 100  # operations of an expression; a larger one is pinned


class PlainNumbersOnly(Unsupported):
    """Something is to be captured that cannot hold symbolic numbers, wherever they may be in it."""


class Symbols:
    """The symbolic numbers of one trace.

    Args:
        pin: `pin(key, value)` is called once for each leaf whose value the trace comes to depend on.
        require: `require(expression, expected)`: the trace depends on the expression being `expected` (True, False), or
            of exactly that type (int, float).
        take: `take(key, value, sym)` gives the size that the number found there, an int of at least 2, may be: `sym`, which
            is new, or one that it is required to be equal to; or None.
        divide: `divide(sym, divisor)` says whether another capture may know what the size leaves when divided.
        narrow: `narrow(sym, low, high)` says whether another capture will know that the size is in [low, high]; then what
            comes of this one does not matter.
        has_changed: `has_changed(sym)` says whether the size was another one in an earlier call.
    """

    def __init__(
        self,
        pin: Callable[[Any, Number], None],
        require: Callable[[Expression, Any], None],
        take: Callable[[Any, int, Sym], Size | None] = lambda key, value, sym: None,
        divide: Callable[[Sym, int], bool] = lambda sym, divisor: False,
        narrow: Callable[[Sym, int, int], bool] = lambda sym, low, high: False,
        has_changed: Callable[[Sym], bool] = lambda sym: False,
    ) -> None:
        self._pin = pin
        self._require = require
        self._take = take
        self._divide = divide
        self._narrow = narrow
        self.has_changed = has_changed
        self._narrowed: dict[Expr, bool] = {}
        self._table = Table()
        self._values: dict[Any, Number] = {}
        self._pinned: set[Any] = set()
        self._of_tensors: set[Any] = set()  # the keys of sizes
        self._sizes: dict[Size, Symbol] = {}  # symbols of sizes, by the size
        self._comparisons = Comparisons()
        self.of_sizes: dict[tuple[Any, ...], Symbol] = {}  # results, by operation and operands
        self._taken: dict[Expression, Size | None] = {}  # numbers, as sizes
        self.numbers: dict[Sym, Symbol] = {}  # of symbols of sizes that are not those of tensors
        # Tensors of such sizes, to make others like them: by their spec's id, and whether they are of inference mode.
        self.metas: dict[tuple[int, tuple[bool, ...]], tuple[TensorSpec, torch.Tensor]] = {}
        self._constants: dict[int, Symbol] = {}
        self.has_standins = False  # whether the program has ranges, lists or NumPy's ints that are symbolic
        self.hints: dict[Sym, int] = {}  # what the symbols of sizes are in this call
        self.known = Known()  # what is known, and assumed, of numbers that only the graph gives
        self._refused: PlainNumbersOnly | None = None
        self.refusal: NeedsFixedSize | None = None  # raised in a comparison, by the call that runs

    @contextmanager
    def refused(self, error: PlainNumbersOnly) -> Iterator[None]:
        """Raises `error` where a symbolic number is used inside that is no size of a tensor: the trace does not come to
        depend on it that way."""
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
        self._pin = self._require = self._take = self._divide = self._narrow = self.has_changed = _over
        self.refusal = None  # whose traceback holds frames

    def leaf(self, key: Any, value: Number) -> Int | Float:
        """The symbolic number found at `key` (hashable by identity), now `value`."""
        self.check()
        self._values[key] = value
        return wrapped(Symbol(self, self._table.leaf(key), value))

    def size_leaf(
        self,
        key: Any,
        value: int,
        least: int = 2,
        most: int = INFINITE,
        divisor: int = 1,
        any_rest: bool = False,
    ) -> Int:
        """The symbolic size found at `key`, now `value`: a symbol of its own, required to be in [least, most]; least >= 2.
        With a `divisor` of at most `value`, divisor times a symbol and the remainder, which is required to stay the same;
        or, if it is not 0, to be `any_rest` but that, a symbol too."""
        if not 2 <= least <= value <= most or value < divisor:
            raise ValueError(f"a size of {value} is not symbolic in [{least}, {most}], by {divisor}")
        self._values[key] = value
        self._of_tensors.add(key)
        leaf = self._table.leaf(key)
        least = max(least, divisor)
        for op, bound, none in (("ge", least, 2), ("le", most, INFINITE)):
            if bound != none:
                self._require(self._table.call(op, leaf, self._table.const(bound)), True)
        times, rest = divmod(value, divisor)
        highest = most if most == INFINITE else (most - rest) // divisor
        sym = Sym(self._next_name(), -(-(least - rest) // divisor), highest)
        self.hints[sym] = times
        left: Size = rest
        if divisor > 1:
            by = self._table.const(divisor)
            remainder = self._table.call("mod", leaf, by)
            varies = any_rest and rest > 0 and divisor > 2
            self._require(
                self._table.call("eq", remainder, self._table.const(0 if varies else rest)), not varies
            )
            self._sizes[sym] = Symbol(self, self._table.call("floordiv", leaf, by), times, sym)
            if varies:
                left = remainder_symbol(len(self.hints) - len(self.known.numbers), divisor)
                self.hints[left] = rest
                self._sizes[left] = Symbol(self, remainder, rest, left)
        size = sym * divisor + left
        self._sizes[size] = Symbol(self, leaf, value, size)
        self._taken[leaf] = size
        return wrapped(self._sizes[size])

    def stride_leaf(self, key: Any, value: int, room: Size) -> tuple[Int, Int]:
        """The stride found at `key`, now `value`, which is larger than `room`; and the gap that is left, a symbol."""
        self._values[key] = value
        self._of_tensors.add(key)
        leaf, least = self._table.leaf(key), self.of_size(room)
        sym = Sym(self._next_name(), 1)
        self.hints[sym] = value - int(least.value)
        size = sym + room
        self._sizes[size] = Symbol(self, leaf, value, size)
        self._taken[leaf] = size
        gap = self._table.call("sub", leaf, least.expression)
        self._sizes[sym] = Symbol(self, gap, self.hints[sym], sym)
        return wrapped(self._sizes[size]), wrapped(self._sizes[sym])

    def quotient_leaf(self, key: Any, value: int, by: Size) -> tuple[Int, Sym]:
        """The symbolic size found at `key`, now `value`, required to be a multiple of `by`, two times or more; and how many
        times, a symbol."""
        self._values[key] = value
        self._of_tensors.add(key)
        leaf, divisor = self._table.leaf(key), self.of_size(by)
        times, rest = divmod(value, int(divisor.value))
        if rest or times < 2:
            raise ValueError(f"a size of {value} is no multiple of {divisor.value}")
        quotient = self._table.call("floordiv", leaf, divisor.expression)
        remainder = self._table.call("mod", leaf, divisor.expression)
        self._require(self._table.call("eq", remainder, self._table.const(0)), True)
        self._require(self._table.call("ge", quotient, self._table.const(2)), True)
        sym = Sym(self._next_name(), 2)
        self.hints[sym] = times
        self.numbers[sym] = self._sizes[sym] = Symbol(self, quotient, times, sym)
        size = by * sym
        self._sizes[size] = Symbol(self, leaf, value, size)
        self._taken[leaf], self._taken[quotient] = size, sym
        return wrapped(self._sizes[size]), sym

    def taken_for_size(self, expression: Expression) -> Size | None:
        """The size that a number is where it is used as one; None where it may be none, as it is negative or is not computed
        by sums, products and quotients."""
        if expression not in self._taken:
            self._taken[expression] = self._take_for_size(expression)
        return self._taken[expression]

    def _take_for_size(self, expression: Expression) -> Size | None:
        if expression.op == "const":
            number = expression.args[0]
            return number if type(number) is int else None
        if expression.op in ROUNDED:
            return self._rounded(expression.args[0], up=expression.op == "ceil")
        if expression.op != "leaf":
            sizes = [self.taken_for_size(e) for e in expression.args]
            known = [s for s in sizes if s is not None]
            if len(known) < len(sizes):
                return None
            if expression.op in ("min", "max"):
                return self._extreme(expression.op, *known)
            return computed(expression.op, known, self._comparisons.is_positive)
        (key,) = expression.args
        value = self._values[key]
        sym = Sym(self._next_name(), 2)
        if type(value) is not int or value < 2 or key in self._pinned:
            return None
        taken = self._take(key, value, sym)
        if taken is not sym:
            return taken
        self.check()
        self.hints[sym] = value
        self._require(self._table.call("ge", expression, self._table.const(2)), True)
        self.numbers[sym] = self._sizes[sym] = Symbol(self, expression, value, sym)
        return sym

    def _rounded(self, expression: Expression, up: bool) -> Size | None:
        """The size that rounding `n / 2`, or `n * 0.75`, gives, which are floats; or a size."""
        found = factor_of(expression)
        size = self.taken_for_size(expression if found is None else found[0])
        if found is None:
            return size
        if size is None or bounds(size)[0] < 0 or self.known.concerns(size):
            return None
        _, above, below = found
        self.at_most(size, MOST_ROUNDED)
        return (size * above + (below - 1 if up else 0)) // below

    def _next_name(self) -> str:
        return f"s{len(self.hints) - len(self.known.numbers)}"

    def data_leaf(self, number: DataNumber) -> Int:
        """A size that only the graph gives, taken for its hint."""
        self.check()
        sym, leaf = number.sym, self._table.leaf(number)
        self.known.numbers[sym] = number
        self.hints[sym] = number.hint
        self._sizes[sym] = Symbol(self, leaf, number.hint, sym)
        self._taken[leaf] = sym
        return wrapped(self._sizes[sym])

    def asked(self, op: str, a: Symbol, b: Symbol) -> Any:
        """A comparison of the program's: Undecided where data decide."""
        if a.size is None or b.size is None or not self.known.concerns(a.size, b.size):
            found = data_leaf_of(a.expression) or data_leaf_of(b.expression)
            if found is None:
                return self.call(op, a, b)
            what = self._table.call(op, a.expression, b.expression)
            raise Unsupported(Reason(DATA_DEPENDENT, f"{what} decides, where {found.sym} is {found.what}"))
        self.check()
        plain, left, right = _plain_comparison(op, a.size, b.size)
        answer, holds = self._comparisons.decided(plain, left, right), op in ("lt", "gt", "eq")
        return Undecided(self, plain, left, right, holds) if answer is None else answer is holds

    def require_equal(self, key: Any, other: Any) -> None:
        """The numbers found at both places are equal at each call."""
        self._require(self._table.call("eq", self._table.leaf(key), self._table.leaf(other)), True)

    def require_size(self, key: Any, size: Expr) -> None:
        """The number found there is this size at each call."""
        self._require(self._table.call("eq", self._table.leaf(key), self.of_size(size).expression), True)

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

    def of_size(self, size: Size) -> Symbol:
        """The symbol of a size: equal sizes have one."""
        found = self._sizes.get(size)
        if found is None:
            found = self._made_of_size(size) if isinstance(size, Expr) else self.symbol(size)
            self._sizes[size] = found
        return found

    def _made_of_size(self, size: Expr) -> Symbol:
        is_quotient = isinstance(size, Quotient)
        operands = [
            self.of_size(a) if is_quotient or isinstance(a, int | Atom) else self._made_of_size(a)
            for a in size.args
        ]
        total = self._plainly(size.op, *operands)
        return Symbol(self, total.expression, total.value, size)

    def _plainly(self, op: str, *operands: Symbol) -> Symbol:
        expression = self._table.call(op, *(o.expression for o in operands))
        return Symbol(self, expression, OPERATIONS[op].function(*(o.value for o in operands)))

    def over_sizes(self, expression: Expression) -> Expression | None:
        """The expression with the symbols of sizes as its leaves; None where a leaf is no size."""
        found = {symbol.expression: sym for sym, symbol in self._sizes.items() if isinstance(sym, Sym)}

        def made(e: Expression) -> Expression | None:
            if e in found:
                return found[e]
            if e.op in ("const", "leaf"):
                return e if e.op == "const" else None
            args = [made(a) for a in e.args]
            return None if None in args else self._table.call(e.op, *args)  # type: ignore[arg-type]

        return made(expression)

    def number(self, size: Size) -> Any:
        """A size as a number that C++ takes: an int or an Int."""
        return wrapped(self.of_size(size)) if isinstance(size, Expr) else size

    def layout(self, spec: TensorSpec) -> tuple[list[Any], list[Any], Any]:
        """(shape, stride, offset) of a spec as numbers that C++ takes."""
        return [*map(self.number, spec.shape)], [*map(self.number, spec.stride)], self.number(spec.offset)

    def compare(self, op: str, a: Size, b: Size) -> bool:
        """A comparison (`lt`, `eq`, ...) of sizes. What is not the same for all sizes is required of later calls."""
        if op in ("ne", "ge", "le"):
            return not self.compare(_OPPOSITE[op], a, b)
        if op == "gt":
            return self.compare("lt", b, a)
        answer = self._comparisons.decided(op, a, b)
        if answer is None and self.known.concerns(a, b):
            return self._assumed(op, a, b, None)
        if answer is None:
            simpler = of_dividend(a - b) if op == "lt" else None
            if simpler is not None:
                smaller, size, than = simpler
                return self.compare("lt" if smaller else "ge", size, than)
            left, right = map(self.of_size, reduced(a, b))
            value: bool = OPERATIONS[op].function(left.value, right.value)
            if op == "eq" and value:
                self._check_divisible(a, b)
            answer = self.decide(self._table.call(op, left.expression, right.expression), value)
            self._comparisons.note(op, a, b, answer)
        return answer

    def all_equal(self, pairs: Sequence[tuple[int | Int, int | Int]]) -> bool | None:
        """Whether the numbers of each pair are equal, if that is the same for all sizes, or is required of later calls at
        once: where they are not, later calls are required to have a pair that is not, whichever. None where they are to be
        compared one by one."""
        left_open = []
        for a, b in ((self.symbol(a), self.symbol(b)) for a, b in pairs):
            if a.size is None or b.size is None or self.known.concerns(a.size, b.size):
                return None
            answer = self._comparisons.decided("eq", a.size, b.size)
            if answer is False:
                return False
            if answer is None:
                left_open.append((reduced(a.size, b.size), a.value == b.value))
        if len(left_open) < 2 or all(equal for _, equal in left_open):
            return None
        self.check()
        total = self.symbol(0)
        for i, ((a_size, b_size), _) in enumerate(left_open):
            distance = self._plainly("abs", self._plainly("sub", self.of_size(a_size), self.of_size(b_size)))
            total = self._plainly("add", total, distance) if i else distance
        return self.decide(self._table.call("eq", total.expression, self._table.const(0)), False)

    def bounds(self, sym: Sym) -> tuple[int, int]:
        """The range that later calls are required to have this symbol of a size in."""
        return self._comparisons.bounds(sym)

    def _check_divisible(self, a: Size, b: Size) -> None:
        """Raises NeedsFixedSize where sizes are equal for what some leave when divided: what is computed after that has no
        quotients if this is known."""
        divisors = divisors_in((without_common_factors(a - b),))
        if divisors and all(self._divide(sym, by) for sym, by in divisors.items()):
            self.refusal = NeedsFixedSize(f"{a} is {b}", frozenset(divisors), divisors=divisors)
            raise self.refusal

    def deferred(self, op: str, a: Symbol, b: Symbol) -> Symbol | None:
        """A comparison of torch's that data decide, which is assumed only where torch cannot do without; else None."""
        if a.size is None or b.size is None or not self.known.concerns(a.size, b.size):
            return None
        if self._comparisons.decided(*_plain_comparison(op, a.size, b.size)) is not None:
            return None
        return Deferred(self, self._table.call(op, a.expression, b.expression), op, a.size, b.size)

    def comparison(self, op: str, a: Size, b: Size) -> Expression:
        """The expression of a comparison of sizes."""
        return self._table.call(op, self.of_size(a).expression, self.of_size(b).expression)

    def expect(self, op: str, a: Size, b: Size, answer: bool) -> bool:
        """The same where data decide, and mostly so: it is assumed."""
        if op in ("lt", "eq") and self.known.concerns(a, b):
            found = self._comparisons.decided(op, a, b)
            return self._assumed(op, a, b, answer) if found is None else found
        return self.compare(op, a, b)

    def assume(self, op: str, a: Size, b: Size, answer: bool = True) -> None:
        """From now on this is the answer of `lt` or `eq`, which the graph checks."""
        if self._comparisons.decided(op, a, b) is not answer:
            self._assumed(op, a, b, answer)

    def _assumed(self, op: str, a: Size, b: Size, answer: bool | None) -> bool:
        """What a comparison is assumed to be that data decide: `answer`, or what it is for the hints."""
        if answer is None:
            answer = bool(OPERATIONS[op].function(self.of_size(a).value, self.of_size(b).value))
        self.known.assume(op, a, b, answer)
        if op == "eq" and answer:
            self.known.equal(a, b)
        self._comparisons.note(op, a, b, answer)
        return answer

    def at_least(self, size: Size, least: int) -> None:
        """Requires that `size` is `least` or more. Raises NeedsFixedSize where it is not."""
        if bounds(size)[0] < least and not self.compare("ge", size, least):
            ranges = constant_range(size, self.hints)
            divisors = {} if ranges else divisors_in((size,))
            raise NeedsFixedSize(
                f"{size} is less than {least}", free_syms(size), now=True, divisors=divisors, ranges=ranges
            )

    def is_pinned(self, expression: Expression) -> bool:
        """Whether the trace depends on the value of every leaf already."""
        return all(key in self._pinned for key in leaves(expression))

    def pin(self, expression: Expression) -> None:
        """The trace depends on the value that the expression has now: its leaves must be the same at later calls."""
        for key in leaves(expression):
            if isinstance(key, DataNumber):
                raise Unsupported(Reason(DATA_DEPENDENT, f"{key.what} is needed as a number"))
            if key not in self._pinned:
                if key not in self._of_tensors:
                    self.check()
                self._pinned.add(key)
                self._pin(key, self._values[key])

    def is_narrowed(self, size: Size | None) -> bool:
        """Whether a size that is needed as a number is the same for other sizes than those of this call as well, which
        another capture will know."""
        if not isinstance(size, Expr) or self.known.concerns(size):
            return False
        found = self._narrowed.get(size)
        if found is None:
            ranges = constant_range(size, self.hints)
            found = bool(ranges) and all(self._narrow(sym, *ends) for sym, ends in ranges.items())
            self._narrowed[size] = found
        return found

    def call(self, op: str, *operands: Symbol) -> Any:
        """The operation on these operands: a symbolic number, or a plain one where nothing in it may change. Raises what
        the operation raises."""
        if any(o.size is None for o in operands):
            self.check()
        if any(isinstance(o.size, Expr) for o in operands):
            made = self._of_sizes(op, operands)
            if made is not NotImplemented:
                return made
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
        if expression.n_operations > MAX_SIZE or type(value) not in (int, float):
            self.pin(expression)
            return value
        if OPERATIONS[op].partial:
            self._require_type(expression, type(value))
        return wrapped(Symbol(self, expression, value))

    def _extreme(self, op: str, a: Size, b: Size) -> Size | None:
        """The smaller, or larger, of two sizes; None where data decide."""
        if self.known.concerns(a, b) and self._comparisons.decided("lt", a, b) is None:
            return None
        return a if self.compare("le" if op == "min" else "ge", a, b) else b

    def at_most(self, size: Size, most: int) -> None:
        """Requires that `size` is `most` or less, likewise."""
        if bounds(size)[1] > most and not self.compare("le", size, most):
            raise NeedsFixedSize(f"{size} is more than {most}", free_syms(size), now=True)

    def _of_sizes(self, op: str, operands: tuple[Symbol, ...]) -> Any:
        """The operation where the operands are sizes and so is the result, or it says which is larger."""
        sizes = [o.size for o in operands if o.size is not None]
        if len(sizes) != len(operands):
            return NotImplemented
        if op in COMPARED:
            return self.compare(op, *sizes)
        if op in ("min", "max"):
            found = self._extreme(op, *sizes)
            return NotImplemented if found is None else self.number(found)
        made = computed(op, sizes, self._comparisons.is_positive)
        return NotImplemented if made is None else self.number(made)

    def decide(self, expression: Expression, value: bool) -> bool:
        """The answer to a comparison, which is required of later calls."""
        if not self.is_pinned(expression):
            found = data_leaf_of(expression)
            if found is None:
                self._require(expression, value)
            else:
                self._assume_number(expression, value, found)
        return value

    def _assume_number(self, expression: Expression, value: bool, number: DataNumber) -> None:
        made = self.over_sizes(expression)
        if made is None:
            raise Unsupported(Reason(DATA_DEPENDENT, f"{expression}, where {number.what} decides"))
        self.known.conditions.append(NumberCondition(made, value))

    def _require_type(self, expression: Expression, kind: type) -> None:
        found = data_leaf_of(expression)
        if found is not None:
            if expression.op in ("pow", "round_to"):
                raise Unsupported(Reason(DATA_DEPENDENT, f"{expression}, whose type {found.what} decides"))
            return  # of others, the types of the operands decide
        self._require(expression, kind)


def _plain_comparison(op: str, a: Size, b: Size) -> tuple[str, Size, Size]:
    """The `lt` or `eq` that decides a comparison: it says the same, or for `ge`, `le` and `ne` the opposite."""
    left, right = (b, a) if op in ("gt", "le") else (a, b)
    return ("eq" if op in ("eq", "ne") else "lt"), left, right


_OPPOSITE = {"ne": "eq", "ge": "lt", "le": "gt"}


def _over(*what: Any) -> Any:
    raise RuntimeError(f"a guard on {what[0]} after capture")
