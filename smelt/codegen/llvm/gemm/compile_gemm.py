"""Products to machine code: for each a descriptor (parameters of the shared driver), its epilogue, a short entry point."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.llvm.gemm.epilogue import NO_EPILOGUE
from smelt.codegen.llvm.gemm.epilogue_codegen import write_epilogue
from smelt.codegen.llvm.gemm.gemm_driver import WORDS
from smelt.codegen.llvm.gemm.gemm_library import provide
from smelt.codegen.llvm.gemm.gemm_spec import Lengths, Matrix, Product
from smelt.codegen.llvm.gemm.gemm_tiling import GRAIN_FLOPS, Tile, cut, extent, tile_for
from smelt.codegen.llvm.host_cpu import host
from smelt.codegen.llvm.ir_builder import Module
from smelt.codegen.llvm.object_files import assemble
from smelt.plan.machine_code import CompiledKernel, Function, Library
from smelt.shapes.expr import Size, static

# Up to this many tiles, aligned rows of B are read without packing, which would not pay. Unaligned rows would
# touch one more cache line each.
DIRECT_TILES = 2


def compile_products(products: Sequence[Product]) -> list[CompiledKernel]:
    """Machine code for products with non-empty results and distinct names."""
    module = Module(host())
    imports: dict[str, Library] = {}
    text: list[str] = []
    for p in products:
        tile = tile_for(p.dtype)
        names, body = _write(module, p, tile)
        imports |= provide(tile, names)
        text.append(body)
    text += (f"declare void @{symbol}()" for symbol in imports)
    library = assemble(module.text(text), [p.name for p in products], host(), imports=imports)
    return [with_code(p, Function(library, p.name)) for p in products]


def with_code(p: Product, function: Function, sizes: tuple[Size, ...] = ()) -> CompiledKernel:
    """`function` as the code of `p`. `sizes`: the numbers it takes as arguments."""
    batch = p.batch[0] * p.batch[1]
    count = extent(p.m, p.n, p.k, batch, p.dtype)
    flops = 2 * batch * p.m * p.n * max(p.k, 1)
    return CompiledKernel(p.name, function, count, -(-GRAIN_FLOPS * count // flops), sizes)


def _write(module: Module, p: Product, tile: Tile) -> tuple[list[str], str]:
    """The library functions that `p` calls, and the text of its entry point, descriptor and epilogue."""
    calls = library_functions(p, tile)
    words: dict[str, Size | str] = {**descriptor(p, tile, p.lengths)}
    words |= {word: address(tile.function(name)) for word, name in calls.items()}
    text = []
    for word, full in epilogue_variants(p, tile).items():
        text.append(write_epilogue(module, f"{p.name}.{word}", p, tile, full=full))
        words[word] = address(f"{p.name}.{word}")
    table = ", ".join(f"i64 {words[name]}" for name in WORDS)
    text.append(
        f"@{p.name}.descriptor = internal constant [{len(WORDS)} x i64] [{table}]\n"
        f"define void @{p.name}(ptr %buffers, i64 %begin, i64 %end) nounwind {{\n"
        f"  tail call void @{tile.function('driver')}(ptr %buffers, i64 %begin, i64 %end, ptr @{p.name}.descriptor)\n"
        "  ret void\n}\n"
    )
    return sorted(set(calls.values())), "".join(text)


def library_functions(p: Product, tile: Tile, tall: int = 0) -> dict[str, str]:
    """Descriptor word -> the library function whose address it holds. `tall`: rows of a tall tile, if `p` represents
    products of which some have tall tiles."""
    high, low = cut(p.m, p.n, p.k, tile).heights
    narrow = 1 if 0 < p.n % tile.columns <= tile.lanes else tile.vectors
    return {
        "pack_a": _packer("rows", p.a),
        "pack_b": _packer("panel", p.b),
        "micro_tall": f"micro{tall or high}x{tile.vectors}",
        "micro": f"micro{low}x{tile.vectors}",
        "narrow_tall": f"micro{tall or high}x{narrow}",
        "narrow": f"micro{low}x{narrow}",
    }


def epilogue_variants(p: Product, tile: Tile) -> dict[str, bool]:
    """Descriptor word -> whether the epilogue whose address it holds is for full panels; only those that `p` needs."""
    found = {}
    if p.epilogue != NO_EPILOGUE and p.n >= tile.columns:
        found["epilogue_full"] = True
    if p.n % tile.columns:
        found["epilogue_partial"] = False
    return found


def address(symbol: str) -> str:
    """A function's address, as a word of a descriptor."""
    return f"ptrtoint (ptr @{symbol} to i64)"


def _packer(unit: str, x: Matrix) -> str:
    if x.col == 1:
        return f"pack_{unit}"
    return f"pack_{unit}_transposed" if x.row == 1 else f"pack_{unit}_any"


def can_read_b_directly(p: Product, tile: Tile) -> bool:
    """Whether rows of B are aligned, so that panels need no packing."""
    return p.b.col == 1 and p.b.row * tile.size % tile.line == 0


def is_direct(p: Product, tile: Tile) -> bool:
    """Whether the product reads B without packing it."""
    few = static(cut(p.m, p.n, p.k, tile).tiles) <= DIRECT_TILES
    return few and can_read_b_directly(p, tile)


def descriptor(p: Product, tile: Tile, of: Lengths) -> dict[str, Size]:
    """The descriptor words of `p` for these lengths that are not addresses; epilogue addresses are 0."""
    tiling = cut(of.m, p.n, of.k, tile)
    strides: dict[str, Size] = {
        f"{name}_{word}": stride * tile.size
        for name, x in (("a", p.a), ("b", p.b), ("c", p.c))
        for word, stride in (("outer", x.outer), ("inner", x.inner))
    }
    return strides | {
        "n": p.n,
        "k": of.k,
        "kc": tiling.kc,
        "k_blocks": tiling.k_blocks,
        "panels": tiling.panels,
        "row_blocks": tiling.row_blocks,
        "block_tiles": tiling.block_tiles,
        "tiles": tiling.tiles,
        "rows": tiling.rows,
        "tall": tiling.tall,
        "a_row": of.row * tile.size,
        "a_k": of.col * tile.size,
        "b_k": p.b.row * tile.size,
        "b_n": p.b.col * tile.size,
        "c_row": p.c.row * tile.size,
        "inner_batch": p.batch[1],
        "c_buffer": 2 + len(p.epilogue.inputs),
        "direct_b": int(is_direct(p, tile)),
        "epilogue_full": 0,
        "epilogue_partial": 0,
    }
