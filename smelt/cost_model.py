"""Costs of a machine, as numbers that lowering, fusion and planning compare.

Nothing here has a default: each target defines its own `Costs` (`targets/cpu.py` has those of CPUs, with the
measurement behind each number), and every stage receives them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ProductCosts:
    """From where on products and convolutions are generated, or written as products, instead of being ATen's."""

    # A generated matrix product (codegen/gemm_profitability.py)
    rows: int  # at least
    columns: int  # at least

    # A product of one row as a reduction for each column (ops/vector_matmul.py)
    row_cached_bytes: int  # of the weight, which a cache may hold, at most; or else ...
    row_bytes: int  # ... of one row of it, at most

    # A convolution of disjoint patches as a product of copied columns (ops/convolutions_as_gemm.py)
    patch_pixels: int  # of the result, at least
    lone_pixels: int  # the same where patches are single pixels

    # The backward of a 1x1 convolution as products (ops/convolution_backward.py)
    channels: int  # on either side, at least: images that are channels first
    channels_last: int  # the same for channels-last images
    # of a product that is one item of work, at most: each image has a product, which are summed
    small_elements: int

    # A window over planes that are gathered from channels-last float32 images (codegen/gemm_profitability.py)
    gathered_taps: int  # elements of the window, at least
    gathered_bytes: int  # of an image, at most


@dataclass(frozen=True)
class AlignmentCosts:
    """What products of matrices cost whose rows begin at multiples of `nbytes`, and others (rewrites/aligned_gemm.py)."""

    nbytes: int
    dtypes: frozenset[torch.dtype]  # of operands for which that makes a difference
    aligned: float  # additions: a multiplication of an aligned product
    unaligned: float  # additions: of another
    byte: float  # additions: reading or writing a byte of memory
    # For a product whose result is only copied in part, in chunks (rewrites/chunked_gemm.py):
    chunk_bytes: int  # the minimum size of a chunk
    chunk_rows: int  # the rows of a chunk are a multiple of this
    chunks: int  # the maximum number of chunks


@dataclass(frozen=True)
class AloneCosts:
    """Operators whose ATen kernel is faster than a generated one, where nothing fuses with them (ops/lone_operators.py)."""

    operators: frozenset[tuple[str, torch.dtype]]  # by ATen's name and the dtype of arguments and result
    elements: int  # of the result, at least: a call of ATen's costs more than the launch of a kernel


@dataclass(frozen=True)
class Costs:
    """Arithmetic is counted in additions of one element (`loops/loop_values.py` says how many other operations are)."""

    threads: int  # workers that share a kernel's work

    # What is stored, and what is computed again where it is read (schedule/inlining.py)
    load: float  # additions: reading an element
    store: float  # additions: writing it to memory that another kernel reads
    launch: float  # additions: one more kernel
    inline_limit: float  # additions of an expression; a larger one is not inlined into another
    inline_depth: int  # operators on top of each other in an expression; deeper ones are cut

    # Concatenations (ops/data_movement.py)
    concatenated_parts: int  # at most; each element of the result tells by comparisons which part it is in

    # Which loops join (schedule/schedule_program.py, groups.py, nests.py)
    candidates: int  # groups tried for a unit, nearest first
    kernel_buffers: int  # buffers that a kernel may touch
    row_kernel_rows: int  # least rows of a row kernel that was a large elementwise one
    row_kernel_points: int  # points from which on an elementwise kernel is large
    # Points of a row, or of as many columns as are one item, from which on elementwise operators join only where there are
    # items for all workers.
    long_row: int
    shortest_loop: int  # points: loops of four times as many are not split into pieces shorter than this

    # What a row keeps (schedule/kernel_assembly.py)
    scratch_bytes: int  # of all scratch memory of a row
    # additions: what costs more is kept in scratch rather than computed again in another stage
    scratch_cost: float

    # Reductions shared among workers (schedule/split_reductions.py)
    split_points: int  # points of a reduction that one worker should not be left alone with
    part_points: int  # least points of a part
    item_columns: int  # neighbouring sums that are one item of work
    worker_items: int  # items for each worker
    splits_further: bool  # several loops, and unevenly; the layout that decides is that of what elementwise operators read

    # Sums over rows beside the rows, by one kernel (schedule/sibling_fusion.py)
    row_sums: int  # 32-bit sums that a program may hold; a row has half as many columns at most; 0: none is computed so
    least_rows: int  # rows that a program adds up, at least ...
    most_rows: int  # ... and at most: one after the other, so that more would cost accuracy

    # Stores (ops/indexing.py)
    scatters: bool  # a kernel may store where tensors say, and fails where that is out of range

    # The plan (plan/parallel_launches.py, plan/build_plan.py)
    # pieces of work for each worker from which on a launch gains nothing from company
    parallel_launch_chunks: int
    gil_bytes: int  # bytes touched by a plan from which on it gives other Python threads a turn

    # ATen's random numbers on a GPU (ops/random_numbers.py)
    draw_blocks: int  # blocks of 256 threads that draw, at most; 0: numbers are drawn by ATen's calls
    # where the generator stands is read from memory: it may be captured into a CUDA graph
    draw_captured: bool

    # Depthwise convolutions of channels-last images in half precision (ops/depthwise_convolution.py) that are generated
    depthwise_taps: int  # elements of the window for each that the window moves by, at most; or else ...
    depthwise_elements: int  # ... elements of the result, at most

    products: ProductCosts | None  # None: every product, convolution and pooling is ATen's
    alone: tuple[AloneCosts, ...]
    alignment: AlignmentCosts | None  # None: how rows of ATen's products are aligned makes no difference
