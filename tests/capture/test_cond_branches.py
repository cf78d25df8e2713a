"""`torch.cond` is one graph if its branches only compute; else the graph breaks and one branch runs."""

import random

import pytest
import torch
from torch import nn
from torch._higher_order_ops import associative_scan

import smelt
from smelt.report.inspect import graph_count
from tests.harness.agreement import check_no_failure, same
from tests.harness.catalogue import TORCH

COMPILES = TORCH == "torch 2.11"  # there `torch.cond` calls `torch.compile` in a way that breaks the graph
WEIGHT = torch.randn(4, 4)
LAYER = nn.Linear(4, 4).requires_grad_(False)
SEEN = []


def noted(a):
    SEEN.append(1)
    return a + 1


def printed(a):
    print("a branch")
    return a * 2


def wrong(a):
    return a @ torch.ones(3, 3)


def raising(a):
    raise ValueError("a branch that must not run")


def infinite(a):
    return torch.where(a > 0, 1 / (a * 0), a)


def structure(a):
    return {"y": a * 2, "z": (a + 1, [a - 1], 3)}


def same_structure(a):
    return {"y": a * 3, "z": (a + 2, [a.cos()], 3)}


SMALL = [
    (torch.cos, torch.sin),
    (lambda a: a.cos() + WEIGHT, lambda a: (a * 2).exp()),
    (lambda a: a.t().contiguous(), lambda a: a + 0),
    (structure, same_structure),
    (structure, lambda a: {"y": a * 3, "z": (a + 2, [a.cos()], 4)}),
    (infinite, lambda a: a * 1),
    (lambda a: a / a.sum().item(), lambda a: a * 2),
    (lambda a: a.sum(), lambda a: a.amax()),
    (LAYER, lambda a: a + 1),
    (lambda a: a[torch.tensor([9])], lambda a: a[:1] * 2),
    (lambda a: a.clone().mul_(2), lambda a: a * 2),
    (lambda a: (a @ WEIGHT).t(), lambda a: LAYER(a).t()),
    (lambda a: (LAYER(a)[1:], a.argmax(-1)), lambda a: ((a @ a)[1:], a.argmin(-1))),
]
OTHERS = [
    (lambda a: a, lambda a: a + 1),  # the operand itself
    (lambda a: a.view(-1), lambda a: a.flatten() + 1),
    (lambda a: torch.rand(4, 4) + a, lambda a: a * 2),
    (lambda a: a * random.random(), lambda a: a * 2),
    (lambda a: a.t() * 2, lambda a: a * 2),  # other strides
    (noted, lambda a: a * 2),
    (printed, lambda a: a * 2),
    (wrong, lambda a: a * 2),
    (raising, lambda a: a * 2),
]


def outcome(fn, x):
    """The result or exception of a call, its effects, and the state of the random number generators."""
    SEEN.clear()
    random.seed(1)
    torch.manual_seed(1)
    try:
        result = fn(x)
    except (RuntimeError, ValueError, IndexError) as error:
        result = str(error)
    return result, list(SEEN), random.random(), torch.rand(1)


@pytest.mark.parametrize("branches, small", [*((b, True) for b in SMALL), *((b, False) for b in OTHERS)])
def test_selected_branch(branches, small, capsys):
    def fn(x):
        y = x + 1
        return torch.cond(y.sum() > 0, *branches, (y,))

    def plain(x):
        y = x + 1
        return branches[0](y) if y.sum() > 0 else branches[1](y)

    compiled = smelt.compile(fn)
    x = torch.randn(4, 4).abs()
    for given in (x, -5 * x, x * 2):
        got, printed_by = outcome(compiled, given), capsys.readouterr().out
        same(got, outcome(plain, given))
        assert printed_by == capsys.readouterr().out
        check_no_failure(compiled)
    assert (graph_count(compiled) == 1) is small or COMPILES


def test_raising_branch_under_a_handler_is_not_traced():
    def fn(x):
        try:
            return torch.cond(x.sum() > 0, lambda a: a * 2, raising, (x,))
        except ValueError:
            return x

    compiled = smelt.compile(fn)
    x = torch.rand(4)
    for given in (x, -x, x):
        torch.testing.assert_close(compiled(given), given * 2 if given.sum() > 0 else given)


def test_nested_cond_and_cond_in_a_loop():
    def fn(x):
        def inner(a):
            return torch.cond(a.max() > 1, lambda b: b * 2, lambda b: b * 3, (a,))

        for i in range(3):
            x = torch.cond(x.mean() > 0.1 * i, inner, lambda a: a + 0.25, (x,))
        return x

    def plain(x):
        for i in range(3):
            x = (x * 2 if x.max() > 1 else x * 3) if x.mean() > 0.1 * i else x + 0.25
        return x

    compiled = smelt.compile(fn)
    for scale in (1, -1, 0.1):
        x = torch.randn(4, 4) * scale
        torch.testing.assert_close(compiled(x), plain(x))
    assert graph_count(compiled) == 1 or COMPILES


