"""Arguments of native code.

Python callables are wrapped so that their calls return to the VM. Environment objects of C classes whose data native code
could read without a guard are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import cast

import torch

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.call_handlers import BUILTINS, FUNCTIONS
from smelt.capture.base.native_functions import PURE_TYPES, REFUSED, is_native_scope, refusal
from smelt.capture.base.type_lookup import FUNCTION
from smelt.capture.base.value_kinds import (
    CONTAINER_BASES,
    LEAF_TYPES,
    BuiltinType,
    FunctionType,
    MethodType,
    is_identity,
)
from smelt.capture.base.vm_frames import VMCallable
from smelt.capture.semantics.calls.calls import CALLERS
from smelt.capture.semantics.calls.native_calls import IMMUTABLE, is_free_function
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.guards.object_text import class_text
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.tracing.fake.fake_tensor import FakeTensor


def native_callable(vm: VM, fn: object) -> Callable[..., object]:
    """`fn` as native code may call it, wrapped if the VM must execute the call."""
    if type(fn) is BuiltinType:
        return VMCallable(vm, fn) if runs_in_vm(fn) else fn
    return VMCallable(vm, fn) if _needs_vm(vm, fn) else cast("Callable[..., object]", fn)


def native_argument(vm: VM, value: object) -> object:
    """`value` as an argument of native code; Python callables are wrapped. Raises Unsupported for an environment object of a
    C class with data (an array, a buffer), whose reads cannot be guarded."""
    kind = type(value)
    if kind in (FunctionType, MethodType):
        return VMCallable(vm, value) if _needs_vm(vm, value) else value
    if kind is functools.partial or (type(value) is BuiltinType and runs_in_vm(value)):
        return VMCallable(vm, value)
    vm.env.facts.use_content(value)
    if id(value) in vm.env.sources and is_opaque(value):
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, f"native code reads an environment {class_text(kind)}"))
    return value


def _needs_vm(vm: VM, fn: object) -> bool:
    """Whether the VM must execute calls of `fn`: it runs user Python code or has a handler."""
    kind = type(fn)
    if type(fn) is FunctionType:
        return fn in FUNCTIONS or fn in REFUSED or not is_native_scope(fn.__globals__)
    if type(fn) is MethodType:
        return _needs_vm(vm, fn.__func__)
    if kind is functools.partial:
        return True
    vm.env.facts.use_content(fn)
    if isinstance(fn, type):
        return type(fn) is type and vm.type_info(fn).find("__init__")[0] is FUNCTION and fn not in BUILTINS
    return vm.type_info(kind).find("__call__")[0] is FUNCTION


def runs_in_vm(fn: BuiltinType) -> bool:
    """Whether the VM must execute a C function: it has a handler, is refused, or may change what it is bound to."""
    if fn.__hash__ is None:
        return True
    owner = fn.__self__
    if is_free_function(owner):
        return fn in BUILTINS or fn in REFUSED or refusal(fn) is not None
    return not (type(owner) in LEAF_TYPES or type(owner) in (tuple, frozenset, FakeTensor))


def is_opaque(value: object) -> bool:
    """Whether `value` is an instance of a C class whose contents the VM cannot guard."""
    kind = type(value)
    if kind in LEAF_TYPES or kind in PURE_TYPES or kind in CALLERS or is_identity(value):
        return False
    if isinstance(value, _TRANSPARENT):
        return False
    return not _native.made_by_python(kind) or any(map(_holds_data, kind.__mro__[1:]))


def _holds_data(cls: type) -> bool:
    """Whether `cls`, a base of a Python class, is a C class with data of its own."""
    return (
        cls is not object
        and not _native.made_by_python(cls)
        and cls.__module__.partition(".")[0] not in _KNOWN_LIBRARIES
    )


_KNOWN_LIBRARIES = frozenset(("torch", "pybind11_builtins"))
_TRANSPARENT = (*CONTAINER_BASES, tuple, frozenset, torch.Tensor, BaseException, *IMMUTABLE)
