"""ATen calls that are matrix products: mm, addmm, bmm, baddbmm, and 1x1 convolutions.

`MATRIX_CALLS` describes an extern as a `MatrixCall`, or says why it is not one; `plan_product` describes an operator
on matrices (or stacks of them) as the `Product` that computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from smelt.codegen.call_selection.call_requests import (
    Argument,
    NotGenerated,
    Request,
    integers,
    is_dense,
    tensor,
    with_bias,
)
from smelt.codegen.llvm.gemm.epilogue import BATCH, COL, NO_EPILOGUE, ROW, Epilogue, refusal, rewrite
from smelt.codegen.llvm.gemm.gemm_spec import Matrix, Product
from smelt.graph.ir import TensorSpec
from smelt.ops.convolution_settings import Convolution
from smelt.schedule.schedule import BufRef, ExternItem, Schedule
from smelt.shapes.expr import Size, Sym, subs
from smelt.torch_private import OpOverload

aten = torch.ops.aten


# Of the specs of A, B and the result, and an epilogue: why there is no code for such a product.
Refuse = Callable[[Sequence[TensorSpec], Epilogue], str | None]


# ---- externs as calls on matrices


@dataclass(frozen=True)
class MatrixCall:
    """An extern as `op(*args)` for `plan_product`: tensors of `args` are described as matrices, `buffers[i]` is the
    buffer of args[i]. `result`: the extern's own result as a matrix or stack of matrices."""

    op: OpOverload
    args: tuple[Any, ...]
    buffers: tuple[int | None, ...]
    result: TensorSpec

    def plan(
        self, out: TensorSpec, name: str, epilogue: Epilogue, refuse: Refuse | None = None
    ) -> Request | str:
        """The product that computes `epilogue` of the extern's result into `out`, whose shape is `result`'s; or the
        reason why there is none. `refuse`: as for `plan_product`."""
        return plan_product(self.op, self.args, out, name, epilogue, refuse)

    def without_factors(self) -> tuple[MatrixCall, Any, Any]:
        """The call with factors of 1, and its factors of the bias (beta) and of the product (alpha)."""
        form = _FORMS.get(self.op)
        if form is None or form.scales is None:
            return self, 1, 1
        beta, alpha, *_ = (*self.args[form.scales :], 1, 1)
        return replace(self, args=(*self.args[: form.scales], 1, 1)), beta, alpha


def _matrix_call(schedule: Schedule, item: ExternItem, arguments: Sequence[Any]) -> MatrixCall:
    args = tuple(schedule.buffers[a.id].spec if isinstance(a, BufRef) else a for a in arguments)
    buffers = tuple(a.id if isinstance(a, BufRef) else None for a in arguments)
    return MatrixCall(item.op, args, buffers, schedule.buffers[item.outs[0]].spec)  # type: ignore[index]


def _convolution_call(schedule: Schedule, item: ExternItem, arguments: Sequence[Any]) -> MatrixCall | str:
    """A 1x1 convolution without stride or padding. For a channels-first result, W[co, ci] @ X[b][ci, hw]; for a
    channels-last one, X[bhw, ci] @ W[co, ci].T."""
    x, weight, bias, *settings = arguments
    c = Convolution(*settings)
    xs, ws = schedule.buffers[x.id].spec, schedule.buffers[weight.id].spec
    ys = schedule.buffers[item.outs[0]].spec  # type: ignore[index]
    if c.transposed or c.groups != 1 or any(n != 1 for n in (*c.stride, *ws.shape[2:])):
        return "not a 1x1 convolution"
    if any((*c.padding, *c.output_padding)) or len(xs.shape) < 3:
        return "a padded convolution"
    step = _pixel_stride(xs)
    if step is None:
        return "an input whose pixels are not evenly spaced"
    b, ci, co, pixels = xs.shape[0], xs.shape[1], ws.shape[0], prod(xs.shape[2:])
    w = replace(ws, shape=(co, ci), stride=ws.stride[:2])
    vector = None if bias is None else schedule.buffers[bias.id].spec
    bias_id = None if bias is None else bias.id
    if is_dense(ys):
        xm = replace(xs, shape=(b, ci, pixels), stride=(xs.stride[0], xs.stride[1], step))
        ym = replace(ys, shape=(b, co, pixels), stride=(co * pixels, pixels, 1))
        if vector is None:
            return MatrixCall(aten.matmul.default, (w, xm), (weight.id, x.id), ym)
        column = replace(vector, shape=(co, 1), stride=(vector.stride[0], 0))
        return MatrixCall(aten.baddbmm.default, (column, w, xm), (bias_id, weight.id, x.id), ym)
    if is_dense(_channels_last(ys)) and (b == 1 or xs.stride[0] == pixels * step):
        xm = replace(xs, shape=(b * pixels, ci), stride=(step, xs.stride[1]))
        ym = replace(ys, shape=(b * pixels, co), stride=(co, 1))
        return MatrixCall(aten.linear.default, (xm, w, vector), (x.id, weight.id, bias_id), ym)
    return "a result that is neither channels-first nor channels-last"


