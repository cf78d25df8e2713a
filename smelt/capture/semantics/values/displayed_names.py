"""Names in texts: functions, classes and modules can be renamed without changing identity.

Native code formats `repr(f)`, `f"{cls}"` and `str(partial)`. This module guards what such a text shows beyond an object's
identity, before it is formatted.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from smelt._native import isinstance
from smelt.capture.base.value_kinds import IMMUTABLE_TYPE_FLAG, LEAF_TYPES, FunctionType, MethodType
from smelt.capture.semantics import attributes
from smelt.capture.vm.vm import VM
from smelt.tracing.symbolic.numbers_in_containers import specialize_nested

_MAX_DEPTH = 4  # maximum nesting depth of the search for names
_MODULE_ATTRIBUTES = ("__spec__", "__loader__", "__name__", "__file__")

# Components that the texts of C objects show.
_COMPONENTS: tuple[tuple[Any, Callable[[Any], Iterable[object]]], ...] = (
    (tuple, tuple.__iter__), (list, list.__iter__), (set, set.__iter__), (frozenset, frozenset.__iter__),
    (collections.deque, collections.deque.__iter__), (dict, lambda x: (*dict.keys(x), *dict.values(x))),
    (MethodType, lambda x: (x.__func__, x.__self__)), ((classmethod, staticmethod), lambda x: (x.__func__,)),
    (types.GenericAlias, lambda x: (x.__origin__, *x.__args__)), (types.UnionType, lambda x: x.__args__),
    (types.SimpleNamespace, lambda x: vars(x).values()), (BaseException, lambda x: x.args),
)  # fmt: skip


def use_names(vm: VM, value: object, depth: int = _MAX_DEPTH) -> None:
    """Guard the names in the text of `value`."""
    if type(value) in LEAF_TYPES or not depth:
        return
    if isinstance(value, type):
        _guard_class_name(vm, value)
    elif type(value) is FunctionType:
        attributes.load_attr(vm, value, "__qualname__")
    elif isinstance(value, np.generic):
        source = vm.env.sources.const(_numpy_print_mode).child("call", None)
        vm.env.facts.guard("eq", source, _numpy_print_mode())
    elif isinstance(value, types.ModuleType):
        for name in _MODULE_ATTRIBUTES:
            with contextlib.suppress(AttributeError):
                attributes.load_attr(vm, value, name)
    elif isinstance(value, functools.partial):
        function, arguments, keywords = attributes.partial_parts(vm, value)
        for component in (function, *arguments, *keywords.values()):
            use_names(vm, specialize_nested(component), depth - 1)
    else:
        for component in next(
            (components(value) for base, components in _COMPONENTS if isinstance(value, base)), ()
        ):
            use_names(vm, component, depth - 1)


def _numpy_print_mode() -> object:
    """NumPy's legacy print mode; False for the current one."""
    return np.get_printoptions()["legacy"]


def _guard_class_name(vm: VM, cls: type) -> None:
    """Guard the module and qualified name of a class. Assigning `__qualname__` does not change the class version."""
    vm.env.facts.use_class(cls)
    if not cls.__flags__ & IMMUTABLE_TYPE_FLAG and not vm.env.sources.is_created_class(cls):
        source = vm.env.sources.const(cls).child("member", "__qualname__")
        vm.env.facts.guard("eq", source, cls.__qualname__)
