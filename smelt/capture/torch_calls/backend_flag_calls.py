"""Functions that set process-wide backend flags (`graph/backend_flags.py`): capture calls them and restores the flags at its
end."""

from __future__ import annotations

from types import FunctionType
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, function, unsupported
from smelt.capture.base.value_kinds import LEAF_TYPES
from smelt.capture.environment.side_effects import Call
from smelt.capture.semantics.calls import library_reads, native_calls
from smelt.capture.semantics.values import context_managers
from smelt.capture.vm.vm import VM
from smelt.graph.backend_flags import SETTINGS
from smelt.reasons import UNSUPPORTED_EFFECT


def _register(setter: FunctionType) -> None:
    @function(setter)
    def call(vm: VM, args: Args, kwargs: Kwargs) -> object:
        context_managers.save_process_settings(vm, setter)
        library_reads.use_native_function(vm.env, setter)
        return native_calls.run_native(vm, setter, args, kwargs)


for _setter in SETTINGS:
    _register(_setter)


@function(torch.set_default_device)
def _set_default_device(vm: VM, args: Args, kwargs: Kwargs) -> None:
    """Defer `torch.set_default_device(device)` to the compiled frame if `device` is the default already. Refuse others: the
    trace's own mode is above the mode that the call would replace."""
    (device,) = (*args, *kwargs.values())
    if type(device) not in LEAF_TYPES and not isinstance(device, torch.device):
        raise unsupported("torch.set_default_device", UNSUPPORTED_EFFECT)
    with vm.trace.paused():
        default = torch.get_default_device()
        wanted = torch.device("cpu" if device is None else cast(str, device))
    if wanted.type != "cpu" or default.type != "cpu":
        raise unsupported("torch.set_default_device", UNSUPPORTED_EFFECT)
    vm.env.sources.const(torch.set_default_device)
    vm.env.log.defer_call(Call(torch.set_default_device, (device,)))
