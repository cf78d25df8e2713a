"""Reductions and scans. Half-precision inputs accumulate in float32 and round once at the end, as ATen does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.graph.ir import Node, TensorSpec
from smelt.graph.tensor_specs import row_major_spec
from smelt.loops.compute_dtypes import accumulation, opmath
from smelt.loops.kernel_ir import ReductionKind, Value
from smelt.loops.lazy_tensor import Index, Map, Tensor
from smelt.loops.loop_values import DIVISION, TRANSCENDENTAL, call, cast, compare, const, test, where
from smelt.loops.loop_values import index as index_value
from smelt.loops.lowering_builder import Builder, broadcast_shape
from smelt.ops.index_bounds import along, of_all
from smelt.ops.layouts.meta_layouts import fresh, like, of_cpp
from smelt.ops.node_builders import Make, converted
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import Lowering, declare, operator
from smelt.ops.trace_rules import TraceRule
from smelt.shapes.expr import Size, all_static, bounds, is_one, numel

aten = torch.ops.aten

declare(
    "sum mean prod amax amin max min any all argmax argmin aminmax var std var_mean std_mean norm linalg_vector_norm "
    "logsumexp nansum nanmean count_nonzero dist trace median nanmedian",
    recompute=Class.REDUCTION,
)
# for a range that is not finite, a negative number, lengths that are not those of the data
declare("histc histogram bincount segment_reduce", raises=True)
declare("_histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors", raises=True)
declare("histogram", run_on_zeros=True)  # torch has no shape functions of these
declare("_histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors", run_on_zeros=True)
declare("bincount", trace_rule=TraceRule.VALUES)
declare(aten.max.other, aten.min.other, recompute=Class.POINTWISE)
declare("cumsum cumprod cummax cummin logcumsumexp", recompute=Class.SCAN)
declare("_softmax _log_softmax _safe_softmax", recompute=Class.ROWS)
declare("sum mean cumsum trace", linear=("self",))
declare(aten.all.default, logic="all")
declare(aten.any.default, logic="any")


def _counts(new: Callable[[], Size], self: Any, weights: Any, minlength: int) -> TensorSpec:
    dtype = torch.int64 if weights is None else torch.float64
    if weights is not None and weights.dtype is torch.float32:
        dtype = torch.float32
    return row_major_spec((new(),), dtype, self.spec.device)


declare("bincount", unbacked=("a largest value", _counts))

Dims = int | Sequence[int] | None


def dims_of(x: Tensor, dim: Dims) -> tuple[int, ...]:
    """The dimensions of an aten argument: None or an empty list means all of them. A 0-d tensor has none."""
    rank = len(x.shape)
    if rank == 0:
        return ()
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(rank))
    return tuple(sorted({d % rank for d in ([dim] if isinstance(dim, int) else dim)}))


def count_of(x: Tensor, dims: Sequence[int]) -> Size:
    """The number of elements that a reduction over `dims` combines."""
    return numel([x.shape[d] for d in dims])


def shared(v: Value, count: Size, less: float = 0) -> Value:
    """`v / (count - less)` within rounding: a product, as correctly rounded quotients take time and registers on a
    GPU. A divisor of zero divides, and a negative one counts as zero: the result is NaN or infinite."""
    if isinstance(count, int):
        divisor = max(count - less, 0)
        return v * (1 / divisor) if divisor else v / divisor
    number = as_number(count, torch.float64)
    if less:
        number = number - less
        if bounds(count)[0] <= less:
            number = call("maximum", number, const(0, torch.float64))
    return v * cast(1 / number, v.dtype)


def as_number(size: Size, dtype: torch.dtype) -> Value:
    """A size as a number of `dtype`, which a kernel computes."""
    return cast(index_value(size), dtype)


def finish(b: Builder, x: Tensor, f: Callable[..., Value] | None = None, cost: float = 1.0) -> Tensor:
    """The reduced value after `f`, rounded to the node's dtype."""
    spec = b.spec
    if f is None:
        return b.cast(x, spec.dtype)
    return b.pointwise(f, [x], x.dtype, spec.dtype, cost, x.shape)


