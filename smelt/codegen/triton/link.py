"""Loading of GPU kernels into this process: the driver compiles PTX, and the result is cached on disk. Native code is
loaded as it is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from smelt import _native
from smelt.plan.machine_code import Function
from smelt.runtime.disk_cache import Store, key_of
from smelt.runtime.fork_locks import LINKS, hold_at_fork
from smelt.runtime.gpu_identity import driver, processor

# By their image and name, for the life of the process: the driver keeps code that was loaded, since a graph that the user
# captured may launch it at any time.
_KERNELS: dict[tuple[bytes, str], _native.DeviceKernel] = {}
_LOCK = hold_at_fork(threading.RLock(), LINKS)

log = logging.getLogger("smelt")
ELF = b"\x7fELF"


def kernel_of(function: Function) -> _native.DeviceKernel:
    """The kernel that `function` describes; equal code shares one. Thread-safe."""
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


def load_kernels(functions: Iterable[Function], device: int, store: Store | None = None) -> None:
    """Load the kernels on a device, in parallel: the driver compiles each that is not in `store` for some
    milliseconds, without the GIL. Raises the driver's errors."""
    images = {kernel_of(f): f.library.objects[0] for f in functions}
    missing = [kernel for kernel in images if not kernel.is_loaded(device)]
    with ThreadPoolExecutor(min(len(missing), 16) or 1) as pool:
        list(pool.map(lambda kernel: _load(kernel, images[kernel], device, store), missing))


def load_early(function: Function, device: int, store: Store | None) -> None:
    """Load a kernel while others are compiled. Errors are left to `load_kernels`, which tries again."""
    with suppress(RuntimeError):
        _load(kernel_of(function), function.library.objects[0], device, store)


def _load(kernel: _native.DeviceKernel, image: bytes, device: int, store: Store | None) -> None:
    if store is None or image.startswith(ELF):
        return kernel.load(device)
    key = _key(image, device)
    try:
        kernel.load(device, store.get(key) or _linked(store, key, image, device))
    except RuntimeError as error:
        # Without the linker; if this fails too, its error is raised.
        log.debug("%s", error)
        store.drop(key)
        kernel.load(device)


def machine_code(image: bytes, device: int, store: Store | None = None) -> bytes:
    """The machine code for a device that the driver makes of PTX, or the PTX itself if the driver has no linker."""
    if image.startswith(ELF):
        return image
    key = _key(image, device)
    try:
        if store is None:
            return _native.link_ptx(image, device)
        return store.get(key) or _linked(store, key, image, device)
    except RuntimeError as error:
        log.debug("%s", error)
        return image


def _key(image: bytes, device: int) -> str:
    return key_of("code", image, driver(), processor(device))


def _linked(store: Store, key: str, ptx: bytes, device: int) -> bytes:
    code = _native.link_ptx(ptx, device)
    store.put(key, code)
    return code


def machine(device: int) -> tuple[str, str]:
    """The identity of a device for measured speeds: driver and processor."""
    return driver(), processor(device)
