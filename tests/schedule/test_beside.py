"""Sums over rows beside the rows, under a GPU's costs; kernels are run by the reference interpreter."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from smelt.loops.kernel_printer import print_kernel
from smelt.ops.lowering import lower
from smelt.schedule.schedule import KernelItem, Schedule
from smelt.schedule.schedule_program import fuse
from smelt.schedule.verify_schedule import verify
from smelt.targets.cuda import COSTS
from tests.harness.schedule_interpreter import run
from tests.harness.traced import flatten, traced

aten = torch.ops.aten
f32, f64 = torch.float32, torch.float64
FEW = replace(COSTS, threads=4, least_rows=2)  # workers, so that few rows are enough


def scheduled(f: Any, *inputs: torch.Tensor, costs: Any = FEW) -> tuple[Schedule, list[torch.Tensor]]:
    graph, real = traced(f, *inputs)
    schedule = fuse(lower(graph, costs), costs)
    verify(schedule)
    return schedule, real


def check(f: Any, *inputs: torch.Tensor, costs: Any = FEW, **tolerance: float) -> list[Any]:
    """What the schedule gives is what eager gives; the kernels that have sums beside their rows."""
    copies = [t.clone() for t in inputs]
    schedule, real = scheduled(f, *copies, costs=costs)
    expected = flatten(f(*inputs))
    for got, want in zip(run(schedule, real), expected, strict=True):
        torch.testing.assert_close(got, want, **tolerance)
    for got, want in zip(copies, inputs, strict=True):
        torch.testing.assert_close(got, want, **tolerance)
    return [i.kernel for i in schedule.items if isinstance(i, KernelItem) and i.kernel.sums is not None]


def norm_backward(
    lead: tuple[int, ...], width: int, dtype: torch.dtype = f32
) -> tuple[Any, list[torch.Tensor]]:
    """A layer norm's backward, and what it takes."""
    x, g = torch.randn(*lead, width, dtype=dtype), torch.randn(*lead, width, dtype=dtype)
    w, b = torch.randn(width, dtype=dtype), torch.randn(width, dtype=dtype)
    _, mean, rstd = aten.native_layer_norm(x, [width], w, b, 1e-5)

    def f(g: Any, x: Any, mean: Any, rstd: Any, w: Any, b: Any) -> Any:
        return aten.native_layer_norm_backward(g, x, [width], mean, rstd, w, b, [True] * 3)

    return f, [g, x, mean, rstd, w, b]


@pytest.mark.parametrize("dtype", (f32, f64))
@pytest.mark.parametrize("lead", [(64,), (37,), (8, 9), (3, 5, 7)])
def test_a_layer_norm_reads_its_rows_once(lead: tuple[int, ...], dtype: torch.dtype) -> None:
    """Both sums, also where no number of chunks divides the rows, and over several dimensions."""
    f, inputs = norm_backward(lead, 33, dtype)
    [kernel] = check(f, *inputs, rtol=1e-4, atol=1e-4)
    assert len(kernel.sums.stages[0].reductions) == 2


def test_it_prints() -> None:
    f, inputs = norm_backward((64,), 32)
    [kernel] = check(f, *inputs, rtol=1e-4, atol=1e-4)
    assert print_kernel(kernel).splitlines()[-6:] == [
        "beside it, for o0 in 16, o1 in 32:",
        "  reduce i0 in 4:",
        "    s0 = sum(p0[32*i0 + 128*o0 + o1])",
        "    s1 = sum(p0[32*i0 + 128*o0 + o1] * ((p2[32*i0 + 128*o0 + o1] - p3[i0 + 4*o0]) * p4[i0 + 4*o0]))",
        "  p6[32*o0 + o1] = s0",
        "  p7[32*o0 + o1] = s1",
    ]


