"""Environment containers for native code: all contents guarded, with fakes in place of tensors."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.value_kinds import (
    CONTAINER_BASES,
    LEAF_TYPES,
    MISSING,
    C,
    Container,
    dict_base,
    exception_fields,
    is_identity,
    is_lookup_key,
    is_plain_key,
    items_of,
)
from smelt.capture.environment import wrap_values
from smelt.capture.environment.environment import Environment
from smelt.capture.environment.overlay import of_same_class
from smelt.capture.environment.wrap_values import guard_elements
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.proxies.text_proxy import TextProxy, unreadable
from smelt.errors import Unsupported
from smelt.guards.changed_numbers import SLICE_PARTS
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.sym_numbers import specialize
from smelt.tracing.symbolic.symbolic_ranges import without_proxies


def open_for_native(env: Environment, container: C) -> C:
    """Guard the contents that a container had before the trace, and return what native code may read: the container itself,
    or a copy with fakes if it holds tensors."""
    if isinstance(container, set):
        guard_set_table(env, container)
    return open_read_only(env, container)


def open_read_only(env: Environment, container: C) -> C:
    """As `open_for_native`, for native code that neither changes a set nor creates one from the contents."""
    guard_contents(env, container)
    if env.native_views.guarded[id(container)]:
        return _copy_with_fakes(env, container)
    return env.overlay.now(container)


def guard_contents(env: Environment, container: Container) -> None:
    """Guard the contents that a container had before the trace; for a set, also their order."""
    if id(container) not in env.native_views.guarded:
        env.native_views.guarded[id(container)] = _guard_contents(env, container)
        env.sources.keep_alive(container)


def guard_set_table(env: Environment, container: set[object]) -> None:
    """Guard the hash table of a set, which decides the order of the set and of its copies after changes."""
    env.facts.guard("set_table", env.sources[id(container)], _native.set_table(container))


def open_for_iteration(env: Environment, container: C) -> C:
    """As `open_for_native`, for native code that iterates over the container once, in order, and passes the items on.
    Numbers of a list stay symbolic; the list must not change then."""
    numbers = _with_numbers(env, cast("list[object]", container)) if type(container) is list else None
    if numbers is not None:
        return cast(C, numbers)
    if isinstance(container, set) and container not in env.log:
        return open_read_only(env, container)
    return open_for_native(env, container)


def _with_numbers(env: Environment, container: list[object]) -> list[object] | None:
    """A copy of an unchanged list with dynamic numbers, which holds the symbolic ones; None for other lists."""
    known = env.native_views.numbers.get(id(container))
    source = env.sources[id(container)]
    if known is not None or container in env.log or id(container) in env.native_views.guarded:
        return known
    if not wrap_values.has_dynamic_numbers(env, source):
        return None
    wrapped = [wrap_values.wrap(env, v, source.child("item", i)) for i, v in enumerate(container)]
    if any(type(w) is TextProxy or type(w) is OpaqueProxy for w in wrapped):
        return None
    env.facts.guard("len", source, len(wrapped))
    env.native_views.numbers[id(container)] = wrapped
    env.sources.copies[id(wrapped)] = source
    env.sources.keep_alive(container)
    env.mutation_constraints.frozen.add(id(container))
    return wrapped


def open_for_iterator(env: Environment, container: C) -> C:
    """As `open_for_native`, for an iterator or a view, which also reads later changes."""
    contents = open_for_iteration(env, container)
    return env.overlay.copy(container) if contents is container else contents


def _copy_with_fakes(env: Environment, container: C) -> C:
    """The one copy of a container with fakes, brought up to date; its iterators and views see later changes."""
    existing = env.native_views.copies.get(id(container))
    contents = _with_fakes(env, container)
    if existing is not None:
        _update(existing[1], contents)
        return existing[1]
    if contents is not env.overlay.now(container):
        env.native_views.copies[id(container)] = container, contents
        env.sources.copies[id(contents)] = env.sources[id(container)]
    return contents


def refresh_copies(env: Environment) -> None:
    """Update the stale copies with fakes."""
    for key in env.native_views.stale:
        if key in env.native_views.copies:
            container, copy = env.native_views.copies[key]
            _update(copy, _with_fakes(env, container))
    env.native_views.stale.clear()


def _guard_contents(env: Environment, container: Container) -> bool:
    """Guard the contents; return whether they include a real tensor."""
    source, before = env.sources[id(container)], env.log.contents(container)
    if isinstance(container, dict):
        return _fix_all(env, _guarded_values(env, container, before), [v for _, v in before])
    if isinstance(container, set):
        guard_elements(env, source, before)
        return False
    env.facts.guard("len", source, len(before))
    wrapped = [wrap_values.wrap(env, v, source.child("item", i)) for i, v in enumerate(before)]
    return _fix_all(env, wrapped, before)


def _fix_all(env: Environment, wrapped: Iterable[object], values: Sequence[object]) -> bool:
    """Call `_fixed` for each value and guard the strings in tuples; return whether one was replaced, as tensors are."""
    wrapped = list(wrapped)
    for w, v in zip(wrapped, values):
        if isinstance(v, tuple):
            _guard_texts(env, w, v)
    fixed = [_fixed(env, w, v) for w, v in zip(wrapped, values)]
    return any(w is not v for w, v in zip(fixed, values))


def _fixed(env: Environment, wrapped: object, value: object) -> object:
    """The VM's value `wrapped` for native code that reads `value` itself: numbers are specialized, characters guarded."""
    if type(wrapped) is OpaqueProxy:
        raise unreadable("native code reads an object that changes", wrapped)
    if type(wrapped) is slice and wrapped is not value:
        for name in SLICE_PARTS:
            _fixed(env, getattr(wrapped, name), getattr(value, name))
        return value
    if type(wrapped) is not TextProxy:
        return without_proxies(specialize(wrapped), depth=0)
    env.facts.guard("eq", env.sources[id(wrapped)], value)
    return value


