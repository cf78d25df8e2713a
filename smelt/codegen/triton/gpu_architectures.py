"""The GPU architectures that kernels are compiled for.

An `Arch` determines Triton's backend, the dialect of sources, the threads of a warp, and the name of the code for its
loader.
"""

from __future__ import annotations

from smelt.codegen.triton.value_expressions import Dialect
from smelt.plan.machine_code import Processor

# NVIDIA's, as ten times their compute capability; AMD's, by the name that LLVM has for them ("gfx942").
Arch = int | str

# From which processor on which version of PTX (times ten): the first that knows it, so that old drivers take it.
PTX_VERSIONS: tuple[tuple[int, int], ...] = ((121, 88), (120, 87), (103, 88), (100, 86), (0, 80))


def backend(arch: Arch) -> str:
    """Triton's name of the vendor."""
    return "cuda" if isinstance(arch, int) else "hip"


def lanes(arch: Arch) -> int:
    """Threads of a warp: AMD's for computing (gfx9) have 64, its others and NVIDIA's 32."""
    return 64 if isinstance(arch, str) and arch.startswith("gfx9") else 32


def dialect(arch: Arch) -> Dialect:
    """The dialect of its sources."""
    return "ptx" if isinstance(arch, int) else "libdevice"


def takes_tables(arch: Arch) -> bool:
    """Whether a kernel can index a table in its parameter at runtime (`batched_source`)."""
    return isinstance(arch, int)


def ptx_version(arch: int) -> int:
    """Ten times the PTX version of a processor's code."""
    return next(version for first, version in PTX_VERSIONS if arch >= first)


def processor(arch: Arch) -> Processor:
    """The architecture in LLVM's terms."""
    if isinstance(arch, int):
        return Processor("nvptx64-nvidia-cuda", f"sm_{arch}", f"+ptx{ptx_version(arch)}")
    return Processor("amdgcn-amd-amdhsa", arch, "")
