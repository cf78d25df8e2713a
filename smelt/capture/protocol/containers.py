"""Builtin containers: how they are made, iterated and read, with guards as narrow as what was read."""

from __future__ import annotations

import bisect
import collections
import functools
import heapq
import itertools
import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.checkpoint

from smelt.capture.base.frames import VMCallable
from smelt.capture.base.handlers import BUILTINS, METHODS, Handler, builtin, method, unsupported
from smelt.capture.base.values import CONTAINER_BASES, MISSING, is_constant, is_identity, is_lookup_key
from smelt.capture.machine.vm import VM
from smelt.capture.outside import changes, contents
from smelt.capture.protocol import attributes, polyfills
from smelt.capture.protocol.attributes import python_method
from smelt.reasons import UNSUPPORTED_OBJECT
from smelt.trace.fake import FakeTensor

# -------------------------------------------------------------------------------------------------- containers


@builtin(len)
def _len(vm: VM, args: Any, kwargs: Any) -> int:
    (obj,) = args
    if type(obj) is FakeTensor:
        if not obj.spec.shape:
            raise TypeError("len() of a 0-d tensor")
        return attributes.shape_of(obj)[0]
    found = python_method(vm, obj, "__len__")
    if found is not None:
        return checked_len(vm.call_function(found, (obj,)))
    return container_len(vm, obj)


def checked_len(found: Any) -> int:
    """What `__len__` gave. Raises as the interpreter would."""
    length = operator.index(found)
    if length < 0:
        raise ValueError("__len__() should return >= 0")
    return length


def container_len(vm: VM, obj: Any) -> int:
    outside = vm.outside
    outside.facts.check_readable(obj)
    if outside.opened.stale:
        contents.update_copies(outside)
    if isinstance(obj, CONTAINER_BASES) and id(obj) in outside.origins:
        outside.facts.guard("len", outside.origins[id(obj)], len(outside.log.contents(obj)))
    return len(obj)


@builtin(iter)
def _iter(vm: VM, args: Any, kwargs: Any) -> Any:
    if len(args) == 2:
        return iter(VMCallable(vm, args[0]), args[1])
    return vm.get_iter(args[0])


@builtin(next)
def _next(vm: VM, args: Any, kwargs: Any) -> Any:
    try:
        return vm.next(args[0])
    except StopIteration:
        if len(args) > 1:
            return args[1]
        raise


def _from_iterable(make: Any) -> Handler:
    def handler(vm: VM, args: Any, kwargs: Any) -> Any:
        if not args:
            return make(**kwargs)
        return vm.native(make, (vm.elements(args[0], hinted=make in (list, tuple)), *args[1:]), kwargs)

    return handler


_make: Any
for _make in (
    tuple,
    list,
    set,
    frozenset,
    collections.deque,
    enumerate,
    all,
    any,
    sum,
    torch.Size,
    itertools.chain.from_iterable,
):
    BUILTINS[_make] = _from_iterable(_make)


def _each(vm: VM, obj: Any) -> Iterator[Any]:
    """The elements one after the other: what follows the last that is asked for is not touched."""
    iterator = vm.get_iter(obj)
    while True:
        try:
            value = vm.next(iterator)
        except StopIteration:
            return
        yield value


def _quantifier(stop: bool) -> Handler:
    def handler(vm: VM, args: Any, kwargs: Any) -> bool:
        for value in _each(vm, args[0]):
            if vm.truth(value) is stop:
                return stop
        return not stop

    return handler


BUILTINS[all] = _quantifier(False)
BUILTINS[any] = _quantifier(True)


@builtin(sum)
def _sum(vm: VM, args: Any, kwargs: Any) -> Any:
    total = kwargs.get("start", args[1] if len(args) > 1 else 0)
    for value in _each(vm, args[0]):
        total = vm.binary(operator.add, total, value)
    return total


@builtin(reversed)
def _reversed(vm: VM, args: Any, kwargs: Any) -> Any:
    (obj,) = args
    found = python_method(vm, obj, "__reversed__")
    if found is not None:
        return vm.call_function(found, (obj,))
    if python_method(vm, obj, "__getitem__") is not None:
        return vm.call(polyfills.reversed_sequence, (obj,), {})
    return reversed(vm.iterable(obj))  # type: ignore[call-overload]  # raises what `reversed` raises


@builtin(zip)
def _zip(vm: VM, args: Any, kwargs: Any) -> Any:
    return zip(*[vm.iterable(a) for a in args], **kwargs)


