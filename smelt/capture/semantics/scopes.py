"""Namespaces of code: module globals, dictionaries created by the trace for `exec`, and `locals()`."""

from __future__ import annotations

import builtins
import types
from collections.abc import Iterable

from smelt._native import isinstance
from smelt.capture.base.bytecode import PY313
from smelt.capture.base.call_handlers import unsupported
from smelt.capture.base.value_kinds import MISSING, NULL
from smelt.capture.base.vm_frames import Frame, is_smelt_module
from smelt.capture.environment import environment_mutations, wrap_values
from smelt.capture.semantics import cells
from smelt.capture.vm.vm import VM
from smelt.reasons import UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT

_BUILTINS = vars(builtins)


def load_global(vm: VM, namespace: dict[str, object], name: str) -> object:
    """The global or builtin `name`, guarded. Raises NameError if there is none."""
    key = (id(namespace), name)
    value = vm.scopes.globals.get(key, MISSING)
    if value is MISSING:
        value = _read_global(vm, namespace, name)
        if id(namespace) not in vm.scopes.created:
            vm.scopes.globals[key] = value
    return value


def use_as_globals(vm: VM, scope: dict[str, object]) -> None:
    """Use the trace's `scope` as globals. Raises Unsupported for a subclass of `dict`, whose methods may be user code."""
    if type(scope) is not dict:
        raise unsupported(f"a {type(scope).__qualname__} holds the globals of code", UNSUPPORTED_OBJECT)
    vm.scopes.created[id(scope)] = scope
    vm.env.sources.const(_BUILTINS)


def expose_globals(vm: VM, namespace: dict[str, object]) -> dict[str, object]:
    """The namespace for `globals()`. It may be used as a dictionary, so an environment namespace must not change."""
    if id(namespace) in vm.scopes.created:
        return namespace
    if vm.env.log.has_written_any_name(namespace):
        raise unsupported("globals() of a module whose names were changed", UNSUPPORTED_EFFECT)
    vm.env.sources.const(namespace)
    vm.env.mutation_constraints.frozen.add(id(namespace))
    return namespace


def _read_global(vm: VM, namespace: dict[str, object], name: str) -> object:
    env, created = vm.env, id(namespace) in vm.scopes.created
    if created and name in namespace:
        return namespace[name]
    _check_not_changed_as_dict(vm, namespace)
    if name in namespace and not env.log.has_written_name(namespace, name):
        if type(namespace[name]) is types.FunctionType and is_smelt_module(namespace):
            env.sources.const(namespace[name])
            return namespace[name]
        return wrap_values.wrap(env, namespace[name], env.sources.const(namespace).child("item", name))
    builtin_names = namespace.get("__builtins__", _BUILTINS)
    builtin_names = builtin_names if isinstance(builtin_names, dict) else vars(builtin_names)
    if builtin_names is not _BUILTINS and not created:
        # a function uses the builtins that its module had when the function was created
        raise unsupported("a module with __builtins__ of its own", UNSUPPORTED_OBJECT)
    # otherwise the trace has deleted the name or created the namespace
    if not (created or is_smelt_module(namespace) or env.log.has_written_name(namespace, name)):
        env.facts.guard("contains", env.sources.const(namespace), (name, False), key=name)
    if builtin_names is not _BUILTINS and id(builtin_names) not in env.sources:  # created by the trace
        return _read_created(builtin_names, name)
    if name not in builtin_names:
        env.facts.guard("contains", env.sources.const(builtin_names), (name, False), key=name)
        raise NameError(f"name {name!r} is not defined", name=name)
    return wrap_values.wrap(env, builtin_names[name], env.sources.const(builtin_names).child("item", name))


def _check_not_changed_as_dict(vm: VM, namespace: dict[str, object]) -> None:
    """Guard that a namespace which the program also holds as a dictionary stays unchanged: neither access path sees the
    other's changes. Raises Unsupported if it was changed as a dictionary."""
    if id(namespace) in vm.scopes.created:
        return
    known = vm.env.sources.const(namespace)
    if vm.env.sources[id(namespace)] is known:
        return
    if namespace in vm.env.log:
        raise unsupported("the globals of code were changed as a dictionary", UNSUPPORTED_EFFECT)
    vm.env.mutation_constraints.frozen.add(id(namespace))


def _read_created(namespace: dict[str, object], name: str) -> object:
    if name not in namespace:
        raise NameError(f"name {name!r} is not defined", name=name)
    return namespace[name]


def store_global(vm: VM, namespace: dict[str, object], name: str, value: object) -> None:
    """`name = value` for a global name."""
    if id(namespace) in vm.scopes.created:
        namespace[name] = value
        return
    _check_not_changed_as_dict(vm, namespace)
    environment_mutations.check_mutable(vm.env, namespace)
    vm.env.log.set_name(namespace, name, value)
    vm.scopes.globals[id(namespace), name] = value


def delete_global(vm: VM, namespace: dict[str, object], name: str) -> None:
    """`del name` of a global name."""
    if id(namespace) in vm.scopes.created:
        del namespace[name]
    elif vm.env.overlay.name(namespace, name) is MISSING:
        raise NameError(f"name {name!r} is not defined", name=name)
    else:
        environment_mutations.check_mutable(vm.env, namespace)
        vm.env.log.set_name(namespace, name, MISSING)
    vm.scopes.globals.pop((id(namespace), name), None)


def _named_slots(vm: VM, frame: Frame) -> Iterable[tuple[str, int]]:
    """The user's variables and their slots. A resume function has additional slots."""
    resumed = frame.code.original is not None
    code = vm.decode(frame.user_code) if resumed else frame.code
    return zip(code.local_names, frame.slots)


def local_names(vm: VM, frame: Frame) -> dict[str, object]:
    """`locals()`: one dictionary per function frame, updated at each call; a new one from CPython 3.13 on (PEP 667)."""
    if frame.namespace is not None:
        return frame.namespace
    if frame.locals_dict is None or PY313:
        frame.locals_dict = {}
    values = frame.locals_dict
    for name, slot in _named_slots(vm, frame):
        value = frame.locals[slot]
        if type(value) is types.CellType:
            value = cells.cell_contents(vm, frame, slot)
        if value is not NULL and value is not MISSING:
            values[name] = value
        else:
            values.pop(name, None)
    return values
