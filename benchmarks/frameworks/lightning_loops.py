"""Programs of Lightning: its Trainer and Fabric."""

from __future__ import annotations

import itertools
import logging
import os
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.frameworks.programs import Net, Run, batched, fitting, losses, program, rows, sgd


def lightning_fit(run: Run, form: str) -> Any:
    import lightning as L

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    os.environ["POSSIBLE_USER_WARNINGS"] = "0"

    class Lit(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()
            self.seen: list[float] = []
            if form == "inner":
                self.net = run.compile(self.net)
            elif form == "inner in place":
                run.compile_in_place(self.net)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.net(x)
            return out

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            loss = F.cross_entropy(self.net(x) if form == "steps" else self(x), y)
            if self.trainer.training:
                self.log("loss", loss)
            self.seen.append(loss.item())
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            x, y = batch
            out = self.net(x) if form == "steps" else self(x)
            self.log("accuracy", (out.argmax(1) == y).float().mean())

        def configure_optimizers(self) -> Any:
            optimizer = sgd(self)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    L.seed_everything(0, verbose=False)
    lit = Lit()
    given = run.compile(lit) if form in ("module", "steps") else lit
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows(64)), batch_size=16)
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, gradient_clip_val=1.0,
    )  # fmt: skip
    trainer.fit(given, data, data)
    trainer.save_checkpoint("saved.ckpt")
    found = torch.load("saved.ckpt", weights_only=False)
    os.remove("saved.ckpt")  # its file names the loops' times
    x, y = rows(16)
    step = fitting(given, [(x, y)], sgd(lit))
    if form == "steps":
        step = fitting(lambda x: x, [(x, y)], sgd(lit), lambda x, y: given.training_step((x, y), 0))
    facts = {
        "losses": list(lit.seen),
        "state": found["state_dict"],
        "optimizer": found["optimizer_states"],
        "accuracy": float(trainer.callback_metrics["accuracy"]),
        "class": type(trainer.lightning_module).__name__,
    }
    return facts, step


@program("lightning: the inner module compiled")
def _(run: Run) -> Any:
    return lightning_fit(run, "inner")


@program("lightning: the inner module compiled in place")
def _(run: Run) -> Any:
    return lightning_fit(run, "inner in place")


@program("lightning: the LightningModule compiled")
def _(run: Run) -> Any:
    return lightning_fit(run, "module")


@program("lightning: the LightningModule compiled, whose steps call a module within")
def _(run: Run) -> Any:
    return lightning_fit(run, "steps")


@program("lightning: two optimizers by hand")
def _(run: Run) -> Any:
    import lightning as L

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Adversaries(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.maker, self.judge = Net(8, 16), Net(16, 1)
            self.seen: list[torch.Tensor] = []

        def training_step(self, batch: Any, index: int) -> None:
            x, _ = batch
            for_maker, for_judge = self.optimizers()
            made = self.maker(torch.randn(len(x), 8))
            self.improve(for_maker, F.softplus(-self.judge(made)).mean())
            real, false = self.judge(x), self.judge(made.detach())
            self.improve(for_judge, F.softplus(-real).mean() + F.softplus(false).mean())

        def improve(self, optimizer: Any, loss: torch.Tensor) -> None:
            if self.trainer.training:
                self.log("loss", loss, prog_bar=True)
            self.seen.append(loss.detach())
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

        def configure_optimizers(self) -> Any:
            return sgd(self.maker), sgd(self.judge)

    L.seed_everything(0, verbose=False)
    lit = Adversaries()
    given = run.compile(lit)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows(64)), batch_size=16)
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(given, data)
    facts = {"losses": list(lit.seen), "state": dict(lit.state_dict())}
    batch = rows(16)
    return facts, lambda: given.training_step(batch, 0)


@program("lightning: Fabric")
def _(run: Run) -> Any:
    import lightning as L

    L.seed_everything(0, verbose=False)
    fabric = L.Fabric(accelerator="cpu", devices=1)
    raw = Net()
    model, optimizer = fabric.setup(run.compile(raw), sgd(raw))
    batches = batched(*rows())
    turns = itertools.cycle(batches)

    def step() -> float:
        x, y = next(turns)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        return loss.item()

    facts = {"losses": losses(step), "class": type(model.module).__name__}
    fabric.save("saved.pt", {"model": model, "optimizer": optimizer})
    return facts, step
