"""Which attention is generated under `max-autotune`: what of a schedule it stands for, and that results stay eager's."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import smelt
from smelt.codegen.autotune import autotuner
from smelt.codegen.triton.attention_kernel import TiledAttention
from smelt.codegen.triton.block_gemm import Tile
from smelt.report import inspect
from tests.harness import attention_tiles
from tests.harness.attention import wide
from tests.harness.contests import Device, contested
from tests.harness.triton_launcher import launch_attention
from tests.simulated import cuda

pytestmark = pytest.mark.simulated_cuda

bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
INF = math.inf
B, H, L, S, D = 2, 4, 24, 40, 16
OPTIONS = {"max_autotune": True, "fused_attention": False}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[Device]:
    yield from contested(monkeypatch, tmp_path)


def rand(*shape: int, dtype: torch.dtype = f16) -> Tensor:
    return (torch.randn(*shape) / 2).to("cuda", dtype)


def bools(*shape: int) -> Tensor:
    return (torch.rand(*shape) < 0.7).cuda()


def heads(dtype: torch.dtype = f16, groups: int = 1, lengths: tuple[int, int] = (L, S)) -> list[Tensor]:
    n, m = lengths
    return [rand(B, H, n, D, dtype=dtype), *(rand(B, H // groups, m, D, dtype=dtype) for _ in range(2))]


def run(fn: Callable[..., Tensor], *args: Tensor, eager: Callable[..., Tensor] | None = None) -> list[str]:
    """Compiled results are as near those in float64 as eager's, and NaN where those are; what the second call launches.
    `eager`: another program that means the same."""
    want = (eager or fn)(*args)
    exact = (eager or fn)(*map(wide, args))
    compiled = smelt.compile(fn, options=OPTIONS)
    with torch.no_grad():
        for _ in range(2):
            cuda.forget_launches()
            check(compiled(*args), want, exact)
    assert inspect.graph_count(compiled) == 1 and not inspect.reasons(compiled)
    return [launch.name for launch in cuda.launches()]


def check(found: Tensor, eager: Tensor, exact: Tensor) -> None:
    assert (found.shape, found.dtype, found.stride()) == (eager.shape, eager.dtype, eager.stride())
    assert torch.equal(found.isnan(), exact.isnan())
    a, b, c = (x.double().nan_to_num() for x in (found, eager, exact))
    ours, theirs = float((a - c).abs().max()), float((b - c).abs().max())
    size = max(float(c.abs().max()), 0.1)
    assert ours <= 1.5 * theirs + 2 * torch.finfo(found.dtype).eps * size, (
        f"{ours} from float64, eager {theirs}"
    )


def generated(device: Device) -> TiledAttention:
    """The attention that was made, in whichever tile."""
    [made] = {a for a in device.compiled if isinstance(a, TiledAttention)}
    return made


def written(score: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def attention(q, k, v, *given):
        return torch.softmax(score(q @ k.mT * 0.25, *given), -1).to(v.dtype) @ v

    return attention


def dense(score: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """What flex attention gives, as a program of its own: scores in float32, rows that see nothing are 0."""

    def attention(q, k, v, *given):
        place = [torch.arange(n, device=q.device) for n in (B, H, L, S)]
        b, h, i, j = (x.view([-1 if d == n else 1 for d in range(4)]) for n, x in enumerate(place))
        s = (q @ k.mT if q.dtype is torch.float64 else q.float() @ k.float().mT) / D**0.5
        p = torch.softmax(score(s, b, h, i, j, *given), -1)
        return p.nan_to_num(0.0).to(v.dtype) @ v

    return attention


def flex(score=None, mask=None, **options) -> Callable[..., Tensor]:
    def attention(q, k, v, *given):
        score_mod = score and (lambda s, b, h, i, j: score(s, b, h, i, j, *given))
        return flex_attention(q, k, v, score_mod=score_mod, **options)

    return attention


SCORES: dict[str, tuple[Callable[..., Tensor], Callable[[torch.dtype], tuple[Tensor, ...]]]] = {
    "nothing": (lambda s: s, lambda d: ()),
    "soft cap": (lambda s: torch.tanh(s / 5) * 5, lambda d: ()),
    "bias": (lambda s, b: s + b, lambda d: (rand(H, L, S, dtype=d),)),
    "bias of float32": (lambda s, b: s.float() + b, lambda d: (rand(1, H, L, S, dtype=f32),)),
    "mask of bools": (lambda s, m: s.masked_fill(~m, -INF), lambda d: (bools(B, 1, L, S),)),
    "padding": (lambda s, n: s.masked_fill(torch.arange(S, device="cuda") >= n[:, None, None, None], -INF),
                lambda d: (torch.tensor([30, 17]).cuda(),)),
    "a row that sees nothing": (lambda s, m: s.masked_fill(m, -INF), lambda d: (_rows_hidden(),)),
    "lowest number": (lambda s, m: s.float().masked_fill(m, torch.finfo(f32).min), lambda d: (_rows_hidden(),)),
    "alibi": (lambda s, a: s - a[:, None, None] * _distance(), lambda d: (rand(H, dtype=d),)),
    "causal": (lambda s: s.masked_fill(torch.ones(L, S, dtype=torch.bool, device="cuda").triu(1), -INF), lambda d: ()),
    "causal, aligned at the end": (
        lambda s: torch.where(torch.ones(L, S, dtype=torch.bool, device="cuda").tril(S - L), s, -INF), lambda d: ()),
    "window": (lambda s: torch.where((_distance() >= 0) & (_distance() < 9), s, -INF), lambda d: ()),
    "relative position": (lambda s, t: s + t[(_distance().clamp(-16, 15) + 16)].permute(2, 0, 1),
                          lambda d: (rand(32, H, dtype=d),)),
    "infinite": (lambda s, b: s + b, lambda d: (_infinite(d),)),
}  # fmt: skip


def _distance() -> Tensor:
    return torch.arange(L, device="cuda")[:, None] - torch.arange(S, device="cuda")


def _rows_hidden() -> Tensor:
    mask = torch.rand(B, 1, L, S) < 0.3
    mask[:, :, 3:6] = True
    return mask.cuda()


def _infinite(dtype: torch.dtype) -> Tensor:
    bias = torch.randn(B, 1, L, S)
    bias[0, 0, 3, 5], bias[1, 0, 7, 2], bias[1, 0, 9] = INF, math.nan, -INF
    return bias.to("cuda", dtype)


@pytest.mark.parametrize("name, dtype", zip(SCORES, itertools.cycle((f16, bf16))))
def test_written_out(device, name, dtype):
    score, given = SCORES[name]
    args = (*heads(dtype), *given(dtype))
    names = run(written(score), *args)
    assert sum("attention" in n for n in names) == 1 and device.measured == 1
    assert len(names) == 1 + ("relative position" in name), names
    assert not any("result" in str(v) and v.dtype in (f16, bf16) for v in [generated(device).score])


def test_causal_masks_are_known(device):
    bounds = {"causal": 0, "causal, aligned at the end": S - L, "window": 0, "mask of bools": None}
    for name, bound in bounds.items():
        score, given = SCORES[name]
        run(written(score), *heads(), *given(f16))
        assert generated(device).key_bound == bound, name
        device.compiled.clear()


FLEX: dict[str, tuple[Callable[..., Tensor], Callable[[], tuple[Tensor, ...]]]] = {
    "distance": (lambda s, b, h, i, j: s + (i - j), lambda: ()),
    "bias": (lambda s, b, h, i, j, bias: s + bias[h, i, j], lambda: (rand(H, L, S),)),
    "alibi": (lambda s, b, h, i, j, a: s - a[h] * (i - j), lambda: (rand(H, dtype=f32),)),
    "documents": (lambda s, b, h, i, j, d: torch.where(d[b, i] == d[b, j], s, -INF),
                  lambda: (torch.randint(3, (B, S)).cuda(),)),
    "soft cap": (lambda s, b, h, i, j: torch.tanh(s / 5) * 5, lambda: ()),
}  # fmt: skip


@pytest.mark.parametrize("name, dtype", zip(FLEX, itertools.cycle((f16, bf16))))
def test_score_functions_of_flex_attention(device, name, dtype):
    score, given = FLEX[name]
    names = run(flex(score), *heads(dtype), *given(), eager=dense(score))
    assert sum("attention" in n for n in names) == 1 and device.measured >= 1
    made = generated(device)
    assert made.empty == 0 and (made.q.value.op, made.q.value.dtype) == ("load", dtype)


def test_masks_of_flex_attention(device):
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, L, S, device="cuda")
    lengths = torch.tensor([30, 0]).cuda()
    padded = create_block_mask(lambda b, h, i, j: j < lengths[b], B, None, L, S, device="cuda")
    for given, bound in ((mask, 0), (padded, None)):
        names = run(lambda q, k, v: flex_attention(q, k, v, block_mask=given), *heads())
        assert sum("attention" in n for n in names) == 1
        assert generated(device).key_bound == bound
        device.compiled.clear()


def test_heads_that_share_keys(device):
    names = run(flex(enable_gqa=True), *heads(groups=2))
    assert sum("attention" in n for n in names) == 1

    def repeated(q, k, v):
        k, v = (x[:, :, None].expand(B, H // 2, 2, S, D).reshape(B, H, S, D) for x in (k, v))
        return (torch.tanh(q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(B, L, H * D)

    device.compiled.clear()
    device.times = lambda tile, variant: 50.0
    names = run(repeated, *heads(groups=2))
    assert sum("attention" in n for n in names) == 1


def packed(x: Tensor) -> Tensor:
    n = x.shape[1]
    q, k, v = x.view(B, n, 3, H, D).permute(2, 0, 3, 1, 4)
    return (torch.tanh(q @ k.mT * 0.25).softmax(-1) @ v).transpose(1, 2).reshape(B, n, H * D)


def test_queries_are_read_where_they_are(device):
    """Of a packed projection, without copies by heads; and the result is written by places, then heads."""
    device.times = lambda tile, variant: 10.0 if variant else 50.0
    names = run(packed, rand(B, L, 3 * H * D))
    assert len(names) == 1, names


def test_under_autocast(device):
    def fn(q, k, v):
        with torch.autocast("cuda", dtype=bf16):
            return torch.tanh(q @ k.mT).softmax(-1) @ v

    device.times = lambda tile, variant: 10.0 if variant else 50.0
    assert len(run(fn, *(x.float() for x in heads()))) == 1


@pytest.mark.parametrize("lengths", ((1, 1), (1, 40), (40, 1), (7, 13), (64, 64), (130, 2)))
def test_lengths(device, lengths):
    names = run(written(torch.tanh), *heads(lengths=lengths))
    assert any("attention" in n for n in names) == (lengths[1] > 1), names


def test_a_single_head_without_a_batch(device):
    args = rand(L, D), rand(S, D), rand(S, D + 8)
    names = run(lambda q, k, v: (q @ k.t() + 1).softmax(-1) @ v, *args)
    assert len(names) == 1 and "attention" in names[0]


@pytest.mark.parametrize("beta, alpha", ((1, 1), (1.0, 0.25), (0.5, 2), (0, 0.25)))
def test_a_bias_that_the_product_adds(device, beta, alpha):
    def fn(q, k, v, b):
        return torch.bmm(torch.baddbmm(b, q, k.mT, beta=beta, alpha=alpha).softmax(-1), v)

    names = run(fn, rand(3, L, D), rand(3, S, D), rand(3, S, D), rand(3, 1, S))
    assert len(names) == 1 and "attention" in names[0]


@pytest.mark.parametrize("name", ("alibi", "padding", "relative position"))
def test_code_that_is_made_of_programs(device, name):
    """Triton's interpreter runs it on CPU tensors, and gives what its loops mean."""
    score, given = SCORES[name]
    run(written(score), *heads(), *given(f16))
    _interpreted(generated(device))


