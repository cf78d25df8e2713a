"""Programs scheduled for a GPU, their kernels run by Triton's interpreter on CPU tensors, at awkward sizes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton compiles for the GPU here; needs TRITON_INTERPRET=1", allow_module_level=True)

from smelt.codegen.triton import block_sizes, triton_source
from smelt.codegen.triton.block_sizes import choose
from smelt.loops.kernel_ir import Kernel
from smelt.ops.lowering import lower
from smelt.schedule.schedule import KernelItem
from smelt.schedule.schedule_program import fuse
from smelt.schedule.verify_schedule import verify
from smelt.targets.cuda import COSTS
from tests.harness import interpreted, schedule_interpreter
from tests.harness.traced import flatten, traced
from tests.harness.triton_launcher import load_kernel

interpreted.by_halves()
f32, f64, bf16 = torch.float32, torch.float64, torch.bfloat16
LAST = torch.channels_last
# Sums of a few hundred elements are cut, too.
EAGER_TO_SPLIT = replace(COSTS, threads=8, split_points=64, part_points=4, item_columns=4, long_row=64)


@pytest.fixture(autouse=True)
def _by_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        schedule_interpreter, "run_kernel", lambda kernel, tensors: load_kernel(kernel)(*tensors)
    )


def kernels_of(f: Callable[..., Any], *inputs: torch.Tensor, costs: Any = COSTS) -> list[Kernel]:
    items = fuse(lower(traced(f, *inputs)[0], costs), costs).items
    return [item.kernel for item in items if isinstance(item, KernelItem)]


def check(
    f: Callable[..., Any], *inputs: torch.Tensor, costs: Any = COSTS, **tolerance: float
) -> list[Kernel]:
    """What the kernels give is what eager gives; the kernels."""
    graph, real = traced(f, *[t.clone(memory_format=torch.preserve_format) for t in inputs])
    schedule = fuse(lower(graph, costs), costs)
    verify(schedule)
    got = schedule_interpreter.run(schedule, real)
    with torch.no_grad():
        expected = flatten(f(*inputs))
    for a, e in zip(got, expected, strict=True):
        assert a is not None and a.stride() == e.stride()
        torch.testing.assert_close(a, e, equal_nan=True, **tolerance)
    return [item.kernel for item in schedule.items if isinstance(item, KernelItem)]


def integers(*shape: int, dtype: torch.dtype = f32) -> torch.Tensor:
    """Floats whose sums are exact, so that any order gives the same."""
    return torch.randint(-8, 9, shape).to(dtype)


# ---- stores where tensors say


@pytest.mark.parametrize("tokens", (1, 3))
@pytest.mark.parametrize("width", (8, 33, 256))
def test_rows_are_computed_and_stored_where_they_belong(width: int, tokens: int) -> None:
    def f(cache: torch.Tensor, step: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, step, F.rms_norm(key, (width,)).transpose(0, 1))
        cache[:, step - 5] = key[0, :, None] * 2
        return cache * 2

    inputs = torch.zeros(3, 9, width), torch.randperm(4)[:tokens] + 5, torch.randn(tokens, 3, width)
    kernels = check(f, *inputs)
    assert len(kernels) == 3 and [b.role for b in kernels[0].buffers].count("inout") == 1


# ---- tiles and rows


@pytest.mark.parametrize(
    "shape", [(8, 8), (64, 64), (17, 33), (131, 67), (9, 1000), (1000, 9), (3, 40), (1, 50), (64, 300)]
)
def test_transposes(shape: tuple[int, int]) -> None:
    check(lambda x: x.t().contiguous(), torch.randn(shape))
    check(lambda x, y: x + y.t(), torch.randn(shape), torch.randn(shape[::-1]))


def test_a_tile_has_both_neighbours() -> None:
    [kernel] = check(lambda x: x.t().contiguous(), torch.randn(200, 100))
    chosen = choose(kernel)
    assert chosen.across is not None and min(chosen.x, chosen.r) >= 32


@pytest.mark.parametrize("shape", [(2, 9, 11, 13), (3, 64, 5, 5), (2, 3, 40, 40), (1, 16, 8, 8)])
def test_layouts_of_images(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    check(lambda x: x.contiguous(memory_format=LAST), x)
    check(lambda x: x.contiguous(), x.contiguous(memory_format=LAST))
    check(lambda x, y: x * 2 + y, x.contiguous(memory_format=LAST), x)


@pytest.mark.parametrize("dims", [(0, 2, 1, 3), (0, 1, 3, 2), (3, 2, 1, 0), (1, 0, 3, 2), (2, 3, 0, 1)])
def test_permutations(dims: tuple[int, ...]) -> None:
    check(lambda x: x.permute(dims).contiguous(), torch.randn(3, 10, 12, 17))
    check(
        lambda x, y: x.permute(dims) - y,
        torch.randn(3, 10, 12, 17),
        torch.randn(3, 10, 12, 17).permute(dims).contiguous(),
    )


@pytest.mark.parametrize("shape", [(5, 256), (3, 512), (7, 768), (33, 1056), (2, 3, 4096), (4, 257)])
def test_rows_with_what_belongs_to_rows_and_columns(shape: tuple[int, ...]) -> None:
    row, column = torch.randn(*shape[:-1], 1), torch.randn(shape[-1])
    check(lambda x, r, c: (x + c) * r.exp(), torch.randn(shape), row, column, rtol=1e-5, atol=1e-5)
    check(lambda x, r, c: torch.where(x > 0, r, c), torch.randn(shape), row, column)


def test_expanded_and_overlapping_inputs() -> None:
    check(lambda x: (x + 1).contiguous(), torch.randn(40, 1).expand(40, 300))
    check(lambda x: x.sum(0), torch.randn(1, 70).expand(50, 70), rtol=1e-5, atol=1e-5)
    check(lambda x: x * 2, torch.randn(100).as_strided((30, 40), (2, 1)))


def test_what_rows_compute_has_no_remainders() -> None:
    [kernel] = kernels_of(lambda x, b: F.gelu(x + b), torch.randn(64, 768), torch.randn(768))
    assert "%" not in triton_source(kernel).text.split("def kernel")[1].replace("program %", "")


# ---- sums and their kin

REDUCTIONS: dict[str, Callable[[torch.Tensor, tuple[int, ...]], Any]] = dict(
    sum=lambda x, d: x.sum(d), mean=lambda x, d: x.mean(d), amax=lambda x, d: x.amax(d), amin=lambda x, d: x.amin(d),
    any=lambda x, d: (x > 7).any(d[0]), all=lambda x, d: (x < 8).all(d[0]), prod=lambda x, d: x.sign().prod(d[0]),
    argmax=lambda x, d: x.argmax(d[0]), argmin=lambda x, d: x.argmin(d[0]), var=lambda x, d: torch.var_mean(x, d),
    logsumexp=lambda x, d: torch.logsumexp(x, d), norm=lambda x, d: torch.linalg.vector_norm(x, 2, d),
    cumsum=lambda x, d: x.cumsum(d[0]),
)  # fmt: skip


@pytest.mark.parametrize("costs", [COSTS, EAGER_TO_SPLIT], ids=["whole", "cut"])
@pytest.mark.parametrize("shape", [(13, 20), (1, 17), (17, 1), (67, 3)])
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions(kind: str, shape: tuple[int, int], costs: Any) -> None:
    for dims in ((0,), (1,)):
        x = integers(*shape)
        for given in (x, x.t().contiguous().t()):
            if kind == "var" and shape[dims[0]] == 1:
                continue
            check(lambda x, dims=dims: REDUCTIONS[kind](x, dims), given, costs=costs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", (f32, f64, bf16, torch.float16, torch.int64, torch.int32))
@pytest.mark.parametrize("kind", ("sum", "amax", "amin"))
def test_columns_of_dtypes(kind: str, dtype: torch.dtype) -> None:
    check(lambda x: REDUCTIONS[kind](x, (0,)), integers(100, 20, dtype=dtype), costs=EAGER_TO_SPLIT)


def test_the_first_of_equal_elements_wins_and_nan_before_all() -> None:
    x = torch.zeros(30, 11)
    x[7], x[20] = 3.0, 3.0
    x[15, 5], x[25, 5] = float("nan"), float("nan")
    for f in (torch.argmax, torch.argmin):
        check(lambda x, f=f: (f(x, 0), f(x, 1), f(x)), x, costs=EAGER_TO_SPLIT)


@pytest.mark.parametrize("rows", (1, 63, 64, 257, 1009))
def test_sums_of_columns_beside_what_belongs_to_rows(rows: int) -> None:
    """As the gradients of a layer norm's weights: what varies with the row alone does not make it a sum of rows."""

    def f(g: torch.Tensor, x: torch.Tensor, m: torch.Tensor) -> Any:
        return (g * (x - m)).sum(0), g.sum(0)

    given = integers(rows, 20), integers(rows, 20), integers(rows, 1)
    for costs in (COSTS, EAGER_TO_SPLIT):
        found = check(f, *given, costs=costs)
        widest = max(found, key=lambda k: len(k.buffers))
        assert choose(widest).x > 1 or rows == 1


