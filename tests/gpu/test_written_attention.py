"""Attention that a program writes out is computed by torch's kernels: results, gradients, what is kept, and where it must
not be. Where there is no CUDA, on the simulated device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import smelt
from smelt import events
from smelt.graph.graph_printer import code
from smelt.targets import sdpa_backends as of_torch
from tests.harness import attention
from tests.harness.attention import (
    ELSEWHERE,
    INF,
    B,
    D,
    H,
    L,
    Program,
    S,
    Seen,
    bf16,
    check,
    f16,
    f32,
    heads,
    kernels,
    operands,
    run,
)

pytestmark = attention.MARKS


@pytest.fixture(autouse=True)
def seen() -> Iterator[Seen]:
    with attention.watched() as found:
        yield found


# ---- how it is written


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scores(q, k).softmax(-1) @ v


def scaled_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(F.softmax((q * 0.3) @ k.mT, dim=3), v)


def scaled_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.matmul(q, k.permute(0, 1, 3, 2) * 0.3), -1) @ v


def scaled_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (0.5 * (q @ k.mT).mul(0.7)).softmax(-1) @ v


def of_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = F.softmax(scores(q, k), dim=-1, dtype=torch.float32).to(q.dtype)
    return F.dropout(weights, p=0.0, training=True) @ v


def computed_in_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scores(q, k).float().softmax(-1).type_as(q) @ v


def in_eval(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.dropout(scores(q, k).softmax(-1), 0.1, training=False) @ v


def einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (torch.einsum("bhid,bhjd->bhij", q, k) * 0.3).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def einsum_of_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads are the last dimension but one, as in flax."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.3).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.reshape(B * H, -1, D) for x in (q, k, v))
    return torch.bmm(torch.bmm(q, k.transpose(1, 2)).mul_(0.3).softmax(2), v).view(B, H, L, D)


def baddbmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.reshape(B * H, -1, D) for x in (q, k, v))
    nothing = torch.empty(B * H, L, S, dtype=q.dtype, device=q.device)
    weights = torch.baddbmm(nothing, q, k.transpose(1, 2), beta=0, alpha=0.3).softmax(-1)
    return torch.bmm(weights, v)


def one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = q[:, 0], k[:, 1], v[:, 2]
    return scores(q, k).softmax(-1) @ v


def scaled_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT).masked_fill(k[:, :, None, :, 0] > 9, -INF) * 0.3).softmax(-1) @ v


def of_layers(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What is around it in models."""
    return plain(q, k, v).transpose(1, 2).reshape(B, L, H * D).relu()


PLAIN = [
    *(plain, scaled_queries, scaled_keys, scaled_twice, of_float32, computed_in_float32, in_eval, einsum),
    *(einsum_of_rows, bmm, baddbmm, one_head, of_layers),
]


@pytest.mark.parametrize("program", PLAIN)
@pytest.mark.parametrize("dtype", [f32, bf16])
def test_ways_to_write_it(program, dtype, seen):
    check(program, operands(dtype))
    kind = "efficient_attention" if dtype is f32 else "flash_attention"
    assert seen.kernels == [kind, f"{kind}_backward"], code(seen.fused[0].graph)
    assert not any("softmax" in str(n.target) for n in seen.fused[0].graph)


@pytest.mark.parametrize("program", PLAIN)
def test_inference(program, seen):
    if program is of_float32 and ELSEWHERE:
        pytest.skip("the CPU that simulates it has no softmax of float16 to float32")
    with torch.no_grad():
        check(program, operands(f16), backward=False)
    assert seen.kernels == ["flash_attention"]


def test_autocast(seen):
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cuda", bf16, enabled=q.dtype is f32):
            return plain(q, k, v)

    check(program, operands(f32))
    assert seen.kernels == ["flash_attention", "flash_attention_backward"]


def test_other_head_size_of_values(seen):
    given = [heads(L), heads(S), heads(S, d=16)]
    check(plain, given)
    assert seen.kernels == ["efficient_attention", "efficient_attention_backward"]


# ---- what is added to the scores


