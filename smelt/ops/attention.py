"""Attention, in the kernels that torch has for it."""

from __future__ import annotations

from smelt.ops.recompute import Class
from smelt.ops.registry import declare

declare(
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math "
    "_scaled_dot_product_fused_attention_overrideable",
    recompute=Class.PRODUCT,
)
