"""Matrix products as machine code: C = epilogue(A @ B), blocked for the caches, on packed panels.

A product is cut like this (one work item is one *panel* of columns in one block of rows of one batch entry):

    for each block of K (`kc` deep)            packed block of A: L2
        pack the rows of A                     rows stay rows, cut into runs of one vector: a copy, no shuffling
        for each panel of `columns` columns    packed panel of B: L1/L2
            pack the panel                     [k][columns]; a transpose if B is given as W[N, K] (every nn.Linear)
            for each tile of `rows` rows       accumulators: registers
                micro-kernel
                after the last block of K: epilogue on the tile, still in L1

What always holds:

* Whatever does not depend on the epilogue is compiled once per process and used by every product
  (`gemm_library.py`). A product itself is a table of numbers (`_descriptor`), its epilogue, and a short entry point.
* Nothing is kept between calls: packed weights could go stale unseen.
* Rows are shared among tiles evenly, so that at most two tile heights occur in one product.
* A panel narrower than a full one is computed whole in a private strip and cut by the epilogue; no byte outside the
  operands is read or written.
* Sums run in the operands' dtype, in order of k inside a block of K, then block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Literal

import torch

from smelt.codegen.llvm.builder import Module
from smelt.codegen.llvm.gemm_driver import WORDS
from smelt.codegen.llvm.gemm_epilogue import (
    BATCH,
    COL,
    NONE,
    ROW,
    Epilogue,
    product_value,
    rewrite,
    write_epilogue,
)
from smelt.codegen.llvm.gemm_epilogue import refusal as epilogue_refusal
from smelt.codegen.llvm.gemm_library import provide
from smelt.codegen.llvm.gemm_tile import Tile, tile_for
from smelt.codegen.llvm.module import Code, assemble
from smelt.codegen.llvm.target import host
from smelt.graph.ir import TensorSpec
from smelt.graph.sizes import Size, Sym, subs
from smelt.loops.ir import Buffer, Value

if TYPE_CHECKING:
    from smelt.codegen.llvm.window import Window


@dataclass(frozen=True)
class Matrix:
    """How a (batch of a) matrix lies in memory: strides in elements; `outer`, `inner` are those of the batch."""

    row: int
    col: int
    outer: int = 0
    inner: int = 0

    @property
    def transposed(self) -> Matrix:
        return Matrix(self.col, self.row, self.outer, self.inner)


@dataclass(frozen=True)
class Product:
    """C[o, i, m, n] = epilogue(sum over k of A[o, i, m, k] * B[o, i, k, n]) over o < batch[0], i < batch[1].

    The machine function's buffers are A, B, the epilogue's inputs, C. C must not overlap any other, and its columns
    are contiguous (c.col == 1). `name` is readable; the function's symbol.
    """

    name: str
    dtype: torch.dtype
    batch: tuple[int, int]
    m: int
    n: int
    k: int
    a: Matrix
    b: Matrix
    c: Matrix
    epilogue: Epilogue = NONE

    @property
    def form(self) -> Literal["NN", "NT", "TN", "TT"]:
        """How A and B lie in memory. N: their rows are contiguous."""
        a, b = ("N" if x.col == 1 else "T" for x in (self.a, self.b))
        return a + b  # type: ignore[return-value]


@dataclass(frozen=True)
class CompiledProduct:
    """`void function(void** buffers, int64 begin, int64 end)` over [0, extent); see `plan.steps.Launch`."""

    name: str
    address: int
    extent: int
    grain: int


@dataclass(frozen=True)
class _Cut:
    """How a product is cut into tiles, blocks and panels."""

    tiles: int
    rows: int  # of a low tile
    tall: int  # tiles of one row more, which come first
    block_tiles: int
    row_blocks: int
    kc: int
    k_blocks: int
    panels: int

    @property
    def heights(self) -> tuple[int, int]:
        """Rows of a tall and of a low tile, as far as they occur."""
        return self.rows + 1 if self.tall else self.rows, self.rows


def _cut(m: int, n: int, k: int, tile: Tile) -> _Cut:
    tiles = ceil(m / tile.rows)
    row_blocks = ceil(tiles / tile.block_tiles)
    k_blocks = max(1, ceil(k / tile.kc))
    kc = ceil(ceil(k / k_blocks) / tile.lanes) * tile.lanes
    return _Cut(
        tiles=tiles,
        rows=m // tiles,
        tall=m % tiles,
        block_tiles=ceil(tiles / row_blocks),
        row_blocks=row_blocks,
        kc=kc,
        k_blocks=k_blocks,
        panels=ceil(n / tile.columns),
    )


GRAIN_FLOPS = 1 << 20  # about 10 us of one core; also bounds how often A is packed again


def extent(m: int, n: int, k: int, batch: int, dtype: torch.dtype) -> int:
    """Work items: panels x blocks of rows x batch."""
    cut = _cut(m, n, k, tile_for(dtype))
    return batch * cut.row_blocks * cut.panels


def compile_products(products: Sequence[Product]) -> tuple[list[CompiledProduct], Code]:
    """Machine code for products of non-empty results (names differ); the code lives as long as the second value."""
    module = Module(host())
    imports: dict[str, int] = {}
    text: list[str] = []
    for p in products:
        tile = tile_for(p.dtype)
        names, body = _write(module, p, tile)
        imports |= provide(tile, names)
        text.append(body)
    text += (f"declare void @{symbol}()" for symbol in imports)
    code = assemble(module.text(text), [p.name for p in products], host(), imports=imports)
    return [_compiled(p, code) for p in products], code


def _compiled(p: Product, code: Code) -> CompiledProduct:
    batch = p.batch[0] * p.batch[1]
    count = extent(p.m, p.n, p.k, batch, p.dtype)
    flops = 2 * batch * p.m * p.n * max(p.k, 1)
    return CompiledProduct(p.name, code.address(p.name), count, max(1, GRAIN_FLOPS * count // flops))


def _write(module: Module, p: Product, tile: Tile) -> tuple[list[str], str]:
    """The names of the library's functions that `p` calls, and the text of its entry point, descriptor and epilogue."""
    cut = _cut(p.m, p.n, p.k, tile)
    tall, low = cut.heights
    narrow = 1 if 0 < p.n % tile.columns <= tile.lanes else tile.vectors
    calls = {
        "pack_a": _row_packer(p.a),
        "pack_b": _panel_packer(p.b),
        "micro_tall": f"micro{tall}x{tile.vectors}",
        "micro": f"micro{low}x{tile.vectors}",
        "narrow_tall": f"micro{tall}x{narrow}",
        "narrow": f"micro{low}x{narrow}",
    }
    words: dict[str, int | str] = {**_descriptor(p, tile, cut)}
    words |= {word: _address(tile.function(name)) for word, name in calls.items()}
    text = []
    for word, full in (("epilogue_full", True), ("epilogue_partial", False)):
        if (p.epilogue != NONE and p.n >= tile.columns) if full else p.n % tile.columns:
            text.append(write_epilogue(module, f"{p.name}.{word}", p, tile, full=full))
            words[word] = _address(f"{p.name}.{word}")
    table = ", ".join(f"i64 {words[name]}" for name in WORDS)
    text.append(
        f"@{p.name}.descriptor = internal constant [{len(WORDS)} x i64] [{table}]\n"
        f"define void @{p.name}(ptr %buffers, i64 %begin, i64 %end) nounwind {{\n"
        f"  tail call void @{tile.function('driver')}(ptr %buffers, i64 %begin, i64 %end, ptr @{p.name}.descriptor)\n"
        "  ret void\n}\n"
    )
    return sorted(set(calls.values())), "".join(text)


