"""examples/train_gpt.py, made tiny: the compiled run has eager's loss curve, resumed runs too, nothing is compiled twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from examples.train_gpt import GPT, Batches, Options, Text, make_optimizer, schedule, train, written
from smelt import events

TINY = Options(
    steps=12, layers=2, heads=2, width=32, context=16, batch=4, warmup=4, eval_every=5, eval_batches=2, sample=0
)  # fmt: skip

# Relative. The losses are means of 64 terms; Adam divides by the size of the gradient, so that rounding in the smallest
# gradients comes back as steps of full size: what float32 leaves equal in one step drifts over twelve.
FLOAT32 = 1e-5
BFLOAT16 = 1e-2


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The kernels are too small to be shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(**options: Any) -> list[dict[str, Any]]:
    return train(replace(TINY, **options), say=lambda line: None)


def numbers(curve: list[dict[str, Any]]) -> list[dict[str, float]]:
    """The curve without what may differ between equal runs."""
    return [{name: row[name] for name in row if name not in ("ms", "graphs")} for row in curve]


@contextmanager
def compilations() -> Iterator[list[str]]:
    """What was compiled in the context, and what stood in the way."""
    seen: list[str] = []
    kinds = ("entry-installed", "backward-compiled", "eager-fallback", "graph-break", "no-joint-graph")
    with events.subscribed(lambda e: seen.append(e.kind) if e.kind in kinds else None):
        yield seen


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"dropout": 0.0}, FLOAT32),
        ({"dropout": 0.2}, FLOAT32),
        ({"dropout": 0.2, "bf16": True}, BFLOAT16),
    ],
    ids=["float32", "dropout", "autocast"],
)
def test_curves_agree(options: dict[str, Any], tolerance: float) -> None:
    eager, compiled = numbers(run(compile="none", **options)), numbers(run(compile="smelt", **options))
    assert len(compiled) == TINY.steps and eager[-1]["loss"] < eager[0]["loss"]
    for want, got in zip(eager, compiled, strict=True):
        assert got == pytest.approx(want, rel=tolerance)


def test_nothing_is_compiled_twice() -> None:
    with compilations() as seen:
        curve = run(compile="smelt", sample=20)
    assert seen.count("entry-installed") == 3  # training, evaluation, sampling
    training = seen[: seen.index("entry-installed", 1)]
    assert set(training) == {"entry-installed", "backward-compiled"}
    assert seen[len(training) :] == ["entry-installed"] * 2
    assert [row["graphs"] for row in curve] == [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]
    # Although the learning rate is another one at each step.
    assert len({row["lr"] for row in curve}) == TINY.steps


def whole_steps(compiled: bool) -> Iterator[float]:
    """The losses of steps that are one function each: forward, backward, clipping, optimizer and schedule."""
    torch.manual_seed(0)
    text = Text(written(20_000))
    batches, model = Batches(text.training, TINY), GPT(len(text.alphabet), TINY)
    optimizer = make_optimizer(model, TINY)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(replace(TINY, warmup=1)))

    def step(characters: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        _, loss = model(characters, following)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), TINY.clip)
        optimizer.step()
        scheduler.step()
        return loss.detach()

    run = smelt.compile(step) if compiled else step
    for _ in range(TINY.steps):
        yield run(*next(batches)).item()


def test_a_whole_step_as_one_function() -> None:
    losses = []
    with compilations() as seen:
        for loss in whole_steps(compiled=True):
            losses.append(loss)
            if len(losses) == 2:
                seen.clear()
    assert not seen
    assert losses == pytest.approx(list(whole_steps(compiled=False)), rel=FLOAT32)


@pytest.mark.parametrize("compiler", ["none", "smelt"])
def test_resumed(compiler: str, tmp_path: Path) -> None:
    out = tmp_path / "curve.jsonl"
    whole = run(compile=compiler, save=str(tmp_path), save_every=5, out=str(out))
    assert len(out.read_text().splitlines()) == TINY.steps
    resumed = run(compile=compiler, resume=str(tmp_path / "step-5.pt"), out=str(out))
    assert numbers(resumed) == numbers(whole)[5:]
    assert [line.split(",")[0] for line in out.read_text().splitlines()] == [
        f'{{"step": {step}' for step in range(TINY.steps)
    ]


def test_seeds_differ() -> None:
    """That curves agree would say little if they could not differ."""
    first, second = run(compile="none", seed=1, steps=2), run(compile="none", seed=2, steps=2)
    assert first[0]["loss"] != pytest.approx(second[0]["loss"], rel=FLOAT32)
