"""Large products of which the caller gets a copy are computed piece by piece, and memory is filled part by part."""

from __future__ import annotations

import gc
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
from smelt.rewrites.aligned_gemm import align_products
from smelt.rewrites.chunked_gemm import in_chunks
from smelt.schedule.schedule import ExternItem, KernelItem, Schedule
from smelt.targets import cuda
from tests.harness.traced import traced

pytestmark = pytest.mark.simulated_cuda

aten = torch.ops.aten
bf16 = torch.bfloat16
PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if tensors of tests were large: products are aligned, and chunks have 8 rows and half a kilobyte at least."""
    alignment = replace(
        cuda.COSTS.alignment, unaligned=1e9, aligned=1e6, chunk_bytes=512, chunk_rows=8, chunks=4
    )
    monkeypatch.setattr(cuda, "COSTS", replace(cuda.COSTS, alignment=alignment, launch=1.0))


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


def normal(*shape: int, dtype: torch.dtype = bf16) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype) / 4


def results(schedule: Schedule) -> list[tuple[Any, ...]]:
    """Shapes of what products give."""
    items = [i for i in schedule.items if isinstance(i, ExternItem) and i.op in PRODUCTS]
    return [schedule.buffers[i.outs[0]].spec.shape for i in items]  # type: ignore[index]


def check(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Compiled and eager agree, in layouts as well, twice."""
    compiled = smelt.compile(fn, fullgraph=True, options={"verify_stages": True})
    want = fn(*args)
    for _ in range(2):
        got = compiled(*args)
        torch.testing.assert_close(got, want, **{"atol": 0.02, "rtol": 0.02} | kwargs)
        for g, w in zip(*([t] if isinstance(t, Tensor) else t for t in (got, want)), strict=True):
            assert (g.shape, g.stride(), g.dtype) == (w.shape, w.stride(), w.dtype)


