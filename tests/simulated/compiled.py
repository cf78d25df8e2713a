"""smelt on the simulated device: its kernels for a GPU are compiled for the CPU, and launched by the simulated driver.

Everything but Triton's code is what runs on a GPU: capture, guards, traces, fusion with a GPU's costs, plans, the native
launcher, autograd. Triton's code is printed, but not compiled.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from smelt import _native, targets
from smelt.codegen import gpu_launches
from smelt.codegen.llvm import compile_kernels as compile_for_cpu
from smelt.codegen.llvm.flat_elementwise import ANY, of_any_size
from smelt.codegen.llvm.link import address_of
from smelt.codegen.triton.compile import OnCompiled, Request
from smelt.codegen.triton.gpu_architectures import Arch, dialect
from smelt.codegen.triton.kernel_source import table_of
from smelt.config import Config
from smelt.loops.kernel_ir import Kernel
from smelt.loops.row_sums import separate
from smelt.plan.machine_code import Block, CompiledKernel, Function, Library, Processor
from smelt.plan.serialization import in_order
from smelt.runtime.disk_cache import Store
from smelt.shapes.expr import evaluate, static
from tests.simulated import cuda

# A folder: kernels become shared libraries there, which other processes can load.
SHARED_CODE = "SIMULATED_SHARED_CODE"


@functools.cache
def activate() -> None:
    """From now on `smelt.compile` compiles for the simulated device, which is activated."""
    cuda.activate()
    _native.use_driver(str(cuda.driver()))
    changed = pytest.MonkeyPatch()
    changed.setattr(gpu_launches, "compile_kernels", compile_kernels)
    changed.setattr(targets.cuda, "unusable", lambda device: None)  # Triton is not needed


def compile_kernels(
    requests: Sequence[Request], arch: Arch, threads: int, store: Store | None, made: OnCompiled
) -> list[CompiledKernel]:
    """Kernels of one program, which does everything. They are printed for a GPU as well: what cannot be raises."""
    for request in dict.fromkeys(requests):
        request.printed(dialect(arch))
    apart = [separate(_computed(r)) for r in requests]
    code = iter(compile_for_cpu([kernel for parts in apart for kernel, _ in parts], Config()))
    found = [
        _simulated(request, [(next(code), used) for _, used in parts])
        for request, parts in zip(requests, apart, strict=True)
    ]
    for kernel in found:
        made(kernel.function)
    return found


def _computed(request: Request) -> Kernel:
    """The kernel whose code for the CPU does what is asked for."""
    if request.batched:
        return of_any_size(request.kernel, ANY)
    if request.general is not None and not request.printed().sizes:
        return request.general.specialized
    return request.kernel


def _simulated(request: Request, made: list[tuple[CompiledKernel, tuple[int, ...]]]) -> CompiledKernel:
    compiled, _ = made[0]
    if len(made) > 1:  # rows, and the sums beside them: one behind the other
        address = _one_by_one(tuple((part.function, part.extent, used) for part, used in made))
        letters = "".join("v" if k in request.by_value else "p" for k in range(len(request.kernel.buffers)))
        return CompiledKernel(compiled.name, _function(compiled.function, letters, 0, address), 1, 1)
    values = request.general.sizes if compiled.sizes and request.general is not None else ()
    extent = request.kernel.outer[0].size if request.batched else compiled.extent
    extent = static(evaluate(extent, dict(zip(compiled.sizes, values))) if values else extent)
    parts = table_of(request.kernel).parts if request.batched else 0
    passed = [k for k, b in enumerate(request.kernel.buffers) if b.role != "local"]
    letters = "".join("v" if k in request.by_value else "p" for k in passed) + "p" * len(values)
    function = _function(compiled.function, letters, parts)
    return CompiledKernel(request.kernel.name, function, extent, max(extent, 1), values)


@functools.cache
def _one_by_one(parts: tuple[tuple[Function, int, tuple[int, ...]], ...]) -> int:
    """The address of a function that calls others, each over its whole extent on some of the buffers."""
    kind = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64, ctypes.c_int64)

    @kind
    def run(buffers: Sequence[int], begin: int, end: int) -> None:
        for function, extent, used in parts:
            kind(address_of(function))((ctypes.c_void_p * len(used))(*(buffers[i] for i in used)), 0, extent)

    _CALLED.append(run)
    address = ctypes.cast(run, ctypes.c_void_p).value
    assert address is not None
    return address


_CALLED: list[object] = []  # what images name by its address


def _shared(code: Function, folder: Path) -> str:
    """A function of a shared library in `folder`, as images name it."""
    objects = [part for library in in_order([code.library]) for part in library.objects]
    stem = folder / hashlib.sha256(b"".join(objects)).hexdigest()[:16]
    library = stem.with_suffix(".so")
    if not library.exists():
        files = [Path(f"{stem}.{i}.o") for i in range(len(objects))]
        for file, content in zip(files, objects):
            file.write_bytes(content)
        command = [os.environ.get("CXX", "g++"), "-shared", "-Wl,-z,notext", *map(str, files), "-lm"]
        subprocess.run([*command, "-o", str(library)], check=True, capture_output=True)
    return f"{library}:{code.name}"


@functools.cache
def _function(code: Function, letters: str, parts: int, address: int | None = None) -> Function:
    """The same one for equal code, whatever its kernels are called. The cache keeps the code, which images name by its
    address. `address`: of what runs instead."""
    if SHARED_CODE in os.environ and address is None:
        image = cuda.image(_shared(code, Path(os.environ[SHARED_CODE])), letters, parts)
    else:
        image = cuda.image(address or address_of(code), letters, parts)
    library = Library(Processor("simulated", "simulated", ""), (image,), (code.name,))
    return Function(library, code.name, Block(threads=32, shared=0, parts=parts))
