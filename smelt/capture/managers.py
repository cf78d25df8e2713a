"""Context managers of torch that are entered natively.

One that comes from outside holds its settings in attributes, which the native `__enter__` reads: they are guarded, and what
it stores in them is an effect as any other. `record_function` marks a stretch of the program for the profiler; while
no profiler runs it does nothing, which is guarded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from smelt.capture import attributes
from smelt.capture.natives import is_native_module
from smelt.capture.tables import function, unsupported
from smelt.capture.values import instance_dict

_record_function = torch.autograd.profiler.record_function
# Capture neither enters nor leaves these. Around a graph break the compiled frames do, for real.
IDLE = (_record_function,)
_profiler_enabled = torch._C._autograd._profiler_enabled  # type: ignore[attr-defined]


def use_state(vm: Any, manager: Any) -> None:
    """Native code is going to enter or leave `manager`: guards what an outside one holds."""
    if id(manager) not in vm.outside.origins:
        return
    for name in list(instance_dict(manager) or ()):
        attributes.load_generic(vm, manager, name)
    vm.outside.touch(manager)


def _check_profiler(vm: Any) -> None:
    if vm.outside.wrap(_profiler_enabled(), vm.outside.const(_profiler_enabled).child("call", None)):
        raise unsupported("record_function under a profiler")


@function(_record_function.__enter__)
def _enter_record(vm: Any, args: Any, kwargs: Any) -> Any:
    _check_profiler(vm)
    return args[0]


@function(_record_function.__exit__)
def _exit_record(vm: Any, args: Any, kwargs: Any) -> None:
    _check_profiler(vm)
    vm.left(args[0])


def check_modes() -> bool:
    """Whether the call is under modes. Raises Unsupported for one of the user's: its handlers would run inside every
    operator of the capture."""
    modes = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    for mode in modes:
        if not is_native_module(type(mode).__module__):
            raise unsupported(f"a call under a {type(mode).__qualname__}")
    return bool(modes)
