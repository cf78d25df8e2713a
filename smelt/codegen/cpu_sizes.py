"""A schedule whose sizes have symbols, on a CPU: its launches for each set of numbers.

Kernels are compiled once, for all sizes. Which products and windows are generated, and what they absorb, is decided for
numbers, as where sizes are fixed. A product's code is that of others, given other numbers; that of a window is for its sizes, so
only the first sets of sizes have some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from smelt.codegen.calls.absorb import readers_of
from smelt.codegen.calls.items import ProductItem, compile_by, is_product, with_products
from smelt.codegen.generate import KernelCompiler, Products, launched
from smelt.codegen.llvm.products.product import Product
from smelt.codegen.llvm.products.sized import SizedProducts
from smelt.codegen.llvm.windows.code import compile_windows
from smelt.codegen.llvm.windows.window import Window
from smelt.graph.sizes import Sym
from smelt.loops.sizes import at_sizes
from smelt.plan.code import CompiledKernel
from smelt.plan.items import Item, LaunchItem
from smelt.plan.template import item_at
from smelt.schedule.schedule import ExternItem, KernelItem, Schedule

WITH_WINDOWS = 8  # sets of sizes that have windows of their own: each takes some milliseconds to compile


class ForSizes:
    """What gives the launches of `schedule` at numbers. It keeps all code. Raises NeedsFixedSize for kernels that there is no
    code for that does for all sizes."""

    def __init__(self, schedule: Schedule, compile_kernels: KernelCompiler, products: Products) -> None:
        self._compile_kernels, self._options = compile_kernels, products
        self._products = SizedProducts()
        self._windows: dict[Window, CompiledKernel] = {}
        self._sets_with_windows = 0
        self._behind = _behind_products(schedule)
        self._kernels: dict[int, CompiledKernel] = {}  # by id of an item
        self._compile([i for i in schedule.items if isinstance(i, KernelItem) and id(i) not in self._behind])

    def __call__(self, schedule: Schedule, values: Mapping[Sym, int]) -> Sequence[Item]:
        """`schedule`: that of all sizes at `values`, but for its kernels, whose items are its own."""
        numbered = {
            id(i): replace(i, kernel=at_sizes(i.kernel, values))
            for i in schedule.items
            if isinstance(i, KernelItem) and id(i) in self._behind and i.kernel.sizes
        }
        own = {id(numbered[id(i)]): i for i in schedule.items if id(i) in numbered}
        at_numbers = replace(schedule, items=[numbered.get(id(i), i) for i in schedule.items])
        found = with_products(at_numbers, self._options.absorb, self._prefer)
        items = [own.get(id(i), i) for i in found]
        self._compile([i for i in items if isinstance(i, KernelItem) and id(i) not in self._kernels])
        made = [i for i in items if isinstance(i, ProductItem)]
        code = self._kernels | compile_by(made, self._products.compile, self._compile_windows)
        return [_at(launched(i, code), values) for i in items]

    def _prefer(self, product: Product | Window) -> bool:
        known = isinstance(product, Product) or replace(product, name="") in self._windows
        return (known or self._sets_with_windows < WITH_WINDOWS) and self._options.prefer(product)

    def _compile(self, items: Sequence[KernelItem]) -> None:
        if items:
            compiled = self._compile_kernels([i.kernel for i in items])
            self._kernels.update(zip(map(id, items), compiled))

    def _compile_windows(self, windows: Sequence[Window]) -> list[CompiledKernel]:
        missing = {key: w for w in windows if (key := replace(w, name="")) not in self._windows}
        if missing:
            self._sets_with_windows += 1
            self._windows.update(zip(missing, compile_windows(list(missing.values()))))
        return [self._windows[replace(w, name="")] for w in windows]


def _behind_products(schedule: Schedule) -> frozenset[int]:
    """Ids of the kernels that a product may absorb. They are compiled when they are launched."""
    readers = readers_of(schedule)
    found = set()
    for item in schedule.items:
        if isinstance(item, ExternItem) and is_product(item):
            users = readers.get(item.outs[0], [])  # type: ignore[arg-type]
            if len(users) == 1 and users[0] >= 0 and isinstance(schedule.items[users[0]], KernelItem):
                found.add(id(schedule.items[users[0]]))
    return frozenset(found)


def _at(item: Item, values: Mapping[Sym, int]) -> Item:
    """A launch with numbers; others have them."""
    made: Item = item_at(item, values) if isinstance(item, LaunchItem) else item
    return made
