"""Which products are generated: the choice by (made-up) times, what is remembered, and that results stay eager's."""

from __future__ import annotations

import io
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.codegen.autotune import autotuner, device_timing
from smelt.report import inspect
from smelt.runtime import disk_cache
from smelt.targets.cuda import COSTS
from tests.harness.contests import Device, contested
from tests.simulated import cuda

pytestmark = pytest.mark.simulated_cuda

bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[Device]:
    yield from contested(monkeypatch, tmp_path)


def run(fn, *args, tolerance: float = 4e-3, mode="max-autotune-no-cudagraphs"):
    """Compiled and eager agree; what the second call launches and calls."""
    torch.manual_seed(0)
    want = fn(*args)
    compiled = smelt.compile(fn, mode=mode)
    with torch.no_grad():
        for _ in range(2):
            cuda.forget_launches()
            got = compiled(*args)
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    assert inspect.graph_count(compiled) == 1 and not inspect.reasons(compiled)
    return [launch.name for launch in cuda.launches()]


def rand(*shape: int, dtype: torch.dtype = f16) -> torch.Tensor:
    return (torch.randn(*shape) / 4).to("cuda", dtype)


def linear_gelu(x, w, b):
    return F.gelu(F.linear(x, w, b))


def test_a_faster_product_stands_for_the_call_and_the_kernel_behind_it(device):
    names = run(linear_gelu, rand(40, 24), rand(33, 24), rand(33))
    assert len(names) == 1 and "addmm" in names[0] and device.measured == 1


@pytest.mark.parametrize("time", (97.1, 100.0, 400.0))
def test_atens_call_stays_where_the_gain_is_small(device, time):
    device.times = lambda tile, variant: time
    names = run(linear_gelu, rand(40, 24), rand(33, 24), rand(33))
    assert len(names) == 1 and "addmm" not in names[0]


def test_products_that_do_not_compile_are_passed_over(device):
    device.times = lambda tile, variant: None
    assert "addmm" not in run(linear_gelu, rand(40, 24), rand(33, 24), rand(33))[0]
    smelt.reset()
    autotuner._REMEMBERED.clear()
    device.times = lambda tile, variant: None if tile.x > 32 else 20.0
    args = rand(128, 64), rand(128, 64), rand(128)
    assert "addmm" in run(linear_gelu, *args)[0]
    [choice] = [c for c in autotuner._REMEMBERED.values() if c]
    assert choice.tile.x <= 32


def test_the_fastest_tile_is_taken(device):
    device.times = lambda tile, variant: 10.0 + abs(tile.x - 64) + abs(tile.r - 32)
    run(linear_gelu, rand(128, 64), rand(128, 64), rand(128))
    [choice] = autotuner._REMEMBERED.values()
    assert (choice.tile.x, choice.tile.r) == (64, 32)


def test_a_wrong_product_is_not_used(device, caplog):
    device.wrong = True
    with caplog.at_level(logging.WARNING, "smelt"):
        names = run(linear_gelu, rand(40, 24), rand(33, 24), rand(33))
    assert "addmm" not in names[0] and "is wrong" in caplog.text


def test_what_disagrees_is_found():
    a = torch.randn(50, 50)
    b = a.clone()
    b[3, 4] += 1
    assert autotuner.agree(a, a * (1 + 1e-3), 3e-3) and not autotuner.agree(a, b, 3e-3)
    assert not autotuner.agree(a, torch.full_like(a, float("nan")), 3e-3)


def test_equal_products_are_measured_once(device):
    def layers(x, *weights):
        for w in weights:
            x = torch.tanh(x @ w)
        return x

    names = run(layers, rand(16, 32), *(rand(32, 32) for _ in range(5)))
    assert len(names) == 5 and device.measured == 1


def test_another_process_reads_the_choice(device):
    args = rand(40, 24), rand(33, 24), rand(33)
    first = run(linear_gelu, *args)
    autotuner._REMEMBERED.clear()
    smelt.reset()
    assert run(linear_gelu, *args) == first and device.measured == 1
    smelt.reset()
    run(linear_gelu, rand(41, 24), *args[1:])
    assert device.measured == 2
    device.times = lambda tile, variant: 200.0
    run(lambda x, w, b: F.relu(F.linear(x, w, b)), *args)
    autotuner._REMEMBERED.clear()
    smelt.reset()
    run(lambda x, w, b: F.relu(F.linear(x, w, b)), *args)
    assert device.measured == 3


