"""Symbolic numbers in tuples, lists, dictionaries and slices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from smelt.tracing.symbolic.sym_numbers import SYMBOLIC, is_ragged, specialize, wrap_symbolic


def wrap_nested(value: Any) -> Any:
    """`wrap_symbolic` for a result of C++: one number or a tuple of them."""
    if type(value) is torch.Size or type(value) is tuple:
        return value if all(type(v) is int for v in value) else type(value)(map(wrap_symbolic, value))
    return wrap_symbolic(value)


def specialize_nested(value: Any, depth: int = 4) -> Any:
    """`value` with all symbolic numbers in it specialized. Lists and dictionaries are changed in place: to the program
    nothing changes."""
    kind = type(value)
    if kind in SYMBOLIC:
        return specialize(value)
    rule = _RULES.get(kind)
    if rule is None and isinstance(value, _CONTAINERS):
        rule = next(_RULES[base] for base in _CONTAINERS if isinstance(value, base))
    return value if not depth or rule is None else rule(value, depth - 1)


# The rules bypass methods of subclasses: those are the program's code, which would see the numbers change.


def _specialize_tuple(value: tuple[Any, ...], depth: int) -> tuple[Any, ...]:
    before = list(tuple.__iter__(value))
    items = [specialize_nested(v, depth) for v in before]
    if all(a is b for a, b in zip(items, before)):
        return value
    copy = tuple.__new__(type(value), items)
    if hasattr(copy, "__dict__"):
        copy.__dict__.update(value.__dict__)
    return copy


def _specialize_inplace(
    cls: Any, pairs: Callable[[Any], Iterable[tuple[Any, Any]]]
) -> Callable[[Any, int], Any]:
    """The rule for mutable containers of `cls`; `pairs` yields (key, element)."""

    def specialize_items(value: Any, depth: int) -> Any:
        for key, item in tuple(pairs(value)):
            specialized = specialize_nested(item, depth)
            if specialized is not item:
                cls.__setitem__(value, key, specialized)
        return value

    return specialize_items


def _specialize_slice(value: slice, depth: int) -> slice:
    parts = (value.start, value.stop, value.step)
    return slice(*map(specialize, parts)) if any(type(p) in SYMBOLIC for p in parts) else value


_RULES: dict[type, Callable[[Any, int], Any]] = {
    tuple: _specialize_tuple,
    list: _specialize_inplace(list, lambda value: enumerate(list.__iter__(value))),
    deque: _specialize_inplace(deque, lambda value: enumerate(deque.__iter__(value))),
    dict: _specialize_inplace(dict, dict.items),
    slice: _specialize_slice,
}
_CONTAINERS = tuple(_RULES)


def as_operator_arguments(value: Any) -> Any:
    """`value` as an operator argument: numbers that are specialized already, or fit no tensor, become plain ones."""
    kind = type(value)
    if kind in SYMBOLIC and not is_ragged(value):
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
    """Whether all symbolic numbers in the index `value` are sizes, or can become sizes."""
    if type(value) in SYMBOLIC:
        return value.node.as_size() is not None
    if isinstance(value, (list, tuple)):
        return all(map(has_only_sizes, value))
    return not isinstance(value, slice) or has_only_sizes((value.start, value.stop, value.step))
