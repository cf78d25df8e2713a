"""Optimizer steps are one graph: the first creates the state, all later ones share another, for any learning rate.

Each program runs eagerly and compiled over a few steps; parameters, gradients and state must be the same after each of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt import events
from smelt.report import inspect

STEPS = 5
Make = Callable[[Any], torch.optim.Optimizer]


class Lion(torch.optim.Optimizer):
    """A user-defined optimizer."""

    def __init__(
        self, params: Any, lr: float = 0.01, betas: tuple[float, float] = (0.9, 0.99), decay: float = 0.1
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(p)
                    state["steps"] = 0
                state["steps"] += 1
                p.mul_(1 - group["lr"] * group["decay"])
                p.add_(state["momentum"].mul(first).add_(p.grad, alpha=1 - first).sign_(), alpha=-group["lr"])
                state["momentum"].mul_(second).add_(p.grad, alpha=1 - second)


class Sums(torch.optim.Optimizer):
    """An optimizer with its own state dictionary and other lookups."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, {"lr": lr})
        self.sums: dict[Any, Any] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            if p not in self.sums:
                self.sums[p] = torch.ones_like(p)
            self.sums.setdefault(p, None).add_(p.grad.square())
            p.sub_(p.grad / self.sums.get(p).sqrt(), alpha=self.param_groups[0]["lr"])


optim = torch.optim
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: optim.SGD(p, 0.1),
    "SGD momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9),
    "SGD nesterov decay": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "SGD foreach": lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1, foreach=True),
    "SGD for loop": lambda p: optim.SGD(p, 0.1, momentum=0.9, foreach=False),
    "Adam": lambda p: optim.Adam(p, 0.01),
    "Adam foreach": lambda p: optim.Adam(p, 0.01, weight_decay=0.1, foreach=True),
    "Adam for loop": lambda p: optim.Adam(p, 0.01, weight_decay=0.1, foreach=False),
    "Adam amsgrad": lambda p: optim.Adam(p, 0.01, amsgrad=True),
    "Adam amsgrad foreach": lambda p: optim.Adam(p, 0.01, amsgrad=True, foreach=True),
    "Adam maximize": lambda p: optim.Adam(p, 0.01, maximize=True),
    "AdamW": lambda p: optim.AdamW(p, 0.01),
    "AdamW foreach": lambda p: optim.AdamW(p, 0.01, foreach=True),
    "AdamW for loop": lambda p: optim.AdamW(p, 0.01, foreach=False),
    "SGD fused": lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "SGD fused nesterov": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True, fused=True),
    "Adam fused": lambda p: optim.Adam(p, 0.01, amsgrad=True, weight_decay=0.1, fused=True),
    "AdamW fused": lambda p: optim.AdamW(p, 0.01, fused=True, maximize=True),
    "Adagrad fused": lambda p: optim.Adagrad(p, 0.01, lr_decay=0.1, fused=True),
    "RMSprop": lambda p: optim.RMSprop(p, 0.01),
    "Adagrad": lambda p: optim.Adagrad(p, 0.01),
    "Adamax": lambda p: optim.Adamax(p, 0.01),
    "Adadelta": lambda p: optim.Adadelta(p, 0.5),
    "Rprop": lambda p: optim.Rprop(p, 0.01),
    "NAdam": lambda p: optim.NAdam(p, 0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "NAdam foreach": lambda p: optim.NAdam(p, 0.01, foreach=True),
    "RAdam": lambda p: optim.RAdam(p, 0.01),
    "ASGD": lambda p: optim.ASGD(p, 0.1, weight_decay=0.1),
    "ASGD foreach": lambda p: optim.ASGD(p, 0.1, foreach=True),
    "ASGD that averages": lambda p: optim.ASGD(p, 0.1, t0=1),
    "Lion": Lion,
    "Sums": Sums,
}  # fmt: skip
COUNTS_IN_PYTHON = {"Lion"}  # a number that is generalised when it has changed twice
# Steps that branch: rectification and averaging begin.
BRANCHES = {"RAdam": 1, "ASGD that averages": 2}
RATES = {
    "constant": None,
    "LambdaLR": lambda o: optim.lr_scheduler.LambdaLR(o, lambda k: 0.9**k),
}  # fmt: skip


