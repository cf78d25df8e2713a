"""CPUs: kernels by LLVM, generated products on the hosts where they were measured, and what things cost there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from smelt.codegen.cpu_launches import Products, generate
from smelt.codegen.cpu_symbolic_launches import SymbolicCodegen
from smelt.codegen.gemm_profitability import prefers_native
from smelt.codegen.llvm import compile_kernels
from smelt.codegen.llvm.host_cpu import host
from smelt.codegen.plan_loading import load, load_symbolic
from smelt.config import Config
from smelt.cost_model import AloneCosts, Costs, ProductCosts
from smelt.ops.registry import row
from smelt.plan.arena_allocation import ALIGNMENT
from smelt.plan.plan_device import Memory, Sharing
from smelt.plan.plan_items import Item
from smelt.plan.plan_template import LaunchesAt, SymbolicLaunches
from smelt.schedule.schedule import Schedule
from smelt.targets.target import Target
from smelt.torch_private import OpOverload

# Measured on Zen 4 (64 KiB of first-level cache for two cores, 1 MiB of second-level cache a core), float32, smallest times,
# one thread where nothing else is said. "Models": the 56 graphs of the ten models of `benchmarks/models.py`, forwards and
# backwards, 2,734 kernels, for two threads.
COSTS = Costs(
    threads=1,  # replaced by those of the options, or torch's
    # An addition takes 16 ps, a load 1.4 additions where tensors have 16 KiB, 1.9 (256 KiB), 5.3 (4 MiB), 14 (64 MiB, from
    # memory); a store 1.9, 2.1, 4.0 and 11. What is inlined or stored is mostly between the second and the last of these.
    load=1.0,
    store=4.0,
    # 66 ns for each of 20 independent kernels of a few vectors, 4,100 additions; 20,000 are 320 ns, with the allocation of
    # what is stored. (Fewer kernels of a model for more: 2,749 for 5,000, 2,744 for 10,000, 2,752 for 40,000.)
    launch=20_000.0,
    # No model differs between 125 and no limit. Not measured otherwise: it bounds the size of an expression, so the time
    # that compiling it takes.
    inline_limit=250.0,
    # Each operator is five frames of Python's stack, of 1,000: what walks expressions recurses. The models have no more
    # kernels than with 200 (with 30, 7 more; with 20, 21 more).
    inline_depth=60,
    # The time of one kernel over that of copies (`python -m benchmarks.joined`): 0.74 for 2 parts (median of programs and
    # shapes; 0.45 to 1.74), 0.92 for 3, 1.21 for 4 (0.78 to 2.36), 2.4 for 8, 49 for 128.
    concatenated_parts=3,
    # Kernels of the models: 3,313 for 1, 2,942 (2), 2,807 (3), 2,762 (4), 2,734 from 5 on.
    candidates=6,
    # 96 products with one tensor that all share, of 4,096 elements: 73 us with 12 buffers a kernel, 74 (24), 84 (48), 91
    # (96), 85 (no limit), 97 with a kernel each. Models: the same from 36 on, one kernel more for 24 in five.
    kernel_buffers=48,
    # With one thread the row kernel is faster for any number of rows (0.68 to 0.79 of the time, `y = 2 * x` with its row
    # sums, 1 to 16 rows, 16,384 to 262,144 points). The limit is for several threads, which share rows; not measured:
    # chosen so that eight have one each. No model differs for 0 to 16 rows, nor for 1,000 to 1,000,000 points.
    row_kernel_rows=8,
    row_kernel_points=32_000,
    long_row=1 << 62,  # never: what a row reads again is in cache, and few rows are enough
    # Four floats fill the narrowest vectors (128 bits). A copy of transposed heads (4x64x512xn to
    # 4x512x64n) takes 0.97 (n 2), 1.00 (4), 0.99 (8), 0.92 (16) and 0.94 (32) of the time with the loop of 64n split; models
    # have 6 kernels more for 8.
    shortest_loop=4,
    # Softmax, 2^20 elements: keeping the exponentials takes 0.70 (rows of 1 KiB) to 0.82 (48 KiB) of the time of computing
    # them again, and 0.76 to 0.78 for rows of 64 to 256 KiB. So larger ones would pay too; where they stop is not measured.
    # The models are the same with 128 and 256 KiB, one of 56 graphs differs with 32.
    scratch_bytes=64 << 10,
    # A sum and a map of rows of 1,024, of a value of k operations: kept in 1.00 (k 2), 0.95 (4), 0.81 (6), 0.76 (8), 0.69
    # (12), 0.64 (16) of the time of computing it in both.
    scratch_cost=8.0,
    # Two threads, a sum cut into parts over one that is whole: 1.00 (2^17 points), 1.01 (2^18), 0.64 (2^20). No model
    # differs for 2^14 to 2^18.
    split_points=1 << 17,
    part_points=1 << 14,  # 2^17 points in eight; not measured
    # Two threads, sums of 2^14 rows: cut over whole 1.01 (16 columns), 0.68 (32), 0.97 (64), 1.00 (128).
    item_columns=32,
    # Two threads, a sum of 2^20 points: 24.4 to 24.8 us for 1, 2, 4, 8 and 16. Any would do on a machine with nothing else
    # to do; not measured on others.
    worker_items=4,
    splits_further=False,  # few threads need few parts
    row_sums=0,  # strips (codegen/llvm/column_strips.py) keep the rows that several stages go over in cache
    least_rows=0,
    most_rows=0,
    scatters=False,  # eager raises for a place out of range
    # Two threads, four sigmoids of 2^n elements side by side over one after the other: 1.00 (2^12), 0.64 (2^14), 0.91
    # (2^16), 0.99 (2^17 and more, three pieces for each thread).
    parallel_launch_chunks=8,
    # So much takes 2.5 us from a cache and 38 us from memory; giving the GIL back and taking it again 30 ns, if nobody
    # else wants it. If somebody does, the plan waits for it, for 5 ms at worst (`sys.getswitchinterval()`).
    gil_bytes=1 << 18,
    depthwise_taps=0,
    depthwise_elements=0,
    draw_blocks=0,
    draw_captured=False,
    products=None,  # replaced by those of a host that was measured
    alone=(),  # replaced by those of the host
    alignment=None,
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


# Time of generated kernels over ATen's, one thread, 262,144 elements (`python -m benchmarks.operators_speed`). What calls
# the C library once per lane: erfc 3 to 11, erf and pow of float64 3 to 5, and what is made of them.
HALVES = (torch.bfloat16, torch.float16)
LANE_BY_LANE = AloneCosts(
    frozenset(
        [("erfc", d) for d in (torch.float32, torch.float64, *HALVES)]
        + [(name, torch.float64) for name in ("erf", "pow", "float_power", "gelu")]
    ),
    elements=128,
)
# Runs of elements that ATen copies; kernels choose the operand of each element. 0.8 to 2.7 for float32 and bfloat16, two
# operands of 360 to 1,024 rows and columns; where the result is small, 0.5.
COPIES = AloneCosts(
    frozenset(
        (name, d) for name in ("cat", "stack") for d in (*HALVES, torch.float32, torch.float64, torch.int64)
    ),
    elements=1 << 15,
)
# Functions that MKL computes for ATen: on Intel's processors with AVX-512 its code is the faster, on Xeon (Sapphire Rapids)
# 1.1 to 1.5, and 1.6 for sqrt of float64. gelu, by ATen's own approximation of erf: 1.4 to 1.8.
VECTOR_LIBRARY = AloneCosts(
    frozenset(
        [
            (name, torch.float32)
            for name in ("log", "log2", "log10", "cos", "sin", "tan", "tanh", "acos", "gelu")
        ]
        + [
            (name, torch.float64)
            for name in ("exp", "log", "log2", "log10", "sin", "cos", "tan", "tanh", "asin", "acos", "sqrt")
        ]
        + [("gelu", d) for d in HALVES]
    ),
    elements=1 << 14,
)


def _alone() -> tuple[AloneCosts, ...]:
    """What ATen computes better alone on this host."""
    by_mkl = torch.backends.mkl.is_available() and host().masks and not host().cpu.startswith("znver")
    return (LANE_BY_LANE, COPIES, VECTOR_LIBRARY) if by_mkl else (LANE_BY_LANE, COPIES)


def out_variant(op: OpOverload) -> OpOverload | None:
    """The `out=` overload of `op`, or None."""
    known = row(op)
    return (known.out_on_cpu and known.out_on_cpu()) or known.out


def target(config: Config, cpu: str | None = None) -> Target:
    """The CPU called `cpu` (default: the host), under `config`."""
    known = PRODUCT_COSTS.get(cpu or host().cpu) if config.native_gemm else None
    threads = config.threads or torch.get_num_threads()
    products = None
    if known is not None:
        products = Products(partial(prefers_native, known, threads), config.fuse, threads)
    return Target(
        costs=replace(COSTS, threads=threads, products=known, alone=_alone()),
        generate=partial(generate_launches, config, products),
        load=load,
        out_variant=out_variant,
        memory=Memory(torch.device("cpu"), ALIGNMENT),  # a cache line
        sharing=Sharing(config.threads),
        generate_symbolic=partial(generate_symbolic_launches, config, products),
        load_symbolic=load_symbolic,
    )


def generate_launches(config: Config, products: Products | None, schedule: Schedule) -> Sequence[Item]:
    """The items of `schedule` with machine code for the host. `products`: which products are generated."""
    return generate(schedule, partial(compile_kernels, config=config), products)


def generate_symbolic_launches(
    config: Config, products: Products | None, schedule: Schedule
) -> SymbolicLaunches | LaunchesAt:
    """`generate_launches` for a schedule with symbolic sizes."""
    codegen = SymbolicCodegen(schedule, partial(compile_kernels, config=config), products)
    return SymbolicLaunches(codegen.symbolic) if codegen.is_symbolic() else codegen.at
