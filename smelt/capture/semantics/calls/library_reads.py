"""Guards for what native library code reads of globals, attributes and caches, as if the VM had interpreted it.

`use_native_function` covers Python functions of torch: code, defaults, and the global names they read (with module
attributes read directly from them), including helpers in the same module. `use_registrations` covers `isinstance` and
`issubclass` with abstract classes and protocols, `call_cached` the results in a `functools.lru_cache`.
"""

from __future__ import annotations

import abc
import dis
import functools
import gc
import logging
import sys
import types
import typing
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, unsupported
from smelt.capture.base.class_caches import cached_by_class
from smelt.capture.base.native_functions import is_native_module
from smelt.capture.base.type_lookup import ABSENT
from smelt.capture.base.value_kinds import (
    LEAF_TYPES,
    MISSING,
    FunctionType,
    cell_value,
    has_identity_hash,
    instance_dict,
    is_constant,
    is_identity,
)
from smelt.capture.base.vm_frames import VMCallable
from smelt.capture.environment import container_contents, wrap_values
from smelt.capture.environment.environment import Environment
from smelt.capture.environment.mutation_log import slot_names
from smelt.capture.environment.side_effects import CacheHit
from smelt.capture.proxies.array_proxy import ArrayProxy
from smelt.capture.proxies.text_proxy import TextProxy, unreadable
from smelt.capture.semantics import attributes
from smelt.capture.semantics.attributes.annotations import check_annotations
from smelt.capture.semantics.calls.cached_reads import ReadState, changes, reads_unchanged, version_of
from smelt.capture.vm.vm import VM
from smelt.guards.object_text import class_text
from smelt.guards.source import Source
from smelt.guards.weak_identity import GONE, strong, weak
from smelt.reasons import UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT
from smelt.torch_private import FP32_PRECISION, SETTING_QUERIES
from smelt.tracing.fake.fake_tensor import FakeTensor, class_of_fake
from smelt.tracing.symbolic.numbers_in_containers import specialize_nested
from smelt.tracing.symbolic.sym_numbers import specialize
from smelt.tracing.symbolic.symbolic_ranges import without_proxies

AttributeChain = tuple[str, ...]

# ---------------------------------------------------------------------------------- native Python functions

_chain_cache: dict[types.CodeType, tuple[AttributeChain, ...]] = {}
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


def attribute_chains(code: types.CodeType) -> tuple[AttributeChain, ...]:
    """Global names that `code` reads, each with the attributes read directly from it: `("torch", "relu")`."""
    found = _chain_cache.get(code)
    if found is None:
        found = _chain_cache[code] = tuple(dict.fromkeys(_scan_chains(code)))
    return found


def _scan_chains(code: types.CodeType) -> Iterator[AttributeChain]:
    chain: list[str] = []
    for instruction in dis.get_instructions(code):
        if chain and instruction.opname in _ATTRIBUTES:
            chain.append(instruction.argval)
            continue
        if chain:
            yield tuple(chain)
        chain = [instruction.argval] if instruction.opname == "LOAD_GLOBAL" else []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _scan_chains(constant)


def use_native_function(env: Environment, fn: FunctionType) -> None:
    """Guard what the native Python function `fn` is and reads."""
    if id(fn) in env.memo.native_functions or any(
        type(cell_value(c)) is VMCallable for c in fn.__closure__ or ()
    ):
        return  # native code created it around a program function, so it is not an environment object
    env.memo.native_functions.add(id(fn))
    env.facts.use_function(fn)
    if not (fn.__module__ or "").startswith("torch"):
        return
    for chain in attribute_chains(fn.__code__):
        if chain[0] in fn.__globals__:
            source = env.sources.const(fn.__globals__).child("item", chain[0])
            _guard_chain(env, fn, source, fn.__globals__[chain[0]], chain[1:])
    for at, cell in enumerate(fn.__closure__ or ()):
        value = getattr(cell, "cell_contents", None)
        if isinstance(value, FunctionType):
            env.facts.guard("id", env.sources.const(fn).child("cell", at), value)
            use_native_function(env, value)


