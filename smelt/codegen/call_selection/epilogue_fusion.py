"""Epilogue fusion: the elementwise kernel that a generated product (or window) computes on its result.

A product fuses the following kernel (bias, activation, residual, ...) if that kernel is the only reader of the
product's result and reads each element once: the result is then never materialized. Refusals carry a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from smelt.codegen.call_selection.call_requests import is_dense
from smelt.codegen.llvm.gemm.epilogue import BATCH, COL, ROW, Epilogue, product_value
from smelt.graph.ir import TensorSpec
from smelt.loops.kernel_ir import Buffer, Loop, MapStage, Value
from smelt.plan.schema_aliases import written_values
from smelt.schedule.schedule import ExternItem, Item, KernelItem, Schedule, ViewItem, accesses
from smelt.shapes.expr import Size, Sym, affine, bounds, free_syms, loop_sym, subs

# Results with two dimensions are (row, column), with three (batch, row, column).
_INDICES: dict[int, tuple[Sym, ...]] = {2: (ROW, COL), 3: (BATCH, ROW, COL)}


@dataclass(frozen=True)
class EpilogueKernel:
    """The kernel at `position` as an epilogue: reads `inputs`, writes `out` at `index`, over BATCH, ROW and COL."""

    position: int
    name: str
    epilogue: Epilogue
    inputs: tuple[int, ...]
    out: int
    index: Size
    note: str


@dataclass(frozen=True)
class DenseEpilogue(EpilogueKernel):
    """An epilogue whose result is laid out along the product's dimensions, as `out_spec`."""

    out_spec: TensorSpec


def readers_of(schedule: Schedule) -> dict[int, list[int]]:
    """Buffer -> positions of the items that read it; -1 if it is returned."""
    readers: dict[int, list[int]] = {}
    for position, item in enumerate(schedule.items):
        for buffer in dict.fromkeys(accesses(item)[0]):
            readers.setdefault(buffer, []).append(position)
    for out in schedule.outputs:
        if out is not None:
            readers.setdefault(out, []).append(-1)
    return readers


def dense_epilogue(
    schedule: Schedule, position: int, spec: TensorSpec, readers: dict[int, list[int]]
) -> DenseEpilogue | str:
    """The kernel after the product at `position` as its epilogue, or why not. `spec`: the result as matrices."""
    found = epilogue_kernel(schedule, position, spec, readers)
    if isinstance(found, str):
        return found
    dims = _dims(spec)
    stride = _strides(subs(found.index, dict(zip(_INDICES[len(dims)], dims))), dims)
    if stride is None:
        return "the kernel's result is not laid out along the product's dimensions"
    out_spec = replace(schedule.buffers[found.out].spec, shape=spec.shape, stride=stride)
    return DenseEpilogue(**vars(found), out_spec=out_spec)


def epilogue_kernel(
    schedule: Schedule, position: int, spec: TensorSpec, readers: dict[int, list[int]]
) -> EpilogueKernel | str:
    """Like `dense_epilogue`, for any layout of the kernel's result."""
    extern = schedule.items[position]
    assert isinstance(extern, ExternItem)
    result = extern.outs[0]
    assert result is not None
    users = readers.get(result, [])
    if len(users) != 1 or users[0] < 0:
        return "the product has several readers"
    item = schedule.items[users[0]]
    if not isinstance(item, KernelItem):
        return "the product is not read by a kernel"
    if any(writes_held(schedule, i) for i in schedule.items[position + 1 : users[0] + 1]):
        return "an input is written before the kernel runs"
    return _as_epilogue(schedule, item, result, spec, users[0])


def writes_held(schedule: Schedule, item: Item) -> bool:
    """Whether `item` writes to memory that existed before it."""
    if isinstance(item, ExternItem):
        return bool(written_values(item.op, item.args, item.kwargs))
    if isinstance(item, ViewItem):
        return False
    formals = zip(item.buffers, item.kernel.buffers)
    held = ("input", "constant")
    return any(
        f.role == "inout" or (f.role == "out" and schedule.buffers[b].kind in held)
        for b, f in formals
        if b is not None
    )


