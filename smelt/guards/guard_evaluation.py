"""Guards evaluated in pure Python: the reference that the native guard tree must agree with.

`CHECKS` says when a guard on one object holds. No check runs user code: equality is asked of leaf constants only.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from smelt import _native
from smelt._native import isinstance
from smelt.guards import global_state
from smelt.guards.guard import Guard, TensorFacts
from smelt.guards.read_source import FAILURES, HOOKS, MODULE_DICTS, Missing, Reader, instance_dict
from smelt.guards.source import Source
from smelt.shapes.expr import Expression, evaluate_with
from smelt.torch_private import DisableTorchDispatch, DisableTorchFunction
from smelt.tracing.fake.fake_tensor import is_dual


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
    if isinstance(x, range) and isinstance(value, range):
        return same_leaf((x.start, x.stop, x.step), (value.start, value.stop, value.step))
    if isinstance(x, frozenset) and isinstance(value, frozenset):
        return same_leaf(tuple(frozenset.__iter__(x)), tuple(frozenset.__iter__(value)))
    return bool(x == value)


def tensor_facts(x: torch.Tensor) -> TensorFacts:
    """The metadata of `x` that a trace depends on. No handler of its class is asked."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return TensorFacts(
            type=type(x),
            dtype=x.dtype,
            device=x.device,
            shape=tuple(x.shape),
            stride=tuple(x.stride()) if x.layout is torch.strided else (),
            requires_grad=x.requires_grad,
            layout=x.layout,
            conj_neg=x.is_conj() or x.is_neg(),
            inference=x.is_inference(),
        )


def storage_of(x: torch.Tensor) -> int:
    """A number that no other storage has while this one is alive."""
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
    return name not in own and all(name not in own.get(d, ()) for d in MODULE_DICTS)


def _slot(x: object, value: tuple[str, bool]) -> bool:
    found = next((vars(cls)[value[0]] for cls in type(x).__mro__ if value[0] in vars(cls)), None)
    if type(found) is not types.MemberDescriptorType:
        return False
    try:
        found.__get__(x, type(x))
    except AttributeError:
        return not value[1]
    return value[1]


def _function(x: Any, value: tuple[Any, Any, Any]) -> bool:
    return x.__code__ is value[0] and x.__defaults__ is value[1] and x.__kwdefaults__ is value[2]


def length_of(x: Any) -> int:
    """`len(x)`. For a subclass of a builtin container, the container's own length: no `__len__` of the user's runs."""
    for kind in (dict, list, tuple, set, frozenset):
        if issubclass(type(x), kind):
            return kind.__len__(x)
    return len(x)


def keys_of(x: Any) -> tuple[Any, ...]:
    """The keys or elements of `x` in order of iteration. For a subclass of a builtin container no `__iter__` of the user's
    runs."""
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
        issubclass(type(x), torch.Tensor) and value.hold_of(tensor_facts(x)) and not is_dual(x)
    ),
    "len": lambda x, value: length_of(x) == value,
    "keys": lambda x, value: same_leaf(keys_of(x), value),
    "table": lambda x, value: issubclass(type(x), (set, frozenset)) and _native.set_table(x) == value,
    "contains": _contains,
    "not_in_dict": lambda x, value: value not in _own(x),
    "no_attr": _no_attr,
    "slot": _slot,
    "no_hooks": lambda x, value: not any(instance_dict(x)[name] for name in HOOKS),
    "plain_leaf": lambda x, value: _native.is_plain_leaf(x),
    "how_written": lambda x, value: _native.how_written(x) == value,
    "type_version": lambda x, value: _native.type_version(x) == value,
    "function": _function,
}


def expression_holds(expression: Expression, expected: Any, read: Callable[[Source], Any]) -> bool:
    """Whether it gives what a guard expects; `read` gives the number at a source. Raises `FAILURES`."""

    def number(source: Source) -> Any:
        x = read(source)
        if type(x) not in (int, float, bool):  # arithmetic on others could run user code
            raise Missing(f"{source.source} is no number")
        return x

    found = evaluate_with(expression, number)
    return type(found) is expected if isinstance(expected, type) else found is expected


def holds(guard: Guard, read: Callable[[Source], Any]) -> bool:
    """Whether `guard` holds; `read` gives the object at a source (`Reader`)."""
    try:
        if guard.kind == "global_state":
            return bool(global_state.snapshot() == guard.value)
        if guard.kind == "distinct":
            objects = [read(o) for o in guard.value]
            return len({id(x) for x in objects}) == len(objects)
        if guard.kind == "no_overlap":
            storages = [storage_of(read(o)) for o in guard.value]
            return len(set(storages)) == len(storages)
        if guard.kind == "expression":
            expression, expected = guard.value
            return expression_holds(expression, expected, read)
        assert guard.source is not None
        x = read(guard.source)
        return x is read(guard.value) if guard.kind == "alias" else CHECKS[guard.kind](x, guard.value)
    except FAILURES:
        return False


def first_failing(guards: Iterable[Guard], slots: Sequence[object]) -> Guard | None:
    """The first of `guards` that does not hold for a call with these argument slots."""
    read = Reader(slots)
    return next((g for g in guards if not holds(g, read)), None)
