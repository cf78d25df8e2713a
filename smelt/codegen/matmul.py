"""Which ATen matrix products (and 1x1 convolutions) become generated code, and which elementwise kernels they absorb.

A product absorbs the kernel behind it (bias, activation, residual, ...) when the kernel is the only reader of the
product's result and touches each element of it once: the result then never goes to memory. Refusals carry a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from smelt.codegen.extern import written_values
from smelt.codegen.llvm.gemm import CompiledProduct, Product, Refused, Request, compile_products, plan_product
from smelt.codegen.llvm.gemm_epilogue import BATCH, COL, ROW, Epilogue, product_value
from smelt.codegen.llvm.window import Window, compile_windows
from smelt.codegen.windows import WINDOW_CALLS, WindowCall
from smelt.config import Config
from smelt.graph.ir import TensorSpec
from smelt.graph.sizes import Size, Sym, affine, free_syms, subs
from smelt.loops.ir import Buffer, Kernel, MapStage, Value
from smelt.ops.convolution import Convolution
from smelt.schedule.schedule import BufRef, ExternItem, Item, KernelItem, Schedule, ViewItem

aten = torch.ops.aten
# Results with two dimensions are (row, column), with three (batch, row, column).
_PLACES: dict[int, tuple[Sym, ...]] = {2: (ROW, COL), 3: (BATCH, ROW, COL)}


@dataclass(frozen=True)
class _Call:
    """An extern as `op(*args)` for `plan_product`: tensors of `args` are described as matrices, `buffers[i]` is the buffer
    of args[i]. `result` describes the extern's own result as a matrix or stack of matrices."""

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    buffers: tuple[int | None, ...]
    result: TensorSpec

    def plan(self, out: TensorSpec, name: str, epilogue: Epilogue) -> Request | Refused:
        return plan_product(self.op, self.args, out, name, epilogue)


@dataclass(frozen=True)
class ProductItem:
    """A generated matrix product or window in place of an extern (and of the kernel that it absorbed). `buffers` as its
    machine function takes them; the last one is the result."""

    product: Product | Window
    buffers: tuple[int, ...]
    note: str = ""


Prefer = Callable[[Product | Window], bool]


def with_products(schedule: Schedule, config: Config, prefer: Prefer) -> list[Item | ProductItem]:
    """The schedule's items, with products in place of the externs that `prefer` would rather generate."""
    if not config.native_gemm or not any(_is_product(i) for i in schedule.items):
        return list(schedule.items)
    readers = _readers(schedule)
    items: list[Item | ProductItem | None] = list(schedule.items)
    for position, item in enumerate(schedule.items):
        if not isinstance(item, ExternItem) or not _is_product(item):
            continue
        if any(readers.get(o) for o in item.outs[1:] if o is not None):
            continue  # generated code gives the first result only
        call = _call(schedule, item)
        if isinstance(call, str):
            continue
        fused = absorbed(schedule, position, call.result, readers) if config.fuse else None
        candidates: list[_Absorbed | None] = [None]
        # Of two products that one kernel reads (a gate and what it gates), the first absorbs it.
        if isinstance(fused, _Absorbed) and items[fused.position] is schedule.items[fused.position]:
            candidates.insert(0, fused)
        for candidate in candidates:
            made = _product_item(schedule, item, call, candidate)
            if isinstance(made, ProductItem) and prefer(made.product):
                _put(items, position, made, candidate)
                break
    return [item for item in items if item is not None]


def _put(
    items: list[Item | ProductItem | None], position: int, made: ProductItem, fused: _Absorbed | None
) -> None:
    """A product that absorbed a kernel stands where the kernel stood: all that the kernel read is there by then."""
    if fused is None:
        items[position] = made
    else:
        items[position], items[fused.position] = None, made


def compile_items(items: Sequence[ProductItem]) -> tuple[dict[int, CompiledProduct], Any]:
    """Machine code by id of item, and its owner. Equal products are one function."""
    by_product: dict[Product | Window, CompiledProduct] = {}
    owners = []
    compilers: tuple[tuple[type, Callable[[Any], Any]], ...] = (
        (Product, compile_products),
        (Window, compile_windows),
    )
    for kind, compile_all in compilers:
        distinct = {replace(i.product, name=""): i.product for i in items if isinstance(i.product, kind)}
        if distinct:
            letter = kind.__name__[0].lower()
            named = [
                replace(p, name=f"{letter}{i}_{_identifier(p.name)}") for i, p in enumerate(distinct.values())
            ]
            compiled, owner = compile_all(named)
            by_product.update(zip(distinct, compiled))
            owners.append(owner)
    return {id(item): by_product[replace(item.product, name="")] for item in items}, tuple(owners)


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)[:60]


