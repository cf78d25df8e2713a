"""Kernels to PTX: equal kernels share code, new ones are compiled side by side."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from weakref import WeakValueDictionary

from smelt.codegen.triton.library import library
from smelt.codegen.triton.ptx import Ptx, ptx_version, to_ptx
from smelt.codegen.triton.source import Source, triton_source
from smelt.loops.ir import Kernel
from smelt.plan.code import Block, CompiledKernel, Function, Library, Processor
from smelt.runtime.forks import GPU_KERNELS, hold_at_fork

# What decides about the code of a source: all of it but how many points there are.
_Key = tuple[int, str, int, frozenset[str], tuple[tuple[str, str], ...], tuple[tuple[str, int], ...]]


@dataclass(frozen=True, eq=False)
class _KernelCode(Function):
    """The code of one kernel."""


_CACHE: WeakValueDictionary[_Key, _KernelCode] = WeakValueDictionary()
_LOCK = hold_at_fork(threading.RLock(), GPU_KERNELS)


def compile_kernels(
    kernels: Sequence[Kernel], arch: int, threads: int, hosts: Sequence[frozenset[int]] = ()
) -> list[CompiledKernel]:
    """PTX for `kernels`, in order, for processors `sm_<arch>`, compiled by `threads` threads, which end before this returns.
    It is kept for equal kernels as long as somebody holds it. `hosts`: for each kernel, which of its buffers are passed by
    value (`triton_source`); none if it is empty. Raises ImportError, with what to install, where Triton is not. Thread-safe.

    A kernel's `extent` is its number of outer points, `grain` how many a program computes."""
    library()
    printed: dict[tuple[Kernel, frozenset[int]], Source] = {}
    asked = list(zip(kernels, hosts or [frozenset[int]()] * len(kernels), strict=True))
    for kernel, host in asked:
        if (kernel, host) not in printed:
            printed[kernel, host] = triton_source(kernel, host)
    sources = [printed[pair] for pair in asked]
    with _LOCK:
        codes = _codes(sources, [k.name for k in kernels], arch, threads)
    return [
        CompiledKernel(k.name, c, s.points, s.block) for k, c, s in zip(kernels, codes, sources, strict=True)
    ]


def _codes(sources: Sequence[Source], names: Sequence[str], arch: int, threads: int) -> list[_KernelCode]:
    keys = [_key(source, arch) for source in sources]
    found = {key: code for key in keys if (code := _CACHE.get(key)) is not None}
    missing: dict[_Key, tuple[Source, str]] = {}
    for key, source, name in zip(keys, sources, names, strict=True):
        if key not in found:
            missing.setdefault(key, (source, name))
    if missing:
        with ThreadPoolExecutor(min(threads, len(missing))) as pool:
            compiled = pool.map(lambda item: _compile(item[0], item[1], arch), missing.values())
            for key, code in zip(missing, compiled, strict=True):
                found[key] = _CACHE[key] = code
    return [found[key] for key in keys]


def _key(source: Source, arch: int) -> _Key:
    given = tuple(source.signature.items()), tuple(source.constants.items())
    return arch, source.text, source.warps, source.aligned, *given


def _compile(source: Source, name: str, arch: int) -> _KernelCode:
    ptx = to_ptx(source, arch, f"smelt_{_identifier(name)}")
    return _KernelCode(_library(ptx, arch), ptx.name, Block(ptx.threads, ptx.shared))


def _library(ptx: Ptx, arch: int) -> Library:
    processor = Processor("nvptx64-nvidia-cuda", f"sm_{arch}", f"+ptx{ptx_version(arch)}")
    return Library(processor, (ptx.text.encode(),), (ptx.name,))


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name)[:60]
