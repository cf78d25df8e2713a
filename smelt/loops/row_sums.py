"""Sums over rows in the kernel that computes the rows.

A layer norm's backward computes a row for each row that it reads, and sums over all rows for weight and bias: a kernel
whose outer points are rows, and one that reduces each column of a chunk of rows (`schedule.split_reductions`).
`Kernel.sums` fuses the second into the first: for each chunk, its rows are computed in sequence, and each row's
contribution is added while the row is in registers or cache. Nothing is read twice.

`obstacle` checks that this is equivalent. A row's stages are over its columns; the sums' outer loops are over chunks,
then columns, and their stage is over a chunk's rows: row k of chunk c is the outer point c * (rows of a chunk) + k.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from smelt.loops.kernel_ir import (
    Kernel,
    Loop,
    MapStage,
    ReduceStage,
    Reduction,
    Stage,
    Sums,
    Value,
    indices,
    stage_loops,
    stage_stores,
    stage_values,
    walk,
)
from smelt.loops.loop_values import Moved, compare, where
from smelt.shapes.expr import Size, Sym, free_syms, static, subs


def parts(kernel: Kernel) -> tuple[Kernel, ...]:
    """Kernels on the same buffers that, in sequence, are equivalent to `kernel`: itself, or its rows and its sums."""
    if kernel.sums is None:
        return (kernel,)
    return replace(kernel, sums=None), replace(
        kernel, outer=kernel.sums.outer, stages=kernel.sums.stages, sums=None
    )


def separate(kernel: Kernel) -> tuple[tuple[Kernel, tuple[int, ...]], ...]:
    """`parts`, each on the buffers that it needs, with the positions of those among the kernel's."""
    if kernel.sums is None:
        return ((kernel, tuple(range(len(kernel.buffers)))),)
    return tuple(map(_on_its_buffers, parts(kernel)))


def _on_its_buffers(part: Kernel) -> tuple[Kernel, tuple[int, ...]]:
    loaded = {v.args[0] for s in part.stages for v in walk(stage_values(s)) if v.op == "load"}
    stored = {store.buffer for s in part.stages for store in stage_stores(s)}
    used = tuple(sorted(loaded | stored))
    numbers = [used.index(i) if i in used else -1 for i in range(len(part.buffers))]
    moved = _Stages({}, buffer_numbers=numbers)
    buffers = tuple(part.buffers[i] if i in stored else replace(part.buffers[i], role="in") for i in used)
    return replace(part, buffers=buffers, stages=tuple(map(moved.stage, part.stages))), used


def rows_of(kernel: Kernel) -> int:
    """The number of rows (outer points) of a kernel."""
    return _points(kernel.outer)


def columns_of(kernel: Kernel) -> int:
    """The number of points of its stages with loops; 0 if they differ."""
    found = {n for stage in kernel.stages if (n := _points(stage_loops(stage))) > 1}
    return found.pop() if len(found) == 1 else 0


def chunk_rows(sums: Sums) -> int:
    """Rows per chunk; the last chunk may have fewer."""
    return _points(stage_loops(sums.stages[0]))


def digits(loops: Sequence[Loop], number: Size) -> dict[Sym, Size]:
    """Each loop's symbol as an expression of the flattened index. A loop without points has no symbol values."""
    found: dict[Sym, Size] = {}
    rest = number
    for position, loop in reversed(list(enumerate(loops))):
        size = 1 if loop.size == 0 else loop.size
        found[loop.sym] = rest if position == 0 else rest % size
        rest = rest // size
    return found


def fuse_siblings(rows: Kernel, sums: Kernel, buffer_numbers: Sequence[int]) -> Kernel | str:
    """`rows` and the following `sums` as one kernel, or why that is not equivalent. `buffer_numbers`: for each buffer of
    `sums`, its index among those of `rows`, or after them."""
    known = rows.sums
    count = len(_reductions(known.stages[0])) if known is not None else 0
    names = {r.name: f"s{k}" for k, r in enumerate((r for s in sums.stages for r in _reductions(s)), count)}
    moved = _Stages({}, names, buffer_numbers)
    further = [b for b, n in zip(sums.buffers, buffer_numbers, strict=True) if n >= len(rows.buffers)]
    made = Sums(sums.outer, tuple(moved.stage(stage) for stage in sums.stages))
    kernel = replace(rows, buffers=(*rows.buffers, *further), sums=made)
    found = obstacle(kernel)
    if found is None and known is not None:
        both = _both(known, made)
        if both is None:
            return "they are of other chunks than those that are there"
        kernel = replace(kernel, sums=both)
        found = obstacle(kernel)
    return found or kernel


def _both(first: Sums, second: Sums) -> Sums | None:
    """The sums of both, over the same chunks."""
    (a, stored), (b, more) = first.stages, second.stages
    assert isinstance(a, ReduceStage) and isinstance(b, ReduceStage)
    assert isinstance(stored, MapStage) and isinstance(more, MapStage)
    if first.outer != second.outer or a.loops != b.loops:
        return None
    reduce = ReduceStage(a.loops, (*a.reductions, *b.reductions), (*a.stores, *b.stores))
    return Sums(first.outer, (reduce, MapStage((), (*stored.stores, *more.stores))))


def row_stage(kernel: Kernel) -> ReduceStage:
    """The sums' reductions as a stage of a row, over one loop of its columns: each row's contribution."""
    sums = kernel.sums
    assert sums is not None
    _, *columns = sums.outer
    (stage, _) = sums.stages
    assert isinstance(stage, ReduceStage)
    (k,) = stage.loops
    chunk = _chunk(sums)
    width = _points(columns)
    along = Loop(Sym("i0", 0, width - 1), width)
    x = _flat(kernel.outer)
    moved = _Stages({sums.outer[0].sym: chunk, k.sym: x - chunk * k.size, **digits(columns, along.sym)})
    there = moved.stage(stage)
    assert isinstance(there, ReduceStage)
    return replace(there, loops=(along,))


