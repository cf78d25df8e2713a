"""Sizes of inputs that are computed from those of other inputs: one entry serves all, as long as that holds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt
from smelt.ops.dependent_sizes import lists_of_sizes, required, with_found_out
from smelt.report.inspect import entries
from smelt.shapes.expr import Sym
from tests.harness.agreement import check_no_failure, compare, observe

Call = tuple[tuple[Any, ...], dict[str, Any]]


def rows(a: int, b: int, *more: int) -> Tensor:
    return torch.randn(a * b, *more)


# The program, and its arguments for two sizes.
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int, int], tuple[Any, ...]]]] = {
    "rows of an image": (
        lambda x, h, w: x.transpose(1, 2).reshape(x.size(0), x.size(2), h, w).relu(),
        lambda a, b: (torch.randn(3, a * b, 4), a, b),
    ),
    "a batch of sequences": (lambda x, b, s: x.view(b, s, -1).mean(1), lambda a, b: (rows(a, b, 11), a, b)),
    "the sizes of another": (
        lambda x, y: x.view(y.size(0), y.size(1), -1) + y,
        lambda a, b: (rows(a, b, 11), torch.randn(a, b, 11)),
    ),
    "unflatten": (
        lambda x, y: x.unflatten(0, y.shape[:2]) * y,
        lambda a, b: (rows(a, b, 11), torch.randn(a, b, 11)),
    ),
    "the other comes later": (
        lambda y, x: x.reshape(-1, x.size(-1)) + y,
        lambda a, b: (rows(a, b, 11), torch.randn(a, b, 11)),
    ),
    "targets": (
        lambda x, t: F.cross_entropy(x.flatten(0, 1), t),
        lambda a, b: (torch.randn(a, b, 11), torch.randint(0, 11, (a * b,))),
    ),
    "heads": (
        lambda x, w: x.flatten(2) @ w,
        lambda a, b: (torch.randn(2, 3, a, b), torch.randn(a * b, 11)),
    ),
    "twice": (lambda x, y: torch.cat([x, x]) + y, lambda a, b: (torch.randn(a, b), torch.randn(2 * a, b))),
    "joined": (
        lambda x, y, z: torch.cat([x, y], 1) * z,
        lambda a, b: (torch.randn(2, a), torch.randn(2, b), torch.randn(2, a + b)),
    ),
    "shifted": (
        lambda x, y: (x[:, 1:] - y).square().mean(0),
        lambda a, b: (torch.randn(a, b), torch.randn(a, b - 1)),
    ),
    "enlarged": (
        lambda x, y: F.interpolate(x, scale_factor=2.0) + y,
        lambda a, b: (torch.randn(2, 3, a, b), torch.randn(2, 3, 2 * a, 2 * b)),
    ),
    "a multiple": (lambda x, b: x.view(b, -1, 11).mean(1), lambda a, b: (rows(a, b, 11), a)),
    "a multiple that comes first": (
        lambda x, b: x.view(-1, b, 11).cumsum(0)[-1],
        lambda a, b: (rows(a, b, 11), a),
    ),
    "a multiple of another's size": (
        lambda x, y: x.unflatten(0, (y.size(0), -1)).sum(1) * y[:, :1],
        lambda a, b: (rows(a, b, 11), torch.randn(a, b)),
    ),
    "a multiple that two are": (
        lambda x, m, b: x.view(b, -1, 13).masked_fill(m.view(b, -1, 1), 0.0),
        lambda a, b: (rows(a, b, 13), torch.rand(a * b) > 0.5, a),
    ),
    "a square": (
        lambda x, y: x @ x.transpose(1, 2) + y.view(1, x.size(1), -1),
        lambda a, b: (torch.randn(2, a, 11), torch.randn(a * a)),
    ),
}
SIZES = ((4, 6), (7, 5), (8, 9), (3, 3), (5, 12), (6, 4), (9, 7))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_entry(name: str, dynamic: bool | None, grad: bool) -> None:
    f, make = PROGRAMS[name]
    compiled = smelt.compile(f, dynamic=dynamic)
    for a, b in SIZES:
        given = tuple(
            x.requires_grad_(grad) if isinstance(x, Tensor) and x.is_floating_point() else x
            for x in make(a, b)
        )
        got, want = compiled(*given), f(*given)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
        if grad:
            leaves = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
            ours, theirs = (torch.autograd.grad((y * 0.1).sin().sum(), leaves) for y in (got, want))
            torch.testing.assert_close(ours, theirs)
    check_no_failure(compiled)
    assert len(entries(compiled)) <= (1 if dynamic else 2)


class Pooled(nn.Module):
    """Attention over an image given as rows, with keys of half the resolution."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.pool = nn.Conv2d(width, width, 2, 2)

    def forward(self, x: Tensor, *, h: int, w: int) -> Tensor:
        b, n, c = x.shape
        image = x.permute(0, 2, 1).reshape(b, c, h, w)
        keys = self.pool(image).flatten(2).transpose(1, 2)
        return F.scaled_dot_product_attention(self.query(x), keys, keys).reshape(b, n, c)


