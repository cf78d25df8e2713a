"""The table of programs, the two runs of a program, and what programs share."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Run:
    """One of the two runs of a program."""

    is_compiled: bool

    def compile(self, target: Any, **settings: Any) -> Any:
        """`target` compiled by smelt, or `target` in the eager run."""
        if not self.is_compiled:
            return target
        import smelt

        return smelt.compile(target, **settings)

    def compile_in_place(self, module: nn.Module) -> None:
        """Compile `module` without another object, in the compiled run."""
        if self.is_compiled:
            import smelt

            smelt.compile_(module)

    @contextlib.contextmanager
    def as_smelt_run(self) -> Iterator[None]:
        """`torch.compile` is smelt's, as under `smelt run`; in the eager run it returns its argument."""
        before = torch.compile, torch.compiler.reset
        if self.is_compiled:
            from smelt.cli import torch_compile_redirect

            torch_compile_redirect.redirect()
        else:
            torch.compile = lambda model=None, **_: model if model is not None else lambda m: m  # type: ignore[assignment]
        try:
            yield
        finally:
            torch.compile, torch.compiler.reset = before  # type: ignore[assignment]


Step = Callable[[], Any]
Program = Callable[[Run], tuple[dict[str, Any], Step]]
PROGRAMS: dict[str, Program] = {}
PACKAGES = {
    "smp": "segmentation_models_pytorch",
    "pyg": "torch_geometric",
    "open-clip": "open_clip",
    "pyro": "pyro",
}


def program(name: str) -> Callable[[Program], Program]:
    """Add a program named `PACKAGE: what`."""

    def add(run: Program) -> Program:
        PROGRAMS[name] = run
        return run

    return add


def package_of(name: str) -> str:
    """The package that a program imports."""
    first = name.partition(":")[0]
    return PACKAGES.get(first, first.replace("-", "_"))


def is_installed(name: str) -> bool:
    """Whether the package of a program is there."""
    return importlib.util.find_spec(package_of(name)) is not None


# ------------------------------------------------------------------------------------------------- what programs share


class Net(nn.Module):
    """A classifier of rows of 16 numbers, with dropout and a buffer."""

    def __init__(self, inputs: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, 64)
        self.norm = nn.BatchNorm1d(64)
        self.second = nn.Linear(64, 64)
        self.last = nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(F.gelu(self.norm(self.first(x))), 0.1, self.training)
        out: torch.Tensor = self.last(torch.tanh(self.second(x)))
        return out


def rows(count: int = 64, inputs: int = 16, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and classes that depend on them."""
    x = torch.randn(count, inputs)
    return x, (x[:, :classes].argmax(1))


def fitting(
    model: Any,
    batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[..., torch.Tensor] = F.cross_entropy,
) -> Callable[[], float]:
    """A step of training on the next batch, which returns the loss."""
    turns = itertools.cycle(batches)

    def step() -> float:
        x, y = next(turns)
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def losses(step: Callable[[], float], count: int = 4) -> list[float]:
    return [step() for _ in range(count)]


def batched(x: torch.Tensor, y: torch.Tensor, size: int = 16) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(x.split(size), y.split(size)))
