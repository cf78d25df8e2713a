"""CPUs: kernels by LLVM, generated products on the hosts where they were measured, and what things cost there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from smelt.codegen.cost import prefers_native
from smelt.codegen.extern import out_variant
from smelt.codegen.generate import Products, generate
from smelt.codegen.llvm import compile_kernels
from smelt.codegen.llvm.target import host
from smelt.codegen.load import load
from smelt.config import Config
from smelt.costs import Costs, ProductCosts
from smelt.plan.items import Item
from smelt.plan.memory import ALIGNMENT
from smelt.plan.target import Memory, Sharing, Target
from smelt.schedule.schedule import Schedule

COSTS = Costs(
    threads=1,  # replaced by those of the options, or torch's
    load=1.0,
    store=4.0,
    launch=20_000.0,
    inline_limit=250.0,
    inline_depth=60,
    candidates=6,
    kernel_buffers=48,
    row_kernel_rows=8,
    row_kernel_points=32_000,
    shortest_loop=4,
    scratch_bytes=64 << 10,
    scratch_cost=8.0,
    split_points=1 << 17,
    part_points=1 << 14,
    item_columns=32,
    worker_items=4,
    together_launches=1024,
    together_pieces=8,
    gil_bytes=1 << 18,
    products=None,  # replaced by those of a host that was measured
)

# Time over ATen's or speed-up over it, one thread, float32, weights not in cache unless said otherwise. Products: by
# `benchmarks/gemm.py`, speed-up over `torch.mm` (MKL takes its AVX2 path there):
#
#     rows of A     1     2-4    8-16   32     64     128-512        columns    1-4   6-8   10-40    multiples of 32
#     W[N, K]       0.8   1.5    1.6    1.4    1.25   1.1-1.2        W[N, K]    0.4   1.2   1.0-1.7  1.1-1.2
#     B[K, N]       1.0   1.9    2.3    1.4    1.25   1.1-1.2
#
# A given transposed changes little (1.1). Small products (below 100,000 multiplications) gain 1.3 to 1.9 from the shorter
# call, batches of attention's products 1.1 to 1.3, float64 1.1 to 2.
ZEN4 = ProductCosts(
    rows=2,
    columns=6,
    # Time of the dot products over ATen's: 0.3 to 0.7 for weights that a cache holds; beyond, 0.7 (rows of 1000 elements),
    # 0.9 (2000), 1.0 to 1.7 (4000 and more: ATen reads several rows side by side).
    row_cached_bytes=16 << 20,
    row_bytes=8 << 10,
    # Time of the patches' product over ATen's convolution: 0.35 to 1.0 for patches of 2x2 to 32x32 (7x7 results: 0.35 for
    # 32x32, 1.0 for 2x2), 0.85 for one pixel in four (28x28 results), 1.0 (7x7 results).
    patch_pixels=32,
    lone_pixels=100,
    # Zen 5, time of the products over ATen's convolution_backward: 0.16 to 0.65 (8 images of 3x3 to 56x56, 16 to 2048
    # channels), 1.2 to 1.7 for channels-last images of 8 to 15 channels.
    channels=8,
    channels_last=16,
    small_elements=64 * 64,
    # Time of generated windows over ATen's: depthwise 0.15 to 0.6 (float64 up to 0.03: ATen has no vectors there), pooling
    # 0.02 to 0.3. Planes gathered from channels-last images: 1.8 to 6.6 for 3x3, 1.2 for 5x5, 1.3 for 7x7 where the image
    # leaves the second-level cache, below 1.0 where it stays.
    gathered_taps=49,
    gathered_bytes=1 << 19,
)

# Full-width AVX-512; speed-up over `torch.mm`, the same way:
#
#     rows of A     1        2-3      4-16      64-128    512       columns    4     6-8       10-40
#     W[N, K]       0.5-1.2  0.8-2.8  1.6-2.7   2.1-2.6   2.1-2.2   W[N, K]    1.1   1.6-2.0   1.7-3.5
#     B[K, N]       0.7-1.1  2.0-3.0  1.7-3.2   2.2-2.5   2.1-2.2   B[K, N]    3.4   3.8-4.4   1.7-5.5
ZEN5 = replace(ZEN4, columns=4)

# By the host's name, as LLVM knows it. Hosts that were not measured get ATen's products: the rule must never choose what is
# slower.
PRODUCT_COSTS = {"znver4": ZEN4, "znver5": ZEN5}


def target(config: Config, cpu: str | None = None) -> Target:
    """The CPU called `cpu` (default: this host), under `config`."""
    known = PRODUCT_COSTS.get(cpu or host().cpu) if config.native_gemm else None
    products = None if known is None else Products(partial(prefers_native, known), config.fuse)
    return Target(
        costs=replace(COSTS, threads=config.threads or torch.get_num_threads(), products=known),
        compile=partial(compile_schedule, config, products),
        load=load,
        out_variant=out_variant,
        memory=Memory("cpu", ALIGNMENT),  # a cache line
        sharing=Sharing(config.threads),
    )


def compile_schedule(config: Config, products: Products | None, schedule: Schedule) -> Sequence[Item]:
    """Machine code of LLVM for this host. `products`: which are generated."""
    return generate(schedule, lambda kernels: compile_kernels(kernels, config), products)
