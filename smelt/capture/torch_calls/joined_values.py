"""Values that the two branches of a condition leave: which tensors correspond, and which values cannot become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.base.value_kinds import LEAF_TYPES
from smelt.capture.proxies.number_proxy import MAX_EXACT, NumberProxy
from smelt.capture.torch_calls.subgraph_capture import refuse, with_own_storage
from smelt.errors import Unsupported
from smelt.graph.ir import TensorSpec
from smelt.guards.leaf_equality import same_leaf
from smelt.reasons import DATA_DEPENDENT, Reason
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.sym_nodes import UnbackedComparison
from smelt.tracing.symbolic.sym_numbers import Int

INTS = (int, Int)


class Unjoinable(Unsupported):
    """Two values that cannot become one."""


Pair = tuple[FakeTensor, FakeTensor]
Number = float | NumberProxy  # a float, int or bool
NumberPair = tuple[Number, Number]


@dataclass
class Pairs:
    """The corresponding tensors of two results, and the corresponding numbers that differ."""

    tensors: list[Pair] = field(default_factory=list)
    numbers: list[NumberPair] = field(default_factory=list)


def pairs_of(a: object, b: object, same: bool = False, numbers: bool = False) -> Pairs:
    """The pairs of two results that are otherwise equal; with `same`, without what is one object in both. `numbers`:
    numbers may differ. Raises Unjoinable."""
    found = Pairs()
    pending = [(a, b)]
    while pending:
        a, b = pending.pop()
        if same and a is b:
            continue
        if isinstance(a, FakeTensor) and isinstance(b, FakeTensor) and a.subclass is None is b.subclass:
            found.tensors.append((a, b))
            continue
        if type(a) in INTS and type(b) in INTS and not same:
            continue
        if type(a) in LEAF_TYPES and same_leaf(a, b):
            continue
        if numbers and _number_kind(a) is _number_kind(b) is not None:
            found.numbers.append((cast(Number, a), cast(Number, b)))
            continue
        items = _items_of(a, b)
        if items is None:
            raise Unjoinable(Reason(DATA_DEPENDENT, _difference(a, b)))
        pending += reversed(items)
    return found


def _items_of(a: object, b: object) -> list[tuple[object, object]] | None:
    """The corresponding items of two containers; None for other objects."""
    if isinstance(a, (tuple, list)) and type(a) is type(b) and type(a) in (tuple, list):
        others = cast("Sequence[object]", b)
        if len(a) == len(others):
            return list(zip(a, others))
    if type(a) is dict and type(b) is dict and len(a) == len(b) and all(map(_is_same_key, a, b)):
        return [(a[key], b[key]) for key in a]
    return None


def _number_kind(x: object) -> type | None:
    """The class of a number that may be a proxy; None for another value."""
    if isinstance(x, NumberProxy):
        return x.kind
    is_small = type(x) is int and abs(x) <= MAX_EXACT
    return type(x) if type(x) in (float, bool) or is_small else None


def _is_same_key(a: object, b: object) -> bool:
    return a is b or (type(a) in LEAF_TYPES and same_leaf(a, b))


_SHOWN: dict[type, type] = {FakeTensor: torch.Tensor, Int: int, UnbackedComparison: bool}


def _difference(a: object, b: object) -> str:
    kinds = [(_number_kind(x) or _SHOWN.get(type(x), type(x))).__name__ for x in (a, b)]
    if kinds[0] != kinds[1]:
        return f"one leaves a value of type {kinds[0]}, the other of type {kinds[1]}"
    return f"they leave different values of type {kinds[0]}"


def check_containers(a: object, b: object, exists: Callable[[object], bool]) -> None:
    """Raise Unsupported where a container of one branch corresponds to several of the other, or exists before."""
    partners: dict[int, int] = {}
    pending = [(a, b)]
    while pending:
        x, y = pending.pop()
        if x is y or not isinstance(x, (list, dict, tuple)):
            continue
        if exists(x) or exists(y):
            raise Unjoinable(
                Reason(DATA_DEPENDENT, f"they leave different objects of type {type(x).__name__}")
            )
        if not isinstance(x, tuple):
            if partners.setdefault(id(x), id(y)) != id(y) or partners.setdefault(id(y), id(x)) != id(x):
                raise refuse("branches that share containers in different ways")
        if isinstance(x, dict):
            pending += ((x[k], cast("dict[object, object]", y)[k]) for k in x)
        else:
            pending += zip(x, cast("Sequence[object]", y))


def check_layouts(pairs: Sequence[Pair]) -> None:
    """Raise Unjoinable for two tensors of different types or layouts."""
    for a, b in pairs:
        layouts = [with_own_storage(f.spec) for f in (a, b)]
        if layouts[0] != layouts[1]:
            raise Unjoinable(Reason(DATA_DEPENDENT, _differing_layouts(*(f.spec for f in (a, b)))))


def _differing_layouts(a: TensorSpec, b: TensorSpec) -> str:
    facts = [("sizes", a.shape, b.shape), ("dtypes", a.dtype, b.dtype), ("devices", a.device, b.device)]
    found = (f"tensors of different {name}, {_text(x)} and {_text(y)}" for name, x, y in facts if x != y)
    return f"they leave {next(found, 'tensors of different strides')}"


def _text(fact: object) -> str:
    return str([*fact]) if isinstance(fact, tuple) else str(fact)


def check_joinable(if_true: object, if_false: object, numbers: bool) -> None:
    """Raise Unjoinable for values of a variable after the two branches that cannot become one."""
    check_layouts(pairs_of(if_true, if_false, same=True, numbers=numbers).tensors)
