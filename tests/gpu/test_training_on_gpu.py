"""Training steps of small models on a GPU beside eager: mixed precision, checkpoints, experts, recurrence. Where there is no
CUDA, on the simulated device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import smelt
from smelt.report import inspect
from tests.harness import simulated

ELSEWHERE = not torch.cuda.is_available() or simulated.inside()
pytestmark = [pytest.mark.simulated_cuda] if ELSEWHERE else []

Optimizer = Callable[[Any], torch.optim.Optimizer]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Not Adam where a gradient is zero but for rounding (a bias before a norm): that would make steps of the noise."""
    return torch.optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.SiLU())
        self.deep, self.wide = nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.Conv2d(8, 16, 1)
        self.norm, self.up, self.head = (
            nn.GroupNorm(4, 16),
            nn.ConvTranspose2d(16, 8, 2, 2),
            nn.Linear(8, 5),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.up(F.gelu(self.norm(self.wide(x + self.deep(x)))))
        return self.head(F.interpolate(y, scale_factor=0.5, mode="bilinear").mean((2, 3)))


class Tokens(nn.Module):
    def __init__(self, checkpoints: bool = False) -> None:
        super().__init__()
        self.checkpoints, self.embedding, self.head = (
            checkpoints,
            nn.Embedding(50, 32),
            nn.Linear(32, 50),
        )
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=first)
            for first in (False, True)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x)
        return self.head(x).flatten(0, 1)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.weight = nn.Linear(16, 4), nn.Parameter(torch.randn(4, 16, 16) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share, chosen = self.gate(x).softmax(-1).topk(2, -1)
        y = torch.einsum("bi,eio->beo", x, self.weight)
        return (y.gather(1, chosen[..., None].expand(-1, -1, 16)) * share[..., None]).sum(1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.GRU(8, 12, 2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x)[0][:, -1])


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    loss: Callable[..., torch.Tensor] = F.cross_entropy
    optimizer: Optimizer = sgd
    mixed: bool = False
    scaled: bool = False
    eager_with_cudnn: str = ""  # the reason why the model runs eagerly where cuDNN computes its layers


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 3, 16, 16), torch.randint(5, (4,))


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(50, (3, 7)), torch.randint(50, (21,))


CASES = {
    "images": Case(Images, images),
    "images, scaled": Case(Images, images, mixed=True, scaled=True),
    "tokens": Case(Tokens, tokens, lambda y, t: F.cross_entropy(y, t, ignore_index=3, label_smoothing=0.1)),
    "tokens, checkpoints": Case(lambda: Tokens(True), tokens),
    "tokens, mixed": Case(Tokens, tokens, lambda y, t: F.nll_loss(y.log_softmax(-1), t), mixed=True),
    "experts": Case(
        Experts, lambda: (torch.randn(9, 16), torch.randn(9, 16)), F.smooth_l1_loss, torch.optim.RMSprop
    ),
    "recurrent": Case(
        Recurrent,
        lambda: (torch.randn(4, 6, 8), torch.randint(3, (4,))),
        optimizer=torch.optim.Adagrad,
        eager_with_cudnn="unsupported-effect",
    ),
}


def trained(case: Case, compile: Callable[[Any], Any]) -> tuple[list[torch.Tensor], Any]:
    """Losses and norms of three steps, what the model holds afterwards, and the model as it was run."""
    torch.manual_seed(0)
    model = case.model().cuda()
    run, optimizer = compile(model), case.optimizer(model.parameters())
    step, scaler = compile(optimizer.step), torch.amp.GradScaler("cuda", 1024.0, enabled=case.scaled)
    seen = []
    for number in range(3):
        torch.manual_seed(number)
        x, wanted = (t.cuda() for t in case.inputs())
        with torch.autocast("cuda", torch.bfloat16, enabled=case.mixed):
            loss = case.loss(run(x), wanted)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if case.scaled:
            scaler.step(optimizer)
            scaler.update()
        else:
            step()
        optimizer.zero_grad()
        seen += [loss.detach().float(), norm.detach()]
    return seen + [t.detach() for t in model.state_dict().values()], run


@pytest.mark.parametrize("name", CASES)
def test_steps(name: str) -> None:
    case = CASES[name]
    want, _ = trained(case, lambda f: f)
    got, run = trained(case, smelt.compile)
    close = {"rtol": 3e-2, "atol": 3e-2} if case.mixed else {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(got, want, **close)
    found = {reason.kind.id for reason in inspect.reasons(run)}
    if case.eager_with_cudnn and torch.version.cuda is not None and torch.backends.cudnn.is_available():
        assert found == {case.eager_with_cudnn}
    else:
        assert not found and inspect.graph_count(run) == 1
