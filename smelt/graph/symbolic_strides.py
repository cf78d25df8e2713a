"""Strides that ATen gives to results, where sizes and strides may be symbolic: those of TensorIterator, of `empty_like` and
of memory formats.

Symbolic sizes are at least 2. Each function returns None where the order of dimensions in memory depends on symbols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from smelt.graph.ir import TensorSpec
from smelt.shapes.expr import Expr, Size, Sym, contiguous_stride, proves_le

Sizes = tuple[Size, ...]


def is_contiguous(shape: Sequence[Size], stride: Sequence[Size]) -> bool:
    """`Tensor.is_contiguous()`: strides of dimensions of size 1 are arbitrary."""
    return 0 in shape or _is_packed(shape, stride, range(len(shape) - 1, -1, -1))


def iterator_stride(specs: Sequence[TensorSpec], shape: Sizes, numbers: bool = False) -> Sizes | None:
    """The strides of the result of a TensorIterator over these operands, and `numbers`, which broadcast to `shape`."""
    if not numbers and all(spec.shape == shape for spec in specs):
        if all(is_contiguous(shape, spec.stride) for spec in specs):
            return torch_stride(shape)
        last = (1, 3, 2, 0)
        if len(shape) == 4 and all(_is_packed(shape, spec.stride, last) for spec in specs):
            return channels_last_stride(shape)
        if len({spec.stride for spec in specs}) == 1 and is_dense(shape, specs[0].stride):
            return specs[0].stride
    order = _order(shape, [broadcast_stride(spec, shape) for spec in specs])
    if order is None:
        return None
    return torch_stride(shape) if order == [*range(len(shape))][::-1] else _stride_in(shape, order)


def like_stride(shape: Sizes, stride: Sizes) -> Sizes | None:
    """The strides of `empty_like`: those of a dense tensor, else dense ones with the same order of dimensions."""
    if is_contiguous(shape, stride) or is_dense(shape, stride):
        return stride
    order = _order(shape, [stride])
    return None if order is None else _stride_in([n if n != 0 else 1 for n in shape], order)


def format_stride(shape: Sizes, spec: TensorSpec) -> Sizes | None:
    """The strides of a tensor of this shape in the memory format that `suggest_memory_format` names for an operand."""
    is_last = suggests_channels_last(spec.shape, spec.stride)
    if is_last is None:
        return None
    return channels_last_stride(shape) if is_last else torch_stride(shape)


def suggests_channels_last(shape: Sequence[Size], stride: Sequence[Size]) -> bool | None:
    """Whether `suggest_memory_format` names a channels-last format."""
    rank = len(shape)
    if rank not in (4, 5) or stride[1] == 0 or 0 in shape:
        return False
    known = _least(shape)
    shape, stride = ([_assumed(n, known) for n in sizes] for sizes in (shape, stride))
    least: Size = 0
    for d in (1, *range(rank - 1, 1, -1), 0):
        order = _compared(stride[d], least)
        if order is None:
            return None
        if order < 0 or (d == 0 and least == stride[1]):
            return False
        least = stride[d] * shape[d]
    return True


def torch_stride(shape: Sequence[Size]) -> Sizes:
    """The strides of `torch.empty(shape)`: a dimension without elements counts as one of size 1."""
    return contiguous_stride([n if n != 0 else 1 for n in shape])


def channels_last_stride(shape: Sizes) -> Sizes:
    """The strides of a channels-last tensor."""
    return _stride_in(shape, [1, *range(len(shape) - 1, 1, -1), 0])


def view_stride(shape: Sizes, stride: Sizes, size: Sizes) -> Sizes | None:
    """The strides of a view with the sizes `size`, which have as many elements; None too if there is no such view."""
    if 0 in shape:
        return stride if size == shape else torch_stride(size)
    made: list[Size] = []
    left = list(size)
    chunk: Size = 1  # elements of the dimensions that are contiguous with dimension d
    base = stride[-1] if stride else 1
    for d in range(len(shape) - 1, -1, -1):
        chunk = chunk * shape[d]
        if d and (shape[d - 1] == 1 or stride[d - 1] == chunk * base):
            continue
        viewed: Size = 1
        while left and (viewed != chunk or left[-1] == 1):
            made.insert(0, viewed * base)
            viewed = viewed * left.pop()
        if viewed != chunk:
            return None
        chunk, base = 1, stride[d - 1]
    return (*(1 for _ in left), *made) if not shape or not left else None


def _is_packed(shape: Sequence[Size], stride: Sequence[Size], inner_first: Sequence[int]) -> bool:
    step: Size = 1
    for d in inner_first:
        if shape[d] == 1:
            continue
        if stride[d] != step:
            return False
        step = step * shape[d]
    return True


def is_dense(shape: Sequence[Size], stride: Sequence[Size]) -> bool:
    """Whether the elements fill their memory without gaps, in any order of the dimensions."""
    step: Size = 1
    left = [d for d, n in enumerate(shape) if n != 1]
    while left:
        d = next((d for d in left if stride[d] == step), None)
        if d is None:
            return False
        left.remove(d)
        step = step * shape[d]
    return True


def broadcast_stride(spec: TensorSpec, shape: Sizes) -> Sizes:
    """The strides of the tensor expanded to `shape`."""
    new = len(shape) - len(spec.shape)
    pairs = zip(spec.shape, spec.stride, shape[new:])
    return (*(0 for _ in range(new)), *(0 if n == 1 and whole != 1 else step for n, step, whole in pairs))


def _order(shape: Sequence[Size], strides: Sequence[Sequence[Size]]) -> list[int] | None:
    """The dimensions, innermost first, in the order of the first operand whose strides tell two of them apart
    (`TensorIteratorBase::reorder_dimensions`, an insertion sort)."""
    least = _least(shape)
    shape, *strides = ([_assumed(n, least) for n in sizes] for sizes in (shape, *strides))
    order = list(range(len(shape) - 1, -1, -1))
    for i in range(1, len(order)):
        at = i
        for k in range(i - 1, -1, -1):
            found = _compared_dims(shape, strides, order[k], order[at])
            if found is None:
                return None
            if found > 0:
                order[k], order[at] = order[at], order[k]
                at = k
            elif found < 0:
                break
    return order


def _compared_dims(
    shape: Sequence[Size], strides: Sequence[Sequence[Size]], first: int, second: int
) -> int | None:
    for stride in strides:
        if stride[first] == 0 or stride[second] == 0:
            continue
        found = _compared(stride[first], stride[second])
        if found is None or found != 0:
            return found
        sizes = _compared(shape[first], shape[second])
        if sizes is None or sizes > 0:
            return sizes
    return 0


def _least(shape: Sequence[Size]) -> dict[Expr, int]:
    """The least values of atoms of these sizes, each of which is at least 2."""
    least: dict[Expr, int] = {}
    for size in shape:
        if isinstance(size, int) or len(size.terms) > 1:
            continue
        ((atoms, factor),) = size.terms
        if len(atoms) == 1 and factor > 0:
            least[atoms[0]] = max(least.get(atoms[0], 0), -((size.const - 2) // factor))
        elif size.const == 0:
            least |= {atom: max(least.get(atom, 0), 1) for atom in atoms}
    return least


def _assumed(size: Size, least: Mapping[Expr, int]) -> Size:
    """The size with atoms as symbols whose least values are known."""
    if isinstance(size, int) or not least:
        return size
    total: Size = size.const
    for atoms, factor in size.terms:
        term: Size = factor
        for atom in atoms:
            low = least.get(atom, 0)
            term = term * (atom if low <= atom.lo else Sym(f"{atom}>={low}", low, max(atom.hi, low)))
        total = total + term
    return total


@cache
def _compared(a: Size, b: Size) -> int | None:
    """-1, 0 or 1 if `a` is less than, equal to or greater than `b` for all sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return (a > b) - (a < b)
    if a is b:
        return 0
    return -1 if proves_le(a + 1, b) else 1 if proves_le(b + 1, a) else None


def _stride_in(shape: Sequence[Size], inner_first: Sequence[int]) -> Sizes:
    """Dense strides with this order of dimensions."""
    made: list[Size] = [0] * len(shape)
    step: Size = 1
    for d in inner_first:
        made[d] = step
        step = step * shape[d]
    return tuple(made)