def _guard_texts(env: Environment, wrapped: object, value: object) -> None:
    """Guard the characters of strings in nested tuples. Numbers in them stay symbolic."""
    if type(wrapped) is TextProxy or type(wrapped) is OpaqueProxy:
        _fixed(env, wrapped, value)
    elif wrapped is not value and isinstance(value, tuple):
        for w, v in zip(tuple.__iter__(cast("tuple[object, ...]", wrapped)), tuple.__iter__(value)):
            _guard_texts(env, w, v)


def _fix_nested(env: Environment, wrapped: object, value: object) -> None:
    """As `_fixed`, also for the elements of tuples."""
    if wrapped is value or not isinstance(value, tuple):
        _fixed(env, wrapped, value)
    else:
        for w, v in zip(tuple.__iter__(cast("tuple[object, ...]", wrapped)), tuple.__iter__(value)):
            _fix_nested(env, w, v)


def _check_key(env: Environment, key: object) -> None:
    if not is_plain_key(key):
        raise Unsupported(
            Reason(UNSUPPORTED_OBJECT, f"an environment dictionary has a {type(key).__qualname__} as a key")
        )


def wrap_item(env: Environment, container: object, key: object, value: object) -> object:
    """Wrap `value`, which an environment container holds at `key`."""
    source = env.sources[id(container)]
    if not is_lookup_key(key):
        _check_key(env, key)
    return wrap_values.wrap(env, value, source.child("item", key))


def _guarded_values(
    env: Environment, container: object, before: Collection[tuple[object, object]]
) -> list[object]:
    """The values that a dictionary held before the trace, each wrapped; the keys are guarded, in order."""
    for key, _ in before:
        _check_key(env, key)
        if not is_identity(key):
            wrap_values.wrap_key(env, key)
    env.facts.guard("keys", env.sources[id(container)], tuple(k for k, _ in before))
    return [wrap_item(env, container, k, v) for k, v in before]


def symbolic_items(env: Environment, value: dict[object, object]) -> dict[object, object] | None:
    """The wrapped items of a dictionary with dynamic numbers, which `open_for_native` would specialize; else None."""
    source = env.sources.get(id(value))
    if type(value) is not dict or source is None or value in env.log:
        return None
    if not wrap_values.has_dynamic_numbers(env, source):
        return None
    return dict(zip(value, _guarded_values(env, value, value.items())))


def _with_fakes(env: Environment, container: C) -> C:
    """A copy with fakes and proxies in place of tensors and arrays; inner containers are not copied."""
    return _with_items(env.overlay.now(container), lambda v: _replacement(env, v))


def _replacement(env: Environment, value: object) -> object:
    """The VM's value for an element of an environment container."""
    if isinstance(value, torch.Tensor):
        return wrap_values.to_fake(env, value)
    if isinstance(value, tuple):
        return env.wrapped.tuples.get(id(value), value)
    return env.wrapped.arrays.get(id(value), value) if type(value) is np.ndarray else value


