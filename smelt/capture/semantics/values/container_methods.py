"""Methods of builtin containers, including environment containers.

`list.append` records the mutation; `dict.get` guards the one entry that it reads. Methods without a handler go through
`call_container_method`.
"""

from __future__ import annotations

import bisect
import collections
import heapq
import operator
import types
from collections.abc import Callable
from typing import cast

from smelt._native import isinstance
from smelt.capture.base.call_handlers import (
    BUILTINS,
    METHODS,
    Args,
    Handler,
    Kwargs,
    builtin,
    method,
    unsupported,
)
from smelt.capture.base.native_functions import PURE_METHODS
from smelt.capture.base.value_kinds import (
    MISSING,
    Container,
    FunctionType,
    MethodType,
    dict_base,
    is_lookup_key,
)
from smelt.capture.environment import container_contents, environment_mutations, wrap_values
from smelt.capture.semantics.attributes.method_lookup import plain_index
from smelt.capture.semantics.calls import polyfills
from smelt.capture.semantics.values import set_methods
from smelt.capture.semantics.values.container_constructors import mapping_or_pairs
from smelt.capture.semantics.values.iteration import compares_contents, comparison_kwargs, sorted_indices
from smelt.capture.semantics.values.lengths import call_length_hint, container_len
from smelt.capture.vm.vm import VM
from smelt.reasons import UNSUPPORTED_OBJECT

# Container methods that do not compare or hash elements.
_NON_COMPARING_METHODS = frozenset(
    (
        "append", "appendleft", "clear", "copy", "extend", "insert", "items", "keys", "pop", "popleft", "reverse",
        "rotate", "values",
    )
)  # fmt: skip

_INDEXING_METHODS = frozenset(("insert", "pop", "rotate"))  # the first argument is an index

# results read the container later
_LAZY_METHODS = frozenset(("keys", "values", "items", "__iter__", "__reversed__"))
SEARCHES = ("index", "count", "remove")
_C_METHOD_TYPES = (types.MethodDescriptorType, types.WrapperDescriptorType)
_Sequence = list[object] | collections.deque[object] | tuple[object, ...]


