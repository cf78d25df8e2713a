"""Symbolic sizes of a kernel: their symbols, and substitution for them.

A loop's symbol is bound by the loop and has its size as a bound (`loop_sym`), so substitution renames it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from smelt.loops.kernel_ir import (
    Buffer,
    Kernel,
    Loop,
    MapStage,
    ReduceStage,
    Reduction,
    ScanStage,
    Stage,
    indices,
    stage_loops,
    stage_stores,
    stage_values,
)
from smelt.loops.loop_values import Moved
from smelt.shapes.expr import Size, Sym, free_syms, loop_sym, subs


def size_symbols(
    buffers: Iterable[Buffer], outer: Sequence[Loop], stages: Sequence[Stage]
) -> tuple[Sym, ...]:
    """The parameters of a kernel: its symbols but for those of loops, in order of first use."""
    loops = {l.sym for l in outer} | {l.sym for stage in stages for l in stage_loops(stage)}
    found: dict[Sym, None] = {}
    for e in _expressions(buffers, outer, stages):
        found.update(dict.fromkeys(sorted(free_syms(e) - loops, key=lambda s: s.key)))
    return tuple(found)


def _expressions(buffers: Iterable[Buffer], outer: Sequence[Loop], stages: Sequence[Stage]) -> Iterable[Size]:
    yield from (b.size for b in buffers)
    yield from (l.size for l in outer)
    for stage in stages:
        yield from (l.size for l in stage_loops(stage))
        yield from (s.index for s in stage_stores(stage))
        yield from indices(stage_values(stage))


def at_sizes(kernel: Kernel, values: Mapping[Sym, Size]) -> Kernel:
    """The kernel with `values` (numbers or sizes) for its parameters."""
    if not kernel.sizes:
        return kernel
    assert kernel.sums is None, "row sums have fixed sizes"
    sizes = [
        s for size in kernel.sizes for s in sorted(free_syms(values.get(size, size)), key=lambda s: s.key)
    ]
    outer = tuple(_loop(l, values) for l in kernel.outer)
    return replace(
        kernel,
        buffers=tuple(replace(b, size=subs(b.size, values)) for b in kernel.buffers),
        outer=outer,
        stages=tuple(_stage(s, values, _symbols(kernel.outer, outer)) for s in kernel.stages),
        sizes=tuple(dict.fromkeys(sizes)),
    )


def _loop(loop: Loop, values: Mapping[Sym, Size]) -> Loop:
    size = subs(loop.size, values)
    return Loop(loop_sym(loop.sym.name, size), size)


def _symbols(old: Sequence[Loop], new: Sequence[Loop]) -> dict[Sym, Size]:
    return {before.sym: after.sym for before, after in zip(old, new, strict=True)}


def _stage(stage: Stage, values: Mapping[Sym, Size], outer: Mapping[Sym, Size]) -> Stage:
    loops = tuple(_loop(l, values) for l in stage_loops(stage))
    moved = Moved({**values, **outer, **_symbols(stage_loops(stage), loops)})
    stores = tuple(s.moved(moved.index, moved.value) for s in stage_stores(stage))
    if isinstance(stage, ScanStage):
        return ScanStage(loops[0], stage.kind, stores[0])
    if isinstance(stage, ReduceStage):
        reductions = tuple(Reduction(r.name, r.kind, moved.value(r.value)) for r in stage.reductions)
        return ReduceStage(loops, reductions, stores)
    return MapStage(loops, stores)
