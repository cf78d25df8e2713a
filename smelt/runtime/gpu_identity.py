"""The identity of a GPU for stored machine code: its processor, its driver, and the versions of its compilers. This module
does not import Triton."""

from __future__ import annotations

import functools
import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import torch

from smelt import _native


@functools.cache
def driver() -> str:
    """The identity of the driver's PTX compiler: its CUDA version and build."""
    build = ""
    with suppress(OSError):
        build = Path("/proc/driver/nvidia/version").read_text()
    return f"{_native.driver_version()} {build}"


@functools.cache
def processor(device: int) -> str:
    """The name and the compute capability of a GPU."""
    found = torch.cuda.get_device_properties(device)
    return f"{found.name} {found.major}.{found.minor}"


@functools.cache
def identity(device: int) -> tuple[str, ...]:
    """What kernels and plans of a GPU depend on besides torch's version: driver, processor, properties, Triton, cuDNN."""
    found = torch.cuda.get_device_properties(device)
    names = [name for name in sorted(dir(found)) if not name.startswith("_") and name not in _NOT_OF_A_KIND]
    numbers = {name: value for name in names if isinstance(value := getattr(found, name), (int, str))}
    return driver(), processor(device), repr(numbers), _triton(), str(torch.backends.cudnn.version())


# Properties in which two GPUs of one kind differ.
_NOT_OF_A_KIND = frozenset({"uuid", "pci_bus_id", "pci_device_id", "pci_domain_id"})


def _triton() -> str:
    """Place, time and size of the installed Triton; "" without one."""
    found = find_spec("triton")
    if found is None or found.origin is None:
        return ""
    status = os.stat(found.origin)
    return f"{found.origin} {status.st_mtime_ns} {status.st_size}"
