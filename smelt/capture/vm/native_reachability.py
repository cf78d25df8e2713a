"""Reachability analysis for native calls: whether native code may call user Python code through an argument."""

from __future__ import annotations

import collections
import datetime
import functools
import gc
import itertools
import operator
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.native_functions import is_native_module, runs_natively
from smelt.capture.base.value_kinds import LEAF_TYPES, FunctionType, MethodType
from smelt.capture.base.vm_frames import VM_ITERABLES, Coroutine, Generator, VMCallable
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.proxies.text_proxy import TextProxy
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.sym_numbers import NUMBERS
from smelt.tracing.symbolic.symbolic_ranges import PROXY_EXAMPLES

_DEPTH = 4  # the nesting depth of containers that are searched
_Parts = Callable[[Any], Iterable[Any]]


def _dict_parts(x: dict[object, object]) -> Iterable[object]:
    """Keys and values in any order: in its own order an OrderedDict calls the `__hash__` of each key."""
    return itertools.chain(dict.keys(x), dict.values(x))


def _viewed_parts(x: object) -> Iterable[object]:
    (mapping,) = gc.get_referents(x)
    return _dict_parts(mapping) if isinstance(mapping, dict) else (mapping,)


# The objects that native code may reach from an object of a C type.
_PARTS: tuple[tuple[type | tuple[type, ...], _Parts], ...] = (
    (dict, _dict_parts),
    (list, list.__iter__),
    (tuple, tuple.__iter__),
    (set, set.__iter__),
    (frozenset, frozenset.__iter__),
    (collections.deque, collections.deque.__iter__),
    (types.MappingProxyType, _viewed_parts),
    (type(collections.OrderedDict().keys()), _viewed_parts),  # subclasses of the next three
    (type(collections.OrderedDict().values()), _viewed_parts),
    (type(collections.OrderedDict().items()), _viewed_parts),
    (type({}.keys()), list),
    (type({}.values()), list),
    (type({}.items()), list),
    (slice, lambda x: (x.start, x.stop, x.step)),
    (functools.partial, lambda x: (x.func, *x.args, *x.keywords.values())),
    (MethodType, lambda x: (x.__func__, x.__self__)),
    (types.BuiltinFunctionType, lambda x: (x.__self__,)),
    (types.MethodWrapperType, lambda x: (x.__self__,)),
    (datetime.datetime, lambda x: (x.tzinfo,)),
    (datetime.time, lambda x: (x.tzinfo,)),
    (types.GenericAlias, lambda x: (x.__origin__, *x.__args__)),
    ((operator.itemgetter, operator.attrgetter, operator.methodcaller), lambda x: x.__reduce__()[1]),
    (types.SimpleNamespace, lambda x: vars(x).values()),
    (BaseException, lambda x: x.args),
)
_NEVER: tuple[type, ...] = (
    torch.Tensor,
    types.ModuleType,
    types.CodeType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
_PLAIN = {
    **dict.fromkeys(LEAF_TYPES - {slice}, False),
    FakeTensor: False,
    TextProxy: True,  # so that `call_in_window` refuses it
    OpaqueProxy: True,
    NumberProxy: True,
    Generator: False,
    Coroutine: False,
    VMCallable: False,
    **dict.fromkeys(VM_ITERABLES, True),
    **dict.fromkeys(NUMBERS | PROXY_EXAMPLES.keys(), False),
}
# Iterables of C whose iterators call no other code.
_PLAIN_ITERABLES: tuple[Any, ...] = (
    [], (), {}, {}.values(), {}.items(), set(), "", b"", range(0), range(1 << 70),
)  # fmt: skip
PLAIN_ITERATORS: frozenset[type] = frozenset(
    type(iter(x)) for x in (*_PLAIN_ITERABLES, reversed([]), reversed({}))
)


def _is_interpreted(function: FunctionType) -> bool:
    return not runs_natively(function)


class NativeReachability(dict[type, Any]):
    """By class: False (native code never calls user Python code through an instance), True (it may), or a function that
    returns the parts of an instance to check. A table lives for one capture, since classes may change; each class is
    guarded. `count_items` is called with the number of parts that were checked."""

    def __init__(
        self, guard_native_access: Callable[[type], None], count_items: Callable[[int], None]
    ) -> None:
        super().__init__(_PLAIN)
        self.guard_native_access = guard_native_access
        self.count_items = count_items

    def __missing__(self, kind: type) -> object:
        self.guard_native_access(kind)
        rule = self[kind] = _classify(kind)
        return rule


def may_call_python(reach: NativeReachability, value: object, depth: int = _DEPTH) -> bool:
    """Whether native code that receives `value` may call user Python code through it."""
    kind = type(value)
    rule = reach[kind]
    if rule is False or rule is True:
        return bool(rule)
    if rule is _is_interpreted:
        return _is_interpreted(value)
    if not depth:
        return False
    parts = list(rule(value))
    reach.count_items(len(parts))
    rules = [reach[k] for k in set(map(type, parts))]  # each class is guarded
    if all(r is False or r is True for r in rules):
        return any(rules)
    # A list: each class is guarded.
    return any([may_call_python(reach, part, depth - 1) for part in parts])  # noqa: C419


def _classify(kind: type) -> object:
    if issubclass(kind, _NEVER):
        return False
    if kind is FunctionType:
        return _is_interpreted
    if any(_is_python_class(base) for base in kind.__mro__) or "__next__" in kind.__dict__:
        return kind not in PLAIN_ITERATORS
    if kind is functools._lru_cache_wrapper:
        return True
    return next((parts for base, parts in _PARTS if issubclass(kind, base)), False)


def _is_python_class(cls: type) -> bool:
    """Whether a class has methods in Python that the VM interprets."""
    if not _native.made_by_python(cls) or is_native_module(cls.__module__):
        return any(type(v) is FunctionType and not runs_natively(v) for v in cls.__dict__.values())
    return any(_is_python_member(v) for v in cls.__dict__.values())


def _is_python_member(value: object) -> bool:
    kind = type(value)
    if isinstance(value, FunctionType):
        return not runs_natively(value)
    if kind in (property, classmethod, staticmethod, functools.cached_property):
        return True
    return _native.made_by_python(kind) and any(
        n in base.__dict__ for n in ("__get__", "__call__") for base in kind.__mro__
    )
