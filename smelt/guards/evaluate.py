"""Guards evaluated in pure Python: the reference that the native tree must agree with, and guards as readable text.

Two tables say what each accessor reads and when each guard holds. Neither ever runs user code: attributes are read from
instance dictionaries and through C descriptors only, equality is asked of leaf constants only. An accessor that finds
nothing raises `Missing`, which fails the guards below it.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from smelt.graph import numbers
from smelt.guards import state
from smelt.guards.guard import Guard, TensorFacts
from smelt.guards.origin import Origin, key_text
from smelt.trace.fake import is_dual

_ABSENT = object()
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MODULE_DICTS = ("_parameters", "_buffers", "_modules")


class Missing(LookupError):
    """There is no object at an origin."""


def instance_dict(owner: object) -> Any:
    """The `__dict__` of an instance, module or class without running user code. Raises Missing."""
    read = type.__getattribute__ if issubclass(type(owner), type) else object.__getattribute__
    try:
        return read(owner, "__dict__")  # type: ignore[arg-type]
    except AttributeError as e:
        raise Missing(str(e)) from None


# -------------------------------------------------------------------------------------------------- accessors


def _attr(base: Any, key: str) -> Any:
    return instance_dict(base)[key]


def _member(base: Any, key: str) -> Any:
    for cls in type(base).__mro__:
        found = cls.__dict__.get(key, _ABSENT)
        if found is not _ABSENT:
            return found.__get__(base, type(base))
    raise Missing(key)


def _param(base: Any, key: str) -> Any:
    own = instance_dict(base)
    if key in own:  # written there directly, it wins
        return own[key]
    for name in _MODULE_DICTS:
        if key in own[name]:
            return own[name][key]
    raise Missing(key)


def _item(base: Any, key: Any) -> Any:
    for kind in (dict, list, tuple):
        if issubclass(type(base), kind):
            return kind.__getitem__(base, key)
    return base[key]


def _cell(base: Any, key: int) -> Any:
    return base.__closure__[key].cell_contents


ACCESSORS: dict[str, Callable[[Any, Any], Any]] = {
    "attr": _attr,
    "member": _member,
    "param": _param,
    "item": _item,
    "cell": _cell,
    "default": lambda base, key: base.__defaults__[key],
    "kwdefault": lambda base, key: base.__kwdefaults__[key],
    "type": lambda base, key: type(base),
    "dict": lambda base, key: instance_dict(base),
    "call": lambda base, key: base(),
}
_FAILURES = (Missing, AttributeError, LookupError, TypeError, ValueError, ArithmeticError)


class Reader:
    """Reads origins from one call's argument slots; every origin is read once."""

    def __init__(self, slots: Sequence[object]) -> None:
        self.slots = slots
        self._seen: dict[Origin, Any] = {}

    def __call__(self, origin: Origin) -> Any:
        """The object now at `origin`. Raises Missing."""
        found = self._seen.get(origin, _ABSENT)
        if found is _ABSENT:
            found = self._seen[origin] = self._read(origin)
        return found

    def _read(self, origin: Origin) -> Any:
        if origin.base is None:
            return self.slots[origin.index] if origin.kind == "arg" else origin.value
        try:
            return ACCESSORS[origin.kind](self(origin.base), origin.key)
        except _FAILURES as e:
            raise Missing(f"{origin.source}: {e}") from None


# --------------------------------------------------------------------------------------------------- checks


def same_leaf(x: object, value: object) -> bool:
    """Same type and value; NaN equals itself, -0.0 is not 0.0; tuples, slices and frozensets element by element."""
    if type(x) is not type(value):
        return False
    if x is value:
        return True
    if isinstance(x, (float, complex)):
        return repr(x) == repr(value)
    if isinstance(x, tuple) and isinstance(value, tuple):
        return len(x) == len(value) and all(map(same_leaf, x, value))
    if isinstance(x, slice) and isinstance(value, slice):
        return same_leaf((x.start, x.stop, x.step), (value.start, value.stop, value.step))
    if isinstance(x, frozenset) and isinstance(value, frozenset):
        return same_leaf(tuple(frozenset.__iter__(x)), tuple(frozenset.__iter__(value)))
    return bool(x == value)


