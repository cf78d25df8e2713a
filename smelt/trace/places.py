"""Views of one place or of a range of places of a symbolic size: comparisons, which are guards, decide which are there.

What eager clamps to the size, or counts from the end, is then a plain size from 0 on.
"""

from __future__ import annotations

from smelt.errors import NeedsFixedSize
from smelt.graph.ir import TensorSpec
from smelt.graph.sizes import INFINITE, Expr, Size, free_syms
from smelt.graph.specs import make_spec
from smelt.ops.sized_arguments import PLACES, RANGES, SELECT, SLICE
from smelt.torch_private import OpOverload
from smelt.trace.arguments import Args, Kwargs
from smelt.trace.fake import FakeTensor
from smelt.trace.symbols import Symbols


def in_range(symbols: Symbols, func: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments of a slice or a selection with what lies outside of the tensor clamped, as eager does. Raises
    NeedsFixedSize."""
    if func in RANGES:
        given = _arguments(func, args, kwargs)
        start, end = given["start"], given["end"]
        n = _size(given)
        if not any(isinstance(v, Expr) for v in (n, start, end)):
            return args, kwargs
        first = 0 if start is None else _clamped(symbols, start, n)
        last = n if end is None else _clamped(symbols, end, n)
        if symbols.compare("lt", last, first):
            last = first
        given["start"] = start if _is_kept(start, first, n) else first
        given["end"] = end if _is_kept(end, last, n) else last
        return tuple(given.values()), {}
    if func in PLACES:
        given = _arguments(func, args, kwargs)
        n, index = _size(given), given["index"]
        if not any(isinstance(v, Expr) for v in (n, index)):
            return args, kwargs
        place = index + n if symbols.compare("lt", index, 0) else index
        if symbols.compare("lt", place, 0) or not symbols.compare("lt", place, n):
            raise NeedsFixedSize(f"place {index} of {n}", free_syms(n) | free_syms(index))
        given["index"] = index if isinstance(index, int) else place
        return tuple(given.values()), {}
    return args, kwargs


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
    if symbols.compare("lt", place, 0):
        place = place + n
        if symbols.compare("lt", place, 0):
            return 0
    return n if symbols.compare("gt", place, n) else place


def _is_kept(given: Size | None, place: Size, n: Size) -> bool:
    """Whether an argument means this place to whoever does not know the size, too."""
    if given is None:
        return True
    if isinstance(given, Expr):
        return given is place
    return given == place or (given < 0 and given + n == place) or (given >= INFINITE and place == n)


def view_of(func: OpOverload, args: Args, kwargs: Kwargs) -> TensorSpec | None:
    """What a slice or a selection gives for arguments that `in_range` gave; None for any other operator."""
    if func not in (SLICE, SELECT):
        return None
    given = _arguments(func, args, kwargs)
    source = given["self"].spec
    shape, stride = list(source.shape), list(source.stride)
    dim = given["dim"] % len(shape) if -len(shape) <= given["dim"] < len(shape) else None
    if dim is None:
        return None
    if func is SELECT:
        first = _from_start(given["index"], shape[dim])
        if isinstance(first, int) and isinstance(shape[dim], int) and not 0 <= first < shape[dim]:
            return None  # the operator refuses it
        offset = source.offset + first * stride[dim]
        del shape[dim], stride[dim]
    else:
        n, step = shape[dim], given["step"]
        if type(step) is not int or step < 1:
            return None
        first = 0 if given["start"] is None else _from_start(given["start"], n)
        last = n if given["end"] is None else _from_start(given["end"], n)
        if isinstance(n, int) and isinstance(first, int) and isinstance(last, int):
            first, last, _ = slice(given["start"], given["end"]).indices(n)
            last = max(first, last)
        offset = source.offset + first * stride[dim]
        shape[dim] = (last - first + (step - 1)) // step
        stride[dim] = stride[dim] * step
    return make_spec(tuple(shape), tuple(stride), source.dtype, source.device, offset)


def _from_start(place: Size, n: Size) -> Size:
    if not isinstance(place, int):
        return place
    if place >= INFINITE:
        return n
    return place + n if place < 0 else place