def test_gradients_of_the_selected_branch():
    def fn(x):
        return torch.cond(x.sum() > 0, lambda a: a.sqrt(), lambda a: a * 2, (x,)).sum()

    compiled = smelt.compile(fn)
    for values in ([1.0, 4.0], [-1.0, 0.0], [1.0, 4.0]):
        x = torch.tensor(values, requires_grad=True)
        (got,) = torch.autograd.grad(compiled(x), x)
        (want,) = torch.autograd.grad((x.sqrt() if x.sum() > 0 else x * 2).sum(), x)
        torch.testing.assert_close(got, want)


BATCHES = {
    "of each row": lambda x: torch.vmap(lambda r: torch.cond(r.sum() > 2, lambda r: r * 2, lambda r: r + 3, (r,)))(x),
    "of columns": lambda x: torch.vmap(
        lambda r: torch.cond(r.mean() > 2, lambda r: r * 2, lambda r: r + 3, (r,)), in_dims=1, out_dims=1
    )(x),
    "of elements": lambda x: torch.vmap(
        torch.vmap(lambda r: torch.cond(r > 2, lambda r: r * 2, lambda r: r + 3, (r,)))
    )(x),
    "of the whole batch": lambda x: torch.vmap(
        lambda r: torch.cond(x.sum() > 9, lambda r: r * 2, lambda r: r + 3, (r,))
    )(x),
    "with expensive branches": lambda x: torch.vmap(
        lambda r: torch.cond(r.sum() > 2, lambda r: r.cumsum(0), lambda r: r @ torch.ones(2, 2), (r,))
    )(x),
    "in a scan": lambda x: associative_scan(
        lambda a, b: torch.cond(a.sum() > 2, lambda a, b: a * b, lambda a, b: a + b, (a, b)),
        x,
        0,
        combine_mode="generic",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHES)
def test_conditions_in_a_batch(name):
    program = BATCHES[name]
    compiled = smelt.compile(program, fullgraph=True)
    for n in (3, 4, 5):
        x = torch.arange(2.0 * n).reshape(n, 2)
        for given in (x, -x):
            torch.testing.assert_close(compiled(given), program(given))


def test_gradients_of_conditions_in_a_batch():
    def program(x):
        y = torch.vmap(lambda r: torch.cond(r.sum() > 2, lambda r: r * r, lambda r: r.exp(), (r,)))(x)
        y.sum().backward()
        return y, x.grad

    eager, ours = (torch.arange(6.0).reshape(3, 2).requires_grad_() for _ in range(2))
    torch.testing.assert_close(smelt.compile(program, fullgraph=True)(ours), program(eager))


def test_branches_in_a_batch_that_write_are_not_selected():
    def program(x, total):
        def add(r):
            total.add_(1)
            return r * 2

        return torch.vmap(lambda r: torch.cond(r.sum() > 2, add, lambda r: r + 3, (r,)))(x)

    with pytest.raises(smelt.errors.Unsupported):
        smelt.compile(program, fullgraph=True)(torch.ones(3, 2), torch.zeros(()))


NUMBERS = {
    "two ints": (lambda x: (x + 1, 3), lambda x: (x - 1, 4)),
    "zero and one": (lambda x: (x + 1, 0), lambda x: (x - 1, 1)),
    "a negative one": (lambda x: (x + 1, [-3]), lambda x: (x - 1, [5])),
    "one int": (lambda x: (x.sum(), {"n": 3}), lambda x: (x.mean(), {"n": 3})),
    "ints beside a product": (lambda x: (x @ torch.ones(2, 2), 7), lambda x: (x.softmax(0), 9)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_branches_that_return_ints(name):
    def program(x):
        return torch.cond(x.sum() > 0, *NUMBERS[name], (x,))

    def used(x):
        y, n = program(x)
        n = n[0] if isinstance(n, list) else n["n"] if isinstance(n, dict) else n
        return y * n, torch.ones(n + 5)

    for fn in (program, used):
        compiled = smelt.compile(fn, fullgraph=True)
        for x in (torch.ones(3, 2), -torch.ones(3, 2), torch.ones(4, 2), torch.ones(3, 2)):
            got, want = compiled(x), fn(x)
            torch.testing.assert_close(got[0], want[0])
            torch.testing.assert_close(got[1], want[1])


CONDITIONS = {
    "greater": lambda x, n: n.item() > 2,
    "equal": lambda x, n: n.item() == 2,
    "different": lambda x, n: n.item() != 2,
    "at least": lambda x, n: n.item() >= 3,
    "of sizes": lambda x, n: x[: int(n) + 1].nonzero().shape[0] > x.shape[0],
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_on_a_number_that_a_tensor_holds(name):
    def program(x, n):
        return torch.cond(CONDITIONS[name](x, n), lambda x: x * 2, lambda x: x @ torch.ones(2, 2), (x,))

    compiled = smelt.compile(program, fullgraph=True)
    x = torch.arange(6.0).reshape(3, 2)
    for n in (3, 2, 5, 1, 0, 2):
        torch.testing.assert_close(compiled(x, torch.tensor(n)), program(x, torch.tensor(n)))


def test_a_comparison_of_a_number_that_a_tensor_holds_is_a_bool():
    def program(x, n):
        above = n.item() > 2
        return x + 1 if isinstance(above, bool) and type(above) is bool else x - 1

    assert smelt.compile(program, fullgraph=True)(torch.zeros(2), torch.tensor(5)).tolist() == [1, 1]
