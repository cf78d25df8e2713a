"""The processors that kernels are compiled for.

What always holds: of an `Arch` the rest follows, which of Triton's backends compiles, in which dialect a source is printed,
how many threads a warp has, and how the code is named to whoever loads it.
"""

from __future__ import annotations

from smelt.codegen.triton.value_expressions import Dialect
from smelt.plan.machine_code import Processor

# NVIDIA's, as ten times their compute capability; AMD's, by the name that LLVM has for them ("gfx942").
Arch = int | str

# From which processor on which version of PTX (times ten): the first that knows it, so that old drivers take it.
PTX_VERSIONS: tuple[tuple[int, int], ...] = ((121, 88), (120, 87), (103, 88), (100, 86), (0, 80))


def backend(arch: Arch) -> str:
    """Triton's name of who makes it."""
    return "cuda" if isinstance(arch, int) else "hip"


def lanes(arch: Arch) -> int:
    """Threads of a warp: AMD's for computing (gfx9) have 64, its others and NVIDIA's 32."""
    return 64 if isinstance(arch, str) and arch.startswith("gfx9") else 32


def dialect(arch: Arch) -> Dialect:
    """How sources are printed for it."""
    return "ptx" if isinstance(arch, int) else "libdevice"


def takes_tables(arch: Arch) -> bool:
    """Whether a kernel can read a table that is its parameter at any place (`batched_source`)."""
    return isinstance(arch, int)


def ptx_version(arch: int) -> int:
    """Ten times the version of PTX that a processor's code has."""
    return next(version for first, version in PTX_VERSIONS if arch >= first)


def processor(arch: Arch) -> Processor:
    """The same in LLVM's words."""
    if isinstance(arch, int):
        return Processor("nvptx64-nvidia-cuda", f"sm_{arch}", f"+ptx{ptx_version(arch)}")
    return Processor("amdgcn-amd-amdhsa", arch, "")
