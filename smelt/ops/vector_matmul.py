"""Products of a single row: a dot product per column, bound by reading the weight once, so reductions serve.

Only if products are generated, the weight is contiguous along the sums and the dtype needs no intermediate rounding;
other products stay ATen calls.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from smelt.loops.kernel_ir import Value
from smelt.loops.lazy_tensor import Index, Load, Tensor
from smelt.loops.lowering_builder import Builder
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import declare, operator
from smelt.shapes.expr import Size, bounds, numel

aten = torch.ops.aten

declare(
    "mm addmm bmm baddbmm addbmm addmv mv dot vdot addr linear matmul _cdist_forward _addmm_activation _trilinear einsum",
    recompute=Class.PRODUCT,
)
declare("addmm baddbmm", any_size=True)
declare("vdot", linear=("self", "other"))
declare("dot", linear=("self", "tensor"))
declare("mm bmm", linear=("self", "mat2"))
declare("mv", linear=("self", "vec"))
declare("addmm", linear=("self mat1", "self mat2"))
declare("baddbmm", linear=("self batch1", "self batch2"))
declare(aten.bmm.default, out=aten.bmm.out)
declare(aten.baddbmm.default, out=aten.baddbmm.out)
declare(aten.mv.default, out=aten.mv.out)
declare(aten.addmv.default, out=aten.addmv.out)


@operator(aten.mm.default, out=aten.mm.out)
def mm(b: Builder, x: Tensor, y: Tensor) -> Tensor | None:
    """x[1, k] @ y[k, n] with the columns of y contiguous."""
    if not is_row_product(b, x, y) or x.shape[0] != 1 or y.spec.stride[0] != 1:
        return None
    return dots(b, x, y, lambda column, k: (k, column))


@operator(aten.addmm.default, out=aten.addmm.out)
def addmm(
    b: Builder, bias: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor | None:
    """If `mm` applies, beta and alpha are 1 and the bias has the dtype of x; else None."""
    product = mm(b, x, y) if beta == alpha == 1 and bias.dtype is x.dtype else None
    return None if product is None else b.pointwise(lambda v, c: v + c, [product, bias])


def is_row_product(b: Builder, x: Tensor, y: Tensor) -> bool:
    """Whether dtypes and sizes are suitable. The caller knows that x is one row, and the layout of y."""
    limits = b.costs.products
    if limits is None or x.dtype is not y.dtype or x.dtype not in (torch.float32, torch.float64):
        return False
    row, whole = (bounds(n)[1] * x.dtype.itemsize for n in (x.shape[1], numel(y.shape)))
    return row <= limits.row_bytes or whole <= limits.row_cached_bytes


def dots(b: Builder, x: Tensor, y: Tensor, entry: Callable[[Size, Size], Index]) -> Tensor:
    """result[0, n, ...] = sum over k of x[0, k, ...] * y[entry(n, k)]; trailing dimensions have size 1."""
    rest = (0,) * (len(x.shape) - 2)

    def body(load: Load, i: Index, position: Index) -> Value:
        (k,) = position
        return load(x, (0, k, *rest)) * load(y, entry(i[1], k))

    return b.reduction("sum", b.spec.shape, x.dtype, (x, y), (x.shape[1],), body, 2.0)