def use_instance_state(vm: VM, args: Sequence[object]) -> None:
    """Guard the contents of library instances (a Fraction, a string.Template) that native library code is about to read.
    Raises Unsupported for one that holds an array (a Polynomial) or is a storage, whose contents no guard checks."""
    pending = list(args)
    visited: set[int] = set()
    while pending:
        value = pending.pop()
        if id(value) in visited or id(value) not in vm.env.sources:
            continue
        if isinstance(value, _STORAGES):
            raise unsupported(
                f"native code reads an environment {class_text(type(value))}", UNSUPPORTED_OBJECT
            )
        if not _is_library_class(type(value)):
            continue
        visited.add(id(value))
        own = vm.env.overlay.instance_dict(value)
        if own is not None:  # other names come from the class
            vm.env.facts.guard("keys", vm.env.sources[id(value)].child("dict", None), tuple(own))
        for name in (*(own or ()), *slot_names(type(value))):
            read = attributes.load_default(vm, value, name, MISSING)
            read = without_proxies(
                specialize_nested(read) if isinstance(read, tuple) else specialize(read), depth=0
            )
            if _holds_text(read):
                raise unreadable(f"native code reads a string that changes of a {type(value).__qualname__}")
            if isinstance(read, (ArrayProxy, np.ndarray)):
                detail = f"native code reads an environment {class_text(type(value))}"
                raise unsupported(detail, UNSUPPORTED_OBJECT)
            container_contents.native_view(vm.env, read)
            pending.append(read)


_STORAGES = (torch.UntypedStorage, torch.TypedStorage)


def _holds_text(value: object) -> bool:
    """Whether `value` is a string that changes, or a tuple that holds one."""
    return type(value) is TextProxy or (
        isinstance(value, tuple) and any(map(_holds_text, tuple.__iter__(value)))
    )


@cached_by_class
def _is_library_class(cls: type) -> bool:
    """Whether `cls` is a library class in Python with its state in attributes, or inherits from one."""
    if not _native.made_by_python(cls) or issubclass(cls, (np.ndarray, logging.Filterer, logging.Manager)):
        return False
    return _is_of_library(cls) or any(_is_of_library(b) and _defines_construction(b) for b in cls.__mro__[1:])


def _is_of_library(cls: type) -> bool:
    name = cls.__module__ or ""
    return is_native_module(name) and not name.startswith(("torch", "smelt", "enum"))


def _defines_construction(cls: type) -> bool:
    """Whether a class defines how its instances are created; `abc.ABC` and the base classes in `typing` do not."""
    return cls.__module__ != "typing" and any(n in vars(cls) for n in ("__new__", "__init__"))


def _guard_chain(
    env: Environment, fn: FunctionType, source: Source, value: object, remaining: AttributeChain
) -> None:
    while True:
        if type(value) in LEAF_TYPES:
            env.facts.guard("eq", source, value)
        elif is_identity(value):
            env.facts.guard("id", source, value)
        if not remaining or not isinstance(value, types.ModuleType) or remaining[0] not in vars(value):
            break
        name, remaining = remaining[0], remaining[1:]
        source, value = source.child("attr", name), vars(value)[name]
    if isinstance(value, FunctionType) and value.__globals__ is fn.__globals__:
        use_native_function(env, value)
    if (
        isinstance(value, types.BuiltinFunctionType)
        and value in SETTING_QUERIES
        and value is not FP32_PRECISION
    ):
        use_setting(env, value, (), {}, value())


def use_setting(
    env: Environment, query: Callable[..., object], args: Args, kwargs: Kwargs, value: object
) -> None:
    """Guard that `query(*args, **kwargs)` is `value`; by its text if it is no constant."""
    read: Callable[..., object] = query if type(value) in LEAF_TYPES else functools.partial(_text_of, query)
    if read is not query or args or kwargs:
        read = functools.partial(read, *args, **kwargs)
        read = env.memo.reads_of(query).setdefault((*args, *kwargs.items()), read)
    expected = value if type(value) in LEAF_TYPES else str(value)
    env.facts.guard("eq", env.sources.const(read).child("call", None), expected)


def _text_of(query: Callable[..., object], *args: object, **kwargs: object) -> str:
    return str(query(*args, **kwargs))


def use_signature(env: Environment, target: object) -> None:
    """Guard what `inspect.signature(target)` reads."""
    if isinstance(target, types.MethodType):
        return use_signature(env, target.__func__)
    if isinstance(target, functools.partial):
        return use_signature(env, target.func)
    if not isinstance(target, FunctionType):
        owner = target if isinstance(target, type) else type(target)
        env.facts.use_class(owner)
        for name in ("__new__", "__init__") if isinstance(target, type) else ("__call__",):
            found = getattr(owner, name, None)
            if isinstance(found, FunctionType):
                use_signature(env, found)
        return None
    if id(target) not in env.sources:
        return None
    env.facts.use_function(target)
    check_annotations(env, target)
    if target.__annotations__:
        source = env.sources.const(target).child("member", "__annotations__")
        container_contents.guard_compared(env, (wrap_values.wrap(env, target.__annotations__, source),))
    for name in ("__signature__", "__wrapped__"):
        if name not in target.__dict__:
            env.facts.guard("not_in_dict", env.sources.const(target), name, key=name)
        else:
            env.facts.guard("id", env.sources.const(target).child("attr", name), target.__dict__[name])
            use_signature(env, target.__dict__[name]) if name == "__wrapped__" else None
    return None


