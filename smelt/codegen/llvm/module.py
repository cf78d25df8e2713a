"""From IR text to addresses: one LLVM module per graph, optimised little (the text is already hoisted and free of
common subexpressions) and compiled by LLVM's ORC JIT."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm

from smelt.codegen.llvm.target import Target, machine

_JITS: dict[Target, llvm.LLJIT] = {}
_NUMBER = itertools.count()


class Code:
    """Owner of machine code: addresses are valid while it lives. `object_code` is the relocatable object file."""

    def __init__(self, tracker: Any, object_code: bytes) -> None:
        self._tracker, self.object_code = tracker, object_code

    def address(self, name: str) -> int:
        return self._tracker[name]


def assemble(
    text: str, names: Sequence[str], target: Target, verify: bool = False, imports: Mapping[str, int] = {}
) -> Code:
    """Compiles a module. `verify` checks the IR first (LLVM aborts on broken IR otherwise). `imports`: addresses of
    functions that the text declares and another module defines."""
    tm = machine(target)
    parsed = llvm.parse_assembly(text)
    if verify:
        parsed.verify()
    image = tm.emit_object(parsed)
    return load(image, names, target, imports)


def load(image: bytes, names: Sequence[str], target: Target, imports: Mapping[str, int] = {}) -> Code:
    """Links an object file into this process."""
    if target not in _JITS:
        _JITS[target] = llvm.create_lljit_compiler(machine(target))
    library = llvm.JITLibraryBuilder().add_object_img(image).add_current_process()
    for name, address in imports.items():
        library.import_symbol(name, address)
    for name in names:
        library.export_symbol(name)
    return Code(library.link(_JITS[target], f"smelt{next(_NUMBER)}"), image)
