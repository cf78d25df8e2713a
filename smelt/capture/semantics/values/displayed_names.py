"""Names that texts show: those of functions, classes and modules, which may be given others while they stay what they are.

`repr(f)`, `f"{cls}"` and `str(partial)` are made by native code. What they say beyond the identity of an object is guarded
here, before the text is made.
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
from smelt.tracing.symbolic.numbers_in_containers import plain_parts

_DEPTH = 4  # how many objects deep names are looked for
_OF_MODULES = ("__spec__", "__loader__", "__name__", "__file__")

# What the texts of objects of C show of others.
_PARTS: tuple[tuple[Any, Callable[[Any], Iterable[object]]], ...] = (
    (tuple, tuple.__iter__),
    (list, list.__iter__),
    (set, set.__iter__),
    (frozenset, frozenset.__iter__),
    (collections.deque, collections.deque.__iter__),
    (dict, lambda x: (*dict.keys(x), *dict.values(x))),
    (MethodType, lambda x: (x.__func__, x.__self__)),
    ((classmethod, staticmethod), lambda x: (x.__func__,)),
    (types.GenericAlias, lambda x: (x.__origin__, *x.__args__)),
    (types.UnionType, lambda x: x.__args__),
    (types.SimpleNamespace, lambda x: vars(x).values()),
    (BaseException, lambda x: x.args),
)


def use_names(vm: VM, value: object, depth: int = _DEPTH) -> None:
    """The trace depends on the names that the text of `value` shows."""
    if type(value) in LEAF_TYPES or not depth:
        return
    if isinstance(value, type):
        _use_name_of_class(vm, value)
    elif type(value) is FunctionType:
        attributes.load_attr(vm, value, "__qualname__")
    elif isinstance(value, np.generic):
        source = vm.env.sources.const(_way_of_numpy).child("call", None)
        vm.env.facts.guard("eq", source, _way_of_numpy())
    elif isinstance(value, types.ModuleType):
        for name in _OF_MODULES:
            with contextlib.suppress(AttributeError):
                attributes.load_attr(vm, value, name)
    elif isinstance(value, functools.partial):
        function, given, keywords = attributes.partial_parts(vm, value)
        for part in (function, *given, *keywords.values()):
            use_names(vm, plain_parts(part), depth - 1)
    else:
        for part in next((parts(value) for base, parts in _PARTS if isinstance(value, base)), ()):
            use_names(vm, part, depth - 1)


def _way_of_numpy() -> object:
    """The version of NumPy as which it writes scalars; False for its own."""
    return np.get_printoptions()["legacy"]


def _use_name_of_class(vm: VM, cls: type) -> None:
    """Guards the module and the qualified name of a class; the latter changes without a new version of the class."""
    vm.env.facts.use_class(cls)
    if not cls.__flags__ & IMMUTABLE_TYPE_FLAG and not vm.env.sources.is_made_class(cls):
        source = vm.env.sources.const(cls).child("member", "__qualname__")
        vm.env.facts.guard("eq", source, cls.__qualname__)
