"""Sibling fusion: sums over rows computed by the kernel that computes the rows (`loops.row_sums`).

Fusion leaves two groups: one whose outer points are rows, with reductions along them, and one that reduces the columns
of chunks of rows (`split_reductions`). If both cover the same rows and read the same memory, that memory is read
twice. They can be one kernel if no group that runs after one of them is needed by the other.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod

from smelt.cost_model import Costs
from smelt.loops.kernel_ir import Kernel, Stage, stage_stores, stage_values, walk
from smelt.loops.lazy_tensor import Tensor
from smelt.loops.row_sums import columns_of, fuse_siblings, row_stage
from smelt.schedule.fusion import Group
from smelt.schedule.index_spaces import Loops, linear, substituted
from smelt.schedule.schedule import KernelItem
from smelt.shapes.expr import affine, bounds, free_syms

# Ids of groups: of sums, and of the rows that they run with (which may be the same for several).
Pairs = dict[int, int]


def pairs(groups: Sequence[Group], costs: Costs) -> Pairs:
    """Groups of sums over rows with the groups of those rows, as far as the order of all groups lets them fuse."""
    if not costs.row_sums:
        return {}
    found: Pairs = {}
    touched = functools.cache(_touched)
    after = {g.id: g.after for g in groups}
    rows = [(g, loops) for g in groups if (loops := _row_loops(g)) is not None]
    for sums, of_sums in rows:
        for group, of_rows in rows if sums.id not in found.values() else ():
            if not _are_chunks(of_sums, of_rows, costs) or group is sums or group.id in found:
                continue
            width = of_rows[1]
            if not touched(group, 1).isdisjoint(touched(sums, width)) and _may_fuse(group.id, sums.id, after):
                found[sums.id] = group.id
                break
    return found


def _row_loops(group: Group) -> tuple[int, int] | None:
    """The numbers of points of a group and of its stages; None if it has no row stages or they are unknown."""
    if not all(
        isinstance(n, int)
        for _, n in (*group.outer, *(l for p in group.indexing_of.values() for l in p.inner))
    ):
        return None
    inner = {_points(p.inner) for p in group.indexing_of.values() if p.inner}
    if group.extern is not None or not group.fusible or len(inner) != 1:
        return None
    return _points(group.outer), inner.pop()


def _are_chunks(sums: tuple[int, int], rows: tuple[int, int], costs: Costs) -> bool:
    """Whether the loops of the first may be those of chunks of the second's rows. `loops.row_sums` decides exactly."""
    (points, chunk), (count, width) = sums, rows
    if not 1 < width <= costs.row_sums // 2 or points % width:
        return False
    chunks = points // width
    return 2 * chunks >= costs.threads and (chunks - 1) * chunk < count <= chunks * chunk


def _touched(group: Group, stride: int) -> set[Tensor]:
    """The tensors that a group reads or writes with the stated stride along a loop of a stage."""
    found: set[Tensor] = set()
    for unit in group.units:
        indexing = group.indexing_of[unit.tensor]
        at = [(t, substituted(own, indexing.values)) for t, own in unit.reads]
        for tensor, index in [*at, (unit.tensor, indexing.index)]:
            steps = (affine(linear(tensor, index), sym) for sym, _ in indexing.inner)
            if any(step is not None and step[0] == stride for step in steps):
                found.add(tensor)
    return found


def _may_fuse(rows: int, sums: int, after: dict[int, int]) -> bool:
    """Whether the sums may run with the rows. If so, record it: every group after one is then after both."""
    if after[rows] >> sums & 1:
        return False
    for other, before in after.items():
        if other in (rows, sums):
            continue
        if (before >> rows & 1 and after[sums] >> other & 1) or (
            before >> sums & 1 and after[rows] >> other & 1
        ):
            return False
    both = 1 << rows | 1 << sums
    joint = (after[rows] | after[sums]) & ~both
    for other, before in after.items():
        if other in (rows, sums):
            after[other] = joint
        elif before & both:
            after[other] = before | both | joint
    return True


def _points(loops: Loops) -> int:
    return prod(bounds(size)[1] for _, size in loops)


# ---- of kernels


def sibling_kernel(rows: KernelItem, sums: KernelItem, costs: Costs) -> KernelItem | str:
    """One launch of both, or the reason why that is illegal or does not pay."""
    buffers = list(rows.buffers)
    buffer_numbers: list[int] = []
    for buffer in sums.buffers:
        if buffer is None or buffer not in buffers:
            buffers.append(buffer)
            buffer_numbers.append(len(buffers) - 1)
        else:
            buffer_numbers.append(buffers.index(buffer))
    kernel = fuse_siblings(rows.kernel, sums.kernel, buffer_numbers)
    if isinstance(kernel, Kernel):
        kernel = _unprofitable(kernel, costs) or kernel
    if isinstance(kernel, str):
        return kernel
    return KernelItem(kernel, tuple(buffers), sums.note or rows.note, (*rows.made_of, *sums.made_of))


def _unprofitable(kernel: Kernel, costs: Costs) -> str | None:
    stage, width = row_stage(kernel), columns_of(kernel)
    if sum(max(4, r.value.dtype.itemsize) // 4 for r in stage.reductions) * width > costs.row_sums:
        return "a program does not hold so many sums"
    (along,) = stage.loops
    read = {
        v.args[0]
        for v in walk(stage_values(stage))
        if v.op == "load" and along.sym in free_syms(v.args[1]) and len(free_syms(v.args[1])) > 1
    }
    if read.isdisjoint(b for s in kernel.stages for b in _buffers(s)):
        return "the sums read nothing that the rows read"
    return None


def _buffers(stage: Stage) -> set[int]:
    """The buffers that the stage reads or writes."""
    return {v.args[0] for v in walk(stage_values(stage)) if v.op == "load"} | {
        s.buffer for s in stage_stores(stage)
    }
