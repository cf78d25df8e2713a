"""Printed Triton modules to callables."""

from __future__ import annotations

import functools
import hashlib
import linecache
from collections.abc import Callable
from typing import Any

from smelt.codegen.triton.source import triton_source
from smelt.loops.ir import Kernel


@functools.lru_cache(1024)
def load_kernel(kernel: Kernel) -> Callable[..., None]:
    """`launch(*tensors)` of the kernel's module; compiled for the device by Triton at the first call. Needs triton."""
    source = triton_source(kernel)
    return _execute(source)["launch"]


def _execute(source: str) -> dict[str, Any]:
    """Runs the module. Triton reads functions back from their source, so it is registered under a file name."""
    filename = f"smelt_triton_{hashlib.sha256(source.encode()).hexdigest()[:16]}.py"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": filename[:-3]}
    exec(compile(source, filename, "exec"), namespace)
    return namespace
