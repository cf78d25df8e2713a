"""Machine code as data: object files (a GPU's: PTX), their exports and imports, and their target processor.

A `Library` is the same in every process; only the linker (`codegen.llvm.link`) knows addresses. Linked machine code
lives as long as its library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from smelt import _native
from smelt.shapes.expr import Size


@dataclass(frozen=True)
class Processor:
    """Target triple, CPU name and features (`+name` and `-name`, separated by commas), as LLVM spells them."""

    triple: str
    name: str
    features: str

    @property
    def needs(self) -> frozenset[str]:
        """The features that the code may use."""
        return frozenset(f[1:] for f in self.features.split(",") if f.startswith("+"))


@dataclass(frozen=True, eq=False)
class Library:
    """Relocatable object files that are linked together. `exports`: functions that other code may look up; `imports`:
    the library that defines each open symbol of these files (symbols of the C library are the process's own)."""

    processor: Processor
    objects: tuple[bytes, ...] = field(repr=False)
    exports: tuple[str, ...]
    imports: Mapping[str, Library] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Block:
    """Launch configuration of one program of a GPU kernel: threads, and bytes of shared memory. `parts`: the number of
    launches that one batched launch may take; 0 for a kernel that is launched alone."""

    threads: int
    shared: int
    parts: int = 0


@dataclass(frozen=True, eq=False)
class Function:
    """The function that `library` exports as `name`. On a CPU: `void (void **buffers, int64_t begin, int64_t end)`,
    see `plan.steps.Launch`. A GPU's has a `block`; its parameters are the buffers, then the launch's sizes and its
    extent, each an int64, and two null pointers; program k computes `grain` items from k * grain on."""

    library: Library
    name: str
    block: Block | None = None

    @property
    def source(self) -> str | None:
        """The source it was compiled from: LLVM text, or Python for Triton. None if it is not retained."""
        return None


@dataclass(frozen=True)
class CompiledKernel:
    """The code of a kernel. `name` is readable. Items [0, extent) may run in any split and order. A CPU thread takes
    at least `grain` items; a GPU program computes `grain`. `sizes`: parameters after the buffers, each an int64 (on a
    CPU in place of an address)."""

    name: str
    function: Function
    extent: Size
    grain: Size
    sizes: tuple[Size, ...] = ()


# What launches a function: its address, or a GPU's kernel.
AddressOf = Callable[[Function], int | _native.DeviceKernel]