def _address(symbol: str) -> str:
    return f"ptrtoint (ptr @{symbol} to i64)"


def _row_packer(a: Matrix) -> str:
    if a.col == 1:
        return "pack_rows"
    return "pack_rows_transposed" if a.row == 1 else "pack_rows_any"


def _panel_packer(b: Matrix) -> str:
    if b.col == 1:
        return "pack_panel"
    return "pack_panel_transposed" if b.row == 1 else "pack_panel_any"


def _descriptor(p: Product, tile: Tile, cut: _Cut) -> dict[str, int]:
    strides = {
        f"{name}_{word}": stride * tile.size
        for name, x in (("a", p.a), ("b", p.b), ("c", p.c))
        for word, stride in (("outer", x.outer), ("inner", x.inner))
    }
    direct = p.b.col == 1 and cut.tiles <= DIRECT_TILES and p.b.row * tile.size % tile.line == 0
    return strides | {
        "n": p.n,
        "k": p.k,
        "kc": cut.kc,
        "k_blocks": cut.k_blocks,
        "panels": cut.panels,
        "row_blocks": cut.row_blocks,
        "block_tiles": cut.block_tiles,
        "tiles": cut.tiles,
        "rows": cut.rows,
        "tall": cut.tall,
        "a_row": p.a.row * tile.size,
        "a_k": p.a.col * tile.size,
        "b_k": p.b.row * tile.size,
        "b_n": p.b.col * tile.size,
        "c_row": p.c.row * tile.size,
        "inner_batch": p.batch[1],
        "c_buffer": 2 + len(p.epilogue.inputs),
        "direct_b": int(direct),
        "epilogue_full": 0,
        "epilogue_partial": 0,
    }


