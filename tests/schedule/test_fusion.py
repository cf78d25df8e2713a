"""What becomes one kernel, and what must not."""

import pytest
import torch
import torch.nn.functional as F

from smelt.loops.kernel_ir import MapStage, ReduceStage
from smelt.ops.lowering import lower
from smelt.schedule.schedule import ExternItem, KernelItem, ViewItem
from smelt.schedule.schedule_program import fuse
from tests.harness.scheduled import check, costs, kernels, scheduled
from tests.harness.traced import traced


def r(*shape):
    return torch.randn(*shape)


def rms_norm(x, w):
    x = x.to(torch.float32)
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


ONE_KERNEL = {
    "gelu_bias": (lambda x, b: F.gelu(x + b), r(4, 32), r(32)),
    "softmax": (lambda x: torch.softmax(x, -1), r(2, 3, 32)),
    "masked_softmax": (lambda x, m: torch.softmax(x * 0.125 + m, -1), r(2, 3, 32, 32), r(2, 1, 1, 32)),
    "causal_softmax": (
        lambda x: torch.softmax(x.masked_fill(torch.ones(32, 32).triu(1) > 0, float("-inf")), -1),
        r(2, 32, 32),
    ),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (32,), w, b), r(2, 8, 32), r(32), r(32)),
    "residual_layer_norm": (
        lambda x, y, w, b: (F.layer_norm(x + y, (32,), w, b), x + y),
        r(2, 8, 32),
        r(2, 8, 32),
        r(32),
        r(32),
    ),
    "layer_norm_of_gelu": (lambda x: F.layer_norm(F.gelu(x), (32,)), r(8, 32)),
    "rms_norm": (rms_norm, r(2, 8, 32), r(32)),
    "batch_norm_relu_residual": (
        lambda x, y, m, v: F.relu(F.batch_norm(x, m, v) + y),
        r(2, 8, 4, 4),
        r(2, 8, 4, 4),
        r(8),
        r(8).abs(),
    ),
    "group_norm": (lambda x: F.silu(F.group_norm(x, 2)), r(2, 8, 4, 4)),
    "var_mean": (lambda x: torch.var_mean(x, -1), r(8, 32)),
    "log_softmax": (lambda x: F.log_softmax(x, -1), r(8, 32)),
    "rotary": (
        lambda x, c, s: x * c + torch.cat((-x[..., 8:], x[..., :8]), -1) * s,
        r(2, 4, 8, 16),
        r(8, 16),
        r(8, 16),
    ),
    "two_outputs": (lambda x: (torch.exp(x), torch.exp(x) * x.sin()), r(64, 64)),
    "window_partition": (
        lambda x: F.layer_norm(x, (6,)).view(2, 2, 4, 2, 4, 6).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 6),
        r(2, 8, 8, 6),
    ),
    "mean_of_channels_last": (lambda x: x.mean((2, 3)), r(2, 8, 4, 4).to(memory_format=torch.channels_last)),
    "flat_rows": (
        lambda x, y: F.layer_norm(x, (32,)).view(16, 32) + y.view(16, 32),
        r(2, 8, 32),
        r(2, 8, 32),
    ),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name):
    f, *inputs = ONE_KERNEL[name]
    check(f, *inputs, n_kernels=1, n_externs=0, rtol=1e-4, atol=1e-5)


def test_softmax_keeps_the_exponentials_of_a_row():
    (kernel,) = kernels(scheduled(lambda x: torch.softmax(x, -1), r(64, 64))[0])
    assert [b.role for b in kernel.buffers] == ["in", "local", "out"]
    kinds = [type(stage) for stage in kernel.stages]
    assert kinds == [ReduceStage, ReduceStage, MapStage]  # they are summed as they are stored
    assert len(kernel.stages[1].stores) == 1


