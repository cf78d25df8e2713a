"""Elements by index: gathering, scattering, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.ops.layouts.meta import fresh, like, of_cpp
from smelt.ops.recompute import Class
from smelt.ops.registry import declare
from smelt.ops.trace_rules import TraceRule

aten = torch.ops.aten

declare("index index_select gather embedding take take_along_dim _unsafe_index", recompute=Class.MOVEMENT)
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
declare(aten.index.Tensor, trace_rule=TraceRule.MASKS)
declare("nonzero nonzero_static masked_select", trace_rule=TraceRule.VALUES)
