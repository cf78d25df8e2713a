"""The whole pipeline below capture: a function traced on fakes, compiled, and compared with eager."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F

from smelt import events, pipeline, runtime
from smelt.backends.smelt import compile_graph
from smelt.config import Config
from smelt.errors import BackendError
from tests.harness.compiled import check, compiled
from tests.harness.traced import trace


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("native_gemm", [True, False])
def test_a_layer_of_a_transformer(fuse, native_gemm):
    def layer(x, qkv, proj, up, down, g):
        b, t, d = x.shape
        q, k, v = (F.layer_norm(x, (d,), g) @ qkv.t()).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        a = F.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v
        x = x + a.transpose(1, 2).reshape(b, t, d) @ proj.t()
        return x + F.gelu(F.layer_norm(x, (d,), g) @ up.t()) @ down.t()

    d = 32
    weights = [torch.randn(s) * 0.1 for s in ((3 * d, d), (d, d), (4 * d, d), (d, 4 * d), (d,))]
    check(layer, torch.randn(2, 7, d), *weights, fuse=fuse, native_gemm=native_gemm)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convolutions_with_normalization(layout):
    def block(x, w1, w3, wd, mean, var, g, b):
        y = F.relu(F.batch_norm(F.conv2d(x, w1), mean, var, g, b))
        y = F.hardswish(F.batch_norm(F.conv2d(y, wd, padding=1, groups=16), mean, var, g, b))
        return F.relu(F.batch_norm(F.conv2d(y, w3, padding=1), mean, var, g, b) + x)

    c = 16
    x = torch.randn(2, c, 9, 9).to(memory_format=layout)
    weights = (torch.randn(c, c, 1, 1), torch.randn(c, c, 3, 3) * 0.1, torch.randn(c, 1, 3, 3))
    vectors = (torch.randn(c), torch.rand(c) + 0.5, torch.randn(c), torch.randn(c))
    # The fake of a convolution is contiguous, whatever the real one returns.
    strides = layout is torch.contiguous_format
    check(block, x, *weights, *vectors, tolerance=1e-4, strides=strides)


def test_inputs_that_are_written():
    def step(x, m):
        m.mul_(0.9).add_(x)
        x[:, 1:].sub_(m[:, 1:])
        return m.sum(1), x

    check(step, torch.randn(4, 5), torch.randn(4, 5))


def test_views_of_inputs_and_of_results():
    def views(x):
        y = x * 2
        return x[1:].t(), y.view(-1)[3:], y

    run, inputs = compiled(views, torch.randn(4, 5))
    x_view, flat, y = run(inputs)
    assert x_view._base is inputs[0]
    flat.zero_()
    assert y.view(-1)[3:].abs().sum() == 0


def test_unusual_operators_are_called_as_they_are():
    def mixed(x, i):
        values, order = torch.sort(x @ x.t(), 1)
        return (
            torch.cumsum(values, 0),
            order,
            torch.linalg.inv(x[:, :4] + 9 * torch.eye(4)),
            x[i],
            torch.fft.fft(x),
        )

    check(mixed, torch.randn(4, 6), torch.tensor([3, 0, 0]), tolerance=1e-4)


def test_errors_at_run_time_are_those_of_eager():
    run, inputs = compiled(lambda w, i: F.embedding(i, w) + 1, torch.randn(4, 3), torch.tensor([1, 2]))
    next(t for t in inputs if t.dtype == torch.int64).fill_(7)
    with pytest.raises(IndexError, match="index out of range"):
        run(inputs)


def test_random_numbers_are_those_of_eager():
    def noisy(x):
        return F.dropout(x, 0.5) + torch.rand(3)

    x = torch.ones(5, 3)
    run, inputs = compiled(noisy, x)
    torch.manual_seed(1)
    (got,) = run(inputs)
    torch.manual_seed(1)
    assert torch.equal(got, noisy(x))


def test_gradients_are_recorded_by_autograd():
    run, (w,) = compiled(lambda w: (w * 2).sum(), torch.randn(3, requires_grad=True))
    run((w,))[0].backward()
    assert torch.equal(w.grad, torch.full((3,), 2.0))


def test_a_failing_stage_is_a_backend_error(monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(pipeline, "fuse", fail)
    _, traced = trace(lambda x: x + 1, [torch.randn(3)])
    with pytest.raises(BackendError, match="ZeroDivisionError: oh") as error:
        compile_graph(traced, Config())
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_stages_are_timed():
    seen = []
    _, traced = trace(lambda x: x + 1, [torch.randn(3)])
    with events.subscribed(seen.append):
        compile_graph(traced, Config(verify_stages=True))
    assert [e.name for e in seen if e.kind == "stage"] == [
        "lower",
        "fuse",
        "codegen",
        "verify",
        "load",
    ]
    assert all(e.data["seconds"] >= 0 for e in seen if e.kind == "stage")


def test_memory_held_between_calls_can_be_released():
    gc.collect()
    before = runtime.held_bytes()
    run, inputs = compiled(lambda x: torch.sort(x * 2 @ x)[0] @ x, torch.randn(64, 64))
    run(inputs)
    assert run.arena_bytes > 0 and runtime.held_bytes() == before + run.arena_bytes
    assert runtime.release_all() >= run.arena_bytes and runtime.held_bytes() == 0
    run(inputs)
    del run
    gc.collect()
    assert runtime.held_bytes() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("n, k", [(1, 1), (5, 1), (1, 9), (7, 40), (960, 240)])
def test_products_of_one_row(dtype, n, k):
    """A linear layer, a product, and a convolution of one pixel, with an activation behind."""

    def layers(x, w, b):
        pixel = F.conv2d(x.view(1, k, 1, 1), w.view(n, k, 1, 1), b)
        return (
            F.linear(x, w, b),
            F.relu(x @ w.t()),
            F.hardsigmoid(pixel),
            F.conv1d(x.view(1, k, 1), w[:, :, None]),
        )

    x, w, b = (torch.randn(s, dtype=dtype) for s in ((1, k), (n, k), (n,)))
    check(layers, x, w, b, tolerance=5e-2 if dtype is torch.bfloat16 else 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "kernel, stride",
    [((4, 4), (4, 4)), ((1, 1), (2, 2)), ((2, 2), (3, 2)), ((2, 1), (2, 3)), ((64, 64), (64, 64))],
)
def test_convolutions_of_disjoint_patches(dtype, layout, kernel, stride):
    """Sizes that the stride does not divide leave pixels over."""

    def layers(x, w, b):
        return F.conv2d(x.relu(), w, b, stride), F.gelu(F.conv2d(x, w, None, stride))

    x = torch.randn(2, 3, 65, 67, dtype=dtype).to(memory_format=layout)
    w, b = torch.randn(5, 3, *kernel, dtype=dtype) / kernel[0], torch.randn(5, dtype=dtype)
    check(layers, x, w, b, tolerance=5e-2 if dtype is torch.bfloat16 else 1e-4, strides=False)
