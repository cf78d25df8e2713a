"""Programs of libraries for probability and differential equations."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.frameworks.programs import Run, fitting, losses, program, sgd


@program("gpytorch: hyperparameters of a Gaussian process")
def _(run: Run) -> Any:
    import gpytorch

    class Process(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

    x = torch.linspace(0, 1, 30)
    y = torch.sin(6 * x) + 0.1 * torch.randn(30)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    raw = Process(x, y, likelihood)
    model = run.compile(raw)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, raw)
    step = fitting(
        model, [(x, y)], torch.optim.Adam(raw.parameters(), lr=0.05), lambda out, y: -objective(out, y)
    )
    facts: dict[str, Any] = {"losses": losses(step)}
    model.eval()
    with torch.no_grad():
        facts["predicted"] = model(torch.linspace(0, 1, 7)).mean
    model.train()
    return facts, step


@program("pyro: stochastic variational inference")
def _(run: Run) -> Any:
    import pyro
    from pyro import distributions
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal

    pyro.set_rng_seed(0)
    net = run.compile(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)))

    def model(x: torch.Tensor, y: torch.Tensor) -> None:
        weight = pyro.sample("weight", distributions.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", distributions.Normal(x @ weight + net(x).squeeze(-1).detach(), 0.5), obs=y)

    x = torch.randn(20, 3)
    y = x.sum(1)
    inference = SVI(model, AutoNormal(model), pyro.optim.SGD({"lr": 1e-3}), Trace_ELBO())
    step = lambda: inference.step(x, y)  # noqa: E731
    return {"losses": losses(step), "store": dict(pyro.get_param_store())}, step


@program("torchdiffeq: a neural differential equation trained")
def _(run: Run) -> Any:
    from torchdiffeq import odeint, odeint_adjoint

    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    slope = run.compile(net)

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = slope

        def forward(self, t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.slope(x) * torch.cos(t)
            return out

    field = Field()
    times = torch.linspace(0, 1, 4)
    start = torch.randn(8, 2)
    step = fitting(
        lambda x: odeint(field, x, times, method="rk4")[-1], [(start, start.sin())], sgd(net), F.mse_loss
    )
    facts: dict[str, Any] = {"losses": losses(step)}
    adjoint = fitting(
        lambda x: odeint_adjoint(field, x, times)[-1], [(start, start.sin())], sgd(net), F.mse_loss
    )
    return {**facts, "adjoint": losses(adjoint, 2)}, step


@program("torchsde: a neural stochastic differential equation")
def _(run: Run) -> Any:
    import torchsde

    class Field(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift = run.compile(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)))
            self.diffusion = run.compile(nn.Sequential(nn.Linear(2, 2), nn.Sigmoid()))

        def f(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.drift(y)
            return out

        def g(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.diffusion(y)
            return out

    field = Field()
    start, times = torch.randn(4, 2), torch.linspace(0, 1, 3)

    def solve(x: torch.Tensor) -> Any:
        noise = torchsde.BrownianInterval(0.0, 1.0, size=(4, 2), entropy=7)
        return torchsde.sdeint(field, x, times, bm=noise, dt=0.1, method="euler")[-1]

    step = fitting(solve, [(start, start)], sgd(field), F.mse_loss)
    return {"losses": losses(step)}, step
