"""The schedule: what runs, in which order, on which buffers. Data between fusion and code generation.

What always holds (`schedule.verify_schedule` checks it): buffers are numbered by position, inputs, then constants
first; an item stands after everything it reads; every buffer that is not an input or a constant is defined by exactly
one item (a kernel that is `inout` on an input or on memory that is filled, or an ATen call that writes to an argument,
writes it again); what is returned is written.
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
    `output` means that the memory outlives the call: it is returned, or a view of it is."""

    id: int
    spec: TensorSpec
    kind: BufferKind


@dataclass(frozen=True)
class BufRef:
    """A buffer used as (part of) an ATen argument."""

    id: int


@dataclass(frozen=True)
class KernelItem:
    """One launch. `buffers[i]` is the schedule's buffer for the i-th kernel buffer; None for a `local` one. `made_of`: the
    operators in it, each with the user's line, for people."""

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
    `epilogue` is where a generated matrix product will find the pointwise kernel that it may absorb. `why`: it is a call,
    and no loops (for people)."""

    op: OpOverload
    args: tuple[object, ...]
    kwargs: dict[str, object]
    outs: tuple[int | None, ...]
    note: str = ""
    epilogue: KernelItem | None = None
    why: str = field(default="", compare=False)


@dataclass(frozen=True)
class ViewItem:
    """`out` is `as_strided` of `src`, `offset` elements after src's first element. `user_visible`: the view is returned,
    so it must be a view to autograd as well."""

    out: int
    src: int
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size
    user_visible: bool = False


Item = KernelItem | ExternItem | ViewItem


def accesses(item: Item) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(the buffers that an item reads, those that it defines). What a kernel is `inout` on, it reads."""
    if isinstance(item, ViewItem):
        return (item.src,), (item.out,)
    if isinstance(item, ExternItem):
        reads = tuple(ref.id for ref in leaves([item.args, item.kwargs], BufRef))
        return reads, tuple(out for out in item.outs if out is not None)
    formals = [(b, f.role) for b, f in zip(item.buffers, item.kernel.buffers) if b is not None]
    return tuple(b for b, role in formals if role != "out"), tuple(b for b, role in formals if role == "out")


@dataclass(frozen=True)
class Schedule:
    """`outputs` are the buffers returned. `refusals` says, for each pair of operators that were tried and not fused, why
    (`print_schedule` shows them). `given`: inputs that are left to the schedule: their memory is free behind their last
    use. `title`: as that of the plan."""

    buffers: list[BufferSpec]
    constants: tuple[torch.Tensor, ...]
    items: list[Item]
    outputs: tuple[int | None, ...]
    refusals: tuple[str, ...] = ()
    given: frozenset[int] = frozenset()
    title: str = ""

    def constant(self, buffer: int) -> torch.Tensor | None:
        """The constant that a buffer holds; None where it holds none."""
        if self.buffers[buffer].kind != "constant":
            return None
        return self.constants[buffer - sum(b.kind == "input" for b in self.buffers)]
