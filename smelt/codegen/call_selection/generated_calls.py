"""A schedule's items with generated products and windows in place of ATen calls, and their machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from smelt.codegen.call_selection.call_requests import in_schema_order
from smelt.codegen.call_selection.epilogue_fusion import Absorbed, absorbed, readers_of
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
    """A generated matrix product or window in place of an extern (and of the kernel that it absorbed). `buffers` as its
    machine function takes them; the last one is the result. `lengths`: the product's in a schedule with symbols; all else of
    it is the same for all sizes."""

    product: Product | Window
    buffers: tuple[int, ...]
    note: str = ""
    lengths: Lengths | None = None


Prefer = Callable[[ProductItem], bool]


def with_products(
    schedule: Schedule, absorb: bool, prefer: Prefer, values: Values | None = None
) -> list[Item | ProductItem]:
    """The schedule's items, with products in place of the externs that `prefer` would rather generate. `absorb`: elementwise
    kernels behind them may be part of them. `values`: numbers for the symbols of a schedule with some; then products have
    `lengths`."""
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
        fused = absorbed(schedule, position, call.result, readers) if absorb else None
        candidates: list[Absorbed | None] = [None]
        # Of two products that one kernel reads (a gate and what it gates), the first absorbs it.
        if isinstance(fused, Absorbed) and items[fused.position] is schedule.items[fused.position]:
            candidates.insert(0, fused)
        for candidate in candidates:
            made = _product_item(item, call, candidate, values)
            if isinstance(made, ProductItem) and prefer(made):
                _put(items, position, made, candidate)
                break
    return [item for item in items if item is not None]


def _put(
    items: list[Item | ProductItem | None], position: int, made: ProductItem, fused: Absorbed | None
) -> None:
    """A product that absorbed a kernel stands where the kernel stood: all that the kernel read is there by then."""
    if fused is None:
        items[position] = made
    else:
        items[position], items[fused.position] = None, made


def compile_items(items: Sequence[ProductItem]) -> dict[int, CompiledKernel]:
    """Machine code by id of item. Equal products are one function."""
    return compile_by(items, compile_products, compile_windows)


def compile_by(
    items: Sequence[ProductItem],
    products: Callable[[Sequence[Product]], Sequence[CompiledKernel]],
    windows: Callable[[Sequence[Window]], Sequence[CompiledKernel]],
) -> dict[int, CompiledKernel]:
    """The same by given compilers, which are asked for distinct products of distinct names."""
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
    """Whether it is an ATen call that code may be generated for."""
    return (
        isinstance(item, ExternItem)
        and (item.op in MATRIX_CALLS or item.op in WINDOW_CALLS)
        and item.outs[0] is not None
    )


def _is_static(schedule: Schedule, item: ExternItem) -> bool:
    """Whether its tensors are of fixed sizes."""
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
    item: ExternItem, call: MatrixCall | WindowCall, fused: Absorbed | None, values: Values | None
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
    made = call.plan(out, name, epilogue)
    if isinstance(made, str):
        return made
    operands = tuple(call.buffers[i] for i in made.operands)
    inputs, result = ((), item.outs[0]) if fused is None else (fused.inputs, fused.out)
    notes = dict.fromkeys(n for n in (item.note, fused.note if fused else "") if n)
    buffers = (*operands, *inputs, result)
    return ProductItem(made.product, buffers, "; ".join(notes), lengths)  # type: ignore[arg-type]
