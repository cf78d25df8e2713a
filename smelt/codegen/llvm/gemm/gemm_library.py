"""The shared functions of generated matrix products: micro-kernels, packers and the driver, compiled once per process.

All functions are parametrized at run time. `gemm_tiling.py` describes the tiling.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from smelt.codegen.llvm.gemm.function_builder import declarations
from smelt.codegen.llvm.gemm.gemm_driver import block, driver
from smelt.codegen.llvm.gemm.gemm_tiling import Tile
from smelt.codegen.llvm.gemm.micro_kernel import micro
from smelt.codegen.llvm.gemm.operand_packing import (
    pack_panel,
    pack_panel_any,
    pack_panel_transposed,
    pack_rows,
    pack_rows_any,
    pack_rows_transposed,
)
from smelt.codegen.llvm.host_cpu import host
from smelt.codegen.llvm.object_files import assemble
from smelt.plan.machine_code import Library
from smelt.runtime.fork_locks import LIBRARY, hold_at_fork

_FUNCTIONS: dict[str, Callable[[Tile], str]] = {
    "pack_rows": pack_rows, "pack_rows_any": pack_rows_any, "pack_rows_transposed": pack_rows_transposed,
    "pack_panel": pack_panel, "pack_panel_any": pack_panel_any, "pack_panel_transposed": pack_panel_transposed,
    "block": block, "driver": driver,
}  # fmt: skip
_ALWAYS = ("block", "driver", "pack_panel_any", "pack_rows_any")  # called by other functions, or tiny
_LIBRARIES: dict[str, Library] = {}  # by symbol; grows only, lives as long as the process
_LOCK = hold_at_fork(threading.RLock(), LIBRARY)


def provide(tile: Tile, names: Iterable[str]) -> dict[str, Library]:
    """Symbol (`tile.function(name)`) -> library that defines it, for the functions `names`: keys of `_FUNCTIONS`, or
    `micro<rows>x<vectors>`. Functions that no product has requested yet are compiled."""
    with _LOCK:
        required = sorted({*names, *_ALWAYS})
        missing = [n for n in required if tile.function(n) not in _LIBRARIES]
        if missing:
            _compile(tile, missing)
        return {s: _LIBRARIES[s] for s in map(tile.function, required)}


def _compile(tile: Tile, names: Sequence[str]) -> None:
    """Compile functions without optimizer passes: the text is written as it should run."""
    symbols = [tile.function(n) for n in names]
    shared = [s for s in map(tile.function, _ALWAYS) if s in _LIBRARIES]
    text = [
        declarations(tile),
        *(f"declare void @{s}()\n" for s in shared),
        *(_write(tile, n) for n in names),
    ]
    library = assemble("".join(text), symbols, host(), imports={s: _LIBRARIES[s] for s in shared})
    _LIBRARIES.update((s, library) for s in symbols)


def _write(tile: Tile, name: str) -> str:
    if name.startswith("micro"):
        rows, vectors = map(int, name.removeprefix("micro").split("x"))
        return micro(tile, rows, vectors)
    return _FUNCTIONS[name](tile)
