"""Rows of a few vectors that several stages iterate over: unrolled, so that later stages find loaded and computed
values in registers, as common subexpressions.

A row of symbolic length may be compiled for a number of vectors, the last of which is masked: one code then serves all
lengths of that many vectors, and a launch selects it once its sizes are known. Longer rows profit from a known range
too: it bounds the levels of cascades, and loops are not empty.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from smelt.codegen.llvm.host_cpu import Host
from smelt.codegen.llvm.loop_nests import count_vectors
from smelt.codegen.llvm.math_functions import MATH_OPS
from smelt.codegen.llvm.vectorization import Choice, choose, count_lanes
from smelt.loops.kernel_ir import Kernel, MapStage, ReduceStage, Stage, Value, stage_loops, stage_values, walk
from smelt.loops.kernel_sizes import at_sizes
from smelt.plan.size_decisions import Decisions
from smelt.shapes.expr import Size, Sym, affine, free_syms

LONG_VECTORS = 256  # in longer rows, work per row is negligible
INLINE_VECTORS, INLINE_OPS = 8, 160  # rows that stay in registers from stage to stage: vectors, instructions
# The bounds of a row's vectors that get code of their own: each number that may be unrolled, then powers of two.
_LENGTHS = (*range(1, INLINE_VECTORS + 1), *(1 << n for n in range(4, 9)))  # to LONG_VECTORS


def has_short_rows(kernel: Kernel, choice: Choice, lanes: int) -> bool:
    """Whether several vector stages of `kernel` iterate over the same few vectors."""
    if choice.outer is not None:
        return False
    vector = [s for s, sym in zip(kernel.stages, choice.inner) if sym is not None]
    sizes = {tuple(l.size for l in stage_loops(s)) for s in vector}
    if len(vector) < 2 or len(sizes) != 1 or len(next(iter(sizes))) != 1:
        return False
    (size,) = next(iter(sizes))
    vectors = count_vectors(size, lanes)
    if vectors is None:
        return False
    return vectors <= INLINE_VECTORS and vectors * _instructions(vector) <= INLINE_OPS


def _instructions(stages: Sequence[Stage]) -> int:
    """The weighted instructions of one vector of each stage. Values of sizes alone are invariant in a row."""
    values = [v for s in stages for v in stage_values(s)]
    loops = {l.sym for s in stages for l in stage_loops(s)}
    return sum(12 * (v.op in MATH_OPS) + 1 for v in walk(values, lambda v: _varies(v, loops)))


def _varies(value: Value, loops: Set[Sym]) -> bool:
    """Whether the value depends on more than constants and sizes."""
    found = walk([value])
    return any(
        v.op in ("load", "result") or (v.op == "index" and free_syms(v.args[0]) & loops) for v in found
    )


@dataclass(frozen=True)
class Row:
    """The length of a kernel's rows: `factor` times a symbol, plus `remainder`."""

    size: Size
    sym: Sym
    factor: int
    remainder: int


def row_of(kernel: Kernel) -> Row | None:
    """The row length of a kernel whose rows may be short but have a symbolic number of vectors."""
    loops = [
        stage_loops(s) for s in kernel.stages if isinstance(s, (MapStage, ReduceStage)) and stage_loops(s)
    ]
    sizes = {tuple(l.size for l in of_stage) for of_stage in loops}
    if len(sizes) != 1 or len(next(iter(sizes))) != 1:
        return None
    (size,) = next(iter(sizes))
    if isinstance(size, int) or len(free_syms(size)) != 1:
        return None
    (sym,) = free_syms(size)
    line = affine(size, sym)
    if line is None or not isinstance(line[0], int) or not isinstance(line[1], int) or line[0] < 1:
        return None
    return Row(size, sym, line[0], line[1])


def of_length(kernel: Kernel, row: Row, decisions: Decisions, target: Host) -> tuple[Kernel, dict[Sym, Size]]:
    """The kernel for row lengths close to those at the sizes of `decisions`, which record the range, and the values of
    its symbols. It serves all rows of the same number of vectors, if that is small, or of up to twice as many; and
    either rows of full vectors only, or all others."""
    lanes = count_lanes(kernel, target.lanes)

    def at_most(vectors: int) -> bool:
        return decisions.at_least(vectors * lanes, row.size)

    if decisions.for_all_sizes or not at_most(LONG_VECTORS):
        return kernel, {}
    is_size = row.factor == 1 and row.remainder == 0
    unit = lanes if is_size and decisions.is_zero(row.sym % lanes) else 1
    most = next(n for n in _LENGTHS if at_most(n))
    if most <= INLINE_VECTORS:
        symbol = _narrowed(kernel, row, lanes, unit, (most - 1, most))
        if has_short_rows(symbol[0], choose(symbol[0], lanes), lanes):
            return symbol
        most = 1 << (most - 1).bit_length()
    return _narrowed(kernel, row, lanes, unit, (most // 2, most))


def _narrowed(
    kernel: Kernel, row: Row, lanes: int, unit: int, vectors: tuple[int, int]
) -> tuple[Kernel, dict[Sym, Size]]:
    """The kernel for rows of vectors[0] + 1 to vectors[1] vectors, where the symbol is a multiple of `unit`."""
    ends = (vectors[0] * lanes + 1 - row.remainder, vectors[1] * lanes - row.remainder)
    low, high = max(-(-ends[0] // row.factor), row.sym.lo), min(ends[1] // row.factor, row.sym.hi)
    low, high = -(-low // unit), high // unit
    if low == high:
        return at_sizes(kernel, {row.sym: low * unit}), {}
    symbol = Sym(row.sym.name, low, high, likely=high)
    return at_sizes(kernel, {row.sym: symbol * unit}), {symbol: row.sym // unit}
