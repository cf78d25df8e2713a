"""What is known of the sizes and numbers that a resume function is handed: what they are in the graph before the break.

There it is known which of them change, and which are equal whatever they are. The resume function takes them for that in its
next capture. It is a guess, as others may call it too: its guards say so, as they say what is learned in other ways.
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

_MOST = 256  # places that are looked at


@dataclass(frozen=True)
class Handed:
    """`sizes`: sizes of tensors, and numbers that are sizes, over the symbols of the graph before. `numbers`: where numbers
    are symbolic there."""

    sizes: frozenset[tuple[Path, Size]] = frozenset()
    numbers: frozenset[Path] = frozenset()


NOTHING_HANDED = Handed()


def handed(values: Sequence[object]) -> Handed:
    """What is known of the arguments `values`, of which the tensors are fakes."""
    sizes: set[tuple[Path, Size]] = set()
    numbers: set[Path] = set()
    for source, value in _places(values):
        if type(value) is FakeTensor:
            sizes |= {(size_source(source, d).path, size) for d, size in enumerate(value.spec.shape)}
        elif type(value) in NUMBERS:
            numbers.add(source.path)
            size = cast(Symbol, cast(torch.SymInt, value).node).size
            if size is not None:
                sizes.add((source.path, size))
    return Handed(frozenset(sizes), frozenset(numbers))


def _places(values: Sequence[object]) -> Iterator[tuple[Source, object]]:
    """The arguments, and what those hold that are functions, cells, lists, tuples or dictionaries."""
    found = [(Source("arg", "", None, i), value) for i, value in enumerate(values)]
    seen = set[int]()
    for at, (source, value) in enumerate(found):
        if at == _MOST:
            return
        yield source, value
        if type(value) is CellType:
            found.append((source.child("member", "cell_contents"), cell_value(value)))
        elif type(value) is FunctionType and value.__closure__:
            found += [(source.child("cell", i), cell_value(cell)) for i, cell in enumerate(value.__closure__)]
        elif id(value) not in seen:
            seen.add(id(value))
            found += [(source.child("item", key), item) for key, item in _items(value)]


def _items(value: object) -> list[tuple[int | str, object]]:
    """What a container that is not too large holds, by index or key."""
    if type(value) is dict and len(value) <= _MOST:
        return [(key, item) for key, item in value.items() if type(key) in (int, str)]
    if type(value) in (list, tuple, torch.Size):
        held = cast("Sequence[object]", value)
        return list(enumerate(held)) if len(held) <= _MOST else []
    return []
