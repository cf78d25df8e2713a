"""Prologue fusion: the elementwise kernel that computes a product's operand, evaluated as the product reads it.

The kernel's result must be exactly the operand: one store, read only by this product (possibly through views), at an
index that counts its points. Casts of weights are such kernels. An element is then computed once per tile that reads
it, so fusion pays only sometimes. Refusals carry a reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from smelt.codegen.call_selection.epilogue_fusion import point_at, writes_held
from smelt.codegen.llvm.gemm.epilogue import BATCH, COL, ROW
from smelt.codegen.llvm.gemm.gemm_spec import Matrix
from smelt.loops.kernel_ir import POINTWISE, Buffer, Kernel, MapStage, Store, Value, walk
from smelt.loops.loop_values import Moved
from smelt.schedule.schedule import KernelItem, Schedule, ViewItem
from smelt.shapes.expr import Size, Sym, free_syms, static, subs

VALUES = 12  # operations of a prologue, at most


@dataclass(frozen=True)
class Prologue:
    """The kernel and views at `positions` as `value` of the operand's element at BATCH, ROW, COL; it loads from `inputs` by
    number, which are the schedule's `buffers`."""

    positions: tuple[int, ...]
    inputs: tuple[Buffer, ...]
    value: Value
    buffers: tuple[int, ...]


def memory_index(matrix: Matrix, batch: tuple[int, int]) -> Size:
    """The offset of the element at BATCH, ROW, COL of a stack of matrices."""
    if matrix.outer == batch[1] * matrix.inner or batch[1] == 1:
        step = matrix.inner if batch[1] > 1 else matrix.outer
        return BATCH * step + ROW * matrix.row + COL * matrix.col
    outer, inner = BATCH // batch[1], BATCH % batch[1]
    return outer * matrix.outer + inner * matrix.inner + ROW * matrix.row + COL * matrix.col


def prologue(
    schedule: Schedule,
    readers: dict[int, list[int]],
    position: int,
    target: int,
    buffer: int,
    index: Size,
    sizes: tuple[int, int, int],
    masks: bool = False,
) -> Prologue | str:
    """The producer of `buffer`, read by the product at `position` that moves to `target`, as its prologue; or the
    reason why not. `index`: the offsets of the operand's elements, with `sizes`: batch, rows, columns. `masks`:
    whether masked loads are allowed."""
    positions = []
    while True:
        if readers.get(buffer) != [position]:
            return "others read the operand"
        position = _writer(schedule, buffer, position)
        if position < 0:
            return "the operand is an input"
        item = schedule.items[position]
        positions.append(position)
        if isinstance(item, KernelItem):
            break
        if not isinstance(item, ViewItem) or not isinstance(item.offset, int):
            return "the operand is not a kernel's result"
        buffer, index = item.src, index + item.offset
    if any(writes_held(schedule, i) for i in schedule.items[position:target]):
        return "an input is written before the product runs"
    store = _elementwise(item.kernel)
    if store is None or item.buffers[store.buffer] != buffer:
        return "the kernel is not elementwise with one result"
    syms = [Sym(f"operand_{s}", 0, max(n - 1, 0)) for s, n in zip((BATCH, ROW, COL), sizes, strict=True)]
    flat = subs(index, dict(zip((BATCH, ROW, COL), syms, strict=True)))
    points = 1
    for loop in item.kernel.outer:
        points *= static(loop.size)
    at = point_at(item.kernel.outer, store.index, flat, points)
    if at is None:
        return "the kernel's result is not laid out along its points"
    names: dict[Sym, Size] = dict(zip(syms, (BATCH, ROW, COL), strict=True))
    return _as_prologue(item, store, at, names, tuple(positions), masks)


def _writer(schedule: Schedule, buffer: int, before: int) -> int:
    """The position of the kernel or view that defines the buffer, or -1."""
    for position in reversed(range(before)):
        item = schedule.items[position]
        if isinstance(item, ViewItem) and item.out == buffer:
            return position
        if isinstance(item, KernelItem) and any(
            b == buffer and formal.role != "in" for b, formal in zip(item.buffers, item.kernel.buffers)
        ):
            return position
    return -1


def _elementwise(kernel: Kernel) -> Store | None:
    """The store at each of the kernel's points, if the kernel does nothing else."""
    if len(kernel.stages) != 1 or kernel.sizes or any(b.role in ("local", "inout") for b in kernel.buffers):
        return None
    (stage,) = kernel.stages
    if not isinstance(stage, MapStage) or stage.loops or len(stage.stores) != 1:
        return None
    return stage.stores[0]


def _as_prologue(
    item: KernelItem,
    store: Store,
    at: dict[Sym, Size],
    names: dict[Sym, Size],
    positions: tuple[int, ...],
    masks: bool,
) -> Prologue | str:
    values = list(walk([store.value]))
    if len(values) > VALUES:
        return "the kernel computes too much"
    for v in values:
        if v.op == "load" and v.args[2] is not None and not masks:
            return "the kernel loads under a mask"
        if v.op not in ("load", "const", "index", "cast") and v.op not in POINTWISE:
            return f"the kernel contains {v.op}"
        if v.op in ("load", "index"):
            index = subs(subs(v.args[1 if v.op == "load" else 0], at), names)
            if not free_syms(index) <= {BATCH, ROW, COL}:
                return f"the kernel reads at {index}"
    inputs = tuple(i for i, b in enumerate(item.kernel.buffers) if b.role == "in")
    input_of = {b: i for i, b in enumerate(inputs)}
    buffers = tuple(b for i in inputs if (b := item.buffers[i]) is not None)
    formals = tuple(item.kernel.buffers[i] for i in inputs)
    read = Moved(names | {sym: subs(e, names) for sym, e in at.items()}, input_of.__getitem__).value(
        store.value
    )
    return Prologue(positions, formals, read, buffers)


def plain(dtype: torch.dtype, index: Size) -> tuple[tuple[Buffer, ...], Value]:
    """An operand that is loaded without a prologue: its input and value."""
    return (Buffer("operand", dtype, "in"),), Value("load", (0, index, None), dtype)
