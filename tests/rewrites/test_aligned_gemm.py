"""Products whose rows are no multiples of 16 bytes are computed on larger matrices: results, gradients and layouts are
eager's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt
from smelt import events, pipeline
from smelt.report.inspect import entries
from smelt.schedule.schedule import BufRef, ExternItem, Schedule
from smelt.targets import cuda

pytestmark = pytest.mark.simulated_cuda

aten = torch.ops.aten
bf16 = torch.bfloat16
PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies cost nothing beside a product that is not aligned: sizes of tests are small."""
    alignment = replace(cuda.COSTS.alignment, unaligned=1e9)
    monkeypatch.setattr(cuda, "COSTS", replace(cuda.COSTS, alignment=alignment))


@pytest.fixture
def schedules(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Schedule]]:
    """Of all graphs that are compiled."""
    seen: list[Schedule] = []
    build = pipeline.build_plan

    def built(schedule: Schedule, *args: Any) -> Any:
        seen.append(schedule)
        return build(schedule, *args)

    monkeypatch.setattr(pipeline, "build_plan", built)
    yield seen


def products(schedules: list[Schedule]) -> list[list[tuple[tuple[Any, ...], tuple[Any, ...]]]]:
    """Of each product the shapes and strides of A, B and the result."""
    found = []
    for schedule in schedules:
        for item in schedule.items:
            if isinstance(item, ExternItem) and item.op in PRODUCTS:
                ids = [a.id for a in item.args if isinstance(a, BufRef)] + [item.outs[0]]
                specs = [schedule.buffers[i].spec for i in ids[-3:]]
                found.append([(s.shape, s.stride) for s in specs])
    return found


def are_aligned(schedules: list[Schedule], multiple: int = 8) -> bool:
    """Whether all sizes along which memory is contiguous are multiples, and strides too."""
    found = products(schedules)
    return bool(found) and all(
        n % multiple == 0
        for matrices in found
        for shape, stride in matrices
        for n, s in zip(shape[-2:], stride[-2:])
        for n in ((n,) if s == 1 else (s,))
    )


def layouts(tree: Any) -> Any:
    return [(t.shape, t.stride(), t.dtype) for t in tree]


def check(fn: Callable[..., Any], *args: Any, atol: float = 0.02, rtol: float = 0.02) -> None:
    """Compiled and eager agree, in layouts as well."""
    got, want = smelt.compile(fn, fullgraph=True, options={"verify_stages": True})(*args), fn(*args)
    got, want = ([t] if isinstance(t, Tensor) else t for t in (got, want))
    torch.testing.assert_close(got, want, atol=atol, rtol=rtol)
    assert layouts(got) == layouts(want)


def normal(*shape: int, dtype: torch.dtype = bf16) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype) / 4


@pytest.mark.parametrize("n, k", [(37, 41), (37, 48), (48, 41)])
@pytest.mark.parametrize("left", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("right", [False, True], ids=["rows", "columns"])
def test_layouts_of_the_operands(always, schedules, n, k, left, right) -> None:
    a = normal(k, 33).t() if left else normal(33, k)
    b = normal(n, k).t() if right else normal(k, n)
    check(torch.mm, a, b)
    assert are_aligned(schedules)


@pytest.mark.parametrize("shape", [(37,), (1, 37), (33, 37), (33, 1), (1,), ()])
def test_broadcast_addend(always, schedules, shape) -> None:
    added = normal(*shape)
    check(lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), added, normal(33, 41), normal(41, 37))
    check(lambda c, a, b: torch.addmm(c, a, b), added, normal(41, 33).t(), normal(41, 37))
    assert are_aligned(schedules)


