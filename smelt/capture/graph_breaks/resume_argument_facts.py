"""Facts about the arguments of a resume function: their sizes and numbers in the graph before the break.

That graph knows which of them are symbolic and which are equal. The next capture of the resume function assumes the same,
and guards it, since other compiled frames may call the resume function too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import cast

import torch

from smelt.capture.base.value_kinds import cell_value
from smelt.capture.environment.symbolic_size_policy import Path
from smelt.guards.changed_numbers import size_source
from smelt.guards.source import Source
from smelt.shapes.expr import Size
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.sym_nodes import Symbol
from smelt.tracing.symbolic.sym_numbers import NUMBERS

_MAX_VALUES = 256


@dataclass(frozen=True)
class ResumeFacts:
    """`sizes`: the sizes of tensors, and the numbers that are sizes, over the symbols of the graph before the break.
    `numbers`: the paths of the numbers that are symbolic there."""

    sizes: frozenset[tuple[Path, Size]] = frozenset()
    numbers: frozenset[Path] = frozenset()


NO_RESUME_FACTS = ResumeFacts()


def resume_facts(values: Sequence[object]) -> ResumeFacts:
    """Facts about the arguments `values`, whose tensors are fakes."""
    sizes: set[tuple[Path, Size]] = set()
    numbers: set[Path] = set()
    for source, value in _reachable_values(values):
        if type(value) is FakeTensor:
            sizes |= {(size_source(source, d).path, size) for d, size in enumerate(value.spec.shape)}
        elif type(value) in NUMBERS:
            numbers.add(source.path)
            size = cast(Symbol, cast(torch.SymInt, value).node).size
            if size is not None:
                sizes.add((source.path, size))
    return ResumeFacts(frozenset(sizes), frozenset(numbers))


def _reachable_values(values: Sequence[object]) -> Iterator[tuple[Source, object]]:
    """The arguments, and what their closures, cells, lists, tuples and dictionaries hold, with the source of each."""
    pending = [(Source("arg", "", None, i), value) for i, value in enumerate(values)]
    visited = set[int]()
    for index, (source, value) in enumerate(pending):
        if index == _MAX_VALUES:
            return
        yield source, value
        if type(value) is CellType:
            pending.append((source.child("member", "cell_contents"), cell_value(value)))
        elif type(value) is FunctionType and value.__closure__:
            pending += [
                (source.child("cell", i), cell_value(cell)) for i, cell in enumerate(value.__closure__)
            ]
        elif id(value) not in visited:
            visited.add(id(value))
            pending += [(source.child("item", key), item) for key, item in _items(value)]


def _items(value: object) -> list[tuple[int | str, object]]:
    """The items of a container of at most `_MAX_VALUES` items, by index or key."""
    if type(value) is dict and len(value) <= _MAX_VALUES:
        return [(key, item) for key, item in value.items() if type(key) in (int, str)]
    if type(value) in (list, tuple, torch.Size):
        held = cast("Sequence[object]", value)
        return list(enumerate(held)) if len(held) <= _MAX_VALUES else []
    return []
