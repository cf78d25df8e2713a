"""`matmul` and `linear` of tensors with symbolic sizes, as torch's C++ code computes them: by `mm` of folded rows, or `bmm`.

Before 2.13 that code asks for sizes as numbers, which would pin them; the formulas here are those of 2.11. Other calls are
left to torch, as are wrong ones, which raise what they raise in eager.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F

from smelt.shapes.expr import Size
from smelt.tracing.record.call_arguments import Args, Kwargs
from smelt.tracing.symbolic.sym_numbers import SYMBOLIC, size_of
from smelt.tracing.symbolic.symbolic_numbers import Symbols

aten = torch.ops.aten

ASKS_NUMBERS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


def _matmul(args: Args, kwargs: Kwargs) -> Any:
    given = dict(zip(("input", "other"), args), **kwargs)
    if "self" in given:
        given["input"] = given.pop("self")
    if given.keys() != {"input", "other"}:
        return NotImplemented
    symbols = symbols_in(*given.values())
    return NotImplemented if symbols is None else product(symbols, given["input"], given["other"])


def _matmul_from_right(args: Args, kwargs: Kwargs) -> Any:
    return _matmul(args[::-1], kwargs)


def _linear(args: Args, kwargs: Kwargs) -> Any:
    given = dict(zip(("input", "weight", "bias"), args), **kwargs)
    x, weight, bias = given.pop("input", None), given.pop("weight", None), given.pop("bias", None)
    symbols = symbols_in(x, weight, *([] if bias is None else [bias]))
    if given or symbols is None or x.dim() < 3 or not 1 <= weight.dim() <= 2:
        return NotImplemented
    if not _go_together(symbols, shape_of(x)[-1], shape_of(weight)[-1]):
        return NotImplemented
    if bias is not None and (bias.dim() != 1 or x.is_contiguous()):
        return NotImplemented  # one `addmm`, for which torch takes symbolic sizes
    x = cast(x)
    if (weight.requires_grad and torch.is_grad_enabled()) or _is_foldable(symbols, x):
        made = F.linear(_as_rows(symbols, x), weight)
        made = _unfolded(symbols, made, (*shape_of(x)[:-1], *shape_of(weight)[:-1]))
    else:
        made = product(symbols, x, cast(weight).t())
    return made if bias is None else made + cast(bias)


def symbols_in(*operands: Any) -> Symbols | None:
    """What holds the symbols of the operands' sizes; None where they have none, or are no tensors."""
    if not all(isinstance(x, torch.Tensor) for x in operands):
        return None
    symbolic = (n for x in operands for n in x.shape if type(n) in SYMBOLIC)
    return next((n.node.symbols for n in symbolic), None)


def shape_of(x: torch.Tensor) -> tuple[Size, ...]:
    """The sizes of a fake, or of what a transform makes of one."""
    return tuple(map(size_of, x.shape))


def product(symbols: Symbols, a: Any, b: Any) -> Any:
    """`a @ b`; NotImplemented where torch's own code takes their sizes."""
    if min(a.dim(), b.dim()) == 0 or max(a.dim(), b.dim()) < 3:
        return NotImplemented
    batch = _broadcast(symbols, shape_of(a)[:-2], shape_of(b)[:-2])
    if batch is None or not _go_together(symbols, shape_of(a)[-1], shape_of(b)[-2 if b.dim() > 1 else -1]):
        return NotImplemented
    a, b = cast(a), b if a.dim() > 2 and _is_kept_by_autocast(b) else cast(b)
    if a.dim() == b.dim() == 3:  # a single matrix: torch does this to tensors that modes or subclasses see
        if shape_of(a)[0] == 1 != shape_of(b)[0]:
            a = a.squeeze(0)
        elif shape_of(b)[0] == 1 != shape_of(a)[0]:
            b = b.squeeze(0)
    if _folds(symbols, a, b):
        return _folded(symbols, a, b)
    return _batched(symbols, a, b, batch)


def _folds(symbols: Symbols, a: Any, b: Any) -> bool:
    """Whether the rows of all matrices of one operand are multiplied at once, by the other."""
    if min(a.dim(), b.dim()) > 2:
        return False
    if (b if a.dim() >= b.dim() else a).requires_grad:  # or its gradient would be of the size of the batch
        return True
    return a.dim() != 2 and _is_foldable(symbols, a if a.dim() > b.dim() else b.mT)