def _is_product(item: Item) -> bool:
    return (
        isinstance(item, ExternItem)
        and (item.op in _CALLS or item.op in WINDOW_CALLS)
        and item.outs[0] is not None
    )


def _call(schedule: Schedule, item: ExternItem) -> _Call | WindowCall | str:
    """The extern as a matrix product or as a window, or why it is neither."""
    refused = "no generated code"
    for table in (_CALLS, WINDOW_CALLS):
        if item.op in table:
            call = table[item.op](schedule, item, _in_schema_order(item))
            if not isinstance(call, str):
                return call
            refused = call
    return refused


def _product_item(
    schedule: Schedule, item: ExternItem, call: _Call | WindowCall, fused: _Absorbed | None
) -> ProductItem | Refused:
    name = str(item.op).split(".")[1]
    if fused is None:
        made = call.plan(call.result, name, Epilogue())
    else:
        made = call.plan(fused.out_spec, f"{name}_{fused.name}", fused.epilogue)
    if isinstance(made, Refused):
        return made
    operands = tuple(call.buffers[i] for i in made.operands)
    inputs, out = ((), item.outs[0]) if fused is None else (fused.inputs, fused.out)
    notes = dict.fromkeys(n for n in (item.note, fused.note if fused else "") if n)
    return ProductItem(made.product, (*operands, *inputs, out), "; ".join(notes))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ externs as matrix products


def _matrix_call(schedule: Schedule, item: ExternItem, arguments: Sequence[Any]) -> _Call:
    args = tuple(schedule.buffers[a.id].spec if isinstance(a, BufRef) else a for a in arguments)
    buffers = tuple(a.id if isinstance(a, BufRef) else None for a in arguments)
    return _Call(item.op, args, buffers, schedule.buffers[item.outs[0]].spec)  # type: ignore[index]


def _convolution_call(schedule: Schedule, item: ExternItem, arguments: Sequence[Any]) -> _Call | str:
    """A 1x1 convolution without stride or padding. For a channels-first result, W[co, ci] @ X[b][ci, hw]; for a
    channels-last one, X[bhw, ci] @ W[co, ci].T."""
    x, weight, bias, *settings = arguments
    c = Convolution(*settings)
    xs, ws = schedule.buffers[x.id].spec, schedule.buffers[weight.id].spec
    ys = schedule.buffers[item.outs[0]].spec  # type: ignore[index]
    if c.transposed or c.groups != 1 or any(n != 1 for n in (*c.stride, *ws.shape[2:])):
        return "not a 1x1 convolution"
    if any((*c.padding, *c.output_padding)) or len(xs.shape) < 3:
        return "a padded convolution"
    step = _pixel_stride(xs)
    if step is None:
        return "an input whose pixels are not evenly spaced"
    b, ci, co, pixels = xs.shape[0], xs.shape[1], ws.shape[0], prod(xs.shape[2:])
    w = replace(ws, shape=(co, ci), stride=ws.stride[:2])
    vector = None if bias is None else schedule.buffers[bias.id].spec
    bias_id = None if bias is None else bias.id
    if _is_dense(ys):
        xm = replace(xs, shape=(b, ci, pixels), stride=(xs.stride[0], xs.stride[1], step))
        ym = replace(ys, shape=(b, co, pixels), stride=(co * pixels, pixels, 1))
        if vector is None:
            return _Call(aten.matmul.default, (w, xm), (weight.id, x.id), ym)
        column = replace(vector, shape=(co, 1), stride=(vector.stride[0], 0))
        return _Call(aten.baddbmm.default, (column, w, xm), (bias_id, weight.id, x.id), ym)
    if _is_dense(_channels_last(ys)) and (b == 1 or xs.stride[0] == pixels * step):
        xm = replace(xs, shape=(b * pixels, ci), stride=(step, xs.stride[1]))
        ym = replace(ys, shape=(b * pixels, co), stride=(co, 1))
        return _Call(aten.linear.default, (xm, w, vector), (x.id, weight.id, bias_id), ym)
    return "a result that is neither channels-first nor channels-last"