def tensor_facts(x: torch.Tensor) -> TensorFacts:
    """The metadata of `x` that a trace depends on."""
    strided = x.layout is torch.strided
    return TensorFacts(
        type=type(x),
        dtype=x.dtype,
        device=x.device,
        shape=tuple(x.shape),
        stride=tuple(x.stride()) if strided else (),
        requires_grad=x.requires_grad,
        layout=x.layout,
        conj_neg=x.is_conj() or x.is_neg(),
        inference=x.is_inference(),
    )


def storage_of(x: torch.Tensor) -> int:
    """What tells storages apart while they are alive."""
    return x.untyped_storage()._cdata


def _own(x: object) -> dict[str, Any]:
    try:
        found: dict[str, Any] = instance_dict(x)
    except Missing:
        return {}
    return found


def _contains(x: Any, value: tuple[Any, bool]) -> bool:
    kind = next((k for k in (dict, set) if issubclass(type(x), k)), type(x))
    return kind.__contains__(x, value[0]) is value[1]


def _no_attr(x: object, name: str) -> bool:
    own = _own(x)
    return name not in own and all(name not in own.get(d, ()) for d in _MODULE_DICTS)


def _function(x: Any, value: tuple[Any, Any, Any]) -> bool:
    return x.__code__ is value[0] and x.__defaults__ is value[1] and x.__kwdefaults__ is value[2]


def length_of(x: Any) -> int:
    """`len(x)`; of a container below any `__len__` of its class."""
    for kind in (dict, list, tuple, set, frozenset):
        if issubclass(type(x), kind):
            return kind.__len__(x)
    return len(x)


def keys_of(x: Any) -> tuple[Any, ...]:
    """In the order of iteration; below any `__iter__` of the class."""
    for kind in (collections.OrderedDict, dict, set, frozenset):
        if issubclass(type(x), kind):
            return tuple(kind.__iter__(x))
    return tuple(x)


CHECKS: dict[str, Callable[[Any, Any], bool]] = {
    "type": lambda x, value: type(x) is value,
    "id": lambda x, value: x is value,
    "eq": same_leaf,
    "number": lambda x, value: type(x) is value and (value is float or -(1 << 63) <= x < 1 << 63),
    "tensor": lambda x, value: (
        issubclass(type(x), torch.Tensor) and tensor_facts(x) == value and not is_dual(x)
    ),
    "len": lambda x, value: length_of(x) == value,
    "keys": lambda x, value: same_leaf(keys_of(x), value),
    "contains": _contains,
    "not_in_dict": lambda x, value: value not in _own(x),
    "no_attr": _no_attr,
    "no_hooks": lambda x, value: not any(instance_dict(x)[name] for name in HOOKS),
    "type_version": lambda x, value: state.type_version(x) == value,
    "function": _function,
}


def _expression_holds(expression: numbers.Expression, expected: Any, read: Callable[[Origin], Any]) -> bool:
    def number(origin: Origin) -> Any:
        x = read(origin)
        if type(x) not in (int, float, bool):  # arithmetic on others could run user code
            raise Missing(f"{origin.source} is no number")
        return x

    found = numbers.evaluate(expression, number)
    return type(found) is expected if isinstance(expected, type) else found is expected


def holds(guard: Guard, read: Callable[[Origin], Any]) -> bool:
    """Whether `guard` holds; `read` gives the object at an origin (`Reader`)."""
    try:
        if guard.kind == "global_state":
            return bool(state.snapshot() == guard.value)
        if guard.kind == "distinct":
            objects = [read(o) for o in guard.value]
            return len({id(x) for x in objects}) == len(objects)
        if guard.kind == "no_overlap":
            storages = [storage_of(read(o)) for o in guard.value]
            return len(set(storages)) == len(storages)
        if guard.kind == "expression":
            expression, expected = guard.value
            return _expression_holds(expression, expected, read)
        assert guard.origin is not None
        x = read(guard.origin)
        return x is read(guard.value) if guard.kind == "alias" else CHECKS[guard.kind](x, guard.value)
    except _FAILURES:
        return False


def first_failing(guards: Iterable[Guard], slots: Sequence[object]) -> Guard | None:
    """The first of `guards` that does not hold for a call with these argument slots."""
    read = Reader(slots)
    return next((g for g in guards if not holds(g, read)), None)


