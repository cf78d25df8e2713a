"""Numbers for the symbols of sizes, by which code that knows only numbers is asked about symbolic sizes.

Such code is run once for each of `COUNT` assignments, and `fit` finds the expression that all of the answers are values of.
The numbers are those of a symbol, not of a call, so that answers may be kept. They are chosen so that an expression that
fits the answers is the right one:

* small, middling and large ones, and any two symbols in both orders: what holds only from some size on is seen to fail;
* the differences of the numbers of one symbol have no common divisor, so that `s // k * k` is no `s - c` for any k.

There is one more assignment, `HUGE`, of numbers that only code which allocates no memory may be asked about. And `ITSELF`,
for symbols of a range of one number (sizes of 0 or 1 that data decide): under the others they have numbers as all have, so
that expressions can be told apart; under this one they are what they are.

There are several levels of numbers: where `s - 10` is a size, or a window of 16 goes over `s`, the smallest number of the
first level is too small.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from math import gcd, prod
from typing import Any

from smelt.errors import NeedsFixedSize
from smelt.graph.ir import TensorSpec
from smelt.graph.sizes import Expr, Size, Sym, evaluate, free_syms
from smelt.graph.specs import with_sizes

COUNT = 3
HUGE = COUNT
ITSELF = HUGE + 1
LEVELS = range(3)
_LEAST = ((5, 211), (67, 293), (1031, 1249))  # the smallest and the largest number of a level begin here
_MOST = 24  # symbols
Values = tuple[int, ...]  # one for each assignment


def _primes(least: int) -> Iterator[int]:
    return (n for n in itertools.count(least) if all(n % d for d in range(2, int(n**0.5) + 1)))


def _composites(least: int) -> Iterator[int]:
    return (n for n in itertools.count(least) if any(n % d == 0 for d in range(2, int(n**0.5) + 1)))


def _numbers(
    small: Iterator[int], middle: int, large: Iterator[int], huge_ones: Iterator[int]
) -> Iterator[Values]:
    for least, most, huge in itertools.islice(zip(small, large, huge_ones), _MOST):
        while gcd(middle - least, most - least) != 1:
            middle -= 1
        yield least, middle, most, huge
        middle -= 1


# By the first letter: sizes of inputs, and those that data decide. All of the latter are less than the former in the middle,
# and more at the end.
_NUMBERS = tuple(
    {
        "s": tuple(_numbers(_primes(first), last - 13, _primes(last), _primes(100_003))),
        "u": tuple(_numbers(_composites(first - 1), last - 41, _primes(last + 148), _primes(110_017))),
    }
    for first, last in _LEAST
)


@cache
def _of_symbol(sym: Sym, level: int) -> Values:
    found = re.fullmatch(r"([su])(\d+)", sym.name)
    if not found or int(found[2]) >= _MOST:
        raise NeedsFixedSize(f"no numbers to try for {sym}", frozenset((sym,)))
    numbers = _NUMBERS[level][found[1]][int(found[2])]
    return (*numbers, sym.lo if sym.lo == sym.hi else numbers[1])


_VALUES: tuple[dict[Expr, Values], ...] = tuple({} for _ in LEVELS)


def values_of(size: Size, level: int = 0) -> Values:
    """What `size` is under each assignment but HUGE."""
    return tuple(at(size, k, level) for k in range(COUNT))


def at(size: Size, k: int, level: int = 0) -> int:
    """What `size` is under assignment `k`, which may be HUGE or ITSELF."""
    if not isinstance(size, Expr):
        return size
    found = _VALUES[level].get(size)
    if found is None:
        numbers = {sym: _of_symbol(sym, level) for sym in free_syms(size)}
        made = [evaluate(size, {s: n[i] for s, n in numbers.items()}) for i in range(ITSELF + 1)]
        found = _VALUES[level][size] = tuple(made)
    return found[k]


@cache
def _symbolic(spec: TensorSpec) -> frozenset[Sym]:
    return frozenset().union(*map(free_syms, (*spec.shape, *spec.stride, spec.offset)))


def syms_of(spec: TensorSpec) -> frozenset[Sym]:
    """The symbols in a spec."""
    for n in (*spec.shape, *spec.stride, spec.offset):
        if type(n) is not int:
            return _symbolic(spec)
    return frozenset()


def spec_at(spec: TensorSpec, k: int, level: int = 0) -> TensorSpec:
    """The spec under assignment `k`."""
    return with_sizes(spec, lambda size: at(size, k, level))


def levels_for(specs: Iterable[TensorSpec], arguments: Iterable[Size] = ()) -> Sequence[int]:
    """The levels at which all symbolic sizes of tensors are at least 2, as they are at run time, and no argument is
    negative, if there is such a level."""
    sizes = {size for spec in specs for size in spec.shape if isinstance(size, Expr)}
    fitting = [level for level in LEVELS if all(min(values_of(size, level)) > 1 for size in sizes)] or [0]
    given = list(arguments)
    return [n for n in fitting if all(min(values_of(size, n)) >= 0 for size in given)] or fitting


def agreed(specs: Iterable[TensorSpec], ask: Callable[..., Any], why: str) -> Any:
    """What `ask(*specs)`, which knows numbers only, answers for symbolic specs: under each assignment the same, or it raises
    NeedsFixedSize."""
    given = list(specs)
    syms = frozenset().union(*map(syms_of, given))
    if not syms:
        return ask(*given)
    level = levels_for(given)[0]
    answers = [ask(*(spec_at(s, k, level) for s in given)) for k in range(COUNT)]
    if any(answer != answers[0] for answer in answers):
        raise NeedsFixedSize(why, syms)
    return answers[0]


class Candidates:
    """Sizes that others may be made of, by their values."""

    def __init__(self, sizes: Iterable[Size], level: int = 0) -> None:
        self._level = level
        self._by_values: dict[Values, set[Expr]] = {}
        self._added: list[Expr] = []
        for size in sizes:
            self.add(size)

    def add(self, size: Size) -> None:
        """One more."""
        if isinstance(size, Expr) and size not in self._by_values.setdefault(self._values(size), set()):
            self._by_values[self._values(size)].add(size)
            self._added.append(size)

    def __iter__(self) -> Iterator[Expr]:
        return iter(self._added)

    def fit(self, values: Sequence[int], combined: bool = True) -> Size | None:
        """The size of these values: a constant, a candidate, or, if `combined`, a multiple of one with a constant added, or
        the sum or difference of two. None where there is none, or more than one."""
        given = tuple(values)
        if len(set(given)) == 1:
            return given[0]
        found = self._by_values.get(given)
        if found is not None:
            return next(iter(found)) if len(found) == 1 else None
        if not combined:
            return None
        return self._only(given, self._linear(given)) or self._only(given, self._sums(given))

    def _values(self, size: Size) -> Values:
        return values_of(size, self._level)

    def _only(self, given: Values, found: Iterator[Size]) -> Size | None:
        sizes = {size for size in found if self._values(size) == given}
        return sizes.pop() if len(sizes) == 1 else None

    def _linear(self, given: Values) -> Iterator[Size]:
        for size in self._added:
            first, second, *_ = self._values(size)
            if first != second and (given[1] - given[0]) % (second - first) == 0:
                factor = (given[1] - given[0]) // (second - first)
                yield size * factor + (given[0] - first * factor)

    def _sums(self, given: Values) -> Iterator[Size]:
        for a, b in itertools.product(self._added, repeat=2):
            for values, sign in ((tuple(map(sum, zip(self._values(a), self._values(b)))), 1), (None, -1)):
                if values is None:
                    values = tuple(x - y for x, y in zip(self._values(a), self._values(b)))
                if len({x - y for x, y in zip(given, values)}) == 1:
                    yield a + b * sign + (given[0] - values[0])


def candidates_of(specs: Sequence[TensorSpec], numbers: Iterable[Size], level: int = 0) -> Candidates:
    """What the sizes of a result may be made of: symbols, sizes and strides of operands, numbers of elements, arguments.

    Of several operands, what their sizes add up to is among them.
    """
    made = Candidates(numbers, level)
    for sym in sorted(frozenset().union(*map(free_syms, made), *map(syms_of, specs)), key=str):
        made.add(sym)
    for spec in specs:
        for size in (*spec.shape, *spec.stride, spec.offset):
            made.add(size)
        elements = _product(spec.shape)
        made.add(elements)
        made.add(_product(n for n in spec.shape if not isinstance(n, int)))
    ranks = {len(spec.shape) for spec in specs}
    if len(specs) > 1 and len(ranks) == 1:
        for sizes in zip(*(spec.shape for spec in specs)):
            made.add(_total(sizes))
    return made


def products(shape: Sequence[Size]) -> Iterator[Size]:
    """The products of some of the sizes: the strides that a dense tensor of this shape may have."""
    for count in range(1, len(shape) + 1):
        for chosen in itertools.combinations(shape, count):
            yield _product(chosen)


def _product(sizes: Iterable[Size]) -> Size:
    total: Size = prod(sizes)
    return total


def _total(sizes: Iterable[Size]) -> Size:
    total: Size = 0
    for size in sizes:
        total = total + size
    return total
