"""Depthwise convolutions and pooling as generated windows, against ATen."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from smelt import pipeline, targets
from smelt.codegen.call_selection.window_calls import WINDOW_CALLS
from smelt.plan.steps import Launch
from tests.harness.compiled import check, compiled
from tests.harness.scheduled import generating

# channels, height, width, window, stride, padding, dilation
DEPTHWISE = [
    (8, 56, 56, (3, 3), 1, 1, 1),
    (5, 112, 112, (3, 3), 2, 1, 1),
    (3, 7, 7, (5, 5), 1, 2, 1),
    (4, 28, 29, (5, 5), 2, 2, 1),
    (6, 14, 14, (7, 7), 1, 3, 1),
    (3, 13, 17, (3, 3), 1, 2, 2),
    (2, 9, 9, (3, 3), 2, 0, 2),
    (2, 5, 3, (3, 3), 1, 1, 1),
    (7, 1, 1, (3, 3), 1, 1, 1),
    (3, 33, 40, (3, 5), (2, 1), (0, 2), 1),
    (3, 33, 40, (2, 4), (1, 2), (1, 0), 1),
    (2, 20, 20, (3, 3), 3, 1, 1),
]
POOLING = [
    (8, 112, 112, 3, 2, 1),
    (3, 13, 14, 3, 2, 1),
    (3, 13, 14, 2, 2, 0),
    (2, 9, 20, 3, 1, 1),
    (2, 9, 20, 5, 1, 2),
]
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10, torch.bfloat16: 5e-2}


@pytest.fixture
def generated(monkeypatch):
    """The kernels that plans made during the test launch, and the ATen operators that they call, with the costs of a host
    that was measured, whichever runs the test."""
    seen: list[str] = []
    build = pipeline.build_plan

    def recording(schedule, *args):
        plan = build(schedule, *args)
        seen.extend(s.kernel if isinstance(s, Launch) else str(getattr(s, "op", "")) for s in plan.steps)
        return plan

    monkeypatch.setitem(targets.TARGETS, "cpu", lambda device: generating)
    monkeypatch.setattr(pipeline, "build_plan", recording)
    return seen


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("c, h, w, kernel, stride, padding, dilation", DEPTHWISE)
def test_depthwise_convolutions(generated, dtype, layout, c, h, w, kernel, stride, padding, dilation):
    x = torch.randn(2, c, h, w, dtype=dtype).to(memory_format=layout)
    weight, bias = torch.randn(c, 1, *kernel, dtype=dtype), torch.randn(c, dtype=dtype)

    def plain(x, weight):
        return F.conv2d(x, weight, None, stride, padding, dilation, c)

    def fused(x, weight, bias, scale):
        y = F.conv2d(x, weight, bias, stride, padding, dilation, c)
        return F.hardswish(y * scale.view(c, 1, 1)) + y.sigmoid()

    check(plain, x, weight, tolerance=TOLERANCE[dtype], strides=False)
    check(fused, x, weight, bias, torch.randn(c, dtype=dtype), tolerance=TOLERANCE[dtype], strides=False)
    # Eager gives channels-last results in another layout, which is ATen's to write.
    if dtype is not torch.bfloat16 and stride != 3 and layout is torch.contiguous_format:
        assert not any("aten.convolution" in name for name in generated)


def test_what_is_not_depthwise_stays_a_convolution(generated):
    x = torch.randn(1, 4, 6, 6)
    check(lambda x, w: F.conv2d(x, w, groups=2), x, torch.randn(4, 2, 3, 3))
    check(lambda x, w: F.conv2d(x, w, groups=4), x, torch.randn(8, 1, 3, 3))
    check(lambda x, w: F.conv_transpose2d(x, w, groups=4), x, torch.randn(4, 1, 3, 3))
    assert not any(name.startswith("w") for name in generated)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("c, h, w, kernel, stride, padding", POOLING)
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_pooling(generated, dtype, c, h, w, kernel, stride, padding, ceil_mode):
    x = torch.randn(2, c, h, w, dtype=dtype)
    check(lambda x: F.avg_pool2d(x, kernel, stride, padding, ceil_mode) * 2, x, tolerance=TOLERANCE[dtype])
    check(lambda x: F.avg_pool2d(x, kernel, stride, padding, ceil_mode, False), x, tolerance=TOLERANCE[dtype])
    check(
        lambda x: F.avg_pool2d(x, kernel, stride, padding, ceil_mode, True, 7), x, tolerance=TOLERANCE[dtype]
    )
    x[0, 0, 3, 4], x[0, 0, 0, 0] = float("nan"), float("inf")
    x[1, :, :8, :8] = -float("inf")
    want = F.max_pool2d(x, kernel, stride, padding, 1, ceil_mode)
    run, inputs = compiled(lambda x: F.max_pool2d(x, kernel, stride, padding, 1, ceil_mode) + 1, x)
    torch.testing.assert_close(run(inputs)[0], want + 1, equal_nan=True)
    if dtype is not torch.bfloat16:
        assert any(name.startswith("w0_max_pool2d") for name in generated)


def test_indices_of_maxima_stay_with_aten(generated):
    x = torch.randn(2, 3, 8, 8)
    check(lambda x: F.max_pool2d(x, 2, return_indices=True), x)
    assert "aten.max_pool2d_with_indices.default" in generated


def test_windows_of_equal_shape_share_code(generated):
    def net(x, a, b):
        return F.conv2d(F.conv2d(x, a, padding=1, groups=3), b, padding=1, groups=3)

    check(net, torch.randn(1, 3, 8, 8), torch.randn(3, 1, 3, 3), torch.randn(3, 1, 3, 3))
    assert len({name for name in generated if name.startswith("w")}) == 1


def test_the_table_holds_overloads():
    assert all(isinstance(op, torch._ops.OpOverload) for op in WINDOW_CALLS)
