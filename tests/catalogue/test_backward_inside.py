"""`backward()` and `torch.autograd.grad` inside of the compiled function: what they do to `.grad`, what is left of the graph.

The catalogue compares values, which `.grad` are the same tensor or share memory, what a backward of the results leaves (or
raises), and warnings are errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.harness.catalogue import Changing, leaf, program, tensor

Step = Callable[..., Any]


def network(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), *more, nn.Linear(5, 3))


def batches(count: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(tensor(6, 4), tensor(6, 3)) for _ in range(count)]


def trained(model: nn.Module, step: Callable[[Any, Any, Any], Step], lr: float = 0.1) -> Any:
    """`step(model, optimizer, loss of a batch)` is what is compiled."""
    optimizer = torch.optim.SGD(model.parameters(), lr)
    compiled = step(model, optimizer, lambda x, y: F.mse_loss(model(x), y))
    return compiled, batches(), lambda: (model, [p.grad for p in model.parameters()], optimizer.state_dict())


def of_leaves(*leaves: torch.Tensor) -> Callable[[], Any]:
    return lambda: (leaves, [x.grad for x in leaves])


# ------------------------------------------------------------------------------------------------------- one graph


@program(graphs=1, later=1)
def test_loss_is_returned() -> Any:
    """It requires a gradient, of which eager says that it is gone."""

    def made(model: Any, optimizer: Any, loss_of: Any) -> Step:
        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            optimizer.zero_grad()
            out = model(x)
            loss = F.mse_loss(out, y)
            loss.backward()
            optimizer.step()
            return loss, out

        return step

    return trained(network(), made)


@program(graphs=1, later=1)
def test_two_backwards_add_up() -> Any:
    def made(model: Any, optimizer: Any, loss_of: Any) -> Step:
        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            optimizer.zero_grad()
            for part in x.chunk(2):
                model(part).square().mean().backward()
            optimizer.step()

        return step

    return trained(network(), made)


@program(graphs=1, later=1)
def test_gradients_add_up_over_calls() -> Any:
    """The second call finds gradients: they are written in place."""

    def made(model: Any, optimizer: Any, loss_of: Any) -> Step:
        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            loss = loss_of(x, y)
            loss.backward()
            return loss.detach()

        return step

    return trained(network(), made)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_zero_grad(to_none: bool, first: bool) -> None:
    def made(model: Any, optimizer: Any, loss_of: Any) -> Step:
        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            if first:
                optimizer.zero_grad(set_to_none=to_none)
            loss_of(x, y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            if not first:
                optimizer.zero_grad(set_to_none=to_none)

        return step

    later = 0 if to_none and not first else 1  # of calls that find gradients
    program(graphs=1, later=later)(lambda: trained(network(), made))()


@program(graphs=1, later=1)
def test_gradient_penalty() -> Any:
    def made(model: Any, optimizer: Any, loss_of: Any) -> Step:
        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            optimizer.zero_grad()
            x = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            loss = loss_of(x, y) + (slope.norm(2, dim=1) - 1).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    return trained(network(), made)


def plain_step(model: Any, optimizer: Any, loss_of: Any) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss

    return step


@program(graphs=1, later=1)
def test_frozen_parameters() -> Any:
    model = network()
    model[0].requires_grad_(False)
    return trained(model, plain_step)


@program(graphs=1, later=1)
def test_shared_parameters() -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))
    model[2].weight = model[0].weight
    return trained(model, plain_step)


@program(graphs=1, later=1)
def test_statistics_and_random_numbers() -> Any:
    return trained(network(nn.BatchNorm1d(5), nn.Dropout(0.3)), plain_step)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * x * 4


@program(graphs=1, later=1)
def test_custom_function() -> Any:
    def made(model: Any, optimizer: Any, loss_of: Any) -> Step:
        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            optimizer.zero_grad()
            Doubled.apply(model(x)).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return step

    return trained(network(), made)


@program(graphs=1, later=1)
def test_two_networks() -> Any:
    generator, critic = network(), nn.Linear(3, 1)
    both = [torch.optim.Adam(m.parameters(), 0.1) for m in (generator, critic)]

    def step(x: torch.Tensor, real: torch.Tensor) -> Any:
        both[1].zero_grad()
        fake = generator(x)
        of_critic = F.softplus(critic(fake.detach())).mean() + F.softplus(-critic(real)).mean()
        of_critic.backward()
        both[1].step()
        both[0].zero_grad()
        of_generator = F.softplus(-critic(fake)).mean()
        of_generator.backward()
        both[0].step()
        return of_critic, of_generator

    return step, batches(), lambda: (generator, critic)


@program(graphs=1, later=1)
def test_closure() -> Any:
    def made(model: Any, optimizer: Any, loss_of: Any) -> Step:
        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            def closure() -> Any:
                optimizer.zero_grad()
                loss = loss_of(x, y)
                loss.backward()
                return loss

            return optimizer.step(closure)

        return step

    return trained(network(), made)


@program(graphs=1)
def test_leaf_made_inside() -> Any:
    model = network()

    def step(x: torch.Tensor) -> Any:
        moved = x.detach().requires_grad_()
        model(moved).sum().backward(inputs=[moved])
        assert moved.grad is not None
        return x + moved.grad.sign()

    return step, [(tensor(6, 4),) for _ in range(3)]


@program(graphs=1)
def test_gradients_returned() -> Any:
    model = network()

    def step(x: torch.Tensor) -> Any:
        loss = model(x).square().sum()
        return loss, torch.autograd.grad(loss, list(model.parameters()))

    return step, [(tensor(6, 4),) for _ in range(3)]


# ----------------------------------------------------------------------------- which memory `.grad` is, and looks like

ACCUMULATED: dict[str, Callable[[Any, Any, torch.Tensor], object]] = {
    "one for two": lambda a, b, x: (a + b).backward(x),
    "parts of one": lambda a, b, x: (torch.cat([a, b]) * 2).backward(torch.cat([x, x])),
    "given": lambda a, b, x: a.backward(x),
    "a view of what was given": lambda a, b, x: a.view(2, 3).backward(x.view(2, 3)),
    "expanded": lambda a, b, x: a.sum().backward(),
    "twice": lambda a, b, x: ((a * x).sum() + (a * b).sum()).backward(),
    "several": lambda a, b, x: torch.autograd.backward([a * 2, b * a], [x, x]),
    "chosen": lambda a, b, x: (a * b).backward(x, inputs=[b]),
    "values": lambda a, b, x: (a.prod() + (a * 0).max() + b.median()).backward(),
}


@pytest.mark.parametrize("name", ACCUMULATED)
def test_accumulated(name: str) -> None:
    def factory() -> Any:
        a, b = leaf(6), leaf(6)

        def step(x: torch.Tensor) -> Any:
            a.grad = b.grad = None
            ACCUMULATED[name](a, b, x)
            return x

        return step, [(tensor(6),) for _ in range(3)], of_leaves(a, b)

    program(graphs=1)(factory)()


@program(graphs=1)
def test_layout_of_the_leaf() -> Any:
    w = tensor(3, 4).t().requires_grad_()

    def step(x: torch.Tensor) -> Any:
        w.grad = None
        (w.contiguous() * x).sum().backward()

    return step, [(tensor(4, 3),) for _ in range(3)], of_leaves(w)


@program(graphs=1)
def test_products_of_zeros() -> Any:
    """Torch's derivative looks at the values."""
    w = torch.tensor([0.0, 0.0, torch.inf], requires_grad=True)
    return lambda x: torch.autograd.grad((w * x).prod(), w), [(torch.ones(3),)] * 3


