"""Copies that move elements: concatenation, padding, flips, rolls, repetition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.graph.tensor_specs import row_major_spec
from smelt.loops.kernel_ir import Value
from smelt.loops.lazy_tensor import Index, Load, Tensor
from smelt.loops.loop_values import both, cast, compare, const, where
from smelt.loops.loop_values import index as index_value
from smelt.loops.lowering_builder import Builder
from smelt.ops.layouts.meta_layouts import META, fresh, like, of_cpp, on_any, suggested_format
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import declare, operator
from smelt.ops.trace_rules import TraceRule
from smelt.ops.view_operators import reshape_index
from smelt.shapes.expr import Size, numel

aten = torch.ops.aten

declare("cat stack constant_pad_nd flip roll repeat repeat_interleave", recompute=Class.MOVEMENT)
declare("block_diag cat constant_pad_nd flip repeat roll stack", any_size=True)
declare(aten.repeat_interleave.Tensor, trace_rule=TraceRule.VALUES)
declare("repeat_interleave", raises=True)  # for a negative count


def _repeats(new: Callable[[], Size], repeats: Any, output_size: Any) -> Any:
    spec = repeats.spec
    return NotImplemented if output_size is not None else row_major_spec((new(),), spec.dtype, spec.device)


declare(aten.repeat_interleave.Tensor, unbacked=("a sum of repeats", _repeats))
declare("cat stack", linear=("tensors",))
declare("constant_pad_nd", linear=("self value",))
declare("flip roll repeat", linear=("self",))
declare("flip", elements="once")


@operator(aten.cat.default, out=aten.cat.out)
def cat(b: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    """Empty vectors (shape (0,)) are ignored, as in ATen; operands may differ in dtype."""
    parts = [t for t in tensors if t.shape != (0,)]
    dim %= len(b.spec.shape)
    parts = [t for t in parts if t.shape[dim] != 0]
    return _joined(b, parts, dim, [t.shape[dim] for t in parts], lambda i, at: (*i[:dim], at, *i[dim + 1 :]))


@operator(aten.stack.default, out=aten.stack.out)
def stack(b: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    """`dim` counts in the result's dimensions."""
    dim %= len(b.spec.shape)
    return _joined(b, tensors, dim, [1] * len(tensors), lambda i, at: (*i[:dim], *i[dim + 1 :]))


def _joined(
    b: Builder,
    parts: Sequence[Tensor],
    dim: int,
    sizes: Sequence[Size],
    index: Callable[[Index, Size], Index],
) -> Tensor | None:
    """Operands concatenated along `dim`: a chain of `where` that reads each operand only in its range. None for so
    many operands that the chain takes longer than a copy of each."""
    if len(parts) > b.costs.concatenated_parts:
        return None
    dtype = b.spec.dtype
    starts = [sum(sizes[:k]) for k in range(len(sizes))]

    def element(load: Load, i: Index, k: int) -> Value:
        at: Size = 0 if sizes[k] == 1 else i[dim] - starts[k]
        return cast(load(parts[k], index(i, at)), dtype)

    def body(load: Load, i: Index) -> Value:
        return choose(load, i, 0, None)

    def choose(load: Load, i: Index, k: int, outside: Value | None) -> Value:
        if k == len(parts) - 1:
            return element(load if outside is None else load.where(outside), i, k)
        position, end = index_value(i[dim]), index_value(starts[k] + sizes[k])
        here, later = compare("lt", position, end), compare("ge", position, end)
        if here.op == "const":
            return element(load, i, k) if here.args[0] else choose(load, i, k + 1, outside)
        mask = both(outside, here)
        assert mask is not None
        return where(here, element(load.where(mask), i, k), choose(load, i, k + 1, both(outside, later)))

    return b.map(b.spec.shape, dtype, parts, body, cost=2.0 * (len(parts) - 1))