def added(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (scores(q, k) + bias).softmax(-1) @ v


def added_in_place(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """As T5 does it."""
    weights = q @ k.mT
    weights += bias
    wide = weights if weights.dtype is torch.float64 else weights.float()
    return F.softmax(wide, -1).type_as(weights) @ v


def taken_away(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (scores(q, k) - bias).softmax(-1) @ v


def added_by_baddbmm(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    q, k, v = (x.reshape(B * H, -1, D) for x in (q, k, v))
    bias = bias.expand(B, H, L, S).reshape(B * H, L, S)
    return torch.bmm(torch.baddbmm(bias, q, k.mT, alpha=0.3).softmax(-1), v)


def scaled_with_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return ((q @ k.mT + bias) * 0.3).softmax(-1) @ v


@pytest.mark.parametrize("program", [added, added_in_place, taken_away, added_by_baddbmm, scaled_with_bias])
@pytest.mark.parametrize("shape", [(1, H, L, S), (B, 1, 1, S), (B, H, L, S), (H, L, 1), (L, S)])
@pytest.mark.parametrize("dtype", [f32, bf16])
def test_bias_with_a_gradient(program, shape, dtype, seen):
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(5)).to(dtype).cuda()
    check(program, [*operands(dtype), bias])
    assert seen.kernels == ["efficient_attention", "efficient_attention_backward"]


def test_bias_that_lies_in_another_order(seen):
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return added(q, k, v, k[:, :, None, :, 0])

    with torch.no_grad():
        check(program, operands(), backward=False)
    assert seen.kernels == ["efficient_attention"]


def test_bias_of_float32_that_is_rounded_by_the_program(seen):
    bias = torch.randn(1, H, L, S, generator=torch.Generator().manual_seed(5)).cuda()
    check(added_in_place, [*operands(bf16), bias])
    assert seen.kernels == ["efficient_attention", "efficient_attention_backward"]


def test_bias_that_is_more_exact_stays(seen):
    def program(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return (scores(q, k) + bias).softmax(-1).type_as(v) @ v

    bias = torch.randn(1, H, L, S, generator=torch.Generator().manual_seed(5)).cuda()
    check(program, [*operands(bf16), bias])
    assert seen.kernels == [] and "more precision" in seen.why_not[0]


def mask(keys_of_first: int = S) -> Tensor:
    """[b, 1, l, s]: no row looks beyond itself by more than 20 keys; the first sequence has some keys only."""
    seen_keys = torch.ones(L, S, dtype=torch.bool).tril(20)[None, None].repeat(B, 1, 1, 1)
    seen_keys[0, :, :, keys_of_first:] = False
    return seen_keys.cuda()


@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize("keys", [S, 5, 0])
@pytest.mark.parametrize("low", ["-inf", "lowest", "-1e4"])
def test_added_mask(dtype, keys, low, seen):
    """Rows that see nothing are NaN with minus infinity; with the lowest number they see everything alike."""
    number = {"-inf": -INF, "lowest": torch.finfo(dtype).min, "-1e4": -1e4}[low]
    bias = torch.zeros(B, 1, L, S, dtype=dtype, device="cuda").masked_fill(~mask(keys), number)
    with torch.no_grad():
        check(lambda q, k, v: added(q, k, v, bias.to(q.dtype)), operands(dtype), backward=False)
    assert seen.kernels == ["efficient_attention"]


@pytest.mark.parametrize("keys", [S, 5, 0])
@pytest.mark.parametrize("number", [-INF, -1e4])
def test_added_mask_in_training(keys, number, seen):
    """Where it shows that the mask hides no row with huge numbers."""

    def program(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return added(q, k, v, torch.zeros(L, S, dtype=q.dtype, device=q.device).masked_fill(~m, number))

    check(program, [*operands(), mask(keys)])
    assert seen.kernels == ["efficient_attention", "efficient_attention_backward"]


def lowest(m: Tensor, dtype: torch.dtype) -> Tensor:
    zero = torch.zeros((), dtype=dtype, device=m.device)
    return torch.where(m, zero, torch.full((), torch.finfo(dtype).min, dtype=dtype, device=m.device))


def with_lowest(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """As transformers has it."""
    return added(q, k, v, lowest(m, q.dtype))


def positions_and_lowest(q: Tensor, k: Tensor, v: Tensor, m: Tensor, table: Tensor) -> Tensor:
    """As T5 has it: a learned bias for each distance, and a mask."""
    distance = (torch.arange(L, device=q.device)[:, None] - torch.arange(S, device=q.device)).clamp(-9, 9) + 9
    bias = F.embedding(distance, table).permute(2, 0, 1)[None]
    return added_in_place(q, k, v, bias + lowest(m, q.dtype))


@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize("keys", [S, 5, 0])
@pytest.mark.parametrize("program", [with_lowest, positions_and_lowest])
def test_added_lowest_numbers_in_training(dtype, keys, program, seen):
    """Rows that see nothing see all alike, and have a part in all gradients."""
    given = [*operands(dtype), mask(keys)]
    if program is positions_and_lowest:
        given.append(torch.randn(19, H, generator=torch.Generator().manual_seed(7)).to(dtype).cuda())
    check(program, given)
    assert seen.kernels == ["efficient_attention", "efficient_attention_backward"]


def test_mask_of_an_input_that_may_hide_a_row_stays_in_training(seen):
    """The kernel's backward has no digits left for the sum of such a row."""
    bias = torch.zeros(B, 1, L, S, device="cuda").masked_fill(~mask(0), torch.finfo(f32).min)
    check(lambda q, k, v: added(q, k, v, bias.to(q.dtype)), operands())
    assert seen.kernels == [] and "mask an entire row" in seen.why_not[0]


def filled(number: float) -> Program:
    return lambda q, k, v, m: scores(q, k).masked_fill(m == 0, number).softmax(-1) @ v


def chosen(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    x = scores(q, k)
    lowest = torch.finfo(x.dtype).min
    return torch.where(m, x, torch.full([], lowest, dtype=x.dtype, device=x.device)).softmax(-1) @ v


@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize("keys", [S, 5, 0])
@pytest.mark.parametrize("program", [filled(-1e9), chosen, filled(-INF)], ids=["-1e9", "lowest", "-inf"])
def test_masked(dtype, keys, program, seen, request):
    """Rows that see nothing: as above; they have no part in the gradients of queries and keys."""
    lost = keys == 0 and "-inf" in request.node.callspec.id.split("-", 1)[0]
    given = [*operands(dtype), mask(keys)]
    infinite = request.node.callspec.id.startswith("-inf")
    if infinite and keys == 0:  # NaN, and so are more gradients than eager's
        check(program, given, backward=False)
        found = run(smelt.compile(program), given)
        for a, b in zip(found, run(program, given), strict=True):
            assert bool((a.isnan() | ~b.isnan()).all()) and not bool(a[1].isnan().any())
            torch.testing.assert_close(a[1], b[1], rtol=0.05, atol=0.05)
    else:
        check(program, given)
    assert lost or "efficient_attention" in seen.kernels


def test_lowest_numbers_of_float32_beside_bfloat16(seen):
    """A mask that the graph computes in float32: its few numbers are seen to be as good in bfloat16."""

    def program(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        zero = torch.zeros((), device=q.device)
        bias = torch.where(m, zero, torch.finfo(f32).min)
        return added(q, k, v, bias).to(q.dtype)

    def in_half(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        with torch.autocast("cuda", bf16, enabled=q.dtype is f32):
            return program(q, k, v, m)

    for keys in (S, 0):
        check(in_half, [*operands(f32), mask(keys)])
    assert seen.kernels == 2 * ["efficient_attention", "efficient_attention_backward"]


# ---- numbers that are none


@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize("number", [INF, -INF, float("nan")])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_inputs_that_are_not_finite(dtype, number, which, seen):
    """Where eager gives NaN, so do the kernels; elsewhere results are the same. On a GPU an infinite number of float32 is
    split for TF32, and makes NaN of all that is computed with it."""
    given = [x.clone() for x in operands(dtype)]
    given[which][0, 0, 3, 2] = number
    given[1][..., 2] = given[1][..., 2].abs()  # so that all scores of a row are infinite
    if dtype is bf16 or ELSEWHERE:
        check(plain, given, backward=False)
    found, eager = run(smelt.compile(plain), given), run(plain, given)
    for a, b in zip(found, eager, strict=True):
        assert bool((a.isnan() | ~b.isnan()).all())
        torch.testing.assert_close(a[1], b[1], rtol=0.05, atol=0.05)
    assert "attention" in seen.kernels[0]


# ---- where it stays


def returned(q: Tensor, k: Tensor, v: Tensor) -> Any:
    weights = scores(q, k).softmax(-1)
    return (weights @ v).sum() + weights[0, 0, 0].sum()


def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.dropout(scores(q, k).softmax(-1), 0.5) @ v


def changed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scores(q, k).softmax(-1).mul(2) @ v


def learned_scale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * v[0, 0, 0, 0]).softmax(-1) @ v


def masked_before_adding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (scores(q, k).masked_fill(q[..., :1] > 0, -1e9) + k[:, :, None, :, 0]).softmax(-1) @ v


def weak_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scores(q, k).masked_fill(q[..., :1] > 0, -10.0).softmax(-1) @ v


def other_dimension(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scores(q, k).softmax(-2) @ v


def negative(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * -0.3).softmax(-1) @ v


@pytest.mark.parametrize(
    "program",
    [returned, dropped, changed, learned_scale, masked_before_adding, weak_mask, other_dimension, negative],
)
def test_what_stays(program, seen):
    smelt.compile(program, fullgraph=True)(*operands())
    if program is not dropped:
        check(program, operands())
    assert seen.kernels == []


def test_float64_and_odd_heads_stay(seen):
    check(plain, [x.double() for x in operands()])
    check(plain, [heads(L, d=6), heads(S, d=6), heads(S, d=6)])
    assert seen.kernels == []


def test_returned_weights_stay(seen):
    def program(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = scores(q, k).softmax(-1)
        return weights @ v, weights

    with torch.no_grad():
        for a, b in zip(smelt.compile(program)(*operands()), program(*operands()), strict=True):
            torch.testing.assert_close(a, b)
    assert seen.kernels == [] and "read by output" in seen.why_not[0]


def test_deterministic_training_stays(seen):
    torch.use_deterministic_algorithms(True)
    try:
        check(plain, operands())
        assert seen.kernels == []
        with torch.no_grad():
            check(plain, operands(), backward=False)
        assert seen.kernels == ["efficient_attention"]
    finally:
        torch.use_deterministic_algorithms(False)


def test_where_torch_takes_no_kernel(seen):
    with kernels(False):
        check(plain, operands())
    assert seen.kernels == [] and "no kernel" in seen.why_not[0]


def test_option():
    plans: list[Any] = []
    with (
        events.subscribed(lambda e: plans.append(e.data["externs"]) if e.kind == "plan" else None),
        torch.no_grad(),
    ):
        smelt.compile(plain, options={"fused_attention": False})(*operands())
        smelt.compile(plain)(*operands())
    assert ["attention" in str(externs) for externs in plans] == [False, True]


# ---- what it saves


class Layer(nn.Module):
    """Causal attention with its mask as a buffer and one layer for queries, keys and values, as nanoGPT has it."""

    def __init__(self, width: int = 64, heads: int = 4, most: int = 512, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("seen", torch.ones(1, 1, most, most).tril() if causal else None)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).split(c, dim=2)
        q, k, v = (t.view(b, n, self.heads, c // self.heads).transpose(1, 2) for t in (q, k, v))
        weights = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(k.size(-1)))
        if self.seen is not None:
            weights = weights.masked_fill(self.seen[:, :, :n, :n] == 0, -INF)
        y = weights.softmax(-1) @ v
        return self.out(y.transpose(1, 2).contiguous().view(b, n, c))


def layer(causal: bool) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Layer(causal=causal).cuda(), torch.randn(2, 512, 64).cuda().requires_grad_()


@pytest.mark.parametrize("causal", [False, True])
def test_neither_scores_nor_probabilities_are_kept(causal, seen):
    """Between forward and backward: less than the probabilities take in bfloat16."""
    held = {}
    for fused in (False, True):
        module, x = layer(causal)
        call = smelt.compile(module, fullgraph=True, options={"fused_attention": fused})
        for _ in range(2):  # the first call makes what stays
            before = torch.cuda.memory_allocated()
            with torch.autocast("cuda", bf16):
                out = call(x)
            held[fused] = torch.cuda.memory_allocated() - before
            out.float().square().mean().backward()
            del out
    probabilities = 2 * 4 * 512 * 512 * 2
    assert held[True] < probabilities < held[False], held
    assert "backward" in seen.kernels[-1]


@pytest.mark.parametrize("causal", [False, True])
def test_launches(causal):
    """Beside products and attention: weights and input are cast, the mask is made, and the result is copied by heads."""
    found: list[dict[str, Any]] = []
    module, x = layer(causal)
    plans = events.subscribed(lambda e: found.append(e.data) if e.kind == "plan" else None)
    with plans, torch.no_grad(), torch.autocast("cuda", bf16):
        smelt.compile(module, fullgraph=True)(x)
    [plan] = found
    names = [str(name).removeprefix("aten.") for name in plan["externs"]]
    assert sorted(n.split(".")[0] for n in names) == sorted(
        ["addmm", f"_scaled_dot_product_{'efficient' if causal else 'flash'}_attention"]
    )
    assert plan["kernels"] <= 3 + causal, plan


def test_layer(seen):
    for dtype in (f32, bf16):
        for causal in (False, True):
            module, x = layer(causal)
            module = module.to(dtype)
            check(
                _with_parameters(module), [x.detach().to(dtype), *(p.detach() for p in module.parameters())]
            )
    assert len(seen.kernels) == 8


def _with_parameters(module: nn.Module) -> Program:
    names = [name for name, _ in module.named_parameters()]

    def program(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x,))

    return program


# ---- what is around it


def test_layers_and_gradients_of_some(seen):
    """Two layers, of which only the values of the second need gradients; a projection that both read."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        once = plain(q, k, v).detach()
        return plain(once, k.detach(), v)

    check(program, operands())
    assert (
        seen.kernels
        == ["efficient_attention", *2 * ["efficient_attention"], "efficient_attention_backward"][1:]
    )


def test_keys_and_values_that_are_returned(seen):
    """The caller may write them before the backward, as in eager."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        k, v = k * 1.5, v * 2
        return plain(q, k, v), k, v

    grads = []
    for call, dtype in (
        (program, torch.float64),
        (program, f32),
        (smelt.compile(program, fullgraph=True), f32),
    ):
        given = [x.detach().to(dtype, copy=True).requires_grad_() for x in operands()]
        out, k, v = call(*given)
        with torch.no_grad():
            k.zero_()
        out.square().sum().backward()
        grads.append([x.grad for x in given])
    for exact, eager, found in zip(*grads, strict=True):
        bound = 3 * (eager - exact).abs().max() + 8 * torch.finfo(f32).eps * exact.abs().max()
        assert (found - exact).abs().max() <= bound
    assert "efficient_attention_backward" in seen.kernels


@pytest.mark.parametrize("dtype", [f32, bf16])
def test_inputs_that_begin_anywhere(dtype, seen):
    """Kernels read whole vectors; eager takes any address. One entry serves both."""
    count = B * H * L * D
    memory = [
        torch.randn(count + 1, generator=torch.Generator().manual_seed(i)).to(dtype).cuda() for i in range(4)
    ]
    compiled = smelt.compile(plain, fullgraph=True)
    for first in (0, 1):
        grads = []
        for call in (plain, compiled):
            *given, tangent = (m[first:][:count].view(B, H, L, D) for m in memory)
            given = [x.detach().requires_grad_() for x in given]
            grads.append((*torch.autograd.grad(call(*given), given, tangent), call(*given).detach()))
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)
    assert len(seen.fused) == 1 and len(seen.kernels) == 2


def test_second_derivatives(seen):
    def penalty(call: Program) -> list[Tensor]:
        given = [x.detach().clone().requires_grad_() for x in operands()]
        [first] = torch.autograd.grad(call(*given).square().sum(), given[0], create_graph=True)
        first.square().sum().backward()
        return [x.grad for x in given]  # type: ignore[misc]

    for a, b in zip(penalty(smelt.compile(plain, fullgraph=True)), penalty(plain), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert seen.kernels == ["efficient_attention", "efficient_attention_backward"]


def test_checkpoint(seen):
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return checkpoint(plain, q, k, v, use_reentrant=False)

    check(program, operands())
    assert "efficient_attention_backward" in seen.kernels


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_few_scores_with_something_added_stay_products(seen, monkeypatch, bias, backward):
    """Where nothing is kept for a backward: there they are as fast."""
    monkeypatch.setattr(of_torch, "FEW", 32 << 20)
    given = operands(bf16)
    given += [torch.randn(L, S, device="cuda").to(bf16)] if bias else []

    def program(q, k, v, *more):
        return torch.softmax(sum(more, scores(q, k)), -1) @ v

    run(smelt.compile(program, fullgraph=True), given, backward)
    assert bool(seen.kernels) == (backward or not bias)
