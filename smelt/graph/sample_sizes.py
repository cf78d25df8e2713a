"""Sample values of size symbols, with which code that takes only numbers computes symbolic sizes.

Such code runs once for each of `COUNT` assignments, and `Candidates.fit` finds the expression with these results as its
values. An assignment depends on the symbol, not on the call, so results can be cached. Samples make a wrong fit unlikely:

* They are small, middling and large, with any two symbols in both orders. What holds only from some size on fails.
* The differences between the samples of one symbol have no common divisor, so `s // k * k` equals no `s - c` for any k.
* No sum of two symbols differs from a multiple of a third by a constant.

Two more assignments, `HUGE` and `LARGE`, are for code that allocates no memory; under `LARGE`, tensors of many dimensions
have fewer than 2**63 elements as well. `ITSELF` is for symbols with a range of one number (unbacked sizes of 0 or 1): others
give them ordinary samples, which tell expressions apart, and this one their only value.

An image of five rows is smaller than many windows. The samples of symbols that `widened` renames are all large and far apart
from those of other symbols, so two images still differ after many strides.

All samples are in the symbol's range. Facts about other sizes may depend on it (under `n <= 9`, `n // 2 + 1` is 5), and some
operators write beyond their results where sizes do not fit each other.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from math import gcd, prod
from random import Random
from typing import Any

from smelt.errors import NeedsFixedSize
from smelt.graph.ir import TensorSpec
from smelt.graph.tensor_specs import with_sizes
from smelt.shapes.divisibility import is_remainder
from smelt.shapes.expr import Expr, Size, Sym, evaluate, free_syms, likely, subs

COUNT = 3
HUGE, LARGE = COUNT, COUNT + 1
ITSELF = LARGE + 1
MOST = 24  # symbols of inputs, and those that `widened` renames
MOST_UNBACKED = 48
_MORE = 8  # assignments
Values = tuple[int, ...]  # one for each assignment


def _primes(least: int) -> Iterator[int]:
    return (n for n in itertools.count(least) if all(n % d for d in range(2, int(n**0.5) + 1)))


def _composites(least: int) -> Iterator[int]:
    return (n for n in itertools.count(least) if any(n % d == 0 for d in range(2, int(n**0.5) + 1)))


def _apart(least: int, middle: int, most: int, huge: int) -> Values:
    """Samples with these values, of which the middle one may be smaller so that differences have no common divisor."""
    while gcd(middle - least, most - least) != 1:
        middle -= 1
    return least, middle, most, huge, huge // 10


def _numbers(
    count: int, small: Iterator[int], middle: int, large: Iterator[int], huge_ones: Iterator[int]
) -> Iterator[Values]:
    for least, most, huge in itertools.islice(zip(small, large, huge_ones), count):
        yield _apart(least, middle, most, huge)
        middle = _apart(least, middle, most, huge)[1] - 1


def _wide(first: int) -> Iterator[Values]:
    """Samples that form no arithmetic progression over the symbols: in one, the sum of two symbols is twice a third."""
    for k in range(MOST):
        spread = 7 * k * k % 89  # differs for each k < 24
        least, most = first + 97 * k, 2130 + first + 97 * k + spread
        yield _apart(least, 2029 - 48 * k - spread, most, 100_003 + 1009 * k + first)


# By the first letter of the symbol: sizes of inputs (s) and unbacked sizes (u), which are less than all of the former in the
# middle and more at the end; and the same two for large images (w, v).
_NUMBERS: dict[str, tuple[Values, ...]] = {
    "s": tuple(_numbers(MOST, _primes(5), 197, _primes(223), _primes(100_003))),
    "u": tuple(_numbers(MOST_UNBACKED, _composites(4), 170, _primes(761), _primes(110_017))),
    "w": tuple(_wide(601)),
    "v": tuple(_wide(650)),
}
_NUMBERS["r"] = _NUMBERS["s"]
_WIDER = {"s": "w", "u": "v"}
_NARROWER = {wide: narrow for narrow, wide in _WIDER.items()}


def _between(sym: Sym, k: int) -> Values:
    """Samples in a short range; 1 only in a range without others, as one row broadcasts. The samples of two symbols with
    one range differ, at least in their order."""
    first, high = _least(sym), sym.hi
    count = high + 1 - first
    if count < 3 * COUNT:
        return *((first + (k + i) % count) for i in range(COUNT)), high, high
    shift = k % (count // 3)
    return *_apart(first + shift, first + count // 2 - shift, high - shift, high)[:COUNT], high, high


def more_of(syms: Iterable[Sym]) -> Iterator[dict[Sym, int]]:
    """More assignments for symbols with short ranges, whose few neighbouring samples an expression may fit by chance. None
    where no range is short."""
    ordered = sorted(syms, key=str)
    short = {s for s in ordered if s.lo < s.hi and max(_plain(s)[:COUNT]) > s.hi}
    for k in range(_MORE if short else 0):
        drawn = Random(k)
        yield {
            s: drawn.randint(_least(s), s.hi) if s in short else at(s, drawn.randrange(COUNT))
            for s in ordered
        }


def _least(sym: Sym) -> int:
    """The least sample in a short range."""
    return min(max(sym.lo, 2), sym.hi - 1)


@cache
def _of_symbol(sym: Sym) -> Values:
    numbers = _plain(sym)
    if sym.lo == sym.hi:
        return *numbers, sym.lo
    if max(numbers[:COUNT]) > sym.hi:
        numbers = _between(sym, int(sym.name[1:]))
    return *(min(n, sym.hi) for n in numbers), numbers[1]


def _plain(sym: Sym) -> Values:
    """The samples of a symbol without an upper bound."""
    found = re.fullmatch(r"([suwvr])(\d+)", sym.name)
    if not found or int(found[2]) >= len(_NUMBERS[found[1]]):
        raise NeedsFixedSize(f"no numbers to try for {sym}", frozenset((sym,)))
    return tuple(n + max(sym.lo - 2, 0) for n in _NUMBERS[found[1]][int(found[2])])


def widened(syms: Iterable[Sym]) -> dict[Sym, Sym]:
    """For each symbol a symbol with large samples. Raises NeedsFixedSize."""
    made: dict[Sym, Sym] = {}
    for sym in (s for s in syms if not is_remainder(s)):
        made[sym] = Sym(_WIDER[sym.name[0]] + sym.name[1:], sym.lo, sym.hi)
        if int(sym.name[1:]) >= MOST:
            raise NeedsFixedSize(f"no numbers to try for {sym}", frozenset((sym,)))
    return made


_hinted = threading.local()  # `sizes`: of symbols, by the letter and number of their names


@contextmanager
def hinted(sizes: Mapping[Sym, int]) -> Iterator[None]:
    """Set the values of the symbols in the current call (`now`)."""
    before = getattr(_hinted, "sizes", {})
    _hinted.sizes = {sym.name: size for sym, size in sizes.items()}
    try:
        yield
    finally:
        _hinted.sizes = before


def now(size: Size) -> int:
    """The value of `size` in the current call where it is known, else the likely one; also for symbols of `widened`."""
    sizes = getattr(_hinted, "sizes", {})
    known = {s: sizes.get(_NARROWER.get(s.name[0], s.name[0]) + s.name[1:]) for s in free_syms(size)}
    return likely(subs(size, {s: n for s, n in known.items() if n is not None}))


_VALUES: dict[Expr, Values] = {}


def values_of(size: Size) -> Values:
    """The values of `size` under the first `COUNT` assignments."""
    return tuple(at(size, k) for k in range(COUNT))


def at(size: Size, k: int) -> int:
    """The value of `size` under assignment `k`, which may be HUGE, LARGE or ITSELF."""
    if not isinstance(size, Expr):
        return size
    found = _VALUES.get(size)
    if found is None:
        numbers = {sym: _of_symbol(sym) for sym in free_syms(size)}
        made = [evaluate(size, {s: n[i] for s, n in numbers.items()}) for i in range(ITSELF + 1)]
        found = _VALUES[size] = tuple(made)
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


def spec_at(spec: TensorSpec, k: int) -> TensorSpec:
    """The spec under assignment `k`."""
    return with_sizes(spec, lambda size: at(size, k))


def agreed(specs: Iterable[TensorSpec], ask: Callable[..., Any], why: str) -> Any:
    """The result of `ask(*specs)`, which takes only numbers, for symbolic specs. Raises NeedsFixedSize where the assignments
    have different results."""
    all_specs = list(specs)
    syms = frozenset().union(*map(syms_of, all_specs))
    if not syms:
        return ask(*all_specs)
    try:
        answers = [ask(*(spec_at(s, k) for s in all_specs)) for k in range(COUNT)]
    except RuntimeError as error:  # samples need not fit each other
        raise NeedsFixedSize(f"{why}: {error}", syms) from error
    if any(answer != answers[0] for answer in answers):
        raise NeedsFixedSize(why, syms)
    return answers[0]


class Candidates:
    """Expressions that a size may be, by their values under the assignments."""

    def __init__(self, sizes: Iterable[Size]) -> None:
        self._by_values: dict[Values, set[Expr]] = {}
        self._added: list[Expr] = []
        for size in sizes:
            self.add(size)

    def add(self, size: Size) -> None:
        """Add a candidate."""
        if isinstance(size, Expr) and size not in self._by_values.setdefault(values_of(size), set()):
            self._by_values[values_of(size)].add(size)
            self._added.append(size)

    def __iter__(self) -> Iterator[Expr]:
        return iter(self._added)

    def fit(self, values: Sequence[int], combined: bool = True) -> Size | None:
        """The size with these values: a constant, a candidate, or, if `combined`, a multiple of one plus a constant, or the
        sum or difference of two plus a constant. None where no size has them, or several do, as where a candidate is
        constant over the samples (`3 // s` of large `s`)."""
        samples = tuple(values)
        found = self._by_values.get(samples)
        if len(set(samples)) == 1:
            return samples[0] if found is None else None
        if found is not None:
            return next(iter(found)) if len(found) == 1 else None
        if not combined:
            return None
        return self._only(samples, self._linear(samples)) or self._only(samples, self._sums(samples))

    def _only(self, samples: Values, found: Iterator[Size]) -> Size | None:
        sizes = {size for size in found if values_of(size) == samples}
        return sizes.pop() if len(sizes) == 1 else None

    def _linear(self, samples: Values) -> Iterator[Size]:
        for size in self._added:
            first, second, *_ = values_of(size)
            if first != second and (samples[1] - samples[0]) % (second - first) == 0:
                factor = (samples[1] - samples[0]) // (second - first)
                yield size * factor + (samples[0] - first * factor)

    def _sums(self, samples: Values) -> Iterator[Size]:
        for a, b in itertools.product(self._added, repeat=2):
            for values, sign in ((tuple(map(sum, zip(values_of(a), values_of(b)))), 1), (None, -1)):
                if values is None:
                    values = tuple(x - y for x, y in zip(values_of(a), values_of(b)))
                if len({x - y for x, y in zip(samples, values)}) == 1:
                    yield a + b * sign + (samples[0] - values[0])


def candidates_of(specs: Sequence[TensorSpec], numbers: Iterable[Size]) -> Candidates:
    """The candidates for the sizes of a result: symbols, sizes and strides of operands, their numbers of elements, size
    arguments, and for several operands of one rank the sums of their sizes."""
    made = Candidates(numbers)
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
    """The products of subsets of the sizes: the possible strides of a dense tensor of this shape."""
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
