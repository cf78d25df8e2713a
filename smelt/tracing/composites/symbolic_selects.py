"""Views by index, range, or split along a dimension of symbolic size. Comparisons, which are guards, decide clamping
and the number of chunks.

An index that eager clamps to the size, or counts from the end, becomes a plain size of at least 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.errors import NeedsFixedSize
from smelt.graph.ir import TensorSpec
from smelt.graph.symbolic_strides import is_contiguous
from smelt.graph.tensor_specs import make_spec
from smelt.graph.unbacked_sizes import is_unbacked
from smelt.ops.symbolic_rules import (
    DIAGONAL,
    RANGES,
    SELECT,
    SINGLE_INDEX,
    SLICE,
    SPLIT,
    SPLITS,
    STRIDED,
    TOPK,
    UNBIND,
    UNFOLD,
    VIEWS,
)
from smelt.shapes.expr import INFINITE, Expr, Size, bounds, contiguous_stride, free_syms, numel
from smelt.torch_private import OpOverload
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.call_arguments import Args, Kwargs, by_name
from smelt.tracing.symbolic.symbolic_numbers import Symbols

_MOST_CHUNKS = 64


def clamp_to_range(
    symbols: Symbols, func: OpOverload, args: Args, kwargs: Kwargs, symbol_for_size: Callable[[Size], Size]
) -> tuple[Args, Kwargs]:
    """The arguments of a slice or select with bounds clamped to the tensor, as in eager. `symbol_for_size` returns a
    symbol for a size. Raises NeedsFixedSize."""
    if func in RANGES:
        arguments = by_name(func, args, kwargs)
        start, end = arguments["start"], arguments["end"]
        n = _size(arguments)
        if not any(isinstance(v, Expr) for v in (n, start, end)):
            return args, kwargs
        first = 0 if start is None else _clamped(symbols, start, n)
        last = n if end is None else _clamped(symbols, end, n)
        if symbols.expect("lt", last, first, False):
            last = first
        length = last - first
        if bounds(length)[0] < 0 and symbols.unbacked.occurs_in(length):
            last = first + symbol_for_size(length)
        arguments["start"] = start if _is_unchanged(start, first, n) else first
        arguments["end"] = end if _is_unchanged(end, last, n) else last
        return tuple(arguments.values()), {}
    if func in SINGLE_INDEX:
        arguments = by_name(func, args, kwargs)
        n, index = _size(arguments), arguments["index"]
        if not any(isinstance(v, Expr) for v in (n, index)):
            return args, kwargs
        from_start = index + n if symbols.expect("lt", index, 0, False) else index
        if symbols.expect("lt", from_start, 0, False) or not symbols.expect("lt", from_start, n, True):
            raise NeedsFixedSize(f"index {index} of {n}", free_syms(n) | free_syms(index))
        arguments["index"] = index if isinstance(index, int) else from_start
        return tuple(arguments.values()), {}
    if func in (SPLIT, TOPK):
        _check_counts(symbols, func, by_name(func, args, kwargs))
    if func in VIEWS and symbols.unbacked.numbers:
        arguments = by_name(func, args, kwargs)
        return (arguments["self"], _view_size(symbols, arguments, symbol_for_size)), {}
    return args, kwargs


def _view_size(
    symbols: Symbols, arguments: Kwargs, symbol_for_size: Callable[[Size], Size]
) -> Sequence[Size]:
    """The size of a view. Requires unbacked sizes to have as many elements as the tensor."""
    whole, size = numel(arguments["self"].spec.shape), list(arguments["size"])
    if not symbols.unbacked.occurs_in(whole, *size):
        return size
    others = numel(n for n in size if n != -1)
    if size.count(-1) == 1 and bounds(others)[0] >= 1 and whole % others != 0:
        size[size.index(-1)] = symbol_for_size(whole // others)
    if -1 not in size:
        symbols.expect("eq", numel(size), whole, True)
    return size


def _check_counts(symbols: Symbols, func: OpOverload, arguments: Kwargs) -> None:
    """Require counts of elements that are unbacked to be valid."""
    n = _size(arguments)
    if func is TOPK and symbols.unbacked.occurs_in(arguments["k"]):
        symbols.expect("lt", n, arguments["k"], False)
    if func is SPLIT and symbols.unbacked.occurs_in(*arguments["split_sizes"]):
        total: Size = 0
        for size in arguments["split_sizes"]:
            total = total + size
        symbols.assume("eq", total, n)


def _size(arguments: Kwargs) -> Size:
    tensor, dim = arguments.get("self"), arguments["dim"]
    if tensor is None:
        shape = arguments["input_sizes"]
    else:
        shape = tensor.spec.shape if type(tensor) is FakeTensor else tuple(tensor.size())
    if not -len(shape) <= dim < len(shape):
        return 0  # the operator raises
    size: Size = shape[dim]
    return size


def _clamped(symbols: Symbols, index: Size, n: Size) -> Size:
    if isinstance(index, int) and index >= INFINITE:
        return n
    if symbols.expect("lt", index, 0, False):
        index = index + n
        if symbols.expect("lt", index, 0, False):
            return 0
    return n if symbols.expect("lt", n, index, False) else index


def _is_unchanged(argument: Size | None, index: Size, n: Size) -> bool:
    """Whether an argument means this index for every size, so that it can stay as it is."""
    if argument is None:
        return True
    if isinstance(argument, Expr):
        return argument is index
    return (
        argument == index or (argument < 0 and argument + n == index) or (argument >= INFINITE and index == n)
    )


def view_of(func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The result specs of a slice, select, unfold or split with arguments from `clamp_to_range`, or of an operator
    whose counts it has checked; None for other operators."""
    rule = _VIEWS.get(func)
    if rule is not None:
        return rule(by_name(func, args, kwargs))
    if func not in (SLICE, SELECT):
        return None
    arguments = by_name(func, args, kwargs)
    source = arguments["self"].spec
    shape, stride = list(source.shape), list(source.stride)
    dim = arguments["dim"] % len(shape) if -len(shape) <= arguments["dim"] < len(shape) else None
    if dim is None:
        return None
    if func is SELECT:
        first, n = _from_start(arguments["index"], shape[dim]), shape[dim]
        if isinstance(first, int) and isinstance(n, int) and not 0 <= first < n:
            return None
        offset = source.offset + first * stride[dim]
        del shape[dim], stride[dim]
    else:
        n, step = shape[dim], arguments["step"]
        first = 0 if arguments["start"] is None else _from_start(arguments["start"], n)
        last = n if arguments["end"] is None else _from_start(arguments["end"], n)
        if type(step) is not int or step < 1:
            return None
        if isinstance(n, int) and isinstance(first, int) and isinstance(last, int):
            first, last, _ = slice(arguments["start"], arguments["end"]).indices(n)
            last = max(first, last)
        offset = source.offset + first * stride[dim]
        shape[dim] = (last - first + (step - 1)) // step
        stride[dim] = stride[dim] * step
    return make_spec(tuple(shape), tuple(stride), source.dtype, source.device, offset)