def _pixel_stride(spec: TensorSpec) -> Size | None:
    """The stride of an image's pixels taken as one dimension, if they are evenly spaced."""
    step: Size | None = None
    count: Size = 1
    for size, stride in zip(reversed(spec.shape[2:]), reversed(spec.stride[2:])):
        if size == 1:
            continue
        if step is None:
            step = stride
        elif stride != step * count:
            return None
        count = count * size
    return 1 if step is None else step


def _channels_last(spec: TensorSpec) -> TensorSpec:
    """The same memory with the channels moved to the end."""

    def moved(sizes: tuple[Size, ...]) -> tuple[Size, ...]:
        return (sizes[0], *sizes[2:], sizes[1])

    return replace(spec, shape=moved(spec.shape), stride=moved(spec.stride))


_CALLS: dict[torch._ops.OpOverload, Callable[[Schedule, ExternItem, Sequence[Any]], _Call | str]] = {
    aten.mm.default: _matrix_call,
    aten.addmm.default: _matrix_call,
    aten.bmm.default: _matrix_call,
    aten.baddbmm.default: _matrix_call,
    aten.convolution.default: _convolution_call,
}


def _in_schema_order(item: ExternItem) -> list[Any]:
    schema = item.op._schema.arguments
    values = [*item.args]
    for argument in schema[len(values) :]:
        values.append(item.kwargs.get(argument.name, argument.default_value))
    return values


# -------------------------------------------------------------------------------------------- absorbing a kernel


@dataclass(frozen=True)
class _Absorbed:
    """The kernel at `position` as an epilogue: it reads buffers `inputs` and writes `out`, laid out as `out_spec`, whose
    shape is the product's."""

    position: int
    name: str
    epilogue: Epilogue
    inputs: tuple[int, ...]
    out: int
    out_spec: TensorSpec
    note: str


def _readers(schedule: Schedule) -> dict[int, list[int]]:
    """Buffer -> positions of the items that read it; -1 for being returned."""
    readers: dict[int, list[int]] = {}
    for position, item in enumerate(schedule.items):
        for buffer in _read(item):
            readers.setdefault(buffer, []).append(position)
    for out in schedule.outputs:
        if out is not None:
            readers.setdefault(out, []).append(-1)
    return readers


def _read(item: Item) -> set[int]:
    if isinstance(item, KernelItem):
        formals = zip(item.buffers, item.kernel.buffers)
        return {b for b, formal in formals if b is not None and formal.role in ("in", "inout")}
    if isinstance(item, ViewItem):
        return {item.src}
    return set(_references((item.args, item.kwargs)))


def _references(value: Any) -> list[int]:
    if isinstance(value, BufRef):
        return [value.id]
    if isinstance(value, dict):
        value = tuple(value.values())
    return [b for v in value for b in _references(v)] if isinstance(value, (tuple, list)) else []


def absorbed(
    schedule: Schedule, position: int, spec: TensorSpec, readers: dict[int, list[int]]
) -> _Absorbed | str:
    """The kernel behind the product at `position` as its epilogue, or why not. `spec`: the result as matrices."""
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
    if any(_writes_held(schedule, i) for i in schedule.items[position + 1 : users[0] + 1]):
        return "an input is written before the kernel runs"
    return _as_epilogue(schedule, item, result, spec, users[0])


def _writes_held(schedule: Schedule, item: Item) -> bool:
    """Whether `item` writes to memory that was there before it."""
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
) -> _Absorbed | str:
    kernel = item.kernel
    if len(kernel.stages) != 1 or any(b is None for b in item.buffers):
        return "the kernel is not elementwise"
    (stage,) = kernel.stages
    if not isinstance(stage, MapStage) or stage.loops or len(stage.stores) != 1:
        return "the kernel is not elementwise with one result"
    if len(spec.shape) not in _PLACES or not _is_dense(spec):
        return "the product's result is not contiguous"
    (store,) = stage.stores
    own = item.buffers.index(result)
    point = _only_index(store.value, own)
    at = _point_of_element(kernel, point, spec) if point is not None else None
    if at is None:
        return "the kernel does not visit each element of the product once"
    dims = _dims(spec)
    stride = _strides(subs(store.index, at), dims)
    if stride is None:
        return "the kernel's result is not laid out along the product's dimensions"
    out = item.buffers[store.buffer]
    assert out is not None
    places = dict(zip(dims, _PLACES[len(dims)]))
    inputs = tuple(i for i, b in enumerate(kernel.buffers) if b.role == "in" and i != own)
    number = {b: i for i, b in enumerate(inputs)}
    value = _epilogue_value(store.value, own, number, lambda e: subs(subs(e, at), places))
    formals: tuple[Buffer, ...] = tuple(kernel.buffers[i] for i in inputs)
    buffers = tuple(b for i in inputs if (b := item.buffers[i]) is not None)
    out_spec = replace(schedule.buffers[out].spec, shape=spec.shape, stride=stride)
    return _Absorbed(position, kernel.name, Epilogue(formals, value), buffers, out, out_spec, item.note)


