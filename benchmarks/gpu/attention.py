"""Attention that is written out, on a GPU: eager, torch.compile, and smelt with its operators and with torch's kernel.

    python -m benchmarks.gpu.attention [--training] [--only NAME] [--contestants ...] [--small] [--out DIR]

Writes attention.json and .md (attention-training with `--training`). bf16; times are the device's own, rounds in turn.
"smelt" has `options={"fused_attention": True}`, as by default; "smelt, as written" has False; "smelt, generated" besides
`max_autotune`, whose contests may choose a generated kernel. No row begins after `--seconds-budget`. Queries, keys and
values are the sums of what is given and biases, as behind a projection.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention.flex_attention import flex_attention

import smelt
from benchmarks.gpu import device
from benchmarks.gpu.tables import with_failures
from benchmarks.gpu.timing import allocated, first_call, in_time, interleaved, peak_above
from benchmarks.run import write

Tensor = torch.Tensor
EAGER, TORCH, WRITTEN, FUSED = "eager", "torch.compile", "smelt, as written", "smelt"
GENERATED = "smelt, generated"
LOWEST = torch.finfo(torch.bfloat16).min


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


def padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(mask, LOWEST)
    return torch.softmax(scores, -1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(mask, float("-inf"))
    return torch.softmax(scores.float(), -1).to(q.dtype) @ v


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT + bias, -1) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As Gemma's."""
    scores = torch.tanh(q @ k.mT * q.shape[-1] ** -0.5 / 50) * 50
    return torch.softmax(scores, -1) @ v


