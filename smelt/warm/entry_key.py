"""Keys of stored entries: what must be equal before a call's guards are checked.

    key := versions machine torch-functions warning-filters options name code class forward-code

Versions are those of Python, torch, NumPy and smelt (its files, by time and size). The machine is the processor, the CPUs
that the process may use, and environment variables that affect results (`_VARIABLES`). Class: of the first argument.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import fields
from types import FunctionType
from typing import Any

import numpy as np
import torch

from smelt.config import Config
from smelt.runtime.disk_cache import key_of
from smelt.warm.digests import class_name, code_digest, library_digest

FORM = "4"  # of stored entries: changes with the meaning of what is stored
# Options that decide nothing about an entry.
_UNREAD = frozenset({"kernel_cache", "kernel_cache_bytes", "warm_start", "recompile_limit"})
_VARIABLES = re.compile(
    r"SMELT_CPU$|ATEN_|MKL_|OMP_|KMP_|GOMP_|DNNL_|ONEDNN_|TORCH|PYTORCH|OPENBLAS_|CUDA_VISIBLE|LD_PRELOAD"
)


def key_for(fn: FunctionType, slots: tuple[object, ...], settings: tuple[str, ...]) -> str:
    """The key of the entries of `fn`, whose call has these argument slots, under `settings`."""
    of_slots = [class_name(type(x)) for x in slots[:1]]
    return key_of(
        _process_key(), library_digest(), repr(_filters()), *settings, fn.__module__ or "", fn.__qualname__,
        code_digest(fn.__code__), *of_slots, *_forward_code(slots),
    )  # fmt: skip


def settings_of(config: Config, fullgraph: bool, dynamic: bool | None) -> tuple[str, ...]:
    """The settings of a compilation, as parts of a key."""
    options = (f"{f.name}={getattr(config, f.name)!r}" for f in fields(Config) if f.name not in _UNREAD)
    return (*options, repr(fullgraph), repr(dynamic))


def _forward_code(slots: tuple[object, ...]) -> Iterator[bytes]:
    """The code of the `forward` of a module that the call is of: calls of all modules have one trampoline."""
    if slots and isinstance(slots[0], torch.nn.Module):
        forward = next((vars(c)["forward"] for c in type(slots[0]).__mro__ if "forward" in vars(c)), None)
        if type(forward) is FunctionType:
            yield code_digest(forward.__code__)


def _filters() -> list[tuple[object, ...]]:
    """The filters of warnings: a warning that they ignore during a capture is no effect of the entry."""

    def text(pattern: Any) -> object:
        return getattr(pattern, "pattern", pattern)

    return [
        (action, text(message), str(category), text(module), line)
        for action, message, category, module, line in warnings.filters
        if not category.__module__.startswith("sympy.")  # which sympy adds, and compilations import
    ]


@functools.cache
def _process_key() -> str:
    return key_of(
        FORM, *_versions(), *_machine(), "\n".join(_files(os.path.dirname(os.path.dirname(__file__))))
    )


def _versions() -> Iterator[str]:
    yield sys.version
    yield f"{sys.implementation.cache_tag} {sys.flags!r}"
    yield f"{torch.__version__} {torch.version.git_version}"  # type: ignore[attr-defined]
    yield np.__version__
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    yield repr((library, os.stat(library).st_mtime_ns, os.stat(library).st_size))


def _machine() -> Iterator[str]:
    yield f"{platform.machine()} {os.cpu_count()} {sorted(os.sched_getaffinity(0))}"
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.strip():  # the first processor
                break
            if line.startswith(("vendor_id", "cpu family", "model", "stepping", "flags", "cache size")):
                yield line
    for name in sorted(os.environ):
        if _VARIABLES.match(name):
            yield f"{name}={os.environ[name]}"


def _files(folder: str) -> list[str]:
    """Name, time and size of the files of a package."""
    rows, folders = [], [folder]
    for inner in folders:
        with os.scandir(inner) as found:
            for entry in found:
                name = entry.name
                if name.endswith((".py", ".so")):
                    status = entry.stat()
                    rows.append(f"{entry.path} {status.st_mtime_ns} {status.st_size}")
                elif name != "__pycache__" and entry.is_dir():
                    folders.append(entry.path)
    return sorted(rows)
