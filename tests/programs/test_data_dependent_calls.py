"""Sizes that data decide: what breaks a graph, what is a fact, and that nothing happens twice where a graph does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.report.inspect import entries, reasons
from tests.harness.agreement import check_no_failure, compare, observe, tensors
from tests.harness.data_sizes import run


def rows(mask: Callable[[int], torch.Tensor]) -> tuple[Any, ...]:
    return torch.randn(12, 8), mask(12)


def broken(function: Callable[..., Any], *arguments: Any) -> str:
    """Why the graph of a program breaks, whose results are eager's all the same."""
    compiled = smelt.compile(function, options={"control_flow": "break"})
    for k in (3, 0, 1, 6):
        m = torch.arange(6) < k
        torch.testing.assert_close(compiled(*arguments, m), function(*arguments, m))
    assert reasons(compiled)
    return str(reasons(compiled)[0])


def test_what_the_program_decides_by_data_breaks_the_graph_and_is_named() -> None:
    def branch(x, m):
        chosen = x[m]
        return chosen.sum() if chosen.shape[0] > 3 else chosen.sum() * 2

    def loop(x, m):
        total = torch.zeros(())
        for i in range(m.sum().item()):
            total = total + x[i].sum()
        return total

    x = torch.randn(6, 4)
    assert "3 < u0 decides, where u0 is how many elements a mask selects" in broken(branch, x)
    assert "the program needs the value of a number that a tensor holds" in broken(loop, x)


@pytest.mark.skipif(torch.__version__ >= (2, 15), reason="combinations takes no mask any more")
def test_a_mask_that_torch_makes_within_a_call_breaks_the_graph() -> None:
    """It has no name at the torch level, by which its places could leave the graph."""
    reason = broken(lambda x, m: torch.combinations(x * m, 2) + 1, torch.randn(6))
    assert "data-dependent-shape" in reason and "aten.masked_select.default" in reason


def test_assertions_are_facts() -> None:
    def asserted(x, m):
        n = m.sum().item()
        torch._check(n <= 4)
        if n > 5:
            raise ValueError("too many")
        return x[:n] * 2 if n < 5 else x

    compiled = smelt.compile(asserted, fullgraph=True)
    x = torch.randn(6, 4)
    for k in (3, 4, 2, 0, 1):
        torch.testing.assert_close(compiled(x, torch.arange(6) < k), x[:k] * 2)
    with pytest.raises(RuntimeError, match="Expected cond to be True"):
        compiled(x, torch.arange(6) < 5)
    assert len(entries(compiled)) == 1


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: (torch._check_is_size(u := n.item()), x.new_ones(u, 3).cumsum(0))[1],
        lambda x, n: (torch._check_is_size(u := n.item(), max=5), x[:u] * 2)[1],
        lambda x, n: (torch._check_is_size(u := int(n), lambda: "no size", max=4), x.narrow(0, 0, u) + 1)[1],
        lambda x, n: (torch._check_is_size(u := n.item()), torch.cat([x.new_zeros(u, 4), x, x[:u]]))[1],
        lambda x, n: (torch._check_is_size(x.shape[0], max=6), x * n)[1],
    ],
)
def test_check_is_size_is_an_assertion(program: Callable[..., Any]) -> None:
    compiled = smelt.compile(program, fullgraph=True)
    x = torch.randn(6, 4)
    for n in (3, 4, 2, 0, 1, 5, -1, 3):
        compare(observe(compiled, (x, torch.tensor(n)), 0), observe(program, (x, torch.tensor(n)), 0))


def test_check_is_size_warns_as_in_eager() -> None:
    def program(x, n):
        torch._check_is_size(n.item())
        return x + n.item()

    compiled = smelt.compile(program, fullgraph=True)
    for _ in range(2):
        with pytest.warns(FutureWarning, match="_check_is_size") as caught:
            compiled(torch.ones(2), torch.tensor(3))
        assert [w.filename for w in caught] == [__file__]