class World:
    """A network, its optimizer and a schedule; what is there after each step is kept in `seen`."""

    def __init__(self, make: Make, schedule: Any = None) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.optimizer = make(self.net.parameters())
        self.schedule = None if schedule is None else schedule(self.optimizer)
        self.seen: list[Any] = []

    def gradients(self) -> None:
        self.optimizer.zero_grad()
        self.net(torch.randn(5, 4)).square().mean().backward()

    def look(self) -> None:
        state = self.optimizer.state
        own = [dict(state[p]) for p in self.net.parameters() if p in state]
        grads = [p.grad for p in self.net.parameters()]
        self.seen.append(copy.deepcopy((list(self.net.parameters()), grads, own)))
        if self.schedule is not None:
            self.schedule.step()


def assert_same(got: World, want: World, exact: bool) -> None:
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-6, "atol": 1e-6}
    assert len(got.seen) == len(want.seen) == STEPS
    for now, then in zip(got.seen, want.seen):
        torch.testing.assert_close(now, then, **tolerance)
        assert [list(state) for state in now[2]] == [list(state) for state in then[2]]


def stepped(make: Make, schedule: Any, compile: Callable[[Any], Any]) -> tuple[World, Any]:
    world = World(make, schedule)
    step = compile(world.optimizer.step)
    for _ in range(STEPS):
        world.gradients()
        step()
        world.look()
    return world, step


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("backend", ["eager", "smelt"])
def test_steps(name: str, rate: str, backend: str) -> None:
    """One graph for the step that creates the state, one for all others; nothing runs eagerly."""
    want, _ = stepped(OPTIMIZERS[name], RATES[rate], lambda f: f)
    got, step = stepped(OPTIMIZERS[name], RATES[rate], lambda f: smelt.compile(f, backend=backend))
    assert_same(got, want, exact=backend == "eager")
    assert inspect.reasons(step) == ()
    assert len(inspect.entries(step)) <= 2 + (name in COUNTS_IN_PYTHON) + BRANCHES.get(name, 0)


@pytest.mark.parametrize(
    "name", ["SGD momentum", "Adam", "Adam for loop", "AdamW foreach", "Adam fused", "NAdam"]
)
def test_changing_momenta(name: str) -> None:
    """`OneCycleLR` replaces the tuple of betas at each step: its numbers become symbolic."""

    def cycle(optimizer: Any) -> Any:
        return optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)

    want, _ = stepped(OPTIMIZERS[name], cycle, lambda f: f)
    got, step = stepped(OPTIMIZERS[name], cycle, lambda f: smelt.compile(f, backend="eager"))
    assert_same(got, want, exact=True)
    assert inspect.reasons(step) == () and len(inspect.entries(step)) == 2


RATES_IN_TENSORS: dict[str, Make] = {
    "SGD": lambda p: optim.SGD(p, torch.tensor(0.1), momentum=0.9),
    "SGD foreach": lambda p: optim.SGD(p, torch.tensor(0.1), momentum=0.9, foreach=True),
    "Adam": lambda p: optim.Adam(p, torch.tensor(0.01)),
    "AdamW": lambda p: optim.AdamW(p, torch.tensor(0.01), weight_decay=0.1),
    "RMSprop": lambda p: optim.RMSprop(p, torch.tensor(0.01)),
    "NAdam": lambda p: optim.NAdam(p, torch.tensor(0.01)),
    "Adadelta": lambda p: optim.Adadelta(p, torch.tensor(0.5)),
}


