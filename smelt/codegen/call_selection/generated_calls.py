"""A schedule's items with generated products and windows in place of ATen calls, and their machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from smelt.codegen.call_selection.call_requests import in_schema_order
from smelt.codegen.call_selection.epilogue_fusion import DenseEpilogue, dense_epilogue, readers_of
from smelt.codegen.call_selection.gemm_calls import MATRIX_CALLS, MatrixCall
from smelt.codegen.call_selection.symbolic_gemm_calls import SizedCall, sized_call
from smelt.codegen.call_selection.window_calls import WINDOW_CALLS, WindowCall
from smelt.codegen.llvm.gemm.compile_gemm import compile_products
from smelt.codegen.llvm.gemm.epilogue import NO_EPILOGUE
from smelt.codegen.llvm.gemm.gemm_spec import Lengths, Product
from smelt.codegen.llvm.windows.window_codegen import compile_windows
from smelt.codegen.llvm.windows.window_spec import Window
from smelt.plan.machine_code import CompiledKernel
from smelt.schedule.schedule import ExternItem, Item, Schedule, accesses
from smelt.shapes.expr import Values
from smelt.shapes.substitute import substitute


@dataclass(frozen=True)
class ProductItem:
    """A generated matrix product or window that replaces an extern (and its fused epilogue). `buffers`: in the order
    of its parameters, the result last. `lengths`: the product's symbolic lengths; everything else of it is concrete.
    """

    product: Product | Window
    buffers: tuple[int, ...]
    note: str = ""
    lengths: Lengths | None = None


Prefer = Callable[[ProductItem], bool]


def with_products(
    schedule: Schedule, fuse_epilogues: bool, prefer: Prefer, values: Values | None = None
) -> list[Item | ProductItem]:
    """The schedule's items, with products in place of the externs that `prefer` selects. `fuse_epilogues`: with the kernels
    after them as epilogues. `values`: sizes for the symbols of a symbolic schedule, whose products have `lengths`."""
    if not any(is_product(i) for i in schedule.items):
        return list(schedule.items)
    readers = readers_of(schedule)
    items: list[Item | ProductItem | None] = list(schedule.items)
    for position, item in enumerate(schedule.items):
        if not isinstance(item, ExternItem) or not is_product(item):
            continue
        if any(readers.get(o) for o in item.outs[1:] if o is not None):
            continue  # generated code gives the first result only
        sized = values is not None and not _is_static(schedule, item)
        call = sized_call(schedule, item) if sized else _call(schedule, item)
        if isinstance(call, str):
            continue
        fused = dense_epilogue(schedule, position, call.result, readers) if fuse_epilogues else None
        candidates: list[DenseEpilogue | None] = [None]
        # If one kernel reads two products (a gate and its operand), the first fuses it.
        if isinstance(fused, DenseEpilogue) and items[fused.position] is schedule.items[fused.position]:
            candidates.insert(0, fused)
        for candidate in candidates:
            product_item = _product_item(item, call, candidate, values)
            if isinstance(product_item, ProductItem) and prefer(product_item):
                _put(items, position, product_item, candidate)
                break
    return [item for item in items if item is not None]


def _put(
    items: list[Item | ProductItem | None],
    position: int,
    product_item: ProductItem,
    fused: DenseEpilogue | None,
) -> None:
    """Insert a product; with an epilogue at the kernel's position, where all operands of the kernel are defined."""
    if fused is None:
        items[position] = product_item
    else:
        items[position], items[fused.position] = None, product_item


def compile_items(items: Sequence[ProductItem]) -> dict[int, CompiledKernel]:
    """Machine code by id of item. Equal products share a function."""
    return compile_by(items, compile_products, compile_windows)


def compile_by(
    items: Sequence[ProductItem],
    products: Callable[[Sequence[Product]], Sequence[CompiledKernel]],
    windows: Callable[[Sequence[Window]], Sequence[CompiledKernel]],
) -> dict[int, CompiledKernel]:
    """The same with passed compilers, which receive distinct products with distinct names."""
    by_product: dict[Product | Window, CompiledKernel] = {}
    compilers: tuple[tuple[type, Callable[[Any], Any]], ...] = ((Product, products), (Window, windows))
    for kind, compile_all in compilers:
        distinct = {replace(i.product, name=""): i.product for i in items if isinstance(i.product, kind)}
        if distinct:
            letter = kind.__name__[0].lower()
            named = [
                replace(p, name=f"{letter}{i}_{_identifier(p.name)}") for i, p in enumerate(distinct.values())
            ]
            by_product.update(zip(distinct, compile_all(named)))
    return {id(item): by_product[replace(item.product, name="")] for item in items}


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)[:60]


def is_product(item: Item) -> bool:
    """Whether code may be generated for the ATen call."""
    return (
        isinstance(item, ExternItem)
        and (item.op in MATRIX_CALLS or item.op in WINDOW_CALLS)
        and item.outs[0] is not None
    )


def _is_static(schedule: Schedule, item: ExternItem) -> bool:
    """Whether its tensors have concrete sizes."""
    touched = {*accesses(item)[0], *(out for out in item.outs if out is not None)}
    specs = [schedule.buffers[b].spec for b in touched]
    return all(isinstance(n, int) for spec in specs for n in (*spec.shape, *spec.stride))


def _call(schedule: Schedule, item: ExternItem) -> MatrixCall | WindowCall | str:
    """The extern as a matrix product or as a window, or why it is neither."""
    refused = "no generated code"
    for table in (MATRIX_CALLS, WINDOW_CALLS):
        if item.op in table:
            call = table[item.op](schedule, item, in_schema_order(item))
            if not isinstance(call, str):
                return call
            refused = call
    return refused


def _product_item(
    item: ExternItem, call: MatrixCall | WindowCall, fused: DenseEpilogue | None, values: Values | None
) -> ProductItem | str:
    name = str(item.op).split(".")[1]
    out, epilogue = call.result, NO_EPILOGUE
    if fused is not None:
        name, out, epilogue = f"{name}_{fused.name}", fused.out_spec, fused.epilogue
    lengths = None
    if isinstance(call, SizedCall):
        assert values is not None
        lengths, call, out = call.lengths(out), call.at(values), substitute(out, values)
        if lengths is None:
            return "strides that depend on sizes"
    product_item = call.plan(out, name, epilogue)
    if isinstance(product_item, str):
        return product_item
    operands = tuple(call.buffers[i] for i in product_item.operands)
    inputs, result = ((), item.outs[0]) if fused is None else (fused.inputs, fused.out)
    notes = dict.fromkeys(n for n in (item.note, fused.note if fused else "") if n)
    buffers = (*operands, *inputs, result)
    return ProductItem(product_item.product, buffers, "; ".join(notes), lengths)  # type: ignore[arg-type]
