"""Normalizations at inference. Statistics and arithmetic are in ATen's accumulation dtype; results round once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.graph.ir import Node
from smelt.loops.compute_dtypes import opmath
from smelt.loops.lazy_tensor import Tensor
from smelt.loops.loop_values import DIVISION, call
from smelt.loops.lowering_builder import Builder, Operand
from smelt.ops.layouts.meta_layouts import META, fresh, suggested_format
from smelt.ops.node_builders import CLONE, Make
from smelt.ops.recompute_rules import Class
from smelt.ops.reductions import count_of, moments, shared
from smelt.ops.registry import declare, operator
from smelt.ops.trace_rules import TraceRule
from smelt.ops.view_operators import reshape_index
from smelt.shapes.expr import Size, contiguous_stride
from smelt.torch_private import OpOverload

aten = torch.ops.aten

declare(
    "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit_no_training _batch_norm_with_update "
    "_batch_norm_with_update_functional _batch_norm_no_update _fused_rms_norm",
    recompute=Class.STATISTICS,
)


@operator(aten.native_layer_norm.default)
def layer_norm(
    b: Builder, x: Tensor, normalized: Sequence[Size], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    """(normalised, mean, rstd) over the trailing dimensions."""
    compute = opmath(x.dtype)
    dims = range(len(x.shape) - len(normalized), len(x.shape))
    center, variance = moments(b, x, dims, 0, compute)
    rstd = _rstd(b, variance, eps)
    out = _normalized(b, x, center, rstd, weight, bias, b.spec[0].dtype)
    return out, b.cast(center, b.spec[1].dtype), b.cast(rstd, b.spec[2].dtype)


def _rstd(b: Builder, variance: Tensor, eps: float) -> Tensor:
    dtype = variance.dtype
    return b.pointwise(
        lambda v: call("rsqrt", v + eps), [variance], dtype, dtype, 2 * DIVISION, variance.shape
    )


def _normalized(
    b: Builder,
    x: Tensor,
    center: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    out: torch.dtype,
) -> Tensor:
    """(x - center) * rstd * weight + bias; weight and bias broadcast to x."""
    operands: list[Operand] = [x, center, rstd]
    operands += [w for w in (weight, bias) if w is not None]

    def f(v: Any, mean: Any, scale: Any, *affine: Any) -> Any:
        rest = list(affine)
        v = (v - mean) * scale
        if weight is not None:
            v = v * rest.pop(0)
        return v + rest.pop(0) if bias is not None else v

    return b.pointwise(f, operands, center.dtype, out, 4.0, x.shape)


@operator(aten.native_group_norm.default)
def group_norm(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: Size,
    channels: Size,
    positions: Size,
    groups: int,
    eps: float,
) -> tuple[Tensor, ...]:
    """(normalised, mean, rstd) of shapes (x, (n, groups), (n, groups))."""
    compute = opmath(x.dtype)
    split = (n, groups, channels // groups, *x.shape[2:])
    grouped = b.view(x, split, reshape_index(x.shape, split))
    dims = range(2, len(split))
    center, variance = moments(b, grouped, dims, 0, compute)
    rstd = _rstd(b, variance, eps)
    affine = [w and _per_channel(b, w, groups, len(split)) for w in (weight, bias)]
    out = _normalized(b, grouped, center, rstd, affine[0], affine[1], b.spec[0].dtype)
    stats = (n, groups)
    same_memory = b.spec[0].stride == contiguous_stride(x.shape)
    return (
        (b.view if same_memory else b.copy)(out, x.shape, reshape_index(split, x.shape)),
        b.copy(b.cast(center, b.spec[1].dtype), stats, reshape_index(center.shape, stats)),
        b.copy(b.cast(rstd, b.spec[2].dtype), stats, reshape_index(rstd.shape, stats)),
    )


def _per_channel(b: Builder, w: Tensor, groups: int, rank: int) -> Tensor:
    shape = (groups, w.shape[0] // groups, *[1] * (rank - 3))
    return b.view(w, shape, reshape_index(w.shape, shape))


@operator(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor | None, ...] | None:
    """(x * alpha + beta, None, None) from the running statistics."""
    return native_batch_norm(b, x, weight, bias, mean, variance, False, momentum, eps)


@operator(aten.native_batch_norm.default)
def native_batch_norm(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor | None, ...] | None:
    """x * alpha + beta per channel, as ATen factors it. The saved statistics are empty at inference."""
    if training or mean is None or variance is None:
        return None
    compute = opmath(x.dtype)
    scale = [variance] if weight is None else [variance, weight]
    alpha = b.pointwise(
        lambda v, *w: call("reciprocal", call("sqrt", v + eps)) * w[0] if w else call("reciprocal", call("sqrt", v + eps)),
        scale, compute, compute, 2 * DIVISION + 2, mean.shape,
    )  # fmt: skip
    shift = [mean, alpha] if bias is None else [mean, alpha, bias]
    beta = b.pointwise(
        lambda m, a, *c: c[0] - m * a if c else -(m * a), shift, compute, compute, 2.0, mean.shape
    )
    column = (mean.shape[0], *[1] * (len(x.shape) - 2))
    per_channel = [b.view(t, column, reshape_index(t.shape, column)) for t in (alpha, beta)]
    out = b.pointwise(lambda v, a, c: v * a + c, [x, *per_channel], compute, b.spec[0].dtype, 2.0, x.shape)
    return out, None, None


@operator(aten._fused_rms_norm.default)
def rms_norm(
    b: Builder, x: Tensor, normalized: Sequence[Size], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, ...]:
    """(normalised, rstd) over the trailing dimensions; eps defaults to the machine epsilon of x's dtype."""
    compute = opmath(x.dtype)
    dims = range(len(x.shape) - len(normalized), len(x.shape))
    squares = b.reduce("sum", x, dims, True, compute, lambda v: v * v)
    count, small = count_of(x, dims), torch.finfo(x.dtype).eps if eps is None else eps
    variance = b.pointwise(lambda v: shared(v, count), [squares], compute, compute, 1.0, squares.shape)
    rstd = _rstd(b, variance, small)
    operands: list[Operand] = [x, rstd] if weight is None else [x, rstd, weight]
    out = b.pointwise(
        lambda v, r, *w: v * r * w[0] if w else v * r, operands, compute, b.spec[0].dtype, 2.0, x.shape
    )
    return out, b.cast(rstd, b.spec[1].dtype)


