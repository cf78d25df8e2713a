"""Plans of a program as bytes, which native/exported/tables.cpp reads: executable specs (`plan/executable_plan.py`), and
their machine code as the object files that LLVM emitted.

    code := (object file*, export*, (import, position of the library that defines it)*)*      libraries, importers last
    plan := (position of the library, function)*, spec, sizes | None
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from smelt.errors import PlanError
from smelt.plan.executable_plan import kernel_order, spec_of, specs_of
from smelt.plan.machine_code import Library
from smelt.plan.steps import Plan
from smelt.plan.symbolic_plan import SymbolicPlan
from smelt.plan.value_encoding import encoded
from smelt.shapes.expr import Sym

_LENGTH = struct.Struct("<Q")


def plans_to_bytes(
    plans: Sequence[Plan | SymbolicPlan], syms: Sequence[Sym] = ()
) -> tuple[bytes, list[bytes]]:
    """Several plans that share their libraries: the libraries, and each plan without its constants. `syms`: the symbols
    whose values a call passes. Raises PlanError for values without a form in bytes (a generator or graph as an argument),
    and NeedsFixedSize for symbolic sizes in a `Plan`."""
    inner = [plan.plan if isinstance(plan, SymbolicPlan) else plan for plan in plans]
    libraries = _in_order({f.library: None for plan in inner for f in plan.kernels.values()})
    index = {library: i for i, library in enumerate(libraries)}
    return encoded(tuple(_library(library, index) for library in libraries)), [
        encoded(_plan(plan, syms, index)) for plan in plans
    ]


def packed(data: bytes) -> bytes:
    """A section of a graph, of plans or of machine code as it is stored: its length, then a zlib stream."""
    return _LENGTH.pack(len(data)) + zlib.compress(data)


def _plan(plan: Plan | SymbolicPlan, syms: Sequence[Sym], index: Mapping[Library, int]) -> tuple[Any, ...]:
    inner = plan.plan if isinstance(plan, SymbolicPlan) else plan
    used = [inner.kernels[name] for name in kernel_order(inner)]
    if any(f.block is not None for f in used):
        raise PlanError("a plan with a GPU's kernels has no form in bytes")
    spec, sizes = specs_of(plan, syms) if isinstance(plan, SymbolicPlan) else (spec_of(plan), None)
    return tuple((index[f.library], f.name) for f in used), spec, sizes


def _library(library: Library, index: Mapping[Library, int]) -> tuple[Any, ...]:
    imports = tuple((symbol, index[other]) for symbol, other in library.imports.items())
    return library.objects, library.exports, imports


def _in_order(libraries: Iterable[Library]) -> Sequence[Library]:
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
