"""Guards as data: one `Guard` is one fact that decided a trace and that must hold for the compiled frame to be used."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from smelt.graph.ir import Line
from smelt.guards.source import Source
from smelt.guards.weak_identity import held, weakly, weakly_if_identity

GuardKind = Literal[
    "type",         # type(x) is value
    "id",           # x is value (kept alive by weakref where possible, else strongly)
    "eq",           # same type, x == value (NaN equals itself; -0.0 is not 0.0; sets in order); leaf constants
    "number",       # type(x) is value (int or float); an int fits 64 bits
    "expression",   # value[0], a graph.numbers.Expression over sources, gives value[1]: True, False, or of that type
    "tensor",       # x is a tensor with exactly `value`: guards.guard.TensorFacts
    "len",          # len(x) == value (list, tuple, dict, set, deque)
    "keys",         # tuple(x) == value: the keys of a dictionary, the elements of a set, in order
    "table",        # _native.set_table(x) == value: a set orders what is added next as one that was seen
    "contains",     # (value[0] in x) is value[1]; dict or set; comparing value[0] runs no Python code
    "not_in_dict",  # value not in x.__dict__ (a method or class attribute is not shadowed on the instance)
    "no_attr",      # nn.Module or object: the name `value` is in none of __dict__, _parameters, _buffers, _modules
    "slot",         # whether the slot value[0] of x, declared in `__slots__`, holds something is value[1]
    "no_hooks",     # nn.Module x has no forward/backward (pre-)hooks of its own
    "type_version", # the class x's version tag is value: no attribute of the class changed since
    "function",     # x.__code__ is value[0], x.__defaults__ is value[1], x.__kwdefaults__ is value[2]
    "plain_leaf",   # tensor x is a leaf of autograd's graph, and no hook sees the gradients that arrive at it
    "how_written",  # _native.how_written(x) == value: what autograd says to a write of tensor x
    "alias",        # x is the object at source value
    "distinct",     # sources value: all pairwise different objects (x is ignored; source is the first of them)
    "no_overlap",   # tensors at sources value do not share storage (only needed when one of them is mutated)
    "global_state", # guards.global_state.snapshot() == value (grad mode, autocast, default dtype, ...); source None
]  # fmt: skip


ANY = -1  # a size: any from two on; a stride: the product of the sizes behind it
ANY_OR_ONE = -2  # a size: any from one on


def size_fits(wanted: int, size: int) -> bool:
    """Whether a size, or what stands for many, is as `wanted` allows."""
    if wanted == ANY_OR_ONE:
        return size >= 1 or size in (ANY, ANY_OR_ONE)
    return size == wanted or (wanted == ANY and size >= 2)


def stride_over(dim: int, exactly: bool) -> int:
    """What stands for a stride that is as large as dimension `dim` in memory (its size times its stride), or any larger one
    where not `exactly`."""
    return -2 - 2 * dim - (not exactly)


@dataclass(frozen=True)
class TensorFacts:
    """The metadata of a tensor that a trace depends on. `stride` counts elements; a sparse tensor has none. Sizes that may
    differ from call to call are `ANY` or `ANY_OR_ONE`, such strides that or a `stride_over` another dimension."""

    type: type
    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    layout: torch.layout
    conj_neg: bool = False  # conjugate or negative bit set
    inference: bool = False

    def hold_of(self, found: TensorFacts) -> bool:
        """Whether a tensor of which `found` holds is as these say."""
        return self == self.seen_in(found)

    def seen_in(self, found: TensorFacts) -> TensorFacts:
        """`found`, with what stands for sizes and strides in these where they are as that allows."""
        shape, stride = found.shape, found.stride
        if not self.has_any or not len(self.shape) == len(shape) == len(stride):
            return found
        behind = list(itertools.accumulate(reversed(shape[1:]), operator.mul, initial=1))[::-1]
        return replace(
            found,
            shape=tuple(wanted if size_fits(wanted, n) else n for wanted, n in zip(self.shape, shape)),
            stride=tuple(
                wanted if wanted < 0 and _fits(wanted, n, product, found) else n
                for wanted, n, product in zip(self.stride, stride, behind)
            ),
        )

    @property
    def has_any(self) -> bool:
        """Whether a size or stride may differ from call to call."""
        return any(n < 0 for n in (*self.shape, *self.stride))


def _fits(wanted: int, stride: int, product: int, found: TensorFacts) -> bool:
    if wanted == ANY:
        return stride == product
    dim, larger = divmod(-2 - wanted, 2)
    room = found.shape[dim] * found.stride[dim]
    return stride > room if larger else stride == room


def shape_text(shape: tuple[int, ...]) -> str:
    """Sizes for people: `[*, 64]`; of those that may be one as well, `1*`."""
    return _listed(shape, lambda n: "1*" if n == ANY_OR_ONE else "*")


def stride_text(stride: tuple[int, ...]) -> str:
    """Strides for people: `[*, 1]`; one that leaves a gap is a `+`."""
    return _listed(stride, lambda n: "+" if n % 2 and n != ANY else "*")


def _listed(numbers: tuple[int, ...], other: Callable[[int], str]) -> str:
    return f"[{', '.join(str(n) if n >= 0 else other(n) for n in numbers)}]"


@dataclass(frozen=True)
class Guard:
    """The fact `kind` about the object at `source`. What `value` is follows from the kind (see `GuardKind`)."""

    kind: GuardKind
    source: Source | None
    _value: Any
    line: Line | None = None  # the user's line that made it necessary

    def __post_init__(self) -> None:
        if self.kind in ("id", "type"):
            object.__setattr__(self, "_value", weakly(self._value))
        elif self.kind == "contains":
            object.__setattr__(self, "_value", (weakly_if_identity(self._value[0]), self._value[1]))

    @property
    def value(self) -> Any:
        """What must be found. `GONE` where it lives no more, and the fact cannot hold."""
        return (held(self._value[0]), self._value[1]) if self.kind == "contains" else held(self._value)
