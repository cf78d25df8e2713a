"""Matrix products of tensors whose sizes change: one entry, and eager's results, strides and gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import smelt
from smelt.report.inspect import entries
from tests.harness.agreement import check_no_failure, observe, same

# Of the batch, the heads, the rows, what is summed over, the columns.
SIZES = [
    {"b": 3, "h": 5, "n": 7, "d": 9, "m": 6},
    {"b": 4, "h": 8, "n": 5, "d": 11, "m": 7},
    {"b": 2, "h": 3, "n": 10, "d": 6, "m": 5},
    {"b": 6, "h": 12, "n": 8, "d": 13, "m": 9},
]
Shape = str | tuple[Any, ...]  # of names of sizes, and ints
GRADIENTS = {"none": (), "all": (0, 1, 2), "left": (0,), "right": (1,)}

LEFT, RIGHT = ["d", "nd", "bnd", "bhnd"], ["d", "dm", "bdm", "bhdm"]
BROADCAST: dict[str, tuple[Shape, Shape]] = {
    "one left matrix": ((1, "n", "d"), "bdm"),
    "one right matrix": ("bnd", (1, "d", "m")),
    "both batches": (("b", 1, "n", "d"), (1, "h", "d", "m")),
    "batches of other ranks": ("bhnd", (1, "d", "m")),
    "heads alone": (("b", 4, "n", "d"), (4, "d", "m")),
    "rotary embedding": ((1, 4, 1), (1, 1, "n")),
    "a weight": (("b", "n", 8), (8, 17)),
    "a weight from the left": ((17, 8), ("b", 8, "n")),
    "one column": ("bnd", ("d", 1)),
}


def ranks() -> dict[str, tuple[Shape, Shape]]:
    """Products of all ranks that torch has no single operator for."""
    found = {}
    for left, right in itertools.product(LEFT, RIGHT):
        if max(len(left), len(right)) > 2:
            both = {len(left), len(right)} == {3, 4}  # the last dimension of the batch
            found[f"{left} {right}"] = tuple(
                s.replace("b", "h") if both and len(s) == 3 else s for s in (left, right)
            )
    return found  # type: ignore[return-value]


def made(shape: Shape, sizes: dict[str, int], turned: bool = False) -> torch.Tensor:
    """A tensor of that shape; `turned`: with its last two dimensions the other way round in memory."""
    numbers = [sizes[n] if isinstance(n, str) else n for n in shape]
    if not turned or len(numbers) < 2:
        return torch.randn(numbers)
    return torch.randn(*numbers[:-2], numbers[-1], numbers[-2]).transpose(-1, -2)


def check(
    function: Callable[..., Any],
    make: Callable[[dict[str, int]], Sequence[torch.Tensor]],
    gradients: Sequence[int] = (),
    autocast: bool = False,
) -> None:
    """One entry serves all sizes."""
    smelt.reset()  # equal compilations share their entries
    compiled = smelt.compile(function, dynamic=True)
    dtype = torch.float32 if autocast else torch.float64
    weights = list(function.to(dtype).parameters()) if isinstance(function, nn.Module) else []
    for seed, sizes in enumerate(SIZES):
        torch.manual_seed(seed)
        given = make(sizes)
        seen = []
        for call in (function, compiled):
            arguments = [
                x.detach().clone().to(dtype).requires_grad_(i in gradients) for i, x in enumerate(given)
            ]
            with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                observed = observe(call, tuple(arguments), seed)
            assert observed.error is None, observed.error
            if observed.result.requires_grad:
                observed.result.float().sin().sum().backward()
            seen.append((observed.result, [x.grad for x in (*arguments, *weights)]))
            for weight in weights:
                weight.grad = None
        if autocast:  # another order of the additions is another number of bfloat16
            torch.testing.assert_close(seen[1], seen[0], rtol=2e-2, atol=5e-2)
        else:
            same(seen[1], seen[0])
    check_no_failure(compiled)
    assert len(entries(compiled)) == 1


@pytest.mark.parametrize("gradients", GRADIENTS)
@pytest.mark.parametrize("name", [*ranks(), *BROADCAST])
def test_products(name: str, gradients: str) -> None:
    left, right = {**ranks(), **BROADCAST}[name]
    check(lambda x, y: x @ y, lambda sizes: (made(left, sizes), made(right, sizes)), GRADIENTS[gradients])


@pytest.mark.parametrize("turned", [(True, False), (False, True)], ids=["left", "right"])
@pytest.mark.parametrize("name", ranks())
def test_products_of_transposed_matrices(name: str, turned: tuple[bool, bool]) -> None:
    def make(sizes: dict[str, int]) -> list[torch.Tensor]:
        return [made(shape, sizes, t) for shape, t in zip(ranks()[name], turned)]

    check(torch.matmul, make)
    check(torch.matmul, make, (0, 1))


def test_ways_to_call_a_product() -> None:
    ways: list[Callable[..., Any]] = [
        lambda x, y: torch.matmul(input=x, other=y),
        lambda x, y: torch.matmul(x, other=y),
        lambda x, y: x.matmul(y),
        lambda x, y: y.__rmatmul__(x),
        lambda x, y: torch.linalg.matmul(x, y),
        lambda x, y: torch.ops.aten.matmul(x, y),
        lambda x, y: torch.ops.aten.matmul.default(x, y),
    ]
    for way in ways:
        check(way, lambda sizes: (made("bnd", sizes), made("dm", sizes)), (0,))


@pytest.mark.parametrize("gradients", GRADIENTS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", ["bn8", "bh8", "turned", "turned heads"])
def test_linear(shape: str, biased: bool, gradients: str) -> None:
    def make(sizes: dict[str, int]) -> list[torch.Tensor]:
        more = ["h"] if shape == "turned heads" else []
        x = made(("b", "n", *more, 8), sizes)
        given = [x, torch.randn(17, 8)]
        return [*given, torch.randn(17)] if biased else given

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return F.linear(x.transpose(0, 1) if shape.startswith("turned") else x, *weights)

    check(function, make, GRADIENTS[gradients])


def test_linear_of_one_row() -> None:
    check(F.linear, lambda sizes: (made(("b", "n", 8), sizes), torch.randn(8)), (0, 1))
    check(F.linear, lambda sizes: (made("bnd", sizes), made("md", sizes)), (0, 1))


@pytest.mark.parametrize("gradients", GRADIENTS)
def test_products_under_autocast(gradients: str) -> None:
    for left, right in (("bnd", "dm"), ("nd", "bdm"), ("bnd", "bdm"), ("bnd", "d"), ("bhnd", "d")):
        check(torch.matmul, lambda sizes: (made(left, sizes), made(right, sizes)), GRADIENTS[gradients], True)  # noqa: B023


class Head(nn.Module):
    """Rows of features to scores of words, as language models have it: its weight is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)
        self.score = nn.Linear(8, 12, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mix(x.transpose(0, 1)).relu()
        return self.score(x) + self.score(x.flip(-1))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_modules(trained: bool, autocast: bool) -> None:
    torch.manual_seed(0)
    with torch.set_grad_enabled(trained):
        check(Head(), lambda sizes: [made(("b", "n", 8), sizes)], (), autocast)


class Encoded(nn.Module):
    """Attention as torch's own layers have it."""

    def __init__(self, layer: nn.Module, **options: Any) -> None:
        super().__init__()
        self.layer, self.options = layer, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(self.layer, nn.MultiheadAttention):
            return self.layer(x)
        return self.layer(x, x, x, **self.options)[0]


LAYERS = {
    "attention": lambda: Encoded(nn.MultiheadAttention(8, 2, batch_first=True), need_weights=False),
    "weights of attention": lambda: Encoded(nn.MultiheadAttention(8, 2)),
    "an encoder": lambda: Encoded(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)),
}


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_torchs(name: str, trained: bool) -> None:
    torch.manual_seed(0)
    with torch.set_grad_enabled(trained):
        check(
            LAYERS[name]().train(trained), lambda sizes: [made(("b", "n", 8), sizes)], (0,) if trained else ()
        )