@pytest.mark.parametrize("m", [32, 33, 40, 61])
@pytest.mark.parametrize("left", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("right", [False, True], ids=["rows", "columns"])
def test_rows(small, schedules, m, left, right) -> None:
    a = normal(41, m).t() if left else normal(m, 41)
    b = normal(37, 41).t() if right else normal(41, 37)
    check(torch.mm, a, b)
    [schedule] = schedules
    chunks = results(schedule)
    assert len(chunks) in (3, 4) and {n for _, n in chunks} == {40}
    assert sum(rows for rows, _ in chunks) == (-(-m // 8) * 8 if left else m)
    assert (m, 40) not in [b.spec.shape for b in schedule.buffers]


@pytest.mark.parametrize("shape", [(37,), (1, 37), (33, 37), (33, 1), (1,), ()])
def test_addend(small, schedules, shape) -> None:
    a, b = normal(33, 41), normal(41, 37)
    check(lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), normal(*shape), a, b)
    check(lambda c, a, b: torch.addmm(c, a, b), normal(*shape), a, b)
    assert all(len(results(s)) == 3 for s in schedules)


def test_batches(small, schedules) -> None:
    a, b = normal(6, 33, 41), normal(6, 41, 37)
    check(torch.bmm, a, b)
    check(torch.bmm, normal(6, 41, 33).mT, normal(6, 37, 41).mT)
    check(torch.baddbmm, normal(6, 33, 37), a, b)
    check(torch.baddbmm, normal(33, 1), a, normal(1, 41, 37).expand(6, -1, -1))
    assert [len(results(s)) for s in schedules] == [3, 3, 3, 3]


def test_partial_copies_of_the_program(small, schedules) -> None:
    """No row is computed that is in no piece."""
    check(lambda a, b: (a @ b)[:19].clone(), normal(61, 48), normal(48, 40))
    check(lambda a, b: (a @ b)[:-7, :5].clone(), normal(61, 48), normal(48, 40))
    assert [sum(m for m, _ in results(s)) for s in schedules] == [32, 61]


def test_chunks_share_code(small, schedules) -> None:
    check(torch.mm, normal(64, 48), normal(48, 37))
    [schedule] = schedules
    kernels = [i.kernel for i in schedule.items if isinstance(i, KernelItem)]
    *_, first, second, third, fourth = kernels
    assert first == second == third == fourth
    order = ["piece" if isinstance(i, KernelItem) else "product" for i in schedule.items]
    products = [k for k, i in enumerate(schedule.items) if isinstance(i, ExternItem) and i.op in PRODUCTS]
    assert "piece" in order[products[0] : products[1]]


def test_views_and_calls_that_read_the_copy(small, schedules) -> None:
    def fn(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        y = a @ b
        return y, y.view(4, 8, 37), y[3:, 2:], y.sort(-1).values

    check(fn, normal(32, 48), normal(48, 37))
    assert len(results(schedules[0])) == 4


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: (a @ b).relu(),
        lambda a, b: (lambda y: (y, y.sum(-1)))(a @ b),
        lambda a, b: (lambda y: (y, y.float().softmax(-1)))(a @ b),
        lambda a, b: ((a @ b).t() @ a).relu(),
    ],
)
def test_not_if_kernels_or_products_read_the_result(small, schedules, fn) -> None:
    check(fn, normal(32, 48), normal(48, 37), atol=0.05)
    assert all(m >= 32 for m, _ in results(schedules[0]))


def test_not_if_copied_to_an_input(small, schedules) -> None:
    def fn(x: Tensor, a: Tensor, b: Tensor) -> None:
        x.copy_(a @ b)

    x, a, b = normal(32, 37), normal(32, 48), normal(48, 37)
    smelt.compile(fn, fullgraph=True, options={"verify_stages": True})(x, a, b)
    torch.testing.assert_close(x, a @ b, atol=0.02, rtol=0.02)
    assert len(results(schedules[0])) == 1


class Model(nn.Module):
    """The logits are returned, with a loss where targets are given."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.head = nn.Linear(64, 64), nn.Linear(64, 301, bias=False)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> tuple[Tensor, ...]:
        logits = self.head(F.gelu(self.up(x)))
        if targets is None:
            return (logits,)
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), targets)


@pytest.mark.parametrize("loss", [False, True], ids=["logits", "loss"])
def test_training(small, schedules, loss) -> None:
    torch.manual_seed(0)
    model = Model().cuda()
    x = torch.randn(4, 16, 64, device="cuda", requires_grad=True)
    targets = (torch.randint(0, 301, (64,), device="cuda"),) if loss else ()

    def step(call: Callable[..., Any]) -> list[Tensor]:
        model.zero_grad()
        x.grad = None
        with torch.autocast("cuda", bf16):
            out = call(x, *targets)
        sum(y.float().square().mean() for y in out).backward()
        return [*(y.detach() for y in out), x.grad.clone(), *(p.grad.clone() for p in model.parameters())]

    got = step(smelt.compile(model, fullgraph=True, options={"verify_stages": True}))
    for a, e in zip(got, step(model), strict=True):
        torch.testing.assert_close(a, e, atol=2e-3, rtol=0.05)
        assert a.stride() == e.stride()
    assert ((16, 304) in results(schedules[0])) is not loss  # the loss reads the larger matrix


@pytest.mark.parametrize("m, k, count", [(512, 1024, 1), (1280, 1024, 2), (1280, 256, 1), (4096, 768, 7)])
def test_profitability(m, k, count) -> None:
    """Pieces of 32 MiB and more, whose time is that of their multiplications: of few, the weight is read again."""
    graph, _ = traced(torch.mm, normal(m, k), normal(k, 32001))
    aligned = align_products(graph, cuda.COSTS).graph
    assert aligned is not graph
    products = [n for n in in_chunks(aligned, cuda.COSTS) if n.target is aten.mm.default]
    assert len(products) == count


def peak(call: Callable[[], Any]) -> int:
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated() - before


def test_a_call_takes_no_more_memory_than_eager(monkeypatch) -> None:
    """But for a piece."""
    alignment = replace(cuda.COSTS.alignment, chunk_bytes=1 << 18, aligned=1.0, unaligned=1e3)
    monkeypatch.setattr(cuda, "COSTS", replace(cuda.COSTS, alignment=alignment, launch=1e6))
    a, b = normal(1024, 128), normal(128, 2048)[:, :2041].contiguous()
    compiled = smelt.compile(torch.mm, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(a, b), a @ b, atol=0.1, rtol=0.02)
    padded_weight = 128 * 2048 * 2
    taken, by_eager = peak(lambda: compiled(a, b)), peak(lambda: a @ b)
    assert taken <= by_eager + by_eager // 7 + padded_weight


def filled(*sizes: int) -> Callable[..., Tensor]:
    """Memory into which products go, one after the other."""

    def fn(*pairs: Tensor) -> Tensor:
        out, begin = torch.empty(sum(sizes), pairs[1].shape[1], device="cuda"), 0
        for size, a, b in zip(sizes, pairs[::2], pairs[1::2], strict=True):
            out[begin : begin + size] = a @ b
            begin += size
        return out * 2 if len(sizes) == 2 else out

    return fn


@pytest.mark.parametrize("sizes", [(8, 24), (8, 16, 8)])
def test_memory_that_the_program_fills(small, schedules, sizes) -> None:
    pairs = [
        x for n in sizes for x in (normal(n, 16, dtype=torch.float32), normal(16, 64, dtype=torch.float32))
    ]
    check(filled(*sizes), *pairs)
    [schedule] = schedules
    order = [i for i in schedule.items if isinstance(i, KernelItem) or getattr(i, "op", None) in PRODUCTS]
    assert isinstance(order[1], KernelItem) and isinstance(order[2], ExternItem)  # each chunk before the next


def test_not_if_read_meanwhile_or_chunks_are_small(schedules) -> None:
    def read(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        out = torch.empty(32, 64, device="cuda")
        out[:8] = a @ b
        first = out[:8].clone()
        out[4:] = torch.ones(28, 64, device="cuda")
        return first, out[:8], out

    a, b = normal(8, 16, dtype=torch.float32), normal(16, 64, dtype=torch.float32)
    check(read, a, b)
    check(filled(8, 24), a, b, normal(24, 16, dtype=torch.float32), b)
    assert not any(
        f.role == "inout" for i in schedules[-1].items if isinstance(i, KernelItem) for f in i.kernel.buffers
    )


def test_symbolic_number_of_rows(small: None) -> None:
    """As many chunks as the minimum number of rows."""
    head = nn.Linear(48, 37, bias=False, device="cuda", dtype=bf16)
    compiled = smelt.compile(head, fullgraph=True, dynamic=True, options={"verify_stages": True})
    seen: list[events.Event] = []
    with torch.no_grad(), events.subscribed(seen.append):
        for batch, length in ((4, 32), (3, 41), (2, 2), (5, 7), (7, 90)):
            x = normal(batch, length, 48)
            got, want = compiled(x), head(x)
            torch.testing.assert_close(got, want, atol=0.02, rtol=0.02)
            assert got.stride() == want.stride()
    assert len(entries(compiled)) == 1
    [schedule] = [e.data["schedule"] for e in seen if e.kind == "schedule"]
    assert len(results(schedule)) == 4
