"""The contents of outside containers that native code looks into: all guarded, with fakes in place of tensors."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable, Collection, Iterable
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
    is_lookup_key,
    is_plain_key,
    items_of,
)
from smelt.capture.environment import wrap_values
from smelt.capture.environment.environment import Environment
from smelt.capture.environment.overlay import of_same_class
from smelt.capture.environment.wrap_values import guard_elements
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.numbers_in_containers import specialize_nested
from smelt.tracing.symbolic.sym_numbers import specialize


def open(env: Environment, container: C) -> C:
    """Native code is going to look inside: guards all that was in an outside container before the trace, and gives
    what native code may see: the container itself, or a copy with fakes where it holds tensors."""
    if isinstance(container, set):
        guard_set_table(env, container)
    return found_in(env, container)


def found_in(env: Environment, container: C) -> C:
    """As `open`, for native code that makes no set of what it sees and changes none."""
    guard(env, container)
    if env.opened.by_id[id(container)]:
        return _copy_with_fakes(env, container)
    return env.overlay.now(container)


def guard(env: Environment, container: Container) -> None:
    """Guards all that was in an outside container before the trace, of a set in order."""
    if id(container) not in env.opened.by_id:
        env.opened.by_id[id(container)] = _guard_contents(env, container)
        env.sources.keep(container)


def guard_set_table(env: Environment, container: set[object]) -> None:
    """Guards what the order of an outside set and of its copies will be after changes."""
    env.facts.guard("table", env.sources[id(container)], _native.set_table(container))


def iterated(env: Environment, container: C) -> C:
    """As `open`, for native code that goes through the container once, in order."""
    if isinstance(container, set) and container not in env.log:
        return found_in(env, container)
    return open(env, container)


def walk(env: Environment, container: C) -> C:
    """As `open`, for native code that goes on looking: an iterator, a view. It sees what is changed later."""
    seen = iterated(env, container)
    return env.overlay.copy(container) if seen is container else seen


def _copy_with_fakes(env: Environment, container: C) -> C:
    """Always the same copy, so that iterators and views of it see what is changed later."""
    found = env.opened.copies.get(id(container))
    if found is None:
        made = _with_fakes(env, container)
        if made is env.overlay.now(container):
            return made
        env.opened.copies[id(container)] = container, made
        env.sources.copied[id(made)] = env.sources[id(container)]
        return made
    _follow(found[1], _with_fakes(env, container))
    return found[1]


def update_copies(env: Environment) -> None:
    """After changes: the copies with fakes follow."""
    for key in env.opened.stale:
        if key in env.opened.copies:
            container, made = env.opened.copies[key]
            _follow(made, _with_fakes(env, container))
    env.opened.stale.clear()


def _guard_contents(env: Environment, container: Container) -> bool:
    """True if there is a real tensor inside."""
    source, before = env.sources[id(container)], env.log.contents(container)
    if isinstance(container, dict):
        wrapped = [specialize(v) for v in _guarded_values(env, container, before)]
        return any(w is not v for w, (_, v) in zip(wrapped, before))
    if isinstance(container, set):
        guard_elements(env, source, before)
        return False
    env.facts.guard("len", source, len(before))
    wrapped = [specialize(wrap_values.wrap(env, v, source.child("item", i))) for i, v in enumerate(before)]
    return any(w is not v for w, v in zip(wrapped, before))


def _check_key(env: Environment, key: object) -> None:
    if not is_plain_key(key):
        raise Unsupported(
            Reason(UNSUPPORTED_OBJECT, f"an outside dictionary has a {type(key).__qualname__} as a key")
        )


def item(env: Environment, container: object, key: object, value: object) -> object:
    """The value of an outside container at `key`, wrapped."""
    source = env.sources[id(container)]
    if not is_lookup_key(key):
        _check_key(env, key)
    return wrap_values.wrap(env, value, source.child("item", key))


def _guarded_values(
    env: Environment, container: object, before: Collection[tuple[object, object]]
) -> list[object]:
    """The values that an outside dictionary held before the trace, each wrapped; its keys are guarded, in order."""
    for key, _ in before:
        _check_key(env, key)
    env.facts.guard("keys", env.sources[id(container)], tuple(k for k, _ in before))
    return [item(env, container, k, v) for k, v in before]


def symbolic_items(env: Environment, value: dict[object, object]) -> dict[object, object] | None:
    """The items of an outside dictionary, each wrapped, where numbers in it changed between calls: they stay symbolic, while
    `open` makes them plain numbers for native code. None for any other dictionary."""
    source = env.sources.get(id(value))
    if type(value) is not dict or source is None or value in env.log:
        return None
    if not wrap_values.has_dynamic_numbers(env, source):
        return None
    return dict(zip(value, _guarded_values(env, value, value.items())))


def _with_fakes(env: Environment, container: C) -> C:
    """A copy that holds what the machine has in place of tensors; containers inside are themselves."""
    return _with_items(env.overlay.now(container), lambda v: _shown(env, v))


def _shown(env: Environment, value: object) -> object:
    """What the machine has in place of something that an outside container holds."""
    if isinstance(value, torch.Tensor):
        return wrap_values.fake(env, value)
    if isinstance(value, tuple):
        return env.seen.tuples.get(id(value), value)
    return env.seen.arrays.get(id(value), value) if type(value) is np.ndarray else value


def _with_items(container: C, replaced: Callable[[object], object]) -> C:
    """The container itself where nothing in it is replaced, as no leaf is, else a copy of it."""
    values = list(dict.values(container)) if isinstance(container, dict) else items_of(container)
    if LEAF_TYPES.issuperset(map(type, values)):
        return container
    now = [replaced(v) for v in values]
    if all(map(operator.is_, now, values)):
        return container
    if isinstance(container, dict):
        shown = {id(v): n for v, n in zip(values, now)}
        now = [(k, shown[id(v)]) for k, v in items_of(container)]
    return of_same_class(container, now)


def view(env: Environment, value: Any, deep: bool = True) -> Any:
    """`value` as native code may see it: real tensors replaced by fakes, and all outside contents guarded; `deep`: also
    those of the containers inside, which are copies then. What only hands elements on must have the containers themselves.
    """
    kind = type(value)
    if kind in LEAF_TYPES or kind is FakeTensor:
        return value
    if isinstance(value, tuple):
        return _view_items(env, value) if deep else value
    if isinstance(value, CONTAINER_BASES):
        return _view_container(env, value, deep)
    if isinstance(value, torch.Tensor):
        return wrap_values.fake(env, value)
    if isinstance(value, types.SimpleNamespace) and id(value) in env.sources:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, "native code reads an outside SimpleNamespace"))
    if isinstance(value, BaseException):
        open_exception(env, value)
    return env.seen.arrays.get(id(value), value) if kind is np.ndarray else value


def guard_compared(env: Environment, values: Iterable[object]) -> None:
    """Native code is going to compare values, or ask for their truth: guards all that is in those that are containers from
    outside, or hold some. Raises Unsupported where it would meet real tensors."""
    for value in values:
        if type(value) not in LEAF_TYPES and view(env, value) is not value:
            detail = f"native code compares a {type(value).__qualname__} that holds tensors"
            raise Unsupported(Reason(UNSUPPORTED_OBJECT, detail))


def _view_container(env: Environment, container: Container, deep: bool) -> Container:
    key = id(container)
    seen = open(env, container) if key in env.sources else container
    if not deep or isinstance(container, set) or key in env.opened.viewed:
        return seen
    env.opened.viewed.add(key)
    try:
        return _with_items(seen, lambda v: view(env, v))
    finally:
        env.opened.viewed.discard(key)


def _view_items(env: Environment, value: tuple[object, ...]) -> tuple[object, ...]:
    before = tuple(tuple.__iter__(value))
    now = [view(env, v) for v in before]
    return value if all(map(operator.is_, now, before)) else wrap_values.tuple_like(value, now)


def open_exception(env: Environment, error: BaseException) -> None:
    """Native code is going to look at an exception: guards what an outside one says."""
    source = env.sources.get(id(error))
    if source is None or id(error) in env.opened.by_id:
        return
    env.opened.by_id[id(error)] = False
    if error.__traceback__ is not None:  # parts that are split off share it
        env.sources.register(error.__traceback__, source.child("member", "__traceback__"))
    for name in exception_fields(type(error)):  # type: ignore[arg-type]
        found = specialize_nested(wrap_values.wrap(env, getattr(error, name), source.child("member", name)))
        for part in found if type(found) is tuple else ():
            view(env, part)


def _follow(made: C, now: C) -> None:
    """Changes a copy of a container as little as possible: iterators over it go on, or fail, as over the container. Runs
    none of the methods that its class overrides."""
    if isinstance(made, dict):
        _follow_dict(made, cast(dict[object, object], now))
    elif not _same_items(items_of(made), items_of(now)):
        if isinstance(made, list):
            list.__setitem__(made, slice(None), items_of(now))
        elif isinstance(made, set):
            set.clear(made)
            set.update(made, items_of(now))
        else:
            collections.deque.clear(made)
            collections.deque.extend(made, items_of(now))


def _follow_dict(made: dict[object, object], now: dict[object, object]) -> None:
    base = dict_base(made)
    for key in [k for k in base.keys(made) if not dict.__contains__(now, k)]:
        base.__delitem__(made, key)
    for key, value in base.items(now):
        if dict.get(made, key, MISSING) is not value:
            base.__setitem__(made, key, value)
    if not _same_items(list(base.keys(made)), list(base.keys(now))):
        base.clear(made)
        base.update(made, now)


def _same_items(a: list[object], b: list[object]) -> bool:
    return len(a) == len(b) and all(map(operator.is_, a, b))
