"""A container that is being filled when the graph breaks: what comes after finds in it what both parts put there."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from tests.harness.agreement import check_no_failure, same


def five() -> int:
    smelt.graph_break()
    return 5


def all_given(*args: Any, **kwargs: Any) -> Any:
    return args, list(kwargs.items())


def displays(x: torch.Tensor, xs: list[int]) -> Any:
    made = (
        (*xs, five(), x + 2, 7),
        [*xs, five(), x + 2],
        {*xs, five(), 7},
        {**dict.fromkeys(xs), "k": five(), "z": x},
    )
    return made, [y + five() for y in xs], {y: five() for y in xs}, f"{five()}{x.shape}{five()}"


def arguments(x: torch.Tensor, xs: list[int]) -> Any:
    return all_given(*xs, five(), x + 2, *xs, **{"a": 1}, b=five(), c=3)


def a_list(x: torch.Tensor, xs: list[int]) -> Any:
    v = [1]
    five()
    v.append(2)
    first, *rest = v
    v.extend(xs)
    read = (
        tuple(v),
        first,
        rest,
        [*v],
        v + [3],
        v * 2,
        sum(v),
        2 in v,
        len(v),
        v[-1],
        v == [1, 2, 1, 2],
        sorted(v),
    )
    more = (
        max(v),
        list(zip(v, v)),
        str(v),
        v.index(2),
        any(v),
        dict(enumerate(v)),
        all_given(*v),
        set(v),
        v[::-1],
    )
    return (
        x + 1,
        read,
        more,
        ",".join(map(str, v)),
        bool(v),
        v.copy(),
        list(reversed(v)),
        hash(tuple(v)),
        f"{v}",
    )


def a_dictionary(x: torch.Tensor, xs: list[int]) -> Any:
    v = {"a": 1}
    five()
    v["b"] = 2
    read = (
        tuple(v),
        [*v],
        {**v},
        v | {"c": 3},
        list(v.items()),
        "b" in v,
        len(v),
        v == {"a": 1, "b": 2},
        sorted(v),
    )
    more = (
        list(v.values()),
        str(v),
        dict(v),
        all_given(**v),
        v.copy(),
        bool(v),
        "{a}{b}".format_map(v),
        "{a}{b}".format(**v),
    )
    return x + 1, read, more, min(v), list(reversed(v)), sorted(v.keys() | {"q"})


def a_set(x: torch.Tensor, xs: list[int]) -> Any:
    v = {3}
    five()
    v.add(1)
    v |= {4}
    return (
        x + 1,
        sorted(v),
        1 in v,
        len(v),
        v & {1},
        v == {1, 3, 4},
        frozenset(v),
        str(v),
        bool(v),
        v.copy(),
        min(v),
    )


def a_deque(x: torch.Tensor, xs: list[int]) -> Any:
    v = collections.deque([1])
    five()
    v.append(2)
    v.appendleft(0)
    v.rotate(1)
    read = (
        list(v),
        v[0],
        v[-1],
        len(v),
        2 in v,
        tuple(v),
        sum(v),
        str(v),
        list(reversed(v)),
        v.count(2),
        v.index(2),
    )
    return x + 1, read, v.copy(), [*v], bool(v), v == collections.deque([2, 0, 1])


def an_object(x: torch.Tensor, xs: list[int]) -> Any:
    v = type("Plain", (), {})()
    v.items = []
    five()
    v.items.append(x)
    v.z = 3
    return (
        x + 1,
        list(vars(v)),
        len(v.items),
        hasattr(v, "z"),
        v.z,
        v.__dict__["z"],
        "z" in dir(v),
        dict(vars(v))["z"],
    )


def a_group(x: torch.Tensor, xs: list[int]) -> Any:
    try:
        try:
            raise ExceptionGroup("g", [KeyError(0), OSError(0)])
        except* KeyError:
            five()
            raise
    except ExceptionGroup as group:
        xs.append(len(group.exceptions))
    return x * 2, list(xs)


PROGRAMS = (displays, arguments, a_list, a_dictionary, a_set, a_deque, an_object, a_group)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_both_parts_put_in_is_there(program: Callable[..., Any]) -> None:
    compiled = smelt.compile(program, backend="eager")
    for _ in range(2):
        same(compiled(torch.ones(1), [1, 2]), program(torch.ones(1), [1, 2]))
    check_no_failure(compiled)