def test_equal_pieces_of_a_product_are_measured_once(device, monkeypatch):
    """Of one that would be aligned, and of which the caller gets a copy (`rewrites/chunked_gemm.py`)."""
    alignment = replace(COSTS.alignment, unaligned=1e9, aligned=1e6, chunk_bytes=512, chunk_rows=8, chunks=4)
    monkeypatch.setattr("smelt.targets.cuda.COSTS", replace(COSTS, alignment=alignment, launch=1.0))
    args = rand(33, 24), rand(24, 40)[:, :37].contiguous()
    names = run(torch.mm, *args)
    assert sum("mm" in name for name in names) == 3 and device.measured == 2  # 16, 16 and 1 rows


def test_a_cast_in_front_may_be_part_of_it(device):
    def fn(x, w):
        return F.relu(x @ w.to(bf16).t())

    args = rand(40, 24, dtype=bf16), rand(33, 24, dtype=f32)
    device.times = lambda tile, variant: 10.0 if variant else 50.0
    assert len(run(fn, *args, tolerance=2e-2)) == 1
    smelt.reset()
    autotuner._REMEMBERED.clear()
    disk_cache.clear()
    device.times = lambda tile, variant: 60.0 if variant else 50.0
    assert len(run(fn, *args, tolerance=2e-2)) == 2


def test_no_product_without_the_mode(device):
    assert "addmm" not in run(linear_gelu, rand(40, 24), rand(33, 24), rand(33), mode=None)[0]
    assert device.measured == 0


