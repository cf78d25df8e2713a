"""A schedule's items with generated products and windows in place of ATen calls, and their machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from smelt.codegen.calls.absorb import Absorbed, absorbed, readers_of
from smelt.codegen.calls.matrices import MATRIX_CALLS, MatrixCall
from smelt.codegen.calls.request import in_schema_order
from smelt.codegen.calls.windows import WINDOW_CALLS, WindowCall
from smelt.codegen.llvm.products.compile import compile_products
from smelt.codegen.llvm.products.epilogue import NO_EPILOGUE
from smelt.codegen.llvm.products.product import Product
from smelt.codegen.llvm.windows.code import compile_windows
from smelt.codegen.llvm.windows.window import Window
from smelt.plan.code import CompiledKernel
from smelt.schedule.schedule import ExternItem, Item, Schedule


@dataclass(frozen=True)
class ProductItem:
    """A generated matrix product or window in place of an extern (and of the kernel that it absorbed). `buffers` as its
    machine function takes them; the last one is the result."""

    product: Product | Window
    buffers: tuple[int, ...]
    note: str = ""


Prefer = Callable[[Product | Window], bool]


def with_products(schedule: Schedule, absorb: bool, prefer: Prefer) -> list[Item | ProductItem]:
    """The schedule's items, with products in place of the externs that `prefer` would rather generate. `absorb`: elementwise
    kernels behind them may be part of them."""
    if not any(is_product(i) for i in schedule.items):
        return list(schedule.items)
    readers = readers_of(schedule)
    items: list[Item | ProductItem | None] = list(schedule.items)
    for position, item in enumerate(schedule.items):
        if not isinstance(item, ExternItem) or not is_product(item):
            continue
        if any(readers.get(o) for o in item.outs[1:] if o is not None):
            continue  # generated code gives the first result only
        call = _call(schedule, item)
        if isinstance(call, str):
            continue
        fused = absorbed(schedule, position, call.result, readers) if absorb else None
        candidates: list[Absorbed | None] = [None]
        # Of two products that one kernel reads (a gate and what it gates), the first absorbs it.
        if isinstance(fused, Absorbed) and items[fused.position] is schedule.items[fused.position]:
            candidates.insert(0, fused)
        for candidate in candidates:
            made = _product_item(schedule, item, call, candidate)
            if isinstance(made, ProductItem) and prefer(made.product):
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
    schedule: Schedule, item: ExternItem, call: MatrixCall | WindowCall, fused: Absorbed | None
) -> ProductItem | str:
    name = str(item.op).split(".")[1]
    if fused is None:
        made = call.plan(call.result, name, NO_EPILOGUE)
    else:
        made = call.plan(fused.out_spec, f"{name}_{fused.name}", fused.epilogue)
    if isinstance(made, str):
        return made
    operands = tuple(call.buffers[i] for i in made.operands)
    inputs, out = ((), item.outs[0]) if fused is None else (fused.inputs, fused.out)
    notes = dict.fromkeys(n for n in (item.note, fused.note if fused else "") if n)
    return ProductItem(made.product, (*operands, *inputs, out), "; ".join(notes))  # type: ignore[arg-type]
