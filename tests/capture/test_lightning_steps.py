"""The steps of a LightningModule, which Lightning's Trainer calls in place of the module: compiled, with eager's results."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt import events

lightning = pytest.importorskip("lightning", reason="lightning is not installed: requirements/libraries.txt")
ROWS = torch.linspace(-1, 1, 128).reshape(16, 8)


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, outputs))


class Regression(lightning.LightningModule):
    """No step calls the module."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(8, 1)

    def loss(self, batch: torch.Tensor, name: str) -> torch.Tensor:
        loss = F.mse_loss(self.net(batch), batch.sum(1, keepdim=True))
        self.log(name, loss)
        return loss

    def training_step(self, batch: torch.Tensor, index: int) -> dict[str, torch.Tensor]:
        return {"loss": self.loss(batch, "training") * min(1.0, (self.global_step + 1) / 4)}

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.loss(batch, "validation")

    def test_step(self, batch: torch.Tensor, index: int) -> None:
        self.log_dict({"test": self.loss(batch, "loss") + 1, "rows": float(len(batch))})

    def predict_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return self.net(batch).tanh()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.02)


class Adversaries(lightning.LightningModule):
    """The step runs two optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.maker, self.judge = mlp(4, 8), mlp(8, 1)

    def training_step(self, batch: torch.Tensor, index: int) -> None:
        for_maker, for_judge = self.optimizers()
        self.toggle_optimizer(for_maker)
        made = self.maker(torch.randn(len(batch), 4))
        self.improve("maker", for_maker, F.softplus(-self.judge(made)).mean())
        self.untoggle_optimizer(for_maker)
        losses = F.softplus(-self.judge(batch)) + F.softplus(self.judge(made.detach()))
        self.improve("judge", for_judge, losses.mean())

    def improve(self, name: str, optimizer: Any, loss: torch.Tensor) -> None:
        self.log(name, loss)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(m.parameters(), lr=0.05) for m in (self.maker, self.judge)]


class Plain(lightning.LightningModule):
    """Lightning's own `predict_step` calls the module."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(8, 2)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.net(batch).softmax(-1)


def trainer() -> Any:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, num_sanity_val_steps=0, gradient_clip_val=None,
    )  # fmt: skip


def loader() -> Any:
    return torch.utils.data.DataLoader(ROWS, batch_size=4)


def regression(compile: Callable[[Any], Any]) -> dict[str, Any]:
    module = Regression()
    given, runner = compile(module), trainer()
    runner.fit(given, loader(), loader())
    found = {k: float(v) for k, v in runner.callback_metrics.items()}
    return {
        "metrics": found,
        "test": runner.test(given, loader(), verbose=False),
        "predicted": runner.predict(given, loader()),
        "state": dict(module.state_dict()),
    }


def adversaries(compile: Callable[[Any], Any]) -> dict[str, Any]:
    module, runner = Adversaries(), trainer()
    runner.fit(compile(module), loader())
    return {
        "metrics": {k: float(v) for k, v in runner.callback_metrics.items()},
        "state": dict(module.state_dict()),
        "frozen": [p.requires_grad for p in module.parameters()],
        "random": torch.rand(2),
    }


def plain(compile: Callable[[Any], Any]) -> dict[str, Any]:
    return {"predicted": trainer().predict(compile(Plain()), loader())}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", [regression, adversaries, plain])
def test_a_compiled_lightning_module_trains_as_eager(program: Callable[..., dict[str, Any]]):
    torch.manual_seed(0)
    want = program(lambda module: module)
    seen: list[events.Event] = []
    torch.manual_seed(0)
    with events.subscribed(seen.append):
        got = program(smelt.compile)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert any(event.kind == "entry-installed" for event in seen)
    assert not [str(event.data["reason"]) for event in seen if event.kind == "eager-fallback"]


def test_the_steps_that_a_class_defines_are_compiled():
    compiled, plain = smelt.compile(Regression()), smelt.compile(Plain())
    assert "1 graph" in str(smelt.explain(compiled.predict_step)(ROWS, 0))
    assert type(compiled).predict_step is not Regression.predict_step
    assert type(plain).predict_step is lightning.LightningModule.predict_step
    assert type(plain).training_step is lightning.LightningModule.training_step
