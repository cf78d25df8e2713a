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
    """Gives elements. `where(mask)` is the same, reading nothing where `mask` is false: what it gives there is no element of
    anything (what is computed on the spot is computed from zeros: 0 / 0), and must be chosen away."""

    def __call__(self, tensor: Tensor, index: Index) -> Value: ...

    def where(self, mask: Value) -> Load:
        """A load of elements that are only read where `mask` (bool) holds; elsewhere it gives some number, or NaN."""


@dataclass(frozen=True, eq=False)
class Stored:
    """In memory before the program runs, or written there by an ATen call."""


@dataclass(frozen=True, eq=False)
class Map:
    """`cost` estimates the arithmetic of one element (an addition is 1). `view`: the body is one load, without
    arithmetic. `sum`, where it is known without a reduction: dimensions, and the sum over them (dimensions kept). `less`,
    for lowerings of what reads it: a dimension, a tensor, and those of one element in that dimension that are subtracted
    from it, one after the other."""

    inputs: tuple[Tensor, ...]
    body: Callable[[Load, Index], Value]
    cost: float = 1.0
    view: bool = False
    sum: tuple[tuple[int, ...], Tensor] | None = None
    less: tuple[int, Tensor, tuple[Tensor, ...]] | None = None


@dataclass(frozen=True, eq=False)
class Reduce:
    """Over `sizes`; `body(load, index, position)` is the value reduced. argmax/argmin give row-major positions."""

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
    """`spec.stride` is the layout it gets if it is materialised. `name` is readable: the operator's name. `order` is its
    position in the program; lowering counts by `GAP`, so that a pass can put tensors between two others."""

    name: str
    spec: TensorSpec
    definition: Definition
    line: Line | None = None
    order: int = -1

    @property
    def shape(self) -> tuple[Size, ...]:
        """Of the value, as the trace saw it."""
        return self.spec.shape

    @property
    def dtype(self) -> torch.dtype:
        """Of the elements."""
        return self.spec.dtype

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors whose elements the definition reads."""
        return () if isinstance(self.definition, Stored) else self.definition.inputs

    @property
    def is_view(self) -> bool:
        """Whether it is other indices into another tensor and nothing is computed."""
        return isinstance(self.definition, Map) and self.definition.view

    def __repr__(self) -> str:
        return f"{self.name}#{self.order}"


@dataclass(eq=False)
class Number(Tensor):
    """A Python number that a call brings, in memory as a 0-d tensor, or its sizes give: promoted as the number it is."""

    @property
    def type(self) -> type:
        """The Python type that promotion goes by."""
        return float if self.spec.dtype.is_floating_point else int


@dataclass(eq=False)
class Extern:
    """One ATen call; its arguments hold `Tensor`s. `results[i]` is None where the i-th result is no tensor. `raises`: it may
    raise because of the values that it reads. `why`: no loops are made of it, for people."""

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
    """`target` (a graph input) takes the value of `source` once nothing reads its old value any more."""

    target: Tensor
    source: Tensor
    line: Line | None = None
    order: int = -1


@dataclass(frozen=True, eq=False)
class Place:
    """Where along dimension `dim` of the target an element of the source goes: an int64 that is computed."""

    dim: int
    value: Callable[[Load, Index], Value]


@dataclass(eq=False)
class Insert:
    """`target` (a graph input, or memory that is filled) takes the elements of `source` in some of its places, here: what
    stands after this reads the new ones. Nothing else reads `source`, whose inputs are what `places` read, too. The element
    at an index goes to `at(index)`, and along the dimensions of `places` (where that is 0) to what they give; the same place
    twice takes either."""

    target: Tensor
    source: Tensor
    at: Callable[[Index], Index]
    places: tuple[Place, ...] = ()
    line: Line | None = None
    order: int = -1


Step = Tensor | Extern | CopyBack | Insert


@dataclass(frozen=True, eq=False)
class Program:
    """A lowered graph. `steps` in program order; every tensor's inputs stand before it."""

    inputs: tuple[Tensor, ...]
    constants: tuple[tuple[Tensor, torch.Tensor], ...]
    steps: tuple[Step, ...]
    outputs: tuple[Tensor | None, ...]
