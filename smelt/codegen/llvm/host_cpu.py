"""The target machine: its name, its features, its vector width."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import llvmlite.binding as llvm

from smelt.errors import BackendError
from smelt.plan.machine_code import Processor

LLVM = 22  # the oldest version with this syntax of masked loads and stores; older ones abort on it


@dataclass(frozen=True)
class Host:
    """`bits`: the width of a vector register. `masks`: masked loads cost next to nothing (AVX-512). `scalef`: y * 2**n
    is one instruction."""

    cpu: str
    features: str
    bits: int
    masks: bool
    scalef: bool

    def lanes(self, element_bytes: int) -> int:
        """Elements of `nbytes` bytes in one vector register."""
        return self.bits // (8 * element_bytes)


@functools.cache
def host() -> Host:
    """The host of this process. Raises BackendError if llvmlite's LLVM is too old."""
    if llvm.llvm_version_info[0] < LLVM:
        found = ".".join(map(str, llvm.llvm_version_info))
        raise BackendError(f"llvmlite brings LLVM {found}; smelt needs {LLVM} (llvmlite 0.48 or newer)")
    _initialize()
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
