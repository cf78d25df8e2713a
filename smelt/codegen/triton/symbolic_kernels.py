"""Kernels with symbols for sizes: one text, hence one machine code, for many sizes.

The symbols are arguments (`n0`, `n1`, ... by position in `Kernel.sizes`). What else is decided by numbers is a `Variant`,
which a launch chooses by its own: there are few.

* A loop of a stage over a size that is no number is of one of few *classes*: up to 64, 256, 1024, ... points. A block
  holds all of its class at once as far as blocks do so (`block_sizes.py`); behind that it goes over the row in blocks,
  and the number of points is any.
* Other sizes count rows and the like. Blocks are those of MANY of them, however many there are: small calls wait for the
  host anyway.
* Sizes that decide whether neighbours can be read as vectors are all multiples of 16, or taken for none.
* Indices have 64 bits if one of them needs that.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from smelt.codegen.llvm.flat_elementwise import is_flat
from smelt.codegen.triton.block_sizes import Blocks, choose, stage_indices, stage_points
from smelt.codegen.triton.kernel_source import ALIGNED, CHAIN, Printer, Source, top_index, trips
from smelt.codegen.triton.value_expressions import Dialect
from smelt.loops.kernel_ir import Kernel, Stage, stage_loops, stage_stores
from smelt.loops.kernel_sizes import at_sizes
from smelt.shapes.expr import Size, Sym, bounds, evaluate, free_syms, highest, numel

SHORTEST = 64  # points of a row: shorter ones are of this class
WIDER = 4  # times: of a class, what the one before it has
MANY = 1 << 13
FAR = 1 << 60  # a size beyond this comes from an unknown bound


@dataclass(frozen=True)
class Variant:
    """What of a kernel depends on numbers. `blocks`: by the loops of the kernel at some numbers of this variant. `turns`:
    for each stage, how many blocks of a row are added up apart, at most; 0: a block holds all points. `wide`: indices need
    64 bits. `even`: the sizes that `strides_of` names are multiples of 16."""

    blocks: Blocks
    turns: tuple[int, ...]
    wide: bool
    even: bool


def takes_sizes(kernel: Kernel) -> bool:
    """Whether a text with its symbols is that of many sizes. (Elementwise ones over one loop have one without.)"""
    return bool(kernel.sizes) and kernel.sums is None and not is_flat(kernel)


def numbered(kernel: Kernel) -> Kernel:
    """The kernel with the names that its symbols have as arguments: that of kernels that differ in these only."""
    return at_sizes(kernel, {s: Sym(f"n{k}", s.lo, s.hi) for k, s in enumerate(kernel.sizes)})


def variant(kernel: Kernel, sizes: Sequence[int], host: frozenset[int] = frozenset()) -> Variant:
    """Which one a launch with these numbers takes. `host`: as `triton_source` has it."""
    values = dict(zip(kernel.sizes, sizes, strict=True))
    strides = strides_of(kernel)
    even = bool(strides) and all(values[s] % ALIGNED == 0 for s in strides)
    odd = frozenset() if even else strides
    blocks, most = _blocks(kernel, tuple(_representative(kernel, values, odd).items()), host)
    points = [max(n, evaluate(trips(stage), values)) for n, stage in zip(most, kernel.stages)]
    turns = tuple(_turns(n, blocks) for n in points)
    beyond = blocks.x + blocks.r * max((1, *turns))  # masked points at the end of a row have indices too
    return Variant(blocks, turns, _top(kernel, values) + beyond >= 1 << 31, even)


@functools.lru_cache(1024)
def _blocks(
    kernel: Kernel, values: tuple[tuple[Sym, int], ...], host: frozenset[int]
) -> tuple[Blocks, tuple[int, ...]]:
    """The blocks at these numbers, and how many points its stages have then."""
    numbers = at_sizes(kernel, dict(values))
    return choose(numbers, host), tuple(map(stage_points, numbers.stages))


def _top(kernel: Kernel, values: Mapping[Sym, int]) -> int:
    """As `top_index` at these numbers, or more than that."""
    tops = _tops(kernel)
    if tops is None:
        return top_index(at_sizes(kernel, values))
    return max(evaluate(e, values) for e in tops)


@functools.lru_cache(1024)
def _tops(kernel: Kernel) -> tuple[Size, ...] | None:
    """The largest numbers that its indices have, over its sizes; None where that is not known."""
    points = numel(l.size for l in kernel.outer)
    found = [points, *(points * trips(stage) for stage in kernel.stages)]
    for stage in kernel.stages:
        for e in stage_indices(stage):
            found += [highest(e), highest(-e)]
        for store in stage_stores(stage):
            found.append(highest(store.index) + sum(l.stride * (l.size - 1) for l in store.lookups))
    known = frozenset(kernel.sizes)
    return tuple(found) if all(abs(bounds(e)[0]) < FAR and free_syms(e) <= known for e in found) else None


def _turns(points: int, blocks: Blocks) -> int:
    if blocks.across is not None or points <= max(blocks.r, 1):
        return 0
    return 1 if points <= CHAIN * blocks.r else CHAIN


@functools.lru_cache(1024)
def strides_of(kernel: Kernel) -> frozenset[Sym]:
    """The sizes by which neighbours, or rows of them, lie where they do."""
    sizes = frozenset(kernel.sizes)
    found: list[Size] = [l.size for stage in kernel.stages for l in stage_loops(stage)]
    if not found:  # elementwise: neighbours are such along the last loop
        found += [l.size for l in kernel.outer[-1:]]
    found += [e for stage in kernel.stages for e in stage_indices(stage)]
    return sizes & frozenset().union(*map(free_syms, found))


def _representative(kernel: Kernel, values: Mapping[Sym, int], odd: frozenset[Sym]) -> dict[Sym, int]:
    """Numbers that stand for all of the variant, but for its width: those of `odd` are no multiples of 16."""
    rows = frozenset().union(*(free_syms(l.size) for stage in kernel.stages for l in stage_loops(stage)))
    found = {s: _class(n) if s in rows else MANY for s, n in values.items()}
    return {s: n - (s in odd) for s, n in found.items()}


def _class(points: int) -> int:
    found = SHORTEST
    while found < points:
        found *= WIDER
    return found


def sized_source(
    kernel: Kernel, variant: Variant, host: frozenset[int] = frozenset(), dialect: Dialect = "ptx"
) -> Source:
    """As `triton_source`, of a kernel that `takes_sizes`, whose symbols are `numbered`."""
    return _Sized(kernel, variant, host, dialect).source()


class _Sized(Printer):
    def __init__(self, kernel: Kernel, variant: Variant, host: frozenset[int], dialect: Dialect) -> None:
        self.variant = variant
        self.turns = {trips(stage): n for stage, n in zip(kernel.stages, variant.turns, strict=True)}
        self.axes_of_sizes: dict[Size, str] = {}
        super().__init__(kernel, host, dialect, _with_symbols(kernel, variant))

    def source(self) -> Source:
        source = super().source()
        even = {s.name for s in strides_of(self.kernel)} if self.variant.even else ()
        return replace(source, aligned=source.aligned.union(even))

    def _is_wide(self) -> bool:
        return self.variant.wide

    def _passed(self) -> dict[str, str]:
        passed = super()._passed()
        points = passed.pop("points")
        return passed | dict.fromkeys((s.name for s in self.kernel.sizes), "i64") | {"points": points}

    def _head(self) -> list[str]:
        names = [] if self.variant.wide else [s.name for s in self.kernel.sizes]
        return [*(f"    {name} = {name}.to(tl.int32)" for name in names), *super()._head()]

    def _axis(self, points: Size) -> str:
        if isinstance(points, int):
            return super()._axis(points)
        return self.axes_of_sizes.setdefault(points, f"rn{len(self.axes_of_sizes)}")

    def _looped(self, stage: Stage) -> bool:
        return self.blocks.across is None and self.turns[trips(stage)] > 0

    def _turns(self, stage: Stage) -> int:
        return self.turns[trips(stage)]

    def _end_of_segment(self, points: Size, turns: int) -> str:
        return self.values.number(f"tl.minimum({self._size(points)} - part, RBLOCK * {turns})")


def _with_symbols(kernel: Kernel, variant: Variant) -> Blocks:
    """The blocks, by the loops of the kernel itself."""
    blocks = variant.blocks
    if blocks.across is None:
        return blocks
    loops = {l.sym.name: l for l in kernel.outer}
    outer = tuple(loops[l.sym.name] for l in blocks.outer)
    return replace(blocks, across=loops[blocks.across.sym.name], outer=outer)
