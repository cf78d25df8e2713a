"""Launches of a schedule on a GPU. Kernels whose results are on the CPU run there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from smelt.codegen.autotune.autotuner import Tuner
from smelt.codegen.cpu_launches import launched
from smelt.codegen.gpu_symbolic_launches import Generals, LaunchesAtSizes, device_of
from smelt.codegen.llvm import compile_kernels as compile_for_cpu
from smelt.codegen.llvm.flat_elementwise import of_any_size, over_one_point
from smelt.codegen.triton.compile import Request, compile_kernels, unheard
from smelt.codegen.triton.gpu_architectures import Arch, takes_tables
from smelt.codegen.triton.kernel_source import ALIGNED, joins, table_of
from smelt.codegen.triton.link import load_early
from smelt.config import Config
from smelt.loops.row_sums import separate
from smelt.plan.buffer_reuse import reusable_operands
from smelt.plan.horizontal_fusion import Kind, Slot, fuse_horizontally
from smelt.plan.machine_code import CompiledKernel, Function, Library, Processor
from smelt.plan.plan_items import Item, LaunchItem, ParallelLaunchItem
from smelt.runtime.disk_cache import store
from smelt.schedule.schedule import ExternItem, KernelItem, Schedule, ViewItem
from smelt.schedule.schedule import Item as ScheduleItem
from smelt.shapes.expr import evaluate, static

THREADS = min(os.cpu_count() or 1, 16)
NONE: Generals = {}
NOTHING = Function(Library(Processor("", "", ""), (), ()), "nothing")  # the code of kernels without points


def generate(
    schedule: Schedule,
    arch: Arch,
    config: Config,
    tuner: Tuner | None = None,
    device: int | None = None,
    generals: Generals = NONE,
) -> list[Item]:
    """The items of `schedule`, with launches in place of kernels.

    Args:
        arch: the processors.
        tuner: selects generated products; None: ATen computes all products.
        device: the only GPU of the schedule, which loads code while other kernels compile; None where there are several.
        generals: the symbolic kernels that items launch, by `id` of the item.
    """
    items_apart = [part for item in schedule.items for part in _apart_on_cpu(schedule, item)]
    schedule = replace(schedule, items=list(map(_with_a_loop, items_apart)))
    aligned = _aligned(schedule)
    items = schedule.items if tuner is None else tuner.replaced(schedule, aligned)
    kind = partial(_kind, schedule, aligned, generals) if takes_tables(arch) else _alone
    slots = fuse_horizontally(schedule, items, kind)
    requests = {
        id(i): Request(
            generals[id(i)].kernel if id(i) in generals else i.kernel,
            _by_value(schedule, i),
            _unaligned(i, aligned),
            len(slot.items) > 1,
            generals.get(id(i)),
        )
        for slot in slots
        for i in slot.items
        if isinstance(i, KernelItem) and _has_points(i, generals) and not _runs_on_cpu(schedule, i)
    }
    cache = store(config)
    made = partial(load_early, device=device, store=cache) if device is not None else unheard
    code: dict[int, CompiledKernel] = dict(
        zip(requests, compile_kernels(list(requests.values()), arch, THREADS, cache, made))
    )
    others = [i for i in items if isinstance(i, KernelItem) and id(i) not in requests]
    code |= {
        id(i): CompiledKernel(i.kernel.name, NOTHING, 0, 1) for i in others if not _has_points(i, generals)
    }
    on_cpu = [i for i in others if id(i) not in code]
    if on_cpu:
        code |= zip(map(id, on_cpu), compile_for_cpu([i.kernel for i in on_cpu], config))
    return [_placed(schedule, slot, code) for slot in slots]


def generate_symbolic(
    schedule: Schedule, arch: Arch, config: Config, device: int | None = None
) -> LaunchesAtSizes:
    """`generate` for a schedule with symbolic sizes: returns what gives the items at concrete sizes. Products are ATen's."""

    def at_sizes(schedule: Schedule, generals: Generals) -> list[Item]:
        return generate(schedule, arch, config, device=device, generals=generals)

    return LaunchesAtSizes(schedule, at_sizes)


def _apart_on_cpu(schedule: Schedule, item: ScheduleItem) -> list[ScheduleItem]:
    """Splits a kernel that runs on the CPU from the sums fused with it, which are a kernel of their own there."""
    if not isinstance(item, KernelItem) or item.kernel.sums is None or not _runs_on_cpu(schedule, item):
        return [item]
    return [
        replace(item, kernel=part, buffers=tuple(item.buffers[i] for i in used))
        for part, used in separate(item.kernel)
    ]


