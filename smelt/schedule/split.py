"""Splits long reductions over few rows into parts that workers (a CPU's threads) can share.

`sum(x)` of a large x becomes `sum(parts)` with `parts[p] = sum(x[p-th part])`: two reductions, of which the first has an
outer loop over the parts. How many there are depends on shapes, layouts and the number of workers (which is guarded), so
results do not change from call to call.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.costs import Costs
from smelt.graph.ir import TensorSpec
from smelt.graph.sizes import Size, Sym, affine, contiguous_stride, numel
from smelt.loops.ir import Value
from smelt.loops.rewrite import Rewriting
from smelt.loops.tensor import Index, Load, Program, Reduce, Tensor
from smelt.schedule.kernels import linear
from smelt.schedule.spaces import own_loops


def split_reductions(program: Program, costs: Costs) -> Program:
    """The program with those reductions split that have too few rows for `costs.threads` workers."""
    if costs.threads < 2:
        return program
    cuts = {
        step: cut
        for step in program.steps
        if isinstance(step, Tensor)
        and isinstance(step.definition, Reduce)
        and (cut := _cut(step, step.definition, costs)) is not None
    }
    if not cuts:
        return program
    rewriting = Rewriting()
    for step in program.steps:
        if isinstance(step, Tensor) and step in cuts:
            split = rewriting.step(step)
            assert isinstance(split, Tensor)
            partial, whole = _split(split, *cuts[step])
            rewriting.put(partial)
            rewriting.put(whole, instead_of=step)
        else:
            rewriting.put(rewriting.step(step), instead_of=step)
    return rewriting.program(program)


def _cut(tensor: Tensor, reduce: Reduce, costs: Costs) -> tuple[int, int] | None:
    """(which of the reduction's loops to cut, into how many parts); None: leave it whole."""
    rows, points = numel(tensor.shape), numel(reduce.sizes)
    if not isinstance(rows, int) or not isinstance(points, int) or reduce.kind in ("argmax", "argmin"):
        return None
    wanted = costs.worker_items * costs.threads
    if rows * points < costs.split_points or rows >= costs.item_columns * wanted:
        return None
    strides = _strides(tensor, reduce)
    if strides is None:
        return None
    kept, reduced = strides
    items = rows
    if 1 in kept:  # neighbouring sums run down rows together
        along = tensor.shape[kept.index(1)]
        assert isinstance(along, int)
        items = rows // along * -(-along // costs.item_columns)
    if items >= 2 * costs.threads:
        return None
    want = -(-wanted // items)
    most = min(4 * want, rows * points // items // costs.part_points)
    for d in sorted(range(len(reduced)), key=lambda d: -reduced[d]):
        size = reduce.sizes[d]
        for parts in range(want, most + 1):
            if isinstance(size, int) and size % parts == 0:
                return d, parts
    return None


def _strides(tensor: Tensor, reduce: Reduce) -> tuple[list[int], list[int]] | None:
    """How far apart neighbours are in the memory of the largest tensor read: along the result's dimensions, and along the
    reduction's loops."""
    index, _ = own_loops(tensor.shape, "d")
    position, _ = own_loops(reduce.sizes, "r")
    seen = _Seen()
    reduce.body(seen, index, position)
    reads = [(t, i) for t, i in seen.reads if t.shape]
    if not reads:
        return None
    source, at = max(reads, key=lambda r: _count(r[0]))
    address = linear(source, at)
    return [_stride(address, e) for e in index], [_stride(address, e) for e in position]


def _count(tensor: Tensor) -> int:
    total = numel(tensor.shape)
    return total if isinstance(total, int) else 0


def _stride(address: Size, e: Size) -> int:
    split = affine(address, e) if isinstance(e, Sym) else None
    return split[0] if split is not None and isinstance(split[0], int) else 0


class _Seen:
    """A `Load` that notes what is read."""

    def __init__(self) -> None:
        self.reads: list[tuple[Tensor, Index]] = []

    def __call__(self, tensor: Tensor, index: Index) -> Value:
        self.reads.append((tensor, index))
        return Value("load", (tensor.order, index, None), tensor.dtype)

    def where(self, mask: Value) -> Load:
        return self


def _split(tensor: Tensor, d: int, parts: int) -> tuple[Tensor, Tensor]:
    """The reductions of the parts, as a new first dimension, and the reduction of those."""
    reduce = tensor.definition
    assert isinstance(reduce, Reduce)
    length = reduce.sizes[d] // parts
    sizes = (*reduce.sizes[:d], length, *reduce.sizes[d + 1 :])
    shape = (parts, *tensor.shape)

    def body(load: Load, index: Index, position: Index) -> Value:
        at = index[0] * length + position[d]
        return reduce.body(load, index[1:], (*position[:d], at, *position[d + 1 :]))

    spec = TensorSpec(shape, contiguous_stride(shape), tensor.dtype, tensor.spec.device)
    definition = Reduce(reduce.inputs, reduce.kind, sizes, body, reduce.cost)
    partial = Tensor(tensor.name, spec, definition, tensor.line, tensor.order - 1)

    def joined(load: Load, index: Index, position: Index) -> Value:
        return load(partial, (position[0], *index))

    return partial, replace(tensor, definition=Reduce((partial,), reduce.kind, (parts,), joined))
