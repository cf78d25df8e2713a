"""Views of one place, of a range of places or of pieces of a symbolic size: comparisons, which are guards, decide which are
there.

What eager clamps to the size, or counts from the end, is then a plain size from 0 on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from smelt.errors import NeedsFixedSize
from smelt.graph.assignments import syms_of
from smelt.graph.data_sizes import is_of_data
from smelt.graph.ir import TensorSpec
from smelt.graph.sizes import INFINITE, Expr, Size, bounds, contiguous_stride, free_syms
from smelt.graph.specs import make_spec
from smelt.ops.sized_arguments import (
    DIAGONAL,
    PLACES,
    RANGES,
    SELECT,
    SLICE,
    SPLIT,
    SPLIT_WITH_SIZES,
    TOPK,
    UNFOLD,
)
from smelt.torch_private import OpOverload
from smelt.trace.arguments import Args, Kwargs
from smelt.trace.fake import FakeTensor
from smelt.trace.symbols import Symbols


def in_range(
    symbols: Symbols, func: OpOverload, args: Args, kwargs: Kwargs, new_size: Callable[[Size], Size]
) -> tuple[Args, Kwargs]:
    """The arguments of a slice or a selection with what lies outside of the tensor clamped, as eager does. `new_size`
    gives a symbol for a size. Raises NeedsFixedSize."""
    if func in RANGES:
        given = _arguments(func, args, kwargs)
        start, end = given["start"], given["end"]
        n = _size(given)
        if not any(isinstance(v, Expr) for v in (n, start, end)):
            return args, kwargs
        first = 0 if start is None else _clamped(symbols, start, n)
        last = n if end is None else _clamped(symbols, end, n)
        if symbols.expect("lt", last, first, False):
            last = first
        many = last - first
        if bounds(many)[0] < 0 and symbols.known.concerns(many):
            last = first + new_size(many)
        given["start"] = start if _is_kept(start, first, n) else first
        given["end"] = end if _is_kept(end, last, n) else last
        return tuple(given.values()), {}
    if func in PLACES:
        given = _arguments(func, args, kwargs)
        n, index = _size(given), given["index"]
        if not any(isinstance(v, Expr) for v in (n, index)):
            return args, kwargs
        place = index + n if symbols.expect("lt", index, 0, False) else index
        if symbols.expect("lt", place, 0, False) or not symbols.expect("lt", place, n, True):
            raise NeedsFixedSize(f"place {index} of {n}", free_syms(n) | free_syms(index))
        given["index"] = index if isinstance(index, int) else place
        return tuple(given.values()), {}
    if func in (SPLIT_WITH_SIZES, TOPK):
        _check_counts(symbols, func, _arguments(func, args, kwargs))
    return args, kwargs


def _check_counts(symbols: Symbols, func: OpOverload, given: Kwargs) -> None:
    """What is required of how many places are taken, where data decide that."""
    n = _size(given)
    if func is TOPK and symbols.known.concerns(given["k"]):
        symbols.expect("lt", n, given["k"], False)
    if func is SPLIT_WITH_SIZES and symbols.known.concerns(*given["split_sizes"]):
        total: Size = 0
        for size in given["split_sizes"]:
            total = total + size
        symbols.assume("eq", total, n)


def with_known_pieces(
    symbols: Symbols, func: OpOverload, args: Args, kwargs: Kwargs
) -> tuple[OpOverload, Args, Kwargs]:
    """A split into pieces of one size as one into pieces of given sizes: their number is what it is in this call."""
    if func is not SPLIT:
        return func, args, kwargs
    given = _arguments(func, args, kwargs)
    n, size = _size(given), given["split_size"]
    if not isinstance(size, Expr) and not syms_of(given["self"].spec):
        return func, args, kwargs
    if size == 1 and isinstance(n, Expr):
        raise NeedsFixedSize(f"pieces of one row of {n}", free_syms(n))
    if symbols.compare("lt", size, 1):
        return func, args, kwargs  # the operator refuses it, or gives one piece of nothing
    whole, part = (symbols.of_size(v).value if isinstance(v, Expr) else v for v in (n, size))
    count = max(1, -(-whole // part))
    last = n - size * (count - 1)
    if symbols.compare("lt", last, 1) or symbols.compare("gt", last, size):
        raise NeedsFixedSize(f"pieces of {size} of {n}", free_syms(n) | free_syms(size))
    return (
        SPLIT_WITH_SIZES,
        (given["self"], [*itertools.repeat(size, int(count) - 1), last], given["dim"]),
        {},
    )


def _arguments(func: OpOverload, args: Args, kwargs: Kwargs) -> Kwargs:
    """By name, in the order of the schema."""
    names = [a.name for a in func._schema.arguments]
    given = {**dict(zip(names, args)), **kwargs}
    return {a.name: given.get(a.name, a.default_value) for a in func._schema.arguments}


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
    """The specs of a slice, a selection, pieces, windows, or of as many largest elements as data decide, for arguments that
    `in_range` gave; None for any other operator, and where it is not known, or refused."""
    if func is DIAGONAL:
        return _diagonal(_arguments(func, args, kwargs))
    rule = _RULES.get(func)
    if rule is None:
        return None
    given = _arguments(func, args, kwargs)
    source, dim = given["self"].spec, given["dimension" if func is UNFOLD else "dim"]
    rank = len(source.shape)
    return rule(source, dim % rank, given) if -rank <= dim < rank else None


def _selected(source: TensorSpec, dim: int, given: Kwargs) -> TensorSpec | None:
    n, stride = source.shape[dim], source.stride[dim]
    place = _from_start(given["index"], n)
    if isinstance(place, int) and isinstance(n, int) and not 0 <= place < n:
        return None
    return _changed(source, dim, (), (), place * stride)


def _sliced(source: TensorSpec, dim: int, given: Kwargs) -> TensorSpec | None:
    n, stride, step = source.shape[dim], source.stride[dim], given["step"]
    if type(step) is not int or step < 1:
        return None
    first = 0 if given["start"] is None else _from_start(given["start"], n)
    last = n if given["end"] is None else _from_start(given["end"], n)
    if isinstance(n, int) and isinstance(first, int) and isinstance(last, int):
        first, last, _ = slice(given["start"], given["end"]).indices(n)
        last = max(first, last)
    return _changed(source, dim, ((last - first + (step - 1)) // step,), (stride * step,), first * stride)


def _pieces(source: TensorSpec, dim: int, given: Kwargs) -> list[TensorSpec] | None:
    n, stride, sizes = source.shape[dim], source.stride[dim], given["split_sizes"]
    total: Size = 0
    found = []
    for size in sizes:
        found.append(_changed(source, dim, (size,), (stride,), total * stride))
        total = total + size
    assumed = any(is_of_data(sym) for size in sizes for sym in free_syms(size))
    refused = (total != n and not assumed) or any(isinstance(size, int) and size < 0 for size in sizes)
    return None if refused else found


def _largest(source: TensorSpec, dim: int, given: Kwargs) -> tuple[TensorSpec, TensorSpec] | None:
    if type(given["k"]) is int:
        return None
    shape = (*source.shape[:dim], given["k"], *source.shape[dim + 1 :])
    stride = contiguous_stride(shape)
    values = make_spec(shape, stride, source.dtype, source.device)
    return values, make_spec(shape, stride, torch.int64, source.device)


def _windows(source: TensorSpec, dim: int, given: Kwargs) -> TensorSpec | None:
    n, stride, size, step = source.shape[dim], source.stride[dim], given["size"], given["step"]
    if type(size) is not int or type(step) is not int or size < 0 or step < 1:
        return None
    if isinstance(n, int) and n < size:
        return None
    made = _changed(source, dim, ((n - size) // step + 1,), (stride * step,), 0)
    return make_spec((*made.shape, size), (*made.stride, stride), made.dtype, made.device, made.offset)


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


_RULES: dict[OpOverload, Callable[[TensorSpec, int, Kwargs], Any]] = {
    SELECT: _selected,
    SLICE: _sliced,
    SPLIT_WITH_SIZES: _pieces,
    TOPK: _largest,
    UNFOLD: _windows,
}


def _changed(
    source: TensorSpec, dim: int, shape: tuple[Size, ...], stride: tuple[Size, ...], skipped: Size
) -> TensorSpec:
    """A view with other sizes and strides in the place of those of `dim`, from `skipped` elements on."""
    return make_spec(
        (*source.shape[:dim], *shape, *source.shape[dim + 1 :]),
        (*source.stride[:dim], *stride, *source.stride[dim + 1 :]),
        source.dtype,
        source.device,
        source.offset + skipped,
    )


def _from_start(place: Size, n: Size) -> Size:
    if not isinstance(place, int):
        return place
    if place >= INFINITE:
        return n
    return place + n if place < 0 else place