def _call_directly(fn: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    return fn(*args, **kwargs)


def call_container_method(
    vm: VM, name: str, fn: Callable[..., object], owner: Container, args: Args, kwargs: Kwargs
) -> object:
    """`owner.name(*args, **kwargs)` for a C method `fn` of a container that has no handler. Guards the elements of an
    environment container and records a mutation unless the method is known to be pure."""
    env = vm.env
    if isinstance(owner, collections.defaultdict) and id(owner) in env.sources and owner not in env.log:
        source = env.sources[id(owner)].child("member", "default_factory")
        wrap_values.wrap(env, owner.default_factory, source)
    if isinstance(owner, set) and name in set_methods.MUTATORS and not kwargs:
        return set_methods.call_mutator(vm, owner, name, args)
    if name == "update" and isinstance(owner, dict):
        args = [mapping_or_pairs(vm, a) for a in args]
    elif name in ("extend", "union", "intersection", "difference", "fromkeys", "extendleft"):
        originals, args = args, [set_methods.operand(vm, a) for a in args]
        if name == "extend" and isinstance(owner, list) and len(originals) == 1:
            call_length_hint(vm, originals[0])
    elif name in _INDEXING_METHODS and args and not isinstance(owner, dict):
        args = [plain_index(vm, args[0]), *args[1:]]
    run = _call_directly if name in _NON_COMPARING_METHODS else vm.call_native
    look = (
        container_contents.open_for_iterator if name in _LAZY_METHODS else container_contents.open_for_native
    )
    view = look(env, owner) if id(owner) in env.sources else owner
    if name == "sort" and isinstance(owner, list):
        if compares_contents(env.overlay.now(owner), kwargs.get("key")):
            _sort(vm, owner, **kwargs)
            return None
        kwargs = comparison_kwargs(vm, view, kwargs)
    if id(owner) not in env.sources:
        return wrap_values.to_fake(env, run(fn, args, kwargs))
    if name in PURE_METHODS:
        return wrap_values.to_fake(env, run(getattr(view, name) if view is not owner else fn, args, kwargs))
    environment_mutations.record_mutation(env, owner)
    if isinstance(owner, set):
        env.log.record_unknown_change(owner)
    try:
        result = run(_bind_builtin_method(env.overlay.now(owner), name), args, kwargs)
    finally:
        environment_mutations.mark_copies_stale(env, owner)
    env.log.check_left(owner)
    return wrap_values.to_fake(env, result)


def _bind_builtin_method(container: Container, name: str) -> Callable[..., object]:
    """The method `name` of a container's builtin base, bound. (Class flags do not distinguish C classes from Python classes:
    CPython 3.12's deque is a heap type.)"""
    method = next(
        k.__dict__[name] for k in type(container).__mro__ if isinstance(k.__dict__.get(name), _C_METHOD_TYPES)
    )
    bound: Callable[..., object] = method.__get__(container, type(container))
    return bound


_NOT_FOUND = "sequence.index(x): x not in sequence"


def search(vm: VM, name: str, owner: _Sequence, args: Args) -> object:
    """`index`, `count` or `remove`. Comparisons read all nested contents, so native code receives a view with fakes."""
    base = next(b for b in (list, tuple, collections.deque) if isinstance(owner, b))
    vm.env.facts.use_nan(args[0] if args else None)
    vm.env.facts.use_differences(owner, args)
    view = container_contents.native_view(vm.env, owner)
    args = [_search_argument(vm, container_contents.native_view(vm.env, a)) for a in args]
    if name != "remove":
        return vm.call_native(getattr(base, name), (view, *args))
    count = len(view)
    try:
        index = cast(int, vm.call_native(operator.indexOf, (view, *args)))
    except RuntimeError:
        if isinstance(owner, collections.deque) and len(view) != count:
            raise IndexError("deque mutated during remove().") from None
        raise
    except ValueError as error:  # of `operator.indexOf`, or raised by an `__eq__` of the program
        if str(error) != _NOT_FOUND:
            raise
        raise ValueError(f"{base.__name__}.remove(x): x not in {base.__name__}") from None
    environment_mutations.record_mutation(vm.env, owner)
    if isinstance(owner, list):
        list.__delitem__(vm.env.overlay.now(owner), index)
    elif isinstance(owner, collections.deque):
        collections.deque.__delitem__(vm.env.overlay.now(owner), index)
    vm.env.log.check_left(owner)
    return None


def _search_argument(vm: VM, value: object) -> object:
    """The value to search for. A function stays unwrapped: it is compared, not called."""
    return value if type(value) in (FunctionType, MethodType) else vm.native_argument(value)


def _sort(vm: VM, owner: list[object], **options: object) -> None:
    order = sorted_indices(vm, vm.elements(owner), **options)
    environment_mutations.record_mutation(vm.env, owner)
    now = vm.env.overlay.now(owner)
    list.__setitem__(now, slice(None), [list.__getitem__(now, i) for i in order])


def _needs_entry_guard(vm: VM, obj: dict[object, object], key: object) -> bool:
    """Whether a read of `obj[key]` needs a guard on that entry: the dictionary is an environment object, and the trace has
    not written the entry. Raises Unsupported for a key that guards cannot look up."""
    env = vm.env
    if id(obj) not in env.sources:
        return False
    env.facts.use_identity(key)
    if not is_lookup_key(key):
        raise unsupported(
            f"a {type(key).__qualname__} is looked up in an environment dictionary", UNSUPPORTED_OBJECT
        )
    if obj not in env.log:
        return True
    now, original = vm.native_lookup(dict.get, obj, key, MISSING), env.log.original_entry(obj, key)
    return now is original


@method(dict, "get")
def _dict_get(vm: VM, obj: dict[object, object], key: object, default: object = None) -> object:
    if _needs_entry_guard(vm, obj, key):
        present = bool(vm.native_lookup(dict.__contains__, obj, key))
        vm.env.facts.guard("contains", vm.env.sources[id(obj)], (key, present), key=key)
        return (
            container_contents.wrap_item(vm.env, obj, key, vm.native_lookup(dict.__getitem__, obj, key))
            if present
            else default
        )
    found = vm.native_lookup(dict.get, obj, key, MISSING)
    if found is MISSING:
        return default
    return vm.wrap_item(obj, key, found)


method(dict, "__contains__")(lambda vm, obj, key: contains_key(vm, obj, key))


def contains_key(vm: VM, obj: dict[object, object], key: object) -> bool:
    """`key in obj`; for an environment dictionary only the result is guarded."""
    present = bool(vm.native_lookup(dict.__contains__, obj, key))
    if _needs_entry_guard(vm, obj, key):
        vm.env.facts.guard("contains", vm.env.sources[id(obj)], (key, present), key=key)
    return present


@method(dict, "setdefault")
def _dict_setdefault(vm: VM, obj: dict[object, object], key: object, default: object = None) -> object:
    if id(obj) not in vm.env.sources:  # hash the key once
        return vm.native_lookup(dict_base(obj).setdefault, obj, key, default)
    if contains_key(vm, obj, key):
        return vm.wrap_item(obj, key, vm.native_lookup(dict.__getitem__, obj, key))
    environment_mutations.record_mutation(vm.env, obj)
    environment_mutations.record_store(vm.env, obj, "item", key, default)
    return vm.native_lookup(dict_base(obj).setdefault, obj, key, default)


@method(dict, "pop")
def _dict_pop(vm: VM, obj: dict[object, object], key: object, *default: object) -> object:
    if id(obj) not in vm.env.sources:
        return vm.wrap_item(obj, key, vm.native_lookup(dict_base(obj).pop, obj, key, *default))
    if not contains_key(vm, obj, key):
        if default:
            return default[0]
        raise KeyError(key)
    value = vm.wrap_item(obj, key, vm.native_lookup(dict.__getitem__, obj, key))
    environment_mutations.record_mutation(vm.env, obj)
    environment_mutations.record_deletion(vm.env, obj, key)
    vm.native_lookup(dict_base(obj).pop, obj, key)
    vm.env.log.check_left(obj)
    return value


@method(dict, "__getitem__")
def _dict_getitem(vm: VM, obj: dict[object, object], key: object) -> object:
    return vm.wrap_item(obj, key, vm.native_lookup(dict.__getitem__, obj, key))


@method(dict, "__setitem__")
def _dict_setitem(vm: VM, obj: dict[object, object], key: object, value: object) -> None:
    environment_mutations.record_mutation(vm.env, obj)
    environment_mutations.record_store(vm.env, obj, "item", key, value)
    vm.native_lookup(dict_base(obj).__setitem__, obj, key, value)
    vm.env.log.check_left(obj)


@method(list, "__getitem__")
def _list_getitem(vm: VM, obj: list[object], key: object) -> object:
    if isinstance(key, slice) and id(obj) in vm.env.sources:
        return list.__getitem__(container_contents.open_for_native(vm.env, obj), key)
    return vm.wrap_item(obj, key, vm.native_lookup(list.__getitem__, obj, key))


@method(list, "append")
def _list_append(vm: VM, obj: list[object], value: object) -> None:
    environment_mutations.record_mutation(vm.env, obj)
    list.append(vm.env.overlay.now(obj), value)


@method(list, "__len__")
def _list_len(vm: VM, obj: object) -> int:
    return container_len(vm, obj)


METHODS[dict, "__len__"] = METHODS[set, "__len__"] = _list_len


@builtin(collections._count_elements)  # type: ignore[attr-defined]
def _count_elements(vm: VM, args: Args, kwargs: Kwargs) -> None:
    """`Counter.update` of elements."""
    counts, elements = args
    if id(counts) not in vm.env.sources:
        vm.call_native(collections._count_elements, (counts, vm.elements(elements)))  # type: ignore[attr-defined]
        return
    counts = cast("dict[object, object]", counts)
    for element in vm.elements(elements):
        vm.store_item(counts, element, vm.binary(operator.add, _dict_get(vm, counts, element, 0), 1))


def _polyfill_handler(polyfill: Callable[..., object]) -> Handler:
    """Handler that interprets a Python version of a C function which changes its argument and compares elements."""
    return lambda vm, args, kwargs: vm.call(polyfill, tuple(args), kwargs)


def _heap_handler(fn: Callable[..., object], polyfill: Callable[..., object]) -> Handler:
    """`_polyfill_handler` for a function that requires a list."""
    interpreted = _polyfill_handler(polyfill)
    return lambda vm, args, kwargs: (
        interpreted(vm, args, kwargs) if isinstance(args[0], list) else vm.call_native(fn, args, kwargs)
    )


for _name in ("heappush", "heappop", "heapreplace", "heappushpop", "heapify"):
    _function = getattr(heapq, _name)
    BUILTINS[_function] = _heap_handler(_function, getattr(polyfills, _name))
BUILTINS[bisect.insort_right] = _polyfill_handler(polyfills.insort_right)
BUILTINS[bisect.insort_left] = _polyfill_handler(polyfills.insort_left)
