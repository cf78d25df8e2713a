"""The machine that code is generated for: its name, its features, the width of its vectors.

Where the environment variable `SMELT_CPU` names a level of x86-64 (`LEVELS`), code is for that level instead of for the
machine that the process runs on, as with `ATEN_CPU_CAPABILITY` for torch's own kernels.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import llvmlite.binding as llvm

from smelt.errors import BackendError
from smelt.plan.machine_code import Processor

LLVM = 22  # the oldest version with this syntax of masked loads and stores; older ones abort on it


@dataclass(frozen=True)
class Host:
    """`bits`: the width of a vector. `masks`: masked loads are cheap (AVX-512). `scalef`: y * 2**n is one instruction."""

    cpu: str
    features: str
    bits: int
    masks: bool
    scalef: bool

    def lanes(self, element_bytes: int) -> int:
        """Elements of `nbytes` bytes in one vector register."""
        return self.bits // (8 * element_bytes)


_V2 = "+cx16,+popcnt,+sahf,+sse3,+sse4.1,+sse4.2,+ssse3"
_V3 = f"{_V2},+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+xsave"
_V4 = f"{_V3},+avx512bw,+avx512cd,+avx512dq,+avx512f,+avx512vl,-prefer-256-bit"
# The levels of the x86-64 ABI: what every processor of a level has.
LEVELS = {
    "x86-64-v2": Host("x86-64-v2", _V2, 128, masks=False, scalef=False),
    "x86-64-v3": Host("x86-64-v3", _V3, 256, masks=False, scalef=False),
    "x86-64-v4": Host("x86-64-v4", _V4, 512, masks=True, scalef=True),
}


_other: ContextVar[Host | None] = ContextVar("other", default=None)


@contextmanager
def generating_for(level: str) -> Iterator[None]:
    """A context in which smelt generates code for a level of x86-64. If this machine's processor lacks the level, it cannot
    run the code."""
    token = _other.set(LEVELS[level])
    try:
        yield
    finally:
        _other.reset(token)


def host() -> Host:
    """The machine that code is generated for. Raises BackendError if llvmlite brings too old an LLVM, or if `SMELT_CPU`
    names a level that does not exist or that this machine lacks."""
    return _other.get() or _host()


@functools.cache
def _host() -> Host:
    if llvm.llvm_version_info[0] < LLVM:
        found = ".".join(map(str, llvm.llvm_version_info))
        raise BackendError(f"llvmlite brings LLVM {found}; smelt needs {LLVM} (llvmlite 0.48 or newer)")
    _initialize()
    own = _own()
    name = os.environ.get("SMELT_CPU")
    if not name:
        return own
    if name not in LEVELS:
        raise BackendError(f"SMELT_CPU: unknown level {name!r}; known: {', '.join(LEVELS)}")
    lacking = processor(LEVELS[name]).needs - processor(own).needs
    if lacking:
        raise BackendError(f"SMELT_CPU={name}: {own.cpu} lacks {', '.join(sorted(lacking))}")
    return LEVELS[name]


def _own() -> Host:
    """The machine that this process runs on."""
    features = llvm.get_host_cpu_features()
    wide = all(features.get(f) for f in ("avx512f", "avx512bw", "avx512dq", "avx512vl"))
    text = features.flatten()
    if wide:
        text += ",-prefer-256-bit"
    bits = 512 if wide else 256 if features.get("avx2") else 128
    return Host(llvm.get_host_cpu_name(), text, bits, wide, wide)


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def processor(target: Host) -> Processor:
    """The host in the form that plans record."""
    return Processor(llvm.get_process_triple(), target.cpu, target.features)


def machine(target: Host) -> llvm.TargetMachine:
    """A new target machine: threads must not share one."""
    _initialize()
    triple = llvm.Target.from_triple(llvm.get_process_triple())
    # The large code model: the linker may place code and its constants more than 2 GiB apart, where 32-bit offsets abort.
    return triple.create_target_machine(
        cpu=target.cpu, features=target.features, opt=2, reloc="static", codemodel="large", jit=True
    )
