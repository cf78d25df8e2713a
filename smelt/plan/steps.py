"""The plan: the steps that one compiled graph runs, as data.

A plan works on numbered registers, each holding a tensor. Inputs come first (register i is graph input i), then
constants, then the results of steps. `smelt._native.Plan` executes it; no code is generated per graph.

Invariants (`smelt.plan.verify_plan` checks them): a register is defined once, before its first use; a freed register
is not used again; a `BumpVersion` of an input precedes the kernel that writes it; a tensor in the arena is not an
output, is not visible to the user through a view, and overlaps no other live tensor, except where a kernel overwrites
an operand (`Alloc.over`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.graph.ir import TensorSpec
from smelt.graph.pytree import leaves
from smelt.graph.subgraphs import RUN_GRAPHS, Rule
from smelt.plan.arena_placement import Interval
from smelt.plan.machine_code import Function
from smelt.plan.size_decisions import Decisions
from smelt.shapes.expr import Size, static
from smelt.torch_private import OpOverload

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Reg:
    """A register as (part of) an argument of an ATen call."""

    index: int


@dataclass(frozen=True)
class Alloc:
    """A new tensor.

    `arena`: byte offset in the plan's arena (64-byte aligned), or None for memory of its own from torch's allocator
    (graph outputs, tensors that an extern operator may retain, large tensors on a GPU). `over`: the register whose
    memory the tensor reuses. The kernel that writes the tensor is the last reader of that register and reads the same
    elements. Outside an arena the executor reuses the memory only if the plan holds the only reference at run time,
    and allocates otherwise.
    """

    out: int
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device
    arena: int | None = None
    over: int | None = None


@dataclass(frozen=True)
class View:
    """`as_strided` of the storage of `src`. `offset`: elements relative to the first element of `src`, whose own
    storage offset is added at run time. `user_visible`: the view goes through the dispatcher, so that it shares the
    version counter."""

    out: int
    src: int
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size
    user_visible: bool = False


@dataclass(frozen=True)
class Launch:
    """Machine code over [0, extent). `kernel` is a key of `Plan.kernels`.

    On a CPU the code is `void kernel(void **buffers, int64_t begin, int64_t end)`, split among threads in chunks of at
    least `grain` items; `buffers[i]` is the data pointer of register `regs[i]`, and the slots behind these hold the
    values of `sizes` (int64). On a GPU each block takes `grain` items, and its parameters are those pointers, then
    `sizes` and `extent`. `by_value`: pairs of a position in `regs`, whose tensor is one element on the CPU and is
    passed as a number, and the size of that number in bytes. `device`: the GPU, if it is not the plan's.
    """

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
class ParallelLaunch:
    """Independent launches that run as one.

    On a CPU: one range of work units, split among threads in chunks of at least `grain`; `work[i]` units belong to
    `launches[i]`, in proportion to its items. On a GPU: one launch of the function that all of them share, which takes
    at most `parts` of them (`plan.machine_code.Block`); `work[i]` blocks belong to `launches[i]`.
    """

    launches: tuple[Launch, ...]
    work: tuple[Size, ...]
    grain: Size
    note: str = ""


@dataclass(frozen=True)
class Aten:
    """One ATen call through the dispatcher, below autograd. Arguments hold `Reg`s, numbers, dtypes, None, and lists and
    tuples of them. `outs[i]`: the register of the i-th returned tensor (None: dropped); a TensorList result fills them all.

    `expect[i]`: the layout that later steps rely on when they take the address of `outs[i]`; the executor copies a
    result with other strides into that layout. `user_visible`: the call runs in the caller's own dispatch state, as in
    eager: calls that write or view an input, and operators from outside torch.
    """

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[int | None, ...]
    note: str = ""
    expect: tuple[TensorSpec | None, ...] = ()
    user_visible: bool = False


@dataclass(frozen=True)
class Subplan:
    """The plan of a subgraph, without constants. `takes`: its inputs, as positions in the operands. `intervals`: those of a
    plan with symbolic sizes, which has the symbols and conditions of the `SymbolicPlan` around it; None for fixed sizes."""

    plan: Plan
    takes: tuple[int, ...]
    intervals: tuple[Interval, ...] | None = None


@dataclass(frozen=True)
class RunPlans:
    """A higher-order operator (`graph/subgraphs.py`): `rule` decides which of `plans` run. `condition`: of a `Choice`, or
    the history of a loop.

    `layouts`: those of the operands, on which the plans rely; the executor copies a tensor with other strides. Results
    share memory neither with each other nor with operands. `outs`, `expect`: as in `Aten`.
    """

    rule: Rule
    plans: tuple[Subplan, ...]
    condition: int | None
    operands: tuple[int, ...]
    layouts: tuple[TensorSpec, ...]
    outs: tuple[int | None, ...]
    note: str = ""
    expect: tuple[TensorSpec | None, ...] = ()


@dataclass(frozen=True)
class BumpVersion:
    """Increments the version counters of inputs that the next kernel writes; raises where eager raises."""

    regs: tuple[int, ...]


@dataclass(frozen=True)
class Free:
    """Drops tensors after their last use; of the inputs only donated ones (the saved values of a backward)."""

    regs: tuple[int, ...]


Step = Alloc | View | Launch | ParallelLaunch | Aten | RunPlans | BumpVersion | Free


@dataclass(frozen=True)
class Plan:
    """The steps of one graph and their code.

    `release_gil`: the plan runs long enough to let other Python threads run. `numbers`: the inputs that are Python
    numbers, each held as a 0-d tensor (float64 or int64) that takes no part in type promotion. `kernels`: the code of
    the launches, by symbol. `device`: where the plan and its arena are. `on_host`: some step computes on the CPU
    although `device` is a GPU. `title`: the user's function and the part of its graph, for display.
    """

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
    """The registers inside an argument of an ATen call."""
    return (reg.index for reg in leaves(value, Reg))


def reads(step: Step) -> tuple[int, ...]:
    """Registers that must be live before `step`, including the outputs of a kernel, whose memory it writes."""
    match step:
        case Alloc():
            return () if step.over is None else (step.over,)
        case View():
            return (step.src,)
        case Launch():
            return step.regs
        case ParallelLaunch():
            return tuple(r for launch in step.launches for r in launch.regs)
        case Aten():
            return (*registers_in(step.args), *registers_in(step.kwargs))
        case RunPlans():
            return step.operands if step.condition is None else (step.condition, *step.operands)
        case BumpVersion() | Free():
            return step.regs
        case _:
            return ()


def defines(step: Step) -> tuple[int, ...]:
    """Registers that `step` defines."""
    match step:
        case Alloc() | View():
            return (step.out,)
        case Aten() | RunPlans():
            return tuple(r for r in step.outs if r is not None)
        case _:
            return ()


def span_bytes(shape: tuple[Size, ...], stride: tuple[Size, ...], dtype: torch.dtype) -> int:
    """Bytes from the first to the last element, inclusive. Sizes must be concrete."""
    return static(Decisions().elements(shape, stride)) * dtype.itemsize


# ---------------------------------------------------------------------------------------------------------- questions


def kernel_names(plan: Plan) -> frozenset[str]:
    """The distinct kernels that the plan launches."""
    return frozenset(launch.kernel for launch in launches(plan.steps))


def launches(steps: Iterable[Step]) -> Iterator[Launch]:
    """The kernel launches in order, including those of a `ParallelLaunch`."""
    for step in steps:
        if isinstance(step, Launch):
            yield step
        elif isinstance(step, ParallelLaunch):
            yield from step.launches


def inner_plans(plan: Plan) -> list[Plan]:
    """The plans of subgraphs that the plan runs, in order, without those inside them."""
    return [inner.plan for step in plan.steps if isinstance(step, RunPlans) for inner in step.plans]


def extern_names(plan: Plan) -> tuple[str, ...]:
    """The distinct operators that the plan calls, sorted; `smelt::run_graphs` stands for inner plans."""
    called = {str(step.op) for step in plan.steps if isinstance(step, Aten)}
    inner = {str(RUN_GRAPHS) for step in plan.steps if isinstance(step, RunPlans)}
    return tuple(sorted(called | inner))
