"""Split long reductions over few rows into chunks that workers (a CPU's threads) share.

`sum(x)` of a large x becomes `sum(parts)` with `parts[p] = sum(x[p-th chunk])`: two reductions, the first with an
outer loop over the chunks. Their number depends on shapes, layouts and the number of workers (which is guarded), so
results do not change from call to call.

On a GPU (`costs.splits_further`), which needs hundreds of chunks, several loops may be cut, and the last chunk may be
shorter. A reduction too short for all workers is cut for some: one program would take long to go through it block by
block, and would add up long chains, which is less exact than eager (for 300,007 equal numbers 6e-7, relative to the
sum; eager's chains are as long as those of chunks of 16 and less). Sums over rows that another reduction also walks
are cut into chunks of rows, one per program, so that sibling fusion (`sibling_fusion.py`) can compute them. For
symbolic sizes the loops of a reduction become one, cut into as many chunks as likely sizes need; for small sizes some
chunks are empty. On a CPU loops that run along memory are treated likewise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import torch

from smelt.cost_model import Costs
from smelt.graph.ir import TensorSpec
from smelt.loops.kernel_ir import ReductionKind, Value
from smelt.loops.lazy_tensor import Index, Load, Map, Program, Reduce, Tensor
from smelt.loops.loop_values import compare, const, where
from smelt.loops.loop_values import index as index_value
from smelt.loops.tensor_replacement import Rewriting
from smelt.schedule.index_spaces import linear, own_loops
from smelt.schedule.inlining import required_in_memory
from smelt.shapes.expr import Size, Sym, affine, ceil_div, contiguous_stride, likely, numel

Cuts = tuple[tuple[int, int], ...]  # loops of a reduction that are cut, and into how many parts
SEEN_THROUGH = 20  # elementwise operators between a reduction and the memory whose layout decides


def split_reductions(program: Program, costs: Costs) -> Program:
    """The program with those reductions split that have fewer rows than `costs.threads` workers."""
    if costs.threads < 2:
        return program
    stored = required_in_memory(program)
    reductions = [
        (step, step.definition)
        for step in program.steps
        if isinstance(step, Tensor) and isinstance(step.definition, Reduce)
    ]
    reads = _Reads()
    largest = functools.cache(functools.partial(_largest, reads, stored=frozenset(), depth=SEEN_THROUGH))
    widths = _widths(reductions, largest, costs)
    chunks = {step: n for step, reduce in reductions if (n := _chunks(step, reduce, widths, largest, costs))}
    for tensor, reduce in reductions:
        if (
            tensor not in chunks
            and (parts := _likely_parts(tensor, reduce, reads, stored, costs)) is not None
        ):
            chunks[tensor] = parts
    cuts: dict[Tensor, Cuts] = {
        step: cut
        for step, reduce in reductions
        if step not in chunks and (cut := _cut(step, reduce, reads, stored, costs)) is not None
    }
    if not cuts and not chunks:
        return program
    rewriting = Rewriting()
    for step in program.steps:
        if isinstance(step, Tensor) and (step in cuts or step in chunks):
            split = rewriting.step(step)
            assert isinstance(split, Tensor)
            if step in chunks:
                split = _over_one_loop(split)
            partial, whole = _split(split, cuts.get(step) or ((0, chunks[step]),))
            rewriting.put(partial)
            rewriting.put(whole, instead_of=step)
        else:
            rewriting.put(rewriting.step(step), instead_of=step)
    return rewriting.program(program)


Reductions = Sequence[tuple[Tensor, Reduce]]
Widths = dict[Tensor, set[int]]
Read = tuple[Tensor, list[int], list[int]]  # a tensor, and how far apart neighbours are in it (`_strides`)
Largest = Callable[[Tensor, Reduce], list[Read]]


def _widths(reductions: Reductions, largest: Largest, costs: Costs) -> Widths:
    """Row lengths of the materialized tensors that are reduced along rows."""
    widths: Widths = {}
    for tensor, reduce in reductions if costs.row_sums else ():
        rows, width = numel(tensor.shape), numel(reduce.sizes)
        if not isinstance(rows, int) or not isinstance(width, int) or width > costs.row_sums // 2:
            continue
        for source, _, reduced in largest(tensor, reduce):
            if 1 in reduced and _count(source) == rows * width:
                widths.setdefault(source, set()).add(width)
    return widths


def _chunks(tensor: Tensor, reduce: Reduce, widths: Widths, largest: Largest, costs: Costs) -> int | None:
    """The number of chunks for sums over rows that sibling fusion can compute; None for other reductions."""
    width, rows = numel(tensor.shape), numel(reduce.sizes)
    if not widths or reduce.kind in ("argmax", "argmin") or not isinstance(rows, int):
        return None
    found = largest(tensor, reduce)
    if not any(1 in kept and width in widths.get(source, ()) for source, kept, _ in found):
        return None
    most = rows // costs.least_rows
    if most < costs.threads:
        return None
    wanted = min(most, max(costs.worker_items * costs.threads, rows // costs.most_rows))
    for chunks in range(wanted, max(wanted // 2, costs.threads), -1):
        if rows % chunks == 0:  # no row is asked for whether it is there
            return chunks
    return -(-rows // -(-rows // wanted))


def _reduction(tensor: Tensor) -> Reduce:
    assert isinstance(tensor.definition, Reduce)
    return tensor.definition


def _over_one_loop(tensor: Tensor) -> Tensor:
    """The same reduction over one loop that counts the points in order."""
    reduce = _reduction(tensor)
    if len(reduce.sizes) == 1:
        return tensor

    first = next((d for d, size in enumerate(reduce.sizes) if size != 1), 0)

    def body(load: Load, index: Index, position: Index) -> Value:
        at: list[Size] = [0] * len(reduce.sizes)
        rest = position[0]
        for d, size in reversed(list(enumerate(reduce.sizes))):
            # Without a remainder, the first one is right beyond the end, too: parts may go there, under a mask.
            if size != 1:
                at[d], rest = rest if d == first else rest % size, rest // size
        return reduce.body(load, index, tuple(at))

    return replace(tensor, definition=replace(reduce, sizes=(numel(reduce.sizes),), body=body))


def _cut(
    tensor: Tensor, reduce: Reduce, reads: _Reads, stored: AbstractSet[Tensor], costs: Costs
) -> Cuts | None:
    """The loops of the reduction to cut; None: do not split it."""
    rows, points = numel(tensor.shape), numel(reduce.sizes)
    if not isinstance(rows, int) or not isinstance(points, int) or reduce.kind in ("argmax", "argmin"):
        return None
    wanted = costs.worker_items * costs.threads
    if rows * points < costs.split_points or rows >= costs.item_columns * wanted:
        return None
    strides = _strides(reads, tensor, reduce, stored, SEEN_THROUGH if costs.splits_further else 0)
    if strides is None:
        return None
    kept, reduced = strides
    items = _items(tensor.shape, kept, costs)
    if items >= 2 * costs.threads:
        return None
    want = -(-wanted // items)
    most = min(4 * want, rows * points // items // costs.part_points, points // 2)
    # Parts for all workers would be too short; one program would take long, and add up long chains.
    if costs.splits_further and most < want:
        if rows * points // items <= costs.split_points:
            return None
        want = most // 2 + 1  # of at most twice `part_points`, a power of two
    sizes = [(d, reduce.sizes[d]) for d in sorted(range(len(reduced)), key=lambda d: -reduced[d])]
    known = [(d, size) for d, size in sizes if isinstance(size, int)]
    for d, size in known:
        parts = _divisor(size, want, most)
        if parts is not None:
            return ((d, parts),)
    return _cut_further(known, want, most) if costs.splits_further else None


def _likely_parts(
    tensor: Tensor, reduce: Reduce, reads: _Reads, stored: AbstractSet[Tensor], costs: Costs
) -> int | None:
    """The number of chunks for a reduction over symbolic sizes; None: do not split it."""
    rows, points = numel(tensor.shape), numel(reduce.sizes)
    if isinstance(points, int) or reduce.kind in ("argmax", "argmin"):
        return None
    if not costs.splits_further:
        # A CPU's vectors are neighbours: along the joined loops, too.
        joined = _over_one_loop(tensor)
        lies = _strides(reads, joined, _reduction(joined), stored, 0)
        if likely(rows * points) < costs.split_points or lies is None or lies[1] != [1]:
            return None
    wanted = costs.worker_items * costs.threads
    strides = _strides(reads, tensor, reduce, stored, SEEN_THROUGH if costs.splits_further else 0)
    if strides is None or likely(rows) >= costs.item_columns * wanted:
        return None
    items = _items(tuple(map(likely, tensor.shape)), strides[0], costs)
    parts = -(-wanted // items)
    return parts if items < 2 * costs.threads and likely(points) >= parts * costs.least_rows else None


def _items(shape: Sequence[Size], strides: Sequence[int], costs: Costs) -> int:
    """The number of work items among the sums; adjacent sums down rows are one. `strides`: of their operands."""
    rows = numel(shape)
    assert isinstance(rows, int)
    if 1 not in strides:
        return rows
    along = _neighbours(shape, strides, costs.splits_further)
    return rows // along * -(-along // costs.item_columns)


def _neighbours(shape: Sequence[Size], strides: Sequence[int], several: bool) -> int:
    """The number of adjacent sums: along the dimension of stride 1, or with `several`, all that continue it."""
    count, at = 1, {stride: d for d, stride in reversed(list(enumerate(strides)))}
    while count in at:
        size = shape[at.pop(count)]
        assert isinstance(size, int)
        count *= size
        if not several:
            break
    return count


def _divisor(size: int, want: int, most: int) -> int | None:
    return next((parts for parts in range(want, min(most, size) + 1) if size % parts == 0), None)


def _cut_further(loops: Sequence[tuple[int, int]], want: int, most: int) -> Cuts | None:
    """Of several loops, outermost first: short loops fully, then a fraction of one; else chunks of one loop with a
    shorter last chunk; else as many chunks as there are."""
    cuts: list[tuple[int, int]] = []
    parts = 1
    for d, size in loops:
        more = _divisor(size, -(-want // parts), most // parts)
        if more is not None:
            return (*cuts, (d, more))
        if parts * size > want:
            break
        cuts.append((d, size))
        parts *= size
    for d, size in loops:
        if size >= 2 * want and want <= most:
            return ((d, -(-size // -(-size // want))),)
    return tuple(cut for cut in cuts if cut[1] > 1) if 1 < parts <= most else None


def _strides(
    reads: _Reads, tensor: Tensor, reduce: Reduce, stored: AbstractSet[Tensor], depth: int
) -> tuple[list[int], list[int]] | None:
    """Strides in the largest tensor read (through at most `depth` elementwise operators that are not `stored`): along
    the result's dimensions, and along the reduction's loops."""
    found = _largest(reads, tensor, reduce, stored, depth)
    return found[0][1:] if found else None


def _largest(
    reads: _Reads, tensor: Tensor, reduce: Reduce, stored: AbstractSet[Tensor], depth: int
) -> list[Read]:
    """The largest tensors read, with their strides as in `_strides`."""
    index, _ = own_loops(tensor.shape, "d")
    position, _ = own_loops(reduce.sizes, "r")
    first = _noted(reduce.body, index, position)
    found = [(t, i) for t, i in reads.behind(first, stored, depth) if t.shape]
    most = max((likely(numel(t.shape)) for t, _ in found), default=0)
    addresses = [(source, linear(source, at)) for source, at in found if likely(numel(source.shape)) == most]
    return [
        (source, [_stride(address, e) for e in index], [_stride(address, e) for e in position])
        for source, address in addresses
    ]


def _count(tensor: Tensor) -> int:
    total = numel(tensor.shape)
    return total if isinstance(total, int) else 0


def _stride(address: Size, e: Size) -> int:
    split = affine(address, e) if isinstance(e, Sym) else None
    return split[0] if split is not None and isinstance(split[0], int) else 0


Element = tuple[Tensor, Index]
Picks = tuple[
    tuple[Tensor, tuple[int, ...]], ...
]  # tensors, and which dimensions of an index theirs is; -1: 0


class _Reads:
    """The reads of elementwise operators, memoized for those that index by their own index."""

    def __init__(self) -> None:
        self._picks = functools.cache(_picks)

    def behind(self, first: Iterable[Element], stored: AbstractSet[Tensor], depth: int) -> list[Element]:
        """`first`, with elementwise operators (at most `depth` of them, not `stored`) replaced by their own reads."""
        found: dict[Element, None] = {}
        left: dict[Element, int] = {}  # how many more are seen through below each that was

        def see(elements: Iterable[Element], depth: int) -> None:
            for element in elements:
                tensor = element[0]
                if not depth or not isinstance(tensor.definition, Map) or tensor in stored:
                    found[element] = None
                elif left.get(element, 0) < depth:
                    left[element] = depth
                    see(self.of(*element), depth - 1)

        see(first, depth)
        return list(found)

    def of(self, tensor: Tensor, index: Index) -> list[Element]:
        """The reads of an element of an elementwise operator."""
        if (picks := self._picks(tensor)) is None:
            return _noted(_map(tensor).body, index)
        return [(source, tuple([index[d] if d >= 0 else 0 for d in dims])) for source, dims in picks]


def _picks(tensor: Tensor) -> Picks | None:
    """The reads of a tensor; None if their indices are computed."""
    index, _ = own_loops(tensor.shape, "d")
    dims: dict[Size, int] = {0: -1} | {e: d for d, e in enumerate(index) if isinstance(e, Sym)}
    elements = _noted(_map(tensor).body, index)
    if not all(e in dims for _, at in elements for e in at):
        return None
    return tuple((source, tuple([dims[e] for e in at])) for source, at in elements)


def _map(tensor: Tensor) -> Map:
    assert isinstance(tensor.definition, Map)
    return tensor.definition


def _noted(body: Callable[..., Value], *indices: Index) -> list[Element]:
    """The reads of a body, each element once."""
    noted = _Noted()
    body(noted, *indices)
    return list(noted.elements)


class _Noted:
    """A `Load` that records reads."""

    def __init__(self) -> None:
        self.elements: dict[Element, None] = {}

    def __call__(self, tensor: Tensor, index: Index) -> Value:
        self.elements[tensor, index] = None
        return Value("load", (tensor.order, index, None), tensor.dtype)

    def where(self, mask: Value) -> Load:
        return self


def _split(tensor: Tensor, cuts: Cuts) -> tuple[Tensor, Tensor]:
    """The reductions of the chunks, as new first dimensions, and the reduction of their results."""
    reduce = _reduction(tensor)
    lengths = {d: ceil_div(reduce.sizes[d], parts) for d, parts in cuts}
    sizes = tuple(lengths.get(d, size) for d, size in enumerate(reduce.sizes))
    counts = tuple(parts for _, parts in cuts)
    shape = (*counts, *tensor.shape)
    ends = {d: reduce.sizes[d] for d, parts in cuts if lengths[d] * parts != reduce.sizes[d]}

    def body(load: Load, index: Index, position: Index) -> Value:
        at = list(position)
        for (d, _), part in zip(cuts, index):
            at[d] = part * lengths[d] + position[d]
        rest = index[len(cuts) :]
        if not ends:
            return reduce.body(load, rest, tuple(at))
        [(d, end)] = ends.items()
        inside = compare("lt", index_value(at[d]), _number(end))
        value = reduce.body(load.where(inside), rest, tuple(at))
        return where(inside, value, const(_neutral(reduce.kind, value.dtype), value.dtype))

    spec = TensorSpec(shape, contiguous_stride(shape), tensor.dtype, tensor.spec.device)
    definition = Reduce(reduce.inputs, reduce.kind, sizes, body, reduce.cost)
    partial = Tensor(tensor.name, spec, definition, tensor.line, tensor.order - 1)

    def joined(load: Load, index: Index, position: Index) -> Value:
        return load(partial, (*position, *index))

    return partial, replace(tensor, definition=Reduce((partial,), reduce.kind, counts, joined))


def _number(size: Size) -> Value:
    return const(size, torch.int64) if isinstance(size, int) else index_value(size)


def _neutral(kind: ReductionKind, dtype: torch.dtype) -> float | int | bool:
    """The neutral element of a reduction."""
    if kind not in ("max", "min"):
        return kind in ("prod", "all")
    if dtype.is_floating_point:
        return -math.inf if kind == "max" else math.inf
    if dtype is torch.bool:
        return kind == "min"
    return torch.iinfo(dtype).min if kind == "max" else torch.iinfo(dtype).max