@pytest.mark.parametrize("name", RATES_IN_TENSORS)
@pytest.mark.parametrize("backend", ["eager", "smelt"])
def test_a_learning_rate_in_a_tensor(name: str, backend: str) -> None:
    """The learning rate is passed as a number (`alpha=-lr`), after arithmetic; the schedule writes into it."""
    make, schedule = RATES_IN_TENSORS[name], RATES["LambdaLR"]
    want, _ = stepped(make, schedule, lambda f: f)
    got, step = stepped(make, schedule, lambda f: smelt.compile(f, backend=backend))
    assert_same(got, want, exact=backend == "eager")
    assert inspect.reasons(step) == () and len(inspect.entries(step)) == 2


@pytest.mark.parametrize("name", ["SGD momentum", "Adam foreach", "Adam fused"])
def test_a_step_with_a_closure(name: str) -> None:
    """The closure's backward breaks within two grad modes; afterwards the caller's is restored."""

    def run(compile: Callable[[Any], Any]) -> tuple[list[Any], Any]:
        world = World(OPTIMIZERS[name])
        step = compile(world.optimizer.step)

        def closure() -> torch.Tensor:
            world.optimizer.zero_grad()
            loss = world.net(torch.randn(5, 4)).square().mean()
            loss.backward()
            return loss

        for _ in range(STEPS):
            loss = step(closure)
            assert torch.is_grad_enabled()
            world.look()
            world.seen.append(loss.detach())
        return world.seen, step

    (want, _), (got, step) = run(lambda f: f), run(lambda f: smelt.compile(f, backend="eager"))
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert inspect.reasons(step) == ()
    assert len(inspect.entries(step)) == 2


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("to_none", [True, False])
def test_clipping_and_zeroing_with_the_step(foreach: bool, to_none: bool) -> None:
    def run(compile: Callable[[Any], Any]) -> tuple[list[Any], Any]:
        world = World(OPTIMIZERS["Adam"])
        parameters = list(world.net.parameters())

        def update() -> torch.Tensor:
            norm = nn.utils.clip_grad_norm_(parameters, 0.1, foreach=foreach)
            nn.utils.clip_grad_value_(parameters, 0.01, foreach=foreach)
            world.optimizer.step()
            world.optimizer.zero_grad(set_to_none=to_none)
            return norm

        update = compile(update)
        for _ in range(STEPS):
            world.net(torch.randn(5, 4)).square().mean().backward()
            world.seen.append(update())
            world.look()
        return world.seen, update

    (want, _), (got, step) = run(lambda f: f), run(lambda f: smelt.compile(f, backend="eager"))
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert inspect.reasons(step) == () and len(inspect.entries(step)) == 2


def test_parameter_groups_with_different_rates() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        rates = zip(parameters, (0.1, 0.2, 0.3, 0.4))
        return optim.SGD([{"params": [p], "lr": rate} for p, rate in rates], momentum=0.9)

    want, _ = stepped(make, RATES["LambdaLR"], lambda f: f)
    got, step = stepped(make, RATES["LambdaLR"], lambda f: smelt.compile(f, backend="eager"))
    assert_same(got, want, exact=True)
    assert inspect.reasons(step) == () and len(inspect.entries(step)) == 2