# Up to so many tiles, aligned rows of B are read where they are: packing would not pay. Rows off alignment would
# touch one more cache line in each.
DIRECT_TILES = 2


# ---- from ATen operators -----------------------------------------------------------------------------------------

Argument = TensorSpec | float | Sequence[int] | None


@dataclass(frozen=True)
class Request:
    """A product (or window) that stands for one ATen call. The function's buffers: args[i] for i in `operands`, then
    the inputs of the caller's epilogue, then the output."""

    product: Product | Window
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Refused:
    """Why an ATen call stays an ATen call."""

    reason: str


class _Refusal(Exception):
    pass


@dataclass(frozen=True)
class _Form:
    """How an operator's arguments are read: positions of A, B, bias; where beta and alpha begin. `flatten`: A's leading
    dimensions are rows, if B has none; `b_transposed`: B is given as W[N, K]."""

    a: int
    b: int
    bias: int | None = None
    scales: int | None = None
    flatten: bool = False
    b_transposed: bool = False


_aten = torch.ops.aten
_FORMS: dict[torch._ops.OpOverload, _Form] = {
    _aten.mm.default: _Form(0, 1),
    _aten.bmm.default: _Form(0, 1),
    _aten.addmm.default: _Form(1, 2, bias=0, scales=3),
    _aten.baddbmm.default: _Form(1, 2, bias=0, scales=3),
    _aten.matmul.default: _Form(0, 1, flatten=True),
    _aten.linear.default: _Form(0, 1, bias=2, flatten=True, b_transposed=True),
}


def plan_product(
    op: torch._ops.OpOverload, args: Sequence[Argument], out: TensorSpec, name: str, epilogue: Epilogue = NONE
) -> Request | Refused:
    """The product that computes `epilogue(op(*args))` into `out`, whose memory overlaps no operand.

    `args`: all arguments in the schema's order, tensors as their specs; trailing defaults may be missing. In `epilogue` the
    product is the result of `op`, bias included; ROW and COL index `out` as a matrix (leading dimensions that a
    linear layer flattens are part of ROW), BATCH its batch dimensions, flat; of a pointwise convolution, BATCH is the
    image, ROW the channel and COL the pixel.
    """
    try:
        if op is _aten.convolution.default:
            return _convolution(args, out, name, epilogue)
        if op in _FORMS:
            return _matrix_product(_FORMS[op], args, out, name, epilogue)
    except _Refusal as refused:
        return Refused(str(refused))
    return Refused(f"{op} is not a matrix product")


def _matrix_product(
    form: _Form, args: Sequence[Argument], out: TensorSpec, name: str, epilogue: Epilogue
) -> Request:
    if form.scales is not None and any(scale != 1 for scale in args[form.scales :]):
        raise _Refusal("beta or alpha is not 1")
    a, b, c = _stack(args[form.a]), _stack(args[form.b]), _stack(out)
    if form.flatten and not b.batch:
        a, c = a.flattened(), c.flattened()
    if form.b_transposed:
        b = b.transposed()
    operands: tuple[int, ...] = (form.a, form.b)
    if form.bias is not None and len(args) > form.bias and args[form.bias] is not None:
        operands = (*operands, form.bias)
        epilogue = with_bias(epilogue, args[form.bias], _places(c), out.dtype)
    return _request(a, b, c, operands, args, out, name, epilogue)


