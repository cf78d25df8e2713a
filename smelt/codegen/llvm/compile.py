"""Kernels to machine code: equal kernels share code, new ones are compiled together."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

from smelt.codegen.llvm.builder import Module
from smelt.codegen.llvm.emit import Function, emit_kernel
from smelt.codegen.llvm.flat import is_flat, of_any_size
from smelt.codegen.llvm.module import Code, assemble_functions
from smelt.codegen.llvm.target import Target, host
from smelt.codegen.llvm.vectorize import count_lanes
from smelt.config import Config
from smelt.loops.ir import Kernel, fixed
from smelt.runtime.forks import KERNELS, hold_at_fork


@dataclass(frozen=True)
class CompiledKernel:
    """`address` is of a `void (void **buffers, int64_t begin, int64_t end)`; buffers are the kernel's that are not local,
    in order. Items [0, extent) may run in any split and order; fewer than `grain` do not pay a thread."""

    name: str
    address: int
    extent: int
    grain: int


class Owner:
    """Keeps machine code alive: hold it as long as any of the addresses."""

    def __init__(self, parts: Sequence[_Entry]) -> None:
        self.parts = tuple(parts)


class _Entry:
    """The code of one kernel."""

    __slots__ = ("__weakref__", "address", "code", "function")

    def __init__(self, function: Function, code: Code, symbol: str) -> None:
        self.function, self.code, self.address = function, code, code.address(symbol)


_CACHE: WeakValueDictionary[tuple[Kernel, Target], _Entry] = WeakValueDictionary()
_LOCK = hold_at_fork(threading.RLock(), KERNELS)


def compile_kernels(
    kernels: Sequence[Kernel], config: Config, target: Target | None = None
) -> tuple[list[CompiledKernel], Owner]:
    """Machine code for `kernels`, in order, and its owner. Thread-safe."""
    target = target or host()
    with _LOCK:
        entries = _entries([_sizeless(k, target) for k in kernels], config, target)
    return [_compiled(k, e) for k, e in zip(kernels, entries, strict=True)], Owner(entries)


def _sizeless(kernel: Kernel, target: Target) -> Kernel:
    """The kernel whose code `kernel` uses."""
    return of_any_size(kernel, count_lanes(kernel, target.lanes)) if is_flat(kernel) else kernel


def _compiled(kernel: Kernel, entry: _Entry) -> CompiledKernel:
    f = entry.function
    extent = fixed(kernel.outer[0].size) // f.points if f.points else f.extent
    return CompiledKernel(kernel.name, entry.address, extent, f.grain)


def _entries(kernels: Sequence[Kernel], config: Config, target: Target) -> list[_Entry]:
    found: dict[Kernel, _Entry] = {}
    missing: dict[Kernel, str] = {}
    for kernel in kernels:
        if kernel in found or kernel in missing:
            continue
        entry = _CACHE.get((kernel, target))
        if entry is None:
            missing[kernel] = f"k{len(missing)}_{_identifier(kernel.name)}"
        else:
            found[kernel] = entry
    if missing:
        for kernel, entry in _compile(missing, config, target).items():
            found[kernel] = _CACHE[kernel, target] = entry
    return [found[k] for k in kernels]


def _compile(kernels: Mapping[Kernel, str], config: Config, target: Target) -> dict[Kernel, _Entry]:
    """Entries for kernels that have none; the values are the names of their functions."""
    functions: dict[str, Function] = {}

    def write(module: Module, kernel: Kernel, symbol: str) -> str:
        functions[symbol] = emit_kernel(kernel, symbol, module)
        return functions[symbol].text

    writers = {symbol: partial(write, kernel=kernel, symbol=symbol) for kernel, symbol in kernels.items()}
    code = assemble_functions(writers, target, config.verify)
    return {kernel: _Entry(functions[symbol], code, symbol) for kernel, symbol in kernels.items()}


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)[:60]
