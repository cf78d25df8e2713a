"""A break within a loop over a container that the call has changed before: the loop goes on where it was, whatever the
length was."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

import smelt


def _zip(x: torch.Tensor, items: list[torch.Tensor]) -> torch.Tensor:
    items.append(x)
    try:
        raise ValueError
    except ValueError:
        total = x
        for _, item in zip(range(5), items):
            with torch.no_grad():
                smelt.graph_break()
                total = total + item
    return total


def _enumerate(x: torch.Tensor, items: list[torch.Tensor]) -> torch.Tensor:
    items.append(x)
    total = x
    with torch.no_grad():
        for i, item in enumerate(items):
            smelt.graph_break()
            total = total - item * i
    return total


def _reversed(x: torch.Tensor, items: list[torch.Tensor]) -> torch.Tensor:
    items.extend([x, x * 2])
    total = x
    for item in reversed(items):
        smelt.graph_break()
        total = total * item
    return total


@pytest.mark.parametrize("program", [_zip, _enumerate, _reversed], ids=lambda p: p.__name__)
@pytest.mark.parametrize("length", range(4))
def test_positions_survive_stores(
    program: Callable[[torch.Tensor, list[torch.Tensor]], torch.Tensor], length: int
) -> None:
    compiled = smelt.compile(program)
    x = torch.full((2,), 2.0)
    for _ in range(2):
        got, want = [x * 3] * length, [x * 3] * length
        assert torch.equal(compiled(x, got), program(x, want))
        assert len(got) == len(want)


def _keys(held: dict[object, int]) -> list[object]:
    held["z"] = 1
    found: list[object] = []
    for key in held:
        try:
            smelt.graph_break()
            raise KeyError
        except KeyError:
            found.append(key)
    return found


def _items(held: dict[object, int]) -> list[object]:
    held.clear()
    held["z"] = held["y"] = 1
    found: list[object] = []
    for item in held.items():
        with torch.no_grad():
            smelt.graph_break()
            found.append(item)
    return found


def _elements(held: set[object]) -> list[object]:
    held.add(9)
    found: list[object] = []
    for element in held:
        try:
            smelt.graph_break()
            raise KeyError
        except KeyError:
            found.append(element)
    return found


@pytest.mark.parametrize("program, make", [(_keys, dict.fromkeys), (_items, dict.fromkeys), (_elements, set)])
@pytest.mark.parametrize("length", range(4))
def test_loops_over_dictionaries_and_sets_go_on(
    program: Callable[[Any], object], make: Callable[[Iterable[int]], Any], length: int
) -> None:
    compiled = smelt.compile(program)
    for _ in range(2):
        assert compiled(make(range(length))) == program(make(range(length)))