class Multiplied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return x @ y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = ctx.saved_tensors
        return grad @ y.t(), (x.transpose(1, 2) @ grad).sum(0)


def test_products_inside_of_other_calls() -> None:
    def make(sizes: dict[str, int]) -> list[torch.Tensor]:
        return [made("bnd", sizes), made("dm", sizes)]

    check(lambda x, y: Multiplied.apply(x, y).sin(), make, (0, 1))
    check(lambda x, y: torch.func.grad(lambda z: (z @ y).sin().sum())(x), make)


def test_sizes_that_do_not_go_together() -> None:
    compiled = smelt.compile(torch.matmul, dynamic=True)
    compiled(torch.randn(3, 5, 7), torch.randn(7, 4))
    for shapes in (((3, 5, 7), (6, 4)), ((3, 5, 7), (2, 7, 4)), ((2, 3, 5, 7), (4, 7, 3)), ((3, 5, 7), ())):
        given = tuple(torch.randn(shape) for shape in shapes)
        got, want = observe(compiled, given, 0), observe(torch.matmul, given, 0)
        assert str(got.error) == str(want.error)
        assert type(got.error) is type(want.error)


def attention(**options: Any) -> Callable[..., torch.Tensor]:
    """By torch's own formula, not by one of its kernels."""

    def function(*given: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(*given, **options)

    return function


HEADS = ("b", 2, "n", 8)
ATTENTION: dict[str, tuple[Callable[..., torch.Tensor], list[Shape]]] = {
    "plain": (attention(), [HEADS] * 3),
    "causal": (attention(is_causal=True), [HEADS, *[("b", 2, "h", 8)] * 2]),
    "a mask": (attention(), [*[HEADS] * 3, "nn"]),
    "a mask of bools": (
        lambda q, k, v, mask: attention(attn_mask=mask > 0)(q, k, v),
        [*[HEADS] * 3, ("b", 1, "n", "n")],
    ),
    "a scale": (attention(scale=0.5), [HEADS] * 3),
    "a negative scale": (attention(scale=-0.5), [HEADS] * 3),
    "groups of heads": (attention(enable_gqa=True), [("b", 4, "n", 8), HEADS, HEADS]),
    "no heads": (attention(), ["bnd"] * 3),
    "other values": (attention(), [HEADS, HEADS, ("b", 2, "n", 6)]),
    "transposed": (
        lambda *given: attention()(*(x.transpose(1, 2) for x in given)),
        [("b", "n", 2, 8)] * 3,
    ),
    "a mask for no kernel": (
        lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask.permute(0, 3, 1, 2)),
        [*[HEADS] * 3, ("b", "n", "n", 2)],
    ),
    "a bias that is learned": (F.scaled_dot_product_attention, [*[HEADS] * 3, (1, 2, "n", "n")]),
}


@pytest.mark.parametrize("gradients", [(), (0, 1, 2, 3)], ids=["none", "all"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str, gradients: tuple[int, ...]) -> None:
    function, shapes = ATTENTION[name]
    check(function, lambda sizes: [made(shape, sizes) for shape in shapes], gradients)
    check(function, lambda sizes: [made(shape, sizes) for shape in shapes], gradients, autocast=True)


def test_the_choice_of_an_attention_kernel_guards_layouts_alone() -> None:
    """Not that queries, keys and values are distinct objects: an entry with such a guard supersedes no entry without."""
    compiled = smelt.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), dynamic=True)
    compiled(*(made(HEADS, SIZES[0]) for _ in range(3)))
    (entry,) = entries(compiled)
    assert "distinct" not in {guard.kind for guard in entry.facts}


def test_dropout_of_attention() -> None:
    """Eager's random numbers are drawn."""
    compiled = smelt.compile(attention(dropout_p=0.5), dynamic=True)
    for sizes in SIZES:
        given = [made(HEADS, sizes) for _ in range(3)]
        seen = [observe(call, tuple(given), 0) for call in (compiled, attention(dropout_p=0.5))]
        same(seen[0].result, seen[1].result)
    assert len(entries(compiled)) == 1
