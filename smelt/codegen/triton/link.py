"""Kernels of a GPU into this process."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from smelt import _native
from smelt.plan.code import Function
from smelt.runtime.forks import LINKS, hold_at_fork

# By their image and name, for the life of the process: the driver keeps code that was loaded, since a graph that the user
# captured may launch it at any time.
_KERNELS: dict[tuple[bytes, str], _native.DeviceKernel] = {}
_LOCK = hold_at_fork(threading.RLock(), LINKS)


def kernel_of(function: Function) -> _native.DeviceKernel:
    """The kernel that `function` describes, which is one for equal code. Thread-safe."""
    assert function.block is not None
    [image] = function.library.objects
    with _LOCK:
        found = _KERNELS.get((image, function.name))
        if found is None:
            block = function.block
            found = _KERNELS[image, function.name] = _native.DeviceKernel(
                image, function.name, block.threads, block.shared, block.parts
            )
        return found


def load_kernels(functions: Iterable[Function], device: int) -> None:
    """Loads them on a device, side by side: the driver compiles each for some milliseconds, without the GIL. Raises what the
    driver says."""
    kernels = list(dict.fromkeys(kernel_of(f) for f in functions))
    with ThreadPoolExecutor(min(len(kernels), 16) or 1) as pool:
        list(pool.map(lambda kernel: kernel.load(device), kernels))
