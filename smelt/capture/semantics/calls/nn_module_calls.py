"""`nn.Module.__call__`: `forward` directly if no hook is registered, which is guarded; else torch's own code,
interpreted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from smelt.capture.base.call_handlers import Args, Kwargs, unsupported
from smelt.capture.base.value_kinds import NULL, FunctionType
from smelt.capture.semantics import attributes
from smelt.capture.semantics.calls.python_functions import call_function, interpret
from smelt.capture.vm.vm import VM
from smelt.guards.read_source import HOOKS
from smelt.guards.source import Source
from smelt.reasons import UNSUPPORTED_EFFECT
from smelt.torch_private import CALL_IMPL, WRAPPED_CALL_IMPL

_module_globals = vars(torch.nn.modules.module)
_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


def call_module(vm: VM, module: nn.Module, args: Args, kwargs: Kwargs) -> object:
    """`module(*args, **kwargs)`. Raises Unsupported for backward hooks while gradients are recorded."""
    calls = vm.trace.module_calls
    if not calls.records:
        return _call_module(vm, module, args, kwargs)
    calls.begin()
    try:
        result = _call_module(vm, module, args, kwargs)
    except BaseException:
        calls.leave()
        raise
    calls.end(module, args, kwargs, result)
    return result


def _call_module(vm: VM, module: nn.Module, args: Args, kwargs: Kwargs) -> object:
    _check_initialized(vm, module)
    if torch.is_grad_enabled() and _has_backward_hooks(vm, module):
        raise unsupported("a module with backward hooks")
    if _overrides_call_impl(vm, module):
        return interpret(vm, WRAPPED_CALL_IMPL, (module, *args), kwargs)
    if has_hooks(vm, module):
        return interpret(vm, CALL_IMPL, (module, *args), kwargs)
    source = vm.env.sources.get(id(module))
    if source is not None:
        _guard_no_hooks(vm, module, source)
    call_site = vm.frames.take_call_site()
    function, owner = attributes.load_method(vm, module, "forward")
    vm.frames.call_site = call_site
    vm.frames.module_callers.append(vm.frame)
    try:
        if function is NULL:
            return vm.call(owner, args, kwargs)
        return call_function(vm, cast(FunctionType, function), (owner, *args), kwargs)
    finally:
        vm.frames.module_callers.pop()


def _check_initialized(vm: VM, module: nn.Module) -> None:
    """Raise Unsupported for the first call of a lazy module of the environment, which creates the module's parameters and
    changes its class: the call runs eagerly, and later calls are captured."""
    if issubclass(type(module), LazyModuleMixin) and id(module) in vm.env.sources:
        if LazyModuleMixin.has_uninitialized_params(module):  # type: ignore[arg-type]
            error = unsupported(f"the first call of a {type(module).__qualname__}", UNSUPPORTED_EFFECT)
            error.breaks, error.initializes = False, True
            raise error


def _guard_no_hooks(vm: VM, module: nn.Module, source: Source) -> None:
    """Guard that an environment module has no hooks, but for the dictionaries that the program itself assigns: before a
    graph break in its `__init__` it has none."""
    own = vm.env.overlay.instance_dict(module) or {}
    names = [n for n in HOOKS if vm.env.log.is_original_attribute(module, n, own.get(n))]
    if len(names) == len(HOOKS):
        vm.env.facts.guard("no_hooks", source)
        return
    for name in names:
        vm.env.facts.guard("len", source.child("attr", name), 0)


def _overrides_call_impl(vm: VM, module: nn.Module) -> bool:
    """Whether the class, a base or the instance overrides `nn.Module._call_impl`."""
    vm.env.facts.use_lookups(type(module))
    found = vm.type_info(type(module)).find("_call_impl")[1]
    return attributes.is_in_instance(vm, module, "_call_impl") or found is not CALL_IMPL


def _has_backward_hooks(vm: VM, module: nn.Module) -> bool:
    return _has_any_hook(
        vm, vm.env.overlay.instance_dict(module), ("_backward_hooks", "_backward_pre_hooks")
    ) or _has_any_hook(vm, _module_globals, ("_global_backward_hooks", "_global_backward_pre_hooks"))


def _has_any_hook(vm: VM, owner: Mapping[str, object] | None, names: Sequence[str]) -> bool:
    """Whether one of these hook dictionaries is not empty."""
    return any(vm.env.overlay.now(owner.get(n)) for n in names) if owner else False


def has_hooks(vm: VM, module: nn.Module) -> bool:
    """Whether `__call__` does more than call `forward`. Guards that no global module hook is registered."""
    if _has_any_hook(vm, vm.env.overlay.instance_dict(module), HOOKS) or _has_any_hook(
        vm, _module_globals, _GLOBAL_HOOKS
    ):
        return True
    for name in _GLOBAL_HOOKS:
        vm.env.facts.guard("len", vm.env.sources.const(_module_globals).child("item", name), 0)
    return False