# ---------------------------------------------------------------------------------------- what is left of the graph


@program(graphs=1, later=1)
def test_graph_kept() -> Any:
    w = leaf(3)

    def step(x: torch.Tensor) -> Any:
        loss = (w * x).exp().sum()
        loss.backward(retain_graph=True)
        return loss

    return step, [(tensor(3),) for _ in range(3)], of_leaves(w)


@program(graphs=1, later=1)
def test_part_of_the_graph_kept() -> Any:
    """Eager frees the nodes that it runs."""
    v, w = leaf(3), leaf(3)

    def step(x: torch.Tensor) -> Any:
        loss = (w * x).exp().sum() + (v * x).exp().sum()
        loss.backward(inputs=[v])
        return loss

    return step, [(tensor(3),) for _ in range(3)], of_leaves(v, w)


def test_error_of_a_second_time() -> None:
    def factory() -> Any:
        w = leaf(3)

        def step(x: torch.Tensor) -> Any:
            loss = (w * x).exp().sum()
            loss.backward()
            loss.backward()

        return step, [(tensor(3),) for _ in range(3)], of_leaves(w)

    program(graphs=0, eager=["user-exception"])(factory)()


# ----------------------------------------------------------------------------------------------------------- breaks


@program(graphs=1, breaks=["unsupported-call"])
def test_hook_of_a_parameter() -> Any:
    w = leaf(3)
    w.register_hook(lambda gradient: gradient * 2)
    return lambda x: (w * x).sum().backward(), [(tensor(3),) for _ in range(3)], of_leaves(w)