def _convolution(args: Sequence[Argument], out: TensorSpec, name: str, epilogue: Epilogue) -> Request:
    """A pointwise convolution: per image, [O, C] @ [C, H * W]. BATCH is the image, ROW the output channel, COL the pixel.
    Channels-last it is [images * pixels, C] @ W.T."""
    x, weight, _, stride, padding, _, transposed, _, groups = args
    kernel = _integers(_tensor(weight).shape)[2:]
    plain = set(kernel) == set(stride) == {1} and not any(padding) and not transposed and groups == 1  # type: ignore
    if not plain or len(kernel) != 2:
        raise _Refusal("a convolution that is not pointwise")
    filters = _tensor(weight)
    a = _stack(replace(filters, shape=filters.shape[:2], stride=filters.stride[:2]))
    b, c = _images(_tensor(x)), _images(out)
    operands: tuple[int, ...] = (1, 0)
    if args[2] is not None:
        operands = (*operands, 2)
        epilogue = with_bias(epilogue, args[2], [ROW], out.dtype)
    if c.col != 1 and c.row == 1 and b.joins() and c.joins():
        pixel = ROW // c.cols, ROW % c.cols
        epilogue = _moved(epilogue, {BATCH: pixel[0], ROW: COL, COL: pixel[1]})
        a, b, c = b.transposed().flattened(), a.transposed(), c.transposed().flattened()
        operands = (0, 1, *operands[2:])
    return _request(a, b, c, operands, args, out, name, epilogue)


def _request(
    a: _Stack,
    b: _Stack,
    c: _Stack,
    operands: tuple[int, ...],
    args: Sequence[Argument],
    out: TensorSpec,
    name: str,
    epilogue: Epilogue,
) -> Request:
    if c.col != 1:  # C is column-major: compute its transpose
        a, b, c = b.transposed(), a.transposed(), c.transposed()
        operands = (operands[1], operands[0], *operands[2:])
        epilogue = _moved(epilogue, {ROW: COL, COL: ROW})
    if c.col != 1:
        raise _Refusal(f"neither rows nor columns of the result are contiguous: {out.stride}")
    specs = [_tensor(args[operands[0]]), _tensor(args[operands[1]]), out]
    reason = _dtype_refusal(specs) or epilogue_refusal(epilogue, out.dtype)
    if reason is not None:
        raise _Refusal(reason)
    return Request(_product(name, out.dtype, a, b, c, epilogue), operands)


def _dtype_refusal(specs: Sequence[TensorSpec]) -> str | None:
    dtype = specs[-1].dtype
    if any(s.dtype != dtype for s in specs) or dtype not in (torch.float32, torch.float64):
        return f"dtypes {[s.dtype for s in specs]}"
    if any(s.device.type != "cpu" for s in specs):
        return f"device {specs[-1].device}"
    return None


def _product(name: str, dtype: torch.dtype, a: _Stack, b: _Stack, c: _Stack, epilogue: Epilogue) -> Product:
    if len(c.batch) > 2:
        raise _Refusal(f"{len(c.batch)} batch dimensions")
    outer, inner, *_ = (*c.batch, 1, 1)
    if 0 in (outer, inner, c.rows, c.cols):
        raise _Refusal("an empty result")
    at, bt, ct = (s.matrix(c.batch) for s in (a, b, c))
    return Product(name, dtype, (outer, inner), c.rows, c.cols, a.cols, at, bt, ct, epilogue)


def _tensor(argument: Argument) -> TensorSpec:
    if not isinstance(argument, TensorSpec):
        raise _Refusal("an operand is not a tensor")
    return argument