def test_code_that_is_made_of_packed_heads_and_of_flex_attention(device):
    device.times = lambda tile, variant: 10.0 if variant else 50.0
    run(packed, rand(B, L, 3 * H * D))
    score, given = FLEX["documents"]
    run(flex(score), *heads(), *given(), eager=dense(score))
    made = {a for a in device.compiled if isinstance(a, TiledAttention)}
    assert len(made) == 3
    for attention in made:
        _interpreted(attention)


def _interpreted(attention: TiledAttention) -> None:
    pytest.importorskip("triton")
    tensors = []
    for buffer in attention.buffers:
        x = torch.randn(1 << 14)
        tensors.append((x if buffer.dtype.is_floating_point else x > 0).to(buffer.dtype))
    tensors[-1].fill_(7)
    want = [t.clone() for t in tensors]
    attention_tiles.interpret_loops(attention, want)
    launch_attention(attention, Tile(32, 32, 0, 4, 2), *tensors)
    torch.testing.assert_close(tensors, want, rtol=4e-3, atol=4e-3, equal_nan=True)


LEFT: dict[str, Callable[..., object]] = {
    "probabilities that are returned": lambda q, k, v: (lambda p: (p @ v).sum() + p.sum())(torch.softmax(q @ k.mT, -1)),
    "scores that are read twice": lambda q, k, v: (lambda s: (s.softmax(-1) @ v).sum() + s.sum())(q @ k.mT),
    "a softmax of columns": lambda q, k, v: torch.softmax(q @ k.mT, -2) @ v,
    "log softmax": lambda q, k, v: torch.log_softmax(q @ k.mT, -1) @ v,
    "float32": lambda q, k, v: torch.softmax(torch.tanh(q @ k.mT), -1) @ v,
    "a product of something else": lambda q, k, v: torch.softmax(q @ k.mT, -1) + (v @ v.mT)[..., :L, :],
    "sigmoid": lambda q, k, v: torch.sigmoid(q @ k.mT) @ v,
    "transposed probabilities": lambda q, k, v: torch.softmax(k @ q.mT, -1).mT @ v,
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(device, name):
    names = run(LEFT[name], *heads(f32 if name == "float32" else f16))
    assert not any("attention" in n for n in names), names
    assert not any(isinstance(a, TiledAttention) for a in device.compiled)


def test_products_are_generated_where_attention_is_slower(device):
    """Then each product is a contest of its own."""
    made = autotuner.Tuner._fastest

    def fastest(self, schedule, group, candidates):
        found = made(self, schedule, group, candidates)
        return None if isinstance(group.variants[0].product, TiledAttention) else found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(autotuner.Tuner, "_fastest", fastest)
        names = run(written(torch.tanh), *heads())
    assert not any("attention" in n for n in names) and sum("bmm" in n for n in names) == 2, names
    assert device.measured == 3


def test_a_wrong_kernel_is_not_used(device, caplog):
    device.wrong = True
    with caplog.at_level(logging.WARNING, "smelt"):
        names = run(written(torch.tanh), *heads())
    assert not any("attention" in n for n in names) and "is wrong" in caplog.text


def test_another_process_reads_the_choice(device):
    args = heads()
    first = run(written(torch.tanh), *args)
    autotuner._REMEMBERED.clear()
    smelt.reset()
    assert run(written(torch.tanh), *args) == first and device.measured == 1


def test_it_is_told(device, caplog):
    with caplog.at_level(logging.INFO, "smelt"):
        run(written(torch.tanh), *heads())
    assert f"attention attention_mul_tanh_softmax {B * H}×{L}×{S}×{D} float16: ATen" in caplog.text


def test_by_default_what_torch_has_a_kernel_for_is_torchs(device):
    compiled = smelt.compile(written(lambda s: s), mode="max-autotune-no-cudagraphs")
    cuda.simulated().simulated_use_fused_attention(True)
    try:
        with torch.no_grad():
            compiled(*heads())
    finally:
        cuda.simulated().simulated_use_fused_attention(False)
    assert device.measured == 0


def test_in_training_forward_and_backward_are_eagers(device):
    args, results = heads(), []
    for fn in (written(torch.tanh), smelt.compile(written(torch.tanh), options=OPTIONS)):
        given = [x.clone().requires_grad_() for x in args]
        out = fn(*given)
        out.float().square().sum().backward()
        results.append([out.detach(), *(x.grad for x in given)])
    torch.testing.assert_close(*results, rtol=2e-2, atol=2e-2)