def _with_items(container: C, replace: Callable[[object], object]) -> C:
    """A copy of the container with its values replaced; the container itself if that changes none. Leaves stay."""
    values = list(dict.values(container)) if isinstance(container, dict) else items_of(container)
    if LEAF_TYPES.issuperset(map(type, values)):
        return container
    replaced = [replace(v) for v in values]
    if all(map(operator.is_, replaced, values)):
        return container
    if isinstance(container, dict):
        by_id = {id(v): n for v, n in zip(values, replaced)}
        replaced = [(k, by_id[id(v)]) for k, v in items_of(container)]
    return of_same_class(container, replaced)


def native_view(env: Environment, value: Any, deep: bool = True) -> Any:
    """`value` for native code: fakes in place of real tensors, and all contents of the environment guarded. `deep`: also in
    inner containers, which are copied then; native code that passes elements on needs the inner containers themselves."""
    kind = type(value)
    if kind in LEAF_TYPES or kind is FakeTensor:
        return value
    if isinstance(value, tuple):
        return _view_items(env, value) if deep else value
    if isinstance(value, CONTAINER_BASES):
        return _view_container(env, value, deep)
    if isinstance(value, torch.Tensor):
        return wrap_values.to_fake(env, value)
    if isinstance(value, types.SimpleNamespace) and id(value) in env.sources:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, "native code reads an environment SimpleNamespace"))
    if isinstance(value, BaseException):
        guard_exception(env, value)
    return env.wrapped.arrays.get(id(value), value) if kind is np.ndarray else value


def guard_compared(env: Environment, values: Iterable[object]) -> None:
    """Guard the contents of values that native code compares or tests. Raises Unsupported for real tensors."""
    for value in values:
        if type(value) not in LEAF_TYPES and native_view(env, value) is not value:
            detail = f"native code compares a {type(value).__qualname__} that holds tensors"
            raise Unsupported(Reason(UNSUPPORTED_OBJECT, detail))


def _view_container(env: Environment, container: Container, deep: bool) -> Container:
    key = id(container)
    contents = open_for_native(env, container) if key in env.sources else container
    if not deep or isinstance(container, set) or key in env.native_views.in_progress:
        return contents
    env.native_views.in_progress.add(key)
    try:
        return _with_items(contents, lambda v: native_view(env, v))
    finally:
        env.native_views.in_progress.discard(key)


def _view_items(env: Environment, value: tuple[object, ...]) -> tuple[object, ...]:
    before = tuple(tuple.__iter__(value))
    now = [native_view(env, v) for v in before]
    return value if all(map(operator.is_, now, before)) else wrap_values.tuple_like(value, now)


def guard_exception(env: Environment, error: BaseException) -> None:
    """Guard the fields of an exception of the environment that native code reads."""
    source = env.sources.get(id(error))
    if source is None or id(error) in env.native_views.guarded:
        return
    env.native_views.guarded[id(error)] = False
    if error.__traceback__ is not None:  # subgroups of an exception group share it
        env.sources.register(error.__traceback__, source.child("member", "__traceback__"))
    for name in exception_fields(type(error)):  # type: ignore[arg-type]
        value = getattr(error, name)
        wrapped = wrap_values.wrap(env, value, source.child("member", name))
        _fix_nested(env, wrapped, value)
        for part in wrapped if type(wrapped) is tuple else ():
            native_view(env, part)


def _update(copy: C, contents: C) -> None:
    """Give a copy the contents of another container with as few changes as possible, so that its iterators continue, or
    fail, as those of the original. Calls no method that its class overrides."""
    if isinstance(copy, dict):
        _update_dict(copy, cast(dict[object, object], contents))
    elif not _same_items(items_of(copy), items_of(contents)):
        if isinstance(copy, list):
            list.__setitem__(copy, slice(None), items_of(contents))
        elif isinstance(copy, set):
            set.clear(copy)
            set.update(copy, items_of(contents))
        else:
            collections.deque.clear(copy)
            collections.deque.extend(copy, items_of(contents))


def _update_dict(copy: dict[object, object], contents: dict[object, object]) -> None:
    base = dict_base(copy)
    for key in [k for k in base.keys(copy) if not dict.__contains__(contents, k)]:
        base.__delitem__(copy, key)
    for key, value in base.items(contents):
        if dict.get(copy, key, MISSING) is not value:
            base.__setitem__(copy, key, value)
    if not _same_items(list(base.keys(copy)), list(base.keys(contents))):
        base.clear(copy)
        base.update(copy, contents)


def _same_items(a: list[object], b: list[object]) -> bool:
    return len(a) == len(b) and all(map(operator.is_, a, b))
