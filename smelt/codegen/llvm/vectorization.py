"""The choice of the loop that becomes vector lanes.

*Inner*: within each stage, lanes are different iterations of one of its loops; reductions combine lanes at the end; stages
without loops are scalar. *Outer*: lanes are different points of one outer loop, everything is vector, reductions need no
combining. The choice is by estimated cost, which is dominated by which memory accesses become contiguous.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, prod

from smelt.codegen.llvm.llvm_types import TYPES
from smelt.codegen.llvm.math_functions import MATH_OPS
from smelt.loops.kernel_ir import (
    Kernel,
    ReduceStage,
    ScanStage,
    Stage,
    stage_loops,
    stage_stores,
    stage_values,
    walk,
)
from smelt.shapes.expr import Size, Sym, affine, free_syms, likely, subs

# Costs in cycles of one instruction over one vector; GATHER and SCATTER per lane.
CONTIGUOUS, SPLAT, GATHER, SCATTER, MATH, DIVIDE = 1.0, 1.0, 1.2, 1.8, 14.0, 5.0
SCAN = 20.0  # of a vector within itself
LOCAL_BYTES = 256 << 10  # scratch that may live on the stack of one thread


@dataclass(frozen=True)
class Choice:
    """`outer`: the symbol of the vectorized outer loop, or None for inner mode, where `inner[i]` is stage i's (None:
    scalar). `point_cost`: cycles for one outer point."""

    outer: Sym | None
    inner: tuple[Sym | None, ...]
    point_cost: float


@functools.lru_cache(1 << 16)
def lane_stride(index: Size, sym: Sym | None, lanes: int) -> int | None:
    """The distance between the elements that neighbouring lanes access if lanes are `lanes` consecutive values of
    `sym` from a multiple of `lanes` on; None if it is not a constant. `x // 64` is the same for 16 aligned lanes."""
    if sym is None or sym not in free_syms(index):
        return 0
    direct = affine(index, sym)
    if direct is None:
        block, lane = Sym("block", 0, sym.hi // lanes), Sym("lane", 0, lanes - 1)
        direct = affine(subs(index, {sym: block * lanes + lane}), lane)
    return direct[0] if direct and isinstance(direct[0], int) else None


@dataclass(frozen=True)
class _Access:
    index: Size
    store: bool
    local: bool


@dataclass(frozen=True)
class _StageFacts:
    """The inputs of a stage's cost: likely trip count, accesses, arithmetic cost of one vector of results."""

    stage: Stage
    trips: int
    accesses: tuple[_Access, ...]
    arithmetic: float


def _facts(kernel: Kernel, stage: Stage) -> _StageFacts:
    accesses: list[_Access] = []
    arithmetic = 0.0
    for value in walk(stage_values(stage)):
        if value.op == "load":
            buffer, index, _ = value.args
            accesses.append(_Access(index, False, kernel.buffers[buffer].role == "local"))
        elif value.op not in ("const", "index", "result"):
            arithmetic += (
                MATH if value.op in MATH_OPS else DIVIDE if value.op in ("div", "sqrt", "rsqrt") else 1.0
            )
    for store in stage_stores(stage):
        accesses.append(_Access(store.index, True, kernel.buffers[store.buffer].role == "local"))
    return _StageFacts(stage, prod(likely(l.size) for l in stage_loops(stage)), tuple(accesses), arithmetic)


def _waste(size: int, lanes: int) -> float:
    """Lanes computed per lane used."""
    return ceil(size / lanes) * lanes / size if size else 1.0


def _vector_cost(facts: _StageFacts, sym: Sym, lanes: int, outer: bool) -> float:
    """Cycles for one vector of results."""
    total = facts.arithmetic
    for access in facts.accesses:
        if access.local and outer:
            total += CONTIGUOUS
            continue
        stride = lane_stride(access.index, sym, lanes)
        if stride in (0, 1):
            total += CONTIGUOUS if stride else SPLAT
        else:
            total += lanes * (SCATTER if access.store else GATHER)
    return total


def choose(kernel: Kernel, lanes: int) -> Choice:
    """The cheapest choice of lanes by estimated cycles; an outer loop must save 2% over inner mode."""
    facts = [_facts(kernel, s) for s in kernel.stages]
    best = _inner(facts, lanes)
    for loop in kernel.outer:
        size = likely(loop.size)
        if size < 2 or local_bytes(kernel, lanes) > LOCAL_BYTES:
            continue
        cost = sum(f.trips * _vector_cost(f, loop.sym, lanes, True) for f in facts)
        cost *= _waste(size, lanes) / lanes
        if cost < best.point_cost * 0.98:
            best = Choice(loop.sym, (None,) * len(facts), cost)
    return best


def _inner(facts: list[_StageFacts], lanes: int) -> Choice:
    syms: list[Sym | None] = []
    total = 0.0
    for f in facts:
        loops = stage_loops(f.stage)
        scalar = f.trips * (f.arithmetic + 1.5 * len(f.accesses))
        if not loops:
            syms.append(None)
            total += scalar
            continue
        if isinstance(f.stage, ScanStage):
            f = replace(f, arithmetic=f.arithmetic + SCAN)
            scalar += 4.0 * f.trips
        horizontal = 12.0 * len(f.stage.reductions) if isinstance(f.stage, ReduceStage) else 0.0
        by_loop = [
            f.trips * _waste(likely(l.size), lanes) / lanes * _vector_cost(f, l.sym, lanes, False)
            for l in loops
        ]
        best = min(range(len(loops)), key=lambda i: (by_loop[i], -i))
        vector = by_loop[best] + horizontal + 4
        syms.append(loops[best].sym if vector < scalar else None)
        total += min(vector, scalar)
    return Choice(None, tuple(syms), total + 4)


def local_bytes(kernel: Kernel, lanes: int) -> int:
    """The likely scratch memory of `lanes` outer points."""
    return sum(likely(x.size) * lanes * TYPES[x.dtype].bytes for x in kernel.buffers if x.role == "local")


def count_lanes(kernel: Kernel, width: Callable[[int], int]) -> int:
    """One lane count for the kernel: that of its widest common element, 4 bytes unless it computes only 8-byte values."""
    sizes = {TYPES[x.dtype].bytes for x in kernel.buffers}
    sizes |= {TYPES[v.dtype].bytes for s in kernel.stages for v in stage_values(s)}
    return width(8 if sizes and min(sizes) == 8 else 4)
