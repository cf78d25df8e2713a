"""Generated matrix products or ATen's: a rule per kind of host, from measurements by `benchmarks/gemm.py`.

The rule must never choose what is slower, so a host that has not been measured gets ATen. AMD Zen 4 (AVX-512; MKL takes
its AVX2 path there), float32, one thread, weights not in cache, speed-up over `torch.mm`:

    rows of A     1     2-4    8-16   32     64     128-512        columns    1-4   6-8   10-40    multiples of 32
    W[N, K]       0.8   1.5    1.6    1.4    1.25   1.1-1.2        W[N, K]    0.4   1.2   1.0-1.7  1.1-1.2
    B[K, N]       1.0   1.9    2.3    1.4    1.25   1.1-1.2

A given transposed changes little (1.1). Small products (below 100,000 multiplications) gain 1.3 to 1.9 from the shorter
call, batches of attention's products 1.1 to 1.3, float64 1.1 to 2.

AMD Zen 5 (full-width AVX-512), the same, over `torch.mm`:

    rows of A     1        2-3      4-16      64-128    512       columns    4     6-8       10-40
    W[N, K]       0.5-1.2  0.8-2.8  1.6-2.7   2.1-2.6   2.1-2.2   W[N, K]    1.1   1.6-2.0   1.7-3.5
    B[K, N]       0.7-1.1  2.0-3.0  1.7-3.2   2.2-2.5   2.1-2.2   B[K, N]    3.4   3.8-4.4   1.7-5.5
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import torch

from smelt.codegen.llvm.products.product import Product
from smelt.codegen.llvm.products.tiling import GRAIN_FLOPS, extent
from smelt.codegen.llvm.target import Target, host
from smelt.codegen.llvm.windows.window import Window
from smelt.config import Config

Choice = Literal["native", "aten"]
Form = Literal["NN", "NT", "TN", "TT"]  # how A and B lie in memory; N: rows are contiguous


@dataclass(frozen=True)
class Rule:
    """The generated product from `rows` rows and `columns` columns on."""

    rows: int
    columns: int


# CPU name, as LLVM knows it -> rule
RULES: dict[str, Rule] = {"znver4": Rule(rows=2, columns=6), "znver5": Rule(rows=2, columns=4)}


def choose(
    form: Form,
    m: int,
    n: int,
    k: int,
    batch: int,
    dtype: torch.dtype,
    threads: int,
    target: Target | None = None,
) -> Choice:
    """Which computes `batch` products of [m, k] @ [k, n] sooner with `threads` threads."""
    rule = RULES.get((target or host()).cpu)
    if rule is None or dtype not in (torch.float32, torch.float64):
        return "aten"
    if m < rule.rows or n < rule.columns or k == 0:
        return "aten"
    useful = min(threads, 2 * m * n * k * batch // GRAIN_FLOPS)
    return "native" if extent(m, n, k, batch, dtype) >= useful else "aten"


def generates_products(config: Config) -> bool:
    """Whether matrix products on this host are generated as a rule."""
    return config.native_gemm and host().cpu in RULES


def prefers_native(product: Product | Window) -> bool:
    """`choose` for a planned product and torch's current number of threads; `prefers_window` for a window."""
    if isinstance(product, Window):
        return prefers_window(product)
    p = product
    batch = p.batch[0] * p.batch[1]
    return choose(p.form, p.m, p.n, p.k, batch, p.dtype, torch.get_num_threads()) == "native"


# Time of a generated window over ATen's, Zen 4, one thread: depthwise float32 0.15-0.6 (float64 up to 0.03: ATen has no
# vectors there), pooling 0.02-0.3. Planes gathered from channels-last images, float32: 1.8-6.6 for 3x3, 1.2 for 5x5,
# 1.3 for 7x7 where the image leaves the second-level cache, below 1.0 where it stays.
GATHERED_TAPS, GATHERED_BYTES = 49, 1 << 19


def prefers_window(window: Window, target: Target | None = None) -> bool:
    """Whether a generated window is sooner than ATen's, on a host that was measured."""
    if (target or host()).cpu not in RULES:
        return False
    if window.x_strides[3] == 1 or window.dtype is torch.float64:
        return True
    image = prod(window.size) * window.planes[1] * window.dtype.itemsize
    return prod(window.kernel) >= GATHERED_TAPS and image <= GATHERED_BYTES