def test_after_torch_compile_was_used() -> None:
    """It disables parts of torch's optimizers for itself."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert optim.SGD._init_group._torchdynamo_disable
    _, step = stepped(OPTIMIZERS["SGD momentum"], None, lambda f: smelt.compile(f, backend="eager"))
    assert inspect.reasons(step) == ()


@pytest.mark.parametrize("name", ["SGD momentum", "Adam", "Adam foreach", "AdamW foreach", "Lion"])
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("backend", ["eager", "smelt"])
def test_training_steps(name: str, rate: str, backend: str) -> None:
    """One graph with the backward; from the third step on nothing is compiled."""

    def run(compile: Callable[[Any], Any]) -> tuple[World, Any, list[Any]]:
        world = World(OPTIMIZERS[name], RATES[rate])
        loss_of = nn.MSELoss()
        losses = []

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            world.optimizer.zero_grad()
            loss = loss_of(world.net(x), y)
            loss.backward()
            world.optimizer.step()
            return loss

        compiled = compile(step)
        for number in range(STEPS):
            if number == 2 + (name in COUNTS_IN_PYTHON):
                compiles.clear()
            losses.append(compiled(torch.randn(5, 4), torch.randn(5, 3)).detach())
            world.look()
        return world, compiled, losses

    compiles: list[Any] = []
    want, _, losses = run(lambda f: f)
    with events.subscribed(lambda e: compiles.append(e) if e.kind == "capture-start" else None):
        got, compiled, found = run(lambda f: smelt.compile(f, backend=backend))
    assert_same(got, want, exact=backend == "eager")
    torch.testing.assert_close(found, losses, rtol=1e-6, atol=1e-6)
    assert compiles == []
    assert inspect.reasons(compiled) == ()


def test_gradient_that_is_sometimes_none() -> None:
    """The set of parameters with a gradient is guarded."""

    def run(compile: Callable[[Any], Any]) -> list[Any]:
        world = World(lambda p: optim.SGD(p, 0.1, momentum=0.9))
        step = compile(world.optimizer.step)
        for missing in (None, 0, 0, 2, None):
            world.gradients()
            if missing is not None:
                list(world.net.parameters())[missing].grad = None
            step()
            world.look()
        return world.seen

    torch.testing.assert_close(
        run(lambda f: smelt.compile(f, backend="eager")), run(lambda f: f), rtol=0, atol=0
    )


def test_state_that_is_changed_between_steps() -> None:
    """A loaded state, a changed count and a new parameter are observed."""

    def run(compile: Callable[[Any], Any]) -> list[Any]:
        world = World(lambda p: optim.Adam(p, 0.01))
        step = compile(world.optimizer.step)
        first = list(world.net.parameters())[0]

        def after() -> None:
            world.gradients()
            step()
            world.look()

        after()
        after()
        saved = copy.deepcopy(world.optimizer.state_dict())
        after()
        world.optimizer.load_state_dict(saved)
        after()
        world.optimizer.state[first]["step"].fill_(100.0)
        after()
        world.optimizer.state[first]["step"].fill_(2.5)
        after()
        world.optimizer.state.pop(first)
        after()
        world.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": 0.5})
        after()
        return world.seen

    torch.testing.assert_close(
        run(lambda f: smelt.compile(f, backend="eager")), run(lambda f: f), rtol=0, atol=0
    )


def test_hooks_of_an_optimizer_run() -> None:
    def run(compile: Callable[[Any], Any]) -> list[Any]:
        world, calls = World(lambda p: optim.SGD(p, 0.1)), []
        world.optimizer.register_step_post_hook(lambda o, args, kwargs: calls.append(len(calls)))
        step = compile(world.optimizer.step)
        for _ in range(3):
            world.gradients()
            step()
            world.look()
        return [world.seen, calls]

    torch.testing.assert_close(
        run(lambda f: smelt.compile(f, backend="eager")), run(lambda f: f), rtol=0, atol=0
    )


def test_without_symbolic_numbers() -> None:
    """`dynamic=False`: the count of steps is data, and reading it breaks the graph."""
    want, _ = stepped(OPTIMIZERS["Adam"], None, lambda f: f)
    got, _ = stepped(OPTIMIZERS["Adam"], None, lambda f: smelt.compile(f, backend="eager", dynamic=False))
    assert_same(got, want, exact=True)


def test_backend_without_symbolic_numbers() -> None:
    want, _ = stepped(OPTIMIZERS["Adam"], None, lambda f: f)
    got, _ = stepped(
        OPTIMIZERS["Adam"], None, lambda f: smelt.compile(f, backend=lambda graph, examples: graph)
    )
    assert_same(got, want, exact=True)


def test_tensors_as_keys_of_environment_dictionaries() -> None:
    """Deletion, replacement and lookup, and another tensor as the key."""
    a, b = torch.ones(2), torch.zeros(2)

    def run(compile: Callable[[Any], Any]) -> list[Any]:
        table: dict[Any, Any] = {a: 1, "n": 0}

        def f(x: torch.Tensor, y: torch.Tensor) -> Any:
            table["n"] += 1
            known = x in table, y in table, table.get(y)
            table[y] = x + 1
            if table["n"] > 1:
                del table[x]
            return known, table[y]

        compiled, seen = compile(f), []
        for x, y in ((a, b), (b, a), (a, b)):
            seen.append(compiled(x, y))
            seen.append([[id(a), id(b)].index(id(k)) if type(k) is not str else 2 for k in table])
            seen.append(list(table.values()))
        return seen

    torch.testing.assert_close(run(lambda f: smelt.compile(f, backend="eager")), run(lambda f: f))


FOREACH: dict[str, Callable[[list[Any], list[Any]], Any]] = {
    "add": lambda a, b: torch._foreach_add(a, b, alpha=0.5),
    "add scalar": lambda a, b: torch._foreach_add(a, 2),
    "add tensor": lambda a, b: torch._foreach_add(a, b[0].sum(), alpha=2),
    "add scalars": lambda a, b: torch._foreach_add(a, [1.0, 2.0, 3.0]),
    "sub in place": lambda a, b: torch._foreach_sub_(a, b, alpha=3),
    "mul": lambda a, b: torch._foreach_mul(a, other=b),
    "div in place": lambda a, b: torch._foreach_div_(a, [2.0, 3.0, 4.0]),
    "pow": lambda a, b: torch._foreach_pow(a, 2),
    "pow of a number": lambda a, b: torch._foreach_pow(2.0, a),
    "maximum": lambda a, b: torch._foreach_maximum(a, b),
    "maximum scalar": lambda a, b: torch._foreach_maximum(a, 0.1),
    "minimum in place": lambda a, b: torch._foreach_minimum_(a, b),
    "clamp": lambda a, b: torch._foreach_clamp_min(a, 0.2),
    "lerp": lambda a, b: torch._foreach_lerp(a, b, 0.3),
    "lerp in place": lambda a, b: torch._foreach_lerp_(a, b, weight=0.9),
    "addcmul": lambda a, b: torch._foreach_addcmul(a, a, b, value=0.5),
    "addcdiv in place": lambda a, b: torch._foreach_addcdiv_(a, b, b, [0.5, 1.5, 2.5]),
    "addcdiv by a tensor": lambda a, b: torch._foreach_addcdiv(a, b, b, torch.tensor([0.5, 1.5, 2.5])),
    "sqrt": lambda a, b: torch._foreach_sqrt(b),
    "neg in place": lambda a, b: torch._foreach_neg_(a),
    "zero": lambda a, b: torch._foreach_zero_(a),
    "copy": lambda a, b: torch._foreach_copy_(a, b),
    "norm": lambda a, b: torch._foreach_norm(a),
    "wrong length": lambda a, b: torch._foreach_add(a, b[:2]),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREACH)
def test_operators_on_lists(name: str) -> None:
    """The results and writes are eager's; the aten graph has operators on tensors."""

    def f(a: list[Any], b: list[Any]) -> Any:
        made = FOREACH[name](a, b)
        return made, a[0] + b[1].sum()

    def run(compile: Callable[[Any], Any]) -> Any:
        torch.manual_seed(0)
        a, b = ([torch.rand(n, n) for n in (1, 2, 3)] for _ in range(2))
        try:
            return compile(f)(a, b), a, b
        except RuntimeError as error:
            return str(error)

    compiled = smelt.compile(f, backend="aot_eager")
    want, got = run(lambda f: f), run(lambda f: compiled)
    if isinstance(want, str):
        assert want == got
    else:
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
