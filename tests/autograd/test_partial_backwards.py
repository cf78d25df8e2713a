"""`torch.autograd.grad` of some of the gradients: a backward of these alone from their second request on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import smelt
from smelt import events
from tests.harness.agreement import same

N_LAYERS = 12


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[part for _ in range(N_LAYERS) for part in (nn.Linear(4, 4), nn.Tanh())])


@contextmanager
def compiled_backwards() -> Iterator[list[events.Event]]:
    """The events of compiled backwards."""
    found: list[events.Event] = []
    with events.subscribed(lambda e: found.append(e) if e.kind == "backward-compiled" else None):
        yield found


def gradients(
    run: Callable[[torch.Tensor], torch.Tensor], model: nn.Sequential, chosen: list[int]
) -> list[torch.Tensor]:
    x = torch.linspace(0, 1, 8).view(2, 4).requires_grad_()
    leaves = [x, *model.parameters()]
    return list(torch.autograd.grad(run(x).sum(), [leaves[i] for i in chosen]))


@pytest.mark.parametrize("chosen", [[0], [-1], [-2, -1], [0, 5], [1, 2, 3, -4]], ids=str)
def test_gradients_are_eagers(chosen: list[int]) -> None:
    model = layers()
    compiled = smelt.compile(model)
    want = gradients(model, model, chosen)
    with compiled_backwards() as found:
        for _ in range(4):
            same(gradients(compiled, model, chosen), want)
    assert len(found) == 2  # all gradients, then the chosen ones


def test_a_part_computes_only_what_is_requested() -> None:
    model = layers()
    compiled = smelt.compile(model)
    products: list[int] = []

    def on_event(event: events.Event) -> None:
        if event.kind == "plan":
            products.append(str(event.data["plan"].steps).count("mm"))

    gradients(compiled, model, [-1])
    with events.subscribed(on_event):
        gradients(compiled, model, [-1])
    assert products == [0]  # the last bias needs none


def test_all_gradients_have_one_backward() -> None:
    model = layers()
    compiled = smelt.compile(model)
    with compiled_backwards() as found:
        for _ in range(3):
            compiled(torch.ones(2, 4)).sum().backward()
    assert len(found) == 1


def test_the_number_of_parts_is_bounded() -> None:
    model = layers()
    compiled = smelt.compile(model)
    with compiled_backwards() as found:
        for _ in range(3):
            for chosen in range(2 * N_LAYERS):
                same(gradients(compiled, model, [chosen]), gradients(model, model, [chosen]))
    assert len(found) <= 1 + 8


def test_parts_of_one_graph_and_then_all_of_it() -> None:
    def run(call: Callable[[torch.Tensor], torch.Tensor], model: nn.Sequential) -> list[torch.Tensor | None]:
        found: list[torch.Tensor | None] = []
        parameters = list(model.parameters())
        for _ in range(3):
            model.zero_grad()
            y = call(torch.ones(2, 4)).sum()
            found += torch.autograd.grad(y, parameters[-2:], retain_graph=True)
            found += torch.autograd.grad(y, parameters[:1], retain_graph=True)
            y.backward()
            found += [p.grad.clone() for p in parameters]
        return found

    model = layers()
    same(run(smelt.compile(model), model), run(model, model))


def test_two_results_and_other_sizes() -> None:
    def f(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = (x @ a).tanh()
        return hidden, (hidden @ b).sigmoid().sum(1)

    def run(call: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor | None]:
        found: list[torch.Tensor | None] = []
        for n in (3, 3, 3, 5, 6, 7):
            torch.manual_seed(n)
            x, a, b = (torch.randn(size).requires_grad_() for size in ((n, 4), (4, 4), (4, 2)))
            hidden, y = call(x, a, b)
            found += torch.autograd.grad(y.sum(), [b], retain_graph=True)
            found += torch.autograd.grad(y.sum(), [hidden, a], retain_graph=True)
            found += torch.autograd.grad([y.sum(), hidden.sum()], [x])
        return found

    same(run(smelt.compile(f)), run(f))


def test_freed_graphs_raise_as_in_eager() -> None:
    model = layers()
    for run in (model, smelt.compile(model)):
        for _ in range(3):
            y, last = run(torch.ones(2, 4)).sum(), list(model.parameters())[-2:]
            torch.autograd.grad(y, last)
            with pytest.raises(RuntimeError, match="second time"):
                torch.autograd.grad(y, last)
