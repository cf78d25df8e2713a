"""Dynamic ints and floats of the environment: those that differ between calls are symbolic, all others are specialized."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from smelt._native import isinstance
from smelt.capture.environment.guard_facts import GuardFacts
from smelt.capture.environment.symbolic_size_policy import SymbolSources
from smelt.errors import Unsupported
from smelt.guards.source import Source
from smelt.reasons import CHANGING_VALUE, DATA_DEPENDENT, RANDOM_STATE, Reason
from smelt.shapes.expr import Expr, Expression, Size, Sym, leaves
from smelt.shapes.number_bounds import Bounds, always
from smelt.tracing.record.trace import Trace
from smelt.tracing.symbolic.sym_numbers import Float, Int, size_of
from smelt.tracing.symbolic.symbolic_numbers import PlainNumbersOnly, Symbols
from smelt.user_lines import Line


class DynamicNumbers:
    """Which numbers are symbolic, and their symbolic values."""

    writes: Any  # the state of `tensor_item.py` about the memory that operators wrote

    def __init__(self, trace: Trace, facts: GuardFacts) -> None:
        self._trace = trace
        self._facts = facts
        # paths of the numbers that change between calls
        self.dynamic: frozenset[tuple[object, ...]] = frozenset()
        self.symbolic_counts = False  # numbers in tensors of one element are symbolic from the first call on
        self.guards_conditions = True  # conditions on such numbers are guarded
        self.readings: set[Source] = set()  # reads of tensors of one element
        self.counted: set[Source] = set()  # numbers that iterators count up
        self.has_proxies = False  # the program has been given a `NumberProxy`
        self.writes = None
        self._at: dict[Source, object] = {}  # the symbolic number at each source
        self.drawn: dict[Source, Bounds] = {}  # random numbers, and their bounds
        self.sizes: set[Source] = set()  # sizes of tensors
        self.symbol_sources = SymbolSources()
        # the sizes that must be specialized, and the line that needs it: the capture is discarded
        self.needed: dict[Source, Line | None] = {}

    def read(self, value: int | float, source: Source) -> object:
        """The number at `source`: symbolic if it changed between calls, else specialized."""
        number = self._at.get(source)
        if number is None:
            fits = type(value) is float or (type(value) is int and value.bit_length() <= 63)
            if source.path not in self.dynamic or not fits:  # a bool is specialized
                self._facts.guard("eq", source, value)
                return value
            number = self._derived(value, source)
        return self.at(source, value) if number is None else number

    def _derived(self, value: int | float, source: Source) -> object:
        """The number at `source`, if it derives from other sizes, or others from it, as before a break; else None."""
        if type(value) is not int or self.symbol_sources.policy.size_before_break(source.path) is None:
            return None
        size = self.symbol_sources.derive(source, value, self.symbols().hints)
        if isinstance(size, int):
            self._facts.guard("eq", source, value)
            return value
        if size is not None:
            self._facts.guard("number", source, int)
            self.symbols().require_size(source, size)
            self._at[source] = self.symbols().number(size)
        elif value >= 2 and self.symbol_sources.policy.has_derived(source.path):
            size_of(self.at(source, value))
        return self._at.get(source)

    def at(self, source: Source, value: int | float) -> object:
        """The symbolic number at `source`, now `value`."""
        number = self._at.get(source)
        if number is None:
            self._facts.guard("number", source, type(value))
            number = self._at[source] = self.symbols().leaf(source, value)
        return number

    def source_of(self, number: Int | Float) -> Source | None:
        """Where the environment holds the object that a symbolic number stands for; None for a result."""
        expression = number.node.expression
        source = expression.args[0] if expression.op == "leaf" else None
        return source if source in self._at and source not in self.unguarded else None

    def size(
        self, source: Source, value: int, least: int, most: int, divisor: int, any_remainder: bool
    ) -> Int:
        """The symbolic size at `source`, now `value`, guarded to be from `least` to `most` and to keep its remainder by
        `divisor`; with `any_remainder`, a nonzero remainder is symbolic."""
        self.sizes.add(source)
        return self.symbols().size_leaf(source, value, least, most, divisor, any_remainder)

    def multiple(self, source: Source, value: int, by: Size) -> tuple[Int, Sym]:
        """The symbolic size at `source`, now `value`, guarded to be a multiple of `by`; and the symbol of the factor."""
        self.sizes.add(source)
        return self.symbols().quotient_leaf(source, value, by)

    def guard_equal(self, first: Source, second: Source) -> None:
        """Guard that the sizes at two sources are equal."""
        self.symbols().require_equal(first, second)

    def guard_size(self, source: Source, size: Expr) -> None:
        """Guard that the size at `source` equals an expression."""
        self.symbols().require_size(source, size)
        self.symbols().at_least(size, 2)

    def stride(self, source: Source, value: int, extent: Int | int) -> tuple[Int, Int]:
        """The symbolic stride at `source`, now `value`, and how much it exceeds `extent`."""
        self.sizes.add(source)
        return self.symbols().stride_leaf(source, value, size_of(extent))

    def require_at_least(self, number: Int | int, least: Int | int) -> None:
        """Guard that a size or number is at least `least`."""
        self.symbols().compare("ge", size_of(number), size_of(least))

    @property
    def unguarded(self) -> Iterator[Source]:
        """The sources of numbers that are symbolic from the first call on: tensor elements, random numbers and counts."""
        return itertools.chain(self.readings, self.drawn, self.counted)

    def draw(self, source: Source, value: int | float, bounds: Bounds) -> object:
        """The symbolic random number that the compiled frame draws; `value` is an example."""
        self.drawn[source] = bounds
        return self.symbols().leaf(source, value)

    def counter(self, value: int, source: Source) -> object:
        """The current number of a counting iterator: symbolic from the first call on, if step counts are."""
        if not self.symbolic_counts or value.bit_length() > 63:
            return self.read(value, source)
        self.counted.add(source)
        return self.at(source, value)

    def symbols(self) -> Symbols:
        """The symbolic numbers of this capture, created on first use."""
        numbers = self._trace.numbers
        if numbers.symbols is None:
            numbers.symbols = Symbols(
                self._pin,
                self._require,
                self._take,
                self.symbol_sources.may_learn_divisor,
                self.symbol_sources.narrow_range,
                self.symbol_sources.has_changed,
            )
        return numbers.symbols

    def _take(self, source: Source, value: int, sym: Sym) -> Size | None:
        changed = source.path in self.dynamic and source not in self.sizes
        if (
            not changed
            or source in set(self.unguarded)
            or self.symbol_sources.policy.is_specialized(source.path)
        ):
            return None
        if not self.symbol_sources.policy.must_be_equal(source.path):
            self.symbol_sources.register_symbols(source, sym)
            self.symbol_sources.record(source, sym)
            return sym
        first, size = self.symbol_sources.find_equal(source, value) or (source, sym)
        if first is source:
            self.symbol_sources.register_equal(source, value, sym)
        else:
            self.guard_equal(first, source)
        self.symbol_sources.record(source, size)
        return size

    def _pin(self, source: Source, value: object) -> None:
        if source in self.readings:
            raise PlainNumbersOnly(Reason(DATA_DEPENDENT, "a number that a tensor holds"))
        if source in self.drawn:
            raise Unsupported(Reason(RANDOM_STATE, f"the number that random.{source.key} gives is needed"))
        if source in self.sizes:
            if self.symbol_sources.policy.is_unguarded((source.path,)):
                raise Unsupported(Reason(CHANGING_VALUE, f"the size {source}"))
            self.needed.setdefault(source, self._facts.current_line())
            return
        self._facts.guard("eq", source, value)

    def _require(self, expression: Expression, expected: object) -> None:
        drawn = next((source for source in leaves(expression) if source in self.drawn), None)
        if drawn is not None:
            if not always(expression, expected, self.drawn):
                raise Unsupported(Reason(RANDOM_STATE, f"what random.{drawn.key} gives decides"))
            return
        for source in leaves(expression):
            self._facts.check_guarded("expression", source)
        self._facts.guard(
            "expression", leaves(expression)[0], (expression, expected), key=(expression, expected)
        )
