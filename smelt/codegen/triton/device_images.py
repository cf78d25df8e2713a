"""Device images from sources: PTX text for NVIDIA's driver, an ELF code object for AMD's.

For AMD, Triton provides the assembler, the linker and the mathematical functions (`ocml`). It compiles without such a
GPU; no result has been run on one.
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
    """One kernel, called `name`, of `threads` threads a program and `shared` bytes of shared memory. After the
    source's arguments it takes two unused pointers."""

    code: bytes
    name: str
    threads: int
    shared: int


def to_image(source: Source, arch: Arch, name: str = "kernel") -> Image:
    """The code of `source`, printed in the dialect of `arch` (`gpu_architectures.py`). Thread-safe; needs triton, but
    no other program. Raises NotImplementedError if a kernel needs memory that no launch provides."""
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