@dataclass(frozen=True)
class _Stack:
    """Matrices in memory: sizes and strides of the batch, rows and columns. A dimension of one element has stride 1."""

    batch: tuple[int, ...]
    strides: tuple[int, ...]
    rows: int
    row: int
    cols: int
    col: int

    def transposed(self) -> _Stack:
        return _Stack(self.batch, self.strides, self.cols, self.col, self.rows, self.row)

    def joins(self) -> bool:
        """Whether the transposes of a batch, one below the other, are one matrix."""
        return self.batch[0] == 1 or self.cols == 1 or self.strides[0] == self.cols * self.col

    def flattened(self) -> _Stack:
        """The batch joined to the rows."""
        rows, row = self.rows, self.row
        for size, stride in zip(reversed(self.batch), reversed(self.strides)):
            if size == 1:
                continue
            if rows != 1 and stride != rows * row:
                raise _Refusal("leading dimensions do not join")
            rows, row = rows * size, stride if rows == 1 else row
        return _Stack((), (), rows, row, self.cols, self.col)

    def matrix(self, batch: tuple[int, ...]) -> Matrix:
        """As an operand of a product over `batch` (at most two dimensions), to which this broadcasts."""
        missing = len(batch) - len(self.batch)
        sizes, strides = (1,) * missing + self.batch, (0,) * missing + self.strides
        steps = [0 if have == 1 else stride for have, stride in zip(sizes, strides)]
        outer, inner, *_ = (*steps, 0, 0)
        return Matrix(self.row, self.col, outer, inner)


def _stack(argument: Argument) -> _Stack:
    spec = _tensor(argument)
    if len(spec.shape) < 2:
        raise _Refusal("a vector operand")
    shape, stride = _integers(spec.shape), _integers(spec.stride)
    stride = tuple(1 if size == 1 else step for size, step in zip(shape, stride))
    return _Stack(shape[:-2], stride[:-2], shape[-2], stride[-2], shape[-1], stride[-1])


def _integers(sizes: Sequence[Size]) -> tuple[int, ...]:
    if not all(isinstance(s, int) for s in sizes):
        raise _Refusal("a dynamic size")
    return tuple(sizes)  # type: ignore[arg-type]


def _images(spec: TensorSpec) -> _Stack:
    """[N, C, H, W] as N matrices [C, H * W]."""
    (n, channels, height, width), (sn, sc, sh, sw) = _integers(spec.shape), _integers(spec.stride)
    if height != 1 and width != 1 and sh != width * sw:
        raise _Refusal("rows of pixels do not join")
    pixel = sw if width != 1 else sh
    flat = replace(spec, shape=(n, channels, height * width), stride=(sn, sc, pixel))
    return _stack(flat)


def _places(c: _Stack) -> list[Size]:
    """What indexes each dimension of `c`."""
    inner = c.batch[1] if len(c.batch) > 1 else 1
    return [*(BATCH // inner, BATCH % inner)[: len(c.batch)], ROW, COL]


def with_bias(epilogue: Epilogue, argument: Argument, places: list[Size], dtype: torch.dtype) -> Epilogue:
    """`epilogue` of (product + bias); the bias is input 0, its dimensions are the last ones of `places` or of size 1."""
    spec = _tensor(argument)
    if spec.dtype != dtype:
        raise _Refusal(f"a bias of {spec.dtype}")
    shape, stride = _integers(spec.shape), _integers(spec.stride)
    index: Size = 0
    for size, step, place in zip(shape, stride, places[len(places) - len(shape) :]):
        if size != 1:
            index = index + place * step
    bias = Value("load", (0, index, None), spec.dtype)
    total = Value("add", (product_value(dtype), bias), dtype)
    inputs = (Buffer("bias", spec.dtype, "in"), *epilogue.inputs)
    later = rewrite(epilogue.value, lambda b, e: (b + 1, e), total) if epilogue.value else total
    return Epilogue(inputs, later)


def _moved(epilogue: Epilogue, places: dict[Sym, Size]) -> Epilogue:
    """The epilogue where BATCH, ROW and COL stand for other places."""
    if epilogue.value is None:
        return epilogue
    value = rewrite(epilogue.value, lambda b, e: (b, subs(e, places)), None)
    return Epilogue(epilogue.inputs, value)
