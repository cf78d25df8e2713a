"""Products with symbolic sizes: their code serves all sizes and takes numbers as arguments.

An epilogue is compiled once for all that differ in numbers only; an entry point once for each choice of epilogues,
packers and micro-kernels. The entry point receives, after its buffers, the descriptor with zeros for addresses, then
the numbers of the epilogues.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from smelt.codegen.llvm.gemm.compile_gemm import (
    DIRECT_TILES,
    address,
    can_read_b_directly,
    descriptor,
    epilogue_variants,
    library_functions,
    with_code,
)
from smelt.codegen.llvm.gemm.epilogue_codegen import Slots, write_epilogue
from smelt.codegen.llvm.gemm.gemm_driver import WORDS
from smelt.codegen.llvm.gemm.gemm_library import provide
from smelt.codegen.llvm.gemm.gemm_spec import Lengths, Product
from smelt.codegen.llvm.gemm.gemm_tiling import GRAIN_FLOPS, Tile, cut, tile_for
from smelt.codegen.llvm.host_cpu import host
from smelt.codegen.llvm.ir_builder import Module
from smelt.codegen.llvm.object_files import assemble
from smelt.plan.machine_code import CompiledKernel, Function, Library
from smelt.plan.size_decisions import Decisions
from smelt.shapes.expr import Size, ceil_div, static

ANY = "epilogue"  # the function name in texts that serve as keys


@dataclass(frozen=True)
class _Finished:
    """The texts of a product's epilogues by descriptor word, and the numbers they read."""

    texts: tuple[tuple[str, str], ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class _Entry:
    """The key of an entry point. `words`: symbols whose addresses the descriptor holds; `slot`: its first slot."""

    tile: Tile
    words: tuple[tuple[str, str], ...]
    slot: int


class SizedProducts:
    """Compiles products, and retains all code for products of other sizes."""

    def __init__(self) -> None:
        self._epilogues: dict[
            str, tuple[str, Library]
        ] = {}  # text -> its symbol, and the library that defines it
        self._entries: dict[_Entry, Function] = {}
        self._finished: dict[tuple[Product, tuple[str, ...]], _Finished] = {}

    def compile(self, products: Sequence[Product]) -> list[CompiledKernel]:
        """Machine code for products with non-empty results."""
        module = Module(host())
        finished = [self._finish(module, p) for p in products]
        self._compile_epilogues(module, [text for f in finished for _, text in f.texts])
        entries = [self._entry(p, f) for p, f in zip(products, finished)]
        self._compile_entries(dict.fromkeys(e for e in entries if e not in self._entries))
        return [
            with_code(p, self._entries[entry], _words(p, p.lengths) + f.numbers)
            for p, entry, f in zip(products, entries, finished)
        ]

    def _finish(self, module: Module, p: Product) -> _Finished:
        tile = tile_for(p.dtype)
        words = epilogue_variants(p, tile)
        # All that epilogues depend on: neither the number of rows nor the depth of a product.
        key = replace(p, name="", batch=(1, p.batch[1]), m=1, n=1, k=1, a=p.c, b=p.c), tuple(words)
        if key not in self._finished:
            slots = Slots(_slot(p) + len(WORDS))
            texts = [
                (w, write_epilogue(module, ANY, p, tile, full=full, slots=slots)) for w, full in words.items()
            ]
            self._finished[key] = _Finished(tuple(texts), tuple(slots.slot_of))
        return self._finished[key]

    def _compile_epilogues(self, module: Module, texts: Iterable[str]) -> None:
        missing = {text: "" for text in texts if text not in self._epilogues}
        if not missing:
            return
        names = {text: f"{ANY}{len(self._epilogues) + n}" for n, text in enumerate(missing)}
        functions = [text.replace(f"@{ANY}(", f"@{name}(", 1) for text, name in names.items()]
        library = assemble(module.text(functions), list(names.values()), host())
        self._epilogues.update((text, (name, library)) for text, name in names.items())

    def _entry(self, p: Product, finished: _Finished) -> _Entry:
        tile = tile_for(p.dtype)
        rows = static(cut(p.m, p.n, p.k, tile).rows)  # of a low tile; other sizes may have tall ones too
        names = library_functions(p, tile, min(rows + 1, tile.rows))
        words = [(word, tile.function(name)) for word, name in names.items()]
        words += [(word, self._epilogues[text][0]) for word, text in finished.texts]
        return _Entry(tile, tuple(words), _slot(p))

    def _compile_entries(self, entries: Iterable[_Entry]) -> None:
        epilogues = dict(self._epilogues.values())
        imports: dict[str, Library] = {}
        names = {entry: f"product{len(self._entries) + n}" for n, entry in enumerate(entries)}
        for entry in names:
            prefix = entry.tile.function("")
            of_library = [s.removeprefix(prefix) for _, s in entry.words if s not in epilogues]
            imports |= provide(entry.tile, of_library)
            imports |= {s: epilogues[s] for _, s in entry.words if s in epilogues}
        if names:
            text = [_entry_text(name, entry) for entry, name in names.items()]
            text += (f"declare void @{symbol}()\n" for symbol in imports)
            library = assemble("".join(text), list(names.values()), host(), imports=imports)
            self._entries.update((entry, Function(library, name)) for entry, name in names.items())


def _slot(p: Product) -> int:
    """The first slot after the buffers: A, B, the epilogue's inputs, C."""
    return 3 + len(p.epilogue.inputs)


def _words(p: Product, of: Lengths) -> tuple[Size, ...]:
    words = descriptor(p, tile_for(p.dtype), of)
    return tuple(words.get(word, 0) for word in WORDS)


def work(p: Product, of: Lengths) -> tuple[Size, Size]:
    """For these lengths: the number of work items, and how many justify a thread."""
    tiling = cut(of.m, p.n, of.k, tile_for(p.dtype))
    return tiling.row_blocks * (p.batch[0] * p.batch[1] * tiling.panels), _flops(p, of) // GRAIN_FLOPS


def _flops(p: Product, of: Lengths) -> Size:
    return of.m * (1 if of.k == 0 else of.k) * (2 * p.batch[0] * p.batch[1] * p.n)


def of_lengths(code: CompiledKernel, p: Product, of: Lengths, decisions: Decisions) -> CompiledKernel:
    """`code`, that of `p`, for the lengths `of`, which are p's at the sizes of `decisions`. Records in `decisions` the
    conditions that select the code."""
    tile = tile_for(p.dtype)
    tiling = cut(of.m, p.n, of.k, tile)
    decisions.equal(tiling.rows, cut(p.m, p.n, p.k, tile).rows)
    if can_read_b_directly(p, tile):
        decisions.at_least(DIRECT_TILES, tiling.tiles)
    count, _ = work(p, of)
    grain = ceil_div(count * GRAIN_FLOPS, _flops(p, of))
    return replace(code, extent=count, grain=grain, sizes=(*_words(p, of), *code.sizes[len(WORDS) :]))


def _entry_text(name: str, entry: _Entry) -> str:
    """The entry point's text. It copies the descriptor, since threads share the slots, and fills in the addresses."""
    size = 8 * len(WORDS)
    stores = "".join(
        f"  %{word} = getelementptr i8, ptr %descriptor, i64 {8 * WORDS.index(word)}\n"
        f"  store i64 {address(symbol)}, ptr %{word}, align 8\n"
        for word, symbol in entry.words
    )
    return (
        f"define void @{name}(ptr %buffers, i64 %begin, i64 %end) nounwind {{\n"
        f"  %descriptor = alloca [{size} x i8], align 64\n"
        f"  %template = getelementptr i8, ptr %buffers, i64 {8 * entry.slot}\n"
        f"  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %descriptor, ptr align 8 %template, i64 {size}, i1 false)\n"
        f"{stores}"
        f"  call void @{entry.tile.function('driver')}(ptr %buffers, i64 %begin, i64 %end, ptr %descriptor)\n"
        "  ret void\n}\n"
    )
