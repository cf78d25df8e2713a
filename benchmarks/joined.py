"""Tensors that are joined: by one kernel, whose elements compare their place with the end of each part, or by copies.

    python -m benchmarks.joined [--out DIR]

`joined_parts` in `smelt/targets/cpu.py` says up to how many parts are joined by a kernel. Medians of calls that take turns:
of inference, and of DenseNet-121 also of training steps; one thread. Writes joined.md.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

import smelt
from benchmarks import measure, models  # noqa: F401  (models: what timm needs is declared)
from smelt.targets import cpu

PARTS = (2, 3, 4, 8, 32, 128)
SHAPES = (
    ((4, 1024), 0),
    ((64, 16), 1),
    ((64, 128), 1),
    ((64, 1024), 1),
    ((2, 64, 28, 28), 1),
    ((2, 196, 384), 1),
)
Joined = Callable[[list[torch.Tensor], int], torch.Tensor]
PROGRAMS: dict[str, Joined] = {
    "of computed ones": lambda xs, dim: torch.cat([x * 2 for x in xs], dim) * 3,
    "of tanh": lambda xs, dim: torch.cat([torch.tanh(x) for x in xs], dim) * 3,
    "of inputs": lambda xs, dim: torch.cat(xs, dim) * 3,
    "before layer norm": lambda xs, dim: (lambda y: F.layer_norm(y, y.shape[-1:]))(torch.cat(xs, dim)),
}


@contextlib.contextmanager
def joining(parts: int) -> Iterator[None]:
    """So many parts are joined by a kernel."""
    before = cpu.COSTS
    cpu.COSTS = replace(before, joined_parts=parts)
    try:
        yield
    finally:
        cpu.COSTS = before


def compiled(
    call: Callable[[Callable[..., torch.Tensor]], object], fn: Callable[..., torch.Tensor]
) -> dict[str, Callable[[], object]]:
    """`fn` as it is called, joined by kernels and by copies, after a first call each."""
    made: dict[str, Callable[[], object]] = {}
    for name, parts in {"kernel": 1 << 20, "copies": 1}.items():
        with joining(parts):
            one = smelt.compile(fn)
            call(one)
        made[name] = lambda one=one: call(one)  # type: ignore[misc]
    return made | {"eager": lambda: call(fn)}


def of_parts(parts: int) -> str:
    """A row: kernel over copies of all programs and shapes, and each over eager."""
    ratios: dict[str, list[float]] = {"copies": [], "eager kernel": [], "eager copies": []}
    for shape, dim in SHAPES:
        xs = [torch.randn(shape) for _ in range(parts)]
        for join in PROGRAMS.values():
            calls = compiled(lambda f, xs=xs: f(*xs), lambda *xs, join=join, dim=dim: join(list(xs), dim))  # type: ignore[misc]
            times = measure.interleaved(calls, 0.05)
            ratios["copies"].append(times["kernel"] / times["copies"])
            ratios["eager kernel"].append(times["eager"] / times["kernel"])
            ratios["eager copies"].append(times["eager"] / times["copies"])
    cells = (f"{min(r):.2f} to {max(r):.2f}, median {statistics.median(r):.2f}" for r in ratios.values())
    return f"| {parts} | {' | '.join(cells)} |"


def of_dense_net(train: bool) -> str:
    import timm

    torch.manual_seed(0)
    model, x = timm.create_model("densenet121").train(train), torch.randn(2, 3, 224, 224)

    def call(f: Callable[..., torch.Tensor]) -> None:
        with torch.set_grad_enabled(train):
            result = f(x)
            if train:
                result.sum().backward()
                model.zero_grad()

    times = measure.interleaved(compiled(call, model))
    return (
        f"| {'a step' if train else 'a call'} | {times['kernel'] * 1e3:.1f} | {times['copies'] * 1e3:.1f} | "
        f"{times['eager'] * 1e3:.1f} | {times['copies'] / times['kernel']:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    machine = measure.machine()
    with torch.no_grad():
        rows = [of_parts(parts) for parts in PARTS]
    lines = [
        "# Tensors that are joined",
        "",
        f"{datetime.date.today()}, {machine['cpu']}, one thread, torch {torch.__version__}; `python -m benchmarks.joined`.",
        "",
        f"{len(PROGRAMS)} programs for {len(SHAPES)} shapes: times of a kernel over those of copies, of eager over each.",
        "",
        "| parts | kernel / copies | eager / kernel | eager / copies |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
        "DenseNet-121 (timm), 2 images of 224×224, milliseconds:",
        "",
        "| | kernel | copies | eager | copies / kernel |",
        "| --- | --- | --- | --- | --- |",
        *(of_dense_net(train) for train in (False, True)),
    ]
    (out / "joined.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
