"""Which guard failed for a call, and with which two values: the text of recompile events and warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from smelt.guards import state
from smelt.guards.evaluate import Missing, Reader, first_failing, format_guard, instance_dict, tensor_facts
from smelt.guards.guard import Guard, TensorFacts


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
        return Failure(guard, "global state", *state.difference(guard.value, state.snapshot()))
    if guard.origin is None or guard.kind in ("distinct", "no_overlap", "alias", "expression"):
        return Failure(guard, format_guard(guard), "this to hold", "that it does not")
    try:
        x = Reader(slots)(guard.origin)
    except Missing:
        return Failure(guard, guard.origin.source, format_guard(guard), "nothing there")
    suffix, expected, found = _DETAILS.get(guard.kind, _other)(x, guard)
    return Failure(guard, guard.origin.source + suffix, expected, found)


Detail = tuple[str, str, str]


def _tensor(x: Any, guard: Guard) -> Detail:
    want: TensorFacts = guard.value
    if not isinstance(x, torch.Tensor):
        return "", want.type.__name__, type(x).__name__
    have = tensor_facts(x)
    for name in ("layout", *(f.name for f in fields(TensorFacts))):  # strides follow from the layout
        a, b = getattr(want, name), getattr(have, name)
        if a != b:
            return f".{name}", _field(a), _field(b)
    return "", "a tensor like before", "another"


def _field(value: object) -> str:
    return _qualified(value) if isinstance(value, type) else str(value)


def _type(x: Any, guard: Guard) -> Detail:
    return ".__class__", _qualified(guard.value), _qualified(type(x))


def _eq(x: Any, guard: Guard) -> Detail:
    return "", repr(guard.value), _short(x)


def _id(x: Any, guard: Guard) -> Detail:
    return "", f"the same {type(guard.value).__name__} as before", _short(x)


def _len(x: Any, guard: Guard) -> Detail:
    return "", f"length {guard.value}", f"length {len(x)}"


def _keys(x: Any, guard: Guard) -> Detail:
    return "", f"keys {guard.value!r}", f"keys {tuple(x)!r}"


def _contains(x: Any, guard: Guard) -> Detail:
    key, present = guard.value
    texts = (f"{key!r} in it", f"{key!r} not in it")
    return "", texts[not present], texts[present]


def _present(x: Any, guard: Guard) -> Detail:
    return (
        f".{guard.value}",
        "no such attribute on the instance",
        _short(instance_dict(x).get(guard.value, "one")),
    )


def _class(x: Any, guard: Guard) -> Detail:
    return "", f"class {x.__name__} as it was", "that one of its attributes changed"


def _function(x: Any, guard: Guard) -> Detail:
    return "", f"code of {guard.value[0].co_qualname} and its defaults as they were", "others"


def _hooks(x: Any, guard: Guard) -> Detail:
    return "", "no hooks", "a forward or backward hook"


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
    "type_version": _class,
    "function": _function,
    "no_hooks": _hooks,
}


def _qualified(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _short(x: object) -> str:
    """A value's text without running user code: leaves print, other objects are named by their class."""
    if x is None or type(x) in (int, float, bool, str, bytes, complex, tuple):
        text = repr(x)
        return text if len(text) <= 60 else text[:57] + "..."
    return f"{_qualified(type(x))} object"
