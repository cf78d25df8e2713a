"""Lists and ranges over a size that changes: an entry serves all sizes, unless the elements themselves are looked at."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.report.inspect import entries, reasons
from tests.harness.agreement import check_no_failure, compare, observe, tensors

SIZES = ((5, 7), (8, 4), (13, 13), (24, 11), (4, 29), (6, 10))
Function = Callable[[torch.Tensor], Any]


def counted_down(x: torch.Tensor) -> Any:
    return x * torch.tensor(list(range(x.shape[1]))[::-1])


def indices(x: torch.Tensor) -> Any:
    rows, columns = x.shape
    return x[:, list(range(columns - 1))], x[range(rows)] * 2, x[list(range(1, rows))[::-1], 0]


def steps(x: torch.Tensor) -> Any:
    rows, columns = x.shape
    down = x[:, list(range(columns - 1, 0, -1))]
    return torch.tensor(list(range(0, columns, 2))), torch.tensor(range(rows + 4, 1, -3)), down


def pooled_places(x: torch.Tensor) -> Any:
    """As Funnel has them: the first place is kept beside each second one."""
    places = list(range(x.shape[1] + 10))
    once = [-1] + places[1:-1][::2]  # noqa: RUF005
    twice = [-3] + once[1:-1][::2]  # noqa: RUF005
    distance = twice[0] - once[-1]
    return (
        torch.tensor(once),
        torch.as_tensor(twice, dtype=torch.float32),
        (twice[-1], len(twice), twice[2], distance),
        torch.arange(2 * len(twice), distance, -4),
        places[3:],
        once,
    )


def ends_of_slices(x: torch.Tensor) -> Any:
    n = x.shape[0]
    places = list(range(3, n + 20))
    slices = (
        slice(None, -2), slice(-5, None), slice(2, 100), slice(-100, -3), slice(None, n), slice(None, None, -3),
        slice(-2, 1, -2), slice(4, 4), slice(5, 2), slice(-3, -1), slice(100, None, -1),
    )  # fmt: skip
    return [places[s] for s in slices], [torch.tensor(places[s]) for s in slices[:7]], x


def batches(x: torch.Tensor) -> Any:
    made = []
    made.append(list(range(x.shape[1])))
    made.append(list(range(1, x.shape[1] + 1)))
    return torch.tensor(made, dtype=torch.float64), torch.tensor([range(x.shape[0])]), made


def given_back(x: torch.Tensor) -> Any:
    places, others = list(range(x.shape[0])), range(1, x.shape[1])
    again = list(places)
    return {"a": places, "b": [places, others, again], "same": places is again}, places, x + 1


def handler_types(x: torch.Tensor) -> Any:
    places, others = list(range(x.shape[0])), range(x.shape[1])
    kinds = isinstance(places, list), type(others) is range, isinstance(others, list | tuple), bool(places)
    return kinds, len(places) + len(others), others[:2] if x.dim() > 2 else None


def behind_a_break(x: torch.Tensor) -> Any:
    places = list(range(x.shape[1]))
    if float(x.sum()) > -1e9:
        x = x * torch.tensor(places)
    places.append(1)
    return x, places


class Held:
    """Where a program puts a list."""

    places: Any = None


HELD = Held()


def stored(x: torch.Tensor) -> Any:
    HELD.places = list(range(x.shape[0]))
    return x + len(HELD.places)


SERVED: dict[str, tuple[Function, int]] = {
    "counted down": (counted_down, 1),
    "indices": (indices, 1),
    "steps": (steps, 3),  # an odd number of columns, or not
    "pooled places": (pooled_places, 2),
    "ends of slices": (ends_of_slices, 3),
    "batches": (batches, 1),
    "given back": (given_back, 1),
    "asked about": (handler_types, 1),
    "behind a break": (behind_a_break, 1),
    "stored": (stored, 1),
}


def matched(x: torch.Tensor) -> Any:
    match list(range(x.shape[0])):
        case [0, 1, *rest]:
            return x * len(rest)
    return x


def changed(x: torch.Tensor) -> Any:
    places = list(range(x.shape[1]))
    places[0] = 7
    places += [1]
    places.append(3)
    return x * sum(places), places


def no_such_place(x: torch.Tensor) -> Any:
    try:
        return list(range(x.shape[0]))[100]
    except IndexError as error:
        return str(error), x + 1


def copied(x: torch.Tensor) -> Any:
    places = list(range(x.shape[0]))
    return copy.copy(places), copy.deepcopy([places, places]), places * 2, places + [1], x  # noqa: RUF005


def given_to_torch(x: torch.Tensor) -> Any:
    return x.new_zeros(list(range(1, x.shape[0] - 1))[:2]), torch.ones(2).expand(
        list(range(2, x.shape[0]))[:1]
    )


NEEDED: dict[str, Function] = {
    "a loop": lambda x: sum(x[:, i] * i for i in range(x.shape[1])),
    "a comprehension": lambda x: x * torch.tensor([i * 2 for i in range(x.shape[1])]),
    "side by side": lambda x: x * sum(i * j for i, j in zip(range(x.shape[0]), list(range(x.shape[1])))),
    "sums": lambda x: x * sum(range(x.shape[0])) + sum(list(range(x.shape[1]))),
    "compared": lambda x: x + (list(range(x.shape[0])) == [0, 1, 2, 3, 4]),
    "contained": lambda x: x + (7 in range(x.shape[0])) + (9 in list(range(x.shape[1]))),
    "text": lambda x: (f"{list(range(x.shape[0]))} {range(x.shape[1])}", x + 1),
    "attributes": lambda x: (range(x.shape[0]).stop + x, list(range(x.shape[1])).index(2)),
    "unpacked": lambda x: x + max(*list(range(x.shape[0]))),
    "spread": lambda x: x + len([*range(x.shape[0])]),
    "a key": lambda x: {tuple(range(x.shape[0])): x + 1},
    "patterns": matched,
    "changes": changed,
    "no such place": no_such_place,
    "copies": copied,
    "dimensions": lambda x: x.sum(list(range(x.shape[0] - x.shape[0] % 4))[:2]),
    "sizes of tensors": given_to_torch,
    "nothing in it": lambda x: (torch.tensor(list(range(x.shape[0], 3))), x + 1),
}


def calls(function: Function, grad: bool) -> Any:
    """`function`, compiled, after calls with SIZES: results, and gradients, are those of eager."""
    compiled = smelt.compile(function, dynamic=True)
    for number, size in enumerate(SIZES):
        x = torch.randn(size, requires_grad=grad)
        again = x.detach().clone().requires_grad_(grad)
        want = observe(function, (x,), number)
        held = HELD.places
        got = observe(compiled, (again,), number)
        compare(got, want)
        assert HELD.places == held
        for seen in (want, got):
            differentiable = [t for t in tensors(seen.result) if t.requires_grad]
            if differentiable:
                torch.stack([(t * t.detach()).sum() for t in differentiable]).sum().backward()
        torch.testing.assert_close(again.grad, x.grad)
    check_no_failure(compiled)
    return compiled


@pytest.mark.parametrize("grad", [False, True], ids=["", "trained"])
@pytest.mark.parametrize("name", SERVED)
def test_an_entry_serves_all_lengths(name: str, grad: bool) -> None:
    function, most = SERVED[name]
    assert 1 <= len(entries(calls(function, grad))) <= most


@pytest.mark.parametrize("name", NEEDED)
def test_elements_that_are_looked_at(name: str) -> None:
    compiled = calls(NEEDED[name], grad=False)
    assert not reasons(compiled)


def test_a_range_of_chunks_is_one_entry_for_each_number_of_them() -> None:
    def f(x: torch.Tensor) -> Any:
        return [x[:, i * 8 : i * 8 + 8].sum() for i in list(range(x.shape[1] // 8))]

    compiled = smelt.compile(f, dynamic=True)
    for length in (17, 30, 22, 9, 15, 40):
        x = torch.randn(3, length)
        compare(observe(compiled, (x,), 0), observe(f, (x,), 0))
    assert len(entries(compiled)) == 4  # 2, 3, 1 and 5 chunks


def test_numbers_that_are_given() -> None:
    def f(x: torch.Tensor, n: int) -> Any:
        part = x[:, :n]
        return part * torch.tensor(list(range(n))), sum(range(n)), [i for i in range(n)]  # noqa: C416

    compiled = smelt.compile(f, dynamic=True)
    for size, n in zip(SIZES, (3, 4, 5, 9, 6, 10)):
        x = torch.randn(size)
        compare(observe(compiled, (x, n), 0), observe(f, (x, n), 0))
    check_no_failure(compiled)
