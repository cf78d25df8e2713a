"""Parameters, buffers and submodules: the attributes that an `nn.Module` keeps in dictionaries of its own.

`nn.Module.__getattr__` looks into three dictionaries (`MODULE_DICTS`) for what the instance's `__dict__` does not hold, and
`nn.Module.__setattr__` chooses among them. The guard of such an attribute is made here: `load_entry` reads it at the origin
`("param", name)` of its module, and `guard_absent` says that a module has no attribute of a name.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from smelt.capture.base.values import MISSING, instance_dict
from smelt.capture.machine.vm import VM
from smelt.capture.outside import changes, wrapping

MODULE_DICTS = ("_parameters", "_buffers", "_modules")
MODULE_GETATTR = nn.Module.__getattr__
MODULE_SETATTR = nn.Module.__setattr__
_Entries = dict[str, object]


def load_entry(vm: VM, module: object, name: str, own: dict[str, object]) -> object:
    """The parameter, buffer or submodule `name` of a module whose `__dict__` is `own`; MISSING if it has none."""
    outside = vm.outside
    for key in MODULE_DICTS:
        entries = cast("_Entries | None", own.get(key))
        if entries is not None and name in entries:
            value = entries[name]
            origin = outside.origins.get(id(module))
            if origin is None:
                return wrapping.fake(outside, value)
            if not outside.log.is_original(entries, name, value):
                return value
            result = wrapping.wrap(outside, value, origin.child("param", name))
            outside.memo.of(module)[name] = result
            return result
    return MISSING


def guard_absent(vm: VM, obj: object, name: str, own: dict[str, object]) -> None:
    """An object from outside, whose `__dict__` is `own`, has no attribute `name`, in a module's dictionaries neither."""
    origin = vm.outside.origins.get(id(obj))
    if origin is None or not vm.outside.log.was_absent(obj, name):
        return
    parts = [own[k] for k in MODULE_DICTS if isinstance(own.get(k), dict)]
    if all(k != name for part in parts for k, _ in vm.outside.log.contents(part)):
        vm.outside.facts.guard("no_attr", origin, name, key=name)


def belongs_in_dicts(module: nn.Module, name: str, value: object) -> bool:
    """Whether `module.name = value` changes one of the module's dictionaries."""
    return isinstance(value, (nn.Parameter, nn.Module)) or any(name in held for held in _dicts_of(module))


def store_entry(vm: VM, module: nn.Module, name: str, value: object) -> None:
    """What `nn.Module.__setattr__` does where `belongs_in_dicts`; the undo log remembers."""
    for entries in _dicts_of(module):
        if id(entries) in vm.outside.origins:
            changes.touch(vm.outside, entries)
        else:
            _touch_dict(vm, module, entries)
    changes.touch(vm.outside, module)
    vm.outside.memo.by_id.pop(id(module), None)
    with torch._C.DisableTorchFunction():
        MODULE_SETATTR(module, name, cast("torch.Tensor | nn.Module", value))


def touch_dicts(vm: VM, module: nn.Module) -> None:
    """The dictionaries of an outside module are about to change."""
    for entries in _dicts_of(module):
        _touch_dict(vm, module, entries)


def _dicts_of(module: nn.Module) -> list[_Entries]:
    own = instance_dict(module) or {}
    return [cast(_Entries, own[k]) for k in MODULE_DICTS if k in own]


def _touch_dict(vm: VM, module: nn.Module, entries: _Entries) -> None:
    origin = vm.outside.origins.get(id(module))
    if origin is not None:
        key = next(k for k in MODULE_DICTS if module.__dict__.get(k) is entries)
        wrapping.wrap(vm.outside, entries, origin.child("attr", key))
        changes.touch(vm.outside, entries)
