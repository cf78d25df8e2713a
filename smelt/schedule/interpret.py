"""Runs a schedule with the reference interpreter: the oracle for code generators and the plan executor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smelt.graph.ir import TensorSpec
from smelt.graph.sizes import static
from smelt.graph.tree import map_leaves
from smelt.loops.interpret import run as run_kernel
from smelt.schedule.schedule import BufRef, ExternItem, KernelItem, Schedule, ViewItem


def run(schedule: Schedule, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """The outputs for `inputs`, which are overwritten where the graph overwrites them."""
    memory: dict[int, torch.Tensor] = dict(enumerate((*inputs, *schedule.constants)))

    def tensor(id: int) -> torch.Tensor:
        if id not in memory:
            memory[id] = _allocate(schedule.buffers[id].spec)
        return memory[id]

    for item in schedule.items:
        if isinstance(item, KernelItem):
            run_kernel(item.kernel, [None if id is None else tensor(id) for id in item.buffers])
        elif isinstance(item, ViewItem):
            source = tensor(item.src)
            offset = source.storage_offset() + item.offset
            memory[item.out] = source.as_strided(item.shape, item.stride, offset)  # type: ignore[arg-type]
        else:
            _call(item, memory, schedule)
    return [None if id is None else memory[id] for id in schedule.outputs]


def _allocate(spec: TensorSpec) -> torch.Tensor:
    shape, stride = [static(s) for s in spec.shape], [static(s) for s in spec.stride]
    return torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device)


def _call(item: ExternItem, memory: dict[int, torch.Tensor], schedule: Schedule) -> None:
    args, kwargs = (map_leaves(tree, BufRef, lambda r: memory[r.id]) for tree in (item.args, item.kwargs))
    result = item.op(*args, **kwargs)
    results = result if isinstance(result, tuple | list) else (result,)
    for id, tensor in zip(item.outs, results):
        if id is not None:
            spec = schedule.buffers[id].spec
            strides = [s for s, n in zip(tensor.stride(), tensor.shape) if n != 1]
            expected = [s for s, n in zip(spec.stride, spec.shape) if n != 1]
            same = tuple(tensor.shape) == spec.shape and tensor.dtype is spec.dtype and strides == expected
            assert same, f"{item.op} gave {tensor.shape}, {tensor.stride()}, {tensor.dtype} instead of {spec}"
            memory[id] = tensor