def test_sums_beside_the_rows_of_a_norm() -> None:
    """37 rows of 50, in 13 chunks."""

    def f(g: torch.Tensor, x: torch.Tensor, m: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.ops.aten.native_layer_norm_backward(g, x, [50], m, r, w, w, [True] * 3)

    x, w = torch.randn(37, 50), torch.randn(50)
    _, mean, rstd = torch.native_layer_norm(x, [50], w, w, 1e-5)
    costs = replace(COSTS, threads=4, least_rows=2)
    found = check(f, torch.randn(37, 50), x, mean, rstd, w, costs=costs, rtol=1e-4, atol=1e-4)
    assert [k.sums is not None for k in found] == [True, False, False]


def test_sums_are_cut_where_no_number_divides() -> None:
    """Primes: the last part is shorter, and nothing beyond the end takes part."""
    x = integers(211, 7) - 20
    for f in (
        lambda x: x.sum(0),
        lambda x: x.amax(0),
        lambda x: x.prod(0),
        lambda x: (x < 0).all(0),
        lambda x: x.exp().sum(0),
    ):
        found = check(f, x, costs=EAGER_TO_SPLIT, rtol=1e-4, atol=0)
        assert len(found) == 2


def test_several_loops_are_cut() -> None:
    x = integers(3, 5, 7, 9).contiguous(memory_format=LAST)
    found = check(lambda x: x.sum((0, 2, 3)), x, costs=EAGER_TO_SPLIT)
    assert len(found) == 2


@pytest.mark.parametrize("layout", (torch.contiguous_format, LAST))
@pytest.mark.parametrize("shape", [(4, 6, 5, 5), (2, 16, 7, 7)])
def test_batch_norm(shape: tuple[int, ...], layout: torch.memory_format) -> None:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        return F.batch_norm(x, None, None, w, b, True)

    x, w, b = (
        torch.randn(shape).contiguous(memory_format=layout),
        torch.randn(shape[1]),
        torch.randn(shape[1]),
    )
    for costs in (COSTS, EAGER_TO_SPLIT):
        check(f, x, w, b, costs=costs, rtol=1e-4, atol=1e-4)


def test_few_long_rows_are_shared_by_several_kernels() -> None:
    """Channels are too few to have a program each do all of an image; an elementwise kernel has programs enough."""
    x = torch.empty(64, 256, 56, 56, dtype=bf16)
    for given in (x, x.contiguous(memory_format=LAST)):
        found = kernels_of(
            lambda x: F.batch_norm(x, None, None, None, None, True), given, costs=replace(COSTS, threads=132)
        )
        assert len(found[-1].stages) == 1
        assert not [s for s in found[-1].stages if getattr(s, "loops", ())]


@pytest.mark.parametrize("rows, width", [(5, 33), (100, 48)])
def test_the_backward_of_a_layer_norm(rows: int, width: int) -> None:
    def f(g: torch.Tensor, x: torch.Tensor, m: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.ops.aten.native_layer_norm_backward(g, x, [width], m, r, w, w, [True] * 3)

    x, g, w = torch.randn(rows, width), torch.randn(rows, width), torch.randn(width)
    mean, rstd = x.mean(1, keepdim=True), x.var(1, correction=0, keepdim=True).add(1e-5).rsqrt()
    for costs in (COSTS, EAGER_TO_SPLIT):
        check(f, g, x, mean, rstd, w, costs=costs, rtol=1e-4, atol=1e-4)


# ---- a maximum and a sum in one pass


@pytest.fixture
def short_registers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rows of more than 64 points are long."""
    for name in ("PERSISTENT", "PERSISTENT_FEW", "LOOPED"):
        monkeypatch.setattr(block_sizes, name, 64)
    load_kernel.cache_clear()
    yield
    load_kernel.cache_clear()


@pytest.mark.parametrize("width", (130, 200, 333))
@pytest.mark.parametrize("dtype", (f32, bf16))
def test_long_rows_are_read_once_for_maximum_and_sum(
    dtype: torch.dtype, width: int, short_registers: None
) -> None:
    x = (torch.randn(3, width) * 5).to(dtype)
    # The interpreter cuts bits off where a GPU rounds.
    tolerance = dict(rtol=1e-4, atol=2e-5) if dtype is f32 else dict(rtol=2**-6, atol=1e-5)
    [kernel] = check(lambda x: x.softmax(1), x, **tolerance)
    assert triton_source(kernel).text.count("tl.load") == 2
    check(lambda x: x.float().log_softmax(1), x, rtol=1e-4, atol=2e-5)  # eager's of bfloat16 is less precise
    check(lambda x: x.float().logsumexp(1), x, rtol=1e-4, atol=2e-5)
    check(lambda x: F.log_softmax(x.float(), 1).sum(1), x, rtol=1e-3, atol=1e-2)


def test_long_columns_are_read_once_for_maximum_and_sum() -> None:
    x = torch.randn(500, 3) * 5
    check(lambda x: x.softmax(0), x, rtol=1e-4, atol=1e-7)


def test_infinities_and_nan_in_long_rows(short_registers: None) -> None:
    inf, nan, lowest = float("inf"), float("nan"), torch.finfo(f32).min
    x = torch.randn(9, 300)
    x[0] = -inf
    x[1, :200] = -inf
    x[2, 1:] = -inf
    x[3, 17] = inf
    x[4, 17], x[4, 299] = inf, inf
    x[5, 250] = nan
    x[6] = lowest
    x[7], x[7, 100] = -inf, lowest
    x[8] = torch.linspace(-1e4, 1e4, 300)
    for given in (x, x.flip(1)):
        check(lambda x: (x.softmax(1), x.log_softmax(1)), given, rtol=1e-4, atol=2e-5)


def test_a_sum_that_needs_the_maximum_otherwise_waits_for_it(short_registers: None) -> None:
    def f(x: torch.Tensor) -> Any:
        top = x.amax(1, keepdim=True)
        return (x - top).exp().sum(1), (x - 2 * top).sin().sum(1), x.sum(1)

    check(f, torch.randn(2, 300), rtol=1e-4, atol=1e-2)


# ---- nothing to compute


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (3, 0, 4), (0, 0)])
def test_no_elements(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    check(lambda x: (x.abs() + 1, x * x[..., :1]), x)
    check(lambda x: (x.sum(), x.sum(-1), x.sum(0), x.any(), x.prod(0)), x)
    check(lambda x: (x.softmax(-1), x.transpose(0, -1) * 2, torch.cat([x, x + 1])), x)


@pytest.mark.parametrize(
    "shape, dims",
    [((300_007,), (0,)), ((20_000, 3, 16), (0, 2)), ((50_003, 20), (0,)), ((5_000, 40, 2), (0,))],
    ids=["long", "rows of a vector", "columns", "columns of two dimensions"],
)
def test_sums_too_short_for_all_workers_are_cut(shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    """One program would add up a block after the other, in chains of 40 to 400: of equal numbers, whose roundings have one
    sign, such a sum is 4e-7 to 4e-6 off. Of chains of 16 it is 1e-7 off, as eager's are."""
    kernels = kernels_of(lambda x: x.sum(dims), torch.zeros(shape), costs=replace(COSTS, threads=132))
    assert len(kernels) == 2
    for kernel in kernels:
        stage, used = kernel.stages[0], choose(kernel)
        assert block_sizes.stage_points(stage) <= 4 * used.r


def test_sums_of_a_few_blocks_stay_whole() -> None:
    costs = replace(COSTS, threads=132)
    assert len(kernels_of(lambda x: x.sum(0), torch.zeros(1000, 64), costs=costs)) == 1
    assert len(kernels_of(lambda x: x.sum(1), torch.zeros(2, 60_000), costs=costs)) == 1


@pytest.mark.parametrize(
    "shape, dims", [((997,), (0,)), ((301, 5), (0,)), ((90, 3, 2), (0,)), ((60, 2, 9), (0, 2))]
)
def test_parts_for_fewer_workers_than_there_are(shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    kernels = check(lambda x: x.sum(dims), integers(*shape), costs=replace(EAGER_TO_SPLIT, threads=500))
    assert len(kernels) == 2


# ---- rows whose maximum and exponentials are taken in one pass, and what is rounded at once


def rows(columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Usual ones, and such with infinities, nothing but the lowest number, and NaN."""
    x = (torch.randn(7, columns) * 4).to(dtype)
    x[1, ::3] = -math.inf
    x[2] = torch.finfo(dtype).min
    x[3] = -math.inf
    x[4, columns // 2] = math.inf
    x[5, columns - 1] = math.nan
    x[6] = torch.linspace(-80, 80, columns).to(dtype)
    return x


SHORT_ROWS = [(n, dtype) for n in (100, 4096) for dtype in (f32, bf16, torch.float16)]


@pytest.mark.parametrize("columns, dtype", (*SHORT_ROWS, (16_385, bf16), (24_576, f32)))
def test_soft_maxima_of_rows(columns: int, dtype: torch.dtype) -> None:
    x = rows(columns, dtype)
    check(lambda x: x.softmax(-1), x)
    # The interpreter cuts bits off where a GPU rounds.
    rounding = 2e-6 if dtype is f32 else 2 * torch.finfo(dtype).eps
    check(lambda x: x.log_softmax(-1).float().amin(-1), x, atol=2e-5, rtol=rounding)


def test_of_a_row_of_half_precision_a_vector_is_taken_at_once() -> None:
    (kernel,) = check(lambda x: x.float().softmax(-1), torch.randn(2, 20_000).bfloat16())
    text = triton_source(kernel).text
    assert "tl.reshape" in text and "RBLOCK // 8" in text
    assert "RBLOCK // 4" in triton_source(kernels_of(lambda x: x.softmax(-1), torch.randn(2, 20_000))[0]).text


@pytest.mark.parametrize("dtype", (bf16, torch.float16, f32))
@pytest.mark.parametrize("shape", ((5, 300), (4097,)))
def test_activations_that_are_rounded_at_once(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.cat(
        [torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan]), torch.randn(math.prod(shape) - 5) * 4]
    )
    x = x.view(shape).to(dtype)
    # Where torch calls oneDNN for it, as depends on the CPU, eager's gelu of infinity is NaN, and not infinite.
    check(lambda x: F.gelu(x + 1), x.masked_fill(x.isinf(), 0.0))
    check(lambda x: (F.gelu(x, approximate="tanh"), F.silu(x), torch.sigmoid(x), x.exp()), x)


def chosen(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The element at the target, 0 where that is no place."""
    places = torch.arange(x.shape[1])
    return torch.where(places == target[:, None], x.float(), 0.0).sum(1)


@pytest.mark.parametrize("columns", (50, 20_000))
def test_one_element_of_a_row_is_loaded_alone(columns: int) -> None:
    x = torch.randn(6, columns).bfloat16()
    target = torch.tensor([0, columns - 1, columns // 2, -100, columns, 1 << 33])
    (kernel,) = check(chosen, x, target)
    text = triton_source(kernel).text.partition("def kernel")[2]
    assert "tl.reduce" not in text and " for " not in text
    (kernel,) = check(lambda x, t: (chosen(x, t), x.float().amax(1)), x, target)
    assert triton_source(kernel).text.count("tl.reduce(") == 1


def test_what_is_summed_beside_is_summed() -> None:
    """The condition is no place, or the target varies along the row."""
    x, target = torch.randn(6, 50), torch.randint(50, (6, 50))
    check(lambda x, t: torch.where(torch.arange(50) == t, x, 0.0).sum(1), x, target)
    check(lambda x, t: torch.where(t == 3, x, 0.0).sum(1), x, target)
    check(lambda x, t: torch.where(torch.arange(50) == t, x, 1.0).sum(1), x, target[:, :1])


def test_places_are_compared_in_32_bits() -> None:
    """Also with targets that 32 bits do not hold."""
    x = torch.randn(6, 2048)
    target = torch.tensor([[0], [2047], [-1], [1 << 32], [(1 << 32) + 5], [7]])
    check(lambda x, t: torch.where(torch.arange(2048) == t, x, -x), x, target)


def test_quotients_of_rows_stand_behind_loads() -> None:
    x, a, b = torch.randn(6, 2048), torch.randn(6, 1), torch.rand(6, 1) + 1
    (kernel,) = check(lambda x, a, b: x + a / b, x, a, b)
    text = triton_source(kernel).text
    assert text.index("tl.div_rn") > text.rindex("tl.load")


def test_the_maximum_of_one_row_for_all() -> None:
    """What varies along the row alone is loaded as a line, and where there is no point it is no number but the lowest."""
    row, x = -torch.rand(100) - 1, torch.randn(7, 100)
    check(lambda row, x: (row.expand(7, 100).amax(1), (x + row).amax(1)), row, x)
    check(lambda row, x: row.expand(7, 100).amax(1) + x.sum(1), row, x, rtol=0, atol=1e-4)


def test_a_maximum_of_what_was_just_stored() -> None:
    """It is in registers, whatever is there beyond the row."""
    x = -torch.rand(7, 100) - 1

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x - 0.5
        return y, y.amax(1)

    check(f, x)