# ---- shapes on a CPU


def statistics_dtype(x: torch.Tensor, *parameters: torch.Tensor | None) -> torch.dtype:
    """The dtype of means and deviations on a CPU: the input's, or float32 with float32 parameters. As `is_mixed_type`
    in ATen's cpu/mixed_data_type.h, which looks at the first parameter that is present."""
    first = next((p for p in parameters if p is not None), x)
    return x.dtype if first.dtype == x.dtype else torch.float32


def _takes(x: torch.Tensor, *parameters: torch.Tensor | None) -> bool:
    """Whether ATen's CPU kernels certainly accept `x` with parameters of these dtypes: the input's, or float32 with a
    half-precision input. Raises ATen's error for dtypes that they refuse (cpu/mixed_data_type.h)."""
    present = [p for p in parameters if p is not None]
    if not present or present[0].dtype == x.dtype:
        return all(p.dtype == x.dtype for p in present)
    if x.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("mixed dtype (CPU): all inputs must share same datatype.")
    if any(p.dtype != torch.float32 for p in present):
        raise RuntimeError("mixed dtype (CPU): expect parameter to have scalar type of Float")
    return True


def _layer_norm_layout(
    x: torch.Tensor,
    normalized: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> Any:
    shape = list(normalized)
    n = len(shape)
    if not x.is_floating_point() or n == 0 or list(x.shape[x.dim() - n :]) != shape:
        return NotImplemented
    if any(p is not None and list(p.shape) != shape for p in (weight, bias)) or not _takes(x, weight, bias):
        return NotImplemented
    rows = [*x.shape[: x.dim() - n], *[1] * n]
    dtype = statistics_dtype(x, weight, bias)
    return fresh(x.shape, x.dtype), fresh(rows, dtype), fresh(rows, dtype)


def _group_norm_layout(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    batch: int,
    channels: int,
    area: int,
    groups: int,
    eps: float,
) -> Any:
    parameters = [p for p in (weight, bias) if p is not None]
    if not x.is_floating_point() or batch * channels * area != x.numel() or not x.numel():
        return NotImplemented
    if (
        channels % groups
        or any(list(p.shape) != [channels] for p in parameters)
        or not _takes(x, *parameters)
    ):
        return NotImplemented
    out = torch.empty(x.shape, dtype=x.dtype, device=META, memory_format=suggested_format(x))
    dtype = statistics_dtype(x, weight, bias)
    return out, fresh([batch, groups], dtype), fresh([batch, groups], dtype)


def batch_norm_training_layout(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, *settings: Any
) -> Any:
    """The layouts of a batch norm's results on a CPU. `settings`: as those of `_batch_norm_results`."""
    results = _batch_norm_results(x, weight, bias, *settings)
    return results if results is NotImplemented or _takes(x, weight, bias, *settings[:-3]) else NotImplemented


def _batch_norm_results(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, *settings: Any
) -> Any:
    """`settings`: running mean and variance (absent in the form without), training, momentum, epsilon."""
    running, training = settings[:-3], settings[-3]
    parameters = weight, bias, *running
    if not x.is_floating_point() or x.dim() < 2 or not (training or running):
        return NotImplemented
    if any(p is not None and p.shape != x.shape[1:2] for p in parameters):
        return NotImplemented
    out = torch.empty(x.shape, dtype=x.dtype, device=META, memory_format=suggested_format(x))
    size = x.shape[1:2] if training else [0]
    dtype = statistics_dtype(x, *parameters)
    return out, fresh(size, dtype), fresh(size, dtype)


def _in_evaluation(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    var: torch.Tensor,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """The arguments of `_native_batch_norm_legit_no_training` as those of `_batch_norm_results`."""
    return x, weight, bias, mean, var, False, momentum, eps


def _batch_norm_layout(*arguments: Any, **named: Any) -> Any:
    return batch_norm_training_layout(*_in_evaluation(*arguments, **named))


def _batch_norm_layout_on(device: torch.device, x: torch.Tensor, *arguments: Any, **named: Any) -> Any:
    """A GPU's kernel allocates statistics that it does not fill."""
    found = _batch_norm_results(*_in_evaluation(x, *arguments, **named))
    if found is NotImplemented:
        return found
    room = fresh(x.shape[1:2], opmath(x.dtype))
    return found[0], room, fresh(room.shape, room.dtype)


declare(aten.native_layer_norm.default, layout=_layer_norm_layout)
declare(aten.native_group_norm.default, layout=_group_norm_layout)
declare(
    aten._native_batch_norm_legit_no_training.default,
    layout=_batch_norm_layout,
    layout_on=_batch_norm_layout_on,
)


def recorded_batch_norm(
    x: Node, weight: Node, bias: Node, mean: Node, var: Node, training: bool, *numbers: float
) -> tuple[OpOverload, tuple[Any, ...]]:
    """The operator that computes a batch norm and whose schema says what it writes, and its arguments."""
    if mean is None:
        return aten._native_batch_norm_legit.no_stats, (x, weight, bias, training, *numbers)
    if training:
        return aten._native_batch_norm_legit.default, (x, weight, bias, mean, var, training, *numbers)
    return aten._native_batch_norm_legit_no_training.default, (x, weight, bias, mean, var, *numbers)


declare(aten.native_batch_norm.default, trace_rule=TraceRule.AS_OTHER, recorded_as=recorded_batch_norm)


# ---- the result again, from saved statistics


def _scaled(make: Make, value: Node, weight: Node | None, bias: Node | None) -> Node:
    if weight is not None:
        value = make(aten.mul.Tensor, value, weight)
    return value if bias is None else make(aten.add.Tensor, value, bias)


def _layer_norm_formula(make: Make, arguments: dict[str, Any], items: dict[int, Node]) -> Node | None:
    if not items.keys() >= {1, 2}:
        return None
    value = make(aten.mul.Tensor, make(aten.sub.Tensor, arguments["input"], items[1]), items[2])
    return _scaled(make, value, arguments["weight"], arguments["bias"])


def _rms_norm_formula(make: Make, arguments: dict[str, Any], items: dict[int, Node]) -> Node | None:
    if 1 not in items:
        return None
    return _scaled(make, make(aten.mul.Tensor, arguments["input"], items[1]), arguments["weight"], None)


def _by_channel(make: Make, value: Node | None, rank: int) -> Node | None:
    """A view of a vector over the channels that broadcasts to `rank` dimensions, with channels in dimension 1."""
    return value if value is None else make(aten.view.default, value, [-1] + [1] * (rank - 2))


def batch_norm_formula(make: Make, arguments: dict[str, Any], items: dict[int, Node]) -> Node | None:
    """The node (x - mean) * scale * weight + bias. `items`: nodes of the saved results, 1 the mean and 2 the scale.
    None if training needs one that is absent."""
    x, rank = arguments["input"], len(arguments["input"].spec.shape)
    if arguments.get("training"):
        if not items.keys() >= {1, 2}:
            return None
        mean, scale = items[1], items[2]
    else:
        mean = arguments["running_mean"]
        scale = make(aten.rsqrt.default, make(aten.add.Scalar, arguments["running_var"], arguments["eps"]))
    centred = make(aten.sub.Tensor, x, _by_channel(make, mean, rank))
    value = make(aten.mul.Tensor, centred, _by_channel(make, scale, rank))
    return _scaled(
        make, value, _by_channel(make, arguments["weight"], rank), _by_channel(make, arguments["bias"], rank)
    )


def _group_norm_formula(make: Make, arguments: dict[str, Any], items: dict[int, Node]) -> Node | None:
    if not items.keys() >= {1, 2}:
        return None
    x, channels, groups = arguments["input"], arguments["C"], arguments["group"]
    rank = len(x.spec.shape)

    def of_channels(statistic: Node) -> Node:
        wide = make(
            aten.expand.default,
            make(aten.unsqueeze.default, statistic, 2),
            [arguments["N"], groups, channels // groups],
        )
        dense = make(CLONE, wide, memory_format=torch.contiguous_format)
        return make(aten.view.default, dense, [arguments["N"], channels] + [1] * (rank - 2))

    value = make(aten.mul.Tensor, make(aten.sub.Tensor, x, of_channels(items[1])), of_channels(items[2]))
    return _scaled(
        make, value, _by_channel(make, arguments["weight"], rank), _by_channel(make, arguments["bias"], rank)
    )


declare(aten.native_layer_norm.default, from_statistics=_layer_norm_formula)
declare(aten.native_group_norm.default, from_statistics=_group_norm_formula)
declare(aten._fused_rms_norm.default, from_statistics=_rms_norm_formula)
declare(aten._native_batch_norm_legit_no_training.default, from_statistics=batch_norm_formula)
