"""Costs decide what is stored, what fuses and what is shared: other costs, other kernels, the same results."""

import pytest
import torch
import torch.nn.functional as F

from tests.harness.schedule_interpreter import run
from tests.harness.scheduled import costs, kernels, scheduled
from tests.harness.traced import flatten


def counted(f, *inputs, **changes):
    """How many kernels `f` is under the changed costs. What they compute is eager's."""
    schedule, real = scheduled(f, *inputs, **changes)
    torch.testing.assert_close(list(run(schedule, real)), flatten(f(*inputs)), rtol=1e-4, atol=1e-4)
    return len(kernels(schedule))


def rows(x, y):
    return torch.sigmoid(x)[:, None] * y


@pytest.mark.parametrize("launch, count", [(0.0, 2), (1e9, 1)])
def test_what_is_read_often_is_stored_where_a_kernel_is_cheap(launch, count):
    assert counted(rows, torch.randn(64), torch.randn(64, 50), launch=launch) == count


def test_what_is_stored_dearly_is_computed_again():
    wide = torch.randn(64), torch.randn(64, 50)
    assert counted(rows, *wide, launch=0.0, store=1e9) == 1


def tower(x):
    for _ in range(20):
        x = x * 0.5 + 1
    return x


@pytest.mark.parametrize("changes", [{"inline_depth": 10}, {"inline_limit": 4.0, "inline_depth": 1000}])
def test_long_expressions_are_cut(changes):
    assert counted(tower, torch.randn(30)) == 1
    assert counted(tower, torch.randn(30), **{"kernel_buffers": 2} | changes) > 1


def test_a_kernel_touches_as_many_buffers_as_pay():
    def sums(a, b, c, d):
        first = a + b
        return first, first + c + d

    tensors = [torch.randn(16, 16) for _ in range(4)]
    assert [counted(sums, *tensors, kernel_buffers=n) for n in (4, 5)] == [2, 1]


def test_no_group_is_tried_no_group_is_joined():
    def f(x):
        return torch.softmax(F.layer_norm(x, (32,)), -1)

    assert counted(f, torch.randn(8, 32)) == 1
    assert counted(f, torch.randn(8, 32), candidates=0) > 4


def roles(**changes):
    (kernel,) = kernels(scheduled(lambda x: torch.softmax(x, -1), torch.randn(64, 64), **changes)[0])
    return [b.role for b in kernel.buffers]


def test_rows_are_kept_where_scratch_holds_them():
    assert roles() == ["in", "local", "out"]
    assert roles(scratch_bytes=255) == roles(scratch_cost=100.0) == ["in", "out"]


def test_few_rows_are_not_made_of_a_large_elementwise_kernel():
    def f(x):
        y = x * 2
        return y, y.sum(-1)

    assert counted(f, torch.randn(4, 100)) == 1
    assert counted(f, torch.randn(4, 100), row_kernel_points=100) == 2
    assert counted(f, torch.randn(4, 100), row_kernel_points=100, row_kernel_rows=4) == 1


@pytest.mark.parametrize("shortest, sizes", [(4, [2, 16, 8, 8]), (16, [2, 16, 64])])
def test_loops_are_split_into_pieces_that_pay(shortest, sizes):
    heads = torch.randn(2, 8, 16, 8)
    schedule, _ = scheduled(lambda x: x.transpose(1, 2).reshape(2, 16, 64) + 1, heads, shortest_loop=shortest)
    (kernel,) = kernels(schedule)
    assert [loop.size for loop in kernel.outer] == sizes


def test_reductions_are_shared_among_the_workers_that_there_are():
    x = torch.randn(4096)
    assert counted(torch.sum, x, threads=1, split_points=1, part_points=1) == 1
    for workers in (2, 132):
        schedule, _ = scheduled(torch.sum, x, threads=workers, split_points=1, part_points=1)
        parts, whole = kernels(schedule)
        assert parts.outer[0].size >= workers and whole.outer == ()
    assert counted(torch.sum, x, threads=2, split_points=5000) == 1


def test_every_cost_is_given():
    assert costs(launch=1.0) != costs() == costs()
    with pytest.raises(TypeError, match="missing"):
        type(costs())()
