"""Views of one place, of a range of places or of pieces of a symbolic size: comparisons, which are guards, decide which are
there.

What eager clamps to the size, or counts from the end, is then a plain size from 0 on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.errors import NeedsFixedSize
from smelt.graph.ir import TensorSpec
from smelt.graph.tensor_specs import make_spec
from smelt.graph.unbacked_sizes import is_unbacked
from smelt.ops.symbolic_rules import (
    DIAGONAL,
    PLACES,
    RANGES,
    SELECT,
    SLICE,
    SPLIT,
    SPLITS,
    STRIDED,
    TOPK,
    UNBIND,
    UNFOLD,
)
from smelt.shapes.expr import INFINITE, Expr, Size, bounds, contiguous_stride, free_syms
from smelt.torch_private import OpOverload
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.call_arguments import Args, Kwargs, by_name
from smelt.tracing.symbolic.symbolic_numbers import Symbols

_MOST_PIECES = 64


def clamp_to_range(
    symbols: Symbols, func: OpOverload, args: Args, kwargs: Kwargs, symbol_for_size: Callable[[Size], Size]
) -> tuple[Args, Kwargs]:
    """The arguments of a slice or a selection with what lies outside of the tensor clamped, as eager does. `new_size`
    gives a symbol for a size. Raises NeedsFixedSize."""
    if func in RANGES:
        given = by_name(func, args, kwargs)
        start, end = given["start"], given["end"]
        n = _size(given)
        if not any(isinstance(v, Expr) for v in (n, start, end)):
            return args, kwargs
        first = 0 if start is None else _clamped(symbols, start, n)
        last = n if end is None else _clamped(symbols, end, n)
        if symbols.expect("lt", last, first, False):
            last = first
        many = last - first
        if bounds(many)[0] < 0 and symbols.unbacked.occurs_in(many):
            last = first + symbol_for_size(many)
        given["start"] = start if _is_kept(start, first, n) else first
        given["end"] = end if _is_kept(end, last, n) else last
        return tuple(given.values()), {}
    if func in PLACES:
        given = by_name(func, args, kwargs)
        n, index = _size(given), given["index"]
        if not any(isinstance(v, Expr) for v in (n, index)):
            return args, kwargs
        place = index + n if symbols.expect("lt", index, 0, False) else index
        if symbols.expect("lt", place, 0, False) or not symbols.expect("lt", place, n, True):
            raise NeedsFixedSize(f"place {index} of {n}", free_syms(n) | free_syms(index))
        given["index"] = index if isinstance(index, int) else place
        return tuple(given.values()), {}
    if func in (SPLIT, TOPK):
        _check_counts(symbols, func, by_name(func, args, kwargs))
    return args, kwargs


def _check_counts(symbols: Symbols, func: OpOverload, given: Kwargs) -> None:
    """What is required of how many places are taken, where data decide that."""
    n = _size(given)
    if func is TOPK and symbols.unbacked.occurs_in(given["k"]):
        symbols.expect("lt", n, given["k"], False)
    if func is SPLIT and symbols.unbacked.occurs_in(*given["split_sizes"]):
        total: Size = 0
        for size in given["split_sizes"]:
            total = total + size
        symbols.assume("eq", total, n)


def _size(given: Kwargs) -> Size:
    tensor, dim = given.get("self"), given["dim"]
    if tensor is None:
        shape = given["input_sizes"]
    else:
        shape = tensor.spec.shape if type(tensor) is FakeTensor else tuple(tensor.size())
    if not -len(shape) <= dim < len(shape):
        return 0  # which the operator refuses
    found: Size = shape[dim]
    return found


def _clamped(symbols: Symbols, place: Size, n: Size) -> Size:
    if isinstance(place, int) and place >= INFINITE:
        return n
    if symbols.expect("lt", place, 0, False):
        place = place + n
        if symbols.expect("lt", place, 0, False):
            return 0
    return n if symbols.expect("lt", n, place, False) else place


def _is_kept(given: Size | None, place: Size, n: Size) -> bool:
    """Whether an argument means this place to whoever does not know the size, too."""
    if given is None:
        return True
    if isinstance(given, Expr):
        return given is place
    return given == place or (given < 0 and given + n == place) or (given >= INFINITE and place == n)


def view_of(func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """What a slice, a selection, windows or pieces give for arguments that `in_range` gave, or an operator whose counts it
    has checked; None for any other operator."""
    rule = _VIEWS.get(func)
    if rule is not None:
        return rule(by_name(func, args, kwargs))
    if func not in (SLICE, SELECT):
        return None
    given = by_name(func, args, kwargs)
    source = given["self"].spec
    shape, stride = list(source.shape), list(source.stride)
    dim = given["dim"] % len(shape) if -len(shape) <= given["dim"] < len(shape) else None
    if dim is None:
        return None
    if func is SELECT:
        first, n = _from_start(given["index"], shape[dim]), shape[dim]
        if isinstance(first, int) and isinstance(n, int) and not 0 <= first < n:
            return None
        offset = source.offset + first * stride[dim]
        del shape[dim], stride[dim]
    else:
        n, step = shape[dim], given["step"]
        first = 0 if given["start"] is None else _from_start(given["start"], n)
        last = n if given["end"] is None else _from_start(given["end"], n)
        if type(step) is not int or step < 1:
            return None
        if isinstance(n, int) and isinstance(first, int) and isinstance(last, int):
            first, last, _ = slice(given["start"], given["end"]).indices(n)
            last = max(first, last)
        offset = source.offset + first * stride[dim]
        shape[dim] = (last - first + (step - 1)) // step
        stride[dim] = stride[dim] * step
    return make_spec(tuple(shape), tuple(stride), source.dtype, source.device, offset)


def _diagonal(given: Kwargs) -> TensorSpec | None:
    """Of a square, whose diagonals are shorter by their distance."""
    source, offset = given["self"].spec, given["offset"]
    rank = len(source.shape)
    if not all(-rank <= given[name] < rank for name in ("dim1", "dim2")):
        return None
    dims = [given[name] % rank for name in ("dim1", "dim2")]
    rows, columns = (source.shape[d] for d in dims)
    if rows != columns or dims[0] == dims[1] or (isinstance(rows, int) and abs(offset) > rows):
        return None
    down, right = (source.stride[d] for d in dims)
    left = [d for d in range(rank) if d not in dims]
    return make_spec(
        (*(source.shape[d] for d in left), rows - abs(offset)),
        (*(source.stride[d] for d in left), down + right),
        source.dtype,
        source.device,
        source.offset + (offset * right if offset > 0 else -offset * down),
    )


def _windows(given: Kwargs) -> TensorSpec | None:
    source, dim, size, step = (given[name] for name in ("self", "dimension", "size", "step"))
    shape, stride = list(source.spec.shape), list(source.spec.stride)
    if (
        not shape
        or not -len(shape) <= dim < len(shape)
        or bounds(size)[0] < 1
        or type(step) is not int
        or step < 1
    ):
        return None
    dim %= len(shape)  # of the tensor: the result has a dimension more
    shape[dim] = (shape[dim] - size) // step + 1
    if isinstance(shape[dim], int) and shape[dim] < 1:
        return None
    stride.append(stride[dim])
    stride[dim] = stride[dim] * step
    return make_spec((*shape, size), tuple(stride), source.spec.dtype, source.spec.device, source.spec.offset)


def _pieces(given: Kwargs) -> list[TensorSpec] | None:
    source, dim = given["self"].spec, given["dim"]
    first: Size = 0
    if not -len(source.shape) <= dim < len(source.shape):
        return None
    n, made = source.shape[dim], []
    sizes = given.get("split_sizes") or _equal(n, given["split_size"])
    if not sizes or any(isinstance(size, int) and size < 0 for size in sizes):
        return None
    if sum(sizes) != n and not any(is_unbacked(sym) for size in sizes for sym in free_syms(size)):
        return None  # of those that data decide, the sum was checked
    for size in sizes:
        shape = list(source.shape)
        shape[dim] = size
        offset = source.offset + first * source.stride[dim]
        made.append(make_spec(tuple(shape), source.stride, source.dtype, source.device, offset))
        first = first + size
    return made


def _equal(n: Size, size: Size) -> list[Size]:
    """Sizes of pieces of `size`, the last of which may be smaller; none where their number is not known."""
    if not isinstance(n, int) or not isinstance(size, int) or size < 1:
        return []
    return [min(size, n - first) for first in range(0, n, size)]


def _rows(given: Kwargs) -> list[TensorSpec] | None:
    source, dim = given["self"].spec, given["dim"]
    if not -len(source.shape) <= dim < len(source.shape) or not isinstance(source.shape[dim], int):
        return None
    shape, stride = list(source.shape), list(source.stride)
    count, step = shape.pop(dim), stride.pop(dim)
    return [
        make_spec(tuple(shape), tuple(stride), source.dtype, source.device, source.offset + i * step)
        for i in range(count)
    ]


def _largest(given: Kwargs) -> tuple[TensorSpec, TensorSpec] | None:
    source, k, dim = given["self"].spec, given["k"], given["dim"]
    if not -len(source.shape) <= dim < len(source.shape) or type(k) is int:
        return None
    shape = list(source.shape)
    shape[dim] = k
    stride = contiguous_stride(shape)
    values = make_spec(tuple(shape), stride, source.dtype, source.device)
    return values, make_spec(tuple(shape), stride, torch.int64, source.device)


def _strided(given: Kwargs) -> TensorSpec | None:
    source, offset = given["self"].spec, given["storage_offset"]
    offset = source.offset if offset is None else offset
    if len(given["size"]) != len(given["stride"]) or any(bounds(n)[0] < 0 for n in given["stride"]):
        return None
    return make_spec(tuple(given["size"]), tuple(given["stride"]), source.dtype, source.device, offset)


_VIEWS: dict[OpOverload, Callable[[Kwargs], Any]] = {
    UNFOLD: _windows,
    DIAGONAL: _diagonal,
    **dict.fromkeys((*SPLITS, *SPLITS.values()), _pieces),
    UNBIND: _rows,
    STRIDED: _strided,
    TOPK: _largest,
}


def split_into_sizes(
    symbols: Symbols, func: OpOverload, args: Args, kwargs: Kwargs
) -> tuple[OpOverload, Args, Kwargs]:
    """A split into pieces of one size, of which there are as many as the sizes of this call make, as one into pieces whose
    sizes are given; other calls as they are."""
    by_sizes = SPLITS.get(func)
    if by_sizes is None:
        return func, args, kwargs
    given = by_name(func, args, kwargs)
    n, size = _size(given), given["split_size"]
    if not isinstance(n, Expr) and not isinstance(size, Expr):
        return func, args, kwargs
    seen_n, seen_size = (symbols.symbol_of_size(v).value for v in (n, size))
    count = int(-(-seen_n // seen_size)) if seen_size > 0 else 0
    if count < 1 or count > _MOST_PIECES:
        raise NeedsFixedSize(f"{n} in pieces of {size}", free_syms(n) | free_syms(size))
    before = (count - 1) * size
    if not symbols.compare("gt", n, before) or not symbols.compare("le", n, before + size):
        raise NeedsFixedSize(f"{n} in pieces of {size}", free_syms(n) | free_syms(size))
    return by_sizes, (given["self"], [*[size] * (count - 1), n - before], given["dim"]), {}


def _from_start(place: Size, n: Size) -> Size:
    if not isinstance(place, int):
        return place
    if place >= INFINITE:
        return n
    return place + n if place < 0 else place