@program(graphs=1, later=1, breaks=["unsupported-call"])
def test_hook_of_a_parameter_later() -> Any:
    w = leaf(3)

    def step(x: torch.Tensor) -> Any:
        w.grad = None
        (w * x).sum().backward()

    def between() -> None:
        w.register_post_accumulate_grad_hook(_halved)

    return step, Changing([(tensor(3),) for _ in range(4)], {2: between}), of_leaves(w)


def _halved(p: torch.Tensor) -> None:
    assert p.grad is not None
    p.grad.mul_(0.5)


@program(graphs=1, breaks=["unsupported-call"])
def test_hook_of_a_node() -> Any:
    """As DistributedDataParallel's: on the node that accumulates a parameter's gradient."""
    w = leaf(3)
    accumulates = w.expand_as(w).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    accumulates.register_prehook(lambda gradients: (gradients[0] * 2,))  # type: ignore[union-attr]
    return (
        lambda x: (w * x).sum().backward(),
        [(tensor(3),) for _ in range(3)],
        lambda: (w.grad, accumulates and 1),
    )


@program(graphs=2, breaks=["unsupported-call"])
def test_gradient_kept_by_a_result() -> Any:
    w = leaf(3)

    def step(x: torch.Tensor) -> Any:
        y = w * x
        y.retain_grad()
        y.exp().sum().backward()
        assert y.grad is not None
        return y.grad * 2

    return step, [(tensor(3),) for _ in range(3)], of_leaves(w)


@program(graphs=2, later=1, breaks=["unsupported-call"])
def test_checkpoint() -> Any:
    """What it has run again costs memory in one graph."""

    def made(model: Any, optimizer: Any, loss_of: Any) -> Step:
        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            optimizer.zero_grad()
            checkpoint(model, x, use_reentrant=False).sum().backward()
            optimizer.step()

        return step

    return trained(network(), made)


SEEN: list[str] = []


class Noted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        SEEN.append("backward")
        return gradient * 2


@pytest.mark.parametrize("how", ["backward", "grad"])
def test_effects_of_a_custom_backward(how: str) -> None:
    """They happen once a call."""

    def factory() -> Any:
        SEEN.clear()
        w = leaf(3)

        def step(x: torch.Tensor) -> Any:
            y = Noted.apply(w * x).sum()  # type: ignore[no-untyped-call]
            return torch.autograd.grad(y, w) if how == "grad" else y.backward()

        return step, [(tensor(3),) for _ in range(3)], lambda: (w, w.grad, SEEN)

    program(graphs=1, breaks=["unsupported-effect"])(factory)()
