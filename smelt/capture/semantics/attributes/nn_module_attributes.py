"""Parameters, buffers and submodules: attributes in an `nn.Module`'s own dictionaries.

`nn.Module.__getattr__` searches three dictionaries (`MODULE_DICTS`) for names missing from the instance dictionary, and
`nn.Module.__setattr__` selects one of them. This module creates the guards of such attributes: `load_entry` uses the source
`("param", name)` of the module, and `guard_absent` guards that a module has no attribute of a name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import nn

from smelt._native import isinstance
from smelt.capture.base.value_kinds import MISSING
from smelt.capture.environment import environment_mutations, wrap_values
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.vm.vm import VM
from smelt.torch_private import DisableTorchFunction

MODULE_DICTS = ("_parameters", "_buffers", "_modules")
MODULE_GETATTR = nn.Module.__getattr__
MODULE_SETATTR = nn.Module.__setattr__
_Entries = dict[str, object]


def load_entry(vm: VM, module: object, name: str, own: dict[str, object]) -> object:
    """The parameter, buffer or submodule `name` of a module whose `__dict__` is `own`; MISSING if there is none."""
    env = vm.env
    for key in MODULE_DICTS:
        entries = cast("_Entries | None", own.get(key))
        current = {} if entries is None else env.overlay.now(entries)
        if entries is not None and name in current:
            value = current[name]
            source = env.sources.get(id(module))
            if source is None:
                return wrap_values.to_fake(env, value)
            if not env.log.is_original(entries, name, value):
                return value
            result = wrap_values.wrap(env, value, source.child("param", name))
            if module not in env.log and entries not in env.log:
                env.memo.record_attribute(entries, module, name, result)
            return result
    return MISSING


def guard_absent(vm: VM, obj: object, name: str, own: dict[str, object]) -> None:
    """Guard that an environment object with the `__dict__` `own` has no attribute `name`, as a module has them."""
    source = vm.env.sources.get(id(obj))
    if source is None or not vm.env.log.was_absent(obj, name):
        return
    dicts = [own[k] for k in MODULE_DICTS if isinstance(own.get(k), dict)]
    if all(k != name for entries in dicts for k, _ in vm.env.log.contents(entries)):
        vm.env.facts.guard("no_attr", source, name, key=name)


def belongs_in_dicts(vm: VM, module: nn.Module, name: str, value: object) -> bool:
    """Whether `module.name = value` changes one of the module's dictionaries."""
    kind = vm.class_of(value) if isinstance(value, OpaqueProxy) else type(value)
    return issubclass(kind, nn.Module) or isinstance(value, nn.Parameter) or _is_registered(vm, module, name)


def store_entry(vm: VM, module: nn.Module, name: str, value: object) -> None:
    """`nn.Module.__setattr__` if `belongs_in_dicts`."""
    with DisableTorchFunction():
        _mutate(vm, module, lambda it: MODULE_SETATTR(it, name, cast("torch.Tensor | nn.Module", value)))


def delete_entry(vm: VM, module: nn.Module, name: str) -> bool:
    """`nn.Module.__delattr__` for a name in one of the module's dictionaries; False for other names."""
    if not _is_registered(vm, module, name):
        return False
    holders = [entries for entries in _dicts_of(vm, module) if name in vm.env.overlay.now(entries)]
    _mutate(vm, module, lambda it: nn.Module.__delattr__(it, name))
    for entries in holders:
        environment_mutations.record_deletion(vm.env, entries, name)
    return True


def _mutate(vm: VM, module: nn.Module, change: Callable[[nn.Module], None]) -> None:
    """Let torch's own code change the dictionaries of `module`, or of a substitute with those of the overlay."""
    if id(module) not in vm.env.sources:
        return change(module)
    overlay, own = vm.env.overlay, vm.env.overlay.instance_dict(module)
    assert own is not None
    for key in _MODULE_STATE:
        if key in own:
            _touch_dict(vm, module, key, own[key])
    environment_mutations.record_mutation(vm.env, module)
    vm.env.memo.reads.pop(id(module), None)
    own = overlay.instance_dict(module)
    assert own is not None
    substitute = nn.Module.__new__(nn.Module)
    state = {k: overlay.now(v) if k in _MODULE_STATE else v for k, v in own.items()}
    object.__setattr__(substitute, "__dict__", state)
    change(substitute)
    for key in [
        k for k in own if k not in state
    ]:  # a name that became a parameter is no longer a plain attribute
        del own[key]


_MODULE_STATE = (*MODULE_DICTS, "_non_persistent_buffers_set")


def _dicts_of(vm: VM, module: nn.Module) -> list[_Entries]:
    own = vm.env.overlay.instance_dict(module) or {}
    return [cast(_Entries, own[k]) for k in MODULE_DICTS if k in own]


def _is_registered(vm: VM, module: nn.Module, name: str) -> bool:
    return any(name in vm.env.overlay.now(entries) for entries in _dicts_of(vm, module))


def _touch_dict(vm: VM, module: nn.Module, key: str, entries: object) -> None:
    if id(entries) not in vm.env.sources:
        wrap_values.wrap(vm.env, entries, vm.env.sources[id(module)].child("attr", key))
    environment_mutations.record_mutation(vm.env, entries)