def _with_a_loop(item: ScheduleItem) -> ScheduleItem:
    """Gives a kernel over one point a loop, so that it can be part of a batched launch."""
    if not isinstance(item, KernelItem) or item.kernel.outer:
        return item
    kernel = over_one_point(item.kernel)
    return replace(item, kernel=kernel) if kernel.outer and joins(kernel) else item


def _has_points(item: KernelItem, generals: Generals = NONE) -> bool:
    """Whether the kernel computes any element. For one without points, the plan only allocates results."""
    if (general := generals.get(id(item))) is not None:
        return all(evaluate(loop.size, general.values) for loop in general.kernel.outer)
    return all(static(loop.size) for loop in item.kernel.outer)


def _kind(schedule: Schedule, aligned: Sequence[bool], generals: Generals, item: KernelItem) -> Kind | None:
    """The kind of a launch. Launches of one kind, which differ in sizes and buffers only, may become one batched launch."""
    if id(item) in generals or not item.kernel.outer or not _has_points(item) or _runs_on_cpu(schedule, item):
        return None
    if not joins(item.kernel):
        return None
    code = of_any_size(item.kernel, ALIGNED)
    key = code, _by_value(schedule, item), _unaligned(item, aligned), device_of(schedule, item)
    return Kind(key, table_of(item.kernel).parts)


def _alone(item: KernelItem) -> Kind | None:
    """No launch is batched."""
    return None


def _placed(schedule: Schedule, slot: Slot, code: dict[int, CompiledKernel]) -> Item:
    launches = [_launched(schedule, item, code) for item in slot.items]
    if len(launches) == 1:
        return launches[0]
    return ParallelLaunchItem(tuple(launch for launch in launches if isinstance(launch, LaunchItem)))


def _launched(schedule: Schedule, item: ScheduleItem | LaunchItem, code: dict[int, CompiledKernel]) -> Item:
    if isinstance(item, LaunchItem):
        return item
    made = launched(item, code)
    if not isinstance(item, KernelItem) or not isinstance(made, LaunchItem) or _runs_on_cpu(schedule, item):
        return made
    positions = {b: n for n, b in enumerate(made.buffers)}
    by_value = {positions[item.buffers[k]]: item.kernel.buffers[k].dtype for k in _by_value(schedule, item)}  # type: ignore[index]
    return replace(
        made,
        joins=False,
        by_value=tuple((k, by_value[k].itemsize) for k in sorted(by_value)),
        in_place=_inplace(item, positions),
    )


def _inplace(item: KernelItem, positions: dict[int, int]) -> tuple[tuple[int, int], ...]:
    """Pairs (result, operand) that may share memory, by their positions in the launch."""
    pairs = ((item.buffers[out], item.buffers[operand]) for out, operand in reusable_operands(item.kernel))
    return tuple((positions[out], positions[operand]) for out, operand in pairs)  # type: ignore[index]


def _runs_on_cpu(schedule: Schedule, item: KernelItem) -> bool:
    return device_of(schedule, item).type == "cpu"


def _by_value(schedule: Schedule, item: KernelItem) -> frozenset[int]:
    """The positions of the kernel's buffers that are scalars on the CPU, passed by value."""
    return frozenset(
        k
        for k, b in enumerate(item.buffers)
        if b is not None and schedule.buffers[b].spec.device.type == "cpu"
    )


def _unaligned(item: KernelItem, aligned: Sequence[bool]) -> frozenset[int]:
    return frozenset(k for k, b in enumerate(item.buffers) if b is not None and not aligned[b])


def _aligned(schedule: Schedule) -> list[bool]:
    """Which buffers begin at a multiple of ALIGNED bytes. Inputs do, since the plan copies others, and so do torch's
    allocations. A result that may be a view may begin anywhere."""
    aligned = [True] * len(schedule.buffers)
    for item in schedule.items:
        if isinstance(item, ViewItem):
            itemsize = schedule.buffers[item.src].spec.dtype.itemsize
            offset = item.offset
            is_multiple = isinstance(offset, int) and offset * itemsize % ALIGNED == 0
            aligned[item.out] = aligned[item.src] and is_multiple
        elif isinstance(item, ExternItem):
            for declared, out in zip(item.op._schema.returns, item.outs):
                if out is not None and declared.alias_info is not None:
                    aligned[out] = False
    return aligned
