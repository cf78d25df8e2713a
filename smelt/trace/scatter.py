"""Inverses of views: the new value of a base after one of its views was written.

`SCATTER[view operator](emitter, base, value, arguments...)` gives a node with `base`'s shape that holds `value` where the
view looks and `base` elsewhere. Arguments are those of the view operator after its first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from smelt.errors import Unsupported
from smelt.graph.ir import Node
from smelt.graph.sizes import numel
from smelt.trace.fake import FakeTensor

aten = torch.ops.aten


class Emitter(ABC):
    """Appends aten nodes."""

    @abstractmethod
    def emit(
        self, op: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None, spec: Any = None
    ) -> Node: ...

    @abstractmethod
    def refuse(self, detail: str) -> Unsupported: ...


@dataclass(slots=True)
class View:
    """How a fake was taken from another one: the view operator and its arguments as recorded (`at`: the argument that is
    the source's node), and which of its results this is."""

    source: FakeTensor
    target: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    at: Node
    spec: Any
    item: int | None


def scatter_back(emitter: Emitter, view: View, base: Node, value: Node) -> Node:
    """`base` (the present value of the view's source) with `value` written through the view."""
    rule = SCATTER.get(view.target)
    if rule is None:
        raise emitter.refuse(f"a view by {view.target} is written")
    rest = view.args[1:]
    if view.item is not None:
        return rule(emitter, base, value, view.item, *rest, **view.kwargs)
    return rule(emitter, base, value, *rest, **view.kwargs)


def _reshape(e: Emitter, base: Node, value: Node, *args: Any, **kwargs: Any) -> Node:
    try:
        return e.emit(aten.view.default, (value, list(base.spec.shape)))
    except RuntimeError:
        dense = e.emit(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
        return e.emit(aten.view.default, (dense, list(base.spec.shape)))


def _same(e: Emitter, base: Node, value: Node, *args: Any) -> Node:
    return value


def _transpose(e: Emitter, base: Node, value: Node, a: int, b: int) -> Node:
    return e.emit(aten.transpose.int, (value, a, b))


def _t(e: Emitter, base: Node, value: Node) -> Node:
    return e.emit(aten.t.default, (value,))


def _permute(e: Emitter, base: Node, value: Node, dims: Sequence[int]) -> Node:
    rank = len(dims)
    order = [d % rank for d in dims]
    return e.emit(aten.permute.default, (value, [order.index(i) for i in range(rank)]))


def _slice(e: Emitter, base: Node, value: Node, *args: Any, **kwargs: Any) -> Node:
    return e.emit(aten.slice_scatter.default, (base, value, *args), kwargs)


def _select(e: Emitter, base: Node, value: Node, dim: int, index: int) -> Node:
    return e.emit(aten.select_scatter.default, (base, value, dim, index))


def _diagonal(e: Emitter, base: Node, value: Node, *args: Any, **kwargs: Any) -> Node:
    return e.emit(aten.diagonal_scatter.default, (base, value, *args), kwargs)


def _expand(e: Emitter, base: Node, value: Node, *args: Any, **kwargs: Any) -> Node:
    if base.spec.shape == value.spec.shape:
        return value
    if numel(base.spec.shape) != numel(value.spec.shape):
        raise e.refuse("an expanded view is written")
    return _reshape(e, base, value)


def _split(e: Emitter, base: Node, value: Node, item: int, size: int, dim: int = 0) -> Node:
    return e.emit(aten.slice_scatter.default, (base, value, dim, item * size, (item + 1) * size))


def _split_sizes(e: Emitter, base: Node, value: Node, item: int, sizes: Sequence[int], dim: int = 0) -> Node:
    start = sum(sizes[:item])
    return e.emit(aten.slice_scatter.default, (base, value, dim, start, start + sizes[item]))


def _unbind(e: Emitter, base: Node, value: Node, item: int, dim: int = 0) -> Node:
    return e.emit(aten.select_scatter.default, (base, value, dim, item))


def _as_strided(e: Emitter, base: Node, value: Node, *args: Any, **kwargs: Any) -> Node:
    spec = base.spec
    extent = 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.stride))
    if spec.offset or extent != numel(base.spec.shape):
        raise e.refuse("an as_strided view of a tensor with gaps is written")
    return e.emit(aten.as_strided_scatter.default, (base, value, *args), kwargs)


def _dtype_view(e: Emitter, base: Node, value: Node, *args: Any) -> Node:
    return e.emit(aten.view.dtype, (value, base.spec.dtype))


def _from_real(e: Emitter, base: Node, value: Node) -> Node:
    dense = e.emit(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
    return e.emit(aten.view_as_complex.default, (dense,))


def _from_complex(e: Emitter, base: Node, value: Node) -> Node:
    return e.emit(aten.view_as_real.default, (value,))


SCATTER: dict[Any, Callable[..., Node]] = {
    aten.view.default: _reshape,
    aten._reshape_alias.default: _reshape,
    aten.unsqueeze.default: _reshape,
    aten.squeeze.default: _reshape,
    aten.squeeze.dim: _reshape,
    aten.squeeze.dims: _reshape,
    aten.alias.default: _same,
    aten.detach.default: _same,
    aten.transpose.int: _transpose,
    aten.t.default: _t,
    aten.permute.default: _permute,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.diagonal.default: _diagonal,
    aten.expand.default: _expand,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split_sizes,
    aten.unbind.int: _unbind,
    aten.as_strided.default: _as_strided,
    aten.view.dtype: _dtype_view,
    aten.view_as_real.default: _from_real,
    aten.view_as_complex.default: _from_complex,
}
