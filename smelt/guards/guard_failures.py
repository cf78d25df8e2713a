"""Why a guard fails for a call: what it expects and what the call brought, as the text of recompile events and warnings."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from smelt._native import isinstance
from smelt.guards import global_state
from smelt.guards.guard import Guard, TensorFacts, shape_text, stride_text
from smelt.guards.guard_evaluation import first_failing, keys_of, length_of, storage_of, tensor_facts
from smelt.guards.guard_printer import format_guard
from smelt.guards.read_source import HOOKS, Missing, Reader, instance_dict
from smelt.guards.source import Source, key_text
from smelt.guards.weak_identity import GONE
from smelt.shapes.expr import leaves


@dataclass(frozen=True)
class Failure:
    """A guard that does not hold: what the compiled entry expects at `source`, and what the call brought."""

    guard: Guard
    source: str
    expected: str
    found: str

    def __str__(self) -> str:
        line = f" (needed at {self.guard.line})" if self.guard.line else ""
        return f"{self.source}: expected {self.expected}, found {self.found}{line}"


def explain(guards: Iterable[Guard], slots: Sequence[object]) -> Failure | None:
    """The first of `guards` that fails for these argument slots, explained; None when all hold."""
    guard = first_failing(guards, slots)
    return None if guard is None else explain_guard(guard, slots)


def explain_guard(guard: Guard, slots: Sequence[object]) -> Failure:
    """Explains `guard`, which is known to fail for these argument slots."""
    if guard.kind == "global_state":
        return Failure(guard, "global state", *global_state.difference(guard.value, global_state.snapshot()))
    read = Reader(slots)
    several = _SEVERAL.get(guard.kind)
    if several is not None:
        return several(guard, read)
    if guard.source is None:
        return Failure(guard, format_guard(guard), "this to hold", "that it does not")
    try:
        x = read(guard.source)
    except Missing:
        return Failure(guard, guard.source.source, format_guard(guard), "nothing there")
    if guard.value is GONE:
        return Failure(guard, guard.source.source, "an object that is gone", _short(x))
    suffix, expected, found = _DETAILS.get(guard.kind, _other)(x, guard)
    return Failure(guard, guard.source.source + suffix, expected, found)


def _alias(guard: Guard, read: Reader) -> Failure:
    assert guard.source is not None
    return Failure(guard, guard.source.source, f"the same object as {guard.value.source}", "another")


def _colliding(guard: Guard, read: Reader, what: Callable[[Any], int], expected: str, found: str) -> Failure:
    """The failure of a guard that `what` differs for all its sources. It names the first two for which it is the same; all
    of them if an object is missing."""
    seen: dict[int, Source] = {}
    try:
        for source in guard.value:
            first = seen.setdefault(what(read(source)), source)
            if first is not source:
                return Failure(guard, f"{first.source} and {source.source}", expected, found)
    except (Missing, AttributeError, RuntimeError):
        pass
    return Failure(guard, format_guard(guard), expected, found)


def _expression(guard: Guard, read: Reader) -> Failure:
    found = []
    for source in leaves(guard.value[0]):
        try:
            found.append(f"{source.source} = {_short(read(source))}")
        except Missing:
            found.append(f"no {source.source}")
    return Failure(guard, format_guard(guard), "this to hold", ", ".join(found))


_SEVERAL: dict[str, Callable[[Guard, Reader], Failure]] = {
    "alias": _alias,
    "expression": _expression,
    "distinct": lambda guard, read: _colliding(guard, read, id, "two objects", "one"),
    "no_overlap": lambda guard, read: _colliding(
        guard, read, storage_of, "no shared memory", "that they share it"
    ),
}

Detail = tuple[str, str, str]


def _tensor(x: Any, guard: Guard) -> Detail:
    want: TensorFacts = guard.value
    if not isinstance(x, torch.Tensor):
        return "", want.type.__name__, type(x).__name__
    have = want.seen_in(tensor_facts(x))
    for name in ("layout", *(f.name for f in fields(TensorFacts))):  # strides follow from the layout
        a, b = getattr(want, name), getattr(have, name)
        if a != b:
            text = _TEXTS.get(name, _field)
            return f".{name}", text(a), text(b)
    return "", "a tensor like before", "another"


def _sizes(text: Callable[[tuple[int, ...]], str]) -> Callable[[tuple[int, ...]], str]:
    """`text` where a number stands for many, as torch shows them elsewhere."""
    return lambda sizes: text(sizes) if min(sizes, default=0) < 0 else str(sizes)


def _field(value: object) -> str:
    return _qualified(value) if isinstance(value, type) else str(value)


_TEXTS: dict[str, Callable[[Any], str]] = {"shape": _sizes(shape_text), "stride": _sizes(stride_text)}


def _type(x: Any, guard: Guard) -> Detail:
    return ".__class__", _qualified(guard.value), _qualified(type(x))


def _eq(x: Any, guard: Guard) -> Detail:
    return "", repr(guard.value), _short(x)


def _id(x: Any, guard: Guard) -> Detail:
    if isinstance(guard.value, _NAMED):
        return "", _named(guard.value), _named(x)
    return "", f"the same {type(guard.value).__name__} as before", _short(x)


_NAMED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)


def _named(x: Any) -> str:
    if not isinstance(x, _NAMED):
        return _short(x)
    kind = "class" if isinstance(x, type) else "module" if isinstance(x, types.ModuleType) else "function"
    name = x.__name__ if isinstance(x, (types.ModuleType, types.BuiltinFunctionType)) else x.__qualname__
    return f"{kind} {name}"


def _len(x: Any, guard: Guard) -> Detail:
    return "", f"length {guard.value}", f"length {length_of(x)}"


def _keys(x: Any, guard: Guard) -> Detail:
    return "", f"keys {guard.value!r}", f"keys {keys_of(x)!r}"


def _contains(x: Any, guard: Guard) -> Detail:
    key, present = guard.value
    texts = (f"{key_text(key)} in it", f"{key_text(key)} not in it")
    return "", texts[not present], texts[present]


def _present(x: Any, guard: Guard) -> Detail:
    return (
        f".{guard.value}",
        "no such attribute on the instance",
        _short(instance_dict(x).get(guard.value, "one")),
    )


def _slot(x: Any, guard: Guard) -> Detail:
    name, present = guard.value
    texts = ("nothing there", "something")
    return f".{name}", texts[present], texts[not present]


def _class(x: Any, guard: Guard) -> Detail:
    return "", f"class {x.__name__} as it was", "that one of its attributes changed"


def _function(x: Any, guard: Guard) -> Detail:
    for name, want in zip(("__code__", "__defaults__", "__kwdefaults__"), guard.value):
        have = getattr(x, name, None)
        if have is not want:
            return f".{name}", _code_or_value(want), _code_or_value(have)
    return "", "a function", _short(x)


def _code_or_value(x: Any) -> str:
    if isinstance(x, types.CodeType):
        return f"that of {x.co_qualname} (line {x.co_firstlineno})"
    if type(x) is dict:
        return "{" + ", ".join(f"{name!r}: {_short(value)}" for name, value in x.items()) + "}"
    return _short(x)


def _hooks(x: Any, guard: Guard) -> Detail:
    own = instance_dict(x)
    name = next((n for n in HOOKS if own.get(n)), "")
    return f".{name}", "no hooks", f"{len(own.get(name, ()))}"


def _other(x: Any, guard: Guard) -> Detail:
    return "", format_guard(guard), _short(x)


_DETAILS: dict[str, Callable[[Any, Guard], Detail]] = {
    "tensor": _tensor,
    "type": _type,
    "eq": _eq,
    "number": _type,
    "id": _id,
    "len": _len,
    "keys": _keys,
    "contains": _contains,
    "not_in_dict": _present,
    "no_attr": _present,
    "slot": _slot,
    "type_version": _class,
    "function": _function,
    "no_hooks": _hooks,
}


def _qualified(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


_LEAVES = (
    type(None), int, float, bool, str, bytes, complex, slice, range, torch.dtype, torch.device, torch.Size, torch.layout,
)  # fmt: skip


def _short(x: object) -> str:
    """A value's text without running user code: leaves print, other objects are named by their class."""
    if type(x) in _LEAVES or (type(x) is tuple and all(type(v) in _LEAVES for v in x)):
        text = repr(x)
        return text if len(text) <= 60 else text[:57] + "..."
    return f"{_qualified(type(x))} object"