@operator(aten.constant_pad_nd.default)
def constant_pad_nd(b: Builder, x: Tensor, pad: Sequence[Size], value: float = 0) -> Tensor:
    """`pad` lists (before, after) from the last dimension on; a negative number crops."""
    before: list[Size] = [0] * len(x.shape)
    for k in range(len(pad) // 2):
        before[len(x.shape) - 1 - k] = pad[2 * k]
    after = [out - size - lo for out, size, lo in zip(b.spec.shape, x.shape, before)]
    fill = const(value, x.dtype)

    def body(load: Load, i: Index) -> Value:
        mask: Value | None = None
        for d, size in enumerate(x.shape):
            if before[d] != 0:
                mask = both(mask, compare("ge", index_value(i[d]), index_value(before[d])))
            if after[d] != 0:
                mask = both(mask, compare("lt", index_value(i[d]), index_value(before[d] + size)))
        at = tuple([0 if size == 1 else e - lo for e, size, lo in zip(i, x.shape, before)])
        if mask is None:
            return load(x, at)
        return where(mask, load.where(mask)(x, at), fill)

    return b.map(b.spec.shape, x.dtype, [x], body)


@operator(aten.flip.default)
def flip(b: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    """Element i of a flipped dimension of size n is element n - 1 - i of x."""
    flipped = {d % len(x.shape) for d in dims} if x.shape else set()
    return b.copy(
        x, x.shape, lambda i: tuple([x.shape[d] - 1 - e if d in flipped else e for d, e in enumerate(i)])
    )


@operator(aten.rot90.default)
def rot90(b: Builder, x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """k quarter turns from the first of `dims` towards the second."""
    first, second = (d % len(x.shape) for d in dims)

    last, end = x.shape[first] - 1, x.shape[second] - 1

    def index(i: Index) -> Index:
        u, v = i[first], i[second]
        turned = ((u, v), (v, end - u), (last - u, end - v), (last - v, u))[k % 4]
        at = dict(zip((first, second), turned))
        return tuple([at.get(d, e) for d, e in enumerate(i)])

    return b.copy(x, b.spec.shape, index)


@operator(aten.roll.default)
def roll(b: Builder, x: Tensor, shifts: Sequence[Size], dims: Sequence[int] = ()) -> Tensor:
    """Element i is element (i - shift) % size of x; without `dims` the flattened tensor rolls."""
    if not dims:
        return _roll_flat(b, x, shifts[0])
    shift: list[Size] = [0] * len(x.shape)
    for s, d in zip(shifts, dims):
        shift[d] += s

    def index(i: Index) -> Index:
        return tuple([(e - s) % n if s % n != 0 else e for e, s, n in zip(i, shift, x.shape)])

    return b.copy(x, x.shape, index)


def _roll_flat(b: Builder, x: Tensor, shift: Size) -> Tensor:
    total = numel(x.shape)
    flatten, unflatten = reshape_index((total,), x.shape), reshape_index(x.shape, (total,))
    return b.copy(x, x.shape, lambda i: unflatten(((flatten(i)[0] - shift) % total,)) if total != 1 else i)


@operator(aten.repeat.default)
def repeat(b: Builder, x: Tensor, repeats: Sequence[Size]) -> Tensor:
    """Element i is element i % size of x; additional repeats add dimensions in front."""
    skip = len(repeats) - len(x.shape)
    return b.copy(
        x, b.spec.shape, lambda i: tuple([0 if s == 1 else e % s for e, s in zip(i[skip:], x.shape)])
    )


# ---- shapes on a CPU


def pad_layout(x: torch.Tensor, pad: Sequence[int], value: Any = 0) -> Any:
    """A wider image in the memory format of the input."""
    return padded(x, pad) if any(p > 0 for p in pad) else NotImplemented


def padded(x: torch.Tensor, pad: Sequence[int]) -> Any:
    """The layout of an image that is padded or, by negative numbers, cropped: the memory format of the input."""
    shape = list(x.shape)
    if len(pad) % 2 or len(pad) > 2 * len(shape) or not x.numel():
        return NotImplemented
    for i in range(len(pad) // 2):
        shape[-1 - i] += pad[2 * i] + pad[2 * i + 1]
    if min(shape) <= 0:
        return NotImplemented
    return torch.empty(shape, dtype=x.dtype, device=META, memory_format=suggested_format(x))


def _flip_layout(x: torch.Tensor, dims: Sequence[int]) -> Any:
    """The layout of `x`."""
    rank = max(x.dim(), 1)
    known = all(-rank <= d < rank for d in dims) and len({d % rank for d in dims}) == len(dims)
    return like(x) if known and x.numel() else NotImplemented


def _roll_layout(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """A CPU rolls one dimension after another, each time concatenating two slices."""
    shifts, dims = ([v] if isinstance(v, int) else v for v in (shifts, dims))
    if x.numel() == 0 or len(shifts) != len(dims) or not dims:
        return NotImplemented
    for shift, dim in zip(shifts, dims):
        start = -shift % x.size(dim)
        parts = [x.narrow(dim, start, x.size(dim) - start), x.narrow(dim, 0, start)]
        x = of_cpp(aten.cat.default, (parts, dim), {})
    return x


def _diag_embed_layout(x: torch.Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Zeros with the rows of `x` on a diagonal, in row-major order."""
    first, second = (d % (x.dim() + 1) for d in (dim1, dim2))
    if first == second or not x.dim():
        return NotImplemented
    shape = list(x.shape[:-1])
    for d in sorted((first, second)):
        shape.insert(d, x.shape[-1] + abs(offset))
    return fresh(shape, x.dtype)


declare(aten.constant_pad_nd.default, layout=pad_layout, layout_on=on_any(pad_layout))
declare(aten.roll.default, layout=_roll_layout)
declare(aten.diag_embed.default, layout=_diag_embed_layout)
declare(aten.flip.default, run_on_zeros=True, layout=_flip_layout)