def _pixel_stride(spec: TensorSpec) -> Size | None:
    """The stride of an image's pixels as one dimension, if they are evenly spaced."""
    step: Size | None = None
    count: Size = 1
    for size, stride in zip(reversed(spec.shape[2:]), reversed(spec.stride[2:])):
        if size == 1:
            continue
        if step is None:
            step = stride
        elif stride != step * count:
            return None
        count = count * size
    return 1 if step is None else step


def _channels_last(spec: TensorSpec) -> TensorSpec:
    """The same memory with the channels as the last dimension."""

    def moved(sizes: tuple[Size, ...]) -> tuple[Size, ...]:
        return (sizes[0], *sizes[2:], sizes[1])

    return replace(spec, shape=moved(spec.shape), stride=moved(spec.stride))


MATRIX_CALLS: dict[OpOverload, Callable[[Schedule, ExternItem, Sequence[Any]], MatrixCall | str]] = {
    aten.mm.default: _matrix_call,
    aten.addmm.default: _matrix_call,
    aten.bmm.default: _matrix_call,
    aten.baddbmm.default: _matrix_call,
    aten.convolution.default: _convolution_call,
}


# ---- calls on matrices as products


@dataclass(frozen=True)
class _Form:
    """How to read an operator's arguments: positions of A, B, bias; where beta and alpha begin. `flatten`: A's leading
    dimensions are rows, if B has none; `b_transposed`: B is W[N, K]."""

    a: int
    b: int
    bias: int | None = None
    scales: int | None = None
    flatten: bool = False
    b_transposed: bool = False


_FORMS: dict[OpOverload, _Form] = {
    aten.mm.default: _Form(0, 1),
    aten.bmm.default: _Form(0, 1),
    aten.addmm.default: _Form(1, 2, bias=0, scales=3),
    aten.baddbmm.default: _Form(1, 2, bias=0, scales=3),
    aten.matmul.default: _Form(0, 1, flatten=True),
    aten.linear.default: _Form(0, 1, bias=2, flatten=True, b_transposed=True),
}


def position_of_a(op: OpOverload) -> int | None:
    """The position of A among the arguments of an operator that takes A and B, adjacent and unchanged, or None."""
    form = _FORMS.get(op)
    return None if form is None or form.flatten or form.b != form.a + 1 else form.a


def plan_product(
    op: OpOverload,
    args: Sequence[Argument],
    out: TensorSpec,
    name: str,
    epilogue: Epilogue = NO_EPILOGUE,
    refuse: Refuse | None = None,
) -> Request | str:
    """The product that computes `epilogue(op(*args))` into `out`, whose memory overlaps no operand; or the reason why
    there is none.

    `args`: all arguments in the schema's order, tensors as their specs; trailing defaults may be missing. In
    `epilogue` the product is the result of `op`, bias included; ROW and COL index `out` as a matrix (leading
    dimensions that a linear layer flattens are part of ROW), BATCH its batch dimensions, flat. `refuse`: the products
    without code; by default the CPU's.
    """
    try:
        if op in _FORMS:
            return _matrix_product(_FORMS[op], args, out, name, epilogue, refuse or refused_on_cpu)
    except NotGenerated as refused:
        return str(refused)
    return f"{op} is not a matrix product"


def _matrix_product(
    form: _Form, args: Sequence[Argument], out: TensorSpec, name: str, epilogue: Epilogue, refuse: Refuse
) -> Request:
    if form.scales is not None and any(scale != 1 for scale in args[form.scales :]):
        raise NotGenerated("beta or alpha is not 1")
    a, b, c = _stack(args[form.a]), _stack(args[form.b]), _stack(out)
    if form.flatten and not b.batch:
        a, c = a.flattened(), c.flattened()
    if form.b_transposed:
        b = b.transposed()
    operands: tuple[int, ...] = (form.a, form.b)
    if form.bias is not None and len(args) > form.bias and args[form.bias] is not None:
        operands = (*operands, form.bias)
        epilogue = with_bias(epilogue, args[form.bias], _moved_indices(c), tensor(args[form.a]).dtype)
    return _request(a, b, c, operands, args, out, name, epilogue, refuse)