def _chunk(sums: Sums) -> Sym:
    """The chunk's index, under a name that no loop of the rows has."""
    return Sym("chunk", 0, static(sums.outer[0].size) - 1)


def obstacle(kernel: Kernel) -> str | None:
    """Why a kernel's sums cannot be fused into its rows; None if they can."""
    return next(_obstacles(kernel), None)


def _obstacles(kernel: Kernel) -> Iterator[str]:
    sums = kernel.sums
    assert sums is not None
    reduce, *rest = sums.stages
    if not isinstance(reduce, ReduceStage) or len(reduce.loops) != 1 or len(rest) != 1 or not sums.outer:
        yield "the sums are not those of chunks of rows"
        return
    (stored,) = rest
    if not isinstance(stored, MapStage) or stored.loops:
        yield "the sums are not stored once"
        return
    if any(r.kind.startswith("arg") for r in reduce.reductions):
        yield "a position is no sum"
    if not all(isinstance(stage, MapStage | ReduceStage) for stage in kernel.stages):
        yield "a row has scans"
    if any(b.role == "local" for b in kernel.buffers):
        yield "a row has scratch memory"
    chunks, width = static(sums.outer[0].size), _points(sums.outer[1:])
    if width < 2 or columns_of(kernel) != width:
        yield f"the sums have {width} columns, which a row's stages do not"
        return
    if not (chunks - 1) * chunk_rows(sums) < rows_of(kernel) <= chunks * chunk_rows(sums):
        yield f"{chunks} chunks of {chunk_rows(sums)} rows are not the rows"
        return
    yield from _misplaced(kernel, sums, stored)


def _misplaced(kernel: Kernel, sums: Sums, stored: MapStage) -> Iterator[str]:
    """The reads and writes of the sums that belong to several rows or to another order of columns."""
    stage, chunk = row_stage(kernel), _chunk(sums)
    for e in _indices(stage):
        if chunk in free_syms(e):
            yield f"the sums read or write at {e}, which is not of one row"
    if any(v.op == "load" for v in walk(stage_values(stored))):
        yield "the sums read memory where they are stored"
    if any(v.op == "result" for v in walk(stage_values(stage))):
        yield "the sums need a reduction of a row"
    written = _written(kernel)
    for v in walk(stage_values(stage)):
        if v.op == "load" and v.args[0] in written:
            buffer, index, mask = v.args
            if mask is not None or index not in written[buffer]:
                yield f"the sums read buffer {buffer} at {index}, where the row does not store"
    loaded = {v.args[0] for s in kernel.stages for v in walk(stage_values(s)) if v.op == "load"}
    for store in (*stage.stores, *stored.stores):
        if store.buffer in loaded or store.buffer in written:
            yield f"the sums write buffer {store.buffer}, which rows read or write"


def _written(kernel: Kernel) -> dict[int, set[Size]]:
    """The elements that the rows store, over x's loops and the columns as `row_stage` counts them."""
    width = columns_of(kernel)
    along = Sym("i0", 0, width - 1)
    found: dict[int, set[Size]] = {}
    for stage in kernel.stages:
        values = digits(stage_loops(stage), along)
        for store in stage_stores(stage):
            found.setdefault(store.buffer, set()).add(subs(store.index, values))
    return found


def _indices(stage: Stage) -> Iterator[Size]:
    yield from indices(stage_values(stage))
    yield from (store.index for store in stage_stores(stage))


def _reductions(stage: Stage) -> tuple[Reduction, ...]:
    return stage.reductions if isinstance(stage, ReduceStage) else ()


def _flat(loops: Sequence[Loop]) -> Size:
    """The index of a point; the last loop's symbol varies fastest."""
    total: Size = 0
    for loop in loops:
        total = total * loop.size + loop.sym
    return total


def _points(loops: Sequence[Loop]) -> int:
    return prod(static(loop.size) for loop in loops)


class _Stages(Moved):
    """Rewrites stages, with other names of reductions if passed, and drops conditions that always hold."""

    def __init__(
        self,
        symbols: Mapping[Sym, Size],
        names: Mapping[str, str] | None = None,
        buffer_numbers: Sequence[int] | None = None,
    ) -> None:
        super().__init__(
            symbols, buffer_numbers.__getitem__
        ) if buffer_numbers is not None else super().__init__(symbols)
        self.names = names or {}

    def stage(self, stage: Stage) -> Stage:
        """Of a ReduceStage or a MapStage; its loops stay."""
        stores = tuple(
            replace(s.moved(self.index, self.value), buffer=self.buffer(s.buffer))
            for s in stage_stores(stage)
        )
        if isinstance(stage, ReduceStage):
            named = (
                Reduction(self.names.get(r.name, r.name), r.kind, self.value(r.value))
                for r in stage.reductions
            )
            return replace(stage, reductions=tuple(named), stores=stores)
        return replace(stage, stores=stores) if isinstance(stage, MapStage) else stage

    def _made(self, v: Value) -> Value:
        made = super()._made(v)
        if (
            v.op == "load"
            and made.args[2] is not None
            and made.args[2].op == "const"
            and made.args[2].args[0]
        ):
            return Value("load", (*made.args[:2], None), v.dtype)
        if v.op == "result":
            return Value("result", (self.names.get(v.args[0], v.args[0]),), v.dtype)
        if v.op in ("lt", "le", "gt", "ge"):
            return compare(v.op, *made.args)
        return where(*made.args) if v.op == "where" else made
