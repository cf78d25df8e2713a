"""Calls of user kernels (Triton), which write some of their tensor arguments.

At the torch level such a call is a `KernelLaunch`. At the aten level it is `smelt::run_kernel(call, written, others)`,
where `call` is a `Handle` of a `KernelCall`. Its tensors are owners of memory: for all arguments in one storage, the
tensor that owns it, so that arguments which share memory share it in any graph, and a kernel may access memory beyond
its arguments, as in eager. In functional graphs it is `run_kernel_functional`, which returns new values of the written
tensors. Plans run that in place where no reader sees a difference (`plan/inplace_kernels.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from smelt.graph.ir import TensorSpec
from smelt.graph.object_handles import Handle, found
from smelt.graph.pytree import map_leaves
from smelt.graph.tensor_specs import empty_like_spec
from smelt.torch_private import OpOverload

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Slot:
    """In the arguments of a launch: the i-th value of each call."""

    index: int


@dataclass(frozen=True)
class Grids:
    """A grid for each choice of a kernel's constants: those called `names`, by their values."""

    names: tuple[str, ...]
    rows: dict[tuple[Any, ...], Any]

    def __call__(self, meta: dict[str, Any]) -> Any:
        return self.rows[tuple(meta[name] for name in self.names)]


@dataclass(eq=False)
class KernelLaunch:
    """`launch(*values)` is `kernel[grid](*args, **kwargs)` with the values in place of `Slot`s."""

    kernel: Any
    grid: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    __name__: str

    def __call__(self, *values: Any) -> None:
        grid, args, kwargs = (
            map_leaves(tree, Slot, lambda slot: values[slot.index])
            for tree in (self._grid(), self.args, self.kwargs)
        )
        if isinstance(self.grid, Grids):
            grid = Grids(self.grid.names, grid)
        self.kernel.run(*args, grid=grid, warmup=False, **kwargs)

    def _grid(self) -> Any:
        return self.grid.rows if isinstance(self.grid, Grids) else self.grid


@dataclass(frozen=True)
class Part:
    """A tensor argument of a kernel: in the memory of operand number `operand`, `offset` bytes after its beginning.
    `spec` None: the operand holds a number, which the kernel receives."""

    operand: int
    offset: int = 0
    spec: TensorSpec | None = None

    def of(self, operands: Tensors) -> Any:
        """The kernel's argument."""
        whole, spec = operands[self.operand], self.spec
        if spec is None:
            return whole.item()
        if not self.offset and (spec.shape, spec.stride) == (tuple(whole.shape), whole.stride()):
            if spec.dtype is whole.dtype:
                return whole
        begin = whole.storage_offset() * whole.itemsize + self.offset
        made = torch.empty(0, dtype=spec.dtype, device=whole.device)
        return made.set_(whole.untyped_storage(), begin // spec.dtype.itemsize, spec.shape, spec.stride)  # type: ignore[arg-type]


class KernelCall:
    """The payload of `run_kernel`: a launch on parts of operands with these `layouts` (None: a number)."""

    def __init__(
        self, launch: KernelLaunch, parts: Sequence[Part], layouts: Sequence[TensorSpec | None]
    ) -> None:
        self._launch = launch
        self._parts = tuple(parts)
        self.layouts = tuple(layouts)

    def __call__(self, operands: Tensors) -> None:
        self._launch(*(part.of(operands) for part in self._parts))


def _run(call: int, written: list[torch.Tensor], others: list[torch.Tensor]) -> None:
    kernel: KernelCall = found(call)
    tensors = [*written, *others]
    with torch.no_grad():
        laid_out = [_laid_out(t, spec) for t, spec in zip(tensors, kernel.layouts)]
        kernel(laid_out)
        for tensor, used in zip(written, laid_out):
            if used is not tensor:
                tensor.copy_(used)


def _run_functional(call: int, written: list[torch.Tensor], others: list[torch.Tensor]) -> list[torch.Tensor]:
    kernel: KernelCall = found(call)
    with torch.no_grad():
        made = [_copied(t, spec) for t, spec in zip(written, kernel.layouts) if spec is not None]
        n = len(made)
        kernel([*made, *(_laid_out(t, spec) for t, spec in zip(others, kernel.layouts[n:]))])
    return made


def _laid_out(tensor: torch.Tensor, spec: TensorSpec | None) -> torch.Tensor:
    """A copy of a tensor whose layout differs from that of the trace; kernels receive strides."""
    fits = spec is None or tensor.stride() == spec.stride or tensor.numel() < 2
    return tensor if fits or spec is None else _copied(tensor, spec)


def _copied(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    return empty_like_spec(replace(spec, offset=0, requires_grad=False), tensor.device).copy_(tensor)


def results_on_metas(call: Handle, written: Tensors, others: Tensors) -> list[torch.Tensor]:
    """Meta tensors with the layouts of the results of `run_kernel_functional`."""
    return [torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="meta") for t in written]


_library = torch.library.Library("smelt", "FRAGMENT")
_library.define("run_kernel(int call, Tensor(a!)[] written, Tensor[] others) -> ()")
_library.impl("run_kernel", _run, "CompositeExplicitAutograd")
_library.define("run_kernel_functional(int call, Tensor[] written, Tensor[] others) -> Tensor[]")
_library.impl("run_kernel_functional", _run_functional, "CompositeExplicitAutograd")
RUN_KERNEL: OpOverload = torch.ops.smelt.run_kernel.default
RUN_KERNEL_FUNCTIONAL: OpOverload = torch.ops.smelt.run_kernel_functional.default
