"""Index tensors that are known at lowering: tensors computed from their own indices alone, such as `arange` in any
shape, and selections of these."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from smelt.loops.kernel_ir import Value
from smelt.loops.lazy_tensor import Index, Load, Map, Tensor
from smelt.loops.lowering_builder import broadcast
from smelt.shapes.expr import Size, Sym, bounds, loop_sym, proves_le, subs

INTEGERS = (torch.int64, torch.int32)
STEPS = 50  # operators that an index is followed through, at most


@dataclass(frozen=True)
class KnownIndex:
    """The elements of an index tensor of `shape`: `e` at `symbols`."""

    shape: Sequence[Size]
    symbols: Index
    e: Size

    def at(self, index: Index) -> Size:
        """The element at an index of the shape to which the tensor is broadcast."""
        pairs = zip(self.symbols, broadcast(index, self.shape), strict=True)
        return subs(self.e, {s: i for s, i in pairs if isinstance(s, Sym)})


def known_index(index: Tensor, size: Size) -> KnownIndex | None:
    """The index tensor as an expression in [0, size) of its own indices; None for other tensors."""
    found = _element(index)
    e = None if found is None else _expression(found[0])
    if found is None or e is None or not _is_within(e, 0, size - 1):
        return None
    return KnownIndex(index.shape, found[1], e)


def are_inside(x: Tensor, indices: Sequence[Tensor | None]) -> bool:
    """Whether all indices into `x` are known to be in range."""
    for index, size in zip(indices, x.shape):
        if index is not None:
            found = _element(index)
            if found is None or not _is_between(found[0], -size, size - 1):
                return False
    return True


def _element(index: Tensor) -> tuple[Value, Index] | None:
    """The element of an index tensor at symbols, and the symbols; None if it depends on memory."""
    if index.dtype not in INTEGERS or any(n != 1 and bounds(n)[0] < 2 for n in index.shape):
        return None
    symbols: Index = tuple(loop_sym(f"place_{d}", n) if n != 1 else 0 for d, n in enumerate(index.shape))
    try:
        return _Computed()(index, symbols), symbols
    except _InMemory:
        return None


class _InMemory(Exception):
    """Raised for elements that are not computed from their index alone, or only at a high cost."""


class _Computed:
    """A `Load` of values that depend on no tensor in memory."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, tensor: Tensor, index: Index) -> Value:
        self.steps += 1
        if not isinstance(tensor.definition, Map) or self.steps > STEPS:
            raise _InMemory
        return tensor.definition.body(self, index)

    def where(self, mask: Value) -> Load:
        """The load itself: computed values need no mask."""
        return self


def _is_within(e: Size, low: Size, high: Size) -> bool:
    return proves_le(low, e) and proves_le(e, high)


def _is_between(value: Value, low: Size, high: Size) -> bool:
    """Whether an integer is known to be in the range, ends included."""
    if value.op == "where":
        return all(_is_between(v, low, high) for v in value.args[1:])
    e = _expression(value)
    return e is not None and _is_within(e, low, high)


def _expression(value: Value) -> Size | None:
    """An integer as an index expression, if it is one that does not wrap around."""
    if value.dtype not in INTEGERS:
        return None
    if value.op in ("index", "const"):
        e: Size | None = value.args[0]
    elif value.op == "cast":
        e = _expression(value.args[0])
    elif value.op in _ARITHMETIC:
        a, b = (_expression(x) for x in value.args)
        e = None if a is None or b is None else _ARITHMETIC[value.op](a, b)
    else:
        return None
    limits = torch.iinfo(value.dtype)
    return e if e is not None and limits.min <= bounds(e)[0] and bounds(e)[1] <= limits.max else None


_ARITHMETIC: dict[str, Callable[[Size, Size], Size]] = dict(
    add=operator.add, sub=operator.sub, mul=operator.mul
)
