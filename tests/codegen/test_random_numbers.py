"""Random numbers of a compiled graph are eager's, and so is the generator afterwards."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import smelt
from smelt.ops.random_numbers import draws_as_aten

pytestmark = pytest.mark.skipif(
    not draws_as_aten(), reason="this torch draws with a generator of another kind"
)

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("p", [0.0, 1e-9, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("n", [0, 1, 311, 312, 313, 624, 5000])
def test_bernoulli_draws_the_numbers_of_aten(dtype: torch.dtype, p: float, n: int) -> None:
    ours, theirs = (torch.Generator().manual_seed(n) for _ in range(2))
    for generator in (ours, theirs):
        torch.rand(7, generator=generator)  # an odd place in the stream
    expected = torch.empty(n, dtype=dtype).bernoulli_(p, generator=theirs)
    drawn = torch.ops.smelt.bernoulli.out(expected, p, generator=ours, out=torch.empty(n, dtype=dtype))
    assert torch.equal(drawn, expected)
    assert torch.equal(ours.get_state(), theirs.get_state())


def _channels_last() -> torch.Tensor:
    return torch.empty(2, 3, 4, 10, memory_format=torch.channels_last)


def _every_second() -> torch.Tensor:
    return torch.empty(2, 3, 4, 10)[..., ::2]


@pytest.mark.parametrize("make", [_channels_last, _every_second])
def test_bernoulli_fills_memory_in_the_order_of_aten(make: Callable[[], torch.Tensor]) -> None:
    ours, theirs = torch.Generator(), torch.Generator()
    expected = make().bernoulli_(0.5, generator=theirs)
    drawn = torch.ops.smelt.bernoulli.out(expected, 0.5, generator=ours, out=make())
    assert torch.equal(drawn, expected)
    assert torch.equal(ours.get_state(), theirs.get_state())


def test_a_probability_out_of_range_is_refused_in_eagers_words() -> None:
    out = torch.empty(3)
    with pytest.raises(RuntimeError, match="bernoulli_ expects p to be in"):
        torch.ops.smelt.bernoulli.out(out, 1.5, out=out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dropout_compiled_draws_as_eager_does(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(x, 0.1)
        return F.dropout(torch.relu(x), 0.5) + torch.rand(3, 5, dtype=dtype)

    compiled = smelt.compile(program)
    x = torch.randn(4, 3, 5, dtype=dtype, requires_grad=True)
    for seed in range(3):
        found = []
        for run in (program, compiled):
            torch.manual_seed(seed)
            out = run(x)
            (gradient,) = torch.autograd.grad(out.float().sum(), x)
            found.append((out, gradient, torch.get_rng_state()))
        for expected, got in zip(*found):
            assert torch.equal(expected, got)
