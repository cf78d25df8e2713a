"""Attention, by torch's kernels."""

from __future__ import annotations

from typing import Any

import torch

from smelt.ops.layouts.meta_layouts import fresh, like
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import declare
from smelt.ops.trace_rules import TraceRule

aten = torch.ops.aten

declare(
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math "
    "_scaled_dot_product_fused_attention_overrideable",
    recompute=Class.PRODUCT,
)
declare(
    "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    any_size=True,
)


# ---- shapes on a CPU


def _attention_layout(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if not query.is_floating_point() or query.dim() != 4 or value.size(-1) != query.size(-1):
        return NotImplemented
    batch, heads, length, _ = query.shape
    wide = torch.float32 if query.dtype in (torch.float16, torch.bfloat16) else query.dtype
    return like(query), fresh((batch, length, heads), wide).transpose(1, 2)


def _attention_backward_layout(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> Any:
    """Heads are adjacent."""
    if any(t.dim() != 4 for t in (grad, query, key, value)):
        return NotImplemented
    return tuple(fresh(t.transpose(1, 2).shape, t.dtype).transpose(1, 2) for t in (query, key, value))


def _encoder_layer_layout(src: torch.Tensor, *_: Any, **__: Any) -> Any:
    """Its last step is a product or a normalization, with contiguous results; without elements, `src` is copied."""
    return fresh(src.shape, src.dtype) if src.numel() else like(src)


declare(aten._transformer_encoder_layer_fwd.default, layout=_encoder_layer_layout)
declare(aten._scaled_dot_product_flash_attention_for_cpu.default, layout=_attention_layout)
declare(aten._scaled_dot_product_flash_attention_for_cpu_backward.default, layout=_attention_backward_layout)
declare(aten._fused_sdp_choice.default, trace_rule=TraceRule.ATTENTION)
