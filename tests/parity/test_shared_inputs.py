"""Inputs that share a storage, of which some are written: results, memory, aliases and version counters are eager's.

Each program takes views of one storage; the regions that views overlap are copied, others are written in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.report.inspect import entries, reasons
from tests.harness.agreement import compare, observe

Make = Callable[[], tuple[torch.Tensor, ...]]


def base() -> torch.Tensor:
    return torch.arange(24.0).reshape(4, 6)


def of_base(*views: Callable[[torch.Tensor], torch.Tensor]) -> Make:
    def make() -> tuple[torch.Tensor, ...]:
        whole = base()
        return *(view(whole) for view in views), whole  # the last one is not passed

    return make


def write_one(a, b):
    before = b * 3
    a.mul_(2)
    return a + b.sum(), before, b - 1


def write_both(a, b):
    a.add_(b.sum())
    b.mul_(a.mean())
    a[0] += 1
    return a * 2, b * 2


def write_views(a, b):
    a[1:].fill_(5)
    total = b.sum()
    b[0, :1] = -1.0
    return total, a.sum(0), b.t()


def return_them(a, b):
    a.neg_()
    return a, b, a[0], b.reshape(-1)[:2]


def replace(a, b):
    a.copy_(torch.ones_like(a))
    return b.clone(), a.flatten()


def by_lists(a, b):
    torch._foreach_mul_([a, b], 2.0)
    torch._foreach_add_([b, a], 1.0)
    return a.sum() - b.sum()


PROGRAMS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (write_one, write_both, write_views, return_them, replace, by_lists)
}
LAYOUTS: dict[str, Make] = {
    "side by side": of_base(lambda x: x[:2], lambda x: x[2:]),
    "with a gap": of_base(lambda x: x[:2], lambda x: x[3:]),
    "interleaved columns": of_base(lambda x: x[:, ::2], lambda x: x[:, 1::2]),
    "halves of rows": of_base(lambda x: x[:, :3], lambda x: x[:, 3:]),
    "overlapping rows": of_base(lambda x: x[:3], lambda x: x[1:]),
    "rows in columns": of_base(lambda x: x[:, :4], lambda x: x[1:3]),
    "one in the other": of_base(lambda x: x, lambda x: x[1:3, 2:5]),
    "the same": of_base(lambda x: x, lambda x: x.detach()),
    "data": of_base(lambda x: x.data, lambda x: x),
    "transposed": of_base(lambda x: x, lambda x: x.t()),
    "another shape": of_base(lambda x: x, lambda x: x.view(6, 4)),
    "an offset": of_base(lambda x: x[1:], lambda x: x[1:].t()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_views_of_one_storage(name: str, layout: str) -> None:
    program, make = PROGRAMS[name], LAYOUTS[layout]
    compiled = smelt.compile(program, fullgraph=True)
    for _ in range(3):
        (*eager, whole), (*ours, our_whole) = make(), make()
        before = [t._version for t in ours]
        compare(observe(compiled, tuple(ours), 0), observe(program, tuple(eager), 0))
        assert torch.equal(our_whole, whole)
        grown = [t._version > n for t, n in zip(ours, before)]
        assert grown == [t._version > n for t, n in zip(eager, before)]
    assert len(entries(compiled)) == 1


def test_three_of_which_two_overlap() -> None:
    def program(a, b, c):
        a.mul_(2)
        b.add_(a[0, 0])
        c.sub_(b.sum())
        return a + b.sum() + c.sum()

    make = of_base(lambda x: x[:2, :3], lambda x: x[1:3, 1:4], lambda x: x[:, 4:])
    compiled = smelt.compile(program, fullgraph=True)
    for _ in range(2):
        (*eager, whole), (*ours, our_whole) = make(), make()
        compare(observe(compiled, tuple(ours), 0), observe(program, tuple(eager), 0))
        assert torch.equal(our_whole, whole)


def test_each_way_to_share_is_an_entry() -> None:
    compiled = smelt.compile(write_both, fullgraph=True)
    layouts = [
        of_base(lambda x: x[:2], lambda x: x[2:]),
        of_base(lambda x: x[:2], lambda x: x[1:3]),
        lambda: (base()[:2], base()[2:]),
        lambda: (base()[:2], base()[2:].clone()),
        of_base(lambda x: x[2:], lambda x: x[:2]),
        of_base(lambda x: x[:2], lambda x: x[:2].detach()),
    ]
    for make in (*layouts, *layouts):
        eager, ours = make()[:2], make()[:2]
        compare(observe(compiled, ours, 0), observe(write_both, eager, 0))
    assert len(entries(compiled)) <= len(layouts)


def test_a_third_input_that_begins_to_share() -> None:
    def program(a, b, c):
        a.add_(1)
        return a + b + c

    compiled = smelt.compile(program, fullgraph=True)
    for third in (lambda x: torch.ones(2, 6), lambda x: x[:2], lambda x: x[1:3], lambda x: torch.ones(2, 6)):
        whole, our_whole = base(), base()
        eager, ours = ((x[:2], x[2:], third(x)) for x in (whole, our_whole))
        compare(observe(compiled, ours, 0), observe(program, eager, 0))
        assert torch.equal(our_whole, whole)


def test_sizes_that_change() -> None:
    compiled = smelt.compile(write_both)
    for n in (4, 5, 6, 7, 4):
        whole, our_whole = (torch.arange(n * 6.0).reshape(n, 6) for _ in range(2))
        eager, ours = ((x[:2], x[2:]) for x in (whole, our_whole))
        compare(observe(compiled, ours, 0), observe(write_both, eager, 0))
        assert torch.equal(our_whole, whole)


def test_another_dtype_and_a_view_of_the_storage_break_the_graph() -> None:
    def strided(a, b):
        a.as_strided((2,), (1,), 2).add_(1)
        return b + a

    views: list[tuple[Callable[..., Any], Make]] = [
        (lambda a, b: (a.add_(1), b + 1), of_base(lambda x: x, lambda x: x.view(torch.int32))),
        (strided, of_base(lambda x: x[0], lambda x: x[1])),
    ]
    for program, make in views:
        compiled = smelt.compile(program)
        (*eager, whole), (*ours, our_whole) = make(), make()
        compare(observe(compiled, tuple(ours), 0), observe(program, tuple(eager), 0))
        assert torch.equal(our_whole, whole) and "share memory" in str(reasons(compiled))


GRADIENTS: dict[str, Callable[..., Any]] = {
    "one": lambda a, b: (a.mul_(2), a * b)[1],
    "both": lambda a, b: (a.add_(b), b.sub_(a * 3), (a * b).exp())[2],
    "returned": lambda a, b: (a.add_(b), a, b * 2)[1:],
    "a row": lambda a, b: (a[0].add_(b[0]), (a * b).cos())[1],
    "replaced": lambda a, b: (a.copy_(b * b.sin()), a.sum(0))[1],
}
VIEWS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "of a result": lambda x: ((y := x * 1)[:2], y[2:]),
    "columns": lambda x: ((y := x * 1)[:, ::2], y[:, 1::2]),
    "an overlap": lambda x: ((y := x * 1)[:3], y[1:]),
    "one without gradients": lambda x: ((y := x * 1)[:2], y.detach()[2:]),
    "the written one without gradients": lambda x: ((y := x * 1).detach()[:2], y[2:]),
}


@pytest.mark.parametrize("views", VIEWS)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str, views: str) -> None:
    def run(fn: Callable[..., Any]) -> Any:
        leaf = (base() / 24).requires_grad_()
        a, b = VIEWS[views](leaf)

        def whole() -> Any:
            result = fn(a, b)
            results = result if isinstance(result, tuple) else (result,)
            (sum(r.sum() for r in results) + (a * 3).sum() + (b * 5).sum()).backward()
            return results, leaf.grad

        return observe(whole, (), 0), a.detach(), b.detach()

    program = GRADIENTS[name]
    (want, *eager), (got, *ours) = run(program), run(smelt.compile(program))
    assert type(got.error) is type(want.error), got.error
    torch.testing.assert_close((got.result, ours), (want.result, eager))
