"""Each lowering against eager: values, dtypes and strides, through the reference interpreter."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.harness.scheduled import check
from tests.harness.values import FLOATS, INTEGERS, TOLERANCE, make, name_of

UNARY = {
    name: getattr(torch, name)
    for name in [
        "exp",
        "expm1",
        "exp2",
        "sin",
        "cos",
        "tan",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "erf",
        "erfc",
        "sigmoid",
        "neg",
        "abs",
        "sign",
        "floor",
        "ceil",
        "trunc",
        "round",
        "square",
        "isnan",
        "isinf",
        "isfinite",
        "logical_not",
    ]
} | {
    "relu": F.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "elu": lambda x: F.elu(x, 0.7),
    "celu": lambda x: F.celu(x, 1.3),
    "selu": F.selu,
    "softplus": lambda x: F.softplus(x, 2.0, 3.0),
    "mish": F.mish,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 1.5),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "threshold": lambda x: F.threshold(x, 0.3, -7),
    "pow2": lambda x: x**2,
    "pow3": lambda x: x**3,
    "pow_-1": lambda x: x**-1,
    "pow_2.5": lambda x: x.abs() ** 2.5,
    "sqrt": lambda x: torch.sqrt(x.abs()),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 1),
    "log": lambda x: torch.log(x.abs() + 1),
    "log1p": lambda x: torch.log1p(x.abs()),
    "log2": lambda x: torch.log2(x.abs() + 1),
    "log10": lambda x: torch.log10(x.abs() + 1),
    "acos": lambda x: torch.acos(x / 4),
    "reciprocal": lambda x: torch.reciprocal(x + 5),
    "rsub": lambda x: 1 - x,
    "add_alpha": lambda x: torch.add(x, x, alpha=3),
    "sub_alpha": lambda x: torch.sub(x, 2, alpha=0.5),
    "clamp": lambda x: x.clamp(-1, 1.5),
    "clamp_min": lambda x: x.clamp(min=0.5),
    "clamp_max": lambda x: x.clamp(max=0.5),
    "scalar_ops": lambda x: (x * 0.3 + 2) / 7 - 0.1,
    "compare": lambda x: (x > 0.5) & (x <= 2) | (x == 1),
    "nan_to_num": lambda x: torch.nan_to_num(torch.log(x), 3.0),
    "where": lambda x: torch.where(x > 0, x, -1.5),
    "masked_fill": lambda x: x.masked_fill(x < 0, float("-inf")),
    "to_int": lambda x: x.to(torch.int32),
    "to_bool": lambda x: x.to(torch.bool),
    "floor_divide": lambda x: x // 1.7,
    "remainder": lambda x: x % 1.3,
    "fmod": lambda x: torch.fmod(x, 1.3),
    "div_trunc": lambda x: torch.div(x, 0.7, rounding_mode="trunc"),
    "glu": lambda x: F.glu(x, 1),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "addcdiv": lambda x: torch.addcdiv(x, x, x + 5, value=0.5),
    "full_like": lambda x: torch.full_like(x, 2.5) + x,
    "tril": lambda x: x.tril(1),
    "triu": lambda x: x.triu(-1),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("name", UNARY)
def test_unary_floats(name, dtype):
    check(UNARY[name], make(dtype, 3, 8), n_externs=0, **TOLERANCE[dtype])


INTEGER_OPS = {
    "sqrt": lambda x, y: torch.sqrt(x * x),
    "exp": lambda x, y: torch.exp(x),
    "true_divide": lambda x, y: x / y,
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y * 100,
    "bitwise": lambda x, y: (x & y) | (x ^ 3),
    "not": lambda x, y: ~x,
    "max": lambda x, y: torch.maximum(x, y),
    "add_float": lambda x, y: x + 0.5,
    "pow2": lambda x, y: x**2,
    "clamp": lambda x, y: x.clamp(-1, 1),
    "clamp_float": lambda x, y: x.clamp(-0.5, 1),
    "where": lambda x, y: torch.where(x > y, x, 1.5),
    "sum": lambda x, y: x.sum(),
    "cumsum": lambda x, y: x.cumsum(0),
    "prod": lambda x, y: x.prod(1),
    "amax": lambda x, y: x.amax(0),
    "mean_float": lambda x, y: x.mean(0, dtype=torch.float32),
    "round": lambda x, y: x.floor() + x.round(),
    "relu": lambda x, y: torch.relu(x),
    "argmax": lambda x, y: x.argmax(1),
    "isnan": lambda x, y: x.isnan(),
    "logical": lambda x, y: torch.logical_xor(x, y),
}


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
@pytest.mark.parametrize("name", INTEGER_OPS)
def test_integers(name, dtype):
    check(INTEGER_OPS[name], make(dtype, 4, 5), make(dtype, 4, 5, low=1, high=4), n_externs=0)


INTEGER_DIVISIONS = {
    "floor_divide": lambda x, y: x // y,
    "trunc_divide": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": lambda x, y: x % y,
    "fmod": lambda x, y: torch.fmod(x, y),
}


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
@pytest.mark.parametrize("name", INTEGER_DIVISIONS)
def test_integer_division(name, dtype):
    """Only ATen can raise for a divisor that is zero."""
    divide, x = INTEGER_DIVISIONS[name], make(dtype, 4, 5)
    check(divide, x, make(dtype, 4, 5, low=1, high=4), n_externs=1)
    check(lambda x: divide(x, 3), x, n_externs=0)


BOOL_OPS = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "and": lambda x, y: x & ~y,
    "sum": lambda x, y: x.sum(1),
    "any": lambda x, y: (x & y).any(1),
    "all": lambda x, y: x.all(0),
    "any_all": lambda x, y: torch.stack((x.any(), y.all())),
    "to_float": lambda x, y: x.float() * 2,
    "add_int": lambda x, y: x + 1,
    "add_float": lambda x, y: x + 0.5,
    "max": lambda x, y: torch.maximum(x, y),
}


@pytest.mark.parametrize("name", BOOL_OPS)
def test_bools(name):
    check(BOOL_OPS[name], make(torch.bool, 4, 5), make(torch.bool, 4, 5), n_externs=0)


@pytest.mark.parametrize(
    "a, b",
    [
        (torch.float32, torch.int64),
        (torch.int32, torch.int64),
        (torch.bfloat16, torch.float32),
        (torch.uint8, torch.int8),
        (torch.bool, torch.float16),
    ],
    ids=name_of,
)
@pytest.mark.parametrize(
    "op", [torch.add, torch.mul, torch.maximum, torch.eq, torch.div], ids=lambda f: f.__name__
)
def test_promotion(op, a, b):
    check(op, make(a, 3, 4), make(b, 3, 4, low=1))
    check(op, make(a, 3, 4), make(b, low=1))  # a 0-d tensor promotes only across categories


BINARY = {
    "atan2": torch.atan2,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "copysign": torch.copysign,
    "pow": lambda x, y: x.abs() ** y,
    "broadcast": lambda x, y: x[:, :1] * y[0] + x,
    "maximum_nan": lambda x, y: torch.maximum(torch.log(x), y),
    "prelu": lambda x, y: F.prelu(x, y[0, :1]),
    "lerp": lambda x, y: torch.lerp(x, y, y.sigmoid()),
}


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=name_of)
@pytest.mark.parametrize("name", BINARY)
def test_binary_floats(name, dtype):
    check(BINARY[name], make(dtype, 4, 6), make(dtype, 4, 6), n_externs=0, **TOLERANCE[dtype])


VIEWS = {
    "transpose": lambda x: x.transpose(0, 2) + 1,
    "permute": lambda x: x.permute(2, 0, 1).contiguous(),
    "view": lambda x: x.view(2, 24) * 2,
    "view_splits": lambda x: x.view(2, 2, 3, 2, 2).transpose(1, 3).reshape(4, 12) + 1,
    "reshape_of_transpose": lambda x: x.transpose(1, 2).reshape(8, 6) - 1,
    "expand": lambda x: x[:, :1].expand(2, 5, 4) + x[:, 1:2],
    "slice": lambda x: x[:, 1:-1:2, -3:] + 1,
    "select": lambda x: x[1, :, -2] * x[0, :, 0],
    "unsqueeze": lambda x: (x.unsqueeze(1) + x.unsqueeze(0)).squeeze(0),
    "split": lambda x: torch.cat([p * i for i, p in enumerate(x.split(2, 1))], 2),
    "split_sizes": lambda x: x.split([1, 2, 3], 1)[2] + 1,
    "chunk": lambda x: sum(x.chunk(3, 1)),
    "unbind": lambda x: x.unbind(1)[3] + 1,
    "flip": lambda x: x.flip(0, 2) + 1,
    "roll": lambda x: x.roll((1, -2), (0, 1)),
    "roll_flat": lambda x: x.roll(5),
    "diagonal": lambda x: x.diagonal(1, 1, 2) + 1,
    "unfold": lambda x: x.unfold(1, 3, 2) * 2,
    "as_strided": lambda x: x.as_strided((3, 4), (1, 3), 2) + 1,
    "repeat": lambda x: x.repeat(2, 1, 3),
    "pad": lambda x: F.pad(x, (1, 2, 3, 0), value=1.5),
    "pad_negative": lambda x: F.pad(x, (-1, 2)),
    "cat": lambda x: torch.cat([x, x[:, :2] * 2, x.exp()], 1),
    "stack": lambda x: torch.stack([x, x + 1, x * 2], -1),
    "rotate_half": lambda x: torch.cat((-x[..., 2:], x[..., :2]), -1) * x,
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij")[0] + 1,
    "arange": lambda x: torch.arange(6) * 2 + x[0, :, 0].long(),
    "arange_float": lambda x: torch.arange(0.5, 2.0, 0.25) + x[0, 0, 0],
    "eye": lambda x: torch.eye(4) + x[0, :4],
    "ones": lambda x: torch.ones(3, dtype=torch.int32) + torch.zeros(3),
    "upsample": lambda x: F.interpolate(x[None], scale_factor=2, mode="nearest"),
    "channels_last": lambda x: x[None].contiguous(memory_format=torch.channels_last) * 2,
    "slice_write": lambda x: _write(x, (slice(None), slice(1, 5, 2)), 7.0),
    "select_write": lambda x: _write(x, (slice(None), 2), x[:, 0]),
    "outputs_are_views": lambda x: (x.transpose(0, 1), (x + 1)[:, 2]),
}


def _write(x, where, value):
    y = x.clone()
    y[where] = value
    return y * 2


@pytest.mark.parametrize("name", VIEWS)
def test_views_and_shapes(name):
    check(VIEWS[name], make(torch.float32, 2, 6, 4), n_externs=0)


@pytest.mark.parametrize(
    "name", ["transpose", "slice", "cat", "reshape_of_transpose", "flip", "roll", "stack"]
)
def test_views_of_strided_inputs(name):
    check(VIEWS[name], make(torch.float32, 4, 6, 2).permute(2, 1, 0), n_externs=0)
    check(VIEWS[name], make(torch.float32, 2, 12, 8)[:, ::2, 4:], n_externs=0)


REDUCTIONS = {
    "sum": lambda x: x.sum((0, 2)),
    "sum_all": lambda x: x.sum(),
    "sum_keepdim": lambda x: x.sum(1, keepdim=True),
    "mean": lambda x: x.mean(-1),
    "mean_all": lambda x: x.mean(),
    "prod": lambda x: x.prod(1),
    "amax": lambda x: x.amax((1, 2)),
    "amin": lambda x: x.amin(0),
    "max_dim": lambda x: torch.max(x, 1),
    "min_dim": lambda x: tuple(torch.min(x, 2, keepdim=True)),
    "argmax": lambda x: x.argmax(1),
    "argmax_flat": lambda x: x.argmax(),
    "argmin": lambda x: x.argmin(2, keepdim=True),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std((1, 2), correction=0),
    "var_mean": lambda x: torch.var_mean(x, 2, keepdim=True),
    "norm": lambda x: torch.linalg.vector_norm(x, 2, dim=1),
    "norm_1": lambda x: torch.linalg.vector_norm(x, 1, dim=(0, 1)),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, math.inf),
    "normalize": lambda x: F.normalize(x, dim=1),
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax_outer": lambda x: torch.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, 2),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "layer_norm_2d": lambda x: F.layer_norm(x, (6, 4), x[0], x[1]),
    "group_norm": lambda x: F.group_norm(x, 3, x[0, :, 0], x[0, :, 1]),
    "rms_norm": lambda x: F.rms_norm(x, (4,), x[0, 0]),
    "batch_norm": lambda x: F.batch_norm(x, x[0, :, 0], x[0, :, 1].abs(), x[0, :, 2], x[0, :, 3]),
    "avg_pool": lambda x: F.adaptive_avg_pool2d(x[None], 1),
    "any": lambda x: (x > 2.9).any(1),
}


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=name_of)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, dtype):
    tolerance = dict(TOLERANCE[dtype], atol=5e-2) if dtype is torch.bfloat16 else TOLERANCE[dtype]
    check(REDUCTIONS[name], make(dtype, 2, 6, 4), n_externs=0, **tolerance)


@pytest.mark.parametrize("name", ["sum", "softmax", "layer_norm", "group_norm", "argmax", "var"])
def test_reductions_of_strided_inputs(name):
    check(REDUCTIONS[name], make(torch.float32, 4, 6, 2).permute(2, 1, 0), n_externs=0)


def test_scans():
    x = make(torch.float32, 3, 5, 4)
    check(lambda x: x.cumsum(1) * 2, x, n_externs=0)
    check(lambda x: (x + 1).cumprod(-1), x, n_externs=0)
    check(lambda x: (x > 0).cumsum(0), x, n_externs=0)


def test_zero_dimensional_and_single_elements():
    check(lambda x: x.sum() + x.mean(), torch.tensor(2.0))
    check(lambda x: torch.softmax(x, 0) + x.exp(), torch.tensor(2.0))
    check(lambda x: F.layer_norm(x, (1,)), torch.randn(1, 1))


def test_empty_tensors():
    check(lambda x: (x + 1).sum(0), torch.randn(0, 3))
    check(lambda x, y: torch.cat([x, y], 1) + 1, torch.randn(2, 0), torch.randn(2, 3))


def test_what_has_no_lowering_calls_aten():
    check(lambda x: torch.sort(x + 1, -1).values * 2, torch.randn(3, 5), n_externs=1, n_kernels=2)
    check(lambda x: torch.fft.rfft(x * 2).abs() + 1, torch.randn(3, 8))


MUTATIONS = {
    "add_": lambda x, y: x.add_(1).mul_(y),
    "read_then_write": lambda x, y: (x * 2, x.copy_(y))[0],
    "shifted": lambda x, y: x.copy_(x.flip(0) + y),
    "swap": lambda x, y: (x.clone(), x.copy_(y), y.add_(1))[0],
    "swap_both": lambda x, y: _swap(x, y),
    "row": lambda x, y: x[1].mul_(3) + y[0],
    "both": lambda x, y: (x.add_(y), y.add_(x))[1],
    "transposed": lambda x, y: x.copy_(x.t() + y),
}


def _swap(x, y):
    old = x.clone()
    x.copy_(y)
    y.copy_(old)
    return x + 1


@pytest.mark.parametrize("name", MUTATIONS)
def test_writes_to_inputs(name):
    check(MUTATIONS[name], torch.randn(4, 4), torch.randn(4, 4))


EDGES = torch.tensor(
    [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1e-30, 3.7, -120.0, 120.0, math.inf, -math.inf, math.nan]
)


@pytest.mark.parametrize(
    "f",
    [
        F.selu, F.hardshrink, F.softshrink, F.logsigmoid, torch.frac, torch.sinc, torch.logit,
        lambda x: torch.logit(x, 0.2), lambda x: torch.heaviside(x, x + 2), lambda x: torch.logaddexp(x, x.flip(0)),
        lambda x: torch.logaddexp(x, x), lambda x: torch.logaddexp2(x, x.flip(0)), lambda x: torch.logaddexp2(x, x),
        lambda x: torch.aminmax(x)[0] + torch.aminmax(x[:5], dim=0)[1], lambda x: x.logsumexp(0),
        lambda x: x[:10].logsumexp(0), lambda x: torch.full_like(x, -math.inf).logsumexp(0),
        lambda x: torch.full_like(x, math.inf).logsumexp(0, keepdim=True),
    ],
)  # fmt: skip
def test_formulas_at_the_edges(f):
    check(f, EDGES, n_externs=0)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.int64), ids=str)
def test_formulas_without_values_of_their_own(dtype):
    x = torch.arange(2 * 8 * 4 * 6).view(2, 8, 4, 6).to(dtype)
    for k in range(-1, 5):
        check(lambda x: torch.rot90(x, k, (1, 3)), x, n_externs=0)
    check(lambda x: F.pixel_shuffle(x, 2), x, n_externs=0)
    check(lambda x: F.pixel_unshuffle(x, 2), x, n_externs=0)
    check(lambda x: torch.channel_shuffle(x, 4), x, n_externs=0)
    check(torch.trace, x[0, 0], n_externs=0)


@pytest.mark.parametrize("order", (0, 1, 2, 2.5, 3, -1, math.inf, -math.inf))
def test_norms_of_any_order(order):
    x = torch.randn(5, 7) + 0.1
    check(lambda x: torch.linalg.vector_norm(x, order), x, n_externs=0)
    check(lambda x: x.norm(order, 1), x, n_externs=0)
    check(lambda x: torch.dist(x, x[0], order), x, n_externs=0)


@pytest.mark.parametrize("unbiased", (False, True))
def test_standard_deviations_with_their_means(unbiased):
    x = torch.randn(5, 7)
    check(lambda x: torch.std_mean(x, 1, unbiased=unbiased, keepdim=True), x, n_externs=0)
    check(lambda x: torch.std_mean(x, unbiased=unbiased), x, n_externs=0)
    check(lambda x: x.std(0, unbiased), x, n_externs=0)
