"""Machine code as data: object files (a GPU's: PTX), what they export and import, and the processor that they were made for.

What always holds: a `Library` is the same in every process; only who links it (`codegen.llvm.link`) knows addresses. Machine
code that is linked lives as long as its library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from smelt import _native
from smelt.shapes.expr import Size


@dataclass(frozen=True)
class Processor:
    """Whom code is for, in LLVM's words: the triple of the platform, the processor's name, and its features as a list of
    `+name` and `-name` separated by commas."""

    triple: str
    name: str
    features: str

    @property
    def needs(self) -> frozenset[str]:
        """The features that the code may use."""
        return frozenset(f[1:] for f in self.features.split(",") if f.startswith("+"))


@dataclass(frozen=True, eq=False)
class Library:
    """Relocatable object files that are linked together. `exports` are the functions that others may ask for; `imports` says
    which library defines each symbol that these files leave open (those of the C library are the process's own)."""

    processor: Processor
    objects: tuple[bytes, ...] = field(repr=False)
    exports: tuple[str, ...]
    imports: Mapping[str, Library] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Block:
    """How a GPU runs one program of a kernel: with how many threads, and bytes of shared memory. `parts`: how many launches
    one of it may do, where it is for those of a `Together`; 0 where it is launched alone."""

    threads: int
    shared: int
    parts: int = 0


@dataclass(frozen=True, eq=False)
class Function:
    """The function that `library` exports as `name`. On a CPU: `void (void **buffers, int64_t begin, int64_t end)`, see
    `plan.steps.Launch`. A GPU's has a `block`; it takes each buffer as an argument, then the launch's sizes and its extent,
    each an int64, and two null pointers; program k computes `grain` items from k * grain on."""

    library: Library
    name: str
    block: Block | None = None

    @property
    def source(self) -> str | None:
        """What it was compiled from: LLVM's text, or Python for Triton. None where that is not kept."""
        return None


@dataclass(frozen=True)
class CompiledKernel:
    """The code of a kernel. `name` is readable. Items [0, extent) may run in any split and order. Fewer than `grain` do not
    pay a thread of a CPU; a program on a GPU computes `grain`. `sizes`: what it takes behind its buffers, each an int64
    (a CPU's: in the place of an address)."""

    name: str
    function: Function
    extent: Size
    grain: Size
    sizes: tuple[Size, ...] = ()


# What launches a function: its address, or a GPU's kernel.
AddressOf = Callable[[Function], int | _native.DeviceKernel]
