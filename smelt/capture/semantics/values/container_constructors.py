"""Constructors of builtin containers: `list(...)`, `dict(...)`, `Counter(...)`, `{**mapping}`."""

from __future__ import annotations

import builtins
import collections
import collections.abc
import types
from collections.abc import Callable
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.base.bytecode import PY314
from smelt.capture.base.call_handlers import BUILTINS, Args, Handler, Kwargs, builtin
from smelt.capture.environment import container_contents
from smelt.capture.semantics import attributes
from smelt.capture.semantics.attributes import python_method
from smelt.capture.semantics.values import set_methods
from smelt.capture.semantics.values.iteration import from_iterable, iterate_lazily
from smelt.capture.vm.vm import VM

_FROM_ITERABLES: tuple[type, ...] = (tuple, list, collections.deque, torch.Size)
BUILTINS.update((constructor, from_iterable(constructor)) for constructor in _FROM_ITERABLES)


def _native_keys(vm: VM, obj: object) -> object:
    """Keys for native code. Keys of a set or dictionary are not hashed again."""
    return set_methods.operand(vm, obj if isinstance(obj, (set, frozenset, dict)) else vm.elements(obj))


def _set_constructor(constructor: Callable[..., object]) -> Handler:
    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        return vm.call_native(constructor, [*(_native_keys(vm, a) for a in args[:1]), *args[1:]], kwargs)

    return handler


BUILTINS[set], BUILTINS[frozenset] = _set_constructor(set), _set_constructor(frozenset)


def _dict_constructor(constructor: Callable[..., object]) -> Handler:
    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        return vm.call_native(constructor, [mapping_or_pairs(vm, a) for a in args], kwargs)

    return handler


BUILTINS[dict] = _dict_constructor(dict)
BUILTINS[collections.OrderedDict] = _dict_constructor(collections.OrderedDict)


@builtin(collections.Counter)
def _counter(vm: VM, args: Args, kwargs: Kwargs) -> object:
    return vm.call_native(collections.Counter, [_counter_argument(vm, a) for a in args], kwargs)


def _counter_argument(vm: VM, obj: object) -> object:
    """Argument of a `Counter`: the counts of a mapping, or elements."""
    if obj is None:
        return None
    is_mapping = isinstance(obj, dict) or vm.call(builtins.isinstance, (obj, collections.abc.Mapping), {})
    return mapping(vm, obj) if is_mapping else vm.elements(obj)


@builtin(collections.defaultdict)
def _defaultdict(vm: VM, args: Args, kwargs: Kwargs) -> object:
    factory, *arguments = args if args else (None,)
    if factory is not None and factory not in (list, dict, set, int, float, tuple, str, bool):
        factory = vm.native_callable(factory)
    return vm.call_native(
        collections.defaultdict, [factory, *[mapping_or_pairs(vm, a) for a in arguments]], kwargs
    )


@builtin(dict.fromkeys)
def _dict_fromkeys(vm: VM, args: Args, kwargs: Kwargs) -> object:
    if isinstance(args[0], (set, frozenset)):
        vm.env.facts.use_order(vm.env.overlay.now(args[0]))
    return vm.call_native(dict.fromkeys, (_native_keys(vm, args[0]), *args[1:]))


def mapping_or_pairs(vm: VM, obj: object) -> dict[object, object] | list[tuple[object, ...]]:
    """Argument of `dict(obj)`: the dictionary of a mapping, or the pairs of another iterable. Raises as `dict`."""
    if isinstance(obj, (dict, types.MappingProxyType)) or python_method(vm, obj, "keys") is not None:
        return mapping(vm, obj)
    return [_pair(vm, i, pair) for i, pair in enumerate(iterate_lazily(vm, obj))]


def _pair(vm: VM, number: int, pair: object) -> tuple[object, ...]:
    if not isinstance(pair, tuple):
        vm.env.facts.use_class(type(pair))
        if not hasattr(type(pair), "__iter__") and not hasattr(type(pair), "__getitem__"):
            raise _not_a_pair_error(number)
        pair = tuple(vm.elements(pair))
    if len(pair) != 2:
        raise ValueError(
            f"dictionary update sequence element #{number} has length {len(pair)}; 2 is required"
        )
    return pair


def _not_a_pair_error(number: int) -> TypeError:
    what = f"annot convert dictionary update sequence element #{number} to a sequence"
    if not PY314:
        return TypeError("c" + what)
    error = TypeError("object is not iterable")
    error.add_note("C" + what)
    return error


def mapping(vm: VM, obj: object) -> dict[object, object]:
    """`obj` of `**obj` or `dict.update(obj)` as a dictionary."""
    if isinstance(obj, dict) and python_method(vm, obj, "keys") is None:
        if (items := container_contents.symbolic_items(vm.env, obj)) is not None:
            return items
        return cast("dict[object, object]", container_contents.native_view(vm.env, obj, deep=False))
    keys = vm.elements(vm.call(attributes.load_attr(vm, obj, "keys"), (), {}))
    pairs = [(k, vm.subscript(obj, k)) for k in keys]
    return cast("dict[object, object]", vm.call_native(dict, (pairs,)))
