"""Policy for symbolic sizes: which sizes are symbols, which are specialized, and when smelt stops recompiling.

1. Sizes of 0 and 1 are specialized. The graph for sizes from 2 on serves 0 or 1 too where a second capture records the same
   graph (`capture/driver/zero_one_specialization.py`).
2. A mark decides for its size (`smelt/size_marks.py`). Of others none is a symbol with `dynamic=False`; all are with
   `dynamic=True`, except those of parameters; by default those that differ between calls, and in a resume function those
   that equal a symbolic size of its function (`SymbolicSizes.choice`).
3. Equal sizes of several tensors share a symbol, those of one tensor do not (`SymbolSources.find_equal`).
4. An operation without code for all sizes raises `NeedsFixedSize`, and the capture starts again with the first of these
   facts that is new: sizes are equal or derived from others, have a known remainder, lie in a range, are specialized
   (`SymbolicSizes.weakened`). A specialized size becomes symbolic once more when it, or another size of its tensor,
   changes.
5. A function has up to `recompile_limit` entries. Then sizes that kept changing are never specialized: the graph breaks
   where the program needs one, with as many entries more. Further calls run eagerly. From half of them on it gets short
   graphs (`smelt/recompile_limits.py`). Entries that a later one covers are evicted (`capture/driver/entry_eviction.py`).
6. Unbacked sizes, and all sizes when a backward compiles, are known too late for capture. Subgraphs of graphs with unbacked
   sizes (`backends/unbacked_subgraphs.py`) and backwards (`autograd/compile_joint.py`) without code for all sizes specialize
   by themselves, `recompile_limit` times; then they run eagerly.

This module holds 2 to 4, as data about the sizes of one function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from smelt._native import isinstance
from smelt.guards.source import Source
from smelt.guards.tensor_facts import ANY, ANY_OR_ONE
from smelt.shapes.divisibility import as_divided
from smelt.shapes.expr import INFINITE, Expr, Size, Sym, affine, evaluate, free_syms, subs
from smelt.size_marks import Mark

Path = tuple[object, ...]  # `Source.path`
Range = tuple[int, int]  # inclusive

_MOST_REMAINDERS = 64
_REMAINDER = "%"


def remainder_of(path: Path) -> Path:
    """The path of the remainder of the size at `path`."""
    return (*path, _REMAINDER)


def without_remainder(path: Path) -> Path:
    """The path of a size, from that of the size or of its remainder."""
    return path[:-1] if path[-1] == _REMAINDER else path


@dataclass(frozen=True)
class SymbolicSizes:
    """Which sizes and strides are symbolic, by the paths of their sources.

    `enabled`: some may be; `all_dynamic`: all sizes are, except those of parameters and buffers.
    `observed`: sizes that changed between calls, each with an earlier value: these are symbolic.
    `dynamic_values`: other sizes that have one of these values are symbolic.
    `before_break`: sizes of a resume function's arguments, as expressions over the symbols of the graph before the break.
    `specialized`, `specialized_now` (in this call only): never symbolic. A specialized size becomes symbolic once more when
    it, or another size of its tensor, changes (`retried`), because the program may take another path then.
    `unguarded`: sizes that kept causing recompiles: the graph breaks where the program needs the number.
    `distinct`: sizes with a symbol of their own. `equal`: groups of sizes with one symbol, guarded to be equal.
    `derived`: sizes that are expressions over symbols; a symbol stands for the size at another path, or for an integer
    factor.
    `divisors`: sizes of which the remainder by a divisor is known. `ranges`: bounds of sizes, in this call only.
    `ones`: sizes that a trial capture takes for 1 (`capture/driver/zero_one_specialization.py`).
    """

    enabled: bool = False
    all_dynamic: bool = False
    observed: frozenset[tuple[Path, int]] = frozenset()
    dynamic_values: frozenset[int] = frozenset()
    before_break: frozenset[tuple[Path, Size]] = frozenset()
    specialized: frozenset[Path] = frozenset()
    specialized_now: frozenset[Path] = frozenset()
    retried: frozenset[Path] = frozenset()
    unguarded: frozenset[Path] = frozenset()
    distinct: frozenset[Path] = frozenset()
    equal: frozenset[frozenset[Path]] = frozenset()
    derived: frozenset[tuple[Path, Size]] = frozenset()
    divisors: frozenset[tuple[Path, int]] = frozenset()
    ranges: frozenset[tuple[Path, Range]] = frozenset()
    ones: frozenset[Path] = frozenset()

    def with_observed(self, earlier: set[tuple[Path, int]]) -> SymbolicSizes:
        """Make these sizes symbolic too, if symbolic sizes are enabled."""
        if not self.enabled:
            return self
        tensors = {path[:-1] for path, _ in earlier if path in self.specialized - self.retried}
        retry = {path for path in self.specialized - self.retried if path[:-1] in tensors}
        return replace(
            self,
            observed=self.observed | earlier,
            specialized=self.specialized - retry,
            retried=self.retried | retry,
        )

    def without_guards(self, paths: frozenset[Path]) -> SymbolicSizes:
        """No longer specialize the sizes at these paths, if symbolic sizes are enabled."""
        if not self.enabled:
            return self
        return replace(self, unguarded=self.unguarded | paths, specialized=self.specialized - paths)

    def specializing(self, groups: Iterable[frozenset[Path]], now: bool) -> SymbolicSizes:
        """Specialize the sizes of these groups of paths, in this call only if `now`. A group whose paths share one symbol
        first becomes several symbols, since perhaps only one of its sizes must be specialized, unless they must be equal.
        Unguarded sizes stay symbolic."""
        is_final = {
            paths: len(paths) == 1 or self._share_symbol(set(map(without_remainder, paths)))
            for paths in groups
            if not self.is_unguarded(paths)
        }
        specialized = frozenset[Path]().union(*(paths for paths, final in is_final.items() if final))
        distinct = self.distinct.union(*(paths for paths, final in is_final.items() if not final))
        if now:
            return replace(self, specialized_now=self.specialized_now | specialized, distinct=distinct)
        return replace(self, specialized=self.specialized | specialized, distinct=distinct)

    def weakened(
        self,
        groups: Collection[frozenset[Path]],
        now: bool,
        *,
        equal: frozenset[Path],
        derived: frozenset[tuple[Path, Size]],
        divisors: Iterable[tuple[Path, int]],
        ranges: Iterable[tuple[Path, Range]],
    ) -> SymbolicSizes:
        """The policy of the next attempt, after one needed a number: with facts about the sizes that may suffice, else with
        the sizes of these groups of paths specialized (in this call only if `now`), or all sizes if that is not enough.
        Unchanged for an unguarded size."""
        known = (
            self.with_equal(equal).with_derived(derived),
            self.with_divisors(divisors),
            self.with_ranges(ranges),
        )
        found = next((sizes for sizes in known if sizes != self), None)
        if found is not None:
            return found
        if any(map(self.is_unguarded, groups)):
            return self
        # The sizes of a derived size may have changed in several ways, of which the next call shows more.
        specialized = self.specializing(groups, now or bool(derived))
        return specialized if specialized != self else NO_SYMBOLIC_SIZES

    def is_unguarded(self, paths: Iterable[Path]) -> bool:
        """Whether the size at one of these paths kept causing recompiles."""
        return not self.unguarded.isdisjoint(map(without_remainder, paths))

    def _share_symbol(self, paths: set[Path]) -> bool:
        """Whether the sizes at these paths are always equal: some must be, or all have expressions over other symbols."""
        return not self._equal.keys().isdisjoint(paths) or paths <= self._expressions.keys()

    def with_equal(self, paths: frozenset[Path]) -> SymbolicSizes:
        """Merge the sizes at these paths, and all groups that contain one of them, into one group of equal sizes."""
        if len(paths) < 2:
            return self
        joined = {group for group in self.equal if not group.isdisjoint(paths)}
        return replace(self, equal=self.equal - joined | {paths.union(*joined)})

    def with_derived(self, expressions: frozenset[tuple[Path, Size]]) -> SymbolicSizes:
        """Make the sizes at these paths derived. An expression with more symbols replaces a known one: a size that was
        constant, so that `3 * n` was sufficient, has changed."""
        known = dict(self.derived)
        renamed = _renamed(known, dict(expressions))
        changed = [(known[path], size) for path, size in renamed.items() if known.get(path, size) != size]
        if any(len(free_syms(size)) <= len(free_syms(before)) for before, size in changed):
            return self
        return replace(self, derived=frozenset((known | renamed).items()))

    def with_divisors(self, divisors: Iterable[tuple[Path, int]]) -> SymbolicSizes:
        """Multiply the known divisors by these, unless the remainders, each of which may need an entry, become too many.
        Each new divisor divides the quotient by the known one."""
        known = dict(self.divisors)
        for path, by in {without_remainder(path): by for path, by in divisors}.items():
            if path in self.unguarded:
                continue
            earlier = as_divided(self._before_break.get(path, 0))
            product = known.get(path, 1 if earlier is None else earlier.divisor) * by
            if product <= _MOST_REMAINDERS:
                known[path] = product
        return replace(self, divisors=frozenset((path, by) for path, by in known.items() if by > 1))

    def divisor(self, path: Path, size: int) -> int:
        """The divisor of the size at this path, now `size`; 1 where the quotient is constant."""
        by = self._divides(path, size)
        low, high = self.range(path, size)
        return 1 if low // by == high // by else by

    def range(self, path: Path, size: int) -> Range:
        """The range of the size at this path, now `size`."""
        low, high = dict(self.ranges).get(path, (2, INFINITE))
        by = self._divides(path, size)
        return (low, min(high, by - 1)) if size < by else (max(low, by), high)

    def any_remainder(self, path: Path) -> bool:
        """Whether a nonzero remainder of the size at this path is a symbol."""
        return not self.is_specialized(remainder_of(path))

    def with_ranges(self, ranges: Iterable[tuple[Path, Range]]) -> SymbolicSizes:
        """Intersect the known ranges with these."""
        known = dict(self.ranges)
        for path, (low, high) in ranges:
            if path in self.unguarded:
                continue
            least, most = known.get(path, (low, high))
            known[path] = max(low, least), min(high, most)
        return replace(self, ranges=frozenset(known.items()))

    def without_call_facts(self) -> SymbolicSizes:
        """Drop the facts that only hold for the sizes of this call."""
        retried = self.retried & self.specialized
        return replace(
            self, specialized_now=frozenset(), ranges=frozenset(), retried=retried, before_break=frozenset()
        )

    def is_specialized(self, path: Path) -> bool:
        """Whether the size at this path is specialized, whatever else is known of it."""
        return not self.enabled or path in self.specialized or path in self.specialized_now

    @property
    def selects_any(self) -> bool:
        """Whether any unmarked size is symbolic."""
        return self.all_dynamic or bool(self.observed or self.dynamic_values or self._expressions)

    def choice(
        self, path: Path, size: int, is_parameter: bool, mark: Mark | None, has_layout: bool
    ) -> Literal["symbolic", "specialized", "refused"]:
        """What becomes of the size at this path, now `size`; `refused`: specialized although it is marked as dynamic.
        `has_layout`: the strides of its tensor follow from sizes."""
        is_dynamic = self.includes(path, size, is_parameter) if mark is None else mark.dynamic
        if not is_dynamic or size < 2:
            return "specialized"
        low, high = self.range(path, size)
        if has_layout and not self.is_specialized(path) and low < high:
            return "symbolic"
        return "specialized" if mark is None or mark.is_hint else "refused"

    def includes(self, path: Path, size: int, is_parameter: bool) -> bool:
        """Whether the size at this path, now `size`, is symbolic; `is_parameter`: its tensor is a parameter."""
        if self.is_specialized(path):
            return False
        if path in self._earlier:
            return True
        expression = self._expressions.get(path)
        if isinstance(expression, Expr) or expression == size:
            return isinstance(expression, Expr)
        dynamic = self.all_dynamic or size in self.dynamic_values
        return dynamic and not is_parameter and "param" not in path

    def history(self, path: Path) -> object:
        """A key: equal sizes with the same key share a symbol. It is the group of paths that must be equal to this one, else
        the expression of the size, else its values in earlier captures."""
        expression = self._expressions.get(path)
        known = self._equal.get(path) or (expression if isinstance(expression, Expr) else None)
        return known or self._earlier.get(path, frozenset()) - {ANY, ANY_OR_ONE}

    def may_be_one(self, path: Path, mark: Mark | None) -> bool:
        """Whether the graph is to serve size 1 at this path too: it was 1 in an earlier capture, or its mark allows 1."""
        return 1 in self._earlier.get(path, ()) or (mark is not None and mark.min == 1)

    def merges_within_tensor(self, path: Path) -> bool:
        """Whether the size at this path shares its symbol with equal sizes of the same history in the same tensor, too."""
        return path in self._equal or isinstance(self._expressions.get(path), Expr)

    def must_be_equal(self, path: Path) -> bool:
        """Whether the size at this path must be equal to others."""
        return path in self._equal

    def is_distinct(self, path: Path) -> bool:
        """Whether the size at this path has a symbol of its own."""
        return not self.distinct.isdisjoint((path, remainder_of(path))) and path not in self._equal

    def size_before_break(self, path: Path) -> Expr | None:
        """The symbolic size at this path, over the symbols of the graph before a break or of `derived`."""
        size = self._expressions.get(path)
        return size if isinstance(size, Expr) and not self.is_specialized(path) else None

    def has_derived(self, path: Path) -> bool:
        """Whether the size at this path is a symbol from which other sizes are derived."""
        sym = self.size_before_break(path)
        return isinstance(sym, Sym) and sum(sym in free_syms(size) for size in self._expressions.values()) > 1

    def is_derived(self, path: Path) -> bool:
        """Whether the size at this path is an expression over symbols, and no symbol itself."""
        size = self.size_before_break(path)
        return size is not None and not isinstance(size, Sym)

    def argument_order(self, arguments: int) -> list[int]:
        """The indices of the arguments; those from whose sizes others are derived come first."""
        derived = {path[1] for path in self._expressions if self.is_derived(path)}
        tensors = {path[1] for path in self._expressions if "shape" in path}
        return sorted(range(arguments), key=lambda i: (i in derived, i not in tensors))

    @functools.cached_property
    def _expressions(self) -> dict[Path, Size]:
        """The known sizes before a break, and the derived sizes."""
        derived = dict(self.derived)
        return _renamed(derived, self._before_break) | derived

    @functools.cached_property
    def _before_break(self) -> dict[Path, Size]:
        return dict(self.before_break)

    def paths_of(self, sym: Sym) -> list[Path]:
        """The paths of the sizes that a symbol of `derived` stands for."""
        return [path for path, size in self.derived if size is sym]

    @functools.cached_property
    def _divisors(self) -> dict[Path, int]:
        return dict(self.divisors)

    def _divides(self, path: Path, size: int) -> int:
        """The known divisor of the size at this path in all calls, or, if it fits `size`, in the graph before a break."""
        before = self._before_break.get(path, 0)
        divisor, known = self._divisors.get(path), as_divided(before)
        if divisor is not None or known is None or isinstance(before, int):
            return divisor or 1
        remainder = size % known.divisor
        fits = remainder == before.const if known.remainder is None else remainder > 0
        return known.divisor if fits and size >= known.divisor else 1

    @functools.cached_property
    def _equal(self) -> dict[Path, frozenset[Path]]:
        return {path: group for group in self.equal for path in group}

    @functools.cached_property
    def _earlier(self) -> dict[Path, frozenset[int]]:
        earlier: dict[Path, frozenset[int]] = {}
        for path, size in self.observed:
            earlier[path] = earlier.get(path, frozenset()) | {size}
        return earlier


NO_SYMBOLIC_SIZES = SymbolicSizes()


def _renamed(known: Mapping[Path, Size], sizes: Mapping[Path, Size]) -> dict[Path, Size]:
    """`sizes` with their symbols renamed to those that `known` has at the same paths."""
    names = {
        size: now
        for path, size in sizes.items()
        if isinstance(size, Sym) and isinstance(now := known.get(path), Sym)
    }
    return {path: subs(size, names) for path, size in sizes.items()}


def resolve_nothing(path: Path) -> None:
    """Resolve no symbol: `SymbolSources.resolve_ahead` outside of a capture."""


@dataclass(eq=False)
class SymbolSources:
    """The source paths of the symbols of one capture's sizes.

    Equal sizes of several tensors share a symbol; those of one tensor (the height and the width of an image) do not, unless
    they must be equal: for two square images, the heights share one symbol and the widths another.

    `of_tensors`: the symbols of tensor sizes. `partial`: symbols that are only a factor of the size at their paths.
    `equal_sizes`: by key of sizes that may share a symbol, the first source of each symbol and its size.
    `key_counts`: how many sizes of one tensor had a key. `symbols_before_break`: the sizes in this capture of the symbols
    before a break. `resolve_ahead(path)` creates the symbol at a path that the program has not read yet.
    """

    policy: SymbolicSizes = NO_SYMBOLIC_SIZES
    paths: dict[Sym, set[Path]] = field(default_factory=dict)
    of_tensors: set[Sym] = field(default_factory=set)
    marked: set[Path] = field(default_factory=set)  # of sizes that the user marked as dynamic
    partial: set[Sym] = field(default_factory=set)
    divisors: dict[Sym, int] = field(default_factory=dict)  # of symbols that are quotients of tensor sizes
    narrowed: dict[Sym, Range] = field(default_factory=dict)  # the ranges that the next capture needs
    equal_sizes: dict[tuple[object, ...], list[tuple[Source, Size]]] = field(default_factory=dict)
    key_counts: dict[tuple[Path, tuple[object, ...]], int] = field(default_factory=dict)
    symbols_before_break: dict[Sym, Size] = field(default_factory=dict)
    resolve_ahead: Callable[[Path], None] = resolve_nothing

    def record(self, source: Source, size: Size) -> None:
        """Record that the symbol of `size`, and that of its remainder, was found at `source`."""
        divided = as_divided(size)
        assert divided is not None
        for sym, path in zip(divided.symbols, (source.path, remainder_of(source.path))):
            self.paths.setdefault(sym, set()).add(path)

    def register_symbols(self, source: Source, size: Size) -> None:
        """Record which symbols before a break the new symbols of the size at `source` correspond to."""
        before = self.policy.size_before_break(source.path)
        if before is None:
            return
        old, new = as_divided(before), as_divided(size)
        if old is not None and old.divisor == 1:
            self.symbols_before_break.setdefault(old.sym, size)
        elif old is not None and new is not None and _differ_in_names(before, size):
            for old_sym, new_sym in zip(old.symbols, new.symbols):
                self.symbols_before_break.setdefault(old_sym, new_sym)

    def derive(self, source: Source, value: int, hints: Mapping[Sym, int]) -> Size | None:
        """The size at `source`, now `value`, as an expression over known symbols; None if it is not derived."""
        before = self._expression(source.path)
        if before is None:
            return None
        for sym in () if isinstance(before, Sym) else free_syms(before) - self.symbols_before_break.keys():
            for path in self.policy.paths_of(sym):
                self.resolve_ahead(path)
        if not free_syms(before) <= self.symbols_before_break.keys():
            return None
        size = subs(before, self.symbols_before_break)
        if evaluate(size, hints) != value:
            return None
        if isinstance(before, Sym) and as_divided(size) is not None:
            self.record(source, size)
        return size

    def _expression(self, path: Path) -> Expr | None:
        """The size at this path over symbols before a break or of `derived`; None if the policy knows more of it."""
        overridden = self.policy.must_be_equal(path) or self.policy.is_distinct(path)
        return None if overridden else self.policy.size_before_break(path)

    def derive_multiple(
        self, source: Source, value: int, hints: Mapping[Sym, int]
    ) -> tuple[Size, Sym] | None:
        """The size, over known symbols, of which the size at `source`, now `value`, is a multiple, and the symbol before a
        break of the factor. To be called where `derive` returns None."""
        before = self._expression(source.path)
        if before is None:
            return None
        unknown = free_syms(before) - self.symbols_before_break.keys()
        if len(unknown) != 1:
            return None
        (factor,) = unknown
        line = affine(before, factor)
        if line is None or line[1] != 0 or self.policy.paths_of(factor):
            return None
        by = subs(line[0], self.symbols_before_break)
        number = evaluate(by, hints)
        return (by, factor) if isinstance(by, Expr) and value % number == 0 and value >= 2 * number else None

    def find_equal(self, source: Source, value: int, mark: Mark | None = None) -> tuple[Source, Size] | None:
        """The first source of the symbol that the size at `source`, now `value`, shares, and its size; None if it needs a
        new symbol. To be called once for each source."""
        path = source.path
        if self.policy.is_distinct(path):
            return None
        key = self._key(source, value, mark)
        firsts = self.equal_sizes.get(key, ())
        if self.policy.merges_within_tensor(path):
            return firsts[0] if firsts else None
        nth = self.key_counts.get((path[:-1], key), 0)
        self.key_counts[path[:-1], key] = nth + 1
        if nth < len(firsts):
            return firsts[nth]
        return firsts[0] if firsts and firsts[0][0].path[:-1] != path[:-1] else None

    def register_equal(self, source: Source, value: int, size: Size, mark: Mark | None = None) -> None:
        """Let later equal sizes share the symbol of the size at `source`, now `value`."""
        if not self.policy.is_distinct(source.path):
            self.equal_sizes.setdefault(self._key(source, value, mark), []).append((source, size))

    def _key(self, source: Source, value: int, mark: Mark | None) -> tuple[object, ...]:
        policy, path = self.policy, source.path
        return value, policy.history(path), mark, policy.divisor(path, value), policy.range(path, value)

    def has_changed(self, sym: Sym) -> bool:
        """Whether a size of this symbol had another value in an earlier call, or is marked to have others."""
        paths = self.paths.get(sym, set())
        return not paths.isdisjoint(self.marked) or any(path in paths for path, _ in self.policy.observed)

    def may_learn_divisor(self, sym: Sym, divisor: int) -> bool:
        """Whether another capture can know the remainder of the symbol's sizes by this divisor as well."""
        paths = self.paths[sym] if sym in self.of_tensors else ()
        return self.policy.with_divisors((path, divisor) for path in paths) != self.policy

    def source_ranges(self, ranges: Iterable[tuple[Sym, Range]]) -> frozenset[tuple[Path, Range]]:
        """The ranges of the sizes at the paths of these symbols, from the symbols' ranges."""
        divided = [(sym, self.divisors[sym], ends) for sym, ends in ranges if sym in self.divisors]
        return frozenset(
            (path, (low * by, high * by + by - 1))
            for sym, by, (low, high) in divided
            for path in self.paths[sym]
        )

    def narrow_range(self, sym: Sym, low: int, high: int) -> bool:
        """Request another capture with this range of the symbol; False if it would add no information."""
        if self.policy.with_ranges(self.source_ranges([(sym, (low, high))])) == self.policy:
            return False
        least, most = self.narrowed.get(sym, (low, high))
        self.narrowed[sym] = max(low, least), min(high, most)
        return True


def _differ_in_names(a: Size, b: Size) -> bool:
    """Whether two divided sizes are equal up to the names of their symbols."""
    one, two = as_divided(a), as_divided(b)
    assert one is not None and two is not None
    renamed: dict[Sym, Size] = dict(zip(two.symbols, one.symbols))
    return len(one.symbols) == len(two.symbols) and subs(b, renamed) == a
