"""Reference execution of a schedule: the oracle for code generators and the plan executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.graph.ir import TensorSpec
from smelt.graph.pytree import map_leaves
from smelt.loops.kernel_ir import Kernel
from smelt.schedule.schedule import BufRef, ExternItem, KernelItem, Schedule, ViewItem
from smelt.shapes.expr import Expr, Size, Sym, evaluate
from tests.harness.kernel_interpreter import run as run_kernel

Launch = Callable[[Kernel, Sequence[torch.Tensor | None], Mapping[Sym, int]], None]


def run(
    schedule: Schedule,
    inputs: Sequence[torch.Tensor],
    sizes: Mapping[Sym, int] | None = None,
    launch: Launch = run_kernel,
) -> list[torch.Tensor | None]:
    """The outputs for `inputs`, which are overwritten where the graph overwrites them. `sizes`: values of the
    schedule's symbols. `launch`: runs a kernel on buffers, at these sizes."""
    memory: dict[int, torch.Tensor] = dict(enumerate((*inputs, *schedule.constants)))
    known = sizes or {}

    def number(size: Size) -> int:
        return evaluate(size, known)

    def tensor(id: int) -> torch.Tensor:
        if id not in memory:
            memory[id] = _allocate(schedule.buffers[id].spec, number)
        return memory[id]

    for item in schedule.items:
        if isinstance(item, KernelItem):
            launch(item.kernel, [None if id is None else tensor(id) for id in item.buffers], known)
        elif isinstance(item, ViewItem):
            source = tensor(item.src)
            offset = source.storage_offset() + number(item.offset)
            shape, stride = list(map(number, item.shape)), list(map(number, item.stride))
            memory[item.out] = source.as_strided(shape, stride, offset)
        else:
            _call(item, memory, schedule, number)
    return [None if id is None else memory[id] for id in schedule.outputs]


def _allocate(spec: TensorSpec, number: Callable[[Size], int]) -> torch.Tensor:
    shape, stride = list(map(number, spec.shape)), list(map(number, spec.stride))
    return torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device)


def _call(
    item: ExternItem, memory: dict[int, torch.Tensor], schedule: Schedule, number: Callable[[Size], int]
) -> None:
    def argument(leaf: Any) -> Any:
        return memory[leaf.id] if isinstance(leaf, BufRef) else number(leaf)

    args, kwargs = (map_leaves(tree, (BufRef, Expr), argument) for tree in (item.args, item.kwargs))
    result = item.op(*args, **kwargs)
    results = result if isinstance(result, tuple | list) else (result,)
    for id, tensor in zip(item.outs, results):
        if id is not None:
            spec = schedule.buffers[id].spec
            shape, stride = tuple(map(number, spec.shape)), tuple(map(number, spec.stride))
            strides = [s for s, n in zip(tensor.stride(), tensor.shape) if n != 1]
            expected = [s for s, n in zip(stride, shape) if n != 1]
            same = tuple(tensor.shape) == shape and tensor.dtype is spec.dtype and strides == expected
            assert same, f"{item.op} gave {tensor.shape}, {tensor.stride()}, {tensor.dtype} instead of {spec}"
            memory[id] = tensor
