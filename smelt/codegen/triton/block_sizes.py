"""Block sizes and warps of a kernel: a cost rule, with its reasons.

Memory decides the time: enough bytes must be in flight (a multiprocessor of an H100 needs some 40 KB), each access of
a warp must be to adjacent elements (a sector is 32 bytes, a line 128), by 16 bytes a thread, and all multiprocessors
need work. `benchmarks/gpu/blocks.py` measures alternatives.

* *flat*: elementwise, one axis. A thread computes one vector of 16 bytes.
* *rows*: elementwise over several loops, the last of which is long: the last loop is an axis of its own, so that row
    values are loaded and computed once, and no index has a remainder.
* *tiles*: elementwise, where some tensor is contiguous along a loop other than the stores'. A block is square, so that
    both sides are accessed by full lines; Triton transposes it in shared memory.
* *row reductions*: whole rows in registers while they fit, else blocks of them in sequence.
* *rows with sibling sums*: a program walks many rows, as many at once as fill its threads. It holds a sum for each
    column, so that few programs fit on a multiprocessor, and prefetches the next rows while it computes.
* *column reductions*: adjacent sums are adjacent in memory, the elements of a sum are not: a block has a line's worth
    of sums, and as many rows as its threads can load at once. It has fewer sums if fewer are adjacent and rows are
    many: otherwise there would be few programs, which walk long columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from smelt.loops.kernel_ir import (
    Buffer,
    Kernel,
    Loop,
    MapStage,
    Stage,
    Sums,
    Value,
    stage_loops,
    stage_stores,
    stage_values,
    walk,
)
from smelt.loops.row_sums import chunk_rows, columns_of
from smelt.shapes.expr import Size, affine, free_syms, static

# The figures are of an H100: GB/s, of a copy's 2,860, in the order of the choices named; bfloat16 unless said.
VECTOR = 16  # bytes that a thread reads by one instruction
LINE = 128  # bytes
WARPS = 4  # of a program that could have any number
# Rows in registers. Warps of a layer norm of 4,096 on an H200 (a copy: 4,099): 4, 8, 16: 3,601, 3,167, 2,610 (each reduction
# waits for all of them); of 8,192: 3,453, 2,761, 2,804; softmax of 8,192: 3,998, 3,997, 4,083. On an H100 a layer norm of
# 4,096 by 4, 8, 16: 2,790, 2,817, 2,454. Softmax of 16,384, in registers (8 or 16 warps) 2,008, 1,978, else 1,918. Of more
# tensors that long registers would not hold all.
ROW = 16  # points of a row that a thread holds at least
ROW_WARPS = 4
PERSISTENT = 8192  # points of a stage that one block may hold, for any kernel ...
PERSISTENT_FEW = 16_384  # ... and for one of two tensors
# Longer rows, as points of a block, warps: 4096, 8; 4096, 16; 2048, 8: a sum of everything 2,930, 3,018, 2,994; variances of
# images 2,282, 2,537, 2,594; softmax of 16,384 1,885, 1,918, (not measured); of 32,768 1,038, 1,561, 1,336 (few rows are
# under way at once, so that the second pass finds them in cache).
# A thread then has two vectors of 16 bytes under way, as it had of float32 in the figures: of bfloat16 a block is twice as
# long (not measured).
LOOPED = 4096
LOOPED_WARPS = 16
MANY = 3  # tensors: a thread's share of more would not fit its registers, so threads are more
# Columns, as sums, rows, warps: 64, 64, 8; 64, 64, 4; 64, 128, 4: sums of 65536x4096 2,946, 2,972, 2,928, of 4096x65536
# 2,860, 2,710, 2,865. Of two tensors, a layer norm's weights, 8192x4096 2,181, 2,534, 2,528, 65536x4096 2,734, 2,867,
# 2,938: half the threads, each with as many vectors more.
# Rows with sums beside them, points that a program computes at once, as rows, columns, warps: 8192 of 768 points by
# 4, 1024, 8; 4, 1024, 4; 2, 1024, 4: 1,330, 1,782, 1,735; of 1,024: 1,480, 2,025, 2,338; 65536 of 4,096 by 1, 4096, 8;
# 1, 4096, 4; 2, 4096, 16: 2,778, 2,720, 2,666.
SIBLING_ELEMENTS = 2048
SIBLING_WARPS = 16
COLUMN_WARPS = 8
COLUMN_POINTS = 16  # that a thread loads at once of one tensor
# Where a point reads many elements (the window of a convolution), so that a thread would have more loads than these, it
# computes one vector of points, as each load is code of its own: the mean of a 3x3 convolution's 672 channels took 0.81 s to
# PTX with 32 points, with 8 it takes 0.29 s.
LOADS = 128
# 64x64 turned by 8 warps: 99% of a copy.
TILE = 64  # points, each way: a line of bfloat16, two of float32
TILE_WARPS = 8
SHORTEST_SIDE = 8  # a loop shorter than this is not worth a tile's side
LONG_ROW = 256  # points: from here on a row is an axis of its own
# Vectors that a thread computes of a row that has values of its own (a target, a mean): these, and what is made of them, are
# loaded and computed by each program once. Counted in the gradient of a cross entropy, an element takes 17, 15 instructions
# of 1, 2 vectors (not measured).
VECTORS = 2
# Of what is small there are so many programs, of fewer points each: a thread's points come one after the other, and other
# multiprocessors have nothing to do. A kernel that draws random numbers keeps four neighbours for each thread. Elementwise
# kernels over one loop, whose code is that of all sizes, have one of two block sizes.
PROGRAMS = 4 * 132
FEW = 16  # blocks: where there are no more, it does not matter
SECTOR = 32  # bytes


@dataclass(frozen=True)
class Blocks:
    """Block sizes (powers of two) and warps of a launch. `r` is 0 if a block has no second axis.

    `across`: the outer loop of an elementwise kernel that is the second axis; its blocks are separate programs.
    `outer`: the remaining loops, in the order in which the first axis counts them. `ahead`: a program that walks rows
    loads the next ones while it computes.
    """

    x: int
    r: int
    warps: int
    across: Loop | None = None
    outer: tuple[Loop, ...] = ()
    ahead: bool = False


def choose(kernel: Kernel, host: frozenset[int] = frozenset()) -> Blocks:
    """The blocks of `kernel`. `host`: its buffers that are passed by value."""
    read = _read(kernel, host)
    lanes = 32 * elements(read)
    if kernel.sums is not None:
        return _sibling_blocks(kernel, kernel.sums)
    if all(not stage_loops(s) for s in kernel.stages):
        return _elementwise(kernel, lanes)
    points = prod(static(l.size) for l in kernel.outer)
    longest = max(map(stage_points, kernel.stages))
    if _outer_is_contiguous(kernel):
        return _columns(kernel, read, points, longest)
    return _rows(kernel, points, longest, lanes)


def of_any_size(kernel: Kernel, host: frozenset[int]) -> Blocks:
    """The blocks of an elementwise kernel over one loop, for any size."""
    return Blocks(WARPS * 32 * elements(_read(kernel, host)), 0, WARPS)


def _read(kernel: Kernel, host: frozenset[int]) -> list[Buffer]:
    return [b for i, b in enumerate(kernel.buffers) if i not in host]


# ---- elementwise


def _elementwise(kernel: Kernel, lanes: int) -> Blocks:
    found = across(kernel)
    if found is None:
        points = prod(static(l.size) for l in kernel.outer)
        flat = len(kernel.outer) == 1
        block = WARPS * lanes
        if FEW * block < points < PROGRAMS * block and not _draws(kernel):
            block //= 4
        return Blocks(block if flat else min(block, power(points)), 0, WARPS)
    outer, last, is_tile = found
    size, rows = static(last.size), prod(static(l.size) for l in outer)
    if is_tile:
        side = power(min(TILE, static(outer[-1].size)))
        r = min(power(size), TILE * TILE // side)
        return Blocks(side, r, _warps(side * r, TILE * TILE // TILE_WARPS, TILE_WARPS), last, outer)
    if size * rows > FEW * WARPS * lanes and not _draws(kernel):
        lanes = _spread(lanes, 32, size * rows // WARPS)
    r = min(WARPS * lanes * (VECTORS if _has_row_values(kernel, last) else 1), power(size))
    if -size % r > size // 8:  # of the last block most would be masked
        r = min(r, _divisor(size))
    x = max(1, min(WARPS * lanes // r, power(rows)))
    return Blocks(x, r, WARPS, last, outer)


def _spread(block: int, least: int, points: int) -> int:
    """`block`, or less if that would make few programs, but at least `least`: both powers of two."""
    while block > least and points < PROGRAMS * block:
        block //= 2
    return block


def _draws(kernel: Kernel) -> bool:
    return any(v.op == "philox" for stage in kernel.stages for v in walk(stage_values(stage)))


def _has_row_values(kernel: Kernel, last: Loop) -> bool:
    accesses = (v.args[1] for v in stage_loads(kernel.stages[0]))
    return any(free_syms(e) and last.sym not in free_syms(e) for e in accesses)


def across(kernel: Kernel) -> tuple[tuple[Loop, ...], Loop, bool] | None:
    """The loops of an elementwise kernel for two axes: of the first, of the second (along which it stores), and
    whether some tensor is contiguous along the last loop of the first axis. None: one axis is as good."""
    if len(kernel.stages) != 1 or len(kernel.outer) < 2:
        return None
    (stage,) = kernel.stages
    stores = [s.index for s in stage_stores(stage)]
    along = [l for l in kernel.outer if all(_stride(e, l) == 1 for e in stores)]
    if not isinstance(stage, MapStage) or len(along) != 1:
        return None
    last, others = along[0], tuple(l for l in kernel.outer if l is not along[0])
    turned = [
        l for l in others
        if static(l.size) >= SHORTEST_SIDE
        and any(_stride(e, l) == 1 and _stride(e, last) not in (0, 1) for e in stage_indices(stage))
    ]  # fmt: skip
    if turned and static(last.size) >= SHORTEST_SIDE:
        near = max(turned, key=lambda l: static(l.size))
        return (*(l for l in others if l is not near), near), last, True
    size = static(last.size)
    if size < LONG_ROW or size % (2 * VECTOR):
        return None  # vectors would be cut where rows begin
    return others, last, False


def _divisor(n: int) -> int:
    """The largest power of two that divides n."""
    return n & -n


# ---- reductions


def _rows(kernel: Kernel, points: int, longest: int, lanes: int) -> Blocks:
    """Several short rows, at least as many points as WARPS warps hold in vectors."""
    tensors = len(_large(kernel))
    if longest > (PERSISTENT if tensors > 2 else PERSISTENT_FEW):
        narrow = lanes > 32 * elements(()) and tensors < MANY
        return Blocks(1, LOOPED * 2 if narrow else LOOPED, LOOPED_WARPS)
    r = power(longest)
    x = max(1, min(WARPS * lanes // r, 32, power(points)))
    x = x if _draws(kernel) else _spread(x, 1, points)
    most = ROW_WARPS if r <= PERSISTENT and tensors <= MANY else 2 * ROW_WARPS
    return Blocks(x, r, _warps(x * r, max(32 * ROW, lanes), most))


def _sibling_blocks(kernel: Kernel, sums: Sums) -> Blocks:
    """Whole rows: `loops.row_sums` limits them to what a program holds."""
    r = power(columns_of(kernel))
    x = max(1, min(SIBLING_ELEMENTS // r, power(chunk_rows(sums))))
    return Blocks(x, r, _warps(x * r, 32 * ROW, SIBLING_WARPS), ahead=True)


def _columns(kernel: Kernel, read: Sequence[Buffer], points: int, longest: int) -> Blocks:
    line, block = LINE * elements(read) // VECTOR, COLUMN_WARPS * 32 * COLUMN_POINTS
    merge_parallel_launches = max(power(_neighbours(kernel)), block // power(longest))
    most = min(line, power(points), merge_parallel_launches)
    x = _spread(most, min(line * SECTOR // LINE, most), 4 * points)
    r = min(block // x, power(longest))
    each = COLUMN_POINTS * (2 if 1 < len(_large(kernel)) <= MANY else 1)
    if each * _loads(kernel) > LOADS:
        return Blocks(x, r, _warps(x * r, 32 * elements(read), 2 * COLUMN_WARPS))
    return Blocks(x, r, _warps(x * r, 32 * each, COLUMN_WARPS))


def _loads(kernel: Kernel) -> int:
    """The largest number of loads at a point of a stage with loops."""
    return max(len(stage_loads(stage)) for stage in kernel.stages if stage_loops(stage))


def _warps(points: int, each: int, most: int) -> int:
    return max(1, min(most, points // each))


@dataclass(frozen=True)
class _Access:
    """An access of a stage with loops: the number of elements, and whether it is contiguous along outer loops (1),
    along the stage's (-1), or neither."""

    buffer: int
    index: Size
    touched: int
    along: int


