"""Attention of jagged nested tensors where torch's math implementation computes it, which converts them to nested tensors of
another layout: as attention of padded tensors whose padding is masked."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend

from smelt.torch_private import NestedTensor, nested_attention, padded_to_nested


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """`scaled_dot_product_attention`; NotImplemented where torch's own code can run."""
    if attn_mask is not None or dropout_p or is_causal or enable_gqa:
        return NotImplemented
    if not all(map(_is_transposed, (query, key, value))):
        return NotImplemented
    torchs = nested_attention()
    query, key, value, _ = torchs._autocast(query, key, value, None)
    torchs._validate_sdpa_input(query, key, value, None, 0.0, False, scale)
    if torchs._select_sdp_backend(query, key, value, None, 0.0, False, False) != SDPBackend.MATH:
        return NotImplemented
    q, k, v = (x.to_padded_tensor(0.0) for x in (query, key, value))
    inside = torch.arange(k.shape[2], device=k.device) < key.offsets().diff()[:, None]
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, inside[:, None, None], scale=scale)
    result = padded_to_nested(
        out.transpose(1, 2),
        query.offsets(),
        min_seqlen=query._maybe_min_seqlen,
        max_seqlen=query._maybe_max_seqlen,
        sum_S=query.values().shape[1],
    )
    return result.transpose(1, 2)


def _is_transposed(x: Any) -> bool:
    """Whether `x` has the sizes [batch, heads, ragged, features], without holes."""
    return type(x) is NestedTensor and x.dim() == 4 and x._ragged_idx == 2 and x._lengths is None