def test_batches(always, schedules) -> None:
    a, b = normal(3, 33, 41), normal(3, 41, 37)
    check(torch.bmm, a, b)
    check(torch.bmm, normal(3, 41, 33).mT, normal(3, 37, 41).mT)
    check(torch.bmm, normal(33, 3, 41).transpose(0, 1), b)
    check(torch.baddbmm, normal(3, 33, 37), a, b)
    check(torch.baddbmm, normal(33, 1), a, normal(1, 41, 37).expand(3, -1, -1))
    assert are_aligned(schedules)


def test_a_matrix_by_itself(always, schedules) -> None:
    check(lambda x: x @ x, normal(37, 37))
    check(lambda x: x @ x.t(), normal(37, 41))
    assert are_aligned(schedules)


def test_padding_along_the_sum_is_zero_in_both_operands(always) -> None:
    """An infinite element makes the sums of its own row and column infinite, no others."""
    a, b = normal(33, 41), normal(41, 37)
    a[3, 40], b[40, 5] = float("inf"), float("nan")
    got = smelt.compile(torch.mm)(a, b)
    torch.testing.assert_close(got, a @ b, equal_nan=True, atol=0.02, rtol=0.02)


def test_results_read_in_part_and_in_full(always) -> None:
    def fn(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        y = a @ b
        return y.view(3, 11, 37)[:, -1], y.softmax(-1), y.t() @ y, y.flatten()[5:], y

    check(fn, normal(33, 41), normal(41, 37))


class Model(nn.Module):
    """Odd sizes everywhere; the loss is inside where targets are given."""

    def __init__(self, classes: int = 301) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 131), nn.Linear(131, 64)
        self.head = nn.Linear(64, classes, bias=False)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> tuple[Tensor, ...]:
        x = x + self.down(F.gelu(self.up(x)))
        logits = self.head(x)
        if targets is None:
            return (logits,)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets), x


@pytest.mark.parametrize("loss", [False, True], ids=["logits", "loss"])
def test_training(always, schedules, loss) -> None:
    torch.manual_seed(0)
    model = Model().cuda()
    x = torch.randn(4, 9, 64, device="cuda", requires_grad=True)
    targets = (torch.randint(0, 301, (36,), device="cuda"),) if loss else ()

    def step(call: Callable[..., Any]) -> tuple[list[Tensor], list[Tensor]]:
        model.zero_grad()
        x.grad = None
        with torch.autocast("cuda", bf16):
            out = call(x, *targets)
        sum(y.float().square().mean() for y in out).backward()
        return list(out), [x.grad.clone(), *(p.grad.clone() for p in model.parameters())]

    got = step(smelt.compile(model, fullgraph=True, options={"verify_stages": True}))
    want = step(model)
    for a, e in zip(got, want):
        torch.testing.assert_close(a, e, atol=2e-3, rtol=0.05)
        assert layouts(a) == layouts(e)
    assert are_aligned(schedules)


def test_a_weight_is_cast_into_the_larger_matrix(always, schedules) -> None:
    """No copies but that of the result, which the caller gets."""
    layer = nn.Linear(64, 301).cuda()
    x = normal(33, 64)

    def fn(x: Tensor) -> Tensor:
        with torch.autocast("cuda", bf16):
            return layer(x)

    with torch.no_grad():
        check(fn, x)
    [schedule] = schedules
    casts = [b.spec.shape for b in schedule.buffers if b.kind == "temp"]
    assert sorted(casts) == sorted([(304, 64), (304,), (64, 304), (33, 304)])
    assert are_aligned(schedules)


def test_kernels_read_the_larger_matrix(always, schedules) -> None:
    check(lambda a, b: (a @ b).float().softmax(-1), normal(33, 64), normal(64, 37))
    [schedule] = schedules
    assert (33, 37) not in [b.spec.shape for b in schedule.buffers if b.kind == "temp"]


