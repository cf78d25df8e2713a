"""Lazy tensors: what a lowered operator is before anything is decided about loops or memory.

A `Tensor` has a shape and a dtype and one of these definitions:

    Stored   it is in memory already: a graph input, a constant, a result of an extern operator
    Map      its element at an index, as a value over elements of other tensors (elementwise operators, views, cat)
    Reduce   the reduction of such a value over loops of its own
    Scan     an inclusive scan of another tensor along one dimension

Bodies are functions `body(load, index) -> Value`. They call `load(tensor, index)` for an element of another tensor and
never look inside it, so whether that element is recomputed, read from memory or kept in a register is decided later,
by whoever passes `load`. Indices are tuples of sizes; a dimension of size 1 is always indexed by 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from smelt.graph.ir import Line, TensorSpec
from smelt.loops.kernel_ir import ReductionKind, Value
from smelt.shapes.expr import Size
from smelt.torch_private import OpOverload

Index = tuple[Size, ...]
GAP = 2  # between the orders of two tensors that follow each other


class Load(Protocol):
    """Reads elements of tensors. `where(mask)` reads nothing where `mask` is false; its value there is arbitrary (an
    inlined value is computed from zeros: 0 / 0) and must be discarded by a `where`."""

    def __call__(self, tensor: Tensor, index: Index) -> Value: ...

    def where(self, mask: Value) -> Load:
        """A load that reads elements only where `mask` (bool) holds; elsewhere its value is arbitrary or NaN."""


@dataclass(frozen=True, eq=False)
class Stored:
    """In memory before the program runs, or written by an ATen call."""


@dataclass(frozen=True, eq=False)
class Map:
    """`cost`: arithmetic of one element (an addition is 1). `view`: the body is one load without arithmetic. `sum`, if
    known without a reduction: dimensions and the sum over them (dimensions retained). `less`, for lowerings that read
    this tensor: a dimension, a tensor, and the tensors of one element in that dimension that are subtracted from it in
    sequence."""

    inputs: tuple[Tensor, ...]
    body: Callable[[Load, Index], Value]
    cost: float = 1.0
    view: bool = False
    sum: tuple[tuple[int, ...], Tensor] | None = None
    less: tuple[int, Tensor, tuple[Tensor, ...]] | None = None


@dataclass(frozen=True, eq=False)
class Reduce:
    """Over `sizes`; `body(load, index, position)` is the reduced value. argmax and argmin give row-major positions."""

    inputs: tuple[Tensor, ...]
    kind: ReductionKind
    sizes: tuple[Size, ...]
    body: Callable[[Load, Index, Index], Value]
    cost: float = 1.0


@dataclass(frozen=True, eq=False)
class Scan:
    """Of `inputs[0]`, which has the scan's shape, along `dim`."""

    inputs: tuple[Tensor, ...]
    kind: ReductionKind
    dim: int


Definition = Stored | Map | Reduce | Scan


@dataclass(eq=False)
class Tensor:
    """A lazy tensor. `spec.stride`: its layout if it is materialized. `name`: the operator's name, for display.
    `order`: its position in the program; lowering counts by `GAP`, so that a pass can insert tensors between two others."""

    name: str
    spec: TensorSpec
    definition: Definition
    line: Line | None = None
    order: int = -1

    @property
    def shape(self) -> tuple[Size, ...]:
        """The shape that the trace recorded."""
        return self.spec.shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the elements."""
        return self.spec.dtype

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors whose elements the definition reads."""
        return () if isinstance(self.definition, Stored) else self.definition.inputs

    @property
    def is_view(self) -> bool:
        """Whether it only indexes into another tensor."""
        return isinstance(self.definition, Map) and self.definition.view

    def __repr__(self) -> str:
        return f"{self.name}#{self.order}"


@dataclass(eq=False)
class Number(Tensor):
    """A number that a call passes, in memory as a 0-d tensor, or that sizes determine; promoted as a number."""

    @property
    def type(self) -> type:
        """The Python type that promotion uses."""
        return float if self.spec.dtype.is_floating_point else int


@dataclass(eq=False)
class Extern:
    """One ATen call; its arguments hold `Tensor`s. `results[i]` is None if the i-th result is not a tensor. `raises`:
    it may raise because of the values it reads. `why`: why it is not lowered to loops, for display."""

    op: OpOverload
    args: tuple[object, ...]
    kwargs: dict[str, object]
    results: tuple[Tensor | None, ...]
    name: str
    line: Line | None = None
    order: int = -1
    raises: bool = False
    why: str = ""


@dataclass(eq=False)
class CopyBack:
    """`target` (a graph input) takes the value of `source` after the last read of its old value."""

    target: Tensor
    source: Tensor
    line: Line | None = None
    order: int = -1


@dataclass(frozen=True, eq=False)
class RuntimeIndex:
    """The runtime index (int64) along dimension `dim` of the target at which an element of the source is stored."""

    dim: int
    value: Callable[[Load, Index], Value]


@dataclass(eq=False)
class Insert:
    """`target` (a graph input, or memory to fill) takes the elements of `source` at some of its indices. Later steps
    read the new values. Nothing else reads `source`, whose inputs include those of `runtime_indices`. The element at an
    index goes to `at(index)`, and to `runtime_indices` along their dimensions (where `at` is 0); of equal
    indices either element is stored."""

    target: Tensor
    source: Tensor
    at: Callable[[Index], Index]
    runtime_indices: tuple[RuntimeIndex, ...] = ()
    line: Line | None = None
    order: int = -1


Step = Tensor | Extern | CopyBack | Insert


@dataclass(frozen=True, eq=False)
class Program:
    """A lowered graph. `steps` in program order; every tensor follows its inputs."""

    inputs: tuple[Tensor, ...]
    constants: tuple[tuple[Tensor, torch.Tensor], ...]
    steps: tuple[Step, ...]
    outputs: tuple[Tensor | None, ...]
