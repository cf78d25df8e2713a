"""Memory traffic and operations of one launch, or one ATen call, from its loops and shapes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from smelt.graph.ir import TensorSpec
from smelt.graph.pytree import map_leaves
from smelt.loops.kernel_ir import (
    POINTWISE,
    Loop,
    ReduceStage,
    ScanStage,
    Stage,
    stage_loops,
    stage_stores,
    stage_values,
    walk,
)
from smelt.ops.call_costs import PICKING, operations
from smelt.schedule.schedule import BufRef, ExternItem, KernelItem, Schedule, accesses
from smelt.shapes.expr import Size, Sym, evaluate, free_syms

# The values of symbols in the call, by name: a symbol with narrower bounds is another object of the same name.
Hints = Mapping[str, int]
NO_HINTS: Hints = MappingProxyType({})


@dataclass(frozen=True)
class Work:
    """`reads`, `writes`: bytes of distinct elements, at most those of each buffer. `flops`: None if unknown."""

    reads: int
    writes: int
    flops: int | None


def _number(size: Size, hints: Hints) -> int:
    """A size in the observed call; symbols without a hint count as 1."""
    if isinstance(size, int):
        return size
    return int(evaluate(size, {sym: hints.get(str(sym), 1) for sym in free_syms(size)}))


def nbytes(spec: Any, hints: Hints = NO_HINTS) -> int:
    """Bytes of a tensor's elements; 0 for other values."""
    if not isinstance(spec, TensorSpec):
        return 0
    return math.prod(_number(n, hints) for n in spec.shape) * spec.dtype.itemsize


def of_kernel(item: KernelItem, schedule: Schedule, hints: Hints) -> Work:
    """One launch. A load counts once per element that its index can name, a pointwise function once per point of its
    loops, a reduction once per element."""
    read: dict[int, int] = defaultdict(int)
    written: dict[int, int] = defaultdict(int)
    flops = 0
    nests: list[tuple[tuple[Loop, ...], Stage]] = [(item.kernel.outer, s) for s in item.kernel.stages]
    if item.kernel.sums is not None:
        nests += [(item.kernel.sums.outer, s) for s in item.kernel.sums.stages]
    for outer, stage in nests:
        loops = {loop.sym: _number(loop.size, hints) for loop in (*outer, *stage_loops(stage))}
        points = math.prod(loops.values())

        def named(index: Size, loops: Mapping[Sym, int] = loops) -> int:
            return math.prod(n for sym, n in loops.items() if sym in free_syms(index))

        for value in walk(stage_values(stage)):
            if value.op == "load":
                read[value.args[0]] += named(value.args[1])
            elif value.op in POINTWISE:
                flops += points
        for store in stage_stores(stage):
            written[store.buffer] += points if store.lookups else named(store.index)
        flops += points * (
            len(stage.reductions) if isinstance(stage, ReduceStage) else isinstance(stage, ScanStage)
        )
    return Work(_bytes(read, item, schedule, hints), _bytes(written, item, schedule, hints), flops)


def _bytes(found: Mapping[int, int], item: KernelItem, schedule: Schedule, hints: Hints) -> int:
    total = 0
    for i, count in found.items():
        buffer = item.buffers[i]
        if buffer is not None:
            spec = schedule.buffers[buffer].spec
            total += min(count * spec.dtype.itemsize, nbytes(spec, hints))
    return total


def of_call(item: ExternItem, schedule: Schedule, hints: Hints) -> Work:
    """One ATen call: its tensors once each; operations of products and convolutions only."""

    def size(buffers: Iterable[int]) -> int:
        return sum(nbytes(schedule.buffers[b].spec, hints) for b in dict.fromkeys(buffers))

    read, written = accesses(item)
    if item.op in PICKING and len(written) == 1:
        table, *others = read
        reads = min(size([table]), size(written)) + size(others)
    else:
        reads = size(read)
    return Work(reads, size(written), _flops(item, schedule, hints))


def _flops(item: ExternItem, schedule: Schedule, hints: Hints) -> int | None:
    def sizes(buffer: int) -> tuple[int, ...]:
        return tuple(_number(n, hints) for n in schedule.buffers[buffer].spec.shape)

    out = item.outs[0] if item.outs else None
    if out is None:
        return None
    args = map_leaves(item.args, BufRef, lambda ref: sizes(ref.id))
    return operations(item.op, args, sizes(out))
