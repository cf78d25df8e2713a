"""Elements by index: gathering, scattering, embeddings."""

from __future__ import annotations

import torch

from smelt.ops.recompute import Class
from smelt.ops.registry import declare

aten = torch.ops.aten

declare("index index_select gather embedding take take_along_dim _unsafe_index", recompute=Class.MOVEMENT)
declare(
    "scatter scatter_add scatter_reduce index_put index_add index_copy index_fill index_reduce masked_scatter put",
    recompute=Class.SCATTER,
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