def changed_numbers(guards: Iterable[Guard], slots: Sequence[object]) -> set[tuple[Any, ...]]:
    """Paths of the origins that must hold a certain int or float, but hold another one of the same type."""
    read = Reader(slots)
    found = set()
    for guard in guards:
        if guard.kind == "eq" and type(guard.value) in (int, float, tuple) and guard.origin is not None:
            try:
                now = read(guard.origin)
            except Missing:
                continue
            found |= _changed(guard.origin, guard.value, now)
    return found


def _changed(origin: Origin, then: Any, now: Any) -> set[tuple[Any, ...]]:
    if type(now) is not type(then):
        return set()
    if type(then) is tuple and len(then) == len(now):
        return {p for i, (a, b) in enumerate(zip(then, now)) for p in _changed(origin.child("item", i), a, b)}
    return {origin.path} if type(then) in (int, float) and not same_leaf(then, now) else set()


# ----------------------------------------------------------------------------------------------------- text


def _name(value: object) -> str:
    if isinstance(value, type):
        return (
            value.__name__ if value.__module__ == "builtins" else f"{value.__module__}.{value.__qualname__}"
        )
    if isinstance(value, types.ModuleType):
        return value.__name__
    name = getattr(value, "__qualname__", None) if callable(value) else None
    return str(name) if isinstance(name, str) else f"<{type(value).__name__} at {id(value):#x}>"


def _tensor_text(x: str, f: TensorFacts) -> str:
    extra = f", requires_grad={f.requires_grad}" if f.requires_grad else ""
    extra += f", layout={f.layout}" if f.layout is not torch.strided else ""
    extra += ", conj_or_neg=True" if f.conj_neg else ""
    extra += ", inference=True" if f.inference else ""
    kind = "" if f.type is torch.Tensor else f", type={_name(f.type)}"
    shape = f"{list(f.shape)}, stride={list(f.stride)}"
    return f"is_tensor({x}, {f.dtype}, shape={shape}, device={str(f.device)!r}{extra}{kind})"


def _sources(origins: Iterable[Origin]) -> str:
    return ", ".join(o.source for o in origins)


def _expression_text(x: str, value: tuple[numbers.Expression, Any]) -> str:
    text = numbers.text(value[0], lambda origin: str(origin.source))
    if isinstance(value[1], type):
        return f"type({text}) is {value[1].__name__}"
    bare = text[1:-1] if text.startswith("(") else text
    return bare if value[1] else f"not {text}"


TEXTS: dict[str, Callable[[str, Any], str]] = {
    "type": lambda x, v: f"type({x}) is {_name(v)}",
    "id": lambda x, v: f"{x} is {_name(v)}" if v is not None else f"{x} is None",
    "eq": lambda x, v: f"{x} == {v!r}",
    "number": lambda x, v: f"type({x}) is {v.__name__}",
    "expression": _expression_text,
    "tensor": _tensor_text,
    "len": lambda x, v: f"len({x}) == {v}",
    "keys": lambda x, v: f"tuple({x}) == {v!r}",
    "contains": lambda x, v: f"{key_text(v[0])} {'in' if v[1] else 'not in'} {x}",
    "not_in_dict": lambda x, v: f"{v!r} not in {x}.__dict__",
    "no_attr": lambda x, v: f"no_attribute({x}, {v!r})",
    "no_hooks": lambda x, v: f"no_hooks({x})",
    "type_version": lambda x, v: f"unchanged_class({x})",
    "function": lambda x, v: f"unchanged_function({x})",
    "alias": lambda x, v: f"{x} is {v.source}",
    "distinct": lambda x, v: f"all_different({_sources(v)})",
    "no_overlap": lambda x, v: f"no_shared_storage({_sources(v)})",
    "global_state": lambda x, v: f"global_state({state.describe(v)})",
}


def format_guard(guard: Guard) -> str:
    """One guard as an expression a person can read."""
    return TEXTS[guard.kind]("" if guard.origin is None else guard.origin.source, guard.value)


def format_guards(guards: Iterable[Guard]) -> str:
    """One guard per line, with the user's line that made it necessary as a comment."""
    rows = [(format_guard(g), g.line) for g in guards]
    width = min(max((len(text) for text, _ in rows), default=0), 76)
    return "\n".join(text if line is None else f"{text:<{width}}  # {line}" for text, line in rows)
