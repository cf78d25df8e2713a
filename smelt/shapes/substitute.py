"""Substitution of sizes for symbols, in any value that holds sizes.

The walk enters lists, tuples (named ones too), dicts, slices and frozen dataclasses. An unchanged value, unless it is a
slice, comes back as the same object. A class with another rule registers it with `substitution`. The walk enters no
kernels: their loops bind symbols whose ranges depend on sizes (`loops/kernel_sizes.py`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from smelt.shapes.expr import Expr, Size, Sym, evaluate, free_syms, subs

T = TypeVar("T")
Rule = Callable[[Any, Mapping[Sym, Size]], Any]
Class = Any  # a class: mypy takes no `type` for a hashable argument of a cached function

_RULES: dict[type, Rule] = {}
_SCALARS = frozenset((int, float, complex, bool, str, bytes, type(None)))


def substitution(cls: type) -> Callable[[Rule], Rule]:
    """Register a function of a value and the sizes as the substitution in values of class `cls`."""

    def register(rule: Rule) -> Rule:
        _RULES[cls] = rule
        return rule

    return register


def substitute(value: T, values: Mapping[Sym, Size]) -> T:
    """`value` with the sizes in `values` for their symbols, all at once; other symbols stay."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Expr):
        return substitute_size(value, values)  # type: ignore[return-value]
    cls: Class = type(value)
    rule = _RULES.get(cls) or _rule_of(cls)
    return value if rule is None else rule(value, values)  # type: ignore[no-any-return]


def substitute_size(size: Size, values: Mapping[Sym, Size]) -> Size:
    """The same of a size. `evaluate` computes numbers, which differ from call to call: unlike `subs` it caches nothing."""
    if type(size) is int:
        return size
    if isinstance(size, Sym):
        return values.get(size, size)
    for sym in free_syms(size):
        if type(values.get(sym)) is not int:
            return subs(size, values)
    return evaluate(size, values)  # type: ignore[no-any-return]


@cache
def _rule_of(cls: Class) -> Rule | None:
    """The walk into a class; None for a leaf."""
    if issubclass(cls, list | tuple):
        return _sequence
    if issubclass(cls, dict):
        return _mapping
    if cls is slice:
        return lambda s, values: slice(*(substitute(n, values) for n in (s.start, s.stop, s.step)))
    return _fields if _sized_fields(cls) else None


def _sequence(value: Any, values: Mapping[Sym, Size]) -> Any:
    items = [substitute(item, values) for item in value]
    if all(new is old for new, old in zip(items, value)):
        return value
    cls = type(value)
    return cls(*items) if hasattr(cls, "_fields") else cls(items)


def _mapping(value: Any, values: Mapping[Sym, Size]) -> Any:
    items = {key: substitute(item, values) for key, item in value.items()}
    return value if all(items[key] is old for key, old in value.items()) else items


def _fields(value: Any, values: Mapping[Sym, Size]) -> Any:
    changes = {}
    cls: Class = type(value)
    for name in _sized_fields(cls):
        old = getattr(value, name)
        new = substitute(old, values)
        if new is not old:
            changes[name] = new
    return replace(value, **changes) if changes else value


@cache
def _sized_fields(cls: Class) -> tuple[str, ...]:
    """The fields of a frozen dataclass that may hold sizes, by their types; none for other classes."""
    parameters = getattr(cls, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        return ()
    hints = get_type_hints(cls)
    return tuple(f.name for f in fields(cls) if _may_hold_sizes(hints[f.name]))


def _may_hold_sizes(hint: Any) -> bool:
    if hint in (Any, object):
        return True
    if get_origin(hint) in (Union, types.UnionType) or get_args(hint):
        return any(map(_may_hold_sizes, get_args(hint)))
    if not isinstance(hint, type):
        return False
    cls: Class = hint
    return issubclass(hint, Expr | list | tuple | dict) or hint in _RULES or bool(_sized_fields(cls))
