"""Losses of two tensors, and the backward of those and of the negative log likelihood.

Losses that ATen composes of several operators are rounded to half precision after each, and before they are reduced.
Forward losses that check values (nll_loss on a CPU, binary_cross_entropy) stay ATen calls: loops cannot raise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.loops.compute_dtypes import opmath
from smelt.loops.kernel_ir import Value
from smelt.loops.lazy_tensor import Index, Load, Map, Tensor
from smelt.loops.loop_values import DIVISION, TRANSCENDENTAL, both, call, cast, compare, const, rounded, where
from smelt.loops.loop_values import index as index_value
from smelt.loops.lowering_builder import Builder, broadcast_shape
from smelt.ops.layouts.meta_layouts import fresh
from smelt.ops.recompute_rules import Class
from smelt.ops.reductions import dims_of, finish, shared
from smelt.ops.registry import declare, operator
from smelt.shapes.expr import Size, numel, proves_le, static

aten = torch.ops.aten

declare(
    "mse_loss l1_loss smooth_l1_loss huber_loss nll_loss_forward nll_loss2d_forward binary_cross_entropy",
    recompute=Class.REDUCTION,
)
declare(
    "binary_cross_entropy_backward binary_cross_entropy_with_logits huber_loss_backward",
    "mse_loss_backward nll_loss2d_backward nll_loss_backward smooth_l1_loss_backward soft_margin_loss",
    any_size=True,
)
declare(
    "nll_loss_forward nll_loss2d_forward binary_cross_entropy multi_margin_loss multilabel_margin_loss_forward _ctc_loss",
    raises=True,  # for a class or a probability out of range
)

NONE, MEAN, SUM = range(3)  # ATen's numbers of the reductions


def _parts(x: Tensor, reduction: int) -> Size:
    """The number of elements that share the result: the number of elements for a mean, else 1."""
    return numel(x.shape) if reduction == MEAN else 1


def _reduced(
    b: Builder, f: Callable[..., Value], operands: Sequence[Tensor], reduction: int, cost: float
) -> Tensor:
    compute = opmath(b.spec.dtype)
    shape = broadcast_shape([t.shape for t in operands])
    if reduction == NONE:
        return b.pointwise(f, operands, compute, cost=cost)
    losses = b.pointwise(f, operands, compute, b.spec.dtype, cost, shape)
    total = b.reduce("sum", losses, dims_of(losses, None), False, compute)
    parts = _parts(losses, reduction)
    return finish(b, total, lambda v: shared(v, parts))


# ---- of the difference d = input - target: (loss, its slope)

Step = Callable[[Value], Value]  # gives a value as the next operation reads it
Pair = tuple[Callable[[Value, Step], Value], Callable[[Value], Value]]


def _squared() -> Pair:
    return lambda d, step: d * d, lambda d: d * 2


def _smooth_l1(beta: float = 1.0) -> Pair:
    """d^2 / 2 beta within beta, |d| - beta / 2 beyond."""

    def loss(d: Value, step: Step) -> Value:
        size = call("abs", d)
        inside = compare("lt", size, const(beta, d.dtype))
        return where(inside, step(step(size * 0.5) * size) / beta, size - step(const(0.5 * beta, d.dtype)))

    return loss, lambda d: _limited(d, beta) * (1 / beta)


def _huber(delta: float = 1.0) -> Pair:
    """d^2 / 2 within delta, delta (|d| - delta / 2) beyond."""

    def loss(d: Value, step: Step) -> Value:
        size = call("abs", d)
        inside = compare("le", size, const(delta, d.dtype))
        beyond = step(size - step(const(0.5 * delta, d.dtype)))
        return where(inside, step(size * 0.5) * size, beyond * delta)

    return loss, lambda d: _limited(d, delta)


def _limited(d: Value, bound: float) -> Value:
    return call("minimum", call("maximum", d, const(-bound, d.dtype)), const(bound, d.dtype))


# Where ATen's kernels of a CPU compute in half precision, step by step (native/cpu/BinaryOpsKernel.cpp). Those of a GPU
# compute the difference and limits so, and the rest in float32 (native/cuda/BinaryMiscOpsKernels.cu).
_BY_STEPS = {(_smooth_l1, torch.float16), (_huber, torch.bfloat16)}


def _rounding(dtype: torch.dtype, rounds: bool) -> Step:
    return (lambda v: rounded(v, dtype)) if rounds else (lambda v: v)


def _of_difference(pair: Callable[..., Pair], forward: Any, backward: Any) -> None:
    def loss(b: Builder, x: Tensor, target: Tensor, reduction: int = MEAN, *args: float) -> Tensor | None:
        if 0 in args:  # a limit without a slope
            return None
        dtype, on_gpu = b.spec.dtype, b.device.type != "cpu"
        by_steps = not on_gpu and (pair, dtype) in _BY_STEPS
        in_dtype = on_gpu or by_steps
        near, step = (_rounding(dtype, when) for when in (in_dtype or pair is _squared, by_steps))
        f, _ = pair(*(torch.tensor(args, dtype=dtype).tolist() if in_dtype else args))
        return _reduced(b, lambda u, v: f(near(u - v), step), [x, target], reduction, 4.0)

    def slope(
        b: Builder, grad: Tensor, x: Tensor, target: Tensor, reduction: int, *args: float
    ) -> Tensor | None:
        if 0 in args:
            return None
        _, f = pair(*args)
        parts, compute = _parts(x, reduction), opmath(x.dtype)
        return b.pointwise(lambda g, u, v: shared(f(u - v), parts) * g, [grad, x, target], compute, cost=5.0)

    declare(forward, lowering=loss)
    declare(backward, lowering=slope)


_of_difference(_squared, aten.mse_loss.default, aten.mse_loss_backward.default)
_of_difference(_smooth_l1, aten.smooth_l1_loss.default, aten.smooth_l1_loss_backward.default)
_of_difference(_huber, aten.huber_loss.default, aten.huber_loss_backward.default)


# ---- of two classes


@operator(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    b: Builder, grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """(x - target) / (x * (1 - x)): the divisor has a lower bound, the loss a limit of -100 that has no slope."""
    parts = _parts(x, reduction)

    def f(g: Value, u: Value, t: Value, *w: Value) -> Value:
        slope = shared((u - t) / call("maximum", u * (1 - u), const(1e-12, u.dtype)) * g, parts)
        return slope * w[0] if w else slope

    operands = [grad, x, target] if weight is None else [grad, x, target, weight]
    return b.pointwise(f, operands, opmath(x.dtype), cost=DIVISION + 6)


@operator(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    b: Builder,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """(1 - target) * x - (1 + (pos_weight - 1) * target) * log(sigmoid(x)), as native/Loss.cpp composes it: each
    operator rounds to the dtype of the tensor that it writes, x's or the target's."""

    def f(u: Value, t: Value, *rest: Value) -> Value:
        extra = list(rest)
        log_sigmoid = call("minimum", u, const(0, u.dtype)) - call("log1p", call("exp", -call("abs", u)))
        log_sigmoid = rounded(log_sigmoid, x.dtype)
        scale = extra.pop(0) if weight is not None else None
        if pos_weight is not None:
            both_dtype = torch.promote_types(pos_weight.dtype, target.dtype)
            of_class = rounded(rounded(extra.pop(0) - 1, pos_weight.dtype) * t, both_dtype)
            log_sigmoid = rounded(log_sigmoid * rounded(of_class + 1, both_dtype), x.dtype)
        loss = rounded(rounded(1 - t, target.dtype) * u, target.dtype)
        loss = rounded(loss - log_sigmoid, target.dtype)
        return loss if scale is None else loss * scale

    operands = [x, target, *[w for w in (weight, pos_weight) if w is not None]]
    return _reduced(b, f, operands, reduction, 2 * TRANSCENDENTAL + 6)


@operator(aten.soft_margin_loss.default)
def soft_margin_loss(b: Builder, x: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """log(1 + exp(-target * x)), in this form as in ATen: inf where exp overflows."""

    def f(u: Value, t: Value) -> Value:
        exponential = call("exp", rounded(-u * t, x.dtype))
        return call("log1p", rounded(exponential, x.dtype))

    return _reduced(b, f, [x, target], reduction, 2 * TRANSCENDENTAL)


@operator(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(b: Builder, grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """grad times the derivative of log(1 + exp(-target * x)) by x, which is -target * sigmoid(-target * x)."""
    parts = _parts(x, reduction)
    return b.pointwise(
        lambda g, u, t: shared(-t * call("sigmoid", -t * u), parts) * g,
        [grad, x, target], opmath(x.dtype), cost=TRANSCENDENTAL + 4,
    )  # fmt: skip


# ---- of many classes


@operator(aten.nll_loss_forward.default)
def nll_loss_forward(
    b: Builder, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: Size
) -> tuple[Tensor, Tensor] | None:
    """(loss, number of targets that are not ignored), on a GPU. The element at the target is the masked sum over
    classes: the row is read anyway for its softmax, whose logarithm is then never materialized. An ATen call checks
    the targets and fails as eager's kernel does."""
    if b.device.type == "cpu" or len(x.shape) != 2 or weight is not None or reduction == NONE or 0 in x.shape:
        return None
    classes, compute = static(x.shape[1]), opmath(x.dtype)
    source: Tensor = x
    less: tuple[Tensor, ...] = ()
    if isinstance(x.definition, Map) and x.definition.less is not None and x.definition.less[0] == 1:
        _, source, less = x.definition.less

    def counts(load: Load, at: Index) -> Value:
        return compare("ne", cast(load(target, at), torch.int64), index_value(ignored))

    def element(load: Load, at: Index, position: Index) -> Value:
        hit = compare("eq", index_value(position[0]), cast(load(target, at), torch.int64))
        return where(hit, cast(load(source, (*at, *position)), compute), const(0, compute))

    def loss(load: Load, at: Index) -> Value:
        value = load(found, at)
        for row in less:
            value = value - load(row, (*at, 0))
        return where(counts(load, at), -value, const(0, compute))

    def valid(load: Load, _: Index, at: Index) -> Value:
        number = cast(load(target, at), torch.int64)
        inside = both(
            compare("ge", number, const(0, torch.int64)), compare("lt", number, const(classes, torch.int64))
        )
        assert inside is not None
        return call("logical_or", inside, compare("eq", number, index_value(ignored)))

    def one(load: Load, _: Index, at: Index) -> Value:
        return where(counts(load, at), const(1, compute), const(0, compute))

    rows = (x.shape[0],)
    all_valid = b.reduction("all", (), torch.bool, [target], rows, valid)
    b.check(aten._assert_async.msg, all_valid, "a target is none of the classes")
    found = b.reduction("sum", rows, compute, [source, target], (classes,), element, 2.0)
    losses = b.map(rows, compute, [found, target, *less], loss, 3.0)
    number = b.reduction("sum", (), compute, [target], rows, one)
    total = b.reduce("sum", losses, (0,), False, compute)
    if reduction == MEAN:
        total = b.pointwise(lambda s, n: s / n, [total, number], compute, compute, DIVISION, ())
    return b.cast(total, x.dtype), b.cast(number, x.dtype)


