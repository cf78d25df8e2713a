"""Kernels to machine code: equal kernels share code; new ones are compiled in one batch."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakValueDictionary

from smelt.codegen.llvm.flat_elementwise import is_flat, of_any_size
from smelt.codegen.llvm.host_cpu import Host, host
from smelt.codegen.llvm.ir_builder import Module
from smelt.codegen.llvm.kernel_function import KernelText, emit_kernel
from smelt.codegen.llvm.object_files import assemble_functions
from smelt.codegen.llvm.vectorization import count_lanes
from smelt.config import Config
from smelt.errors import NeedsFixedSize
from smelt.loops.kernel_ir import Kernel, stage_loops
from smelt.loops.kernel_sizes import at_sizes
from smelt.plan.machine_code import CompiledKernel, Function
from smelt.runtime.fork_locks import KERNELS, hold_at_fork
from smelt.shapes.expr import Sym, free_syms, proves_le, subs


@dataclass(frozen=True, eq=False)
class _KernelCode(Function):
    """The code of one kernel, whose LLVM text is `text`."""

    text: KernelText = field(kw_only=True)

    @property
    def source(self) -> str:
        """The function's LLVM IR."""
        return self.text.text


_CACHE: WeakValueDictionary[tuple[Kernel, Host], _KernelCode] = WeakValueDictionary()
_LOCK = hold_at_fork(threading.RLock(), KERNELS)


def compile_kernels(
    kernels: Sequence[Kernel], config: Config, target: Host | None = None
) -> list[CompiledKernel]:
    """Machine code for `kernels`, in order. Equal kernels share code as long as a reference to it is alive.
    Thread-safe. Raises NeedsFixedSize for a stage whose loops may be empty."""
    target = target or host()
    refuse_unknown(kernels)
    assert all(k.sums is None for k in kernels), "sums beside rows are kernels of their own on a CPU"
    with _LOCK:
        codes = _codes([_sizeless(k, target) for k in kernels], config, target)
    return [_compiled(k, c) for k, c in zip(kernels, codes, strict=True)]


def refuse_unknown(kernels: Iterable[Kernel]) -> None:
    """Raise NeedsFixedSize for a stage whose loops may be empty."""
    for size in (loop.size for k in kernels for stage in k.stages for loop in stage_loops(stage)):
        if not isinstance(size, int) and not proves_le(1, size):
            raise NeedsFixedSize(f"a loop over {size} elements, which may be none", free_syms(size))


def _sizeless(kernel: Kernel, target: Host) -> Kernel:
    """The kernel whose code `kernel` uses. Size symbols are numbered, so that layers of a model share code."""
    if is_flat(kernel):
        return of_any_size(kernel, count_lanes(kernel, target.lanes))
    return at_sizes(kernel, dict(zip(kernel.sizes, _numbered(kernel))))


def _numbered(kernel: Kernel) -> tuple[Sym, ...]:
    return tuple(Sym(f"n{k}", s.lo, s.hi, likely=s.likely) for k, s in enumerate(kernel.sizes))


def _compiled(kernel: Kernel, code: _KernelCode) -> CompiledKernel:
    text = code.text
    if text.points:
        return CompiledKernel(kernel.name, code, kernel.outer[0].size // text.points, text.grain)
    extent = subs(text.extent, dict(zip(_numbered(kernel), kernel.sizes)))
    return CompiledKernel(kernel.name, code, extent, text.grain, kernel.sizes)


def _codes(kernels: Sequence[Kernel], config: Config, target: Host) -> list[_KernelCode]:
    found: dict[Kernel, _KernelCode] = {}
    missing: dict[Kernel, str] = {}
    for kernel in kernels:
        if kernel in found or kernel in missing:
            continue
        code = _CACHE.get((kernel, target))
        if code is None:
            missing[kernel] = f"k{len(missing)}_{_identifier(kernel.name)}"
        else:
            found[kernel] = code
    if missing:
        for kernel, code in _compile(missing, config, target).items():
            found[kernel] = _CACHE[kernel, target] = code
    return [found[k] for k in kernels]


def _compile(kernels: Mapping[Kernel, str], config: Config, target: Host) -> dict[Kernel, _KernelCode]:
    """Compile kernels that have no code yet; the values are their function names."""
    texts: dict[str, KernelText] = {}

    def write(module: Module, kernel: Kernel, symbol: str) -> str:
        texts[symbol] = emit_kernel(kernel, symbol, module)
        return texts[symbol].text

    writers = {symbol: partial(write, kernel=kernel, symbol=symbol) for kernel, symbol in kernels.items()}
    library = assemble_functions(writers, target, config.verify_stages)
    return {kernel: _KernelCode(library, symbol, text=texts[symbol]) for kernel, symbol in kernels.items()}


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)[:60]
