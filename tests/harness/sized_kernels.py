"""Kernels of GPUs with symbols for sizes: printed once for each variant, run by Triton's interpreter at many sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.codegen.triton.symbolic_kernels import takes_sizes
from smelt.cost_model import Costs
from smelt.loops.kernel_ir import Kernel
from smelt.loops.kernel_sizes import at_sizes
from smelt.ops.lowering import lower
from smelt.schedule.schedule import KernelItem, Schedule
from smelt.schedule.schedule_program import fuse
from smelt.schedule.verify_schedule import verify
from smelt.shapes.expr import Size
from smelt.targets import cuda
from tests.harness.schedule_interpreter import run
from tests.harness.symbolic import symbolic
from tests.harness.symbolic_kernels import TRACED, Guarded, Sizes, random_inputs
from tests.harness.triton_launcher import launch_sized, load_kernel

COSTS: Costs = replace(cuda.COSTS, threads=132)
# For a GPU of few processors sums are cut into fewer parts. Triton's interpreter runs each part, the empty ones too.
FEW_PROCESSORS: Costs = replace(cuda.COSTS, threads=4)


class Once:
    """`f` on tensors of `shapes`, with symbols in them, lowered and fused once with a GPU's `costs`. Called with sizes and
    inputs, it gives the outputs; `texts` are those of the kernels that take sizes, `fixed` how often a kernel was printed
    for numbers."""

    def __init__(
        self,
        f: Callable[..., Any],
        *shapes: Sequence[Size],
        dtype: torch.dtype = torch.float32,
        costs: Costs = COSTS,
    ) -> None:
        self.f, self.shapes, self.dtype = f, shapes, dtype
        inputs = self.inputs(TRACED)
        graph, real = symbolic(f, *inputs)
        self.order = [next(k for k, t in enumerate(inputs) if t is r) for r in real]
        self.schedule: Schedule = fuse(lower(graph, costs), costs)
        verify(self.schedule)
        self.kernels = [i.kernel for i in self.schedule.items if isinstance(i, KernelItem)]
        self.texts: set[str] = set()
        self.fixed = 0

    def inputs(self, sizes: Sizes) -> list[torch.Tensor]:
        """Of random numbers, at these sizes."""
        return random_inputs(self.shapes, sizes, self.dtype)

    def __call__(self, sizes: Sizes, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        return run(self.schedule, [inputs[k] for k in self.order], sizes, self._launch)

    def _launch(self, kernel: Kernel, buffers: Sequence[torch.Tensor | None], sizes: Sizes) -> None:
        around = [Guarded(b) for b in buffers if b is not None]
        tensors = [g.inner for g in around]
        if takes_sizes(kernel):
            self.texts.add(launch_sized(kernel, [sizes[s] for s in kernel.sizes], *tensors).text)
        else:
            self.fixed += bool(kernel.sizes)
            load_kernel(at_sizes(kernel, sizes))(*tensors)
        for guarded in around:
            guarded.give_back()
