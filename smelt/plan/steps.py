"""The plan: what one compiled graph does at run time, as data.

A plan works on numbered registers, each holding a tensor. Inputs come first (register i = graph input i), then
constants, then everything the steps define. `smelt._native.Plan` executes it; nothing is generated per graph.

Invariants (`smelt.plan.verify_plan` checks them): a register is defined before it is used and defined once; a freed
register is not used again; a kernel that writes an input is preceded by a `BumpVersion` of it; nothing in the arena is
an output, is seen by the user through a view, or overlaps what else is live there, but for what a kernel writes in the
place of what it reads (`Alloc.over`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.graph.ir import TensorSpec
from smelt.graph.pytree import leaves
from smelt.plan.machine_code import Function
from smelt.plan.size_decisions import Decisions
from smelt.shapes.expr import Size, static
from smelt.torch_private import OpOverload

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Reg:
    """A register used as (part of) an ATen argument."""

    index: int


@dataclass(frozen=True)
class Alloc:
    """A new tensor. `arena` is its byte offset in the plan's arena (64-byte aligned), or None for memory of its own from
    torch's allocator (graph outputs, what an extern operator keeps, what is large on a GPU). `over`: it takes the place of
    that register, which the kernel that writes it is the last to read, at the same elements; without an arena, only if at
    run time nobody else holds that memory, else it gets memory of its own."""

    out: int
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device
    arena: int | None = None
    over: int | None = None


@dataclass(frozen=True)
class View:
    """`as_strided` of `src`'s storage; `offset` in elements, relative to `src`'s first element (src's own storage_offset
    is added at run time). `user_visible`: goes through the dispatcher so that it shares the version counter."""

    out: int
    src: int
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size
    user_visible: bool = False


@dataclass(frozen=True)
class Launch:
    """Machine code over [0, extent). `kernel` is a key of `Plan.kernels`.

    On a CPU it is `void kernel(void **buffers, int64_t begin, int64_t end)`, split among threads in pieces of at least
    `grain`; `buffers[i]` is the data pointer of register `regs[i]`, and the slots behind these hold the values of `sizes`
    (int64). On a GPU each block takes `grain` items, and its parameters are those pointers, then `sizes` and `extent`.
    `by_value`: positions of `regs` whose tensor, of one element on the CPU, is passed as the number that it holds then, and
    that number's bytes. `device`: the GPU, if it is not the plan's."""

    kernel: str
    regs: tuple[int, ...]
    extent: Size
    grain: Size
    note: str = ""
    by_value: tuple[tuple[int, int], ...] = ()
    device: torch.device | None = None
    sizes: tuple[Size, ...] = ()


WORK = 64  # units of work that a thread should take at least


@dataclass(frozen=True)
class Together:
    """Launches that do not depend on one another. On a CPU: as one range of work units that is split among threads in pieces
    of at least `grain`; `work[i]` units are `launches[i]`'s, in proportion to its items. On a GPU: as one launch of the
    function that all have, which does `parts` of them at most (`plan.machine_code.Block`); `work[i]` blocks are
    `launches[i]`'s."""

    launches: tuple[Launch, ...]
    work: tuple[Size, ...]
    grain: Size
    note: str = ""


@dataclass(frozen=True)
class Aten:
    """One ATen call through the dispatcher (below autograd). Arguments hold `Reg`s, numbers, dtypes, None, and lists and
    tuples of them. `outs[i]` is where the i-th returned tensor goes (None: dropped); a TensorList result fills them all.

    `expect[i]`: the layout that later steps rely on when they take the address of `outs[i]`; a result with other
    strides is copied into that layout. `user_visible`: runs in the caller's own dispatch state, as in eager: what
    writes to or views an input, and operators from outside torch."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[int | None, ...]
    note: str = ""
    expect: tuple[TensorSpec | None, ...] = ()
    user_visible: bool = False


@dataclass(frozen=True)
class BumpVersion:
    """Tells autograd that the next kernel writes to these inputs; raises where eager's in-place operators would."""

    regs: tuple[int, ...]


@dataclass(frozen=True)
class Free:
    """Drops tensors after their last use. Inputs are the caller's, and dropped only where he gave them to the plan (the
    saved values of a backward)."""

    regs: tuple[int, ...]


Step = Alloc | View | Launch | Together | Aten | BumpVersion | Free


@dataclass(frozen=True)
class Plan:
    """`release_gil`: the plan runs long enough for giving other Python threads a turn to be worth its cost. `numbers`: the
    inputs that are Python numbers, each held as a 0-d tensor (float64 or int64) that does not take part in promotion.
    `kernels`: the code of what is launched, by symbol. `device`: where it runs, and where its arena is.
    `on_host`: something of it is computed on the CPU, although `device` is another. `title`: the user's function, and the
    part of its graph that this is, for people."""

    n_inputs: int
    constants: tuple[torch.Tensor, ...]
    n_registers: int
    steps: tuple[Step, ...]
    outputs: tuple[int | None, ...]
    arena_bytes: int = 0
    release_gil: bool = True
    numbers: tuple[int, ...] = ()
    kernels: Mapping[str, Function] = field(default_factory=dict)
    device: torch.device = CPU
    on_host: bool = False
    title: str = ""


# ------------------------------------------------------------------------------------- what a step reads and defines


def registers_in(value: Any) -> Iterator[int]:
    """The registers inside an ATen argument."""
    return (reg.index for reg in leaves(value, Reg))


def reads(step: Step) -> tuple[int, ...]:
    """Registers that must be live before `step` (a kernel's outputs included: their memory is)."""
    match step:
        case Alloc():
            return () if step.over is None else (step.over,)
        case View():
            return (step.src,)
        case Launch():
            return step.regs
        case Together():
            return tuple(r for launch in step.launches for r in launch.regs)
        case Aten():
            return (*registers_in(step.args), *registers_in(step.kwargs))
        case BumpVersion() | Free():
            return step.regs
        case _:
            return ()


def defines(step: Step) -> tuple[int, ...]:
    """Registers that hold their tensors from `step` on."""
    match step:
        case Alloc() | View():
            return (step.out,)
        case Aten():
            return tuple(r for r in step.outs if r is not None)
        case _:
            return ()


def span_bytes(shape: tuple[Size, ...], stride: tuple[Size, ...], dtype: torch.dtype) -> int:
    """Bytes from the first to the last element, inclusive; of numbers."""
    return static(Decisions().elements(shape, stride)) * dtype.itemsize


# ---------------------------------------------------------------------------------------------------------- questions


def kernel_names(plan: Plan) -> frozenset[str]:
    """The distinct kernels that the plan launches."""
    return frozenset(launch.kernel for launch in launches(plan.steps))


def launches(steps: Iterable[Step]) -> Iterator[Launch]:
    """The kernel launches, those inside a `Together` too, in order."""
    for step in steps:
        if isinstance(step, Launch):
            yield step
        elif isinstance(step, Together):
            yield from step.launches


def extern_names(plan: Plan) -> tuple[str, ...]:
    """The distinct ATen operators that the plan calls, sorted."""
    return tuple(sorted({str(step.op) for step in plan.steps if isinstance(step, Aten)}))
