"""Functions of torch that look at sizes themselves, complex numbers and pads: one entry for all sizes (two where they must
be even), and eager's results, gradients, layouts and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.report.inspect import entries, reasons

Program = Callable[[torch.Tensor], torch.Tensor]
WINDOW = torch.hann_window(16)


def complexes(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(x, x.sin())


def rotated(x: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    angles = torch.arange(x.shape[-1] // 2).to(x.dtype)
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def written_beside_its_conjugate(x: torch.Tensor) -> torch.Tensor:
    z = complexes(x)
    y = z.conj()
    z.mul_(2)
    return y.imag + y.real


def convolved(x: torch.Tensor) -> torch.Tensor:
    n = 2 * x.shape[-1]
    return torch.fft.irfft(torch.fft.rfft(x, n=n) * torch.fft.rfft(x.flip(-1), n=n).conj(), n=n)


def diagonal_filled(x: torch.Tensor) -> torch.Tensor:
    z = x @ x.t()
    return z.fill_diagonal_(0.5) * 2


MATRICES: dict[str, Program] = {
    "broadcast_shapes": lambda x: x.new_ones(torch.broadcast_shapes(x.shape, (1, 1), x.shape[-1])) * x,
    "einsum of three": lambda x: torch.einsum("ij,kj,ki->ik", x, x.cos(), x @ x.t()),
    "einsum of a list": lambda x: torch.einsum("ij,kj,ki,ij->k", [x, x.cos(), x @ x.t(), x.sin()]),
    "fill_diagonal_": diagonal_filled,
    "cov": lambda x: torch.cov(x) + torch.cov(x[0], correction=0) + x.cov(correction=2),
    "cov of complex numbers": lambda x: complexes(x).cov().abs(),
    "corrcoef": lambda x: torch.corrcoef(x) * x[0, 0] + torch.corrcoef(x[0]),
    "corrcoef of complex numbers": lambda x: torch.corrcoef(complexes(x)).imag,
    "stft": lambda x: torch.stft(x, 16, return_complex=True).abs(),
    "stft of windows": lambda x: x.stft(16, 5, window=WINDOW.to(x), normalized=True, return_complex=True).abs(),
    "stft of all frequencies": lambda x: torch.stft(x, 16, onesided=False, pad_mode="constant", return_complex=True),
    "stft of a part": lambda x: torch.view_as_real(torch.stft(x, n_fft=16, win_length=9, return_complex=True)),
    "fftfreq": lambda x: x * torch.fft.fftfreq(x.shape[-1], 0.5) * torch.fft.rfftfreq(x.shape[-1])[-1],
    "a convolution of spectra": convolved,
    "pairs": lambda x: x.reshape(-1, 2).sin(),
    "rotated": rotated,
    "gated": lambda x: F.glu(x),
    "unshuffled": lambda x: F.pixel_unshuffle(x[None].expand(2, -1, -1).repeat_interleave(2, 1), 2),
    "the best": lambda x: x.topk(3, 1)[0] + x.median(0).values[:3],
    "in place": lambda x: (x + 1).t_().unsqueeze_(1).squeeze_() * 2,
    "rows by themselves": lambda x: torch.func.vmap(lambda r: (r * 2).sum(0))(x),
    "conjugates": lambda x: (complexes(x) * complexes(x.cos()).conj()).abs(),
    "a conjugate given back": lambda x: complexes(x).conj(),
    "a negative": lambda x: complexes(x).conj().imag * 2,
    "a product of conjugates": lambda x: (complexes(x) @ complexes(x.cos()).mH).abs(),
    "a conjugate turned": lambda x: complexes(x).conj().t()[1:].real,
    "polar": lambda x: torch.polar(x.abs(), x).real,
    "written beside its conjugate": written_beside_its_conjugate,
}  # fmt: skip

TABLE = torch.randn(9, 6, dtype=torch.float64)
GATES = [
    torch.randn(24, 8, dtype=torch.float64),
    torch.randn(24, 6, dtype=torch.float64),
    *torch.randn(2, 24, dtype=torch.float64),
]


def of_bags(x: torch.Tensor) -> torch.Tensor:
    places = (x.abs() * 3).long() % 9
    weighed = F.embedding_bag(places, TABLE * x[0, 0], mode="sum", per_sample_weights=x.cos())
    starts = torch.arange(0, places.shape[0]) * 3
    return (
        weighed + F.embedding_bag(places, TABLE * x[0, 0]) + F.embedding_bag(places.flatten(), TABLE, starts)
    )


def of_cells(x: torch.Tensor) -> torch.Tensor:
    x, hidden = x[:, :8], x[:, 8:14]
    kept, cell = torch.lstm_cell(x, (hidden, hidden.cos()), *GATES)
    return torch.gru_cell(x, kept, *(w[:18] for w in GATES)) + cell


def of_systems(x: torch.Tensor) -> torch.Tensor:
    square = x @ x.t() + 10 * torch.eye(x.shape[0], dtype=x.dtype)
    lower = torch.linalg.cholesky(square)
    return torch.linalg.solve(square, x) + torch.linalg.solve_triangular(lower, x, upper=False)


def of_grids(x: torch.Tensor) -> torch.Tensor:
    images = x[:, None, None].expand(-1, 2, 3, -1)
    turned = torch.eye(2, 3, dtype=x.dtype).expand(x.shape[0], 2, 3)
    return F.grid_sample(
        images, F.affine_grid(turned, images.shape, align_corners=False), align_corners=False
    )


MATRICES |= {
    "bags": of_bags,
    "cells": of_cells,
    "systems": of_systems,
    "grids": of_grids,
    "places": lambda x: x + torch.searchsorted(torch.linspace(-1, 1, 5, dtype=x.dtype), x),
    "short rows": lambda x: F.embedding((x.abs() * 3).long() % 9, TABLE.clone(), max_norm=1.0).sum(-1) * x,
}
if torch.__version__ >= "2.13":  # before, it reads a value
    MATRICES["quantiles"] = lambda x: x.quantile(0.5, dim=1)

IMAGES: dict[str, Program] = {
    f"{mode} of {sides}": lambda x, mode=mode, pads=pads: F.pad(x, pads, mode=mode).sin()
    for mode in ("reflect", "replicate", "circular")
    for sides, pads in {"lengths": (5, 3), "images": (1, 2, 3, 4)}.items()
} | {
    f"{mode}, {what}": lambda x, mode=mode, pads=pads: F.pad(
        x.contiguous(memory_format=torch.channels_last), pads, mode=mode
    )
    for mode, what, pads in (
        ("reflect", "channels last", (1, 2, 3, 1)), ("replicate", "channels last", (1, 2, 3, 1)),
        ("circular", "channels last", (1, 2, 3, 1)), ("reflect", "cut", (-1, 2, 3, -2)),
        ("replicate", "cut", (-1, 2, 3, -2)),
    )
}  # fmt: skip


def outcome(f: Program, x: torch.Tensor, grad: bool) -> list[torch.Tensor]:
    x = x.clone().requires_grad_(grad)
    made = f(x)
    if grad and made.requires_grad:
        (made.abs().square() * torch.arange(1, 1 + made.numel()).view(made.shape)).sum().backward()
    return [made.detach(), *([] if x.grad is None else [x.grad])]


# A size that was not seen to change is a number where only some fit: the second entry is for all even ones.
EVEN = frozenset(MATRICES[name] for name in ("pairs", "rotated", "gated", "unshuffled"))


def check(f: Program, shapes: list[tuple[int, ...]], grad: bool) -> None:
    compiled = smelt.compile(f, dynamic=True)
    for shape in shapes:
        x = torch.randn(*shape, dtype=torch.float64)
        for got, want in zip(outcome(compiled, x, grad), outcome(f, x, grad), strict=True):
            torch.testing.assert_close(got, want, check_stride=True)
            assert (got.is_conj(), got.is_neg()) == (want.is_conj(), want.is_neg())
    assert not reasons(compiled)
    assert len(entries(compiled)) == (2 if f in EVEN else 1)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("f", MATRICES.values(), ids=MATRICES.keys())
def test_of_matrices(f: Program, grad: bool) -> None:
    if grad and f is written_beside_its_conjugate:
        pytest.skip("eager has no gradients of it")
    check(f, [(3, 40), (5, 62), (4, 34), (7, 52)], grad)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", IMAGES)
def test_pads(name: str, grad: bool) -> None:
    shapes = [(3, 4, 9, 10), (2, 5, 8, 7), (5, 2, 10, 8), (2, 3, 7, 7)]
    check(IMAGES[name], [s[:2] + s[3:] for s in shapes] if "lengths" in name else shapes, grad)


REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "sizes that do not go together": lambda x: torch.broadcast_shapes(x.shape, (x.shape[0] + 1, 1)),
    "no sizes": lambda x: torch.broadcast_shapes(x.shape, "ab"),
    "negative sizes": lambda x: torch.broadcast_shapes((1,), (-1,)),
    "a wide pad": lambda x: F.pad(x[None], (40, 1), mode="reflect"),
    "a wide circle": lambda x: F.pad(x[None], (41, 1), mode="circular"),
    "a wide window": lambda x: torch.stft(x, 64, center=False, return_complex=True),
    "another window": lambda x: torch.stft(x, 16, window=torch.ones(9), return_complex=True),
    "three dimensions": lambda x: torch.cov(x[None]),
    "real numbers of complex ones": lambda x: torch.view_as_real(complexes(x).conj()),
}  # fmt: skip


@pytest.mark.parametrize("f", REFUSED.values(), ids=REFUSED.keys())
def test_what_eager_refuses_is_refused(f: Callable[[torch.Tensor], Any]) -> None:
    x = torch.randn(3, 40)
    with pytest.raises(Exception) as want:  # noqa: PT011  (whatever eager raises)
        f(x)
    with pytest.raises(type(want.value)) as got:
        smelt.compile(f, dynamic=True)(x)
    assert str(got.value) == str(want.value)


@pytest.mark.parametrize(
    "pieces",
    [lambda x: x.flatten().unbind(0)[0], lambda x: x.flatten().split(2)[-1], lambda x: x.unsafe_split(1)[0]],
)
def test_many_pieces_are_not_made_to_learn_how_many(pieces: Program) -> None:
    """Of large sizes that are tried there are millions; a size that changes is tried with more of them."""
    compiled = smelt.compile(pieces)
    for shape in ((3, 4), (5, 4), (5, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), pieces(x))
    assert not reasons(compiled)
