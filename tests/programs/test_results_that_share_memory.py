"""Several results look at each of several values: each shows its own, as in eager, and writes are seen by the same ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch

import smelt
from smelt.report.inspect import reasons

VIEWS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda a: a.view(-1),
    lambda a: a.flatten(),
    lambda a: a.t(),
    lambda a: a[1:],
    lambda a: a.unsqueeze(0),
    lambda a: a.detach(),
    lambda a: a,
]


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("number", range(30))
def test_groups_of_views(number: int, dynamic: bool) -> None:
    rng = random.Random(number)
    chosen = [(rng.randrange(3), rng.choice(VIEWS)) for _ in range(rng.randint(4, 7))]

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        values = x * 2, x + 3, x.sum(1, keepdim=True).expand(-1, x.shape[1]).clone()
        return [look(values[which]) for which, look in chosen]

    compiled = smelt.compile(f, dynamic=dynamic)
    for shape in ((3, 4), (5, 2)):
        x = torch.randn(shape)
        got, want = compiled(x), f(x)
        for results in (got, want):
            results[0].mul_(2)
            results[-1].add_(1)
        torch.testing.assert_close(got, want, check_stride=True)
        places = [[t.untyped_storage().data_ptr() for t in results] for results in (got, want)]
        shared = [[a == b for a, b in itertools.combinations(p, 2)] for p in places]
        assert shared[0] == shared[1]
    assert not reasons(compiled)


@pytest.mark.parametrize("given", [False, True], ids=["computed", "given"])
def test_one_of_several_views_lies_as_in_eager(given: bool) -> None:
    """The stride of a dimension of size 1, which reaches no element, too."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x if given else x - 1).t().split(1)[0]

    x = torch.randn(3, 4)
    got, want = smelt.compile(f)(x), f(x)
    assert got.stride() == want.stride() == (1, 4)
