"""Functions whose parameters are symbolic floats: `F.huber_loss(x, y, delta=delta)` with another `delta` at each call.

Torch's C++ code takes such a parameter as a double, which specializes it. The composites here compute the same by operators
that take a number as a scalar, which stays symbolic. A condition on the parameter, such as whether a dropout drops anything,
is a guard. Torch computes other calls, and calls that raise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from smelt.torch_private import DisableTorchDispatch
from smelt.tracing.record.aten_call_recorder import AtenCallRecorder
from smelt.tracing.record.call_arguments import Args, Kwargs
from smelt.tracing.symbolic.sym_numbers import Float

aten = torch.ops.aten

_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, torch.float64)
_SELU_ALPHA = 1.7580993408473766


def _reduced(loss: Any, reduction: str) -> Any:
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def _is_valid(reduction: str, *deprecated: Any) -> bool:
    return reduction in ("none", "mean", "sum") and all(value is None for value in deprecated)


def _wide(x: Any) -> Any:
    """`x` in the precision that torch's kernels compute in."""
    return x.float() if x.dtype in _HALVES else x


def _are_float(*tensors: Any) -> bool:
    """Whether these are float tensors that no autocast may cast."""
    return all(
        isinstance(x, torch.Tensor) and x.dtype in (*_HALVES, *_FLOATS) and not _is_cast(x) for x in tensors
    )


def _is_cast(x: torch.Tensor) -> bool:
    return torch.is_autocast_enabled(x.device.type)


# ---------------------------------------------------------------------------------------------------- losses


