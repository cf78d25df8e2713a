"""Which sizes a capture takes for symbols: what the user asked for, what was seen to change, what stands against it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from smelt._native import isinstance
from smelt.guards.guard import ANY, ANY_OR_ONE
from smelt.guards.source import Source
from smelt.shapes.divisibility import as_divided
from smelt.shapes.expr import INFINITE, Expr, Size, Sym, affine, evaluate, free_syms, subs
from smelt.size_marks import Mark

Path = tuple[object, ...]  # `Source.path`
Range = tuple[int, int]  # with both ends

_MOST_REMAINDERS = 64
_REMAINDER = "%"


def remainder_of(path: Path) -> Path:
    """Where the remainder of a size is found."""
    return (*path, _REMAINDER)


def without_remainder(path: Path) -> Path:
    """Where the size is found whose remainder may be meant."""
    return path[:-1] if path[-1] == _REMAINDER else path


@dataclass(frozen=True)
class SymbolicSizes:
    """Which sizes and strides are symbolic, by the paths of their sources.

    None are unless `wanted`; `everywhere`, those of all tensors that are neither parameters nor buffers; those that
    `changed`, each with one that it was before; of others those that are symbols where they are `handed` over, in the graph
    before a break, or that are now one of `values`; never those that are `fixed`, or `fixed_now`, in this call. What is
    `fixed` is tried once more as a symbol when it, or another size of the tensor, changes (`retried`), as the program may go
    another way then. Those `apart` are symbols of their own, those that are `alike` one where they are equal; those that are
    `following` are computed from symbols, which stand for the sizes at other places there, or for how many times this is as
    much as those. Of `divisors` it is known what they leave when divided, of `ranges` between which numbers they are, in
    this call. Those at `ones` are taken for 1, where a capture is to show what becomes of it
    (`capture/driver/zero_one_specialization.py`).
    """

    wanted: bool = False
    everywhere: bool = False
    changed: frozenset[tuple[Path, int]] = frozenset()
    values: frozenset[int] = frozenset()
    handed: frozenset[tuple[Path, Size]] = frozenset()
    fixed: frozenset[Path] = frozenset()
    fixed_now: frozenset[Path] = frozenset()
    retried: frozenset[Path] = frozenset()
    apart: frozenset[Path] = frozenset()
    alike: frozenset[frozenset[Path]] = frozenset()
    following: frozenset[tuple[Path, Size]] = frozenset()
    divisors: frozenset[tuple[Path, int]] = frozenset()
    ranges: frozenset[tuple[Path, Range]] = frozenset()
    ones: frozenset[Path] = frozenset()

    def with_changed(self, before: set[tuple[Path, int]]) -> SymbolicSizes:
        """With these symbolic too, if any is to be."""
        if not self.wanted:
            return self
        tensors = {path[:-1] for path, _ in before if path in self.fixed - self.retried}
        again = {path for path in self.fixed - self.retried if path[:-1] in tensors}
        return replace(
            self, changed=self.changed | before, fixed=self.fixed - again, retried=self.retried | again
        )

    def without(self, groups: Iterable[frozenset[Path]], now: bool) -> SymbolicSizes:
        """Without the symbols that were found at these, in this call if `now`: as numbers, or first as symbols of their own
        where one was found at several places, of which perhaps one alone must be a number, unless they must be one."""
        found = {
            paths: len(paths) == 1 or self._must_be_one(set(map(without_remainder, paths)))
            for paths in groups
        }
        fixed = frozenset[Path]().union(*(paths for paths, alone in found.items() if alone))
        apart = self.apart.union(*(paths for paths, alone in found.items() if not alone))
        if now:
            return replace(self, fixed_now=self.fixed_now | fixed, apart=apart)
        return replace(self, fixed=self.fixed | fixed, apart=apart)

    def _must_be_one(self, paths: set[Path]) -> bool:
        """Whether the sizes at these are equal whatever they are: some must be, or all were before a break."""
        return not self._alike.keys().isdisjoint(paths) or paths <= self._handed.keys()

    def with_alike(self, paths: frozenset[Path]) -> SymbolicSizes:
        """With the sizes at these, and at those that are like any of them, as one."""
        if len(paths) < 2:
            return self
        joined = {group for group in self.alike if not group.isdisjoint(paths)}
        return replace(self, alike=self.alike - joined | {paths.union(*joined)})

    def with_following(self, found: frozenset[tuple[Path, Size]]) -> SymbolicSizes:
        """With the sizes at these places computed from others. What was known of them before, which cannot be all, gives way
        to what more symbols are in: a size that was a number, so that `3 * n` was enough, has changed."""
        known = dict(self.following)
        made = _named_as(known, dict(found))
        changed = [(known[path], size) for path, size in made.items() if known.get(path, size) != size]
        if any(len(free_syms(size)) <= len(free_syms(before)) for before, size in changed):
            return self
        return replace(self, following=frozenset((known | made).items()))

    def with_divisors(self, found: Iterable[tuple[Path, int]]) -> SymbolicSizes:
        """With these divided by as much more, as long as there are not too many remainders, each of which may be an entry.
        What `found` says is divided are the quotients by what was known before."""
        known = dict(self.divisors)
        for path, by in {without_remainder(path): by for path, by in found}.items():
            handed = as_divided(self._before_break.get(path, 0))
            product = known.get(path, 1 if handed is None else handed.divisor) * by
            if product <= _MOST_REMAINDERS:
                known[path] = product
        return replace(self, divisors=frozenset((path, by) for path, by in known.items() if by > 1))

    def divisor(self, path: Path, size: int) -> int:
        """By what the size at this path, which is now `size`, is divided: by nothing where the quotient is a number."""
        by = self._divides(path, size)
        low, high = self.range(path, size)
        return 1 if low // by == high // by else by

    def range(self, path: Path, size: int) -> Range:
        """In which range the size at this path is, which is now `size`."""
        low, high = dict(self.ranges).get(path, (2, INFINITE))
        by = self._divides(path, size)
        return (low, min(high, by - 1)) if size < by else (max(low, by), high)

    def any_remainder(self, path: Path) -> bool:
        """Whether what the size at this path leaves is a symbol where it is not 0."""
        return not self.is_fixed(remainder_of(path))

    def with_ranges(self, found: Iterable[tuple[Path, Range]]) -> SymbolicSizes:
        """With these in narrower ranges."""
        known = dict(self.ranges)
        for path, (low, high) in found:
            least, most = known.get(path, (low, high))
            known[path] = max(low, least), min(high, most)
        return replace(self, ranges=frozenset(known.items()))

    def of_all_calls(self) -> SymbolicSizes:
        """Without what is due to the sizes in this call."""
        retried = self.retried & self.fixed
        return replace(self, fixed_now=frozenset(), ranges=frozenset(), retried=retried, handed=frozenset())

    def is_fixed(self, path: Path) -> bool:
        """Whether the size at this path is a number, whatever else is said of it."""
        return not self.wanted or path in self.fixed or path in self.fixed_now

    @property
    def names_any(self) -> bool:
        """Whether any size is symbolic that is not marked."""
        return self.everywhere or bool(self.changed or self.values or self._handed)

    def includes(self, path: Path, size: int, is_parameter: bool) -> bool:
        """Whether the size at this path, which is now `size`, is symbolic; `is_parameter`: it is one of a parameter."""
        if self.is_fixed(path):
            return False
        if path in self._before:
            return True
        handed = self._handed.get(path)
        if isinstance(handed, Expr) or handed == size:
            return isinstance(handed, Expr)
        return (self.everywhere or size in self.values) and not is_parameter and "param" not in path

    def history(self, path: Path) -> object:
        """What sizes have in common that are one symbol if they are equal: the places that must be one with this, else what
        they are in the graph before a break, else the numbers that were found there in earlier captures."""
        handed = self._handed.get(path)
        known = self._alike.get(path) or (handed if isinstance(handed, Expr) else None)
        return known or self._before.get(path, frozenset()) - {ANY, ANY_OR_ONE}

    def was_one(self, path: Path) -> bool:
        """Whether the size at this path was 1 in an earlier capture."""
        return 1 in self._before.get(path, ())

    def is_joined(self, path: Path) -> bool:
        """Whether the size at this path is one with those of its history that are equal, also in one tensor."""
        return path in self._alike or isinstance(self._handed.get(path), Expr)

    def is_alike(self, path: Path) -> bool:
        """Whether the size at this path must be one with others."""
        return path in self._alike

    def is_apart(self, path: Path) -> bool:
        """Whether the size at this path is a symbol of its own."""
        return not self.apart.isdisjoint((path, remainder_of(path))) and path not in self._alike

    def handed_at(self, path: Path) -> Expr | None:
        """What is at this path in the graph before a break, if it changes there."""
        found = self._handed.get(path)
        return found if isinstance(found, Expr) and not self.is_fixed(path) else None

    def is_followed(self, path: Path) -> bool:
        """Whether other sizes follow from what is at this path, which is a symbol before a break."""
        sym = self.handed_at(path)
        return isinstance(sym, Sym) and sum(sym in free_syms(size) for size in self._handed.values()) > 1

    def is_sum(self, path: Path) -> bool:
        """Whether what is at this path is computed from symbols before a break."""
        return self.handed_at(path) is not None and not isinstance(self.handed_at(path), Sym)

    def in_order(self, arguments: int) -> list[int]:
        """The arguments, those from which the sizes of others follow before these."""
        sums = {path[1] for path in self._handed if self.is_sum(path)}
        plain = {path[1] for path in self._handed if "shape" in path}
        return sorted(range(arguments), key=lambda i: (i in sums, i not in plain))

    @functools.cached_property
    def _handed(self) -> dict[Path, Size]:
        """What is known of sizes in the graph before a break, and of those that follow from others."""
        following = dict(self.following)
        return _named_as(following, self._before_break) | following

    @functools.cached_property
    def _before_break(self) -> dict[Path, Size]:
        return dict(self.handed)

    def places_of(self, sym: Sym) -> list[Path]:
        """Where the sizes are found of which other sizes follow."""
        return [path for path, size in self.following if size is sym]

    @functools.cached_property
    def _divisors(self) -> dict[Path, int]:
        return dict(self.divisors)

    def _divides(self, path: Path, size: int) -> int:
        """By what the size at this path is divided in all calls, or, if that fits `size`, in the graph before a break."""
        handed = self._before_break.get(path, 0)
        found, known = self._divisors.get(path), as_divided(handed)
        if found is not None or known is None or isinstance(handed, int):
            return found or 1
        left = size % known.divisor
        fits = left == handed.const if known.remainder is None else left > 0
        return known.divisor if fits and size >= known.divisor else 1

    @functools.cached_property
    def _alike(self) -> dict[Path, frozenset[Path]]:
        return {path: group for group in self.alike for path in group}

    @functools.cached_property
    def _before(self) -> dict[Path, frozenset[int]]:
        found: dict[Path, frozenset[int]] = {}
        for path, size in self.changed:
            found[path] = found.get(path, frozenset()) | {size}
        return found


FIXED_SIZES = SymbolicSizes()


def _named_as(known: Mapping[Path, Size], sizes: Mapping[Path, Size]) -> dict[Path, Size]:
    """The sizes, with the names for symbols that are known of their places."""
    names = {
        size: now
        for path, size in sizes.items()
        if isinstance(size, Sym) and isinstance(now := known.get(path), Sym)
    }
    return {path: subs(size, names) for path, size in sizes.items()}


def meet_nothing(path: Path) -> None:
    """There are no symbols to be made ahead."""


@dataclass(eq=False)
class SizePlaces:
    """Where the symbols of one capture's sizes were found, by paths of sources, and which of them are sizes of tensors.

    Sizes of several tensors that are equal are one symbol, those of one tensor (the height and the width of a picture) are
    not, unless they must be: of two square pictures, the heights are one and the widths are one.
    `parts`: those that are but a part of the size at their place.
    `like`: the first place of each symbol, and its size, by what sizes have in common that may be one. `seen`: of how many
    sizes of one tensor that was the same. `before`: what the symbols of the graph before a break are here. `meet(path)`
    makes the symbol at a place to which the program has not come yet.
    """

    policy: SymbolicSizes = FIXED_SIZES
    paths: dict[Sym, set[Path]] = field(default_factory=dict)
    of_tensors: set[Sym] = field(default_factory=set)
    parts: set[Sym] = field(default_factory=set)
    divisors: dict[Sym, int] = field(default_factory=dict)  # of those that are quotients of sizes of tensors
    narrowed: dict[Sym, Range] = field(default_factory=dict)  # what another capture is to know of them
    like: dict[tuple[object, ...], list[tuple[Source, Size]]] = field(default_factory=dict)
    seen: dict[tuple[Path, tuple[object, ...]], int] = field(default_factory=dict)
    before: dict[Sym, Size] = field(default_factory=dict)
    meet: Callable[[Path], None] = meet_nothing

    def note(self, at: Source, size: Size) -> None:
        """`size`, of one symbol, or one and its remainder, is found at this place."""
        found = as_divided(size)
        assert found is not None
        for sym, path in zip(found.symbols, (at.path, remainder_of(at.path))):
            self.paths.setdefault(sym, set()).add(path)

    def made_at(self, at: Source, size: Size) -> None:
        """The size at this place is made of symbols of its own: what it is before a break says what those are there."""
        handed = self.policy.handed_at(at.path)
        if handed is None:
            return
        old, new = as_divided(handed), as_divided(size)
        if old is not None and old.divisor == 1:
            self.before.setdefault(old.sym, size)
        elif old is not None and new is not None and _differ_in_names(handed, size):
            for then, now in zip(old.symbols, new.symbols):
                self.before.setdefault(then, now)

    def follows(self, at: Source, value: int, hints: Mapping[Sym, int]) -> Size | None:
        """The size at this place, now `value`, if it follows from others: it did in the graph before a break."""
        handed = self._computed(at.path)
        if handed is None:
            return None
        for sym in () if isinstance(handed, Sym) else free_syms(handed) - self.before.keys():
            for place in self.policy.places_of(sym):
                self.meet(place)
        if not free_syms(handed) <= self.before.keys():
            return None
        size = subs(handed, self.before)
        if evaluate(size, hints) != value:
            return None
        if isinstance(handed, Sym) and as_divided(size) is not None:
            self.note(at, size)
        return size

    def _computed(self, path: Path) -> Expr | None:
        """What the size at this path is, over symbols before a break or at other places; None where more is known of it."""
        told = self.policy.is_alike(path) or self.policy.is_apart(path)
        return None if told else self.policy.handed_at(path)

    def multiple_of(self, at: Source, value: int, hints: Mapping[Sym, int]) -> tuple[Size, Sym] | None:
        """Of what the size at this place, now `value`, is a multiple, and what stands for how many times: as it follows from
        others but for a number that is found nowhere else. To be asked where it does not follow."""
        handed = self._computed(at.path)
        if handed is None:
            return None
        left = free_syms(handed) - self.before.keys()
        if len(left) != 1:
            return None
        (times,) = left
        line = affine(handed, times)
        if line is None or line[1] != 0 or self.policy.places_of(times):
            return None
        by = subs(line[0], self.before)
        number = evaluate(by, hints)
        return (by, times) if isinstance(by, Expr) and value % number == 0 and value >= 2 * number else None

    def known_like(self, at: Source, value: int, mark: Mark | None = None) -> tuple[Source, Size] | None:
        """The first place of which the size that is `value` here is to be the symbol, and its size; None where there is none
        yet. To be asked once for each place."""
        path = at.path
        if self.policy.is_apart(path):
            return None
        key = self._key(at, value, mark)
        places = self.like.get(key, ())
        if self.policy.is_joined(path):
            return places[0] if places else None
        nth = self.seen.get((path[:-1], key), 0)
        self.seen[path[:-1], key] = nth + 1
        if nth < len(places):
            return places[nth]
        return places[0] if places and places[0][0].path[:-1] != path[:-1] else None

    def first_like(self, at: Source, value: int, size: Size, mark: Mark | None = None) -> None:
        """The size that is `value` here is the symbol of those like it from now on, beside those that there are."""
        if not self.policy.is_apart(at.path):
            self.like.setdefault(self._key(at, value, mark), []).append((at, size))

    def _key(self, at: Source, value: int, mark: Mark | None) -> tuple[object, ...]:
        policy, path = self.policy, at.path
        return value, policy.history(path), mark, policy.divisor(path, value), policy.range(path, value)

    def has_changed(self, sym: Sym) -> bool:
        """Whether a size that this symbol stands for was another one in an earlier call."""
        return any(path in self.paths.get(sym, ()) for path, _ in self.policy.changed)

    def may_divide(self, sym: Sym, divisor: int) -> bool:
        """Whether another capture would know what the sizes of a symbol leave when divided by this, too."""
        found = self.paths[sym] if sym in self.of_tensors else ()
        return self.policy.with_divisors((path, divisor) for path in found) != self.policy

    def in_ranges(self, found: Iterable[tuple[Sym, Range]]) -> frozenset[tuple[Path, Range]]:
        """Where the sizes were found whose symbols are in these ranges, and in which range they are."""
        divided = [(sym, self.divisors[sym], ends) for sym, ends in found if sym in self.divisors]
        return frozenset(
            (path, (low * by, high * by + by - 1))
            for sym, by, (low, high) in divided
            for path in self.paths[sym]
        )

    def narrow(self, sym: Sym, low: int, high: int) -> bool:
        """Whether another capture knows more of the size if it knows this, too. Then there is to be one."""
        if self.policy.with_ranges(self.in_ranges([(sym, (low, high))])) == self.policy:
            return False
        least, most = self.narrowed.get(sym, (low, high))
        self.narrowed[sym] = max(low, least), min(high, most)
        return True


def _differ_in_names(a: Size, b: Size) -> bool:
    """Whether two sizes that are divided are so by the same number, and leave the same, or a symbol."""
    one, two = as_divided(a), as_divided(b)
    assert one is not None and two is not None
    renamed: dict[Sym, Size] = dict(zip(two.symbols, one.symbols))
    return len(one.symbols) == len(two.symbols) and subs(b, renamed) == a
