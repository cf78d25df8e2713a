"""The names that code sees: globals of modules, scopes that the trace made (`exec`), `locals()`."""

from __future__ import annotations

import builtins
import types
from collections.abc import Iterable

from smelt._native import isinstance
from smelt.capture.base.bytecode import PY313
from smelt.capture.base.value_kinds import MISSING, NULL
from smelt.capture.base.vm_frames import Frame
from smelt.capture.environment import environment_mutations, wrap_values
from smelt.capture.semantics import cells
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT, Reason

_BUILTINS = vars(builtins)


def load_global(vm: VM, namespace: dict[str, object], name: str) -> object:
    """The global or builtin `name`, guarded. Raises NameError where there is none."""
    key = (id(namespace), name)
    value = vm.scopes.globals.get(key, MISSING)
    if value is MISSING:
        value = _read_global(vm, namespace, name)
        if id(namespace) not in vm.scopes.made:
            vm.scopes.globals[key] = value
    return value


def own_scope(vm: VM, scope: dict[str, object]) -> None:
    """`scope`, made by the trace, is to hold the globals of code that runs. Raises Unsupported for a subclass of `dict`: its
    methods may be the user's."""
    if type(scope) is not dict:
        raise Unsupported(
            Reason(UNSUPPORTED_OBJECT, f"a {type(scope).__qualname__} holds the globals of code")
        )
    vm.scopes.made[id(scope)] = scope
    vm.env.sources.const(_BUILTINS)


def expose(vm: VM, namespace: dict[str, object]) -> dict[str, object]:
    """`globals()`: from now on it is an object like any other, which stays as it is if it is from outside."""
    if id(namespace) in vm.scopes.made:
        return namespace
    if vm.env.log.touches_any(namespace):
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "globals() of a module whose names were changed"))
    vm.env.sources.const(namespace)
    vm.env.changed.fixed.add(id(namespace))
    return namespace


def _read_global(vm: VM, namespace: dict[str, object], name: str) -> object:
    env, made = vm.env, id(namespace) in vm.scopes.made
    if made and name in namespace:
        return namespace[name]
    _check_names(vm, namespace)
    if name in namespace and not env.log.touches(namespace, name):
        return wrap_values.wrap(env, namespace[name], env.sources.const(namespace).child("item", name))
    found = namespace.get("__builtins__", _BUILTINS)
    found = found if isinstance(found, dict) else vars(found)
    if found is not _BUILTINS and not made:
        # a function keeps those that its module had when it was made
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, "a module with __builtins__ of its own"))
    # else the trace has deleted it, or made the scope
    if not made and not env.log.touches(namespace, name):
        env.facts.guard("contains", env.sources.const(namespace), (name, False), key=name)
    if found is not _BUILTINS and id(found) not in env.sources:  # made by the trace
        return _read_made(found, name)
    if name not in found:
        env.facts.guard("contains", env.sources.const(found), (name, False), key=name)
        raise NameError(f"name {name!r} is not defined", name=name)
    return wrap_values.wrap(env, found[name], env.sources.const(found).child("item", name))


def _check_names(vm: VM, namespace: dict[str, object]) -> None:
    """What code sees as its globals, the program may have in hand as a dictionary too: one way does not show what the
    other changes. So it stays as it is, and is known by identity. Raises Unsupported if it has changed."""
    if id(namespace) in vm.scopes.made:
        return
    known = vm.env.sources.const(namespace)
    if vm.env.sources[id(namespace)] is known:
        return
    if namespace in vm.env.log:
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "the globals of code were changed as a dictionary"))
    vm.env.changed.fixed.add(id(namespace))


def _read_made(namespace: dict[str, object], name: str) -> object:
    if name not in namespace:
        raise NameError(f"name {name!r} is not defined", name=name)
    return namespace[name]


def store_global(vm: VM, namespace: dict[str, object], name: str, value: object) -> None:
    """`name = value` for a global name."""
    if id(namespace) in vm.scopes.made:
        namespace[name] = value
        return
    _check_names(vm, namespace)
    environment_mutations.check_changeable(vm.env, namespace)
    vm.env.log.set_name(namespace, name, value)
    vm.scopes.globals[id(namespace), name] = value


def delete_global(vm: VM, namespace: dict[str, object], name: str) -> None:
    """`del name` of a global name."""
    if id(namespace) in vm.scopes.made:
        del namespace[name]
    elif vm.env.overlay.name(namespace, name) is MISSING:
        raise NameError(f"name {name!r} is not defined", name=name)
    else:
        environment_mutations.check_changeable(vm.env, namespace)
        vm.env.log.set_name(namespace, name, MISSING)
    vm.scopes.globals.pop((id(namespace), name), None)


def _named_slots(vm: VM, frame: Frame) -> Iterable[tuple[str, int]]:
    """The user's variables and where they are: a resume function has slots besides."""
    resumed = frame.code.original is not None
    code = vm.decode(frame.source) if resumed else frame.code
    return zip(code.local_names, frame.places)


def local_names(vm: VM, frame: Frame) -> dict[str, object]:
    """`locals()`: for a function always the same dictionary, brought up to date; from 3.13 on a new one (PEP 667)."""
    if frame.namespace is not None:
        return frame.namespace
    if frame.names is None or PY313:
        frame.names = {}
    found = frame.names
    for name, at in _named_slots(vm, frame):
        value = frame.locals[at]
        if type(value) is types.CellType:
            value = cells.cell_contents(vm, frame, at)
        if value is not NULL and value is not MISSING:
            found[name] = value
        else:
            found.pop(name, None)
    return found