@builtin(map)
def _map(vm: VM, args: Any, kwargs: Any) -> Any:
    fn, *rest = args
    return map(vm.native_callable(fn), *[vm.iterable(a) for a in rest])


@builtin(filter)
def _filter(vm: VM, args: Any, kwargs: Any) -> Any:
    fn, values = args
    return filter(None if fn is None else vm.native_callable(fn), vm.iterable(values))


@builtin(sorted)
def _sorted(vm: VM, args: Any, kwargs: Any) -> Any:
    kwargs = {k: vm.native_argument(v) for k, v in kwargs.items()}
    return vm.native(sorted, (vm.elements(args[0], hinted=True),), kwargs)


def _extreme(choose: Any) -> Handler:
    def handler(vm: VM, args: Any, kwargs: Any) -> Any:
        kwargs = {k: vm.native_argument(v) for k, v in kwargs.items()}
        if len(args) == 1:
            return vm.native(choose, (vm.elements(args[0]),), kwargs)
        return vm.native(choose, args, kwargs)

    return handler


BUILTINS[min] = _extreme(min)
BUILTINS[max] = _extreme(max)


@builtin(functools.reduce)
def _reduce(vm: VM, args: Any, kwargs: Any) -> Any:
    fn, values, *rest = args
    return functools.reduce(vm.native_callable(fn), vm.elements(values), *rest)


def _dict_maker(make: Any) -> Handler:
    def handler(vm: VM, args: Any, kwargs: Any) -> Any:
        return vm.native(make, [mapping_or_pairs(vm, a) for a in args], kwargs)

    return handler


BUILTINS[dict] = _dict_maker(dict)
BUILTINS[collections.OrderedDict] = _dict_maker(collections.OrderedDict)


@builtin(collections.Counter)
def _counter(vm: VM, args: Any, kwargs: Any) -> Any:
    args = [mapping(vm, a) if isinstance(a, dict) else vm.elements(a) for a in args]
    return vm.native(collections.Counter, args, kwargs)


@builtin(collections._count_elements)  # type: ignore[attr-defined]
def _count_elements(vm: VM, args: Any, kwargs: Any) -> None:
    """What `Counter.update` does for elements."""
    counts, elements = args
    for element in vm.elements(elements):
        vm.store_item(counts, element, vm.binary(operator.add, _dict_get(vm, counts, element, 0), 1))


@builtin(collections.defaultdict)
def _defaultdict(vm: VM, args: Any, kwargs: Any) -> Any:
    factory, *rest = args if args else (None,)
    if factory is not None and factory not in (list, dict, set, int, float, tuple, str, bool):
        factory = vm.native_callable(factory)
    return vm.native(collections.defaultdict, [factory, *[mapping_or_pairs(vm, a) for a in rest]], kwargs)


def mapping_or_pairs(vm: VM, obj: Any) -> Any:
    if isinstance(obj, dict):
        return mapping(vm, obj)
    if python_method(vm, obj, "keys") is not None:
        return mapping(vm, obj)
    return [_pair(vm, i, pair) for i, pair in enumerate(_each(vm, obj))]


def _pair(vm: VM, number: int, pair: Any) -> Any:
    if not isinstance(pair, tuple):
        if not hasattr(type(pair), "__iter__") and not hasattr(type(pair), "__getitem__"):
            raise TypeError(f"cannot convert dictionary update sequence element #{number} to a sequence")
        pair = tuple(vm.elements(pair))
    if len(pair) != 2:
        raise ValueError(
            f"dictionary update sequence element #{number} has length {len(pair)}; 2 is required"
        )
    return pair


def mapping(vm: VM, obj: Any) -> Any:
    """What `**obj` or `dict.update(obj)` reads, as a dictionary."""
    if isinstance(obj, dict) and python_method(vm, obj, "keys") is None:
        return contents.view(vm.outside, obj, deep=False)
    keys = vm.elements(vm.call(attributes.load_attr(vm, obj, "keys"), (), {}))
    return vm.native(dict, ([(k, vm.subscript(obj, k)) for k in keys],))


# -------------------------------------------------------------------- functions of C that change their arguments


def _interpreted(polyfill: Any) -> Handler:
    return lambda vm, args, kwargs: vm.call(polyfill, tuple(args), kwargs)


for _name in ("heappush", "heappop", "heapreplace", "heappushpop", "heapify"):
    BUILTINS[getattr(heapq, _name)] = _interpreted(getattr(polyfills, _name))
