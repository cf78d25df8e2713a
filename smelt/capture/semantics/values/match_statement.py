"""`match`: the instructions MATCH_SEQUENCE, MATCH_MAPPING, MATCH_KEYS and MATCH_CLASS (Python/ceval.c)."""

from __future__ import annotations

import builtins

from smelt._native import isinstance
from smelt.capture.base.bytecode import PY312
from smelt.capture.base.value_kinds import MISSING
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.semantics import attributes
from smelt.capture.vm.vm import VM

# Class flags (Include/object.h); collections.abc sets the first two on registered and inheriting classes.
_SEQUENCE, _MAPPING, _MATCH_SELF = 1 << 5, 1 << 6, 1 << 22


def is_sequence(value: object) -> bool:
    """MATCH_SEQUENCE: tests a class flag; `__len__` and `__getitem__` are not called."""
    return bool(_class_of(value).__flags__ & _SEQUENCE)


def is_mapping(value: object) -> bool:
    """MATCH_MAPPING: tests a class flag."""
    return bool(_class_of(value).__flags__ & _MAPPING)


def _class_of(value: object) -> type:
    return value.kind if isinstance(value, OpaqueProxy) else type(value)


def match_keys(vm: VM, subject: object, names: tuple[object, ...]) -> tuple[object, ...] | None:
    """MATCH_KEYS: the values of `subject` at `names`; None if one is missing."""
    for i, name in enumerate(names):
        if any(name == other for other in names[:i]):
            raise ValueError(f"mapping pattern checks duplicate key ({name!r})")
    get = attributes.load_attr(vm, subject, "get")
    values = []
    for name in names:
        value = vm.call(get, (name, MISSING), {})
        if value is MISSING:
            return None
        values.append(value)
    return tuple(values)


def match_class(
    vm: VM, subject: object, cls: object, count: int, names: tuple[str, ...]
) -> tuple[object, ...] | None:
    """MATCH_CLASS: the subjects of the sub-patterns of `cls(...)`, `count` positional ones first, or None."""
    if not isinstance(cls, type):
        raise TypeError(f"called match pattern must be a {'class' if PY312 else 'type'}")
    if not vm.call(builtins.isinstance, (subject, cls), {}):
        return None
    matches_self, positional = _positional(vm, cls, count) if count else (False, ())
    subjects: list[object] = [subject] if matches_self else []
    visited: set[str] = set()
    for name in (*positional, *names):
        if name in visited:
            raise TypeError(f"{cls.__name__}() got multiple sub-patterns for attribute {name!r}")
        visited.add(name)
        value = attributes.load_default(vm, subject, name, MISSING)
        if value is MISSING:
            return None
        subjects.append(value)
    return tuple(subjects)


def _positional(vm: VM, cls: type, count: int) -> tuple[bool, tuple[str, ...]]:
    """Whether the single positional pattern matches the subject itself, else the attribute names."""
    args = attributes.load_default(vm, cls, "__match_args__", MISSING)
    matches_self = args is MISSING and bool(cls.__flags__ & _MATCH_SELF)
    if args is MISSING:
        args = ()
    elif not isinstance(args, tuple):
        raise TypeError(f"{cls.__name__}.__match_args__ must be a tuple (got {type(args).__name__})")
    allowed = 1 if matches_self else len(args)
    if allowed < count:
        plural = "" if allowed == 1 else "s"
        raise TypeError(f"{cls.__name__}() accepts {allowed} positional sub-pattern{plural} ({count} given)")
    for name in args[:count]:
        if not isinstance(name, str):
            raise TypeError(f"__match_args__ elements must be strings (got {type(name).__name__})")
    return matches_self, args[:count]
