"""Rows of a table at an index in memory: views where nothing can distinguish them from copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import smelt
from smelt import events
from smelt.plan.steps import Aten, Plan
from tests.harness.agreement import same

ROW_VIEW = torch.ops.smelt.row_view.default
INDEX = torch.ops.aten.index.Tensor
COPIES = {INDEX, torch.ops.aten.index.Tensor_out}


def product(x, w, i):
    return x @ w[i]


def row_of_a_row(x, w, i):
    rows = w.view(2, 2, 8, 8)[i % 2]
    return x @ rows[i % 2], rows.sum()


def negative(x, w, i):
    return x @ w[i - 4]


def of_a_temporary(x, w, i):
    return x @ (w * 2).sin()[i]


def int32(x, w, i):
    return x @ w[i.int()]


def columns(x, w, i):
    return x @ w.transpose(1, 2)[i]


def written_after(x, w, i):
    y = (x @ w[i]).relu()
    w[0] = 1
    return y


def written_meanwhile(x, w, i):
    row = INDEX(w, [i])
    w.mul_(2)
    return (x @ row + w.sum()) @ row


def returned(x, w, i):
    return w[i] + 0, w[i].clone()


def of_two_tables(x, w, i):
    return (x @ w[i]) @ w.flip(0)[i].t()


def experts(x, w, i):
    """Each expert works on the rows that chose it."""
    out = torch.zeros_like(x)
    chosen = torch.nn.functional.one_hot((x.sum(1) > 4).long() + i % 2, 4).t()
    for expert in (chosen.sum(1) > 0).nonzero():
        expert = expert[0]
        (rows,) = torch.where(chosen[expert])
        out.index_add_(0, rows, (x[rows] @ w[expert]).relu())
    return out


PROGRAMS: tuple[Callable[..., object], ...] = (
    product, row_of_a_row, negative, of_a_temporary, int32, columns, written_after, written_meanwhile, returned,
    of_two_tables, experts,
)  # fmt: skip


def inputs(index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(index)
    x, w = torch.rand(5, 8, generator=generator), torch.rand(4, 8, 8, generator=generator)
    return x, w, torch.tensor(index)


@pytest.mark.parametrize("f", PROGRAMS)
def test_results_and_writes_are_eagers(f: Callable[..., object]) -> None:
    compiled = smelt.compile(f)
    for index in (0, 3, 1):
        ours, eagers = inputs(index), inputs(index)
        same(compiled(*ours), f(*eagers))
        same(ours, eagers)


@pytest.mark.parametrize("f", [product, row_of_a_row, columns, of_two_tables, experts])
def test_gradients_are_eagers(f: Callable[..., object]) -> None:
    def gradients(fn: Callable[..., object], index: int) -> list[torch.Tensor | None]:
        x, w, i = inputs(index)
        result = fn(x.requires_grad_(), w.requires_grad_(), i)
        (result[0] if isinstance(result, tuple) else result).pow(2).sum().backward()
        return [x.grad, w.grad]

    compiled = smelt.compile(f)
    for index in (0, 3, 1):
        same(gradients(compiled, index), gradients(f, index))


def test_an_index_out_of_range_raises_as_in_eager() -> None:
    compiled = smelt.compile(product)
    compiled(*inputs(0))
    for index in (4, -5):
        x, w, _ = inputs(0)
        with pytest.raises(IndexError) as eager:
            product(x, w, torch.tensor(index))
        with pytest.raises(IndexError) as ours:
            compiled(x, w, torch.tensor(index))
        assert str(ours.value) == str(eager.value)


def _calls(f: Callable[..., object]) -> list[object]:
    """The operators of the plans of a call."""
    plans: list[Plan] = []

    def on_event(event: events.Event) -> None:
        if event.kind == "plan":
            plans.append(event.data["plan"])

    with events.subscribed(on_event), torch.no_grad():
        smelt.compile(f)(*inputs(0))
    return [step.op for plan in plans for step in plan.steps if isinstance(step, Aten)]


@pytest.mark.parametrize("f", [product, row_of_a_row, of_a_temporary])
def test_rows_are_not_copied(f: Callable[..., object]) -> None:
    calls = _calls(f)
    assert ROW_VIEW in calls and COPIES.isdisjoint(calls)


def test_a_returned_row_is_a_copy() -> None:
    def gathered(x, w, i):
        row = INDEX(w, [i])
        return row, x @ row

    x, w, i = inputs(2)
    row, _ = smelt.compile(gathered)(x, w, i)
    assert row.data_ptr() != w[2].data_ptr() and torch.equal(row, w[2])
    assert not COPIES.isdisjoint(_calls(gathered))