# ------------------------------------------------------------------------------ abstract classes, protocols


def use_registrations(vm: VM, obj: object, classes: object) -> None:
    """Guard `isinstance(obj, classes)` or `issubclass(obj, classes)` of abstract classes or protocols."""
    for cls in _flatten_classes(classes):
        vm.env.facts.use_class(cls)
        if not isinstance(cls, abc.ABCMeta):
            continue
        source = vm.env.sources.const(abc.get_cache_token).child("call", None)
        vm.env.facts.guard("eq", source, abc.get_cache_token())
        _note_registration(vm, obj, cls)
        if cls.__dict__.get("_is_protocol") and not isinstance(obj, type):
            _use_members(vm, obj, cls)


def _note_registration(vm: VM, obj: object, cls: type) -> None:
    """Note what the guard of the token stands for: another process counts other registrations."""
    if cls.__module__.partition(".")[0] not in sys.stdlib_module_names and not _is_plainly_abstract(cls):
        vm.env.facts.depend_on_process("registrations with an abstract class")
        return
    kind = class_of_fake(obj) if type(obj) is FakeTensor else type(obj)
    for subject in (kind, obj) if isinstance(obj, type) else (kind,):
        vm.env.facts.registrations[subject, cls] = issubclass(subject, cls)


def _is_plainly_abstract(cls: type) -> bool:
    """Whether only C code decides which classes are subclasses of an abstract class."""
    hook = next(base for base in cls.__mro__ if "__subclasshook__" in vars(base))
    checks = ("__subclasscheck__", "__instancecheck__")
    return hook is object and all(getattr(type(cls), name) is vars(abc.ABCMeta)[name] for name in checks)


def _flatten_classes(classes: object) -> Iterator[type]:
    if isinstance(classes, type):
        yield classes
    elif isinstance(classes, tuple):
        for member in classes:
            yield from _flatten_classes(member)
    elif isinstance(classes, types.UnionType):
        yield from _flatten_classes(classes.__args__)


def _use_members(vm: VM, obj: object, protocol: type) -> None:
    """Guard which members of a protocol the object has."""
    kind = type(obj)
    if kind in LEAF_TYPES or kind is FakeTensor:
        return
    for name in typing._get_protocol_attrs(protocol):  # type: ignore[attr-defined]
        if vm.type_info(kind).find(name)[0] is ABSENT:
            attributes.load_default(vm, obj, name, MISSING)
        elif instance_dict(obj) is not None:
            attributes.is_in_instance(vm, obj, name)


# ---------------------------------------------------------------------------------------- functools.lru_cache


class _CachedFunction(Protocol):
    """Result of `functools.lru_cache`."""

    __wrapped__: Callable[..., object]

    def cache_parameters(self) -> Mapping[str, object]: ...
    def __call__(self, *args: object, **kwargs: object) -> object: ...


class _CallCounter:
    """Cached calls of captures. A compiled frame omits each once, so that the cache's statistics match eager."""

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[_CachedFunction, dict[object, tuple[object, object]]]
        self._made = weakref.WeakKeyDictionary()

    def result(self, fn: _CachedFunction, key: object, call: Callable[[], object]) -> object:
        """Result in entry `key`, created by `call()` unless a capture has and no compiled frame has omitted that."""
        cache = _cache_dict(fn)
        entry, result = self._made.get(fn, {}).get(key, (MISSING, MISSING))
        if entry is not MISSING and cache.get(key, MISSING) is entry:
            return result
        result = call()
        if key in cache:
            self._made.setdefault(fn, {})[key] = cache[key], result
        return result

    def target(self, fn: _CachedFunction, key: object) -> Callable[..., object]:
        """Callable for the compiled frame that makes one counted call of `fn`."""
        return functools.partial(self._call, fn) if key in self._made.get(fn, ()) else fn

    def _call(self, fn: _CachedFunction, /, *args: object, **kwargs: object) -> None:
        if self._made.get(fn, {}).pop(_cache_key(fn, args, kwargs), None) is None:
            fn(*args, **kwargs)