def test_rows_too_long_for_scratch_are_recomputed():
    (kernel,) = kernels(scheduled(lambda x: torch.softmax(x, -1), r(2, 20000))[0])
    assert [b.role for b in kernel.buffers] == ["in", "out"]


def test_elementwise_on_contiguous_tensors_is_one_loop():
    (kernel,) = kernels(scheduled(lambda x, y: (x * y + 1).relu(), r(2, 3, 4, 5), r(2, 3, 4, 5))[0])
    assert [loop.size for loop in kernel.outer] == [120]


def test_loops_follow_the_layout_of_the_result():
    x = r(2, 8, 4, 4).to(memory_format=torch.channels_last)
    (kernel,) = kernels(scheduled(lambda x: x + 1, x)[0])
    assert [loop.size for loop in kernel.outer] == [256]


def test_a_loop_over_merged_heads_is_split():
    (kernel,) = kernels(scheduled(lambda x: x.transpose(1, 2).reshape(2, 16, 64) + 1, r(2, 8, 16, 8))[0])
    assert [loop.size for loop in kernel.outer] == [2, 16, 8, 8]


def test_views_cost_nothing():
    schedule, _ = scheduled(
        lambda x, w: (x.view(4, 8) @ w.t()).view(2, 2, 4).transpose(0, 1), r(2, 2, 8), r(4, 8)
    )
    kinds = [type(item) for item in schedule.items]
    assert kinds == [ViewItem, ViewItem, ExternItem, ViewItem]
    assert [item.user_visible for item in schedule.items if isinstance(item, ViewItem)] == [
        False,
        False,
        True,
    ]


def test_kernels_do_not_cross_an_extern():
    def f(x, w):
        y = torch.relu(x)
        return y + y @ w

    schedule = check(f, r(32, 32), r(32, 32), n_kernels=2, n_externs=1, rtol=1e-4, atol=1e-4)
    assert any("computed after" in reason for reason in schedule.refusals) or schedule.refusals == ()


def test_repeated_layers_are_equal_kernels():
    def f(x, *ws):
        for w in ws:
            x = F.layer_norm(x + F.gelu(x @ w), (32,))
        return x

    ks = kernels(scheduled(f, r(8, 32), *[r(32, 32) for _ in range(5)])[0])
    assert len(ks) == 5 and len(set(ks)) == 1


def test_a_tower_is_cut_where_it_reads_memory_not_by_what_stands_before():
    def f(x, *ws):
        for w in ws:
            y = x @ w + x
            for _ in range(25):
                y = torch.sin(y) + y
            x = y
        return x

    ks = kernels(scheduled(f, r(8, 32), *[r(32, 32) for _ in range(4)])[0])
    assert len({ks.count(k) for k in ks}) == 1


def test_the_result_of_one_normalisation_feeds_the_next():
    def f(x):
        return torch.softmax(F.layer_norm(x, (32,)) * 2, -1).sum(-1)

    check(f, r(8, 32), n_kernels=1)


def test_different_rows_are_different_kernels():
    check(lambda x: torch.softmax(torch.softmax(x, 0), 1), r(8, 32), n_kernels=2)


def test_overwriting_an_input_comes_after_its_readers():
    def f(x, y):
        total = x.sum(0)
        x.add_(y)
        return total

    check(f, r(8, 32), r(8, 32))


def test_without_fusion_every_operator_is_a_kernel():
    graph, _ = traced(lambda x: (x + 1).relu() * 2, r(8))
    assert len(kernels(fuse(lower(graph, costs()), costs(), join=False))) == 3


def test_notes_name_kernels_after_operators():
    schedule, _ = scheduled(lambda x, y: F.layer_norm(x + y, (32,)), r(8, 32), r(8, 32))
    (item,) = [item for item in schedule.items if isinstance(item, KernelItem)]
    assert item.kernel.name == "add_native_layer_norm"


