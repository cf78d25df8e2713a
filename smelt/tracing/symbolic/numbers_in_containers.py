"""Symbolic numbers in tuples, lists, dictionaries and slices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from smelt.tracing.symbolic.sym_numbers import SYMBOLIC, wrap_symbolic, specialize


def wrap_nested(value: Any) -> Any:
    """The same of sizes that C++ gave, one or several."""
    if type(value) is torch.Size or type(value) is tuple:
        return value if all(type(v) is int for v in value) else type(value)(map(wrap_symbolic, value))
    return wrap_symbolic(value)


def specialize_nested(value: Any, depth: int = 4) -> Any:
    """`value` with plain numbers in it, pinned. Lists and dictionaries stay the same objects: to the program nothing
    changes."""
    kind = type(value)
    if kind in SYMBOLIC:
        return specialize(value)
    found = _PARTS.get(kind)
    if found is None and isinstance(value, _CONTAINERS):
        found = next(_PARTS[base] for base in _CONTAINERS if isinstance(value, base))
    return value if not depth or found is None else found(value, depth - 1)


# What subclasses do when they are read or written is the program's own: it would see the numbers change.


def _plain_tuple(value: tuple[Any, ...], depth: int) -> tuple[Any, ...]:
    before = list(tuple.__iter__(value))
    items = [specialize_nested(v, depth) for v in before]
    if all(a is b for a, b in zip(items, before)):
        return value
    made = tuple.__new__(type(value), items)
    if hasattr(made, "__dict__"):
        made.__dict__.update(value.__dict__)
    return made


def _in_place(cls: Any, pairs: Callable[[Any], Iterable[tuple[Any, Any]]]) -> Callable[[Any, int], Any]:
    """Of containers of `cls`, whose elements are set; `pairs` gives the key of each, and the element."""

    def plain_items(value: Any, depth: int) -> Any:
        for key, item in tuple(pairs(value)):
            found = specialize_nested(item, depth)
            if found is not item:
                cls.__setitem__(value, key, found)
        return value

    return plain_items


def _plain_slice(value: slice, depth: int) -> slice:
    parts = (value.start, value.stop, value.step)
    return slice(*map(specialize, parts)) if any(type(p) in SYMBOLIC for p in parts) else value


_PARTS: dict[type, Callable[[Any, int], Any]] = {
    tuple: _plain_tuple,
    list: _in_place(list, lambda value: enumerate(list.__iter__(value))),
    deque: _in_place(deque, lambda value: enumerate(deque.__iter__(value))),
    dict: _in_place(dict, dict.items),
    slice: _plain_slice,
}
_CONTAINERS = tuple(_PARTS)


def as_operator_arguments(value: Any) -> Any:
    """`value` as an operator is given it: numbers that may not change, or fit no tensor, are plain ones."""
    kind = type(value)
    if kind in SYMBOLIC:
        if not value.node.fits_a_tensor() or value.node.is_constant():
            return specialize(value)
        return value
    if kind is list or kind is tuple:
        return kind(map(as_operator_arguments, value))
    return {k: as_operator_arguments(v) for k, v in value.items()} if kind is dict else value


def has_symbols(value: Any) -> bool:
    """Whether there is a symbolic number in `value`."""
    if type(value) in SYMBOLIC:
        return True
    if isinstance(value, (list, tuple)):
        return any(map(has_symbols, value))
    if isinstance(value, slice):
        return has_symbols((value.start, value.stop, value.step))
    return isinstance(value, dict) and any(map(has_symbols, value.values()))


def has_only_sizes(value: Any) -> bool:
    """Whether all symbolic numbers in `value`, an index of a tensor, are sizes, or may be."""
    if type(value) in SYMBOLIC:
        return value.node.as_size() is not None
    if isinstance(value, (list, tuple)):
        return all(map(has_only_sizes, value))
    return not isinstance(value, slice) or has_only_sizes((value.start, value.stop, value.step))