_call_counter = _CallCounter()


def call_cached(vm: VM, fn: _CachedFunction, args: Sequence[object], kwargs: dict[str, object]) -> object:
    """Result of the cached function `fn`, guarded by its cache entry; MISSING if the VM must interpret the function.

    As in eager, an existing entry is used however stale, and a call without an entry runs and creates one. The compiled
    frame repeats each call, so that the cache counts it. Raises Unsupported if an argument is a tensor, if the cache may
    evict entries, or if a new entry may depend on what the trace changed: neither native code nor the calls of the compiled
    frame see changes.
    """
    values = (*args, *kwargs.values())
    if any(type(v) is FakeTensor for v in values):
        raise unsupported(f"{function_name(fn)} is cached, and called with a tensor")
    if not all(is_key(vm, v) for v in values):
        return MISSING
    cache, key = _cache_dict(fn), _cache_key(fn, tuple(args), kwargs)
    if key not in cache and _may_evict(fn, cache):
        raise unsupported(f"the cache of {function_name(fn)} is too small")
    found = _cached_result(fn, cache, key)
    if found is not MISSING:
        result = found
    elif key not in cache and changes(vm) and not reads_unchanged(vm, fn, values):
        raise unsupported(f"{function_name(fn)} is cached, and called after changes")
    elif key in cache or not vm.env.log.defers:
        with vm.trace.paused():
            try:
                result = _call_counter.result(fn, key, lambda: fn(*args, **kwargs))
            except Exception as e:  # its dependencies are unknown, and the next call raises again
                raise unsupported(f"{function_name(fn)}, which is cached, raises") from e
    else:
        return MISSING
    for value in values:
        vm.env.facts.use_identity(value)
    _guard_entry(vm, fn, cache, key)
    _record_call(vm, fn, key, values, tuple(kwargs))
    return wrap_values.wrap(
        vm.env, result, vm.env.sources.const(result, f"{function_name(fn)}(...)"), decided=True
    )


class CreatedEntry:
    """A call of a cached function that creates an entry, and the check that the cache has that entry or none."""

    def __init__(self, fn: _CachedFunction, args: Sequence[object], kwargs: dict[str, object]) -> None:
        self._fn, self._cache, self._key = fn, _cache_dict(fn), _cache_key(fn, tuple(args), kwargs)
        self._made: object = MISSING

    def __call__(self, *args: object, **kwargs: object) -> None:
        is_new = self._key not in self._cache
        self._fn(*args, **kwargs)
        if is_new:
            self._made = self._cache.get(self._key, MISSING)

    def holds(self) -> bool:
        """Whether a call returns the same result as when the entry was created."""
        found = self._cache.get(self._key, MISSING)
        return found is MISSING or found is self._made


@dataclass(frozen=True, eq=False)
class _Earlier:
    """A call that a graph made in place of a cached function: what it read, and the versions of its tensors."""

    state: ReadState
    versions: tuple[int | None, ...]


class ReplacedCall:
    """The calls of a cached function with tensors that the graphs of one entry make. Each compiled call declares its own
    here, and raises Unsupported if the cache would return a result that an earlier call computed from something else."""

    # by cached function, and by the key of the call
    _earlier: weakref.WeakKeyDictionary[_CachedFunction, dict[object, _Earlier]] = weakref.WeakKeyDictionary()

    def __init__(self, fn: _CachedFunction, state: ReadState) -> None:
        self._fn, self._state = fn, state

    def __call__(self, *args: object, **kwargs: object) -> None:
        fn, state = self._fn, self._state
        tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
        versions = tuple(map(version_of, tensors))
        calls = self._earlier.setdefault(fn, {})
        key = _cache_key(fn, tuple(map(weak, args)), {k: weak(v) for k, v in kwargs.items()})
        earlier = calls.get(key)
        if earlier is None:  # an entry that eager created, from what is unknown
            is_stale = has_entry(fn, args, kwargs) and (state.changes or any(versions) or None in versions)
        else:
            is_stale = earlier.versions != versions or not earlier.state.equals(state)
        if is_stale:
            name = function_name(fn)
            raise unsupported(
                f"what {name}, which is cached, reads has changed since a call", UNSUPPORTED_EFFECT
            )
        calls.pop(key, None)  # the new entry is the last
        calls[key] = earlier or _Earlier(state, versions)
        _evict(calls, fn.cache_parameters()["maxsize"])