def _accesses(kernel: Kernel) -> Iterator[_Access]:
    outer = {l.sym: static(l.size) for l in kernel.outer}
    for stage in kernel.stages:
        inner = {l.sym: static(l.size) for l in stage_loops(stage)}
        accesses = [(v.args[0], v.args[1]) for v in stage_loads(stage)]
        accesses += [(store.buffer, store.index) for store in stage_stores(stage)]
        for buffer, e in dict.fromkeys(accesses) if inner else ():
            touched = prod(n for s, n in (outer | inner).items() if s in free_syms(e))
            along = any(_stride(e, l) == 1 for l in kernel.outer)
            yield _Access(buffer, e, touched, along - any(_stride(e, l) == 1 for l in stage_loops(stage)))


def _large(kernel: Kernel) -> set[int]:
    """The buffers that dominate: values of a row or column alone are small. None if only numbers are reduced."""
    accesses = list(_accesses(kernel))
    most = max((a.touched for a in accesses), default=0)
    return {a.buffer for a in accesses if 2 * a.touched > most}


def _neighbours(kernel: Kernel) -> int:
    """The number of sums that are adjacent in memory, for the dominant tensors."""
    large, most = _large(kernel), 1
    for access in _accesses(kernel):
        sizes = {_stride(access.index, l): static(l.size) for l in reversed(kernel.outer)}
        count = 1
        while access.buffer in large and count in sizes:
            count *= sizes.pop(count)
        most = max(most, count)
    return most


