"""What the parts of a call of a small compiled function cost the host: the driver's launch, the plan, the frame, the guards.

The driver is called by ctypes, whose own share is a row. Parameters of a launch are given one by one, as plans give them,
or in one buffer.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import smelt
from benchmarks.per_call import add_one
from smelt import _native
from smelt.report import inspect

PARAMETERS = 5  # as many as `x + 1` has: two addresses, the number of points, two that are not used
_BY_BUFFER = 1, 2, 0  # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END
_PTX = f"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry empty({", ".join(f".param .u64 p{i}" for i in range(PARAMETERS))}) {{ ret; }}
"""


def _checked(status: int) -> None:
    if status:
        raise RuntimeError(f"the driver returned {status}")


def by_driver() -> dict[str, Callable[[], Any]]:
    """Launches of an empty kernel on the current stream, by how its parameters are given."""
    driver = ctypes.CDLL("libcuda.so.1")
    torch.zeros(1, device="cuda")  # makes the context
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _checked(driver.cuModuleLoadData(ctypes.byref(module), _PTX.encode()))
    _checked(driver.cuModuleGetFunction(ctypes.byref(function), module, b"empty"))
    values = (ctypes.c_uint64 * PARAMETERS)()
    size = ctypes.c_size_t(ctypes.sizeof(values))
    begin, end = ctypes.addressof(values), _BY_BUFFER[2]
    addresses = (ctypes.c_void_p * PARAMETERS)(*(begin + 8 * i for i in range(PARAMETERS)))
    buffer = (ctypes.c_void_p * 5)(_BY_BUFFER[0], begin, _BY_BUFFER[1], ctypes.addressof(size), end)
    launch = driver.cuLaunchKernel
    launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
    stream = torch.cuda.current_stream().cuda_stream
    sizes = function, 1, 1, 1, 32, 1, 1, 0, stream
    _checked(launch(*sizes, addresses, None))
    _checked(launch(*sizes, None, buffer))
    keep = values, size, addresses, buffer
    version = ctypes.c_int()
    return {
        "ctypes, no launch": partial(driver.cuDriverGetVersion, ctypes.byref(version)),
        "launch, parameters one by one": lambda: launch(*sizes, keep[2], None),
        "launch, parameters in a buffer": lambda: launch(*sizes, None, keep[3]),
    }


def by_smelt() -> dict[str, Callable[[], Any]]:
    """`x + 1` on 8 elements, from the plan outwards."""
    x = torch.randn(8, device="cuda")
    compiled = smelt.compile(add_one, fullgraph=True)
    compiled(x)
    [entry] = inspect.entries(compiled)
    [(guard, frame)] = _native.entries(compiled)
    return {
        "x + 1, the plan": partial(entry.graph, (x,)),
        "x + 1, the compiled frame": partial(frame, x, (x,)),
        "x + 1, its guards": partial(guard.check, x),
        "x + 1, all": partial(compiled, x),
    }


def parts() -> dict[str, Callable[[], Any]]:
    """By name. On the simulated device nothing of the driver."""
    found = {} if os.environ.get("SMELT_SIMULATED") else by_driver()
    return found | by_smelt()
