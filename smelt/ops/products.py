"""Products of a single row: a dot product for each column, bound by reading the weight once, so reductions serve.

Only where the weight lies along the sums and the dtype needs no rounding in between; the rest stays with ATen. Zen 4,
one thread, float32, time over ATen's: 0.3 to 0.7 for weights that a cache holds; beyond, 0.7 (rows of 1000 elements),
0.9 (2000), 1.0 to 1.7 (4000 and more: ATen reads several rows side by side).
"""

from __future__ import annotations

from typing import Any

import torch

from smelt.graph.sizes import bounds, numel
from smelt.loops.builder import Builder
from smelt.loops.ir import Value
from smelt.loops.tensor import Index, Load, Reduce, Tensor
from smelt.ops.recompute import Class
from smelt.ops.registry import declare, operator

aten = torch.ops.aten

declare(
    "mm addmm bmm baddbmm addbmm addmv mv dot vdot addr linear matmul _cdist_forward _addmm_activation _trilinear einsum",
    recompute=Class.PRODUCT,
)
declare("dot vdot", linear=("self", "other"))
declare("mm bmm", linear=("self", "mat2"))
declare("mv", linear=("self", "vec"))
declare("addmm", linear=("self mat1", "self mat2"))
declare("baddbmm", linear=("self batch1", "self batch2"))
declare(aten.bmm.default, out=aten.bmm.out)
declare(aten.baddbmm.default, out=aten.baddbmm.out)
declare(aten.mv.default, out=aten.mv.out)
declare(aten.addmv.default, out=aten.addmv.out)

CACHED_BYTES = 16 << 20  # of a weight that may be in a cache
ROW_BYTES = 8 << 10  # of the rows of a weight that is not


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
    product = mm(b, x, y) if beta == alpha == 1 and bias.dtype is x.dtype else None
    return None if product is None else b.pointwise(lambda v, c: v + c, [product, bias])


def is_row_product(b: Builder, x: Tensor, y: Tensor) -> bool:
    """Whether dtypes and sizes suit; that x is one row, and how y lies in memory, is for the caller to know."""
    if x.dtype is not y.dtype or x.dtype not in (torch.float32, torch.float64) or b.device.type != "cpu":
        return False
    row, whole = (bounds(n)[1] * x.dtype.itemsize for n in (x.shape[1], numel(y.shape)))
    return row <= ROW_BYTES or whole <= CACHED_BYTES


def dots(b: Builder, x: Tensor, y: Tensor, entry: Any) -> Tensor:
    """result[0, n, ...] = sum over k of x[0, k, ...] * y[entry(n, k)]; trailing dimensions have size 1."""
    rest = (0,) * (len(x.shape) - 2)

    def body(load: Load, i: Index, position: Index) -> Value:
        (k,) = position
        return load(x, (0, k, *rest)) * load(y, entry(i[1], k))

    return b.tensor(b.spec.shape, x.dtype, Reduce((x, y), "sum", (x.shape[1],), body, 2.0))