def _evict(calls: dict[object, _Earlier], limit: object) -> None:
    """Drop the oldest calls beyond `limit`, and, at times, those whose tensors are gone."""
    if isinstance(limit, int) and len(calls) > limit:
        del calls[next(iter(calls))]
    if len(calls) & (len(calls) - 1) == 0:  # at powers of two
        for key in [
            k for k in calls if any(strong(part) is GONE for part in (k if type(k) is tuple else (k,)))
        ]:
            del calls[key]


def has_entry(fn: _CachedFunction, args: Sequence[object], kwargs: dict[str, object]) -> bool:
    """Whether the cache of `fn` has an entry for this call. No user code compares the arguments."""
    return _cache_key(fn, tuple(args), kwargs) in _cache_dict(fn)


def creates_entry(vm: VM, fn: _CachedFunction, args: Sequence[object], kwargs: dict[str, object]) -> bool:
    """Whether `call_cached` would create an entry."""
    if not all(is_key(vm, v) for v in (*args, *kwargs.values())):
        return False
    cache = _cache_dict(fn)
    return (
        not vm.env.log.defers
        and _cache_key(fn, tuple(args), kwargs) not in cache
        and not _may_evict(fn, cache)
    )


def _may_evict(fn: _CachedFunction, cache: dict[object, object]) -> bool:
    """Whether a new entry may soon evict another one. Which one depends on the order of all calls."""
    limit = fn.cache_parameters()["maxsize"]
    return isinstance(limit, int) and 2 * (len(cache) + 1) > limit


def _record_call(
    vm: VM, fn: _CachedFunction, key: object, values: tuple[object, ...], names: tuple[str, ...]
) -> None:
    target = _call_counter.target(fn, key)
    vm.env.sources.const(target)
    vm.env.log.defer_call(CacheHit(target, values, names))


def function_name(fn: _CachedFunction) -> str:
    """The name of the cached function in messages."""
    return str(getattr(fn.__wrapped__, "__qualname__", "a function"))


def is_key(vm: VM, value: object) -> bool:
    """Whether `value` is stable as a cache key: a constant, or an environment object that is hashed by identity."""
    if is_constant(value) or is_identity(value):
        return not vm.env.sources.is_guarded_by_code(value)
    return has_identity_hash(value) and id(value) in vm.env.sources


def _guard_entry(vm: VM, fn: _CachedFunction, cache: dict[object, object], key: object) -> None:
    used = vm.env.memo.reads_of(fn)
    used[key] = cache[key]
    if any(cache.get(k, MISSING) is not v for k, v in used.items()):
        raise unsupported(f"the cache of {function_name(fn)} is too small")
    vm.env.facts.guard(
        "id", vm.env.sources.const(cache, f"{function_name(fn)}.cache").child("item", key), cache[key]
    )


def _cache_dict(fn: _CachedFunction) -> dict[object, object]:
    """The dictionary in which `functools.lru_cache` stores results, or list elements that hold them."""
    referents = reversed(gc.get_referents(fn))  # it comes after the results, which may be dictionaries
    return next(r for r in referents if type(r) is dict and r is not fn.__dict__)


def _cached_result(fn: _CachedFunction, cache: dict[object, object], key: object) -> object:
    """The cached result for `key`, read without a counted call; MISSING if there is none. A bounded cache stores list
    elements, for which `gc.get_referents` reports the key, the result and the class in sequence."""
    entry = cache.get(key, MISSING)
    if entry is MISSING or fn.cache_parameters()["maxsize"] is None:
        return entry
    entry_key = next(k for k, e in cache.items() if e is entry)
    referents = gc.get_referents(fn)
    indices = (i for i, r in enumerate(referents[:-2]) if r is entry_key and referents[i + 2] is type(entry))
    return next((referents[i + 1] for i in indices), MISSING)


def _cache_key(fn: _CachedFunction, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """The cache key, as Modules/_functoolsmodule.c builds it."""
    typed = fn.cache_parameters()["typed"]
    if not typed and not kwargs:
        return args[0] if len(args) == 1 and type(args[0]) in (int, str) else args
    key = args
    if kwargs:
        mark = next(r for r in gc.get_referents(fn) if type(r) is object)
        key = (*args, mark, *(item for pair in kwargs.items() for item in pair))
    return (*key, *map(type, args), *map(type, kwargs.values())) if typed else key
