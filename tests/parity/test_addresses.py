"""Addresses of objects that the function made: what leaves together with its address is the object that had it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.report import inspect


class Part:
    def __init__(self, size: int) -> None:
        self.size = size


def _asked_again(ask: Callable[[Any], object], make: Callable[[torch.Tensor], object]) -> Any:
    def program(x: torch.Tensor) -> Any:
        part = make(x)
        before = ask(part)
        smelt.graph_break()
        return x + 1, ask(part) == before

    return program


ASKED: dict[str, Callable[[Any], object]] = {
    "id": id,
    "name": lambda part: f"value[{id(part)}]",
    "hexadecimal": lambda part: (hex(id(part)), f"{id(part):x}"),
    "hash": hash,
    "object_hash": object.__hash__,
    "repr": repr,
    "object_repr": object.__repr__,
    "percent": lambda part: "%s" % (part,),  # noqa: UP031
    "format": "{}".format,
    "list": lambda part: str([part]),
    "key": lambda part: {id(part): 1},
    "member": lambda part: {(id(part), "x")},
}


@pytest.mark.parametrize("name", ASKED)
def test_instances(name: str) -> None:
    _, same = smelt.compile(_asked_again(ASKED[name], lambda x: Part(1)))(torch.ones(2))
    assert same


MADE: dict[str, Callable[[torch.Tensor], object]] = {
    "tensor": lambda x: x * 2,
    "list": lambda x: [1],
    "function": lambda x: lambda: x,
    "object": lambda x: object(),
}


@pytest.mark.parametrize("name", MADE)
def test_other_kinds(name: str) -> None:
    _, same = smelt.compile(_asked_again(id, MADE[name]))(torch.ones(2))
    assert same


def test_returned() -> None:
    def program(x: torch.Tensor) -> Any:
        y, part = x + 1, Part(1)
        return y, id(y), part, id(part)

    y, address, part, its = smelt.compile(program)(torch.ones(2))
    assert (id(y), id(part)) == (address, its)


def test_stored() -> None:
    seen: dict[int, object] = {}

    def program(x: torch.Tensor) -> torch.Tensor:
        part = Part(1)
        seen[id(part)] = part
        return x + 1

    smelt.compile(program)(torch.ones(2))
    assert all(id(part) == address for address, part in seen.items())


def test_asked_inside_only() -> None:
    """What is done with addresses before the graph breaks needs no care."""

    def program(x: torch.Tensor) -> Any:
        parts = [Part(i) for i in range(3)]
        sizes = {id(part): part.size for part in parts}
        return x + sum(sizes[id(part)] for part in reversed(parts)), parts

    compiled = smelt.compile(program)
    result, parts = compiled(torch.ones(2))
    assert torch.equal(result, torch.full((2,), 4.0))
    assert [part.size for part in parts] == [0, 1, 2]
    assert inspect.graph_count(compiled) == 1
    assert inspect.reasons(compiled) == ()


def test_solved_between_breaks() -> None:
    """Nodes of an equation, known by their addresses in names of variables, over a graph break inside of the solver."""

    def program(x: torch.Tensor) -> torch.Tensor:
        nodes = [Part(i) for i in range(3)]
        names = {id(node): f"values[{id(node)}]" for node in nodes}
        values = {name: i for i, name in enumerate(names.values())}
        smelt.graph_break()
        found = {int(name[len("values[") : -1]): value for name, value in values.items()}
        return x * sum(found[id(node)] + 1 for node in nodes)

    assert torch.equal(smelt.compile(program)(torch.ones(2)), torch.full((2,), 6.0))
