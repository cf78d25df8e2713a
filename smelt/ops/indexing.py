"""Elements by index: gathering, scattering, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.loops.kernel_ir import Value
from smelt.loops.lazy_tensor import Index, Insert, Load, RuntimeIndex, Tensor
from smelt.loops.loop_values import GATHER, cast, compare, const, where
from smelt.loops.lowering_builder import Builder, broadcast
from smelt.ops.known_indices import are_inside, known_index
from smelt.ops.layouts.meta_layouts import fresh, like, of_cpp
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import declare, operator
from smelt.ops.trace_rules import TraceRule
from smelt.shapes.expr import numel, static

aten = torch.ops.aten

declare("index index_select gather embedding take take_along_dim _unsafe_index", recompute=Class.MOVEMENT)
declare(
    "_embedding_bag _embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_forward_only",
    "_embedding_bag_per_sample_weights_backward _unsafe_index embedding embedding_dense_backward embedding_renorm",
    "index index_add index_fill index_put index_select masked_scatter",
    any_size=True,
)
declare(
    "scatter scatter_add scatter_reduce index_put index_add index_copy index_fill index_reduce masked_scatter put",
    recompute=Class.SCATTER,
)
declare(
    "index index_select gather embedding _embedding_bag _embedding_bag_forward_only take scatter scatter_add "
    "scatter_reduce index_put _index_put_impl index_add index_copy index_fill index_reduce masked_scatter put "
    "embedding_renorm",
    raises=True,  # for an index out of range, or too few elements
)
declare("index index_select gather", linear=("self",))
declare("embedding", linear=("weight",))
declare("index_put _unsafe_index_put", linear=("self values",))
declare("scatter_add", linear=("self src",))
declare("scatter", linear=("self src", "self value"))
declare("index_add", linear=("self source",))
declare(aten.index_select.default, out=aten.index_select.out)
declare(aten.gather.default, out=aten.gather.out)
declare(aten.index.Tensor, out=aten.index.Tensor_out)
declare(aten.index.Tensor, aten.index_put.default, safe=lambda x, indices, *_, **__: are_inside(x, indices))


@operator(aten.index.Tensor)
def index(b: Builder, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor | None:
    """Elements at indices that are known at compile time. None otherwise: an ATen call, which checks them."""
    known = [known_index(i, size) if i is not None else None for i, size in zip(indices, x.shape)]
    known_indices = [index for index in known if index is not None]
    if len(known_indices) != len(indices):
        return None
    rank = len(b.spec.shape) - len(x.shape) + len(known_indices)
    return b.copy(
        x, b.spec.shape, lambda i: (*(index.at(i[:rank]) for index in known_indices), *i[rank:]), GATHER
    )


# ---- rows that are written into a graph input


def _insert_copied(b: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Insert | None:
    """`x` with the slices of `source` along `dim` at the indices in `index`, none of them negative."""
    if len(source.shape) != len(x.shape) or not x.shape or not _may_scatter(b, index):
        return None
    dim %= len(x.shape)

    def runtime_index(load: Load, i: Index) -> Value:
        return cast(load(index, (i[dim],) if index.shape else ()), torch.int64)

    return b.insert(
        x,
        source.shape,
        (source, index),
        lambda load, i: load(source, i),
        lambda i: (*i[:dim], 0, *i[dim + 1 :]),
        (RuntimeIndex(dim, runtime_index),),
    )


def _insert_put(
    b: Builder, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Insert | None:
    """`x[:, index] = values`, for one integer tensor among the indices; negative ones count from the end."""
    chosen = [(d, index) for d, index in enumerate(indices) if index is not None]
    if accumulate or len(chosen) != 1 or not _may_scatter(b, chosen[0][1]):
        return None
    (dim, index), rank = chosen[0], len(chosen[0][1].shape)
    shape = (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])
    if len(values.shape) > len(shape):
        return None

    def runtime_index(load: Load, i: Index) -> Value:
        value = cast(load(index, i[dim : dim + rank]), torch.int64)
        return where(compare("lt", value, const(0, torch.int64)), value + static(x.shape[dim]), value)

    return b.insert(
        x,
        shape,
        (values, index),
        lambda load, i: load(values, broadcast(i, values.shape)),
        lambda i: (*i[:dim], 0, *i[dim + rank :]),
        (RuntimeIndex(dim, runtime_index),),
    )


def _may_scatter(b: Builder, index: Tensor) -> bool:
    """Whether kernels may store at the indices. For equal indices ATen's GPU kernels store either value, too, unless
    deterministic algorithms are requested."""
    in_order = torch.are_deterministic_algorithms_enabled() and numel(index.shape) != 1
    return b.costs.scatters and index.dtype in (torch.int64, torch.int32) and not in_order


declare(aten.index_copy.default, insert=_insert_copied, in_place=aten.index_copy_.default)
declare(aten.index_put.default, insert=_insert_put, in_place=aten.index_put_.default)
declare(aten.scatter.src, in_place=aten.scatter_.src)
declare(aten.scatter.value, in_place=aten.scatter_.value)
declare(aten.index_fill.int_Scalar, in_place=aten.index_fill_.int_Scalar)
declare(aten.index_fill.int_Tensor, in_place=aten.index_fill_.int_Tensor)


# ---- shapes on a CPU


def _embedding_layout(weight: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> Any:
    if weight.dim() != 2 or indices.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    return fresh((*indices.shape, weight.shape[1]), weight.dtype)


def _embedding_backward_layout(
    grad: torch.Tensor, indices: torch.Tensor, rows: int, padding_idx: int, by_frequency: bool
) -> Any:
    if indices.dtype not in (torch.int64, torch.int32) or grad.shape[:-1] != indices.shape:
        return NotImplemented
    return fresh((rows, grad.shape[-1]), grad.dtype)


def _index_put_layout(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, *_: Any
) -> Any:
    whole = (torch.int64, torch.int32)  # masks have a size of their own
    if x.dtype != values.dtype or any(i is not None and i.dtype not in whole for i in indices):
        return NotImplemented
    picked = of_cpp(aten.index.Tensor, (x, indices), {})
    if picked is NotImplemented or torch.broadcast_shapes(picked.shape, values.shape) != picked.shape:
        return NotImplemented
    return like(x)


declare(aten.embedding.default, layout=_embedding_layout)
declare(aten.embedding_dense_backward.default, layout=_embedding_backward_layout)
declare(aten.index_put.default, layout=_index_put_layout)
declare(aten.nonzero_static.default, run_on_zeros=True)
declare("index index_put index_put_ _index_put_impl_ _unsafe_index_put", trace_rule=TraceRule.MASKS)
declare("nonzero nonzero_static masked_select", trace_rule=TraceRule.VALUES)
