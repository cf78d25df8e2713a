"""What operators give for symbolic sizes, told from a few numbers: what is found is what torch says for all others, which
are those of calls, or the symbols are to be numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt.errors import NeedsFixedSize
from smelt.graph.ir import TensorSpec
from smelt.graph.tensor_specs import empty_like_spec, make_spec, with_sizes
from smelt.ops import layouts
from smelt.ops.symbolic_results import results
from smelt.shapes.expr import Size, Sym, evaluate

aten = torch.ops.aten
CPU = torch.device("cpu")
B, S, T = Sym("s0", 2), Sym("s1", 2, 224), Sym("s2", 2, 224)


def channels_last(batch: Size, channels: Size, height: Size, width: Size) -> TensorSpec:
    stride = (height * width * channels, 1, width * channels, channels)
    return make_spec((batch, channels, height, width), stride, torch.float32, CPU)


SQUARE = channels_last(B, 192, (S + 7) // 8, (S + 7) // 8)
MAP = channels_last(B, 192, (S + 31) // 32, (T + 31) // 32)
CALLS: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.add.Tensor, (SQUARE, SQUARE)),
    (aten.relu.default, (MAP,)),
    (aten.constant_pad_nd.default, (SQUARE, [0, 1, 0, 1])),
]


def spec_of(value: Any) -> TensorSpec | None:
    return value if isinstance(value, TensorSpec) else None


@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call[0]))
def test_a_dimension_of_one_does_not_decide_a_layout(call: Any) -> None:
    func, args = call
    found = results(func, args, {}, CPU, spec_of)
    for s in (65, 100, 160, 224):
        numbers = {B: 3, S: s, T: 300 - s if s > 75 else 224}
        metas = [
            empty_like_spec(with_sizes(a, lambda n: evaluate(n, numbers)), torch.device("meta"))  # noqa: B023
            if isinstance(a, TensorSpec)
            else a
            for a in args
        ]
        out, made = func(*metas), with_sizes(found, lambda n: evaluate(n, numbers))  # noqa: B023
        assert (made.shape, made.stride) == (tuple(out.size()), out.stride())


def test_what_is_one_for_all_that_is_tried_is_not_taken_for_one() -> None:
    """`3 // n + 1` is 1 but for small sizes, and of windows that move by 3 there are two."""
    few = make_spec((1, 2, 3 // B + 1), (6, 3, 1), torch.float32, CPU)
    with pytest.raises(NeedsFixedSize):
        results(aten.squeeze_copy.dim, (few, 0), {}, CPU, spec_of)
    rows = make_spec((1, B // 1024 + 1, 4), (4 * (B // 1024 + 1), 4, 1), torch.float32, CPU)
    found = results(aten.squeeze.dim, (rows, 0), {}, CPU, spec_of)
    assert (found.shape, found.stride) == ((B // 1024 + 1, 4), (4, 1))


def test_what_is_run_to_know_its_results_is_not_run_for_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    real = layouts.tried
    monkeypatch.setattr(layouts, "tried", lambda *given: ran.append(given) or real(*given))

    def images(n: int) -> TensorSpec:
        return make_spec((2, B, B, n), (n * B * B, n * B, n, 1), torch.float32, CPU)

    def asked(n: int) -> TensorSpec:
        row = make_spec((n,), (1,), torch.float32, CPU)
        found = results(aten.logical_xor.default, (images(n), row), {}, CPU, spec_of)
        assert isinstance(found, TensorSpec)
        return found

    with pytest.raises(NeedsFixedSize, match="this large"):
        asked(1 << 26)
    assert not ran
    found = asked(4)
    assert ran and found.shape == (2, B, B, 4)


def test_diagonals_have_no_memory_while_they_are_traced() -> None:
    """The result has the square of the elements: of a row of 40,000, 12 GB."""
    rows = make_spec((2, B), (B, 1), torch.float64, CPU)
    for dims in ((-2, -1), (0, 2), (1, -1), (2, 1), (0, 1)):
        found = results(aten.diag_embed.default, (rows, -1, *dims), {}, CPU, spec_of)
        made = torch.randn(2, 7).diag_embed(-1, *dims)
        numbers = {B: 7}
        assert tuple(evaluate(n, numbers) for n in found.shape) == made.shape
        assert tuple(evaluate(n, numbers) for n in found.stride) == made.stride()


def test_out_of_another_size_is_resized_so_sizes_are_fixed() -> None:
    one = make_spec((1,), (1,), torch.float32, CPU)
    several = make_spec((B,), (1,), torch.float32, CPU)
    assert results(aten.neg.out, (several,), {"out": several}, CPU, spec_of) is several
    with pytest.raises(NeedsFixedSize, match="resizes"):
        results(aten.neg.out, (one,), {"out": several}, CPU, spec_of)