def flexible(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal, with a slope of distances (ALiBi)."""

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(i >= j, s - (i - j) * 0.01, -float("inf"))

    result: Tensor = flex_attention(q, k, v, score_mod=score)
    return result


def no_mask(batch: int, heads: int, length: int) -> tuple[()]:
    return ()


def padding(batch: int, heads: int, length: int) -> tuple[Tensor]:
    """Of the last quarter."""
    return (
        (torch.arange(length, device="cuda") >= length * 3 // 4).expand(batch, 1, 1, length).contiguous(),
    )


def upper(batch: int, heads: int, length: int) -> tuple[Tensor]:
    return (torch.ones(length, length, dtype=torch.bool, device="cuda").triu(1),)


def learned(batch: int, heads: int, length: int) -> tuple[Tensor]:
    bias = torch.randn(1, heads, length, length, device="cuda", dtype=torch.bfloat16)
    return (torch.nn.Parameter(bias),)


@dataclass(frozen=True)
class Case:
    fn: Callable[..., Tensor]
    more: Callable[[int, int, int], tuple[Tensor, ...]]
    batch: int
    length: int
    heads: int = 12
    width: int = 64

    @property
    def name(self) -> str:
        return f"{self.fn.__name__}, {self.batch}×{self.heads}×{self.length}×{self.width}"

    def tensors(self, training: bool) -> list[Tensor]:
        """Queries, keys and values as a projection gives them, (batch, length, heads, width) in memory, its bias, and what
        else `fn` takes."""
        shape = (self.batch, self.length, self.heads, self.width)
        made = [torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3)]
        made.append(torch.randn(self.heads, 1, self.width, device="cuda", dtype=torch.bfloat16))
        return [x.requires_grad_(training) for x in made] + list(
            self.more(self.batch, self.heads, self.length)
        )

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, *more: Tensor) -> Tensor:
        return self.fn(q + bias, k + bias, v + bias, *more)


# As many scores in each batch; a step of 64 tokens, models of the tables, long texts.
SIZES = ((64, 64), (32, 128), (16, 256), (8, 512), (4, 1024), (2, 2048))
CASES = [
    *(Case(plain, no_mask, *size) for size in SIZES),
    *(Case(padded, padding, *size) for size in SIZES[1::2]),
    *(Case(causal, upper, *size) for size in SIZES[1::2]),
    *(Case(biased, learned, *size) for size in SIZES[1::2]),
    *(Case(capped, no_mask, *size) for size in SIZES[1::2]),
    *(Case(flexible, no_mask, *size) for size in SIZES[1::2]),
]


def makers() -> dict[str, Callable[[Any], Any]]:
    """Contestants."""
    return {
        EAGER: lambda fn: fn,
        TORCH: partial(torch.compile, fullgraph=True, dynamic=False),
        WRITTEN: partial(smelt.compile, fullgraph=True, options={"fused_attention": False}),
        FUSED: partial(smelt.compile, fullgraph=True),
        GENERATED: partial(
            smelt.compile, fullgraph=True, options={"fused_attention": False, "max_autotune": True}
        ),
    }


def measured(case: Case, training: bool, who: list[str], seconds: float) -> dict[str, Any]:
    """A row: seconds of a call on the device, bytes above what is given, errors against float64."""
    args = case.tensors(training)
    exact = case(*(a.detach().double() if a.is_floating_point() else a for a in args))
    tangent = torch.randn_like(exact).to(torch.bfloat16)
    row: dict[str, Any] = {"name": case.name, "error": {}, "peak_bytes": {}, "failed": {}}
    calls: dict[str, Callable[[], Any]] = {}

    def run(fn: Callable[..., Tensor]) -> Tensor:
        result = fn(*args)
        if training:
            for a in args:
                a.grad = None
            result.backward(tangent)
        return result.detach()

    torch._dynamo.reset()  # each case is compiled for its sizes alone
    for name in who:
        call = partial(run, makers()[name](case.__call__))
        try:
            result, _ = first_call(call)
        except Exception as error:
            row["failed"][name] = f"{type(error).__name__}: {error}"[:300]
            continue
        row["error"][name] = float((result.double() - exact).norm() / exact.norm())
        calls[name] = call
        call()
        allocated()
        row["peak_bytes"][name] = peak_above(call)
    row["seconds"] = interleaved(calls, seconds)["device"]
    return row


def table(rows: list[dict[str, Any]], who: list[str]) -> str:
    """Markdown."""
    heads = [
        "program",
        *(f"{w}, us" for w in who),
        *(f"MiB: {w}" for w in who),
        *(f"error: {w}" for w in who),
    ]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for row in rows:
        formats = (("seconds", 1e6, ".1f"), ("peak_bytes", 2**-20, ".1f"), ("error", 1, ".1e"))
        cells = [
            f"{row[key][w] * scale:{form}}" if w in row[key] else "–"
            for key, scale, form in formats
            for w in who
        ]
        lines.append(f"| {' | '.join([row['name'], *cells])} |")
    return with_failures(lines, rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--training", action="store_true", help="and its backward")
    parser.add_argument("--only", action="append", help="a part of a program's name; may be repeated")
    parser.add_argument(
        "--contestants", default=";".join(makers()), help="separated by semicolons (default: all)"
    )
    parser.add_argument("--small", action="store_true", help="one of a batch, to try the script")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing a program (default: 1)")
    parser.add_argument("--seconds-budget", type=float, default=240)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu"))
    return parser.parse_args()


def main() -> None:
    options = _options()
    device.ready()
    who = options.contestants.split(";")
    rows = []
    facts = device.facts("benchmarks.gpu.attention")
    said = ", ".join(f"{k}: {v}" for k, v in facts.items())
    kind = "attention-training" if options.training else "attention"
    text = ""
    for case in in_time(CASES, options.only, options.seconds_budget):
        if options.small:
            case = Case(case.fn, case.more, 1, min(case.length, 128), heads=2)
        with torch.set_grad_enabled(options.training):
            rows.append(measured(case, options.training, who, options.seconds))
        torch.cuda.empty_cache()
        text = f"# Attention that is written out, bf16\n\n{said}.\n\n{table(rows, who)}"
        write(options.out / f"{kind}.json", {"facts": facts, "rows": rows}, text)
    print(text)


if __name__ == "__main__":
    main()
