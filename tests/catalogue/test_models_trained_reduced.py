"""What models of transformers do in training that stood in the way of a compiled backward, in small."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.harness.training import both, gradients, leaf


@pytest.mark.parametrize("row", [(3,), (1,), ()])
@both()
def test_a_learned_row_where_a_mask_is_set(compile: Any, row: tuple[int, ...]) -> Any:
    """Wav2Vec2, Hubert, WavLM: SpecAugment overwrites the masked time steps by one parameter."""

    def spoil(x, mask, learned):
        x = x * 2
        x[mask] = learned
        return x

    f = compile(spoil)
    x, learned = leaf(2, 4, 3), leaf(*row)
    seen = []
    for mask in (
        torch.rand(2, 4) > 0.5,
        torch.zeros(2, 4, dtype=torch.bool),
        torch.ones(2, 4, dtype=torch.bool),
    ):
        out = f(x, mask, learned)
        (out * torch.arange(24.0).view(2, 4, 3)).sum().backward()
        seen += [out.detach(), *gradients(x, learned)]
    return seen


@both(ahead=False)  # the argument that is written is what the result is computed from
def test_a_learned_row_is_written_to_a_view_and_to_an_argument(compile: Any) -> Any:
    def spoil(x, mask, learned):
        x[1][mask] = learned
        x[:, 0][mask[:2]] = learned
        return x.sin()

    f = compile(spoil)
    base, learned = leaf(2, 4, 3), leaf(3)
    x, mask = base * 1, torch.tensor([True, False, True, True])
    out = f(x, mask, learned)
    out.cos().sum().backward()
    return out, x, gradients(base, learned)


@both(whole=False, ahead=False)
def test_as_many_rows_as_the_mask_selects(compile: Any) -> Any:
    """How many there are is known only when it runs: not by `where`."""

    def fill(x, mask, rows):
        x = x * 2
        x[mask] = rows
        return x

    f = compile(fill)
    x, rows = leaf(2, 4, 3), leaf(3, 3)
    out = f(x, torch.tensor([[True, False, True, False], [False, False, False, True]]), rows)
    (out * torch.arange(24.0).view(2, 4, 3)).sum().backward()
    return out, gradients(x, rows)


@both()
def test_a_product_is_written_that_einsum_gives_as_a_view(compile: Any) -> Any:
    """Funnel: autograd takes the views that einsum made inside again when it is asked for their nodes."""

    def scores(x, w, mask):
        y = torch.einsum("binh,jnh->bnij", x, w)
        y *= mask
        return y

    f = compile(scores)
    x, w, mask = leaf(2, 3, 2, 4), leaf(5, 2, 4), torch.rand(3, 5)
    out = f(x, w, mask)
    out.sin().sum().backward()
    return out, gradients(x, w)
