"""Numbers from outside that change from call to call: they are symbolic, all others are part of the trace."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from smelt._native import isinstance
from smelt.capture.environment.guard_facts import Facts
from smelt.capture.environment.symbolic_size_policy import SizePlaces
from smelt.errors import Unsupported
from smelt.guards.source import Source
from smelt.reasons import DATA_DEPENDENT, RANDOM_STATE, Reason
from smelt.shapes.expr import Expr, Expression, Size, Sym, leaves
from smelt.shapes.number_bounds import Bounds, always
from smelt.tracing.record.trace import Trace
from smelt.tracing.symbolic.sym_numbers import Int, size_of
from smelt.tracing.symbolic.symbolic_numbers import PlainNumbersOnly, Symbols
from smelt.user_lines import Line


class ChangingNumbers:
    """Which numbers are symbolic, and what stands for them."""

    writes: Any  # what `tensor_item.py` knows of the memory that operators wrote

    def __init__(self, trace: Trace, facts: Facts) -> None:
        self._trace = trace
        self._facts = facts
        self.dynamic: frozenset[tuple[object, ...]] = (
            frozenset()
        )  # paths of sources whose numbers change between calls
        self.follows_counts = False  # numbers in tensors of one element are symbolic from the first call on
        self.decides = True  # conditions on such numbers are guarded
        self.readings: set[Source] = set()  # where tensors of one element were read
        self.counted: set[Source] = set()  # numbers that iterators count up
        self.writes = None
        self._at: dict[Source, object] = {}  # the symbolic number at each of them
        self.drawn: dict[Source, Bounds] = {}  # random numbers, and between which they are
        self.sizes: set[Source] = set()  # sizes of tensors
        self.places = SizePlaces()
        # Of these, those that must be numbers, and the line that needs it: the capture is in vain.
        self.needed: dict[Source, Line | None] = {}

    def read(self, value: int | float, source: Source) -> object:
        """The number read at `source`: one that changed between calls is symbolic, any other is part of the trace."""
        found = self._at.get(source)
        if found is None:
            fits = type(value) is float or (type(value) is int and value.bit_length() <= 63)
            if source.path not in self.dynamic or not fits:  # a bool among numbers is itself
                self._facts.guard("eq", source, value)
                return value
            found = self._following(value, source)
        return self.at(source, value) if found is None else found

    def _following(self, value: int | float, source: Source) -> object:
        """The number read at `source`, as a size that others follow from, or that follows from others, as before a break."""
        if type(value) is not int or self.places.policy.handed_at(source.path) is None:
            return None
        size = self.places.follows(source, value, self.symbols().hints)
        if isinstance(size, int):
            self._facts.guard("eq", source, value)
            return value
        if size is not None:
            self._facts.guard("number", source, int)
            self.symbols().require_size(source, size)
            self._at[source] = self.symbols().number(size)
        elif value >= 2 and self.places.policy.is_followed(source.path):
            size_of(self.at(source, value))
        return self._at.get(source)

    def at(self, source: Source, value: int | float) -> object:
        """The symbolic number at `source`, now `value`."""
        found = self._at.get(source)
        if found is None:
            self._facts.guard("number", source, type(value))
            found = self._at[source] = self.symbols().leaf(source, value)
        return found

    def size(self, source: Source, value: int, least: int, most: int, divisor: int, any_rest: bool) -> Int:
        """The symbolic size found at `source`, now `value`; it is guarded to be from `least` to `most`, and to leave the
        same remainder when divided, or `any_rest` if it leaves one."""
        self.sizes.add(source)
        return self.symbols().size_leaf(source, value, least, most, divisor, any_rest)

    def multiple(self, source: Source, value: int, by: Size) -> tuple[Int, Sym]:
        """The symbolic size found at `source`, now `value`, which is a multiple of `by`; and how many times that it is."""
        self.sizes.add(source)
        return self.symbols().quotient_leaf(source, value, by)

    def guard_equal(self, first: Source, second: Source) -> None:
        """The sizes at these are equal at each call."""
        self.symbols().require_equal(first, second)

    def guard_size(self, source: Source, size: Expr) -> None:
        """The size found there is this one at each call."""
        self.symbols().require_size(source, size)
        self.symbols().at_least(size, 2)

    def stride(self, source: Source, value: int, room: Int | int) -> tuple[Int, Int]:
        """The symbolic stride found at `source`, now `value`, and how much larger it is than `room`."""
        self.sizes.add(source)
        return self.symbols().stride_leaf(source, value, size_of(room))

    def require_at_least(self, number: Int | int, least: Int | int) -> None:
        """The size, or number, is so much at each call."""
        self.symbols().compare("ge", size_of(number), size_of(least))

    @property
    def unguarded(self) -> Iterator[Source]:
        """Where symbolic numbers were found without a change between calls: what tensors hold, what is drawn or counted."""
        return itertools.chain(self.readings, self.drawn, self.counted)

    def draw(self, source: Source, value: int | float, bounds: Bounds) -> object:
        """The symbolic number that the compiled frame draws; `value` is one that might have been drawn."""
        self.drawn[source] = bounds
        return self.symbols().leaf(source, value)

    def counter(self, value: int, source: Source) -> object:
        """The number that an iterator has come to: symbolic from the first call on, if step counts are."""
        if not self.follows_counts or value.bit_length() > 63:
            return self.read(value, source)
        self.counted.add(source)
        return self.at(source, value)

    def symbols(self) -> Symbols:
        """The symbolic numbers of this capture, made when the first is met."""
        numbers = self._trace.numbers
        if numbers.symbols is None:
            numbers.symbols = Symbols(
                self._pin,
                self._require,
                self._take,
                self.places.may_divide,
                self.places.narrow,
                self.places.has_changed,
            )
        return numbers.symbols

    def _take(self, source: Source, value: int, sym: Sym) -> Size | None:
        changed = source.path in self.dynamic and source not in self.sizes
        if not changed or source in set(self.unguarded) or self.places.policy.is_fixed(source.path):
            return None
        if not self.places.policy.is_alike(source.path):
            self.places.made_at(source, sym)
            self.places.note(source, sym)
            return sym
        first, size = self.places.known_like(source, value) or (source, sym)
        if first is source:
            self.places.first_like(source, value, sym)
        else:
            self.guard_equal(first, source)
        self.places.note(source, size)
        return size

    def _pin(self, source: Source, value: object) -> None:
        if source in self.readings:
            raise PlainNumbersOnly(Reason(DATA_DEPENDENT, "a number that a tensor holds"))
        if source in self.drawn:
            raise Unsupported(Reason(RANDOM_STATE, f"the number that random.{source.key} gives is needed"))
        if source in self.sizes:
            self.needed.setdefault(source, self._facts.where())
            return
        self._facts.guard("eq", source, value)

    def _require(self, expression: Expression, expected: object) -> None:
        drawn = next((source for source in leaves(expression) if source in self.drawn), None)
        if drawn is not None:
            if not always(expression, expected, self.drawn):
                raise Unsupported(Reason(RANDOM_STATE, f"what random.{drawn.key} gives decides"))
            return
        self._facts.guard(
            "expression", leaves(expression)[0], (expression, expected), key=(expression, expected)
        )
