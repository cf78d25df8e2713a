"""The plan: what one compiled graph does at run time, as data.

A plan works on numbered registers, each holding a tensor. Inputs come first (register i = graph input i), then
constants, then everything the steps define. `smelt._native.Plan` executes it; nothing is generated per graph.

Invariants (checked by `verify`): a register is defined before it is used and defined once; a freed register is not
used again; every kernel buffer is a register with exactly the dtype that the kernel expects.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.graph.sizes import Size


@dataclass(frozen=True)
class Reg:
    """A register used as (part of) an ATen argument."""

    index: int


@dataclass(frozen=True)
class Alloc:
    """A new tensor. `arena` is its byte offset in the plan's arena (64-byte aligned), or None for memory of its own from
    torch's allocator (graph outputs and what an extern operator keeps)."""

    out: int
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device
    arena: int | None = None


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
    """Machine code: `void kernel(void **buffers, int64_t begin, int64_t end)` over [0, extent), split among threads in
    pieces of at least `grain`. `buffers[i]` is the data pointer of register `regs[i]`."""

    kernel: str
    address: int
    regs: tuple[int, ...]
    extent: int
    grain: int
    note: str = ""


@dataclass(frozen=True)
class Aten:
    """One ATen call through the dispatcher (below autograd). Arguments hold `Reg`s, numbers, dtypes, None, and lists and
    tuples of them. `outs[i]` is where the i-th returned tensor goes (None: dropped); a TensorList result fills them all."""

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[int | None, ...]
    note: str = ""


@dataclass(frozen=True)
class Free:
    regs: tuple[int, ...]


Step = Alloc | View | Launch | Aten | Free


@dataclass(frozen=True)
class Plan:
    n_inputs: int
    constants: tuple[torch.Tensor, ...]
    n_registers: int
    steps: tuple[Step, ...]
    outputs: tuple[int | None, ...]
    arena_bytes: int = 0
    keepalive: tuple[Any, ...] = field(default=(), compare=False)  # owners of the machine code