PROGRAMS = {
    "residual": (lambda x, w, b, r: F.linear(x, w, b) + r, (16, 32), (48, 32), (48,), (16, 48)),
    "two readers": (lambda x, w: (lambda y: (y.relu(), y.sum(0)))(x @ w), (16, 32), (32, 48)),
    "returned as well": (lambda x, w: (lambda y: (y.relu(), y))(x @ w), (16, 32), (32, 48)),
    "gate": (lambda x, w, v: F.silu(x @ w) * (x @ v), (16, 32), (32, 48), (32, 48)),
    "transposed": (lambda x, w: torch.tanh(x.t() @ w.t()), (32, 16), (48, 32)),
    "batched": (lambda x, y: torch.relu(torch.bmm(x, y)), (3, 16, 32), (3, 32, 8)),
    "batched with rows": (lambda x, y, b: torch.baddbmm(b, x, y) * 2, (3, 16, 32), (3, 32, 8), (3, 1, 8)),
    "heads": (
        lambda q, k: (q.view(2, 8, 4, 16).transpose(1, 2) @ k.view(2, 8, 4, 16).transpose(1, 2).transpose(2, 3) * 0.5),
        (2, 8, 64), (2, 8, 64),
    ),
    "square": (lambda x: torch.exp(x @ x.t()), (16, 32)),
    "scaled in front": (lambda x, w: (x * 2 + 1) @ w, (16, 32), (32, 8)),
    "sums only": (lambda x, w: x @ w, (16, 32), (32, 8)),
    "column": (lambda x, w, c: (x @ w) * c, (16, 32), (32, 8), (16, 1)),
    "alpha": (lambda x, w, b: torch.addmm(b, x, w, alpha=2), (16, 32), (32, 8), (8,)),
    "row": (lambda x, w: torch.sigmoid(x @ w), (1, 32), (32, 8)),
    "one column": (lambda x, w: torch.sigmoid(x @ w), (9, 32), (32, 1)),
    "embedded": (lambda x, w: F.pad(torch.relu(x @ w), (1, 2)), (9, 32), (32, 5)),
    "permuted result": (lambda x, w: torch.relu(x @ w).t().contiguous(), (9, 32), (32, 5)),
    "pointwise convolution": (lambda x, w: F.relu(F.conv2d(x, w)), (2, 8, 5, 7), (6, 8, 1, 1)),
    "convolutions, channels last": (
        lambda x, w, v: F.conv2d(F.relu(F.conv2d(x, w)), v), (2, 16, 5, 7), (24, 16, 1, 1), (16, 24, 1, 1)
    ),
    "written input": (lambda x, w, y: (y.add_(1), torch.relu(x @ w) + y)[1], (9, 32), (32, 5), (9, 5)),
    "expanded": (lambda x, w: torch.bmm(x.expand(4, 9, 32), w), (1, 9, 32), (4, 32, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype, prologues", [(bf16, False), (f16, True)])
def test_programs(device, name, dtype, prologues):
    device.times = lambda tile, variant: 30.0 if variant == prologues else 60.0
    fn, *shapes = PROGRAMS[name]
    args = [rand(*shape, dtype=dtype) for shape in shapes]
    if name == "written input":
        twice = [a.clone() for a in args]
        want = fn(*twice)
        ours = [a.clone() for a in args]
        got = smelt.compile(fn, mode="max-autotune-no-cudagraphs")(*ours)
        torch.testing.assert_close((got, ours), (want, twice), rtol=3e-2, atol=3e-2)
        return
    names = run(fn, *args, tolerance={bf16: 3e-2, f16: 4e-3}[dtype])
    assert any(n[0].isdigit() for n in names) or name == "alpha"  # as products are numbered


def test_gradients(device):
    def loss(x, w, b):
        return F.gelu(F.linear(x, w, b)).square().mean()

    args = [rand(16, 32), rand(24, 32), rand(24)]
    results = []
    for run_ in (loss, smelt.compile(loss, mode="max-autotune-no-cudagraphs")):
        given = [a.clone().requires_grad_() for a in args]
        run_(*given).backward()
        results.append([a.grad for a in given])
    torch.testing.assert_close(*results, rtol=1e-2, atol=1e-5)
    assert device.measured >= 2


def test_under_autocast(device):
    def fn(x, w, b):
        with torch.autocast("cuda", dtype=bf16):
            return F.gelu(F.linear(x, w, b)).float()

    device.times = lambda tile, variant: 10.0 if variant else 50.0
    args = [rand(*shape, dtype=f32) for shape in ((40, 24), (33, 24), (33,))]
    names = run(fn, *args, tolerance=2e-2)
    assert len(names) <= 2 and any("addmm" in n for n in names), names
    assert device.measured == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", (Terminal, io.StringIO))
def test_a_terminal_is_told_how_far_it_is(device, stream, monkeypatch, caplog):
    written = stream()
    monkeypatch.setattr(sys, "stderr", written)
    with caplog.at_level(logging.INFO, "smelt"):
        run(lambda x, w, v: torch.tanh(x @ w) @ v, rand(16, 32), rand(32, 48), rand(48, 8))
    text = written.getvalue()
    if stream is Terminal:
        assert "product 2 of 2" in text and text.endswith("\r\x1b[K")
    else:
        assert text == ""
    assert "1×16×48×32 float16: ATen" in caplog.text and "generated" in caplog.text


def test_nothing_is_measured_while_the_user_captures_a_graph(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert "addmm" not in run(linear_gelu, rand(40, 24), rand(33, 24), rand(33))[0]
    assert device.measured == 0


def test_what_cannot_be_measured_stays_atens(device, monkeypatch, caplog):
    def fails(calls, first, device):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(device_timing, "seconds", fails)
    with caplog.at_level(logging.WARNING, "smelt"):
        assert "addmm" not in run(linear_gelu, rand(40, 24), rand(33, 24), rand(33))[0]
    assert "is not measured: no memory" in caplog.text


def test_random_numbers_of_the_user_are_not_touched(device):
    args = rand(40, 24), rand(33, 24), rand(33)
    state = torch.get_rng_state()
    smelt.compile(linear_gelu, mode="max-autotune-no-cudagraphs")(*args)
    assert device.measured == 1 and torch.equal(state, torch.get_rng_state())


def test_the_fastest_few_and_atens_are_measured_again(monkeypatch):
    monkeypatch.setattr(device_timing, "FILLERS", 0)  # work is done when it is asked for
    times, rounds = {None: 9.0, **{n: float(n) for n in range(1, 8)}}, Counter()

    class Event(torch.cuda.Event):
        """Its time is what the calls of `times` took."""

        now = 0.0

        def record(self, stream=None):
            self.at = Event.now

        def elapsed_time(self, end):
            return (end.at - self.at) * 1e3

    def call(key):
        Event.now += times[key]
        rounds[key] += 1

    monkeypatch.setattr(torch.cuda, "Event", Event)
    calls = {key: partial(call, key) for key in times}
    took = device_timing.seconds(calls, None, torch.device("cuda:0"))
    assert took == pytest.approx(times)
    assert {key for key, n in rounds.items() if n > device_timing.ROUNDS} == {None, 1, 2, 3, 4}


@pytest.fixture(params=(False, True), ids=("exact", "tf32"))
def allow_tf32(request) -> Iterator[None]:
    """Both settings."""
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [b.allow_tf32 for b in backends]
    for b in backends:
        b.allow_tf32 = request.param
    yield
    for b, was in zip(backends, before, strict=True):
        b.allow_tf32 = was


@pytest.mark.usefixtures("allow_tf32")
@pytest.mark.parametrize(
    "name", ("gate", "batched", "batched with rows", "residual", "pointwise convolution")
)
def test_float32_products_are_no_contest(device, name):
    fn, *shapes = PROGRAMS[name]
    names = run(fn, *(rand(*shape, dtype=f32) for shape in shapes), tolerance=1e-5)
    assert device.measured == 0 and not device.compiled and not any(n[0].isdigit() for n in names)
