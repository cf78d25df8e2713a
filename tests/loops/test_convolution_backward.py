"""Backward of pointwise convolutions as matrix products."""

import pytest
import torch

from smelt.codegen.plan_loading import load
from smelt.ops.lowering import lower
from smelt.plan.build_plan import build_plan
from smelt.plan.verify_plan import verify
from smelt.schedule.schedule_program import fuse
from tests.harness.schedule_interpreter import run
from tests.harness.scheduled import externs, generating
from tests.harness.traced import traced

aten = torch.ops.aten
ALL = (True, True, True)


def backward(g, x, w, mask=ALL, stride=1, padding=0, groups=1):
    return aten.convolution_backward(
        g, x, w, [w.shape[0]], [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups, list(mask)
    )


def compare(f, *inputs):
    """`f` with products, interpreted and as machine code, gives eager's values and strides; its ATen calls."""
    graph, real = traced(f, *inputs)
    target = generating()
    schedule = fuse(lower(graph, target.costs), target.costs)
    schedule = fuse(lower(graph, target.costs), target.costs)
    plan = build_plan(schedule, target.generate(schedule), target)
    verify(plan)
    for got in (run(schedule, real), load(plan)(tuple(real))):
        for a, e in zip(got, f(*inputs), strict=True):
            torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4)
            assert a.stride() == e.stride()
    return [str(op) for op in externs(schedule)]


def images(n, c, h, w, layout=torch.contiguous_format, dtype=torch.float32):
    return torch.randn(n, c, h, w, dtype=dtype).to(memory_format=layout)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("layout", (torch.contiguous_format, torch.channels_last))
@pytest.mark.parametrize("shape", [(1, 17, 4, 5), (2, 16, 9, 9), (4, 24, 1, 1), (3, 40, 2, 2), (2, 33, 6, 5)])
def test_all_gradients(shape, layout, dtype):
    n, c, h, w = shape
    x, g = images(n, c, h, w, layout, dtype), images(n, 18, h, w, layout, dtype)
    calls = compare(backward, g, x, torch.randn(18, c, 1, 1, dtype=dtype).to(memory_format=layout))
    assert not any("backward" in call for call in calls)


def test_of_few_pixels_channels_are_moved_first():
    calls = compare(backward, images(4, 30, 2, 2), images(4, 50, 2, 2), torch.randn(30, 50, 1, 1))
    assert calls == ["aten.convolution.default", "aten.mm.default"]
    calls = compare(backward, images(4, 8, 9, 9), images(4, 9, 9, 9), torch.randn(8, 9, 1, 1))
    assert calls == ["aten.convolution.default", "aten.bmm.default"]


@pytest.mark.parametrize("used", range(3))
def test_what_is_not_used_is_not_computed(used):
    calls = compare(
        lambda g, x, w: [backward(g, x, w)[used]],
        images(2, 8, 5, 5),
        images(2, 9, 5, 5),
        torch.randn(8, 9, 1, 1),
    )
    assert len(calls) == (0 if used == 2 else 1)
    mask = [i == used for i in range(3)]
    assert calls == compare(
        lambda g, x, w: [backward(g, x, w, mask)[used]],
        images(2, 8, 5, 5),
        images(2, 9, 5, 5),
        torch.randn(8, 9, 1, 1),
    )


def test_other_convolutions_stay():
    w, x = torch.randn(8, 8, 1, 1), images(2, 8, 6, 6)
    stay = ["aten.convolution_backward.default"]
    assert compare(lambda g, x, w: backward(g, x, w, stride=2), images(2, 8, 3, 3), x, w) == stay
    assert compare(lambda g, x, w: backward(g, x, w, padding=1), images(2, 8, 8, 8), x, w) == stay
    assert (
        compare(lambda g, x, w: backward(g, x, w, groups=8), images(2, 8, 6, 6), x, torch.randn(8, 1, 1, 1))
        == stay
    )
    few = torch.randn(3, 8, 1, 1)  # channels of the result
    assert compare(backward, images(2, 3, 6, 6), x, few) == stay
    mixed = images(2, 8, 6, 6, torch.channels_last)
    assert compare(backward, mixed, x, w) == stay


def test_gradients_that_are_computed_in_the_graph():
    def f(g, y, x, w):
        return backward(aten.threshold_backward(g, y, 0), torch.relu(x), w)

    x, g = images(2, 9, 5, 5), images(2, 8, 5, 5)
    calls = compare(f, g, g.sin(), x, torch.randn(8, 9, 1, 1))
    assert not any("backward" in call for call in calls)


def test_one_product_for_all_images_of_many_channels():
    x, g = (images(2, c, 3, 3, torch.channels_last) for c in (64, 70))
    calls = compare(backward, g, x, images(70, 64, 1, 1, torch.channels_last))
    assert calls == ["aten.convolution.default", "aten.mm.default"]
