"""Generated attention on a GPU: errors beside eager's, against float64, in every tile that is tried; the tuning itself."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("Triton's interpreter is on", allow_module_level=True)

from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import smelt
from smelt.codegen.autotune import autotuner, device_timing
from smelt.codegen.autotune.gemm_candidates import Group
from smelt.codegen.triton.attention_kernel import TiledAttention
from smelt.runtime import disk_cache

f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32
INF = math.inf
B, H, L, S, D = 2, 4, 200, 300, 64
OPTIONS = {"max_autotune": True, "fused_attention": False}
Score = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    smelt.reset()
    monkeypatch.setattr(autotuner, "_REMEMBERED", {})
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))


class Preferred:
    """Has the candidate of a number be the fastest for attention, of all that run there; `found`: those, of the last
    contest. Products stay ATen's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number, self.found, self.groups = 0, list[autotuner.Choice](), list[Group]()
        fastest, compiled = autotuner.Tuner._fastest, autotuner.compile_products
        held: list[object] = []  # so that no tile is compiled again

        def chosen(tuner, schedule, group, candidates):
            if not isinstance(group.variants[0].product, TiledAttention):
                return None
            self.groups.append(group)
            return fastest(tuner, schedule, group, candidates)

        def seconds(calls, first, device):
            self.found = sorted((c for c in calls if c != first), key=lambda c: (c.variant, c.tile))
            return {
                c: 1.0 if c == first else 1e-6 * (1 + abs(self.found.index(c) - self.number)) for c in calls
            }

        def kept_compiled(*args):
            held.append(compiled(*args))
            return held[-1]

        monkeypatch.setattr(autotuner.Tuner, "_fastest", chosen)
        monkeypatch.setattr(device_timing, "seconds", seconds)
        monkeypatch.setattr(autotuner, "compile_products", kept_compiled)


@pytest.fixture
def preferred(monkeypatch: pytest.MonkeyPatch) -> Preferred:
    return Preferred(monkeypatch)


