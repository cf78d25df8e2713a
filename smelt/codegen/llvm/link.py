"""From object files to addresses: libraries linked into this process by LLVM's ORC JIT."""

from __future__ import annotations

import functools
import itertools
import threading
from typing import Any
from weakref import WeakKeyDictionary

import llvmlite.binding as llvm

from smelt.codegen.llvm.host_cpu import host, machine, processor
from smelt.errors import PlanError
from smelt.plan.machine_code import Function, Library, Processor
from smelt.runtime.fork_locks import LINKS, hold_at_fork

# its functions by name; freed with the library
_LINKED: WeakKeyDictionary[Library, Any] = WeakKeyDictionary()
_COUNTER = itertools.count()
_LOCK = hold_at_fork(threading.RLock(), LINKS)


def address_of(function: Function) -> int:
    """The address of a function, valid while its library is alive. Thread-safe. Raises PlanError if this processor
    lacks a feature that the code may use."""
    with _LOCK:
        return _linked(function.library)[function.name]


def _linked(library: Library) -> Any:
    found = _LINKED.get(library)
    if found is None:
        found = _LINKED[library] = _link(library)
    return found


def _link(library: Library) -> Any:
    _refuse_foreign(library.processor)
    builder = llvm.JITLibraryBuilder()
    for image in library.objects:
        builder.add_object_img(image)
    builder.add_current_process()
    for name, other in library.imports.items():
        builder.import_symbol(name, _linked(other)[name])
    for name in library.exports:
        builder.export_symbol(name)
    return builder.link(_jit(), f"smelt{next(_COUNTER)}")


@functools.cache
def _jit() -> llvm.LLJIT:
    return llvm.create_lljit_compiler(machine(host()))


def _refuse_foreign(target: Processor) -> None:
    host_processor = processor(host())
    if target.triple != host_processor.triple:
        raise PlanError(f"code for {target.triple}; this is {host_processor.triple}")
    missing = target.needs - host_processor.needs
    if missing:
        raise PlanError(f"code for {target.name}; {host_processor.name} lacks {', '.join(sorted(missing))}")