def _request(
    a: _Stack,
    b: _Stack,
    c: _Stack,
    operands: tuple[int, ...],
    args: Sequence[Argument],
    out: TensorSpec,
    name: str,
    epilogue: Epilogue,
    refuse: Refuse,
) -> Request:
    if c.col != 1:  # C is column-major: compute its transpose
        a, b, c = b.transposed(), a.transposed(), c.transposed()
        operands = (operands[1], operands[0], *operands[2:])
        epilogue = _moved(epilogue, {ROW: COL, COL: ROW})
    if c.col != 1:
        raise NotGenerated(f"neither rows nor columns of the result are contiguous: {out.stride}")
    specs = [tensor(args[operands[0]]), tensor(args[operands[1]]), out]
    reason = refuse(specs, epilogue)
    if reason is not None:
        raise NotGenerated(reason)
    return Request(_product(name, specs[0].dtype, a, b, c, epilogue), operands)


def refused_on_cpu(specs: Sequence[TensorSpec], epilogue: Epilogue) -> str | None:
    """Why a CPU has no code for a product of A, B and this result; None if it has."""
    dtype = specs[-1].dtype
    if any(s.dtype != dtype for s in specs) or dtype not in (torch.float32, torch.float64):
        return f"dtypes {[s.dtype for s in specs]}"
    if any(s.device.type != "cpu" for s in specs):
        return f"device {specs[-1].device}"
    return refusal(epilogue, dtype)


def _product(name: str, dtype: torch.dtype, a: _Stack, b: _Stack, c: _Stack, epilogue: Epilogue) -> Product:
    if len(c.batch) > 2:
        raise NotGenerated(f"{len(c.batch)} batch dimensions")
    outer, inner, *_ = (*c.batch, 1, 1)
    if 0 in (outer, inner, c.rows, c.cols):
        raise NotGenerated("an empty result")
    at, bt, ct = (s.matrix(c.batch) for s in (a, b, c))
    return Product(name, dtype, (outer, inner), c.rows, c.cols, a.cols, at, bt, ct, epilogue)


@dataclass(frozen=True)
class _Stack:
    """Matrices in memory: sizes and strides of the batch, rows and columns. A dimension of one element has stride 1."""

    batch: tuple[int, ...]
    strides: tuple[int, ...]
    rows: int
    row: int
    cols: int
    col: int

    def transposed(self) -> _Stack:
        return _Stack(self.batch, self.strides, self.cols, self.col, self.rows, self.row)

    def flattened(self) -> _Stack:
        """The batch merged into the rows."""
        rows, row = self.rows, self.row
        for size, stride in zip(reversed(self.batch), reversed(self.strides)):
            if size == 1:
                continue
            if rows != 1 and stride != rows * row:
                raise NotGenerated("leading dimensions do not join")
            rows, row = rows * size, stride if rows == 1 else row
        return _Stack((), (), rows, row, self.cols, self.col)

    def matrix(self, batch: tuple[int, ...]) -> Matrix:
        """The operand of a product over `batch` (at most two dimensions), to which this broadcasts."""
        missing = len(batch) - len(self.batch)
        sizes, strides = (1,) * missing + self.batch, (0,) * missing + self.strides
        steps = [0 if have == 1 else stride for have, stride in zip(sizes, strides)]
        outer, inner, *_ = (*steps, 0, 0)
        return Matrix(self.row, self.col, outer, inner)


def _stack(argument: Argument) -> _Stack:
    spec = tensor(argument)
    if len(spec.shape) < 2:
        raise NotGenerated("a vector operand")
    shape, stride = integers(spec.shape), integers(spec.stride)
    stride = tuple(1 if size == 1 else step for size, step in zip(shape, stride))
    return _Stack(shape[:-2], stride[:-2], shape[-2], stride[-2], shape[-1], stride[-1])


def _moved_indices(c: _Stack) -> list[Size]:
    """The index of each dimension of `c`."""
    inner = c.batch[1] if len(c.batch) > 1 else 1
    return [*(BATCH // inner, BATCH % inner)[: len(c.batch)], ROW, COL]


def _moved(epilogue: Epilogue, positions: dict[Sym, Size]) -> Epilogue:
    """The epilogue with other indices for BATCH, ROW and COL."""
    if epilogue.value is None:
        return epilogue
    value = rewrite(epilogue.value, lambda b, e: (b, subs(e, positions)), None)
    return Epilogue(epilogue.inputs, value)
