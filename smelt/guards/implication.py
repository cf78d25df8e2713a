"""Whether all calls that some guards accept are accepted by others, as far as the guards show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import Any

import torch

from smelt.guards.guard import ANY, Guard, TensorFacts, size_fits
from smelt.guards.guard_evaluation import CHECKS, expression_holds, same_leaf
from smelt.guards.read_source import FAILURES, Missing
from smelt.guards.source import Source
from smelt.shapes.expr import Expression

Path = tuple[object, ...]


def covers(wide: Iterable[Guard], narrow: Iterable[Guard]) -> bool:
    """Whether each of `wide` follows from `narrow`, which come from another capture of the same function. Where it says no,
    they may cover all the same."""
    known = _Known(narrow)
    return all(map(known.implies, wide))


class _Known:
    """What some guards say, by the paths of sources."""

    def __init__(self, guards: Iterable[Guard]) -> None:
        self._values: defaultdict[tuple[str, Path], list[Any]] = defaultdict(list)
        for guard in guards:
            self._values[guard.kind, _path(guard.source)].append(guard.value)
        self._expressions = {
            _expression_key(*value)
            for (kind, _), values in self._values.items()
            for value in values
            if kind == "expression"
        }

    def implies(self, guard: Guard) -> bool:
        """Whether `guard` follows."""
        known = self._values.get((guard.kind, _path(guard.source)), ())
        if guard.kind == "tensor":
            return any(_allow(guard.value, facts) for facts in known)
        if guard.kind == "expression":
            return _expression_key(*guard.value) in self._expressions or self._holds(*guard.value)
        if guard.kind == "number" and guard.source is not None and not known:
            return any(CHECKS["number"](value, guard.value) for value in self._at("eq", guard.source))
        return any(_same(value, guard.value) for value in known)

    def _holds(self, expression: Expression, expected: Any) -> bool:
        try:
            return expression_holds(expression, expected, self._number)
        except FAILURES:
            return False

    def _number(self, source: Source) -> Any:
        """The number that is always found there."""
        shape = source.base
        found = self._at("eq", source)
        if source.kind == "item" and shape is not None and shape.base is not None and shape.key == "shape":
            sizes = [facts.shape[source.key] for facts in self._at("tensor", shape.base)]
            found = [n for n in sizes if n >= 0]
        if not found:
            raise Missing(f"no number is known of {source.source}")
        return found[0]

    def _at(self, kind: str, source: Source) -> list[Any]:
        return self._values.get((kind, source.path), [])


def _path(source: Source | None) -> Path:
    return () if source is None else source.path


def _expression_key(expression: Expression, expected: Any) -> tuple[Any, ...]:
    """Equal for expressions of two captures over the same places."""

    def key(e: Expression) -> tuple[Any, ...]:
        if e.op == "const":
            return type(e.args[0]), repr(e.args[0])
        return (e.op, *(e.args[0].path if e.op == "leaf" else map(key, e.args)))

    return key(expression), expected


def _allow(wide: TensorFacts, narrow: TensorFacts) -> bool:
    """Whether `wide` hold of every tensor of which `narrow` do."""
    if not narrow.has_any:
        return wide.hold_of(narrow)
    if replace(narrow, shape=wide.shape, stride=wide.stride) != wide or len(wide.shape) != len(narrow.shape):
        return False
    shapes = all(map(size_fits, wide.shape, narrow.shape))
    strides = (
        a == b or (a == ANY and b == _product(narrow.shape[dim + 1 :]))
        for dim, (a, b) in enumerate(zip(wide.stride, narrow.stride))
    )
    return shapes and all(strides)


def _product(sizes: tuple[int, ...]) -> int | None:
    return prod(sizes) if min(sizes, default=0) >= 0 else None


def _same(a: Any, b: Any) -> bool:
    """Whether the values of two guards of one kind say the same. Runs no code of the user's."""
    if a is b:
        return True
    if type(a) is Source and type(b) is Source:
        return a.path == b.path
    if type(a) is tuple and type(b) is tuple:
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) in _LEAVES and same_leaf(a, b)


_LEAVES = frozenset({int, float, bool, str, bytes, complex, slice, range, frozenset, torch.device})