def test_saved_results_are_the_larger_matrix(always, schedules) -> None:
    """The backward of gelu reads what the product gave; nothing copies it."""
    w = normal(64, 37).requires_grad_()
    x = normal(33, 64)
    y = smelt.compile(lambda x, w: F.gelu(x @ w).sum(), fullgraph=True)(x, w)
    y.backward()
    forward, backward = schedules
    shapes = [forward.buffers[i].spec.shape for i in forward.outputs]
    assert (33, 40) in shapes and (33, 37) not in shapes
    got, w.grad = w.grad, None
    F.gelu(x @ w).sum().backward()
    torch.testing.assert_close(got, w.grad, atol=0.05, rtol=0.05)
    assert are_aligned(schedules)


def test_a_matrix_and_its_transpose_are_padded_once(always, schedules) -> None:
    """As the gradient of logits is, which both products of a backward read."""

    def fn(g: Tensor, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        g = g * 2
        return g @ w, g.t() @ x

    check(fn, normal(32, 37), normal(37, 64), normal(32, 64), atol=0.05)
    [schedule] = schedules
    assert [b.spec.shape for b in schedule.buffers].count((32, 40)) == 1
    assert are_aligned(schedules)


def test_profitability(schedules) -> None:
    """Large products of half precision, where the copies are less than what the product gains."""
    compiled = smelt.compile(torch.mm, dynamic=False)
    compiled(normal(256, 1024), normal(1024, 1001))
    compiled(normal(1024, 1024), normal(1024, 1001))
    small, large = products(schedules)
    assert small[-1][0] == (256, 1001)
    assert large[-1][0] == (1024, 1008)


def test_not_if_memory_bound(schedules) -> None:
    smelt.compile(torch.mm)(normal(8, 4096), normal(4096, 4099))
    smelt.compile(torch.bmm)(normal(64, 255, 16), normal(64, 16, 255))
    assert [p[-1][0] for p in products(schedules)] == [(8, 4099), (64, 255, 255)]


@pytest.mark.parametrize("precision, shape", [("highest", (33, 37)), ("high", (33, 40))])
def test_float32_where_it_may_be_tf32(always, schedules, precision, shape) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        check(torch.mm, normal(33, 64, dtype=torch.float32), normal(64, 37, dtype=torch.float32))
    finally:
        torch.set_float32_matmul_precision(before)
    assert products(schedules)[0][-1][0] == shape


def test_not_of_float64_nor_on_a_cpu(always, schedules) -> None:
    smelt.compile(torch.mm)(normal(33, 64, dtype=torch.float64), normal(64, 37, dtype=torch.float64))
    smelt.compile(torch.mm)(torch.randn(33, 64, dtype=bf16), torch.randn(64, 37, dtype=bf16))
    assert [p[-1][0] for p in products(schedules)] == [(33, 37), (33, 37)]


def test_symbolic_number_of_rows(always: None) -> None:
    """Numbers are rounded up, symbolic sizes stay: one compilation for all."""
    head = nn.Linear(48, 37, bias=False, device="cuda", dtype=bf16)

    def scores(x: Tensor) -> Tensor:
        return head(x)

    compiled = smelt.compile(scores, fullgraph=True, dynamic=True, options={"verify_stages": True})
    seen: list[events.Event] = []
    with torch.no_grad(), events.subscribed(seen.append):
        for batch, length in ((2, 11), (3, 8), (5, 24)):
            x = normal(batch, length, 48)
            torch.testing.assert_close(compiled(x), scores(x), atol=0.02, rtol=0.02)
            assert layouts([compiled(x)]) == layouts([scores(x)])
    assert len(entries(compiled)) == 1
    assert are_aligned([e.data["schedule"] for e in seen if e.kind == "schedule"])


def test_a_sum_over_a_symbolic_size_is_left_alone(always: None) -> None:
    compiled = smelt.compile(torch.mm, fullgraph=True, dynamic=True)
    for n, k in ((16, 9), (24, 11)):
        a, b = normal(n, k), normal(k, 37)
        torch.testing.assert_close(compiled(a, b), torch.mm(a, b), atol=0.02, rtol=0.02)
    assert len(entries(compiled)) == 1