def _as_epilogue(
    schedule: Schedule, item: KernelItem, result: int, spec: TensorSpec, position: int
) -> EpilogueKernel | str:
    kernel = item.kernel
    if len(kernel.stages) != 1 or any(b is None for b in item.buffers):
        return "the kernel is not elementwise"
    if kernel.sizes and all(isinstance(n, int) for n in spec.shape):
        return "the kernel's sizes are symbolic"
    (stage,) = kernel.stages
    if not isinstance(stage, MapStage) or stage.loops or len(stage.stores) != 1:
        return "the kernel is not elementwise with one result"
    if len(spec.shape) not in _INDICES or not is_dense(spec):
        return "the product's result is not contiguous"
    (store,) = stage.stores
    product = item.buffers.index(result)
    point = only_index(store.value, product)
    at = _point_of_element(kernel.outer, point, spec) if point is not None else None
    if at is None:
        return "the kernel does not visit each element of the product once"
    dims = _dims(spec)
    out = item.buffers[store.buffer]
    assert out is not None
    named = dict(zip(dims, _INDICES[len(dims)]))
    inputs = tuple(i for i, b in enumerate(kernel.buffers) if b.role == "in" and i != product)
    input_of = {b: i for i, b in enumerate(inputs)}
    value = epilogue_value(store.value, product, input_of, lambda e: subs(subs(e, at), named))
    formals: tuple[Buffer, ...] = tuple(kernel.buffers[i] for i in inputs)
    buffers = tuple(b for i in inputs if (b := item.buffers[i]) is not None)
    index = subs(subs(store.index, at), named)
    return EpilogueKernel(position, kernel.name, Epilogue(formals, value), buffers, out, index, item.note)


def _dims(spec: TensorSpec) -> tuple[Sym, ...]:
    """One bounded symbol per dimension: simplification needs the bounds."""
    return tuple(loop_sym(f"product_{d}", size) for d, size in enumerate(spec.shape))


def only_index(value: Value, buffer: int) -> Size | None:
    """The only index at which `value` loads from `buffer`; None if there are several, or masked ones."""
    found: set[Size] = set()
    masked = False
    visited: set[int] = set()
    todo = [value]
    while todo:
        v = todo.pop()
        if id(v) in visited:
            continue
        visited.add(id(v))
        if v.op == "load" and v.args[0] == buffer:
            found.add(v.args[1])
            masked |= v.args[2] is not None
        todo += [a for a in v.args if isinstance(a, Value)]
    return found.pop() if len(found) == 1 and not masked else None


def _point_of_element(loops: Sequence[Loop], index: Size, spec: TensorSpec) -> dict[Sym, Size] | None:
    """Loop symbols in terms of the element's indices."""
    flat: Size = 0
    steps: Size = 1
    for dim, size in zip(reversed(_dims(spec)), reversed(spec.shape)):
        flat = flat + dim * steps
        steps = steps * size
    return point_at(loops, index, flat, steps)


def point_at(loops: Sequence[Loop], index: Size, flat: Size, elements: Size) -> dict[Sym, Size] | None:
    """Loop symbols in terms of `flat`, a number below `elements`, at which `index` equals `flat`, if the index counts
    the loops like digits of a number, up to `elements`."""
    named: list[tuple[Size, Sym, Size]] = []
    remainder = index
    for loop in loops:
        split = affine(remainder, loop.sym)
        if split is None:
            return None
        factor, remainder = split
        if loop.size != 1:
            named.append((factor, loop.sym, loop.size))
    if remainder != 0:
        return None
    at: dict[Sym, Size] = {loop.sym: 0 for loop in loops}
    expected: Size = 1
    for factor, sym, size in sorted(named, key=lambda p: bounds(p[0])):
        if factor != expected:
            return None
        at[sym] = flat // factor % size
        expected = expected * size
    return at if expected == elements else None


def _strides(index: Size, dims: tuple[Sym, ...]) -> tuple[Size, ...] | None:
    """`index` as strides along `dims`, relative to the first element."""
    strides: list[Size] = []
    for dim in dims:
        split = affine(index, dim)
        if split is None or free_syms(split[0]):
            return None
        strides.append(split[0])
        index = split[1]
    return tuple(strides) if index == 0 else None


def epilogue_value(
    value: Value, product: int, input_of: dict[int, int], map_index: Callable[[Size], Size]
) -> Value:
    """`value` with the product instead of loads from buffer `product`, and indices mapped by `map_index`."""
    done: dict[int, Value] = {}

    def moved(v: Value) -> Value:
        if id(v) not in done:
            done[id(v)] = rewritten(v)
        return done[id(v)]

    def rewritten(v: Value) -> Value:
        if v.op == "load":
            buffer, index, mask = v.args
            if buffer == product:
                return product_value(v.dtype)
            return Value(
                "load", (input_of[buffer], map_index(index), None if mask is None else moved(mask)), v.dtype
            )
        if v.op == "index":
            return Value("index", (map_index(v.args[0]),), v.dtype)
        return Value(v.op, tuple([moved(a) if isinstance(a, Value) else a for a in v.args]), v.dtype)

    return moved(value)
