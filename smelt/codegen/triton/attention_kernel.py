"""Attention as Triton source: softmax(score(q @ k)) @ v in one kernel, for any score function.

A program has XBLOCK queries of one head and walks the keys, RBLOCK at a time (flash attention: Dao et al., 2022). For
each query it holds the largest score m so far, the sum of exp(score - m), and the weighted values, all of which are
rescaled when a larger score is found (the online normalizer of softmax: Milakov and Gimelshein, 2018). Neither scores
nor probabilities are materialized.

A row whose scores are all minus infinity has the sum 0 and results in 0 / 0 as in softmax, unless the program asks for
0. NaN and positive infinity make the sum NaN, and so the row, as in softmax.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from smelt.codegen.triton import value_expressions
from smelt.codegen.triton.block_gemm import (
    Operand,
    Tile,
    TilePrinter,
    counted,
    highest,
    indices_of,
    named_symbols,
)
from smelt.codegen.triton.kernel_source import Axes, Position, R, Source, X
from smelt.codegen.triton.value_expressions import Dialect
from smelt.loops.kernel_ir import Buffer, Kernel, MapStage, Store, Value
from smelt.shapes.expr import Size, bounds, subs

SCORE = "score"  # the product of a query and a key, as a `result` of float32
ATTENTION = "attention"  # the weighed sum of values, as a `result` of float32
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
SMALLEST = 16  # the minimum block side for tensor cores


@dataclass(frozen=True)
class TiledAttention:
    """For BATCH, a query ROW and an index COL of the values: `value` of the sum over keys of p * v / the sum of p,
    stored at `index`, where p is exp(score - the row's largest score).

    `q` is at BATCH, ROW = query, COL = index in the head; `k` at BATCH, ROW = index in the head, COL = key; `v` at
    BATCH, ROW = key, COL. `score`, of float32, is at BATCH, ROW = query, COL = key, and loads `scores` by number;
    `value` loads `inputs`. Queries and keys have one dtype, float16 or bfloat16, and so do values. `empty`: the value
    of rows in which all scores are minus infinity, 0 or NaN. `key_bound`: a number n if all scores of keys after query +
    n are minus infinity (0 for causal attention); these keys are not read.

    The kernel's buffers are the inputs of q, of k, of v, `scores`, `inputs`, and the result, which overlaps none of them.
    """

    name: str = field(compare=False)
    batch: int
    queries: int
    keys: int
    head: int
    width: int
    q: Operand
    k: Operand
    v: Operand
    scores: tuple[Buffer, ...]
    score: Value
    inputs: tuple[Buffer, ...]
    value: Value
    index: Size
    empty: float
    key_bound: int | None = None

    @property
    def sizes(self) -> str:
        """Batch, queries, keys, head size, for display."""
        return f"{self.batch}×{self.queries}×{self.keys}×{self.head}"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values in the product."""
        return self.v.value.dtype

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The kernel's buffers."""
        result = Buffer("out", self.value.dtype, "out")
        return (*self.q.inputs, *self.k.inputs, *self.v.inputs, *self.scores, *self.inputs, result)

    @property
    def firsts(self) -> tuple[int, int, int, int, int]:
        """The numbers of the first inputs of q, k, v, of `scores` and of `inputs`."""
        q, k, v = (len(operand.inputs) for operand in (self.q, self.k, self.v))
        return 0, q, q + k, q + k + v, q + k + v + len(self.scores)


def power(size: int) -> int:
    """The smallest block that holds so many rows or columns."""
    return max(SMALLEST, 1 << max(size - 1, 0).bit_length())


def attention_source(
    a: TiledAttention, tile: Tile, unaligned: frozenset[int] = frozenset(), dialect: Dialect = "ptx"
) -> Source:
    """`a` in tiles of `tile`, a program for each block of queries. `unaligned`: buffers that may begin at any address."""
    return _Attention(a, tile, dialect).source_of(unaligned)


class _Attention(TilePrinter):
    """Blocks have the axes: queries and head (q), head and keys (k), queries and keys (scores), keys and value columns
    (v), queries and value columns (the result)."""

    def __init__(self, a: TiledAttention, tile: Tile, dialect: Dialect) -> None:
        parts = (
            (indices_of(a.q.value), (a.batch, a.queries, a.head)),
            (indices_of(a.k.value), (a.batch, a.head, a.keys)),
            (indices_of(a.v.value), (a.batch, a.keys, a.width)),
            (indices_of(a.score), (a.batch, a.queries, a.keys)),
            ([a.index, *indices_of(a.value)], (a.batch, a.queries, a.width)),
        )
        stored = Store(len(a.buffers) - 1, 0, a.value)
        kernel = Kernel(a.name, a.buffers, (), (MapStage((), (stored,)),))
        super().__init__(kernel, tile, dialect, max(highest(indices, sizes) for indices, sizes in parts))
        self.a = a

    def source_of(self, unaligned: frozenset[int]) -> Source:
        """The module."""
        a, t = self.a, self.tile
        blocks = -(-a.queries // t.x)
        self._begin(blocks)
        self._over_keys()
        self._finish()
        constants = {"XBLOCK": t.x, "RBLOCK": t.r, "HBLOCK": power(a.head), "NBLOCK": power(a.width)}
        return self.module_of_tiles(a.batch * blocks, constants, unaligned)

    # ---- the program

    def _begin(self, blocks: int) -> None:
        """The block of queries. If later queries see more keys, they run first."""
        a = self.a
        block = f"tl.program_id(0) % {blocks}"
        self.lines += [
            f"    batch = {self.widened(f'(tl.program_id(0) // {blocks})')}",
            f"    block = {block}" if a.key_bound is None else f"    block = {blocks - 1} - {block}",
        ]
        self.masks: dict[str, str] = {}  # axis name -> mask of its points; absent if all exist
        self._points("x", "block * XBLOCK + tl.arange(0, XBLOCK)", "x", a.queries, self.tile.x)
        self._points("head_column", "tl.arange(0, HBLOCK)", "r", a.head, power(a.head))
        self._points("head_row", "tl.arange(0, HBLOCK)", "x", a.head, power(a.head))
        self._points("place", "tl.arange(0, NBLOCK)", "r", a.width, power(a.width))

    def _points(self, name: str, text: str, axis: str, size: int, block: int, indent: int = 1) -> None:
        """Name the points along an axis."""
        placed = f"{self.widened(f'({text})')}{'[:, None]' if axis == 'x' else '[None, :]'}"
        self.lines.append(f"{'    ' * indent}{name} = {placed}")
        if size % block:
            self.lines.append(f"{'    ' * indent}{name}mask = {name} < {size}")
            self.masks[name] = f"{name}mask"

    def _at(self, rows: str, columns: str, indent: int) -> Position:
        """Enter a block of these points and make their sizes known."""
        a = self.a
        sizes = {
            "x": (a.queries, "XBLOCK"),
            "r": (a.keys, "RBLOCK"),
            "head_row": (a.head, "HBLOCK"),
            "head_column": (a.head, "HBLOCK"),
            "place": (a.width, "NBLOCK"),
        }
        (n_rows, x), (n_columns, r) = (sizes.get(name, sizes["r"]) for name in (rows, columns))
        self.extents = {"x": x, "r": r}
        masks = {axis: self.masks[name] for axis, name in (("x", rows), ("r", columns)) if name in self.masks}
        return Position(
            named_symbols(a.batch, n_rows, n_columns), X | R, indent, r=columns, x=rows, masks=masks
        )

    def _over_keys(self) -> None:
        a = self.a
        q = self.operand(self._at("x", "head_column", 1), a.q, a.firsts[0], self.masks.get("head_column"))
        self.most, self.total, sums = self._fresh(X), self._fresh(X), self._fresh(X | R)
        self.lines += [
            f"    {self.most} = tl.full([XBLOCK, 1], float('-inf'), tl.float32)",
            f"    {self.total} = tl.full([XBLOCK, 1], 0.0, tl.float32)",
            f"    {sums} = tl.full([XBLOCK, NBLOCK], 0.0, tl.float32)",
        ]
        end = str(a.keys)
        if a.key_bound is not None:
            self.lines.append(f"    end = tl.minimum({a.keys}, (block + 1) * XBLOCK + {a.key_bound})")
            end = self.values.number("end")
        self.loop = len(self.lines)
        self.lines.append(f"    for start in range(0, {end}, RBLOCK):")
        self._points("r", "start + tl.arange(0, RBLOCK)", "r", a.keys, self.tile.r, indent=2)
        keys = self._fresh(X)
        self.inner.add(keys)  # no expression of it may be moved out of the loop
        self._points(keys, "start + tl.arange(0, RBLOCK)", "x", a.keys, self.tile.r, indent=2)
        k = self.operand(self._at("head_row", "r", 2), a.k, a.firsts[1], self.masks.get("head_row"))
        p = self._weights(f"tl.dot({q}, {k})", sums)
        v = self.operand(self._at(keys, "place", 2), a.v, a.firsts[2], self.masks.get(keys))
        self.lines.append(f"        {sums} = tl.dot({p}, {v}, {sums})")
        self.loop = None
        self.results[ATTENTION] = sums

    def _weights(self, product: str, sums: str) -> str:
        """The weights of a block of keys, in the values' dtype; earlier results are rescaled."""
        a, at = self.a, self._at("x", "r", 2)
        self.results[SCORE] = self._named(at, product, X | R, fixed=False)
        score = self.value(at, counted(a.score, a.firsts[3], {}))
        if self.axes_of.get(score) != X | R:
            score = self._named(at, f"tl.broadcast_to({score}, [XBLOCK, RBLOCK])", X | R, fixed=False)
        if "r" in self.masks:
            score = self._named(
                at, f"tl.where({self.masks['r']}, {score}, float('-inf'))", X | R, fixed=False
            )

        def named(text: str, axes: Axes) -> str:
            return self._named(at, text, axes, fixed=False)

        most = named(f"_maximum({self.most}, tl.reduce({score}, 1, _maximum)[:, None])", X)
        # of infinities differences are NaN
        near = named(f"tl.where({most} == float('-inf'), 0.0, {most})", X)
        weights = named(self._exp(f"{score} - {near}"), X | R)
        factor = named(self._exp(f"{self.most} - {near}"), X)
        self.lines += [
            f"        {self.total} = {self.total} * {factor} + tl.reduce({weights}, 1, _add)[:, None]",
            f"        {sums} = {sums} * {factor}",
            f"        {self.most} = {most}",
        ]
        return self.factor(named(value_expressions.cast(weights, torch.float32, a.dtype), X | R), a.dtype)

    def _text(self, at: Position, v: Value) -> tuple[str, Axes]:
        """Indices are compared and converted in 32 bits if they fit: half as many instructions."""
        if v.op in _COMPARISONS or (v.op == "cast" and v.dtype.is_floating_point):
            found = [self._narrow(at, operand) for operand in v.args]
            texts = [text for text, _ in filter(None, found)]
            if len(texts) == len(found) and any(operand.op == "index" for operand in v.args):
                axes = frozenset[str]().union(*(axes for _, axes in filter(None, found)))
                if v.op == "cast":
                    return value_expressions.cast(texts[0], torch.int32, v.dtype), axes
                return self.values.operation(v.op, torch.int32, texts), axes
        return super()._text(at, v)

    def _narrow(self, at: Position, v: Value) -> tuple[str, Axes] | None:
        """An index, or a number compared with one, as a 32-bit integer."""
        if v.op not in ("index", "const") or v.dtype is not torch.int64 or self.wide != "tl.int32":
            return None
        e = subs(v.args[0], at.rewrite)
        low, high = bounds(e)
        if low < -(1 << 31) or high >= 1 << 31:
            return None
        return self._index(at, e), self._axes(e)

    def _finish(self) -> None:
        a, at = self.a, self._at("x", "place", 1)
        text = f"{self.results[ATTENTION]} / {self.total}"
        if a.empty == 0:
            seen = self._named(at, f"{self.total} != 0.0", X, fixed=False)
            text = f"tl.where({seen}, {text}, 0.0)"
        self.results[ATTENTION] = self._named(at, text, X | R, fixed=False)
        value = self.value(at, counted(a.value, a.firsts[4], {}))
        if self.axes_of.get(value) != X | R:
            value = self._named(at, f"tl.broadcast_to({value}, [XBLOCK, NBLOCK])", X | R, fixed=False)
        self.store(at, Store(len(a.buffers) - 1, a.index, a.value), value)
