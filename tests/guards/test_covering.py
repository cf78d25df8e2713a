"""Whether guards of one capture accept all that those of another accept, and which entries are dropped for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.guards.guard import covers
from smelt.report.inspect import entries

Shapes = tuple[tuple[int, ...], ...]


def compiled_for(f: Callable[..., Any], *calls: Shapes, **options: Any) -> Any:
    """`f` compiled, after a call with tensors of each of these shapes, whose results are eager's."""
    compiled = smelt.compile(f, **options)
    for shapes in calls:
        tensors = [torch.randn(shape) for shape in shapes]
        torch.testing.assert_close(compiled(*tensors), f(*tensors))
    return compiled


PROGRAMS: dict[str, Callable[..., torch.Tensor]] = {
    "map": lambda x, y: x * 2 + y.sum(),
    "equal sizes": lambda x, y: x + y,
    "a condition": lambda x, y: x + y if x.shape[0] < 50 else x - y,
    "rows": lambda x, y: x.softmax(-1) + y,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_symbols_cover_numbers(name: str) -> None:
    f = PROGRAMS[name]
    calls = [((4, 8), (4, 8)), ((4, 9), (4, 9)), ((6, 9), (6, 9))]
    first, second, third = (entry.facts for entry in entries(compiled_for(f, *calls)))
    for wide, narrow in ((second, first), (third, second), (third, first)):
        assert covers(wide, narrow) and not covers(narrow, wide)


def test_any_number_covers_those_of_64_bits() -> None:
    compiled = smelt.compile(lambda x, n: x + n % 7)
    for n in (1, 2, 1 << 70):
        compiled(torch.ones(3), n)
    one, number, large = (entry.facts for entry in entries(compiled))
    assert covers(number, one) and not covers(number, large)


def test_each_covers_itself() -> None:
    for entry in entries(compiled_for(PROGRAMS["rows"], ((4, 8), (4, 8)), ((5, 8), (5, 8)))):
        assert covers(entry.facts, entry.facts)


def test_other_ways_are_not_covered() -> None:
    f = PROGRAMS["a condition"]
    small, large = entries(compiled_for(f, ((4, 8), (4, 8)), ((60, 8), (60, 8))))
    assert not covers(large.facts, small.facts) and not covers(small.facts, large.facts)
    one, other = (entries(smelt_of(x))[0].facts for x in (torch.ones(4), torch.ones(4, dtype=torch.double)))
    assert not covers(one, other)


def smelt_of(x: torch.Tensor) -> Any:
    compiled = smelt.compile(lambda t: t + 1)
    compiled(x)
    return compiled


def test_sizes_that_must_be_equal_are_not_covered_by_numbers_that_differ() -> None:
    f = lambda x, y: x * 2 + y.sum()  # noqa: E731
    apart = entries(compiled_for(f, ((4, 8), (5, 8))))[0]
    equal = entries(compiled_for(f, ((4, 8), (4, 8)), ((5, 8), (5, 8))))[-1]
    assert "L['x'].shape[0] == L['y'].shape[0]" in equal.guards
    assert not covers(equal.facts, apart.facts)


def _ways(x: torch.Tensor, way: str) -> torch.Tensor:
    return {"a": x + 1, "b": x * 2, "c": x - 3}[way]


def shapes_of(compiled: Any) -> list[str]:
    return [e.guards.split("shape=")[1].split(", stride")[0] for e in entries(compiled)]


def call(compiled: Any, way: str, *sizes: int) -> None:
    for n in sizes:
        x = torch.randn(n, 8)
        torch.testing.assert_close(compiled(x, way), _ways(x, way))


def test_what_answered_once_goes_when_there_are_many() -> None:
    compiled = smelt.compile(_ways)
    call(compiled, "a", 4)
    call(compiled, "b", 4)
    call(compiled, "a", 5)
    assert shapes_of(compiled) == [
        "[4, 8]",
        "[4, 8]",
        "[*, 8]",
    ]  # of which one is of no use, but they are few
    call(compiled, "b", 5)
    assert shapes_of(compiled) == ["[*, 8]", "[*, 8]"]
    call(compiled, "a", 4, 6)
    call(compiled, "b", 4, 6)
    assert len(entries(compiled)) == 2


def test_what_is_in_use_stays() -> None:
    compiled = smelt.compile(_ways)
    for way in ("a", "b"):
        call(compiled, way, 4, 4, 4)
    for way in ("a", "b"):
        call(compiled, way, 5)
    assert shapes_of(compiled) == ["[4, 8]", "[4, 8]", "[*, 8]", "[*, 8]"]


def test_numbers_that_nothing_covers_stay_up_to_the_limit() -> None:
    compiled = smelt.compile(_ways, dynamic=False, options={"recompile_limit": 5})
    call(compiled, "a", 4, 5, 6, 7, 8, 9, 10)
    assert shapes_of(compiled) == [f"[{n}, 8]" for n in (4, 5, 6, 7, 8)]