class Named(nn.Module):
    """Sizes in a dictionary, which the program reads after the tensor."""

    def forward(self, x: Tensor, sizes: dict[str, int]) -> Tensor:
        return x.view(sizes["b"], sizes["s"], -1).softmax(1)


@pytest.mark.parametrize("dynamic", [True, None])
def test_modules_that_read_the_numbers_later(dynamic: bool | None) -> None:
    pooled, named = Pooled(), Named()
    one, other = smelt.compile(pooled, dynamic=dynamic), smelt.compile(named, dynamic=dynamic)
    for a, b in ((4, 6), (8, 10), (6, 12), (10, 4), (14, 6)):
        x = torch.randn(3, a * b, 8)
        torch.testing.assert_close(one(x, h=a, w=b), pooled(x, h=a, w=b))
        x = torch.randn(a * b, 5)
        torch.testing.assert_close(other(x, {"b": a, "s": b}), named(x, {"b": a, "s": b}))
    assert len(entries(one)) <= (1 if dynamic else 2)
    assert len(entries(other)) <= 2


def test_the_guard_is_the_equation() -> None:
    f, make = PROGRAMS["rows of an image"]
    compiled = smelt.compile(f, dynamic=True)
    compiled(*make(4, 6))
    (entry,) = entries(compiled)
    assert "L['x'].shape[1] == (L['h'] * L['w'])" in entry.guards


def test_the_guard_of_a_multiple() -> None:
    f, make = PROGRAMS["a multiple"]
    compiled = smelt.compile(f, dynamic=True)
    for a, b in ((4, 6), (5, 3), (3, 8)):
        compiled(*make(a, b))
    (entry,) = entries(compiled)
    assert "(L['x'].shape[0] % L['b']) == 0" in entry.guards
    given = torch.randn(35, 11), 4
    compare(observe(compiled, given, 0), observe(f, given, 0))  # an error
    given = torch.randn(4, 11), 4
    compare(observe(compiled, given, 0), observe(f, given, 0))  # once as many


def test_where_it_does_not_hold_eager_says_so() -> None:
    f, make = PROGRAMS["rows of an image"]
    compiled = smelt.compile(f, dynamic=True)
    compiled(*make(4, 6))
    given = torch.randn(3, 35, 4), 5, 6
    compare(observe(compiled, given, 0), observe(f, given, 0))
    compare(observe(compiled, make(5, 7), 0), observe(f, make(5, 7), 0))


def test_a_relation_that_held_by_chance_is_given_up() -> None:
    """First `rows = 3 * b`, as s is 3; then that is not enough."""
    f, _ = PROGRAMS["a batch of sequences"]
    compiled = smelt.compile(f)
    draw = random.Random(1)
    for a, b in ((3, 3), (4, 3), *((draw.randint(2, 6), draw.randint(2, 9)) for _ in range(10))):
        x = torch.randn(a * b, 5)
        torch.testing.assert_close(compiled(x, a, b), f(x, a, b))
    assert len(entries(compiled)) <= 3


def test_equations_that_a_call_needs() -> None:
    n, h, w, c, d = (Sym(f"s{i}", 2) for i in range(5))
    hints = {n: 24, h: 4, w: 6, c: 11, d: 11}
    asked = []

    def accepted(relations: dict[Sym, Any]) -> bool:
        asked.append(relations)
        return relations.get(n) == h * w and relations.get(d, relations.get(c)) in (c, d)

    found = required([(n, c), (h, w, d)], hints, accepted)
    assert found[n] == h * w
    assert len(found) == 2
    assert len(asked) <= 60
    assert required([(n, c), (h, w, d)], hints, lambda relations: False) == {}
    assert required([(n, 3), (h, 7)], {n: 24, h: 4}, lambda relations: True) == {}  # nothing is equal


def test_lists_of_sizes_among_arguments() -> None:
    n = Sym("s0", 2)
    assert list(lists_of_sizes((object(), [n, -1, 3], {"size": (4, n)}, [object(), 2], 7))) == [
        [n, -1, 3],
        [4, n],
    ]


def test_what_is_to_be_found_out_has_a_symbol() -> None:
    n, m, new = Sym("s0", 2), Sym("s1", 2), Sym("s2", 2)
    found = with_found_out((n, 6), [[m, -1, 3], [m, 4], [5, -1]], {n: 12, m: 4})
    assert found == ([[m, new, 3], [m, 4], [5]], {n: 12, m: 4, new: 6})
