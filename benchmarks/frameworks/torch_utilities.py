"""Programs of torch's own tools for training: optimizers, schedules, averages, wrappers, parametrizations."""

from __future__ import annotations

import itertools
import os
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.frameworks.programs import Net, Run, batched, fitting, losses, program, rows, sgd


@program("torch: DataLoader, lr scheduler, early stopping, saved and loaded")
def _(run: Run) -> Any:
    raw = Net()
    model = run.compile(raw)
    optimizer = torch.optim.SGD(raw.parameters(), lr=torch.tensor(0.05))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=1000)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows(72)), batch_size=16, shuffle=True)
    found = []
    for _ in range(2):
        for x, y in data:
            found.append(fitting(model, [(x, y)], optimizer)())
            schedule.step()
    torch.save(model, "model.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "state.pt")
    copied = Net()
    copied.load_state_dict(torch.load("state.pt")["model"])
    facts = {
        "losses": found,
        "loaded": copied.eval()(rows(8)[0]),
        "lr": schedule.get_last_lr(),
        "repr": repr(model),
    }
    return facts, fitting(model, batched(*rows()), optimizer)


@program("torch: swa_utils")
def _(run: Run) -> Any:
    from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

    raw = Net()
    model = run.compile(raw)
    mean, average = AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = sgd(raw)
    schedule = SWALR(optimizer, 0.01, anneal_epochs=2)
    batches = batched(*rows())
    plain = fitting(model, batches, optimizer)

    def step() -> float:
        loss = plain()
        mean.update_parameters(model)
        average.update_parameters(model)
        schedule.step()
        return loss

    facts = {"losses": losses(step), "class": type(mean.module).__name__}
    update_bn(batches, mean)
    torch.save(mean.state_dict(), "mean.pt")
    torch.save(average.state_dict(), "average.pt")
    return {**facts, "mean": mean.eval()(batches[0][0])}, step


@program("torch: weight_norm, spectral_norm, orthogonal, prune")
def _(run: Run) -> Any:
    from torch.nn.utils import parametrizations, prune

    raw = Net()
    parametrizations.weight_norm(raw.first)
    parametrizations.spectral_norm(raw.second)
    model = run.compile(raw)
    step = fitting(model, batched(*rows()), sgd(raw, 0.02))
    facts: dict[str, Any] = {"losses": losses(step)}
    prune.l1_unstructured(model.last, "weight", 0.3)
    facts["pruned"] = losses(fitting(model, batched(*rows()), sgd(raw, 0.02)))
    prune.remove(model.last, "weight")
    torch.nn.utils.parametrize.remove_parametrizations(model.first, "weight")
    facts["removed"] = model.eval()(rows(8)[0])
    torch.save(model.state_dict(), "state.pt")
    model.train()
    return facts, fitting(model, batched(*rows()), sgd(raw, 0.02))


@program("torch: utils.checkpoint")
def _(run: Run) -> Any:
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            make = lambda: nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.2))  # noqa: E731
            self.blocks = nn.ModuleList(make() for _ in range(3))
            self.tail = nn.Sequential(*(make() for _ in range(4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = x + checkpoint(block, x, use_reentrant=False)
            out: torch.Tensor = checkpoint_sequential(self.tail, 2, x, use_reentrant=False)
            return out

    raw = Deep()
    step = fitting(run.compile(raw), [(x, x) for x in rows()[0].split(16)], sgd(raw), F.mse_loss)
    return {"losses": losses(step)}, step


@program("torch: autocast and GradScaler")
def _(run: Run) -> Any:
    raw = Net()
    model = run.compile(raw)
    optimizer = sgd(raw)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    turns = itertools.cycle(batched(*rows()))

    def step() -> float:
        x, y = next(turns)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return round(loss.item(), 1)

    found = losses(step)
    return {"losses": found, "scale": scaler.get_scale(), "dtype": str(model(rows(4)[0]).dtype)}, step


@program("torch: compiled steps of optimizers")
def _(run: Run) -> Any:
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (torch.optim.AdamW, {"lr": 1e-3, "eps": 1e-4}),
        (torch.optim.RMSprop, {"lr": 1e-3, "eps": 1e-3}),
        (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True}),
        (torch.optim.Adagrad, {"lr": 0.01, "eps": 1e-3}),
    ]
    facts: dict[str, Any] = {}
    for kind, settings in kinds:
        torch.manual_seed(0)
        raw = Net()
        optimizer = kind(raw.parameters(), **settings)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
        apply = run.compile(optimizer.step)
        x, y = rows(16)

        def step(
            raw: Any = raw, optimizer: Any = optimizer, schedule: Any = schedule, apply: Any = apply
        ) -> float:
            optimizer.zero_grad()
            loss = F.cross_entropy(raw(x), y)
            loss.backward()
            apply()
            schedule.step()
            return loss.item()

        facts[kind.__name__] = losses(step, 6)
        torch.save(optimizer.state_dict(), f"{kind.__name__}.pt")
    return facts, step


@program("torch: a whole training step compiled")
def _(run: Run) -> Any:
    raw = Net()
    optimizer = torch.optim.AdamW(raw.parameters(), lr=1e-3, eps=1e-3)

    @run.compile
    def one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(raw(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    turns = itertools.cycle(batched(*rows()))
    step = lambda: one(*next(turns)).item()  # noqa: E731
    facts = {"losses": losses(step, 6)}
    torch.save(raw.state_dict(), "state.pt")
    return facts, step


@program("torch: DistributedDataParallel")
def _(run: Run) -> Any:
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    store = distributed.FileStore(os.path.abspath("store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    os.remove("store")
    raw = Net()
    model = DistributedDataParallel(run.compile(raw))
    step = fitting(model, batched(*rows()), sgd(raw))
    facts = {"losses": losses(step), "class": type(model.module).__name__}
    with model.no_sync():
        F.cross_entropy(model(rows(8)[0]), rows(8)[1]).backward()
    facts["gradients"] = [p.grad for p in raw.parameters()]
    torch.save(model.state_dict(), "state.pt")
    return facts, step


@program("torch: a compiled DistributedDataParallel")
def _(run: Run) -> Any:
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    store = distributed.FileStore(os.path.abspath("store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    os.remove("store")
    model = run.compile(DistributedDataParallel(Net()))
    step = fitting(model, batched(*rows()), sgd(model))
    facts = {"losses": losses(step), "class": type(model).__name__}
    torch.save(model.state_dict(), "state.pt")
    return facts, step


@program("torch: LSTM over packed sequences")
def _(run: Run) -> Any:
    from torch.nn.utils import rnn

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(50, 16)
            self.lstm = nn.LSTM(16, 24, batch_first=True)
            self.last = nn.Linear(24, 2)

        def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = rnn.pack_padded_sequence(
                self.words(tokens), lengths, batch_first=True, enforce_sorted=False
            )
            padded, _ = rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            out: torch.Tensor = self.last(padded.mean(1))
            return out

    raw = Reader()
    model = run.compile(raw)
    optimizer = sgd(raw)
    batches = [
        (torch.randint(0, 50, (4, n)), torch.tensor([n, n - 1, 2, 3]), torch.randint(0, 2, (4,)))
        for n in (6, 9, 12)
    ]
    turns = itertools.cycle(batches)

    def step() -> float:
        tokens, lengths, y = next(turns)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens, lengths), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return {"losses": losses(step, 6)}, step
