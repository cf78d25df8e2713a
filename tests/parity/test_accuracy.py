"""Results are as accurate as eager's: both are compared with float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.harness.accuracy import no_worse
from tests.harness.agreement import tensors
from tests.harness.catalogue import ON_GPU

Make = Callable[..., torch.Tensor]

VALUES: dict[str, Make] = {
    "one number": lambda *shape: torch.full(shape, 0.1),
    "between 0 and 1": lambda *shape: torch.rand(shape),
    "far from zero": lambda *shape: torch.randn(shape) + 1000,
    "far away": lambda *shape: torch.randn(shape) + 1e5,
}
# Shapes for which machine code differs: lanes along the sums or beside them, rows of one vector, many rows, odd sizes.
SUMS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "long": ((300_007,), (0,)),
    "rows": ((20, 9_999), (1,)),
    "short rows": ((3_001, 5, 20), (0, 2)),
    "rows of one vector": ((20_000, 3, 16), (0, 2)),
    "columns": ((50_003, 20), (0,)),
    "few columns": ((200_003, 3), (0,)),
    "columns around rows": ((300, 90, 24), (0, 1)),
    "middle": ((100, 64, 300), (0, 2)),
    "strided": ((5_000, 40, 2), (0,)),
}


def check(f: Callable[..., torch.Tensor], *inputs: torch.Tensor, dtype: torch.dtype = torch.float32) -> None:
    with torch.no_grad():
        no_worse(smelt.compile(f)(*inputs), f(*inputs), f(*[x.double() for x in inputs]), dtype)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("form", SUMS)
def test_sums(form: str, values: str) -> None:
    shape, dims = SUMS[form]
    check(lambda x: x.sum(dims), VALUES[values](*shape))


def test_sums_of_what_is_computed() -> None:
    x = torch.rand(200_003)
    check(lambda x: (x.exp() * x.cos()).sum(), x)
    check(lambda x: (x.exp() * x.cos()).view(-1, 17).sum(0), x[: 17 * 11_000])


def test_what_cancels_between_neighbours() -> None:
    x = (torch.rand(1 << 20) + 1) * torch.tensor([1.0, -1.0]).repeat(1 << 19)
    check(lambda x: x.sum(), x)


@pytest.mark.parametrize("kind", (torch.var, torch.std))
def test_variances(kind: Callable[..., torch.Tensor]) -> None:
    for make in (
        *VALUES.values(),
        lambda *shape: torch.randn(shape) * 1e-25,
        lambda *shape: torch.randn(shape) * 1e18,
    ):
        check(lambda x: kind(x, -1), make(5, 5_000))
        check(lambda x: kind(x, 0), make(5_000, 20))


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float32), ids=str)
def test_deviations_whose_squares_are_too_large_for_float32(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    x = torch.tensor([[largest, -largest / 2, 0.0], [largest / 4, 1.0, -2.0]], dtype=dtype)
    for kind in (torch.std, torch.std_mean):
        with torch.no_grad():
            got, want = smelt.compile(kind)(x, -1), kind(x.double(), -1)  # eager's are infinite on a GPU
        for g, w in zip(tensors(got), tensors(want), strict=True):
            torch.testing.assert_close(g, w.to(dtype))
            assert g.isfinite().all()


def test_moments_of_one_number_are_exact() -> None:
    """Means of one number may be rounded, deviations from them are none."""
    x = torch.full((7, 1_000), 0.1)
    with torch.no_grad():
        assert smelt.compile(lambda x: x.var(-1))(x).eq(0).all()
        assert smelt.compile(lambda x: torch.var_mean(x, 0))(x)[0].eq(0).all()
        assert smelt.compile(lambda x: F.layer_norm(x, (1_000,)))(x).eq(0).all()
        assert smelt.compile(lambda x: F.group_norm(x, 10))(x).eq(0).all()


@pytest.mark.parametrize("values", VALUES)
def test_normalizations(values: str) -> None:
    make = VALUES[values]
    check(lambda x: F.layer_norm(x, (3_000,)), make(4, 3_000))
    check(lambda x: F.group_norm(x, 4), make(2, 16, 500))
    check(lambda x: F.batch_norm(x, None, None, training=True), make(20, 16, 50))
    check(lambda x: F.instance_norm(x), make(2, 16, 500))
    check(lambda x: F.rms_norm(x, (3_000,)), make(4, 3_000))
    check(lambda x: x.softmax(-1), make(4, 3_000))
    check(lambda x: x.log_softmax(0), make(3_000, 4))


SCANS = {torch.cumsum: np.cumsum, torch.cumprod: np.cumprod}


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
@pytest.mark.parametrize("scan", SCANS)
def test_scans(scan: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    """Of many rows: each multiplication adds its rounding to a product's, in whatever order, so a row's error is a matter of
    chance."""
    for size in (1, 15, 16, 33, 20_001):
        x = torch.rand(64, size, dtype=dtype) * (0.1 if scan is torch.cumsum else 1e-4) + (
            scan is torch.cumprod
        )
        exact = torch.from_numpy(SCANS[scan](x.cpu().numpy().astype(np.longdouble), 1).astype(np.float64))
        exact = exact.to(x.device)
        with torch.no_grad():
            no_worse(smelt.compile(lambda x: scan(x, 1))(x), scan(x, 1), exact, dtype)
            down = smelt.compile(lambda x: scan(x, 0))(x.t().contiguous())
            no_worse(down.t(), scan(x, 1), exact, dtype)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.int32, torch.bool), ids=str)
def test_scans_of_other_dtypes_are_eagers(dtype: torch.dtype) -> None:
    """Where eager rounds at each step (native/cuda/ScanUtils.cuh), they are as near to the right ones."""
    x = (torch.rand(5, 100) * 2).to(dtype)
    for dim in (0, 1):
        with torch.no_grad():
            got, want = smelt.compile(lambda x: x.cumsum(dim))(x), x.cumsum(dim)
        if ON_GPU and dtype.is_floating_point:
            no_worse(got, want, x.double().cumsum(dim), dtype)
        else:
            assert torch.equal(got, want)


def test_products_over_one_element_are_no_sums() -> None:
    """A row of one element times a matrix of one row, which what follows sums over."""
    w, columns, rows = torch.randn(1, 1), torch.randn(4, 1), torch.randn(4, 1)
    check(lambda w, x, t: w @ x.t() @ t, w, columns, rows)
    check(lambda w, x, t: torch.addmm(t[:1], w, x.t()).sum(1), w, columns, rows)


@pytest.mark.parametrize("order", (0, 0.5, 1, 2, 3, 6, -1, float("inf"), float("-inf")))
def test_norms_of_one_element_do_not_overflow(order: float) -> None:
    x = torch.tensor([[1e-30], [-1e30], [0.0], [float("nan")], [float("-inf")], [-1.7]])
    compiled = smelt.compile(lambda x: torch.linalg.vector_norm(x, order, 1))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), torch.linalg.vector_norm(x, order, 1), equal_nan=True)
