"""The schedule: items in execution order and their buffers. It is the value between fusion and code generation.

Invariants (`schedule.verify_schedule` checks them): buffers are numbered by position, inputs and constants first; an item
follows everything it reads; exactly one item defines each buffer that is not an input or a constant (a kernel that is
`inout` on an input or on memory to fill, or an ATen call that writes an argument, redefines it); every output is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from smelt.graph.ir import Line, TensorSpec
from smelt.graph.pytree import leaves
from smelt.loops.kernel_ir import Kernel
from smelt.shapes.expr import Size, Sym
from smelt.shapes.substitute import substitution
from smelt.torch_private import OpOverload

BufferKind = Literal["input", "constant", "temp", "output"]


@dataclass(frozen=True)
class BufferSpec:
    """A tensor in memory. Input i of the graph is buffer i; constants follow in the order of `Schedule.constants`.
    `output`: the memory outlives the call, because it or a view of it is returned."""

    id: int
    spec: TensorSpec
    kind: BufferKind


@dataclass(frozen=True)
class BufRef:
    """A buffer used as (part of) an ATen argument."""

    id: int


@dataclass(frozen=True)
class KernelItem:
    """One launch. `buffers[i]`: the schedule's buffer for kernel buffer i, None for a `local` one. `made_of`: its
    operators, each with the user's line, for display."""

    kernel: Kernel
    buffers: tuple[int | None, ...]
    note: str = ""
    made_of: tuple[tuple[str, Line | None], ...] = field(default=(), compare=False)


@substitution(KernelItem)
def _unchanged(item: KernelItem, values: Mapping[Sym, Size]) -> KernelItem:
    """A kernel takes its sizes as arguments."""
    return item


@dataclass(frozen=True)
class ExternItem:
    """One ATen call; `args` and `kwargs` hold `BufRef`s. `outs[i]` receives the i-th result (None: dropped).
    `epilogue`: the elementwise kernel that a generated product may fuse. `why`: the reason for the call instead of
    loops, for display."""

    op: OpOverload
    args: tuple[object, ...]
    kwargs: dict[str, object]
    outs: tuple[int | None, ...]
    note: str = ""
    epilogue: KernelItem | None = None
    why: str = field(default="", compare=False)


@dataclass(frozen=True)
class ViewItem:
    """`out` is `as_strided` of `src`, `offset` elements after src's first element. `user_visible`: the view is
    returned, so autograd must see it as a view."""

    out: int
    src: int
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size
    user_visible: bool = False


Item = KernelItem | ExternItem | ViewItem


def accesses(item: Item) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The buffers that an item reads, and those that it defines. A kernel reads its `inout` buffers."""
    if isinstance(item, ViewItem):
        return (item.src,), (item.out,)
    if isinstance(item, ExternItem):
        reads = tuple(ref.id for ref in leaves([item.args, item.kwargs], BufRef))
        return reads, tuple(out for out in item.outs if out is not None)
    formals = [(b, f.role) for b, f in zip(item.buffers, item.kernel.buffers) if b is not None]
    return tuple(b for b, role in formals if role != "out"), tuple(b for b, role in formals if role == "out")


@dataclass(frozen=True)
class Schedule:
    """`outputs`: the returned buffers. `refusals`: for each pair of operators that was not fused, why (`print_schedule`
    shows them). `donated`: inputs whose memory is free after their last use. `title`: as in the plan."""

    buffers: list[BufferSpec]
    constants: tuple[torch.Tensor, ...]
    items: list[Item]
    outputs: tuple[int | None, ...]
    refusals: tuple[str, ...] = ()
    donated: frozenset[int] = frozenset()
    title: str = ""

    def constant(self, buffer: int) -> torch.Tensor | None:
        """The constant in a buffer, or None."""
        if self.buffers[buffer].kind != "constant":
            return None
        return self.constants[buffer - sum(b.kind == "input" for b in self.buffers)]