BUILTINS[bisect.insort_right] = _interpreted(polyfills.insort_right)
BUILTINS[bisect.insort_left] = _interpreted(polyfills.insort_left)
BUILTINS[operator.setitem] = lambda vm, args, kwargs: vm.store_item(*args)
BUILTINS[operator.delitem] = lambda vm, args, kwargs: vm.delete_item(*args)


# ------------------------------------------------------------------------------------ methods of containers


def _known_key(vm: VM, obj: Any, key: Any) -> bool:
    """Whether a read of `obj[key]` must be guarded, alone: the trace has not written that entry."""
    outside = vm.outside
    if id(obj) not in outside.origins:
        return False
    if not (is_constant(key) or is_identity(key)):
        outside.facts.use_identity(key)
    if not is_lookup_key(key):
        raise unsupported(
            f"a {type(key).__qualname__} is looked up in an outside dictionary", UNSUPPORTED_OBJECT
        )
    if obj not in outside.log:
        return True
    now, was = vm.keyed(dict.get, obj, key, MISSING), outside.log.original_entry(obj, key)
    return now is was


@method(dict, "get")
def _dict_get(vm: VM, obj: Any, key: Any, default: Any = None) -> Any:
    if _known_key(vm, obj, key):
        present = bool(vm.keyed(dict.__contains__, obj, key))
        vm.outside.facts.guard("contains", vm.outside.origins[id(obj)], (key, present), key=key)
        return (
            contents.item(vm.outside, obj, key, vm.keyed(dict.__getitem__, obj, key)) if present else default
        )
    found = vm.keyed(dict.get, obj, key, MISSING)
    if found is MISSING:
        return default
    return vm.item_value(obj, key, found)


@method(dict, "__contains__")
def _dict_contains(vm: VM, obj: Any, key: Any) -> bool:
    return contains_key(vm, obj, key)


def contains_key(vm: VM, obj: Any, key: Any) -> bool:
    present = bool(vm.keyed(dict.__contains__, obj, key))
    if _known_key(vm, obj, key):
        vm.outside.facts.guard("contains", vm.outside.origins[id(obj)], (key, present), key=key)
    return present


@method(dict, "setdefault")
def _dict_setdefault(vm: VM, obj: Any, key: Any, default: Any = None) -> Any:
    if contains_key(vm, obj, key):
        return vm.item_value(obj, key, vm.keyed(dict.__getitem__, obj, key))
    changes.touch(vm.outside, obj)
    return vm.keyed(dict.setdefault, obj, key, default)


@method(dict, "pop")
def _dict_pop(vm: VM, obj: Any, key: Any, *default: Any) -> Any:
    if not contains_key(vm, obj, key):
        if default:
            return default[0]
        raise KeyError(key)
    value = vm.item_value(obj, key, vm.keyed(dict.__getitem__, obj, key))
    changes.touch(vm.outside, obj)
    vm.keyed(type(obj).pop, obj, key)
    return value


@method(dict, "__getitem__")
def _dict_getitem(vm: VM, obj: Any, key: Any) -> Any:
    return vm.item_value(obj, key, vm.keyed(dict.__getitem__, obj, key))


@method(dict, "__setitem__")
def _dict_setitem(vm: VM, obj: Any, key: Any, value: Any) -> None:
    changes.touch(vm.outside, obj)
    changes.note_store(vm.outside, obj, "item", key, value)
    if isinstance(obj, collections.OrderedDict):
        vm.keyed(collections.OrderedDict.__setitem__, obj, key, value)
    else:
        vm.keyed(dict.__setitem__, obj, key, value)


@method(list, "__getitem__")
def _list_getitem(vm: VM, obj: Any, key: Any) -> Any:
    if isinstance(key, slice) and id(obj) in vm.outside.origins:
        return list.__getitem__(contents.open(vm.outside, obj), key)
    return vm.item_value(obj, key, vm.keyed(list.__getitem__, obj, key))


@method(list, "__len__")
def _list_len(vm: VM, obj: Any) -> int:
    return container_len(vm, obj)


METHODS[dict, "__len__"] = METHODS[set, "__len__"] = _list_len


@method(list, "append")
def _list_append(vm: VM, obj: Any, value: Any) -> None:
    changes.touch(vm.outside, obj)
    list.append(obj, value)


@builtin(dict.fromkeys)
def _dict_fromkeys(vm: VM, args: Any, kwargs: Any) -> Any:
    return vm.native(dict.fromkeys, (vm.elements(args[0]), *args[1:]))