def _outer_is_contiguous(kernel: Kernel) -> bool:
    """Whether memory is contiguous along an outer loop, rather than a stage's loop, for most of the dominant accesses;
    or for any, if no dominant tensor is accessed by another stage too: a square block has full lines of either."""
    large = _large(kernel)
    counted = [a for a in _accesses(kernel) if a.buffer in large]
    if sum(a.along for a in counted) > 0:
        return True
    return len({a.buffer for a in counted}) == len(counted) and any(a.along > 0 for a in counted)


# ---- of kernels


def elements(buffers: Sequence[Buffer]) -> int:
    """Elements per thread: one vector load of the narrowest floats (as in eager's kernels). More would take longer to
    compile, as each element has its own code."""
    narrowest = min((b.dtype.itemsize for b in buffers if b.dtype.is_floating_point), default=4)
    return VECTOR // max(2, min(narrowest, 4))


def stage_points(stage: Stage) -> int:
    """The number of points of the stage's own loops."""
    return prod(static(l.size) for l in stage_loops(stage))


def stage_indices(stage: Stage) -> list[Size]:
    """The indices of the stage's loads and stores."""
    return [store.index for store in stage_stores(stage)] + [v.args[1] for v in stage_loads(stage)]


def stage_loads(stage: Stage) -> list[Value]:
    """The stage's loads, each once."""
    return [v for v in walk(stage_values(stage)) if v.op == "load"]


def power(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def _stride(e: Size, loop: Loop) -> Size | None:
    parts = affine(e, loop.sym)
    return parts[0] if parts else None
