"""Backward operators that stay ATen calls: scatters of embeddings and indices, convolutions, pooling, resizing."""

import pytest
import torch

import smelt
from tests.harness.scheduled import check, externs, scheduled

aten = torch.ops.aten
X, W, G = torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3), torch.randn(2, 6, 9, 9)


def convolution_backward(g, x, w, mask=(True, True, True)):
    return aten.convolution_backward(g, x, w, [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, list(mask))


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_a_convolution_computes_the_gradients_that_are_used(used):
    def f(g, x, w):
        results = convolution_backward(g, x, w)
        return [results[i] * 2 for i in used]

    schedule = check(f, G, X, W, n_externs=1, rtol=1e-4, atol=1e-4)
    (call,) = [item for item in schedule.items if hasattr(item, "op")]
    assert call.args[-1] == [i in used for i in range(3)]
    got, want = smelt.compile(f)(G, X, W), f(G, X, W)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_what_the_caller_did_not_ask_for_stays_out():
    def f(g, x, w):
        _, dw, _ = convolution_backward(g, x, w, (False, True, False))
        return dw

    check(f, G, X, W, n_externs=1, rtol=1e-4, atol=1e-4)


INDEX = torch.tensor([3, 0, 3, 9, 3, 0])
ROWS = torch.randn(6, 5)
SCATTERS = {
    "embedding": lambda r, i: aten.embedding_dense_backward(r, i, 10, -1, False),
    "embedding_with_padding": lambda r, i: aten.embedding_dense_backward(r, i, 10, 3, False),
    "embedding_by_frequency": lambda r, i: aten.embedding_dense_backward(r, i, 10, -1, True),
    "index_put": lambda r, i: aten.index_put(r.new_zeros(10, 5), [i], r, True),
    "index_add": lambda r, i: aten.index_add(r.new_ones(10, 5), 0, i, r),
    "scatter_add": lambda r, i: aten.scatter_add(r.new_zeros(10, 5), 0, i[:, None].expand(6, 5), r),
    "gather": lambda r, i: aten.gather_backward(r, r.new_zeros(10, 5), 0, i[:, None].expand(6, 5), False),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_scatters_add_in_the_order_of_eager(name):
    schedule = check(lambda r, i: SCATTERS[name](r, i) * 1, ROWS, INDEX, rtol=0, atol=0)
    assert len(externs(schedule)) >= 1


IMAGE = torch.randn(2, 3, 8, 8)
POOLS = {
    "max": lambda g, x: aten.max_pool2d_with_indices_backward(
        g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, aten.max_pool2d_with_indices(x, [2, 2])[1]
    ),
    "average": lambda g, x: aten.avg_pool2d_backward(g, x, [2, 2], [2, 2], [0, 0], False, True, None),
    "adaptive": lambda g, x: aten._adaptive_avg_pool2d_backward(g, x),
    "nearest": lambda g, x: aten.upsample_nearest2d_backward(
        g.repeat(1, 1, 4, 4), [16, 16], list(x.shape), None, None
    ),
    "bilinear": lambda g, x: aten.upsample_bilinear2d_backward(
        g.repeat(1, 1, 4, 4), [16, 16], list(x.shape), False, None, None
    ),
}


@pytest.mark.parametrize("layout", (torch.contiguous_format, torch.channels_last))
@pytest.mark.parametrize("name", POOLS)
def test_pooling_and_resizing(name, layout):
    x = IMAGE.to(memory_format=layout)
    g = torch.randn(2, 3, 4, 4).to(memory_format=layout)
    schedule = scheduled(lambda g, x: POOLS[name](g, x) * 2, g, x)[0]
    assert schedule.items
    check(lambda g, x: POOLS[name](g, x) * 2, g, x)


def test_the_backward_of_an_average_over_pixels_is_part_of_what_reads_it():
    def f(g, x):
        spread = (g / 64).expand(2, 3, 8, 8)
        return aten.threshold_backward(spread, x, 0)

    check(f, torch.randn(2, 3, 1, 1), IMAGE, n_kernels=1, n_externs=0)
