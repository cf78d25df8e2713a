"""Profitability of generated matrix products and windows over ATen's, by the `ProductCosts` of a target."""

from __future__ import annotations

from math import prod

import torch

from smelt.codegen.llvm.gemm.gemm_spec import Product
from smelt.codegen.llvm.gemm.gemm_tiling import GRAIN_FLOPS, extent
from smelt.codegen.llvm.windows.window_spec import Window
from smelt.cost_model import ProductCosts


def prefers_native(costs: ProductCosts, threads: int, product: Product | Window) -> bool:
    """Whether the generated product or window is faster than ATen's on `threads` threads."""
    if isinstance(product, Window):
        return prefers_window(costs, product)
    p = product
    return prefers_product(costs, p.m, p.n, p.k, p.batch[0] * p.batch[1], p.dtype, threads)


def prefers_product(
    costs: ProductCosts, m: int, n: int, k: int, batch: int, dtype: torch.dtype, threads: int
) -> bool:
    """Whether generated code computes `batch` products [m, k] @ [k, n] faster than ATen on `threads` threads."""
    if dtype not in (torch.float32, torch.float64) or k == 0:
        return False
    if m < costs.rows or n < costs.columns:
        return False
    useful = min(threads, 2 * m * n * k * batch // GRAIN_FLOPS)
    return extent(m, n, k, batch, dtype) >= useful


def prefers_window(costs: ProductCosts, window: Window) -> bool:
    """Whether the generated window is faster than ATen's."""
    if window.x_strides[3] == 1 or window.dtype is torch.float64:
        return True
    image = prod(window.size) * window.planes[1] * window.dtype.itemsize
    return prod(window.kernel) >= costs.gathered_taps and image <= costs.gathered_bytes
