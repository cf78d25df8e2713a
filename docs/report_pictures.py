"""Takes the pictures of docs/html-report.md: `python docs/report_pictures.py`, with Playwright and Chromium installed."""

from __future__ import annotations

import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

import smelt

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from tests.harness import browser  # noqa: E402

PROGRAM = """\
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).unbind(2)
        scores = torch.einsum("blhd,bmhd->bhlm", q, k) / (width / self.heads) ** 0.5
        y = torch.einsum("bhlm,bmhd->blhd", scores.softmax(-1), v)
        return self.out(y.reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, width=128, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, 4) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, x, target):
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x.mean(1))
        if logits.abs().max() > 50:
            logits = logits * 0.5
        print("largest", logits.max().item())
        return F.cross_entropy(logits, target)
"""
MARKED = PROGRAM[: PROGRAM.index("        if logits")].count("\n") + 1


def picture(chromium: Any, report: Path, view: str, scheme: str, path: Path) -> None:
    """Save a screenshot of a report's view to `path`, in a viewport of 1240 × 720 CSS pixels."""
    with browser.opened(chromium, report, scheme=scheme) as page:
        page.set_viewport_size({"width": 1240, "height": 720})
        browser.visit(page, view)
        page.wait_for_timeout(1000)  # the graph animates into place
        page.screenshot(path=str(path))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, browser.chromium() as chromium:
        torch.manual_seed(0)
        report, source = Path(folder, "report.html"), Path(folder, "attention.py")
        source.write_text(PROGRAM)
        model = runpy.run_path(str(source))["Model"]()
        explanation = smelt.explain(model)(torch.randn(8, 32, 128), torch.randint(10, (8,)))
        explanation.save(report)
        joint = next(graph for graph in explanation.to_dict()["graphs"] if graph["level"] == "joint")
        line = quote(str(source), safe="")
        picture(chromium, report, f"source/{line}/{MARKED}", "light", DOCS / "report-light.png")
        picture(chromium, report, f"graphs/{joint['id']}/gelu_1", "dark", DOCS / "report-dark.png")


if __name__ == "__main__":
    main()