def _is_foldable(symbols: Symbols, x: Any) -> bool:
    """Whether all dimensions but the last are one in memory."""
    shape, stride = shape_of(x), tuple(map(size_of, x.stride()))
    if 0 in shape:
        return True
    return all(symbols.compare("eq", stride[i], stride[i + 1] * shape[i + 1]) for i in range(len(shape) - 2))


def _folded(symbols: Symbols, a: Any, b: Any) -> Any:
    turned = b.dim() > a.dim()
    x, y = (b.mT, a.t() if a.dim() == 2 else a) if turned else (a, b)
    rows = _as_rows(symbols, x)
    made = rows.mv(y) if y.dim() == 1 else rows.mm(y)
    made = _unfolded(symbols, made, (*shape_of(x)[:-1], *shape_of(y)[1:]))
    return made.mT.contiguous() if turned and y.dim() == 2 else made


def _as_rows(symbols: Symbols, x: Any) -> Any:
    return x.reshape(_numbers(symbols, (math.prod(shape_of(x)[:-1]), shape_of(x)[-1])))


def _unfolded(symbols: Symbols, x: Any, shape: Sequence[Size]) -> Any:
    return aten._unsafe_view.default(x, _numbers(symbols, shape))


def _batched(symbols: Symbols, a: Any, b: Any, batch: Sequence[Size]) -> Any:
    """A product of matrices for each place of the batch."""
    count = math.prod(batch)

    def matrices(x: Any, shape: Sequence[Size]) -> Any:
        expanded = x.expand(_numbers(symbols, (*batch, *shape)))
        return expanded.reshape(_numbers(symbols, (count, *shape)))

    rows = shape_of(a)[-2:-1]
    left = matrices(a, (*(rows or (1,)), shape_of(a)[-1]))
    right = matrices(b, shape_of(b)[-2:])
    if b.dim() == 1:
        made = left.bmm(right.unsqueeze(2)).squeeze(-1)
    else:
        made = left.bmm(right)
    return _unfolded(symbols, made, (*batch, *rows, *(shape_of(b)[-1:] if b.dim() > 1 else ())))


def _broadcast(symbols: Symbols, a: Sequence[Size], b: Sequence[Size]) -> list[Size] | None:
    """The shape that both batches have when broadcast; None where they do not go together."""
    pairs = list(zip_longest(reversed(a), reversed(b), fillvalue=1))
    if not all(1 in pair or _go_together(symbols, *pair) for pair in pairs):
        return None
    return [n if m == 1 else m for n, m in reversed(pairs)]


def _go_together(symbols: Symbols, a: Size, b: Size) -> bool:
    return symbols.compare("eq", a, b)


def _numbers(symbols: Symbols, sizes: Sequence[Size]) -> list[Any]:
    return [symbols.number(size) for size in sizes]


# ---- autocast, which has the operands cast before these functions run


def _autocast_type(x: torch.Tensor) -> torch.dtype | None:
    """What autocast makes of `x`; None where it leaves it as it is."""
    kind = x.device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return None
    if not x.is_floating_point() or x.dtype is torch.float64:
        return None
    return torch.get_autocast_dtype(kind)


def cast(x: torch.Tensor) -> Any:
    """`x` as autocast hands it to a product."""
    dtype = _autocast_type(x)
    return x if dtype is None else x.to(dtype)


def _is_kept_by_autocast(x: torch.Tensor) -> bool:
    """Whether it is a matrix that autocast casts once for all calls: it is left to `mm` under autocast."""
    if _autocast_type(x) is None or x.dim() != 2 or x.dtype is not torch.float32:
        return False
    return x.requires_grad and x.is_leaf and torch.is_grad_enabled()


_MATMUL = (
    torch.matmul, torch.linalg.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, aten.matmul, aten.matmul.default,
)  # fmt: skip
# What is run in place of these functions: `body(args, kwargs)` gives NotImplemented where torch's own code is to run.
COMPOSITES: dict[Any, Any] = {}
if ASKS_NUMBERS:
    COMPOSITES = {
        **dict.fromkeys(_MATMUL, _matmul),
        torch.Tensor.__rmatmul__: _matmul_from_right,
        **dict.fromkeys((F.linear, aten.linear, aten.linear.default), _linear),
    }