def _diagonal(arguments: Kwargs) -> TensorSpec | None:
    """The diagonal of a square matrix."""
    source, offset = arguments["self"].spec, arguments["offset"]
    rank = len(source.shape)
    if not all(-rank <= arguments[name] < rank for name in ("dim1", "dim2")):
        return None
    dims = [arguments[name] % rank for name in ("dim1", "dim2")]
    rows, columns = (source.shape[d] for d in dims)
    if rows != columns or dims[0] == dims[1] or (isinstance(rows, int) and abs(offset) > rows):
        return None
    down, right = (source.stride[d] for d in dims)
    batch_dims = [d for d in range(rank) if d not in dims]
    return make_spec(
        (*(source.shape[d] for d in batch_dims), rows - abs(offset)),
        (*(source.stride[d] for d in batch_dims), down + right),
        source.dtype,
        source.device,
        source.offset + (offset * right if offset > 0 else -offset * down),
    )


def _windows(arguments: Kwargs) -> TensorSpec | None:
    source, dim, size, step = (arguments[name] for name in ("self", "dimension", "size", "step"))
    shape, stride = list(source.spec.shape), list(source.spec.stride)
    if (
        not shape
        or not -len(shape) <= dim < len(shape)
        or bounds(size)[0] < 1
        or type(step) is not int
        or step < 1
    ):
        return None
    dim %= len(shape)  # of the tensor: the result has one more dimension
    shape[dim] = (shape[dim] - size) // step + 1
    if isinstance(shape[dim], int) and shape[dim] < 1:
        return None
    stride.append(stride[dim])
    stride[dim] = stride[dim] * step
    return make_spec((*shape, size), tuple(stride), source.spec.dtype, source.spec.device, source.spec.offset)


def _chunks(arguments: Kwargs) -> list[TensorSpec] | None:
    source, dim = arguments["self"].spec, arguments["dim"]
    first: Size = 0
    if not -len(source.shape) <= dim < len(source.shape):
        return None
    n, chunks = source.shape[dim], []
    sizes = arguments.get("split_sizes") or _equal_chunks(n, arguments["split_size"])
    if not sizes or any(isinstance(size, int) and size < 0 for size in sizes):
        return None
    if sum(sizes) != n and not any(is_unbacked(sym) for size in sizes for sym in free_syms(size)):
        return None  # the sum of unbacked sizes was checked
    for size in sizes:
        shape = list(source.shape)
        shape[dim] = size
        offset = source.offset + first * source.stride[dim]
        chunks.append(make_spec(tuple(shape), source.stride, source.dtype, source.device, offset))
        first = first + size
    return chunks


