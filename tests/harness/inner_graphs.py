"""Models with graphs inside of graphs, as programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops import scan, while_loop

import smelt
from smelt.exported.program import Program
from tests.harness.catalogue import TORCH

REFUSED = TORCH == "torch 2.11"  # there `torch.cond` calls `torch.compile` in a way that breaks the graph


class Gated(nn.Module):
    """Two layers, of which the data choose one; a constant in one branch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> Any:
        shift = torch.arange(6.0)
        y = torch.cond(
            x.sum() > 0,
            lambda a: self.first(a).relu() + shift,
            lambda a: self.second(a).tanh() @ a.t() @ a,
            (x,),
        )
        return {"y": y * 2, "x": x}


class Decoder(nn.Module):
    """Greedy decoding: the loop ends where the best word is the last one, or after `most` words."""

    def __init__(self, words: int = 11, width: int = 8, most: int = 9) -> None:
        super().__init__()
        self.most, self.words = most, nn.Embedding(words, width)
        self.cell, self.head = nn.GRUCell(width, width), nn.Linear(width, words)

    def forward(self, word: torch.Tensor, state: torch.Tensor) -> Any:
        def goes_on(n: Any, word: Any, state: Any, found: Any) -> Any:
            return (n < self.most) & (word.sum() != 0)

        def step(n: Any, word: Any, state: Any, found: Any) -> Any:
            state = self.cell(self.words(word), state)
            word = self.head(state).argmax(-1)
            return n + 1, word, state, torch.where(torch.arange(self.most) == n, word[0], found)

        carried = torch.zeros((), dtype=torch.int64), word, state, torch.full((self.most,), -1)
        return while_loop(goes_on, step, carried)


class Nested(nn.Module):
    """A choice inside of a loop inside of a choice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> Any:
        def step(i: Any, a: Any) -> Any:
            return i + 1, torch.cond(
                a.max() > 1, lambda b: self.layer(b).sin(), lambda b: b.cumsum(0) + 0.5, (a,)
            )

        def looped(a: Any) -> Any:
            return while_loop(lambda i, a: i < 4, step, (torch.tensor(0), a))[1] * 3

        return torch.cond(x.mean() > 0, looped, lambda a: a.cumsum(1) @ self.layer.weight, (x,))


class Scanned(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        def step(c: Any, row: Any) -> Any:
            return torch.cond(row.sum() > 1, lambda u: u * 2, lambda u: (u + 1).cumsum(0), (c,)), c * row

        return scan(step, torch.zeros(4), x, dim=0)


class Dynamic(nn.Module):
    """A loop of fixed sizes in a graph whose sizes change."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        z = while_loop(lambda i, a: a.sum() < 50, lambda i, a: (i + 1, a * 2 + 1), (torch.tensor(0), y))[1]
        return (x.softmax(-1) * z).cumsum(0), z


class Sized(nn.Module):
    """A choice and a loop whose graphs have sizes that change."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        def longer(a: Any) -> Any:
            return (
                torch.cat([self.layer(a).sin(), torch.ones(a.shape[0], 4)], 1).cumsum(1)[:, 4:]
                @ self.layer.weight
            )

        z = torch.cond(x.sum() > 0, longer, lambda a: a.cumsum(0) @ self.layer.weight, (x,))
        i = torch.tensor(0)
        return while_loop(
            lambda i, a: (i < 9) & (a.sum() < 50), lambda i, a: (i + 1, a.cumsum(0) * y), (i, z)
        )


class Unchanged(nn.Module):
    """A loop that may end before its first step, and a branch that returns two results of one memory."""

    def forward(self, x: torch.Tensor) -> Any:
        n, y = while_loop(
            lambda n, a: a.sum() > 3, lambda n, a: (n + 1, a.sort(0)[0] / 2), (torch.tensor(0), x)
        )
        return n, y, x + 0


X = torch.randn(6, 6).abs()
MODELS: dict[str, tuple[Callable[[], nn.Module], list[tuple[Any, ...]]]] = {
    "gated": (Gated, [(X,), (-X,)]),
    "decoder": (Decoder, [(torch.tensor([n]), torch.randn(1, 8)) for n in (3, 0, 7, 10)]),
    "nested": (Nested, [(torch.randn(5, 5).abs(),), (-torch.rand(5, 5),), (torch.rand(5, 5) / 9,)]),
    "scanned": (Scanned, [(torch.randn(3, 4).abs(),), (-torch.rand(3, 4),)]),
    "dynamic": (Dynamic, [(torch.randn(n, 4), torch.rand(4)) for n in (3, 7, 2)]),
    "sized": (Sized, [(torch.randn(n, 4) + up, torch.rand(4)) for n in (3, 7, 2, 8) for up in (1, -1)]),
    "unchanged": (Unchanged, [(torch.ones(4, 2),), (-torch.ones(4, 2),), (torch.randn(4, 2) * 9,)]),
}


def made(name: str) -> tuple[nn.Module, list[tuple[Any, ...]], Program]:
    torch.manual_seed(0)
    build, calls = MODELS[name]
    model = build().eval()
    rows = {0: smelt.Dim("rows", max=9)}
    return (
        model,
        calls,
        smelt.export(model, calls[0], dynamic_shapes=(rows, None) if name in ("dynamic", "sized") else None),
    )
