"""Parallel emission of object code: all access to LLVM beyond llvmlite's interface.

llvmlite holds one lock around every call of LLVM. LLVM itself only requires that two threads share neither contexts nor
target machines, and emission, nearly all of the compile time, would otherwise run on one core. llvmlite has no public way
around its lock, so the function is looked up a second time in the library that llvmlite loaded (its name and the lock are
private: `ffi.lib._name`, `ffi.lib._lock`). A fork must still wait for the lock: see `runtime.fork_locks`.
"""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from smelt.runtime.fork_locks import LLVM, hold_at_fork

hold_at_fork(ffi.lib._lock._lock, LLVM)  # an RLock

_emit_to_memory = ctypes.CDLL(ffi.lib._name)["LLVMPY_TargetMachineEmitToMemory"]
_emit_to_memory.argtypes = ffi.lib.LLVMPY_TargetMachineEmitToMemory.argtypes
_emit_to_memory.restype = ffi.lib.LLVMPY_TargetMachineEmitToMemory.restype


def emit_object(machine: llvm.TargetMachine, module: llvm.ModuleRef) -> bytes:
    """A relocatable object file of a module whose context no other thread uses; nor may another use `machine`.
    Callable from several threads at once. Raises RuntimeError with LLVM's message."""
    with ffi.OutputString() as error:
        buffer = _emit_to_memory(machine, module, 1, error)
        if not buffer:
            raise RuntimeError(str(error))
    try:
        size = ffi.lib.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)