def _is_dense(spec: TensorSpec) -> bool:
    """Contiguous, with static sizes and at least one element."""
    expected = 1
    for size, stride in zip(reversed(spec.shape), reversed(spec.stride)):
        if not isinstance(size, int) or size == 0 or (size != 1 and stride != expected):
            return False
        expected *= size
    return True


def _dims(spec: TensorSpec) -> tuple[Sym, ...]:
    """One bounded symbol per dimension: simplification needs the bounds."""
    return tuple(Sym(f"product_{d}", 0, int(size) - 1) for d, size in enumerate(spec.shape))  # type: ignore[arg-type]


def _only_index(value: Value, buffer: int) -> Size | None:
    """The index at which `value` loads from `buffer`; None if there are several, or masked ones."""
    found: set[Size] = set()
    masked = False
    seen: set[int] = set()
    todo = [value]
    while todo:
        v = todo.pop()
        if id(v) in seen:
            continue
        seen.add(id(v))
        if v.op == "load" and v.args[0] == buffer:
            found.add(v.args[1])
            masked |= v.args[2] is not None
        todo += [a for a in v.args if isinstance(a, Value)]
    return found.pop() if len(found) == 1 and not masked else None


def _point_of_element(kernel: Kernel, index: Size, spec: TensorSpec) -> dict[Sym, Size] | None:
    """Loop symbols in terms of the element's place, if `index` counts the loops like the digits of a number."""
    flat: Size = 0
    steps = 1
    for dim, size in zip(reversed(_dims(spec)), reversed(spec.shape)):
        flat = flat + dim * steps
        steps *= int(size)  # type: ignore[arg-type]
    places: list[tuple[int, Sym, int]] = []
    rest = index
    for loop in kernel.outer:
        split = affine(rest, loop.sym)
        if split is None:
            return None
        factor, rest = split
        if not isinstance(factor, int) or not isinstance(loop.size, int):
            return None
        if loop.size != 1:
            places.append((factor, loop.sym, loop.size))
    if rest != 0:
        return None
    at: dict[Sym, Size] = {loop.sym: 0 for loop in kernel.outer}
    expected = 1
    for factor, sym, size in sorted(places, key=lambda p: p[0]):
        if factor != expected:
            return None
        at[sym] = flat // factor % size
        expected *= size
    return at if expected == steps else None


def _strides(index: Size, dims: tuple[Sym, ...]) -> tuple[Size, ...] | None:
    """`index` as strides along `dims` from the first element on."""
    strides: list[Size] = []
    for dim in dims:
        split = affine(index, dim)
        if split is None or free_syms(split[0]):
            return None
        strides.append(split[0])
        index = split[1]
    return tuple(strides) if index == 0 else None


def _epilogue_value(value: Value, own: int, number: dict[int, int], place: Callable[[Size], Size]) -> Value:
    """`value` with the product in place of loads from buffer `own`, and indices moved by `place`."""
    done: dict[int, Value] = {}

    def moved(v: Any) -> Any:
        if not isinstance(v, Value):
            return v
        if id(v) not in done:
            done[id(v)] = rewritten(v)
        return done[id(v)]

    def rewritten(v: Value) -> Value:
        if v.op == "load":
            buffer, index, mask = v.args
            if buffer == own:
                return product_value(v.dtype)
            return Value("load", (number[buffer], place(index), moved(mask)), v.dtype)
        if v.op == "index":
            return Value("index", (place(v.args[0]),), v.dtype)
        return Value(v.op, tuple(map(moved, v.args)), v.dtype)

    return moved(value)