@operator(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    b: Builder,
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: Size,
    total_weight: Tensor,
) -> Tensor | None:
    """-weight * grad at the target's class, elsewhere zero. The forward has checked the targets."""
    if len(target.shape) != len(x.shape) - 1:
        return None
    dim, compute = min(1, len(x.shape) - 1), opmath(x.dtype)

    def slope(load: Load, at: Index) -> Value:
        value = -cast(load(grad, at if grad.shape else ()), compute)
        return value / cast(load(total_weight, ()), compute) if reduction == MEAN else value

    def there(load: Load, at: Index) -> tuple[Value, Value]:
        """The target's class, and whether it is not the ignored one."""
        number = cast(load(target, at), torch.int64)
        return number, compare("ne", number, index_value(ignored))

    def body(load: Load, i: Index) -> Value:
        at = (*i[:dim], *i[dim + 1 :])
        number, counts = there(load, at)
        hit: Value | None = compare("eq", index_value(i[dim]), number)
        if not proves_le(ignored, -1) and not proves_le(x.shape[dim], ignored):
            hit = both(hit, counts)
        assert hit is not None
        value = slope(load, at)
        if weight is not None:
            value = value * cast(load(weight, (i[dim],)), compute)
        return where(hit, cast(value, x.dtype), const(0, x.dtype))

    def row_sum(load: Load, i: Index) -> Value:
        at = (*i[:dim], *i[dim + 1 :])
        _, counts = there(load, at)
        return where(counts, cast(slope(load, at), x.dtype), const(0, x.dtype))

    rows = [grad, target, *([total_weight] if reduction == MEAN else [])]
    if weight is not None:
        return b.map(x.shape, x.dtype, [*rows, weight], body, cost=3.0)
    total = b.map((*x.shape[:dim], 1, *x.shape[dim + 1 :]), x.dtype, rows, row_sum, cost=DIVISION + 2)
    return b.tensor(x.shape, x.dtype, Map(tuple(rows), body, 3.0, sum=((dim,), total)))


# ---- shapes on a CPU


def _as_second_layout(grad: torch.Tensor, x: torch.Tensor, *_: Any, **__: Any) -> Any:
    """A gradient that is contiguous whatever the forward's input was."""
    return fresh(x.shape, x.dtype) if grad.dtype == x.dtype else NotImplemented


declare(
    aten.nll_loss_backward.default,
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    layout=_as_second_layout,
)
declare(aten.nll_loss_forward.default, needs_room=True)
declare("nll_loss_backward nll_loss2d_backward", reads_shape_only=True)
