"""Plans of a program as bytes, which native/exported/tables.cpp reads: executable specs (`plan/executable_plan.py`), and
their machine code as the object files that LLVM emitted, or the images of a GPU's kernels.

    code := library*                               importers last
    library := object file*, export*, (import, position of the library that defines it)*
             | image*, export*, None               a GPU's: machine code or PTX; the driver takes the first that it accepts
    plan := kernel*, spec, sizes | None
    kernel := position of the library, function    and a GPU's: threads, bytes of shared memory, parts (`Block`)
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from smelt.plan.executable_plan import functions_of, spec_of, specs_of
from smelt.plan.machine_code import Function, Library
from smelt.plan.steps import Plan
from smelt.plan.symbolic_plan import SymbolicPlan
from smelt.plan.value_encoding import encoded
from smelt.shapes.expr import Sym

_LENGTH = struct.Struct("<Q")


Images = Callable[[Library], tuple[bytes, ...]]  # of a GPU's library, best first


def plans_to_bytes(
    plans: Sequence[Plan | SymbolicPlan],
    syms: Sequence[Sym] = (),
    images_of: Images = lambda library: library.objects,
) -> tuple[bytes, list[bytes]]:
    """Several plans that share their libraries: the libraries, and each plan without its constants. `syms`: the symbols
    whose values a call passes; `images_of`: the stored code of a GPU's kernel. Raises PlanError for values without a form in
    bytes (a generator, a kernel of the program), and NeedsFixedSize for symbolic sizes in a `Plan`."""
    inner = [plan.plan if isinstance(plan, SymbolicPlan) else plan for plan in plans]
    functions = [f for plan in inner for f in functions_of(plan)]
    images = {f.library: images_of(f.library) for f in functions if f.block is not None}
    libraries = in_order({f.library: None for f in functions})
    index = {library: i for i, library in enumerate(libraries)}
    code = tuple(
        (images[library], library.exports, None) if library in images else _library(library, index)
        for library in libraries
    )
    return encoded(code), [encoded(_plan(plan, syms, index)) for plan in plans]


def packed(data: bytes) -> bytes:
    """A section of a graph, of plans or of machine code as it is stored: its length, then a zlib stream."""
    return _LENGTH.pack(len(data)) + zlib.compress(data)


def _plan(plan: Plan | SymbolicPlan, syms: Sequence[Sym], index: Mapping[Library, int]) -> tuple[Any, ...]:
    inner = plan.plan if isinstance(plan, SymbolicPlan) else plan
    used = functions_of(inner)
    spec, sizes = specs_of(plan, syms) if isinstance(plan, SymbolicPlan) else (spec_of(plan), None)
    return tuple(_kernel(f, index[f.library]) for f in used), spec, sizes


def _kernel(function: Function, library: int) -> tuple[Any, ...]:
    block = function.block
    return (library, function.name, *(() if block is None else (block.threads, block.shared, block.parts)))


def _library(library: Library, index: Mapping[Library, int]) -> tuple[Any, ...]:
    imports = tuple((symbol, index[other]) for symbol, other in library.imports.items())
    return library.objects, library.exports, imports


def in_order(libraries: Iterable[Library]) -> Sequence[Library]:
    """The libraries and all that they import, importers last."""
    ordered: dict[Library, None] = {}

    def add(library: Library) -> None:
        if library not in ordered:
            for other in library.imports.values():
                add(other)
            ordered[library] = None

    for library in libraries:
        add(library)
    return list(ordered)
