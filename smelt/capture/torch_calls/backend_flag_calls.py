"""Functions that set process-wide backend flags (`graph/backend_flags.py`): capture calls them and restores the flags at its
end. Functions that return settings which the global state leaves out: guards call them."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, builtin, function, unsupported
from smelt.capture.base.value_kinds import LEAF_TYPES
from smelt.capture.environment.side_effects import Call
from smelt.capture.semantics.calls import library_reads, native_calls
from smelt.capture.semantics.values import context_managers
from smelt.capture.vm.vm import VM
from smelt.graph import torch_settings
from smelt.graph.backend_flags import SETTINGS
from smelt.reasons import UNSUPPORTED_EFFECT
from smelt.torch_private import SETTING_QUERIES
from smelt.tracing.symbolic.numbers_in_containers import specialize_nested


def _register(setter: FunctionType) -> None:
    @function(setter)
    def call(vm: VM, args: Args, kwargs: Kwargs) -> object:
        context_managers.save_process_settings(vm, setter)
        library_reads.use_native_function(vm.env, setter)
        return native_calls.run_native(vm, setter, args, kwargs)


for _setter in SETTINGS:
    _register(_setter)


def _register_default(setter: FunctionType) -> None:
    """Register a function that sets what `torch_settings` has: the graph and the compiled frame repeat it."""

    @function(setter)
    def call(vm: VM, args: Args, kwargs: Kwargs) -> None:
        arguments = specialize_nested((tuple(args), dict(kwargs)))
        if not all(type(value) in LEAF_TYPES for value in (*arguments[0], *arguments[1].values())):
            raise unsupported(f"torch.{setter.__name__}", UNSUPPORTED_EFFECT)
        library_reads.use_native_function(vm.env, setter)
        with vm.trace.paused():
            setter(*arguments[0], **arguments[1])
        before, now = vm.trace.torch_recorder.first_state, torch_settings.read()
        kinds = (torch_settings.DEFAULT_DTYPE, torch_settings.DETERMINISTIC)
        vm.trace.call.changed -= frozenset(kinds)
        vm.trace.call.changed |= frozenset(i for i in kinds if before[i] != now[i])


for _default in (torch.set_default_dtype, torch.use_deterministic_algorithms):
    _register_default(cast(FunctionType, _default))


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


def _register_query(query: Callable[..., object]) -> None:
    @builtin(query)
    def call(vm: VM, args: Args, kwargs: Kwargs) -> object:
        """The setting; unguarded if the function itself has changed it."""
        if vm.contexts.process:
            raise unsupported("a setting is read after another was changed", UNSUPPORTED_EFFECT)
        value = native_calls.run_native(vm, query, args, kwargs)
        if vm.contexts.switches.get(query, value) == value:
            library_reads.use_setting(vm.env, query, args, kwargs, value)
        return value


for _query in SETTING_QUERIES:
    _register_query(_query)
