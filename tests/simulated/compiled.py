"""smelt on the simulated device: its kernels for a GPU are compiled for the CPU, and launched by the simulated driver.

Everything but Triton's code is what runs on a GPU: capture, guards, traces, fusion with a GPU's costs, plans, the native
launcher, autograd. Triton's code is printed, but not compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest

from smelt import _native, targets
from smelt.codegen import gpu
from smelt.codegen.llvm import compile_kernels as compile_for_cpu
from smelt.codegen.llvm.flat import ANY, of_any_size
from smelt.codegen.llvm.link import address_of
from smelt.codegen.triton.compile import Made, Request
from smelt.codegen.triton.source import table_of
from smelt.config import Config
from smelt.graph.sizes import static
from smelt.plan.code import Block, CompiledKernel, Function, Library, Processor
from smelt.runtime.kept import Store
from tests.simulated import cuda


@functools.cache
def activate() -> None:
    """From now on `smelt.compile` compiles for the simulated device, which is activated."""
    cuda.activate()
    _native.use_driver(str(cuda.driver()))
    changed = pytest.MonkeyPatch()
    changed.setattr(gpu, "compile_kernels", compile_kernels)
    changed.setattr(targets.cuda, "unusable", lambda device: None)  # Triton is not needed


def compile_kernels(
    requests: Sequence[Request], arch: int, threads: int, store: Store | None, made: Made
) -> list[CompiledKernel]:
    """Kernels of one program, which does everything. They are printed for a GPU as well: what cannot be raises."""
    for request in dict.fromkeys(requests):
        request.printed()
    kernels = [of_any_size(r.kernel, ANY) if r.joined else r.kernel for r in requests]
    code = compile_for_cpu(kernels, Config())
    found = [_simulated(request, compiled) for request, compiled in zip(requests, code, strict=True)]
    for kernel in found:
        made(kernel.function)
    return found


def _simulated(request: Request, compiled: CompiledKernel) -> CompiledKernel:
    extent = static(request.kernel.outer[0].size) if request.joined else compiled.extent
    parts = table_of(request.kernel).parts if request.joined else 0
    passed = [k for k, b in enumerate(request.kernel.buffers) if b.role != "local"]
    letters = "".join("v" if k in request.by_value else "p" for k in passed)
    function = _function(compiled.function, letters, parts)
    return CompiledKernel(compiled.name, function, extent, max(extent, 1))


@functools.cache
def _function(code: Function, letters: str, parts: int) -> Function:
    """The same one for equal code, whatever its kernels are called. The cache keeps the code, which images name by its
    address."""
    image = cuda.image(address_of(code), letters, parts)
    library = Library(Processor("simulated", "simulated", ""), (image,), (code.name,))
    return Function(library, code.name, Block(threads=32, shared=0, parts=parts))
