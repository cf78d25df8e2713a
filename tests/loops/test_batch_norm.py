"""Batch norm in training: statistics of the batch, running statistics, the backward; against eager."""

import pytest
import torch
import torch.nn.functional as F

from tests.harness.scheduled import check, kernels

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
LAYOUTS = {
    "rows": torch.randn(40, 12),
    "sequences": torch.randn(4, 12, 30),
    "images": torch.randn(4, 12, 7, 9),
    "channels_last": torch.randn(4, 20, 7, 9).to(memory_format=torch.channels_last),
    "volumes": torch.randn(2, 5, 3, 4, 6),
}


def tolerance(dtype):
    return {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {"rtol": 1e-4, "atol": 1e-4}


def parameters(x, dtype=None):
    dtype, n = dtype or x.dtype, x.shape[1]
    return [torch.randn(n).to(dtype), torch.randn(n).to(dtype)]


def running(x, dtype=None):
    mean, var = parameters(x, dtype)
    return [mean, var.abs() + 0.5]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_forward_with_running_statistics(layout, dtype):
    x = (LAYOUTS[layout] + 2).to(dtype)

    def f(x, w, b, mean, var):
        return F.batch_norm(x, mean, var, w, b, True, 0.1, 1e-5)

    schedule = check(f, x, *parameters(x), *running(x), n_externs=0, **tolerance(dtype))
    assert len(kernels(schedule)) <= 3


def test_one_kernel_with_residual_and_activation():
    x = LAYOUTS["images"]

    def f(x, y, w, b):
        return F.relu(F.batch_norm(x, None, None, w, b, True) + y)

    check(f, x, x + 1, *parameters(x), n_kernels=1, n_externs=0, **tolerance(x.dtype))


@pytest.mark.parametrize("affine", (True, False))
def test_without_running_statistics(affine):
    x = LAYOUTS["channels_last"]
    p = parameters(x) if affine else []
    check(
        lambda x, *p: F.batch_norm(x, None, None, *p, training=True), x, *p, n_externs=0, **tolerance(x.dtype)
    )


def test_saved_statistics_and_momentum():
    x = LAYOUTS["images"]

    def f(x, w, mean, var):
        return aten._native_batch_norm_legit(x, w, None, mean, var, True, 0.7, 1e-3)

    w, _ = parameters(x)
    check(f, x, w, *running(x), n_externs=0, **tolerance(x.dtype))


def test_parameters_of_a_wider_dtype():
    x = LAYOUTS["images"].bfloat16()

    def f(x, w, b, mean, var):
        return aten._native_batch_norm_legit(x, w, b, mean, var, True, 0.1, 1e-5)

    check(f, x, *parameters(x, torch.float32), *running(x, torch.float32), n_externs=0, **tolerance(x.dtype))


@pytest.mark.parametrize("training", (True, False))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_backward(layout, dtype, training):
    x = LAYOUTS[layout].to(dtype)
    grad = torch.randn_like(x)
    w, mean = parameters(x)
    mean, rstd = mean * 0.1, torch.rand(x.shape[1]).to(dtype) + 0.5

    def f(grad, x, w, mean, rstd):
        return aten.native_batch_norm_backward(
            grad, x, w, mean, rstd, mean, rstd, training, 1e-5, [True, True, True]
        )

    schedule = check(f, grad, x, w, mean, rstd, n_externs=0, **tolerance(dtype))
    assert len(kernels(schedule)) <= 2


@pytest.mark.parametrize("mask", [(True, False, False), (False, True, True), (False, False, True)])
def test_backward_gives_what_is_asked_for(mask):
    x = LAYOUTS["images"]
    mean, rstd = running(x)

    def f(grad, x, mean, rstd):
        results = aten.native_batch_norm_backward(
            grad, x, None, None, None, mean, rstd, True, 1e-5, list(mask)
        )
        return [r for r, wanted in zip(results, mask) if wanted]

    check(f, x.cos(), x, mean, rstd, n_kernels=1, n_externs=0, **tolerance(x.dtype))


def test_backward_of_the_activation_behind_it_is_one_kernel():
    x = LAYOUTS["images"]
    w, _ = parameters(x)
    mean, rstd = running(x)

    def f(grad, y, x, w, mean, rstd):
        grad = aten.threshold_backward(grad, y, 0)
        return grad, *aten.native_batch_norm_backward(
            grad, x, w, None, None, mean, rstd, True, 1e-5, [True, True, True]
        )

    check(f, x.cos(), x.sin(), x, w, mean, rstd, n_kernels=1, n_externs=0, **tolerance(x.dtype))
