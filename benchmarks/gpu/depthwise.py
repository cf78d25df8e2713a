"""Depthwise convolutions of channels-last images on a GPU: cuDNN beside what smelt takes, forward and backward.

    python -m benchmarks.gpu.depthwise [--all] [--out DIR]

Writes depthwise.json and .md: microseconds on the device, seconds of the first forward and backward, errors against float64.
`--all`: everything is generated, also what cuDNN computes faster. bf16, layers of MobileNetV3-L at batch 128 and 1 and of
ConvNeXt-T at batch 64.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import smelt
from benchmarks.gpu import device
from benchmarks.gpu.timing import first_call, interleaved
from benchmarks.run import write
from smelt.targets import cuda

aten = torch.ops.aten
Tensor = torch.Tensor
CUDNN, SMELT = "cuDNN", "smelt"
# (images, channels, height and width, window, stride)
LAYERS = [
    (128, 16, 112, 3, 1), (128, 64, 112, 3, 2), (128, 72, 56, 3, 1), (128, 72, 56, 5, 2), (128, 120, 28, 5, 1),
    (128, 240, 28, 3, 2), (128, 200, 14, 3, 1), (128, 480, 14, 3, 1), (128, 672, 14, 3, 1), (128, 672, 14, 5, 2),
    (128, 960, 7, 5, 1), (64, 96, 56, 7, 1), (64, 384, 14, 7, 1), (1, 64, 112, 3, 2), (1, 120, 28, 5, 1), (1, 672, 14, 3, 1),
]  # fmt: skip


def measured(layer: tuple[int, ...], seconds: float) -> dict[str, Any]:
    """A row."""
    images, channels, size, window, stride = layer
    settings = ([stride] * 2, [window // 2] * 2, [1, 1], False, [0, 0], channels)

    def forward(x: Tensor, weight: Tensor) -> Tensor:
        result: Tensor = aten.convolution(x, weight, None, *settings)
        return result

    def backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        made = aten.convolution_backward(grad, x, weight, None, *settings, [True, True, False])
        return made[0], made[1]

    x = torch.randn(images, channels, size, size, device="cuda", dtype=torch.bfloat16)
    x = x.to(memory_format=torch.channels_last)
    weight = torch.randn(channels, 1, window, window, device="cuda", dtype=torch.bfloat16)
    exact = forward(x.double(), weight.double())
    grad = torch.randn_like(exact).bfloat16().to(memory_format=torch.channels_last)
    want = (exact, *backward(grad.double(), x.double(), weight.double()))
    row: dict[str, Any] = {"layer": layer, "first_s": {}, "error": {}, "forward_s": {}, "backward_s": {}}
    calls: dict[str, list[Callable[[], Any]]] = {}
    for who, made in (
        (CUDNN, (forward, backward)),
        (SMELT, tuple(smelt.compile(f, fullgraph=True) for f in (forward, backward))),
    ):
        calls[who] = [partial(made[0], x, weight), partial(made[1], grad, x, weight)]
        parts = [first_call(call) for call in calls[who]]
        row["first_s"][who] = sum(s for _, s in parts)
        found = (parts[0][0], *parts[1][0])
        row["error"][who] = max(
            float((a.double() - b).norm() / b.norm()) for a, b in zip(found, want, strict=True)
        )
    for k, part in enumerate(("forward_s", "backward_s")):
        row[part] = interleaved({who: each[k] for who, each in calls.items()}, seconds)["device"]
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    kinds = (
        ("forward_s", 1e6, ".0f"),
        ("backward_s", 1e6, ".0f"),
        ("first_s", 1, ".2f"),
        ("error", 1, ".1e"),
    )
    names = {
        "forward_s": "forward, us",
        "backward_s": "backward, us",
        "first_s": "first, s",
        "error": "error",
    }
    heads = ["images, channels, pixels, window, stride"]
    heads += [f"{names[kind]}: {who}" for kind, *_ in kinds for who in (CUDNN, SMELT)]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for row in rows:
        images, channels, size, window, stride = row["layer"]
        cells = [f"{images}, {channels}, {size}×{size}, {window}×{window}, {stride}"]
        cells += [f"{row[kind][who] * scale:{form}}" for kind, scale, form in kinds for who in (CUDNN, SMELT)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--small", action="store_true", help="one image, few pixels, to try the script")
    parser.add_argument("--seconds", type=float, default=0.2, help="of timing each part (default: 0.2)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu"))
    options = parser.parse_args()
    device.ready()
    if options.all:
        cuda.COSTS = replace(cuda.COSTS, depthwise_elements=1 << 40)
    facts, rows = device.facts("benchmarks.gpu.depthwise"), []
    said = ", ".join(f"{k}: {v}" for k, v in facts.items())
    for layer in LAYERS:
        if options.small:
            layer = (1, 8, 8, *layer[3:])
        with torch.no_grad():
            rows.append(measured(layer, options.seconds))
        text = f"# Depthwise convolutions, channels-last, bf16\n\n{said}.\n\n{table(rows)}"
        write(options.out / "depthwise.json", {"facts": facts, "rows": rows}, text)
    print(text)


if __name__ == "__main__":
    main()
