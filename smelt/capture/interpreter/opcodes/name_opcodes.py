"""Globals, names of class bodies, imports."""

from __future__ import annotations

import sys

from smelt.capture.base.value_kinds import MISSING, unbound_callable
from smelt.capture.base.vm_frames import Frame
from smelt.capture.interpreter.opcodes.opcode_table import HANDLERS, opcode
from smelt.capture.semantics import attributes, scopes
from smelt.capture.semantics.calls import imports
from smelt.capture.vm.vm import VM

HANDLERS.update(
    LOAD_LOCALS=lambda vm, frame, arg: frame.stack.append(frame.namespace),
    STORE_GLOBAL=lambda vm, frame, arg: scopes.store_global(vm, frame.globals, arg, frame.stack.pop()),
)


@opcode("LOAD_GLOBAL")
def _load_global(vm: VM, frame: Frame, arg: tuple[str, bool]) -> None:
    name, push_null = arg
    value = scopes.load_global(vm, frame.globals, name)
    frame.stack += unbound_callable(value) if push_null else (value,)


@opcode("LOAD_NAME")
def _load_name(vm: VM, frame: Frame, arg: str) -> None:
    found = frame.namespace.get(arg, MISSING) if frame.namespace is not None else MISSING
    frame.stack.append(scopes.load_global(vm, frame.globals, arg) if found is MISSING else found)


@opcode("LOAD_FROM_DICT_OR_GLOBALS")
def _load_from_dict_or_globals(vm: VM, frame: Frame, arg: str) -> None:
    found = frame.stack[-1].get(arg, MISSING)
    frame.stack[-1] = scopes.load_global(vm, frame.globals, arg) if found is MISSING else found


@opcode("STORE_NAME")
def _store_name(vm: VM, frame: Frame, arg: str) -> None:
    frame.namespace[arg] = frame.stack.pop()


@opcode("DELETE_NAME")
def _delete_name(vm: VM, frame: Frame, arg: str) -> None:
    del frame.namespace[arg]


@opcode("DELETE_GLOBAL")
def _delete_global(vm: VM, frame: Frame, arg: str) -> None:
    scopes.load_global(vm, frame.globals, arg)
    scopes.delete_global(vm, frame.globals, arg)


@opcode("IMPORT_NAME")
def _import_name(vm: VM, frame: Frame, arg: str) -> None:
    stack = frame.stack
    level, names = stack[-2], stack[-1]
    module = imports.run_import(vm, arg, frame.globals, names, level)
    del stack[-2:]
    stack.append(module)


@opcode("IMPORT_FROM")
def _import_from(vm: VM, frame: Frame, arg: str) -> None:
    module = frame.stack[-1]
    found = attributes.load_default(vm, module, arg, MISSING)
    if found is MISSING:
        found = sys.modules.get(f"{module.__name__}.{arg}", MISSING)
        if found is MISSING:
            imports.raise_import_error(module, arg)
        vm.env.sources.find_or_const(found)
    frame.stack.append(found)


@opcode("SETUP_ANNOTATIONS")
def _setup_annotations(vm: VM, frame: Frame, arg: str) -> None:
    frame.namespace.setdefault("__annotations__", {})