def test_sums_of_what_rows_store() -> None:
    """The gradient behind a softmax, which is stored, and its sums over rows."""

    def f(g: torch.Tensor, y: torch.Tensor) -> Any:
        dx = y * (g - (g * y).sum(-1, keepdim=True))
        return dx, dx.sum(0)

    [kernel] = check(f, torch.randn(48, 40), torch.randn(48, 40).softmax(-1), rtol=1e-4, atol=1e-5)
    stored = {s.buffer for stage in kernel.stages for s in stage.stores}
    loads = [buffer for buffer in stored if f"p{buffer}[" in print_kernel(kernel).partition("beside it")[2]]
    assert loads, "the sums are of what the rows stored"


def test_sums_that_need_a_reduction_of_their_row() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x / x.abs().amax(-1, keepdim=True)
        return y.softmax(-1), y.sum(0), y.amax(0)

    assert check(f, torch.randn(50, 24), rtol=1e-4, atol=1e-5)


def test_what_overwrites_an_input() -> None:
    def f(x: torch.Tensor, total: torch.Tensor) -> Any:
        y = x.softmax(-1)
        total.add_(y.sum(0))
        x.mul_(y)
        return y * 2, x.sum(0)

    check(f, torch.randn(64, 24), torch.zeros(24), rtol=1e-4, atol=1e-5)


def test_what_the_rows_need_of_all_rows_comes_first() -> None:
    """A kernel that reads sums over the rows that it computes would have to wait for itself."""

    def f(x: torch.Tensor) -> Any:
        total = x.sum(0)
        y = (x - total).softmax(-1)
        return y, x.softmax(-1)

    check(f, torch.randn(64, 24), rtol=1e-4, atol=1e-5)


def test_a_call_between_them() -> None:
    """The rows are needed by a product whose result the sums need."""

    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x.softmax(-1)
        return y, (x * (y @ w)).sum(0)

    assert not check(f, torch.randn(64, 24), torch.randn(24, 24), rtol=1e-4, atol=1e-4)


def test_several_norms_one_behind_the_other() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Any:
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in (x, w)]
            y = F.layer_norm(leaves[0], (24,), leaves[1])
            y = F.layer_norm(F.gelu(y) + leaves[0], (24,), leaves[1]).softmax(-1)
            return torch.autograd.grad(y, leaves, g)

    x, w, g = torch.randn(64, 24), torch.randn(24), torch.randn(64, 24)
    schedule, real = scheduled(f, x, w, g)
    for got, want in zip(run(schedule, real), f(x, w, g), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "dtype, changes, pays",
    [
        (f32, dict(row_sums=0), False),  # as on a CPU
        (f32, dict(row_sums=127), False),  # a row has more columns than half of that
        (f32, dict(row_sums=128), True),
        (f64, dict(row_sums=255), False),  # two sums of 64 columns, of 64 bits
        (f64, dict(row_sums=256), True),
        (f32, dict(least_rows=20), False),  # too few rows for all workers
    ],
)
def test_where_it_does_not_pay_there_are_two_kernels(
    dtype: torch.dtype, changes: dict[str, int], pays: bool
) -> None:
    f, inputs = norm_backward((64,), 64, dtype)
    costs = replace(FEW, **changes)
    assert bool(check(f, *inputs, costs=costs, rtol=1e-4, atol=1e-4)) == pays


def test_chunks_divide_the_rows_where_some_number_does() -> None:
    """And there is one at least for every worker; a program adds up no more rows than its accuracy bears."""
    costs = replace(COSTS, threads=132)
    for rows, chunks in ((65_536, 512), (65_537, 525), (1 << 20, 4096), (4096, 256)):
        f, inputs = norm_backward((rows,), 8)
        schedule, _ = scheduled(
            f, *(t.expand(rows, 8) if t.shape[:1] == (rows,) else t for t in inputs), costs=costs
        )
        [found] = [
            i.kernel for i in schedule.items if isinstance(i, KernelItem) and i.kernel.sums is not None
        ]
        assert found.sums.outer[0].size == chunks