def rand(*shape: int, dtype: torch.dtype = f32) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def heads(
    dtype: torch.dtype, groups: int = 1, lengths: tuple[int, int] = (L, S), size: int = D
) -> list[Tensor]:
    n, m = lengths
    shapes = (B, H, n, size), (B, H // groups, m, size), (B, H // groups, m, size)
    return [rand(*shape, dtype=dtype) for shape in shapes]


def errors(found: Tensor, eager: Tensor, exact: Tensor) -> tuple[float, float]:
    """Relative to the result, of all that is a number; what is none must be none in float64."""
    assert (found.shape, found.dtype, found.stride()) == (eager.shape, eager.dtype, eager.stride())
    assert torch.equal(found.isnan(), exact.isnan())
    a, b, c = (x.double().nan_to_num() for x in (found, eager, exact))
    size = float(c.norm())
    return float((a - c).norm()) / size, float((b - c).norm()) / size


def check(
    fn: Score, args: list[Tensor], preferred: Preferred, all_tiles: bool = True, exact: Score | None = None
) -> None:
    """In all tiles (or the first), results are as near float64 as eager's. `exact`: the program in float64."""
    args64 = [x.double() if x.is_floating_point() else x for x in args]
    with torch.no_grad():
        want, eager = (exact or fn)(*args64), fn(*args)
    number = 0
    while number == 0 or (all_tiles and number < len(preferred.found)):
        preferred.number = number
        autotuner._REMEMBERED.clear()
        disk_cache.clear()
        smelt.reset()
        preferred.groups.clear()
        with torch.no_grad():
            found = smelt.compile(fn, options=OPTIONS, fullgraph=True)(*args)
        assert len(preferred.groups) == 1 and preferred.found, "attention was no candidate"
        assert any(autotuner._REMEMBERED.values()), "attention is not generated"
        ours, theirs = errors(found, eager, want)
        assert ours <= 1.2 * theirs + 1e-6, (preferred.found[number], ours, theirs)
        number += 1


@pytest.fixture(autouse=True)
def _never_wrong(caplog):
    with caplog.at_level(logging.WARNING, "smelt"):
        yield
    assert "wrong" not in caplog.text


def written(score: Score) -> Score:
    def attention(q, k, v, *given):
        return torch.softmax(score(q @ k.mT * D**-0.5, *given), -1).to(v.dtype) @ v

    return attention


def _distance() -> Tensor:
    return torch.arange(L, device="cuda")[:, None] - torch.arange(S, device="cuda")


def _rows_hidden() -> Tensor:
    mask = torch.rand(B, 1, L, S, device="cuda") < 0.3
    mask[:, :, 3:6] = True
    return mask


WRITTEN: dict[str, tuple[Score, Callable[[torch.dtype], list[Tensor]]]] = {
    "soft cap": (lambda s: torch.tanh(s / 5) * 5, lambda d: []),
    "bias": (lambda s, b: s + b, lambda d: [rand(H, L, S, dtype=d)]),
    "bias of float32": (lambda s, b: s.to(b.dtype) + b, lambda d: [rand(1, H, L, S)]),
    "rows that see nothing": (lambda s, m: s.masked_fill(m, -INF), lambda d: [_rows_hidden()]),
    "lowest number": (lambda s, m: s.masked_fill(m, torch.finfo(s.dtype).min), lambda d: [_rows_hidden()]),
    "padding": (lambda s, n: s.masked_fill(torch.arange(S, device="cuda") >= n[:, None, None, None], -INF),
                lambda d: [torch.tensor([290, 17]).cuda()]),
    "alibi": (lambda s, a: s - a[:, None, None] * _distance(), lambda d: [torch.rand(H, device="cuda").to(d) / 16]),
    "causal": (lambda s: s.masked_fill(torch.ones(L, S, dtype=torch.bool, device="cuda").triu(1), -INF), lambda d: []),
    "causal, aligned at the end": (
        lambda s: torch.where(torch.ones(L, S, dtype=torch.bool, device="cuda").tril(S - L), s, -INF), lambda d: []),
    "window": (lambda s: torch.where((_distance() >= 0) & (_distance() < 70), s, -INF), lambda d: []),
    "relative position": (lambda s, t: s + t[(_distance().clamp(-16, 15) + 16)].permute(2, 0, 1),
                          lambda d: [rand(32, H, dtype=d)]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", (f16, bf16))
@pytest.mark.parametrize("name", WRITTEN)
def test_written_out(name: str, dtype: torch.dtype, preferred: Preferred) -> None:
    score, given = WRITTEN[name]
    args = [*heads(dtype), *given(dtype)]
    check(written(score), args, preferred, all_tiles=dtype is bf16)
    bounds = {"causal": 0, "causal, aligned at the end": S - L, "window": 0}
    [group] = preferred.groups
    assert group.variants[0].product.key_bound == bounds.get(name)


def flex(score: Score | None = None, **options: object) -> Score:
    def attention(q, k, v, *given):
        score_mod = score and (lambda s, b, h, i, j: score(s, b, h, i, j, *given))
        return flex_attention(q, k, v, score_mod=score_mod, **options)

    return attention


def dense(score: Score) -> Score:
    """What flex attention gives, as a program of its own: rows that see nothing are 0."""

    def attention(q, k, v, *given):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        places = [torch.arange(n, device=q.device) for n in sizes]
        b, h, i, j = (x.view([-1 if d == n else 1 for d in range(4)]) for n, x in enumerate(places))
        p = torch.softmax(score(q @ k.mT / q.shape[-1] ** 0.5, b, h, i, j, *given), -1)
        return p.nan_to_num(0.0) @ v

    return attention


FLEX: dict[str, tuple[Score, Callable[[], list[Tensor]]]] = {
    "nothing": (lambda s, b, h, i, j: s, lambda: []),
    "distance": (lambda s, b, h, i, j: s + (i - j) / 16, lambda: []),
    "soft cap": (lambda s, b, h, i, j: torch.tanh(s / 5) * 5, lambda: []),
    "bias": (lambda s, b, h, i, j, bias: s + bias[h, i, j], lambda: [rand(H, L, S)]),
    "alibi": (lambda s, b, h, i, j, a: s - a[h] * (i - j), lambda: [torch.rand(H, device="cuda") / 16]),
    "documents": (lambda s, b, h, i, j, d: torch.where(d[b, i] == d[b, j], s, -INF),
                  lambda: [torch.randint(3, (B, S), device="cuda")]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", (f16, bf16))
@pytest.mark.parametrize("name", FLEX)
def test_score_functions_of_flex_attention(name: str, dtype: torch.dtype, preferred: Preferred) -> None:
    score, given = FLEX[name]
    check(flex(score), [*heads(dtype), *given()], preferred, all_tiles=False, exact=dense(score))


def test_masks_of_flex_attention(preferred: Preferred) -> None:
    lengths = torch.tensor([290, 0], device="cuda")
    for rule, batch in (
        (lambda b, h, i, j: i >= j, None),
        (lambda b, h, i, j: (i >= j) & (i - j < 70), None),
        (lambda b, h, i, j: j < lengths[b], B),
    ):
        mask = create_block_mask(rule, batch, None, L, S, device="cuda")

        def masked(s, b, h, i, j, rule=rule):
            return torch.where(rule(b, h, i, j), s, -INF)

        check(flex(block_mask=mask), heads(bf16), preferred, all_tiles=False, exact=dense(masked))


def test_heads_that_share_keys(preferred: Preferred) -> None:
    exact = dense(lambda s, b, h, i, j: s)
    check(flex(enable_gqa=True), heads(bf16, groups=2), preferred, exact=exact)


@pytest.mark.parametrize("size", (16, 32, 40, 80, 128, 256))
def test_sizes_of_heads(size: int, preferred: Preferred) -> None:
    check(written(torch.tanh), heads(bf16, size=size), preferred)


@pytest.mark.parametrize("lengths", ((1, 300), (17, 19), (256, 256), (1000, 1001), (70, 5), (4096, 4096)))
def test_lengths(lengths: tuple[int, int], preferred: Preferred) -> None:
    check(written(torch.tanh), heads(bf16, lengths=lengths), preferred)


def test_queries_are_read_where_they_are(preferred: Preferred) -> None:
    def packed(x):
        q, k, v = x.view(B, L, 3, H, D).permute(2, 0, 3, 1, 4)
        return (torch.tanh(q @ k.mT * D**-0.5).softmax(-1) @ v).transpose(1, 2).reshape(B, L, H * D)

    check(packed, [rand(B, L, 3 * H * D, dtype=bf16)], preferred)
    assert any(c.variant for c in preferred.found)


def test_under_autocast(preferred: Preferred) -> None:
    def fn(q, k, v):
        with torch.autocast("cuda", dtype=bf16):
            return torch.tanh(q @ k.mT * D**-0.5).softmax(-1) @ v

    def exact(q, k, v):
        return torch.tanh(q @ k.mT * D**-0.5).softmax(-1) @ v

    check(fn, heads(f32), preferred, exact=exact)


@pytest.mark.parametrize("mode", ("max-autotune", "max-autotune-no-cudagraphs"))
def test_the_tuning_itself(mode: str, caplog) -> None:
    """With true times; the second process reads the choice."""
    args = heads(bf16, lengths=(1024, 1024))
    fn = written(lambda s: torch.tanh(s / 5) * 5)
    for attempt in range(2):
        run = smelt.compile(fn, mode=mode)
        with torch.no_grad(), caplog.at_level(logging.INFO, "smelt"):
            for _ in range(5):
                torch.testing.assert_close(run(*args), fn(*args), rtol=3e-2, atol=3e-2)
        autotuner._REMEMBERED.clear()
        smelt.reset()
        told = [r.getMessage() for r in caplog.records if "attention attention_" in r.getMessage()]
        assert len(told) == 1 and "ATen" in told[0], attempt
