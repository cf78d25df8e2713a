"""A condition on a tensor one of whose branches only raises: the graph checks it, and nothing breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributions as D

import smelt
from smelt.report.inspect import graph_count, reasons
from tests.harness.agreement import compare, observe
from tests.harness.catalogue import DEVICE, ON_GPU

X = torch.tensor([0.2, 0.5, 0.3, 0.9], device=DEVICE)
DISTRIBUTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "normal": lambda x: D.Normal(x, x).log_prob(x + 1),
    "sample": lambda x: D.Normal(x, x).rsample() * 2,
    "categorical": lambda x: D.Categorical(probs=x).log_prob(torch.tensor(1)),
    "bernoulli": lambda x: D.Bernoulli(x).log_prob((x > 0.5).float()),
    "gamma": lambda x: D.Gamma(x, x).log_prob(x),
    "kl": lambda x: D.kl_divergence(D.Normal(x, x), D.Laplace(x, x)),
    "transformed": lambda x: D.TransformedDistribution(D.Normal(x, x), [D.ExpTransform()]).log_prob(x),
    "independent": lambda x: D.Independent(D.Uniform(x - 1, x + 1), 1).log_prob(x),
    "dirichlet": lambda x: D.Dirichlet(x).log_prob(x / x.sum()),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_are_validated_in_the_graph(name: str) -> None:
    program = DISTRIBUTIONS[name]
    compiled = smelt.compile(program)
    for x in (X, -X, X + 0.05, -X, X.clone().requires_grad_()):  # -X is out of the support
        compare(observe(compiled, (x,), 0), observe(program, (x,), 0))
    assert not reasons(compiled), reasons(compiled)


def agrees(program: Callable[..., Any], *calls: tuple[Any, ...], backend: str = "smelt") -> Any:
    compiled = smelt.compile(program, backend=backend)
    for call in calls:
        copies = [
            tuple(a.clone() if isinstance(a, torch.Tensor) else list(a) for a in call) for _ in range(2)
        ]
        compare(observe(compiled, copies[0], 0), observe(program, copies[1], 0))
    return compiled


@pytest.mark.parametrize("backend", ["smelt", "aot_eager", "eager"])
def test_what_came_before_stays_and_what_comes_after_does_not_happen(backend: str) -> None:
    def program(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
        seen.append(1)
        y = x * 2
        if (x < 0).any():
            raise ValueError(f"negative: {x.min()}")
        seen.append(2)
        return y

    compiled = agrees(program, (X, []), (-X, []), (X, []), backend=backend)
    assert graph_count(compiled) == 1 and not reasons(compiled)


def test_inputs_that_are_written() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        if not (x > 0).all():
            raise ValueError("after the first write")
        x.mul_(2)
        torch.rand(1)
        if (x > 4).any():
            raise ValueError("after the second")
        return x.sub_(1)

    compiled = agrees(program, (X,), (X - 5,), (X + 2,), (X,))
    assert graph_count(compiled) == 1 and not reasons(compiled)


def test_a_handler_that_the_program_has_makes_both_branches_common() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            if (x.tan() < 0).any():
                raise ValueError
        except ValueError:
            return x - 1
        return x + 1

    assert not reasons(agrees(program, (X,), (-X,), (X,)))


def test_a_handler_that_raises_in_its_turn_is_none() -> None:
    def check(x: torch.Tensor) -> torch.Tensor:
        if not (x > 0).all():
            for name in ("x",):
                message = f"{name} is bad" if name else "bad"
            raise ValueError(message)
        return x * 2

    def program(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
        try:
            with torch.no_grad():
                y = check(x)
        except ValueError as error:
            seen.append(1)
            if seen:
                raise RuntimeError(f"at {len(seen)}") from error
            raise
        finally:
            seen.append(2)
        return y + 1

    compiled = agrees(program, (X, []), (-X, []), (X, []))
    assert graph_count(compiled) == 1 and not reasons(compiled)


def test_handlers_after_which_the_program_goes_on() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        try:
            if (x.tan() < 0).any():
                raise ValueError
        except ValueError as error:
            raise KeyError from error
        return x + 1

    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            return inner(x)
        except KeyError:
            return x - 1

    assert reasons(agrees(program, (X,), (-X,), (X,)))


def test_what_autograd_follows_by_operators_is_not_assumed() -> None:
    def program(x: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        made = (x * 2).detach().requires_grad_()
        leaf.add_(1)
        if (x < 0).any():
            raise ValueError("negative")
        return made

    compiled = smelt.compile(program)
    for x in (X, -X, X):
        pairs = [(x.clone(), torch.zeros(1)) for _ in range(2)]
        compare(observe(compiled, pairs[0], 0), observe(program, pairs[1], 0))


@pytest.mark.skipif(ON_GPU, reason="an assertion that fails there ends the process's use of the GPU")
@pytest.mark.parametrize("backend", ["smelt", "aot_eager", "eager"])
def test_an_assertion_of_the_programs_own_is_in_both_graphs(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "not positive")
        return x * 2

    agrees(program, (X,), (-X,), (X,), backend=backend)


def test_a_branch_that_raises_into_its_own_handler_does_not_only_raise() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if not (x.tan() > 0).any():
            x += x[1]  # raises: they share memory
        else:
            try:
                raise ValueError("handled")
            except ValueError:
                x = x * 2
        return x + 1

    compiled = agrees(program, (X,), (-X,), (X,))
    assert "internal" not in str(reasons(compiled))
