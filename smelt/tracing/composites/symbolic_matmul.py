"""`matmul` and `linear` with symbolic sizes, as torch's C++ code computes them: by `mm` of folded rows, or `bmm`.

Before 2.13 that code specializes sizes; the formulas here are those of 2.11. Other calls are left to torch, also wrong
ones, which raise eager's errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F

from smelt.ops.node_builders import UNTRACKED_VIEW
from smelt.shapes.expr import Size
from smelt.tracing.record.call_arguments import Args, Kwargs
from smelt.tracing.symbolic.sym_numbers import SYMBOLIC, size_of
from smelt.tracing.symbolic.symbolic_numbers import Symbols

aten = torch.ops.aten

SPECIALIZES_SIZES = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


def _matmul(args: Args, kwargs: Kwargs) -> Any:
    operands = dict(zip(("input", "other"), args), **kwargs)
    if "self" in operands:
        operands["input"] = operands.pop("self")
    if operands.keys() != {"input", "other"}:
        return NotImplemented
    symbols = symbols_in(*operands.values())
    return NotImplemented if symbols is None else product(symbols, operands["input"], operands["other"])


def _matmul_from_right(args: Args, kwargs: Kwargs) -> Any:
    return _matmul(args[::-1], kwargs)


def _linear(args: Args, kwargs: Kwargs) -> Any:
    operands = dict(zip(("input", "weight", "bias"), args), **kwargs)
    x, weight, bias = (operands.pop(name, None) for name in ("input", "weight", "bias"))
    symbols = symbols_in(x, weight, *([] if bias is None else [bias]))
    if operands or symbols is None or x.dim() < 3 or not 1 <= weight.dim() <= 2:
        return NotImplemented
    if not _are_equal(symbols, shape_of(x)[-1], shape_of(weight)[-1]):
        return NotImplemented
    if bias is not None and (bias.dim() != 1 or x.is_contiguous()):
        return NotImplemented  # one `addmm`, for which torch keeps symbolic sizes
    x = cast(x)
    if (weight.requires_grad and torch.is_grad_enabled()) or _is_foldable(symbols, x):
        rows = F.linear(_as_rows(symbols, x), weight)
        result = _unfolded(symbols, rows, (*shape_of(x)[:-1], *shape_of(weight)[:-1]))
    else:
        result = product(symbols, x, cast(weight).t())
    return result if bias is None else result + cast(bias)


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """`F.linear` inside another composite, where the function mode does not see the call."""
    out = _linear((x, weight, bias), {}) if SPECIALIZES_SIZES else NotImplemented
    return F.linear(x, weight, bias) if out is NotImplemented else out


def symbols_in(*operands: Any) -> Symbols | None:
    """The `Symbols` of the operands' sizes; None where they have no symbols, or are no tensors."""
    if not all(isinstance(x, torch.Tensor) for x in operands):
        return None
    symbolic = (n for x in operands for n in x.shape if type(n) in SYMBOLIC)
    return next((n.node.symbols for n in symbolic), None)


def shape_of(x: torch.Tensor) -> tuple[Size, ...]:
    """The sizes of a fake, or of a transform's wrapper of one."""
    return tuple(map(size_of, x.shape))


def product(symbols: Symbols, a: Any, b: Any) -> Any:
    """`a @ b`; NotImplemented where torch's own code keeps the sizes symbolic, or raises."""
    if min(a.dim(), b.dim()) == 0 or max(a.dim(), b.dim()) < 3:
        return NotImplemented
    batch = _broadcast(symbols, shape_of(a)[:-2], shape_of(b)[:-2])
    if batch is None or not _are_equal(symbols, shape_of(a)[-1], shape_of(b)[-2 if b.dim() > 1 else -1]):
        return NotImplemented
    a, b = cast(a), b if a.dim() > 2 and _is_cached_by_autocast(b) else cast(b)
    if a.dim() == b.dim() == 3:  # a single matrix: as torch does for tensors with modes or subclasses
        if shape_of(a)[0] == 1 != shape_of(b)[0]:
            a = a.squeeze(0)
        elif shape_of(b)[0] == 1 != shape_of(a)[0]:
            b = b.squeeze(0)
    if _folds(symbols, a, b):
        return _folded(symbols, a, b)
    return _batched(symbols, a, b, batch)