def test_random_numbers_are_drawn_once() -> None:
    def noisy(x, m):
        x = F.dropout(x, 0.5)
        return F.dropout(x[m][:-1], 0.5), torch.rand(3)

    ran = run(noisy, rows, gradients=False)
    assert ran.is_one_graph and ran.again, ran


def test_writes_of_inputs_happen_once() -> None:
    def counted(x, m):
        x.add_(1)
        chosen = x[m]
        x.mul_(2)
        return chosen[:-1]

    ran = run(counted, rows, gradients=False)
    assert ran.is_one_graph and ran.again, ran


def test_second_derivatives() -> None:
    def cubes(x, m):
        return (x[m] ** 3).sum()

    compiled = smelt.compile(cubes, fullgraph=True)
    for k in (3, 2, 5, 1, 0):
        x, m = torch.randn(6, 4, requires_grad=True), torch.arange(6) < k
        twice = []
        for f in (cubes, compiled):
            (first,) = torch.autograd.grad(f(x, m), x, create_graph=True)
            twice.append(torch.autograd.grad(first.square().sum(), x)[0])
        torch.testing.assert_close(*twice)


def sum_of_rows(x, m):
    return x[m].sum(0)


def test_backends_from_elsewhere_break_the_graph() -> None:
    compiled = smelt.compile(sum_of_rows, backend=lambda gm, inputs: gm.forward)
    x = torch.randn(6, 4)
    torch.testing.assert_close(compiled(x, torch.arange(6) < 2), x[:2].sum(0))
    assert "data-dependent-shape" in str(reasons(compiled)[0])


@pytest.mark.parametrize("choose", [min, max])
def test_a_break_in_what_the_least_is_chosen_by(choose):
    f = lambda x: choose([x, x * 2], key=lambda v: v.sum().item()) + 1  # noqa: E731
    x = torch.ones(3)
    torch.testing.assert_close(smelt.compile(f)(x), f(x))


def test_gradients_where_rows_are_stored_by_masks():
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def experts(x):
        out, choice = torch.zeros_like(x), x.argmax(1)
        for number, layer in enumerate(layers):
            chosen = choice == number
            out[chosen] = layer(x[chosen]) * x[chosen][:, :1]
        return out

    compiled = smelt.compile(experts)
    for seed, rows in enumerate((12, 12, 20, 9)):
        x = torch.randn(rows, 4, generator=torch.manual_seed(seed)).requires_grad_()
        got, want = compiled(x), experts(x)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(torch.autograd.grad(got.sum(), x), torch.autograd.grad(want.sum(), x))
    assert len(entries(compiled)) == 2 and not reasons(compiled)


def test_numbers_below_zero_are_not_taken_for_sizes():
    f = lambda t: (torch.full((2,), t.item()), torch.ones(3) * t.item(), torch.arange(6)[t.item() :])  # noqa: E731
    compiled = smelt.compile(f)
    for n in (3, 2, 1, 0, -1, -2, 5, -7):
        torch.testing.assert_close(compiled(torch.tensor(n)), f(torch.tensor(n)))


@pytest.mark.parametrize(
    "program",
    [
        lambda x, m, n: (x[m] + x[n] * 2).sum(0),
        lambda x, m, n: torch.stack([x[m], x[n]]).amax(0),
        lambda x, m, n: (torch.where(x[m] > 0, x[n], 1.0), x[m].t() @ x[n]),
        lambda x, m, n: (x[m].tanh() - x[n]).square().mean() + (x[m] * x[n]).sum(),
    ],
)
@pytest.mark.parametrize("gradients", [False, True])
def test_two_sizes_that_an_operator_requires_to_be_equal(program, gradients) -> None:
    """The graph checks that they are: where they are not, eager broadcasts or raises."""
    compiled = smelt.compile(program, fullgraph=True)
    pairs = [(3, 3), (5, 5), (2, 2), (3, 4), (1, 4), (1, 1), (0, 0), (4, 4)]
    for number, (k, m) in enumerate(pairs):
        x = torch.randn(6, 4, requires_grad=gradients)
        arguments = x, torch.arange(6) < k, torch.arange(6) >= 6 - m
        want, got = observe(program, arguments, number), observe(compiled, arguments, number)
        compare(got, want)
        if gradients and want.error is None:
            total = [sum(t.sum() for t in tensors(seen.result)) for seen in (want, got)]
            torch.testing.assert_close(*(torch.autograd.grad(t, x)[0] for t in total))
    check_no_failure(compiled)
    assert len(entries(compiled)) == 1


