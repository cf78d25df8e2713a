"""Lowerings of backward operators against ATen's: values, dtypes and strides, through the reference interpreter."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.harness.scheduled import check
from tests.harness.values import FLOATS, TOLERANCE, make, name_of

aten = torch.ops.aten
MEAN, SUM, NONE = 1, 2, 0


def edges(dtype):
    """Values at which formulas change, and what is no number or infinite."""
    special = [-3, -1, -0.5, -0.0, 0, 0.25, 0.5, 0.75, 1, 2, 3, 6, 20, math.inf, -math.inf, math.nan]
    return torch.tensor(special, dtype=dtype).repeat(
        4
    )  # in ATen's vectors: what remains has other rules for NaN


# f(gradient, operand or result)
ACTIVATIONS = {
    "threshold": lambda g, x: aten.threshold_backward(g, x, 0.25),
    "relu": lambda g, x: aten.threshold_backward(g, x, 0),
    "gelu": lambda g, x: aten.gelu_backward(g, x),
    "gelu_tanh": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "silu": aten.silu_backward,
    "sigmoid": aten.sigmoid_backward,
    "tanh": aten.tanh_backward,
    "logit": lambda g, x: aten.logit_backward(g, x),
    "logit_eps": lambda g, x: aten.logit_backward(g, x, 0.25),
    "hardtanh": lambda g, x: aten.hardtanh_backward(g, x, -0.5, 1),
    "hardsigmoid": aten.hardsigmoid_backward,
    "hardswish": aten.hardswish_backward,
    "hardshrink": lambda g, x: aten.hardshrink_backward(g, x, 0.5),
    "softshrink": lambda g, x: aten.softshrink_backward(g, x, 0.5),
    "leaky_relu": lambda g, x: aten.leaky_relu_backward(g, x, 0.2, False),
    "elu": lambda g, x: aten.elu_backward(g, 0.7, 1.1, 0.9, False, x),
    "elu_of_result": lambda g, x: aten.elu_backward(g, 0.7, 1.1, 0.9, True, x),
    "softplus": lambda g, x: aten.softplus_backward(g, x, 2.0, 3.0),
    "mish": aten.mish_backward,
    "log_sigmoid": lambda g, x: aten.log_sigmoid_backward(g, x, torch.exp(-x.abs())),
    "prelu": lambda g, x: aten._prelu_kernel_backward(g, x, x[:1].abs()),
    "dropout": lambda g, x: aten.native_dropout_backward(g, x > 0, 1.25),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, dtype):
    f, n_externs = ACTIVATIONS[name], int(name == "gelu" and dtype is torch.float64)
    check(f, make(dtype, 3, 8), make(dtype, 3, 8), n_externs=n_externs, **TOLERANCE[dtype])
    if name != "prelu":  # which needs two dimensions
        x = edges(dtype)
        counts = {"n_kernels": 1 - n_externs, "n_externs": n_externs}
        check(f, make(dtype, *x.shape), x, **counts, **TOLERANCE[dtype])


def test_an_activation_joins_what_its_gradient_comes_from():
    check(lambda g, x: aten.gelu_backward(g * 2, x).sum(0), *(torch.randn(32, 8) for _ in "gx"), n_kernels=1)


SOFT_MAXIMA = {
    "softmax": (torch.softmax, aten._softmax_backward_data),
    "log_softmax": (torch.log_softmax, aten._log_softmax_backward_data),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("dim", [-1, 1])
@pytest.mark.parametrize("name", SOFT_MAXIMA)
def test_soft_maxima(name, dim, dtype):
    forward, backward = SOFT_MAXIMA[name]
    y = forward(make(dtype, 4, 6, 8), dim)
    check(
        lambda g, y: backward(g, y, dim, y.dtype),
        make(dtype, 4, 6, 8), y, n_kernels=1, n_externs=0, **TOLERANCE[dtype],
    )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=name_of)
def test_softmax_of_rows_that_are_masked(dtype):
    x = make(dtype, 3, 8)
    x[1], x[2, :4] = -math.inf, -math.inf
    check(lambda x: aten._safe_softmax(x, -1), x, n_kernels=1, n_externs=0, **TOLERANCE[dtype])


# ---- normalisations


def layer_norm_arguments(dtype, affine=None):
    """Gradient, input, statistics, and the weight (also given as bias, whose values do not matter)."""
    g, x, w = make(dtype, 4, 6, 8), make(dtype, 4, 6, 8), make(affine or dtype, 8)
    _, mean, rstd = torch.native_layer_norm(x, (8,), w, w, 1e-5)
    return g, x, mean, rstd, w


def layer_norm(g, x, mean, rstd, w):
    return aten.native_layer_norm_backward(g, x, (8,), mean, rstd, w, w, (True, True, True))


SUMS = {  # of 24 rows
    torch.float32: TOLERANCE[torch.float32],
    torch.float64: TOLERANCE[torch.float64],
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 0.1},
    torch.float16: {"rtol": 4e-3, "atol": 3e-2},
}


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_layer_norm(dtype):
    check(layer_norm, *layer_norm_arguments(dtype), n_kernels=2, n_externs=0, **SUMS[dtype])


@pytest.mark.parametrize("dtype", FLOATS[2:], ids=name_of)
def test_layer_norm_with_parameters_of_a_wider_dtype(dtype):
    check(layer_norm, *layer_norm_arguments(dtype, torch.float32), n_kernels=2, n_externs=0, **SUMS[dtype])


def test_layer_norm_of_several_dimensions_and_of_everything():
    x, g = torch.randn(5, 4, 8), torch.randn(5, 4, 8)
    for normalized in ((4, 8), (5, 4, 8)):
        w = torch.randn(normalized)
        _, mean, rstd = torch.native_layer_norm(x, normalized, w, w, 1e-5)
        check(
            lambda g, x, m, r, w, n=normalized: aten.native_layer_norm_backward(
                g, x, n, m, r, w, w, (True, True, True)
            ),
            g, x, mean, rstd, w, n_externs=0,
        )  # fmt: skip


@pytest.mark.parametrize(
    "mask", [(True, False, False), (False, True, True), (True, False, True), (False, False, True)]
)
def test_layer_norm_gives_only_the_gradients_that_are_asked_for(mask):
    def f(g, x, mean, rstd, w):
        results = aten.native_layer_norm_backward(g, x, (8,), mean, rstd, w, w, mask)
        return [r for r, wanted in zip(results, mask) if wanted]

    check(f, *layer_norm_arguments(torch.float32), n_externs=0)


def test_layer_norm_without_parameters():
    g, x, mean, rstd, _ = layer_norm_arguments(torch.float32)
    check(
        lambda g, x, m, r: aten.native_layer_norm_backward(
            g, x, (8,), m, r, None, None, (True, False, False)
        )[0],
        g, x, mean, rstd, n_kernels=1, n_externs=0,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize(
    "shape, format",
    [
        ((3, 8, 4, 5), torch.contiguous_format),
        ((3, 8, 4, 5), torch.channels_last),
        ((3, 8, 10), torch.contiguous_format),
        ((3, 8), torch.contiguous_format),
    ],
    ids=["images", "channels_last", "rows", "channels_alone"],
)
def test_group_norm(shape, format, dtype):
    g, x = (make(dtype, *shape).contiguous(memory_format=format) for _ in "gx")
    w, n, pixels = make(dtype, 8), shape[0], math.prod(shape[2:])
    _, mean, rstd = torch.native_group_norm(x, w, w, n, 8, pixels, 2, 1e-5)

    def f(g, x, m, r, w):
        return aten.native_group_norm_backward(g, x, m, r, w, n, 8, pixels, 2, (True, True, True))

    check(f, g, x, mean, rstd, w, n_externs=0, **SUMS[dtype])
    check(lambda *args: f(*args)[0], g, x, mean, rstd, w, n_externs=0, **SUMS[dtype])


# ---- losses

PAIRS = {  # f(input, target, reduction)
    "mse": (F.mse_loss, aten.mse_loss_backward, ()),
    "smooth_l1": (
        lambda x, t, **r: F.smooth_l1_loss(x, t, beta=0.5, **r),
        aten.smooth_l1_loss_backward,
        (0.5,),
    ),
    "huber": (lambda x, t, **r: F.huber_loss(x, t, delta=0.7, **r), aten.huber_loss_backward, (0.7,)),
    "soft_margin": (F.soft_margin_loss, aten.soft_margin_loss_backward, ()),
}
REDUCTIONS = {"none": NONE, "mean": MEAN, "sum": SUM}


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", PAIRS)
def test_losses_of_two_tensors(name, reduction, dtype):
    forward, backward, extra = PAIRS[name]
    number = REDUCTIONS[reduction]
    x, t = make(dtype, 4, 6), make(dtype, 4, 6)
    g = make(dtype, 4, 6) if reduction == "none" else make(dtype)
    tolerance = SUMS[dtype]
    check(lambda x, t: forward(x, t, reduction=reduction), x, t, n_externs=0, **tolerance)
    check(lambda g, x, t: backward(g, x, t, number, *extra), g, x, t, n_kernels=1, n_externs=0, **tolerance)


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [True, False])
def test_binary_cross_entropy(weighted, reduction, dtype):
    number = REDUCTIONS[reduction]
    x, t, w = make(dtype, 4, 6), make(dtype, 4, 6, low=0, high=1), make(dtype, 6, low=1)
    g = make(dtype, 4, 6) if reduction == "none" else make(dtype)
    check(
        lambda x, t, w: _with_logits(x, t, w if weighted else None, reduction),
        x, t, w, n_kernels=1, n_externs=0, **SUMS[dtype],
    )  # fmt: skip
    check(
        lambda g, x, t, w: aten.binary_cross_entropy_backward(g, x, t, w if weighted else None, number),
        g, x.sigmoid(), t, w, n_kernels=1, n_externs=0, **SUMS[dtype],
    )  # fmt: skip


def _with_logits(x, t, w, reduction):
    return F.binary_cross_entropy_with_logits(x, t, w, pos_weight=w, reduction=reduction)


# ---- negative log likelihood

NLL = {  # shape of the input
    "rows": (5, 7),
    "one_row": (7,),
    "images": (2, 7, 3, 4),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("ignored", [-100, 2])
@pytest.mark.parametrize("shape", NLL)
def test_nll_loss(shape, ignored, reduction, dtype):
    shape, number = NLL[shape], REDUCTIONS[reduction]
    target = torch.randint(0, 7, (shape[0], *shape[2:]) if len(shape) > 1 else ())
    forward, backward = (
        (aten.nll_loss2d_forward, aten.nll_loss2d_backward)
        if len(shape) == 4
        else (aten.nll_loss_forward, aten.nll_loss_backward)
    )
    x, w = make(dtype, *shape), make(dtype, 7, low=1)
    if target.shape:
        target[0] = ignored
    for weight in ((), (w,)):
        value, total = forward(x, target, *(weight or (None,)), number, ignored)
        check(
            lambda g, x, t, n, w=None: backward(g, x, t, w, number, ignored, n),
            make(dtype, *value.shape), x, target, total, *weight,
            n_kernels=1, n_externs=0, **TOLERANCE[dtype],
        )  # fmt: skip


def test_cross_entropy_is_one_kernel_backward():
    x, target = torch.randn(5, 7).log_softmax(1), torch.randint(0, 7, (5,))

    def f(g, y, t, total):
        slope = aten.nll_loss_backward(g, y, t, None, MEAN, -100, total)
        return aten._log_softmax_backward_data(slope, y, 1, y.dtype)

    check(f, torch.tensor(2.0), x, target, torch.tensor(5.0), n_kernels=1, n_externs=0)


# ---- views

VIEWS = {
    "slice": lambda g: aten.slice_backward(g, (4, 9, 3), 1, 1, 8, 2),
    "slice_from_the_end": lambda g: aten.slice_backward(g, (4, 6, 3), 1, -4, 1 << 62, 1),
    "slices_of_one": lambda g: aten.slice_backward(g[:, :1], (4, 6, 3), 1, 2, 3, 1),
    "select": lambda g: aten.select_backward(g, (4, 4, 5, 3), 2, -2),
    "diagonal": lambda g: aten.diagonal_backward(g, (4, 4, 4, 4), 1, 0, 3),
    "diagonal_below": lambda g: aten.diagonal_backward(g, (4, 4, 5, 3), -2, 2, 3),
    "diagonal_scatter": lambda g: torch.diagonal_scatter(g, g[:, :2, 0] * 2, 1, 1, 2),
    "unfold": lambda g: aten.unfold_backward(g, (4, 9), 1, 3, 2),
    "unfold_overlapping": lambda g: aten.unfold_backward(g, (4, 6), 1, 3, 1),
    "unfold_apart": lambda g: aten.unfold_backward(g, (4, 20), 1, 3, 5),
    "narrow": lambda g: aten.slice_backward(g, (4, 8, 3), 1, 0, 4, 1) + aten.slice_backward(g, (4, 8, 3), 1, 4, 8, 1),
    "sgn": lambda g: g.sgn() * 2,
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=name_of)
@pytest.mark.parametrize("name", VIEWS)
def test_views(name, dtype):
    check(VIEWS[name], make(dtype, 4, 4, 3), n_kernels=1, n_externs=0, **TOLERANCE[dtype])
