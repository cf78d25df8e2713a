"""Shared parts of kernels that multiply blocks: operands as expressions, their printer, the module around them.

Operands are multiplied as float16 or bfloat16, sums are in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from smelt.codegen.llvm.gemm.epilogue import BATCH, COL, ROW
from smelt.codegen.triton import value_expressions
from smelt.codegen.triton.block_sizes import Blocks
from smelt.codegen.triton.kernel_source import Axes, Position, Printer, R, Source, X
from smelt.codegen.triton.value_expressions import NAMES, Dialect
from smelt.loops.kernel_ir import Buffer, Kernel, Value, walk
from smelt.loops.loop_values import Moved
from smelt.shapes.expr import Size, Sym, bounds, subs


@dataclass(frozen=True)
class Operand:
    """A matrix whose element at BATCH, ROW, COL is `value`. Loads name `inputs` by number."""

    inputs: tuple[Buffer, ...]
    value: Value


@dataclass(frozen=True, order=True)
class Tile:
    """The tiling of a product: `x` rows, `r` columns and `k` of the sums at once; `group` tiles of rows are computed
    for each tile of columns before the next one, so that operands stay in the cache. For attention: `x` queries and
    `r` keys; `k` is the head size."""

    x: int
    r: int
    k: int
    warps: int
    stages: int
    group: int = 8


class TilePrinter(Printer):
    """Prints expressions of other kernels on blocks whose two axes have several meanings. `top`: the largest index."""

    loads_lines = False  # indices here are blocks of two axes

    def __init__(self, kernel: Kernel, tile: Tile, dialect: Dialect, top: int) -> None:
        super().__init__(kernel, frozenset(), dialect, Blocks(tile.x, tile.r, tile.warps))
        self.tile = tile
        self.x_axes = X
        self.wide = "tl.int64" if top >= 1 << 31 else "tl.int32"
        self.extents = {"x": "XBLOCK", "r": "RBLOCK"}  # of the axes of the block that is being printed

    def widened(self, text: str) -> str:
        """An integer in the type of indices."""
        return f"{text}.to({self.wide})" if self.wide == "tl.int64" else text

    def module_of_tiles(
        self, programs: int, constants: Mapping[str, int], unaligned: frozenset[int]
    ) -> Source:
        """The module of the printed kernel, for `programs` programs."""
        passed = self._passed()
        arguments = [*passed, *(f"{name}: tl.constexpr" for name in constants)]
        body = "\n".join([f"def kernel({', '.join(arguments)}):", *self.lines, ""])
        pointers = {name for name, kind in passed.items() if kind.startswith("*")}
        return Source(
            text=f"{self.values.prelude(body)}\n\n@triton.jit\n{body}",
            points=programs,
            block=1,
            warps=self.tile.warps,
            signature=passed | dict.fromkeys(constants, "constexpr"),
            aligned=frozenset(pointers - {f"p{i}" for i in unaligned}),
            constants=constants,
            stages=self.tile.stages,
        )

    def operand(self, at: Position, operand: Operand, first: int, zero: str | None) -> str:
        """A block of an operand, whose inputs are numbered from `first`; 0 where the mask `zero` does not hold."""
        value = self.value(at, counted(operand.value, first, {}))
        dtype = operand.value.dtype
        is_full = self.axes_of.get(value) == X | R
        if not is_full:
            value = self._named(at, f"tl.broadcast_to({value}, {self._shape(X | R)})", X | R, fixed=False)
        if zero is not None and not (is_full and _zero_of_zeros(operand.value)):
            nothing = value_expressions.literal(0, dtype)
            value = self._named(at, f"tl.where({zero}, {value}, {nothing}).to({NAMES[dtype]})", X | R, False)
        return self.factor(value, dtype)

    def factor(self, value: str, dtype: torch.dtype) -> str:
        """A block as an operand of `tl.dot`."""
        if self.values.dialect == "torch" and dtype is torch.bfloat16:
            return f"{value}.to(tl.float32)"  # the interpreter would multiply their bits
        return value

    def _shape(self, axes: Axes) -> str:
        return f"[{', '.join(self.extents[a] if a in axes else '1' for a in 'xr')}]"


def counted(value: Value, first: int, symbols: Mapping[Sym, Size]) -> Value:
    """`value` with buffers numbered from `first`, and its symbols replaced."""
    return Moved(symbols, lambda number: number + first).value(value)


def named_symbols(batch: int, rows: int, columns: int) -> dict[Sym, Size]:
    """The symbols of expressions, with bounds, by their names in the program."""
    sizes = ((BATCH, "batch", batch), (ROW, "x", rows), (COL, "r", columns))
    return {s: Sym(name, 0, max(size - 1, 0)) if size > 1 else 0 for s, name, size in sizes}


def highest(indices: Sequence[Size], sizes: tuple[int, int, int]) -> int:
    """The largest value of `indices` over BATCH, ROW and COL."""
    at = named_symbols(*sizes)
    return max((max(map(abs, bounds(subs(i, at)))) for i in indices), default=0)


def indices_of(value: Value) -> list[Size]:
    """The indices at which `value` loads or with which it computes."""
    return [v.args[1] if v.op == "load" else v.args[0] for v in walk([value]) if v.op in ("load", "index")]


def _zero_of_zeros(value: Value) -> bool:
    """Whether the value is zero if its loads are: loads themselves, and casts of them."""
    while value.op == "cast":
        (value,) = value.args
    return value.op == "load"
