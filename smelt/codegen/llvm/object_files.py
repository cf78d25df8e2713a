"""IR text to object files: one library per graph, with few optimizer passes (the text is already hoisted and free of
common subexpressions).

Many functions become several modules, which threads emit in parallel, the first while the rest is being written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import llvmlite.binding as llvm
import torch

from smelt.codegen.llvm.host_cpu import Host, machine, processor
from smelt.codegen.llvm.ir_builder import Module
from smelt.codegen.llvm.parallel_emission import emit_object
from smelt.plan.machine_code import Library
from smelt.runtime.fork_locks import EMISSION, hold_at_fork

# characters of a module that justify a thread: about 40 ms; a module costs about 2 ms
MODULE_CHARACTERS = 60_000

_LOCK = hold_at_fork(threading.RLock(), EMISSION)


def assemble(
    text: str,
    names: Sequence[str],
    target: Host,
    verify: bool = False,
    imports: Mapping[str, Library] | None = None,
) -> Library:
    """Compile a module. `verify`: check the IR first, as LLVM aborts on broken IR. `imports`: libraries it calls."""
    with _LOCK:
        return Library(processor(target), (_emitted(text, target, verify),), tuple(names), imports or {})


def assemble_functions(
    writers: Mapping[str, Callable[[Module], str]], target: Host, verify: bool = False
) -> Library:
    """Compile functions: name -> a writer of its text into the module that will hold it."""
    threads = torch.get_num_threads()
    with _LOCK:
        if threads == 1:
            images = [_emitted(text, target, verify) for text in _modules(writers.values(), target)]
        else:
            with ThreadPoolExecutor(threads, "smelt-llvm") as pool:
                texts = _modules(writers.values(), target, MODULE_CHARACTERS)
                images = list(pool.map(lambda text: _emitted(text, target, verify), texts))
        return Library(processor(target), tuple(images), tuple(writers))


def _modules(
    writers: Iterable[Callable[[Module], str]], target: Host, limit: float = float("inf")
) -> Iterator[str]:
    """The texts of modules of about `limit` characters."""
    module, functions = Module(target), list[str]()
    for write in writers:
        functions.append(write(module))
        if sum(map(len, functions)) >= limit:
            yield module.text(functions)
            module, functions = Module(target), []
    if functions:
        yield module.text(functions)


def _emitted(text: str, target: Host, verify: bool) -> bytes:
    """A relocatable object file. Thread-safe."""
    parsed = llvm.parse_assembly(text, llvm.create_context())
    if verify:
        parsed.verify()
    return emit_object(machine(target), parsed)