def test_towers_of_operators_are_cut():
    def f(x):
        for _ in range(200):
            x = x * 0.99 + 0.01
        return x

    schedule = check(f, r(1000), rtol=1e-4, atol=1e-5)
    assert 1 < len(kernels(schedule)) < 10


def test_shared_subexpressions_do_not_multiply():
    def f(x):
        a, b = x, x * 2
        for _ in range(60):
            a, b = b, (a + b) * 0.5
        return b

    check(f, r(1000), rtol=1e-4, atol=1e-5)


def test_what_is_stored_and_summed_over_rows_is_one_stage():
    def f(g, x):
        dx = g * torch.tanh(x)
        return dx, dx.sum(0)

    schedule = check(f, r(40, 33), r(40, 33), n_kernels=1, n_externs=0)
    (kernel,) = kernels(schedule)
    reduce, result = kernel.stages
    assert isinstance(reduce, ReduceStage) and len(reduce.stores) == 1
    assert isinstance(result, MapStage) and not result.loops


def test_a_reduction_that_reads_elsewhere_does_not_share_the_stage():
    """The second sum reads what the first stored, along other places of the row."""

    def f(x):
        y = torch.exp(x)
        return y, y.sum(-1), (y.flip(-1) * torch.arange(16)).sum(-1)

    check(f, r(24, 16), n_externs=0, rtol=1e-5, atol=1e-5)


def test_sums_over_both_dimensions_of_a_result():
    def f(x, w):
        y = torch.sigmoid(x) * w
        return y, y.sum(0), y.sum(1), (y * x).sum(1)

    check(f, r(24, 16), r(16), n_externs=0, rtol=1e-5, atol=1e-5)


def test_half_precision_is_summed_as_it_is_stored():
    x = (torch.randn(64, 32) * 100).bfloat16()

    def f(x):
        y = x * 1.01
        return y, y.sum(0), y.sum(1)

    check(f, x, n_externs=0)


def test_what_may_raise_is_in_program_order():
    """Two checks are of one kernel, behind which both could be: a sum of rows at places that the first one checks is not
    before it."""

    def f(places, rows):
        torch._assert_async((places.amax() < 6) & (places.amin() >= 0))
        first = torch.zeros(6, 3).index_add(0, places, rows)
        torch._assert_async((places.amax() < 4) & (places.amin() >= 0))
        return first, torch.zeros(4, 3).index_add(0, places, rows)

    schedule = check(f, torch.tensor([1, 3, 2]), r(3, 3))
    called = [item.op.name() for item in schedule.items if isinstance(item, ExternItem)]
    assert called == ["aten::_assert_async", "aten::index_add"] * 2
    assert sum("amax" in k.name for k in kernels(schedule)) == 1


def steps(x, w, n):
    """A recurrent network: each step reads the one before."""
    h, found = x[:, 0], []
    for t in range(n):
        h = torch.tanh(x[:, t] + h @ w)
        found.append(h)
    return torch.stack(found, 1)


@pytest.mark.parametrize(
    ("looked_at", "products"),
    [
        (lambda found: found[:, :-1] * 2, 2),
        (lambda found: found[:, 1:2].sum(1), 2),
        (lambda found: found[:, 0].exp(), 1),
        (lambda found: found.sin(), 3),
    ],
)
def test_what_nobody_looks_at_is_not_computed(looked_at, products):
    """Steps of a recurrent network behind the last one that is."""
    check(lambda x, w: looked_at(steps(x, w, 3)), r(5, 4, 8), r(8, 8) / 8, n_externs=products)


@pytest.mark.parametrize("parts", [3, 4, 500])
def test_many_parts_are_copied(parts):
    """An element of a kernel would compare its place with the end of each part; of 500 the expression is too deep."""
    joined = [r(2, 8) for _ in range(parts)]
    for join in (torch.cat, torch.stack):
        check(lambda *xs, join=join: join([x * 2 for x in xs], 1) + 1, *joined, n_externs=int(parts > 3))
