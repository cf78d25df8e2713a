"""Online softmax: a maximum and the sum of exponentials below it, in one pass over a row that registers do not hold.

Softmax reads its row for the maximum m, then for the sum of exp(v - m). Here each lane has the maximum m and the sum s
of its elements so far. In a segment of one row a lane takes a vector of adjacent elements at once: their maximum and m
give the next maximum n, and s becomes s * exp(m - n) + the sum of their exp(v - n), one exponential each and one for
the vector. Otherwise the next v gives (max(m, v), s + exp(v - m)), or s * exp(m - v) + 1 if v is larger: one
exponential, of -|v - m|. At the end lanes are rescaled to the row's maximum. A lane begins at the lowest finite
number, since differences of infinities are NaN; if its sum is still 0 then, all its elements were -inf.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smelt.codegen.triton.approximate_math import below_maximum
from smelt.loops.kernel_ir import (
    MapStage,
    ReduceStage,
    Reduction,
    Stage,
    Value,
    stage_loops,
    stage_stores,
    stage_values,
    walk,
)
from smelt.loops.loop_values import Moved

LOWEST = -torch.finfo(torch.float32).max


def first(stages: Sequence[Stage]) -> tuple[ReduceStage, dict[str, str], list[Stage]] | None:
    """The first stage merged with the next one that has loops (see `joined`), and the remaining stages: stores once
    per outer point between them are delayed."""
    later = next((k for k, stage in enumerate(stages[1:], 1) if stage_loops(stage)), None)
    if later is None:
        return None
    between = stages[1:later]
    stored = {store.buffer for stage in between for store in stage_stores(stage)}
    if not all(isinstance(stage, MapStage) for stage in between) or _loads(stages[later], stored):
        return None
    found = merged(stages[0], stages[later])
    return None if found is None else (*found, [*between, *stages[later + 1 :]])


def merged(first: Stage, second: Stage) -> tuple[ReduceStage, dict[str, str]] | None:
    """Two stages as one, and the maximum of each sum of exponentials; None if the second needs more of the first."""
    if not isinstance(first, ReduceStage) or not isinstance(second, ReduceStage):
        return None
    if [l.size for l in first.loops] != [l.size for l in second.loops]:
        return None
    if _loads(second, {store.buffer for store in first.stores}):
        return None
    move = Moved({b.sym: a.sym for a, b in zip(first.loops, second.loops)})
    maxima = {r.name: r.value for r in first.reductions if r.kind == "max" and r.value.dtype is torch.float32}
    names = {r.name for r in first.reductions}
    sums: dict[str, str] = {}
    reductions = list(first.reductions)
    for r in second.reductions:
        value = move.value(r.value)
        maximum = below_maximum(value, maxima) if r.kind == "sum" else None
        if maximum is not None and maximum not in sums.values():
            sums[r.name] = maximum
        elif _needs(value, names):
            return None
        reductions.append(Reduction(r.name, r.kind, value))
    stores = tuple(s.moved(move.index, move.value) for s in second.stores)
    if not sums or any(_needs(s.value, names) for s in stores):
        return None
    return ReduceStage(first.loops, tuple(reductions), (*first.stores, *stores)), sums


def _loads(stage: Stage, buffers: set[int]) -> bool:
    return any(v.op == "load" and v.args[0] in buffers for v in walk(stage_values(stage)))


def _needs(value: Value, names: set[str]) -> bool:
    return any(v.op == "result" and v.args[0] in names for v in walk([value]))