def _converted(b: Builder, x: Tensor) -> Tensor:
    """The operand rounded to half precision if such a result is requested, as ATen does."""
    return b.cast(x, b.spec.dtype) if opmath(b.spec.dtype) is not b.spec.dtype else x


# ---- sums


def _accumulation(kind: ReductionKind) -> Lowering:
    """The sum or product over `dim`. Integers and bools accumulate in int64 unless `dtype` says otherwise."""

    def lower(b: Builder, x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        return finish(b, b.reduce(kind, _converted(b, x), dims_of(x, dim), keepdim, opmath(b.spec.dtype)))

    return lower


declare(aten.sum.default, aten.sum.dim_IntList, lowering=_accumulation("sum"))
declare(aten.prod.default, aten.prod.dim_int, lowering=_accumulation("prod"))


@operator(aten.mean.default, aten.mean.dim)
def mean(b: Builder, x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum divided by the count, rounded once: NaN for no elements. A GPU multiplies by the inverse, as ATen's."""
    dims = dims_of(x, dim)
    total = b.reduce("sum", _converted(b, x), dims, keepdim, opmath(b.spec.dtype))
    count = count_of(x, dims)
    if b.device.type != "cpu" and not b.spec.dtype.is_complex:
        return finish(b, total, lambda v: shared(v, count))
    return finish(
        b, total, lambda v: v / (count if isinstance(count, int) else as_number(count, v.dtype)), DIVISION
    )


@operator(aten.linalg_vector_norm.default)
def vector_norm(
    b: Builder, x: Tensor, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """Orders in `VECTOR_NORMS` by their formulas, others by powers; the absolute value of a single element."""
    if ord != 0 and is_one(count_of(x, dims_of(x, dim))):
        ord = 1  # as in ATen: no power that overflows
    kind, before, after, cost = VECTOR_NORMS.get(ord) or (
        "sum",
        lambda v: call("pow", call("abs", v), const(ord, v.dtype)),
        lambda v: call("pow", v, const(1 / ord, v.dtype)),
        3 * TRANSCENDENTAL,
    )
    reduced = b.reduce(kind, x, dims_of(x, dim), keepdim, opmath(b.spec.dtype), before)
    return finish(b, reduced, after, cost)


# order -> (reduction, before it, after it, cost of that)
VECTOR_NORMS: dict[
    float, tuple[ReductionKind, Callable[[Value], Value], Callable[[Value], Value] | None, float]
] = {
    2: ("sum", lambda v: v * v, lambda v: call("sqrt", v), DIVISION),
    1: ("sum", lambda v: call("abs", v), None, 0.0),
    0: (
        "sum",
        lambda v: where(compare("ne", v, const(0, v.dtype)), const(1, v.dtype), const(0, v.dtype)),
        None,
        0.0,
    ),
    float("inf"): ("max", lambda v: call("abs", v), None, 0.0),
    float("-inf"): ("min", lambda v: call("abs", v), None, 0.0),
}


@operator(aten.norm.Scalar, aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype, aten.norm.ScalarOpt_dtype)
def norm(
    b: Builder, x: Tensor, p: float | None = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """The vector norm of order p (2 for None) over `dim`, of x converted to `dtype`."""
    return vector_norm(b, x, 2 if p is None else p, dim, keepdim)


@operator(aten.dist.default)
def dist(b: Builder, x: Tensor, y: Tensor, p: float = 2) -> Tensor:
    """The vector norm of order p of x - y."""
    compute = opmath(b.spec.dtype)
    shape = broadcast_shape([x.shape, y.shape])
    return vector_norm(b, b.pointwise(lambda u, v: u - v, [x, y], compute, compute, 1.0, shape), p)


@operator(aten.trace.default)
def trace(b: Builder, x: Tensor) -> Tensor:
    """The sum of the diagonal, in float64 for floats as in ATen."""
    rows, columns = x.shape
    size = rows if rows == columns else min(all_static(rows, columns))
    diagonal = b.view(x, (size,), lambda i: (i[0], i[0]))
    return finish(b, b.reduce("sum", diagonal, (0,), False, accumulation(b.spec.dtype)))


@operator(aten.logsumexp.default)
def logsumexp(b: Builder, x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """log of the sum of exp(x - max), plus max; an infinite max counts as 0."""
    dims, compute = dims_of(x, dim), opmath(b.spec.dtype)

    def finite(m: Value) -> Value:
        return where(test("isinf", m), const(0, m.dtype), m)

    top = b.reduce("max", x, dims, True, compute)
    exponent = b.pointwise(
        lambda v, m: call("exp", v - finite(m)), [x, top], compute, compute, TRANSCENDENTAL + 2, x.shape
    )
    total = b.reduce("sum", exponent, dims, True, compute)
    result = b.pointwise(
        lambda s, m: call("log", s) + finite(m),
        [total, top],
        compute,
        compute,
        TRANSCENDENTAL + 2,
        total.shape,
    )
    return finish(b, dropped(b, result, dims, keepdim))


# ---- extremes


@operator(aten.aminmax.default)
def aminmax(b: Builder, x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """(smallest, largest): NaN wins."""
    dims = dims_of(x, dim)
    return b.cast(b.reduce("min", x, dims, keepdim), x.dtype), b.cast(
        b.reduce("max", x, dims, keepdim), x.dtype
    )


def _reduction(kind: ReductionKind, compute: torch.dtype | None = None) -> Lowering:
    def lower(b: Builder, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
        return finish(b, b.reduce(kind, x, dims_of(x, dim), keepdim, compute))

    return lower


def _extreme(kind: ReductionKind, position: ReductionKind) -> Lowering:
    """(values, int64 positions along `dim`)."""

    def lower(b: Builder, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        dims = dims_of(x, dim)
        return b.cast(b.reduce(kind, x, dims, keepdim), x.dtype), b.reduce(position, x, dims, keepdim)

    return lower


# NaN wins; of equal elements the first has the position.
declare(aten.amax.default, aten.max.default, lowering=_reduction("max"))
declare(aten.amin.default, aten.min.default, lowering=_reduction("min"))
declare(aten.argmax.default, lowering=_reduction("argmax"))
declare(aten.argmin.default, lowering=_reduction("argmin"))
declare(aten.max.dim, lowering=_extreme("max", "argmax"))
declare(aten.min.dim, lowering=_extreme("min", "argmin"))
# NaN is true; the result has the node's dtype (uint8 of uint8, else bool).
declare(aten.any.default, aten.any.dim, aten.any.dims, lowering=_reduction("any", torch.bool))
declare(aten.all.default, aten.all.dim, aten.all.dims, lowering=_reduction("all", torch.bool))


# ---- moments


def moments(
    b: Builder, x: Tensor, dims: Sequence[int], correction: float, compute: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(mean, variance) over `dims` in `compute`, dimensions retained: first an approximate mean, then the deviations from
    it, whose own mean corrects both (Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983)."""
    count, rough = count_of(x, dims), opmath(x.dtype)
    # Shared before they are added up: of the whole sum more might be infinite.
    about = b.reduce("sum", x, dims, True, rough, lambda v: shared(v, count))
    deviation = b.pointwise(lambda u, v: u - v, [x, about], compute, compute, 1.0, x.shape)
    rest = b.reduce("sum", deviation, dims, True, compute)
    squares = b.reduce("sum", deviation, dims, True, compute, lambda v: v * v)

    def center(near: Value, left: Value) -> Value:
        mean = near + shared(left, count)
        return where(compare("eq", left, left), mean, near)  # `left` is NaN beside an infinite mean

    def variance(square: Value, left: Value) -> Value:
        exact = call("maximum", square - shared(left * left, count), const(0, compute))
        return shared(exact, count, correction)

    return (
        b.pointwise(center, [about, rest], compute, compute, 3.0, about.shape),
        b.pointwise(variance, [squares, rest], compute, compute, 4.0, about.shape),
    )


def dropped(b: Builder, x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    """x without the (size 1) dimensions `dims`, unless they are retained."""
    if keepdim or not dims:
        return x
    kept = [d for d in range(len(x.shape)) if d not in dims]

    def index(i: Index) -> Index:
        full: list[Size] = [0] * len(x.shape)
        for d, e in zip(kept, i):
            full[d] = e
        return tuple(full)

    return b.copy(x, [x.shape[d] for d in kept], index)


def _moments_over(
    b: Builder, x: Tensor, dim: Dims, correction: float | None, keepdim: bool
) -> tuple[Tensor, Tensor]:
    """(mean, variance) in float64 with the operator's shape; the correction defaults to 1."""
    dims = dims_of(x, dim)
    mean, variance = moments(b, x, dims, 1 if correction is None else correction, torch.float64)
    return dropped(b, mean, dims, keepdim), dropped(b, variance, dims, keepdim)


def _running_mean(b: Builder, x: Tensor, mean: Tensor, dim: Dims) -> Tensor:
    """The mean of Welford's algorithm, rounded to the dtype of x: NaN if infinite, except for one element."""

    def f(v: Value) -> Value:
        return where(test("isinf", v), const(math.nan, v.dtype), v)

    if is_one(count_of(x, dims_of(x, dim))):
        return b.cast(mean, x.dtype)
    return b.pointwise(f, [mean], mean.dtype, x.dtype, 2.0, mean.shape)


@operator(aten.var.correction)
def var(
    b: Builder, x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    """Squared deviations over count - correction (1 by default): NaN or inf where that is 0 or less."""
    _, variance = _moments_over(b, x, dim, correction, keepdim)
    return finish(b, variance)


@operator(aten.std.correction)
def std(
    b: Builder, x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    """The square root of the variance before it is rounded."""
    _, variance = _moments_over(b, x, dim, correction, keepdim)
    return finish(b, variance, lambda v: call("sqrt", v), DIVISION)


@operator(aten.std_mean.correction)
def std_mean(
    b: Builder, x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """(standard deviation, mean)."""
    mean, variance = _moments_over(b, x, dim, correction, keepdim)
    root = b.pointwise(
        lambda v: call("sqrt", v), [variance], variance.dtype, x.dtype, DIVISION, variance.shape
    )
    return root, _running_mean(b, x, mean, dim)


def _unbiased(lowering: Lowering) -> tuple[Lowering, Lowering]:
    """Lowerings of the overloads `default` and `dim`, whose correction is 1 if `unbiased`, else 0."""

    def over(b: Builder, x: Tensor, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> Any:
        return lowering(b, x, dim, correction=int(unbiased), keepdim=keepdim)

    return lambda b, x, unbiased=True: over(b, x, None, unbiased), over


for _packet, _lowering in ((aten.std, std), (aten.std_mean, std_mean)):
    for _overload, _lower in zip((_packet.default, _packet.dim), _unbiased(_lowering)):
        declare(_overload, lowering=_lower)


@operator(aten.var_mean.correction)
def var_mean(
    b: Builder, x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """(variance, mean)."""
    mean, variance = _moments_over(b, x, dim, correction, keepdim)
    return b.cast(variance, x.dtype), _running_mean(b, x, mean, dim)


# ---- scans and soft maxima


def _scan(kind: ReductionKind) -> Lowering:
    def lower(b: Builder, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor | None:
        if not x.shape:
            return None
        dim %= len(x.shape)
        typed = b.cast(x, b.spec.dtype)
        return typed if x.shape[dim] == 1 else b.scan(kind, typed, dim)

    return lower


declare(aten.cumsum.default, lowering=_scan("sum"), out=aten.cumsum.out)
declare(aten.cumprod.default, lowering=_scan("prod"), out=aten.cumprod.out)


@operator(aten._softmax.default, out=aten._softmax.out)
def softmax(b: Builder, x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """exp(x - max) / sum: in the dtype ATen computes in, rounded once."""
    exponent, total, _ = _shifted(b, x, dim)
    return b.pointwise(lambda e, s: e / s, [exponent, total], exponent.dtype, cost=DIVISION)


@operator(aten._safe_softmax.default)
def safe_softmax(b: Builder, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor | None:
    """Like softmax, but zeros for rows in which everything is -inf (fully masked)."""
    if dtype not in (None, x.dtype):
        return None
    exponent, total, top = _shifted(b, x, dim)

    def f(e: Value, s: Value, m: Value) -> Value:
        empty = compare("eq", m, const(float("-inf"), m.dtype))
        return where(empty, const(0, e.dtype), e / s)

    return b.pointwise(f, [exponent, total, top], exponent.dtype, cost=DIVISION + 2)


@operator(aten._log_softmax.default, out=aten._log_softmax.out)
def log_softmax(b: Builder, x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """x - max - log(sum of exp(x - max)), rounded once."""
    compute = opmath(x.dtype)
    _, total, top = _shifted(b, x, dim)
    result = b.pointwise(
        lambda v, m, s: v - m - call("log", s), [x, top, total], compute, cost=TRANSCENDENTAL + 2
    )
    if b.device.type != "cpu" and x.shape and result.dtype is compute and isinstance(result.definition, Map):
        log = b.pointwise(lambda s: call("log", s), [total], compute, compute, TRANSCENDENTAL, total.shape)
        less = dim % len(x.shape), b.cast(x, compute), (top, log)
        result.definition = replace(result.definition, less=less)
    return result


def _row_statistics(make: Make, x: Node, dim: int, half_to_float: bool) -> tuple[Node, ...]:
    """The maximum of each row, and the logarithm of its sum of exponentials less the maximum."""
    wide = converted(make, x, opmath(x.spec.dtype))
    top = make(aten.amax.default, wide, [dim], True)
    exponentials = make(aten.exp.default, make(aten.sub.Tensor, wide, top))
    return top, make(aten.log.default, make(aten.sum.dim_IntList, exponentials, [dim], True))


def _less_statistics(make: Make, arguments: dict[str, Any], items: dict[int, Node]) -> Node:
    wide = converted(make, arguments["self"], opmath(arguments["self"].spec.dtype))
    return make(aten.sub.Tensor, make(aten.sub.Tensor, wide, items[1]), items[2])


declare(aten._log_softmax.default, statistics=_row_statistics, from_statistics=_less_statistics)


def _shifted(b: Builder, x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """(exp(x - max), its sum, the maximum), dimensions kept."""
    dims, compute = dims_of(x, dim), opmath(x.dtype)
    top = b.reduce("max", x, dims, True, compute)
    exponent = b.pointwise(
        lambda v, m: call("exp", v - m), [x, top], compute, compute, TRANSCENDENTAL + 1, x.shape
    )
    return exponent, b.reduce("sum", exponent, dims, True, compute), top


# ---- shapes on a CPU


def _var_layout(
    x: torch.Tensor, dim: Sequence[int] | None = None, *, keepdim: bool = False, **__: Any
) -> Any:
    if not x.is_floating_point():
        return NotImplemented
    return of_cpp(aten.mean.dim, (x, dim, keepdim), {})


def _var_mean_layout(
    x: torch.Tensor, dim: Sequence[int] | None = None, *, keepdim: bool = False, **__: Any
) -> Any:
    mean = _var_layout(x, dim, keepdim=keepdim)
    return mean if mean is NotImplemented else (mean, like(mean))


def _safe_softmax_layout(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    return fresh(x.shape, dtype or x.dtype) if x.is_floating_point() and x.dim() else NotImplemented


declare(aten.var_mean.correction, layout=_var_mean_layout)
declare(aten.var.correction, layout=_var_layout)
declare(aten._safe_softmax.default, layout=_safe_softmax_layout)

declare(aten.argmax.default, aten.argmin.default, index_bound=of_all)
declare(aten.max.dim, aten.min.dim, aten.median.dim, index_bound=along(1))
declare(aten.cummax.default, aten.cummin.default, index_bound=along(1))