def test_a_size_that_must_equal_that_of_an_input() -> None:
    compiled = smelt.compile(lambda x, m, y: (x[m] + y) * x[m], fullgraph=True)
    for k in (3, 3, 1, 2, 3):
        arguments = torch.randn(6), torch.arange(6) < k, torch.ones(3)
        compare(observe(compiled, arguments, 0), observe(lambda x, m, y: (x[m] + y) * x[m], arguments, 0))


@pytest.mark.parametrize(
    "program",
    [
        lambda x, t, b: (float(t[0]) / 2, x * float(t[1])),
        lambda x, t, b: (float((t + 1)[:1]), x[: int(b)]),
        lambda x, t, b: (int(b.any()) + int(b), float(b.reshape(1)) * 3),
    ],
)
def test_int_and_float_of_integers_and_bools(program) -> None:
    compiled = smelt.compile(program, fullgraph=True)
    for a, b in ((3, True), (4, False), (7, True), (0, False), (-2, True)):
        arguments = torch.randn(6, 4), torch.tensor([a, 2 * a]), torch.tensor(b)
        compare(observe(compiled, arguments, 0), observe(program, arguments, 0))
    assert len(entries(compiled)) == 1


def test_a_remainder_of_a_product_is_known() -> None:
    def program(t):
        u, v = t.tolist()
        if (u + 10) * (u + v) % (u + 10) == 0:
            return torch.arange((u + 10) * (v + 2) // (v + 2))
        return t

    compiled = smelt.compile(program, fullgraph=True)
    for numbers in ([20, 21], [2, 3], [5, 9]):
        torch.testing.assert_close(compiled(torch.tensor(numbers)), program(torch.tensor(numbers)))


def test_a_fixed_size_divided_by_a_number_that_data_give() -> None:
    """Nothing is left of it at the large numbers that are tried for the symbol; then strides say nothing."""

    def rows_of(x, n):
        k = int(n)
        rows = x.view(-1)[: 108 // k * k].view(k, -1)
        return rows * 2, rows.stride(), rows.t().is_contiguous()

    compiled = smelt.compile(rows_of)
    x = torch.randn(12, 9)
    for k in (2, 5, 3, 1, 108):
        compare(observe(compiled, (x, torch.tensor(k)), 0), observe(rows_of, (x, torch.tensor(k)), 0))
    check_no_failure(compiled)


def test_random_integers_below_a_number_that_data_give() -> None:
    def drawn(x, n):
        k = int(n)
        return torch.randint(0, k, (4,)) + x, torch.randint(k, 2 * k, (3,)), torch.randint_like(x, k)

    compiled = smelt.compile(drawn)
    x = torch.randn(4)
    for k in (3, 5, 2, 40):
        compare(observe(compiled, (x, torch.tensor(k)), 0), observe(drawn, (x, torch.tensor(k)), 0))
    check_no_failure(compiled)
    assert len(entries(compiled)) == 1


def test_as_many_classes_as_there_are() -> None:
    """C++ code reads the largest; torch-level graphs have no tensor of its own to read."""
    compiled = smelt.compile(lambda x: F.one_hot(x) * 2, fullgraph=True)
    for classes in ([5], [0, 3, 3], [[1, 2], [7, 0]], [4, 4, 9]):
        x = torch.tensor(classes)
        torch.testing.assert_close(compiled(x), F.one_hot(x) * 2)
    check_no_failure(compiled)
    for classes in ([1, -2], []):
        with pytest.raises(RuntimeError, match="[Cc]lass"):
            compiled(torch.tensor(classes, dtype=torch.long))