def _equal_chunks(n: Size, size: Size) -> list[Size]:
    """Sizes of chunks of `size`, the last of which may be smaller; empty where their number is unknown."""
    if not isinstance(n, int) or not isinstance(size, int) or size < 1:
        return []
    return [min(size, n - first) for first in range(0, n, size)]


def _rows(arguments: Kwargs) -> list[TensorSpec] | None:
    source, dim = arguments["self"].spec, arguments["dim"]
    if not -len(source.shape) <= dim < len(source.shape) or not isinstance(source.shape[dim], int):
        return None
    shape, stride = list(source.shape), list(source.stride)
    count, step = shape.pop(dim), stride.pop(dim)
    return [
        make_spec(tuple(shape), tuple(stride), source.dtype, source.device, source.offset + i * step)
        for i in range(count)
    ]


def _largest(arguments: Kwargs) -> tuple[TensorSpec, TensorSpec] | None:
    source, k, dim = arguments["self"].spec, arguments["k"], arguments["dim"]
    if not -len(source.shape) <= dim < len(source.shape) or type(k) is int:
        return None
    shape = list(source.shape)
    shape[dim] = k
    stride = contiguous_stride(shape)
    values = make_spec(tuple(shape), stride, source.dtype, source.device)
    return values, make_spec(tuple(shape), stride, torch.int64, source.device)


def _reshaped(arguments: Kwargs) -> TensorSpec | None:
    """A view of which `_view_size` has checked the number of elements."""
    source, shape = arguments["self"].spec, tuple(arguments["size"])
    sizes = numel(source.shape), numel(shape)
    is_assumed = any(is_unbacked(sym) for n in sizes for sym in free_syms(n))
    if (
        not is_assumed
        or -1 in shape
        or sizes[0] == sizes[1]
        or not is_contiguous(source.shape, source.stride)
    ):
        return None  # another rule applies
    return make_spec(shape, contiguous_stride(shape), source.dtype, source.device, source.offset)


def _strided(arguments: Kwargs) -> TensorSpec | None:
    source, offset = arguments["self"].spec, arguments["storage_offset"]
    offset = source.offset if offset is None else offset
    if len(arguments["size"]) != len(arguments["stride"]) or any(
        bounds(n)[0] < 0 for n in arguments["stride"]
    ):
        return None
    return make_spec(
        tuple(arguments["size"]), tuple(arguments["stride"]), source.dtype, source.device, offset
    )


_VIEWS: dict[OpOverload, Callable[[Kwargs], Any]] = {
    UNFOLD: _windows,
    DIAGONAL: _diagonal,
    **dict.fromkeys((*SPLITS, *SPLITS.values()), _chunks),
    UNBIND: _rows,
    STRIDED: _strided,
    **dict.fromkeys(VIEWS, _reshaped),
    TOPK: _largest,
}


def split_into_sizes(
    symbols: Symbols, func: OpOverload, args: Args, kwargs: Kwargs
) -> tuple[OpOverload, Args, Kwargs]:
    """A split into chunks of one size as a split by a list of sizes: as many as the sizes of this call imply, which is
    guarded. Other calls unchanged."""
    by_sizes = SPLITS.get(func)
    if by_sizes is None:
        return func, args, kwargs
    arguments = by_name(func, args, kwargs)
    n, size = _size(arguments), arguments["split_size"]
    if not isinstance(n, Expr) and not isinstance(size, Expr):
        return func, args, kwargs
    hint_n, hint_size = (symbols.symbol_of_size(v).value for v in (n, size))
    count = int(-(-hint_n // hint_size)) if hint_size > 0 else 0
    if count < 1 or count > _MOST_CHUNKS:
        raise NeedsFixedSize(f"{n} in chunks of {size}", free_syms(n) | free_syms(size))
    before = (count - 1) * size
    if not symbols.compare("gt", n, before) or not symbols.compare("le", n, before + size):
        raise NeedsFixedSize(f"{n} in chunks of {size}", free_syms(n) | free_syms(size))
    return by_sizes, (arguments["self"], [*[size] * (count - 1), n - before], arguments["dim"]), {}


def _from_start(index: Size, n: Size) -> Size:
    if not isinstance(index, int):
        return index
    if index >= INFINITE:
        return n
    return index + n if index < 0 else index