def _near(error: Any, is_far: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Errors, with zeros for those that are far, and the sizes of all: the square of an infinite one, whose loss is linear,
    would have the gradient 0 * inf."""
    size = error.abs()
    return torch.where(is_far(size), 0.0, error), size


def _huber(input: Any, target: Any, reduction: str = "mean", delta: Any = 1.0, weight: Any = None) -> Any:
    valid = _is_valid(reduction) and weight is None
    if not valid or not _are_float(input, target) or input.shape != target.shape or not delta > 0:
        return NotImplemented
    near, size = _near(input - target, lambda size: size > delta)
    return _reduced(torch.where(size > delta, delta * (size - 0.5 * delta), 0.5 * near * near), reduction)


def _smooth_l1(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    beta: Any = 1.0,
) -> Any:
    valid = _is_valid(reduction, size_average, reduce)
    if not valid or not _are_float(input, target) or input.shape != target.shape or not beta > 0:
        return NotImplemented
    near, size = _near(input - target, lambda size: size >= beta)
    return _reduced(torch.where(size >= beta, size - 0.5 * beta, 0.5 * near * near / beta), reduction)


def _margin_ranking(
    input1: Any,
    input2: Any,
    target: Any,
    margin: Any = 0,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    same_rank = input1.dim() == input2.dim() == target.dim()
    if not _is_valid(reduction, size_average, reduce) or not _are_float(input1, input2) or not same_rank:
        return NotImplemented
    return _reduced((-target * (input1 - input2) + margin).clamp_min(0), reduction)


def _hinge_embedding(
    input: Any,
    target: Any,
    margin: Any = 1.0,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    if not _is_valid(reduction, size_average, reduce) or not _are_float(input):
        return NotImplemented
    apart = torch.where(target != 1, (margin - input).clamp_min(0), 0.0)
    return _reduced(apart + torch.where(target != -1, input, 0.0), reduction)


def _cosine_embedding(
    input1: Any,
    input2: Any,
    target: Any,
    margin: Any = 0,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    valid = _is_valid(reduction, size_average, reduce) and _are_float(input1, input2)
    if not valid or input1.shape != input2.shape or input1.dim() != target.dim() + 1:
        return NotImplemented
    first, second = ((x * x).sum(-1) + 1e-12 for x in (input1, input2))
    cosine = (input1 * input2).sum(-1) / (first * second).sqrt()
    apart = torch.where(target == -1, (cosine - margin).clamp_min(0), 0.0)
    return _reduced(torch.where(target == 1, 1 - cosine, 0.0) + apart, reduction)


def _pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: Any = 1e-6, keepdim: bool = False) -> Any:
    if type(p) not in (int, float) or not _are_float(x1, x2) or not x1.dim():
        return NotImplemented
    return torch.norm(x1 - x2 + eps, p, -1, keepdim)


def _triplet(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: Any = 1.0,
    p: float = 2,
    eps: Any = 1e-6,
    swap: bool = False,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    valid = _is_valid(reduction, size_average, reduce) and _are_float(anchor, positive, negative)
    if not valid or type(p) not in (int, float) or not margin > 0:
        return NotImplemented
    if not anchor.dim() or not anchor.dim() == positive.dim() == negative.dim():
        return NotImplemented
    near, far = (torch.norm(anchor - x + eps, p, -1) for x in (positive, negative))
    if swap:
        far = torch.minimum(far, torch.norm(positive - negative + eps, p, -1))
    return _reduced((margin + near - far).clamp_min(0), reduction)


def _poisson_nll(
    input: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    size_average: Any = None,
    eps: Any = 1e-8,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    if not _is_valid(reduction, size_average, reduce) or not _are_float(input, target) or full:
        return NotImplemented
    loss = input.exp() - target * input if log_input else input - target * (input + eps).log()
    return _reduced(loss, reduction)


def _cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: Any = 0.0,
) -> Any:
    valid = _is_valid(reduction, size_average, reduce) and _are_float(input) and weight is None
    if not valid or not input.dim() or not 0 < label_smoothing <= 1:
        return NotImplemented
    dim = 0 if input.dim() == 1 else 1
    classes = input.shape[dim]
    if target.is_floating_point():
        if target.shape != input.shape:
            return NotImplemented
        return F.cross_entropy(
            input, target * (1 - label_smoothing) + label_smoothing / classes, reduction=reduction
        )
    likely = F.log_softmax(input, dim)
    ignored = target == ignore_index
    smooth = (-likely.sum(dim)).masked_fill(ignored, 0.0)
    if reduction == "mean":
        smooth = smooth.sum() / (~ignored).sum()
    elif reduction == "sum":
        smooth = smooth.sum()
    loss = F.nll_loss(likely, target, ignore_index=ignore_index, reduction=reduction)
    return (1 - label_smoothing) * loss + label_smoothing / classes * smooth


# ------------------------------------------------------------------------------------------------- norms


def _scaled(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else x * _wide(weight)
    return x if bias is None else x + _wide(bias)


def _standardized(x: Any, dims: tuple[int, ...], eps: Any) -> Any:
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    return (x - mean) * (variance + eps).rsqrt()


def _is_trailing(x: Any, shape: Any, *parameters: Any) -> bool:
    """Whether `shape` is that of the last dimensions of `x`, and of the parameters that are not None."""
    shape = tuple(shape) if isinstance(shape, (list, tuple, torch.Size)) else ()
    present = [p for p in parameters if p is not None]
    return (
        _are_float(x, *present)
        and 0 < len(shape) <= x.dim()
        and tuple(x.shape[-len(shape) :]) == shape
        and all(tuple(p.shape) == shape for p in present)
    )


def _layer_norm(
    recorder: AtenCallRecorder,
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: Any = 1e-5,
) -> Any:
    if not _is_trailing(input, normalized_shape, weight, bias):
        return NotImplemented
    if not torch.is_grad_enabled():  # else autograd's C++ code would see the number
        arguments = (input, list(normalized_shape), weight, bias, eps)
        return _run(recorder, aten.native_layer_norm.default, *arguments)[0]
    dims = range(-len(normalized_shape), 0)
    return _scaled(_standardized(_wide(input), tuple(dims), eps), weight, bias).to(input.dtype)


def _rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    if not _is_trailing(input, normalized_shape, weight):
        return NotImplemented
    x, dims = _wide(input), tuple(range(-len(normalized_shape), 0))
    return _scaled(x * ((x * x).mean(dims, keepdim=True) + eps).rsqrt(), weight, None).to(input.dtype)


def _is_by_channel(x: Any, *parameters: Any) -> bool:
    present = [p for p in parameters if p is not None]
    return _are_float(x, *present) and x.dim() > 1 and all(p.shape == (x.shape[1],) for p in present)


def _by_channel(x: Any, parameter: Any) -> Any:
    return None if parameter is None else parameter.reshape(1, -1, *[1] * (x.dim() - 2))


def _group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
    if not _is_by_channel(input, weight, bias) or type(num_groups) is not int or num_groups < 1:
        return NotImplemented
    if input.shape[1] % num_groups:
        return NotImplemented
    rows = _wide(input).reshape(input.shape[0], num_groups, -1)
    x = _standardized(rows, (-1,), eps).reshape(input.shape)
    return _scaled(x, _by_channel(x, weight), _by_channel(x, bias)).to(input.dtype)


def _instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: Any = 0.1,
    eps: Any = 1e-5,
) -> Any:
    if running_mean is not None or running_var is not None or not use_input_stats:
        return NotImplemented
    if not _is_by_channel(input, weight, bias) or input.dim() < 3 or math.prod(input.shape[2:]) == 1:
        return NotImplemented
    x = _standardized(_wide(input), tuple(range(2, input.dim())), eps)
    return _scaled(x, _by_channel(x, weight), _by_channel(x, bias)).to(input.dtype)


def _batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: Any = 1e-5,
) -> Any:
    statistics: tuple[Any, Any] = (running_mean, running_var)
    if not _is_by_channel(input, weight, bias, *statistics) or (statistics[0] is None) != (
        statistics[1] is None
    ):
        return NotImplemented
    if not training:
        return _normalized(input, statistics, weight, bias, eps)
    if running_mean is None:
        return _batch_normalized(input, None, weight, bias, eps)
    now = [torch.zeros_like(running) for running in statistics]
    out = _batch_normalized(input, now, weight, bias, eps)
    if out is not NotImplemented:
        with torch.no_grad():
            for running, of_batch in zip(statistics, now, strict=True):
                running.copy_(momentum * of_batch + (1 - momentum) * running)
    return out


def _batch_normalized(input: Any, statistics: Any, weight: Any, bias: Any, eps: Any) -> Any:
    """Normalize by the statistics of this batch, and write them to `statistics`."""
    none: Any = None
    mean, variance = (none, none) if statistics is None else statistics
    if type(eps) is not Float:
        return F.batch_norm(input, mean, variance, weight, bias, True, 1.0, eps)
    x, count = _wide(input), input.numel() // input.shape[1]
    if count < 2:
        return NotImplemented
    biased, average = torch.var_mean(x, (0, *range(2, input.dim())), correction=0)
    if statistics is not None:
        with torch.no_grad():
            mean.copy_(average)
            variance.copy_(biased * (count / (count - 1)))
    return _normalized(input, (average, biased), weight, bias, eps)


def _normalized(input: Any, statistics: Any, weight: Any, bias: Any, eps: Any) -> Any:
    """Normalize by these statistics."""
    mean, variance = statistics
    if mean is None:
        return NotImplemented
    if type(eps) is not Float:
        return F.batch_norm(input, mean, variance, weight, bias, False, 0.0, eps)
    mean, variance = (_by_channel(input, _wide(s)) for s in statistics)
    x = (_wide(input) - mean) * (variance + eps).rsqrt()
    return _scaled(x, _by_channel(x, weight), _by_channel(x, bias)).to(input.dtype)


def _cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: Any = 1e-8) -> Any:
    if not _are_float(x1, x2) or x1.dtype in _HALVES or type(dim) is not int:
        return NotImplemented
    rows = []
    for x in torch.broadcast_tensors(x1, x2):
        norm = torch.linalg.vector_norm(x, 2, dim, True).clone()
        with torch.no_grad():
            norm.clamp_min_(eps)  # as in eager, gradients ignore it
        rows.append(x / norm)
    return (rows[0] * rows[1]).sum(dim)


# ----------------------------------------------------------------------------------------- random numbers


def _run(recorder: AtenCallRecorder, operator: Any, *args: Any) -> Any:
    """Record an operator itself, beneath autograd."""
    with DisableTorchDispatch():
        return recorder.run(operator, args, {})


def _bernoulli(recorder: AtenCallRecorder, like: Any, p: Any) -> Any:
    """Ones with probability `p`, in the layout of `like`: the numbers that `bernoulli_(p)` draws."""
    return _run(recorder, aten.bernoulli.p, like.detach(), p)


def _drops(x: Any, p: Any, training: Any) -> bool:
    """Whether a dropout draws a mask on the CPU: on a GPU its kernel takes the probability as a constant."""
    return training is True and _are_float(x) and x.device.type == "cpu" and 0 < p < 1 and x.numel() > 0


def _dropout(
    recorder: AtenCallRecorder, input: Any, p: Any = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    if training is False and 0 <= p <= 1:
        return input
    if not _drops(input, p, training):
        return NotImplemented
    mask = _bernoulli(recorder, input, 1 - p) / (1 - p)
    return input.mul_(mask) if inplace else input * mask


def _feature_dropout(rank: int, is_batched: bool = False) -> Callable[..., Any]:
    """`is_batched`: another rank has no batch, but for dropout2d, which warns and drops rows then."""

    def dropout(
        recorder: AtenCallRecorder, input: Any, p: Any = 0.5, training: bool = True, inplace: bool = False
    ) -> Any:
        if not _drops(input, p, training) or input.dim() not in (rank - 1 + is_batched, rank):
            return NotImplemented
        channels = input.shape[:2] if input.dim() == rank else (1, input.shape[0])
        mask = _bernoulli(recorder, input.new_empty((*channels, *[1] * (rank - 2))), 1 - p) / (1 - p)
        mask = mask if input.dim() == rank else mask.squeeze(0)
        return input.mul_(mask) if inplace else input * mask

    return dropout


def _alpha_dropout(
    recorder: AtenCallRecorder, input: Any, p: Any = 0.5, training: bool = False, inplace: bool = False
) -> Any:
    if training is False and 0 <= p <= 1:
        return input
    if inplace or not _drops(input, p, training):
        return NotImplemented
    factor = 1 / ((_SELU_ALPHA * _SELU_ALPHA * p + 1) * (1 - p)) ** 0.5
    mask = _bernoulli(recorder, input, 1 - p)
    shift = (mask - 1) * (_SELU_ALPHA * factor) + _SELU_ALPHA * factor * p
    return input * (mask * factor) + shift


def _bernoulli_(recorder: AtenCallRecorder, self: Any, p: Any = 0.5) -> Any:
    return self.copy_(_bernoulli(recorder, self, p)) if _are_float(self) and 0 <= p <= 1 else NotImplemented


def _normal_(self: Any, mean: Any = 0, std: Any = 1) -> Any:
    return self.normal_().mul_(std).add_(mean) if self.dtype in _FLOATS and std >= 0 else NotImplemented


def _uniform_(self: Any, from_: Any = 0, to: Any = 1) -> Any:
    if self.dtype not in _FLOATS or not from_ <= to:
        return NotImplemented
    return self.uniform_().mul_(to - from_).add_(from_)


def _exponential_(self: Any, lambd: Any = 1) -> Any:
    return self.exponential_().div_(lambd) if self.dtype in _FLOATS and lambd > 0 else NotImplemented


def _normal(mean: Any, std: Any, size: Any, *, dtype: Any = None, device: Any = None) -> Any:
    dtype = dtype or torch.get_default_dtype()
    if (
        isinstance(mean, torch.Tensor)
        or isinstance(std, torch.Tensor)
        or dtype not in _FLOATS
        or not std >= 0
    ):
        return NotImplemented
    return torch.empty(size, dtype=dtype, device=device).normal_() * std + mean


# ------------------------------------------------------------------------------------------------- others


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    **options: Any,
) -> Any:
    """Multiply the queries by the quotient of scale and default scale: torch's fused kernels take only a constant scale."""
    if not _are_float(query, key, value) or query.dtype in _HALVES or type(query.shape[-1]) is not int:
        return NotImplemented
    if type(dropout_p) is not float and type(dropout_p) is not int:
        return NotImplemented
    default = 1 / math.sqrt(query.shape[-1])
    return F.scaled_dot_product_attention(
        query * (scale / default), key, value, attn_mask, dropout_p, is_causal, scale=default, **options
    )


def _quantile(
    input: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    """`torch.quantile` for one quantile, as in aten/src/ATen/native/Sorting.cpp."""
    if type(q) is not Float or input.dtype not in _FLOATS or interpolation != "linear" or not 0 <= q <= 1:
        return NotImplemented
    if keepdim or not input.dim() or not input.numel():
        return NotImplemented
    rows = input.flatten() if dim is None else input.movedim(dim, -1)
    rows = rows.sort(-1).values
    last = rows.shape[-1] - 1
    rank = torch.scalar_tensor(q, dtype=input.dtype, device=input.device) * last
    rank = torch.where(rows[..., -1:].isnan(), float(last), rank)  # a NaN is sorted to the end
    below = rank.floor()
    lower, upper = (rows.gather(-1, at.long()) for at in (below, rank.ceil()))
    return torch.lerp(lower, upper, rank - below).squeeze(-1)


def _nan_to_num(input: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    if not _are_float(input):
        return NotImplemented
    limits = torch.finfo(input.dtype)
    x = torch.where(input.isnan(), 0.0 if nan is None else nan, input)
    x = torch.where(input == math.inf, limits.max if posinf is None else posinf, x)
    return torch.where(input == -math.inf, limits.min if neginf is None else neginf, x)


def _logit(input: Any, eps: Any = None) -> Any:
    if not _are_float(input) or not 0 <= eps <= 0.5:
        return NotImplemented
    wide = _wide(input)
    x = torch.where(wide.isnan(), wide, wide.clamp(eps, 1 - eps))  # `clamp` has no gradient at NaN
    return (x / (1 - x)).log().to(input.dtype)


def _isclose(input: Any, other: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    if not _are_float(input, other) or input.dtype != other.dtype or not (rtol >= 0 and atol >= 0):
        return NotImplemented
    difference = (input - other).abs()
    close = (input == other) | (difference.isfinite() & (difference <= atol + (rtol * other).abs()))
    return close | (input.isnan() & other.isnan()) if equal_nan else close


def _lerp(input: Any, end: Any, weight: Any) -> Any:
    """`torch.lerp` with the weight in a tensor: the backward of the other overload takes it as a double."""
    if not _are_float(input, end) or input.dtype != end.dtype:
        return NotImplemented
    return torch.lerp(input, end, torch.scalar_tensor(weight, dtype=input.dtype, device=input.device))


def _pad(input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    return torch.constant_pad_nd(input, list(pad), value) if mode == "constant" else NotImplemented


_RECORDING: dict[Any, Callable[..., Any]] = {  # the composite's first argument is the recorder
    F.layer_norm: _layer_norm,
    F.dropout: _dropout,
    F.dropout1d: _feature_dropout(3),
    F.dropout2d: _feature_dropout(4, is_batched=True),
    F.dropout3d: _feature_dropout(5),
    F.alpha_dropout: _alpha_dropout,
    torch.Tensor.bernoulli_: _bernoulli_,
}
_COMPOSITES: dict[Any, Callable[..., Any]] = {
    F.huber_loss: _huber,
    F.smooth_l1_loss: _smooth_l1,
    F.margin_ranking_loss: _margin_ranking,
    F.hinge_embedding_loss: _hinge_embedding,
    F.cosine_embedding_loss: _cosine_embedding,
    **dict.fromkeys((F.pairwise_distance, torch.pairwise_distance), _pairwise_distance),
    F.triplet_margin_loss: _triplet,
    F.poisson_nll_loss: _poisson_nll,
    F.cross_entropy: _cross_entropy,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.instance_norm: _instance_norm,
    F.batch_norm: _batch_norm,
    **dict.fromkeys((F.cosine_similarity, torch.cosine_similarity), _cosine_similarity),
    torch.Tensor.normal_: _normal_,
    torch.Tensor.uniform_: _uniform_,
    torch.Tensor.exponential_: _exponential_,
    torch.normal: _normal,
    F.scaled_dot_product_attention: _attention,
    **dict.fromkeys((torch.quantile, torch.Tensor.quantile), _quantile),
    **dict.fromkeys((torch.nan_to_num, torch.Tensor.nan_to_num), _nan_to_num),
    **dict.fromkeys((torch.logit, torch.Tensor.logit), _logit),
    **dict.fromkeys((torch.isclose, torch.Tensor.isclose), _isclose),
    **dict.fromkeys((torch.lerp, torch.Tensor.lerp), _lerp),
    F.pad: _pad,
}
# Functions in Python that pass such a parameter only to functions which keep it symbolic.
PASSING: frozenset[Any] = frozenset(
    {F.normalize, F.gumbel_softmax, F.local_response_norm, F.multi_margin_loss, *_COMPOSITES, *_RECORDING}
)


def _fit(args: Args, kwargs: Kwargs) -> bool:
    """Whether the symbolic floats fit the dtypes of the tensors: some operators raise for others."""
    values = (*args, *kwargs.values())
    dtypes = [v.dtype for v in values if isinstance(v, torch.Tensor) and v.dtype in (*_HALVES, *_FLOATS)]
    most = min((torch.finfo(dtype).max for dtype in dtypes), default=torch.finfo(torch.float32).max)
    return all(-most <= v <= most for v in values if type(v) is Float)


def composite(recorder: AtenCallRecorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The result of `func` with symbolic floats among its arguments; NotImplemented where torch computes it."""
    number = next((value for value in (*args, *kwargs.values()) if type(value) is Float), None)
    recording = _RECORDING.get(func)
    function = _COMPOSITES.get(func) if recording is None else functools.partial(recording, recorder)
    if number is None or function is None:
        return NotImplemented
    with number.node.symbols.decisions_of_torch():
        try:
            return function(*args, **kwargs) if _fit(args, kwargs) else NotImplemented
        except TypeError:  # torch raises its own error for arguments that do not fit
            return NotImplemented
