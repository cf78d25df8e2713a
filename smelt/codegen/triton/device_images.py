"""What a driver loads, from a source: PTX as text for NVIDIA's, a code object for AMD's, an ELF image.

For AMD Triton brings the assembler, the linker and the mathematical functions (`ocml`). It compiles without such a GPU;
nothing of what comes out has been run on one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from smelt.codegen.triton import triton_passes
from smelt.codegen.triton.gpu_architectures import Arch, lanes
from smelt.codegen.triton.kernel_source import Source
from smelt.codegen.triton.ptx import to_ptx

SHARED = 64 << 10  # bytes that a program may have of what AMD calls LDS, on the processor that has least
_NAME = re.compile(r"(define amdgpu_kernel void @)kernel\b")


@dataclass(frozen=True)
class Image:
    """One kernel, called `name`, of `threads` threads a program and `shared` bytes of shared memory. Behind the arguments of
    the source it takes two more pointers, which are not used."""

    code: bytes
    name: str
    threads: int
    shared: int


def to_image(source: Source, arch: Arch, name: str = "kernel") -> Image:
    """The code of `source`, printed in the dialect of `arch` (`gpu_architectures.py`). Thread-safe; needs triton, but
    no other program. Raises NotImplementedError where a kernel needs memory that no launch gives."""
    if isinstance(arch, str):
        return _code_object(source, arch, name)
    ptx = to_ptx(source, arch, name)
    return Image(ptx.text.encode(), ptx.name, ptx.threads, ptx.shared)


def _code_object(source: Source, arch: str, name: str) -> Image:
    if source.table is not None:
        raise NotImplementedError("a table as a parameter: AMD's kernels would read it from memory")
    named: dict[str, triton_passes.Change] = {"llir": lambda text: _NAME.sub(rf"\g<1>{name}", text)}
    code, found = triton_passes.run(source, arch, "hsaco", named)
    if found["shared"] > SHARED:
        raise NotImplementedError(f"a kernel that needs {found['shared']} bytes of shared memory")
    if found.get("global_scratch_size") or found.get("profile_scratch_size"):
        raise NotImplementedError("a kernel that needs global memory")
    return Image(code, found["name"], lanes(arch) * found["num_warps"], found["shared"])