def _folds(symbols: Symbols, a: Any, b: Any) -> bool:
    """Whether the rows of all matrices of one operand are multiplied at once by the other."""
    if min(a.dim(), b.dim()) > 2:
        return False
    if (b if a.dim() >= b.dim() else a).requires_grad:  # otherwise its gradient would have the batch's size
        return True
    return a.dim() != 2 and _is_foldable(symbols, a if a.dim() > b.dim() else b.mT)


def _is_foldable(symbols: Symbols, x: Any) -> bool:
    """Whether all dimensions but the last can be viewed as one."""
    shape, stride = shape_of(x), tuple(map(size_of, x.stride()))
    if 0 in shape:
        return True
    return all(symbols.compare("eq", stride[i], stride[i + 1] * shape[i + 1]) for i in range(len(shape) - 2))


def _folded(symbols: Symbols, a: Any, b: Any) -> Any:
    is_transposed = b.dim() > a.dim()
    x, y = (b.mT, a.t() if a.dim() == 2 else a) if is_transposed else (a, b)
    rows = _as_rows(symbols, x)
    rows = rows.mv(y) if y.dim() == 1 else rows.mm(y)
    result = _unfolded(symbols, rows, (*shape_of(x)[:-1], *shape_of(y)[1:]))
    return result.mT.contiguous() if is_transposed and y.dim() == 2 else result


def _as_rows(symbols: Symbols, x: Any) -> Any:
    return x.reshape(_numbers(symbols, (math.prod(shape_of(x)[:-1]), shape_of(x)[-1])))


def _unfolded(symbols: Symbols, x: Any, shape: Sequence[Size]) -> Any:
    return UNTRACKED_VIEW(x, _numbers(symbols, shape))


def _batched(symbols: Symbols, a: Any, b: Any, batch: Sequence[Size]) -> Any:
    """One product of matrices per batch index."""
    count = math.prod(batch)

    def matrices(x: Any, shape: Sequence[Size]) -> Any:
        expanded = x.expand(_numbers(symbols, (*batch, *shape)))
        return expanded.reshape(_numbers(symbols, (count, *shape)))

    rows = shape_of(a)[-2:-1]
    left = matrices(a, (*(rows or (1,)), shape_of(a)[-1]))
    right = matrices(b, shape_of(b)[-2:])
    if b.dim() == 1:
        result = left.bmm(right.unsqueeze(2)).squeeze(-1)
    else:
        result = left.bmm(right)
    return _unfolded(symbols, result, (*batch, *rows, *(shape_of(b)[-1:] if b.dim() > 1 else ())))


def _broadcast(symbols: Symbols, a: Sequence[Size], b: Sequence[Size]) -> list[Size] | None:
    """The broadcast batch shape; None where the batches do not broadcast."""
    pairs = list(zip_longest(reversed(a), reversed(b), fillvalue=1))
    if not all(1 in pair or _are_equal(symbols, *pair) for pair in pairs):
        return None
    return [n if m == 1 else m for n, m in reversed(pairs)]


def _are_equal(symbols: Symbols, a: Size, b: Size) -> bool:
    return symbols.compare("eq", a, b)


def _numbers(symbols: Symbols, sizes: Sequence[Size]) -> list[Any]:
    return [symbols.number(size) for size in sizes]


# ---- autocast, which casts the operands before these functions run


def _autocast_type(x: torch.Tensor) -> torch.dtype | None:
    """The dtype that autocast casts `x` to; None where it does not."""
    kind = x.device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return None
    if not x.is_floating_point() or x.dtype is torch.float64:
        return None
    return torch.get_autocast_dtype(kind)


def cast(x: torch.Tensor) -> Any:
    """`x` as autocast passes it to a product."""
    dtype = _autocast_type(x)
    return x if dtype is None else x.to(dtype)


def _is_cached_by_autocast(x: torch.Tensor) -> bool:
    """Whether autocast casts this matrix once and caches the result: it is then left to `mm` under autocast."""
    if _autocast_type(x) is None or x.dim() != 2 or x.dtype is not torch.float32:
        return False
    return x.requires_grad and x.is_leaf and torch.is_grad_enabled()


_MATMUL = (
    torch.matmul, torch.linalg.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, aten.matmul, aten.matmul.default,
)  # fmt: skip
COMPOSITES: dict[Any, Any] = {}
if SPECIALIZES_SIZES:
    COMPOSITES = {
        **dict.fromkeys(_MATMUL, _matmul),
        torch.Tensor.__rmatmul__: _matmul_from_right,
        **dict.fromkeys((F.linear, aten.linear, aten.linear.default), _linear),
    }
