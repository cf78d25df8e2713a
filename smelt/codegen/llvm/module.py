"""From IR text to addresses: one LLVM library per graph, optimised little (the text is already hoisted and free of
common subexpressions) and linked by LLVM's ORC JIT.

Many functions are written as several modules, which threads emit side by side, the first while the rest is being written.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llvmlite.binding as llvm
import torch

from smelt.codegen.llvm.builder import Module
from smelt.codegen.llvm.target import Target, machine
from smelt.codegen.llvm.unlocked import emit_object
from smelt.runtime.forks import EMISSION, hold_at_fork

PART = 60_000  # characters of a module that pays a thread: about 40 ms; each module costs about 2 ms

_JITS: dict[Target, llvm.LLJIT] = {}
_NUMBER = itertools.count()
_LOCK = hold_at_fork(threading.RLock(), EMISSION)


class Code:
    """Owner of machine code: addresses are valid while it lives."""

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker

    def address(self, name: str) -> int:
        return self._tracker[name]


def assemble(
    text: str, names: Sequence[str], target: Target, verify: bool = False, imports: Mapping[str, int] = {}
) -> Code:
    """Compiles a module. `verify` checks the IR first (LLVM aborts on broken IR otherwise). `imports`: addresses of
    functions that the text declares and another module defines."""
    with _LOCK:
        return _load([_emitted(text, target, verify)], names, target, imports)


def assemble_functions(
    writers: Mapping[str, Callable[[Module], str]], target: Target, verify: bool = False
) -> Code:
    """Compiles functions: for each name what writes its text, given the module that will hold it."""
    threads = torch.get_num_threads()
    with _LOCK:
        if threads == 1:
            images = [_emitted(text, target, verify) for text in _modules(writers.values(), target)]
        else:
            with ThreadPoolExecutor(threads, "smelt-llvm") as pool:
                texts = _modules(writers.values(), target, PART)
                images = list(pool.map(lambda text: _emitted(text, target, verify), texts))
        return _load(images, list(writers), target)


def _modules(
    writers: Iterable[Callable[[Module], str]], target: Target, part: float = float("inf")
) -> Iterator[str]:
    """The texts of modules of about `part` characters."""
    module, functions = Module(target), list[str]()
    for write in writers:
        functions.append(write(module))
        if sum(map(len, functions)) >= part:
            yield module.text(functions)
            module, functions = Module(target), []
    if functions:
        yield module.text(functions)


def _emitted(text: str, target: Target, verify: bool) -> bytes:
    """A relocatable object file. Several threads may be here."""
    parsed = llvm.parse_assembly(text, llvm.create_context())
    if verify:
        parsed.verify()
    return emit_object(machine(target), parsed)


def _load(
    images: Sequence[bytes], names: Sequence[str], target: Target, imports: Mapping[str, int] = {}
) -> Code:
    """Links object files into this process."""
    if target not in _JITS:
        _JITS[target] = llvm.create_lljit_compiler(machine(target))
    library = llvm.JITLibraryBuilder()
    for image in images:
        library.add_object_img(image)
    library.add_current_process()
    for name, address in imports.items():
        library.import_symbol(name, address)
    for name in names:
        library.export_symbol(name)
    return Code(library.link(_JITS[target], f"smelt{next(_NUMBER)}"))
