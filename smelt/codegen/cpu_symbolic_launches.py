"""A schedule whose sizes have symbols, on a CPU: its launches for sets of numbers.

Kernels are compiled once, for all sizes; those of rows that may be of a few vectors once more for each number of these that
comes. Launches keep the symbols, and do for all numbers with the same answers to what their code is chosen by. So do
products of which no more than `Lengths` depends on sizes.

Where there are others, or windows, launches are made for numbers: which of them are generated, and what they absorb, is
decided as where sizes are fixed. A product's code is that of others, given other numbers; that of a window is for its sizes,
so only the first sets of sizes have some.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from smelt.codegen.call_selection.epilogue_fusion import readers_of
from smelt.codegen.call_selection.generated_calls import ProductItem, compile_by, is_product, with_products
from smelt.codegen.call_selection.window_calls import WINDOW_CALLS
from smelt.codegen.cpu_launches import KernelCompiler, Products, launched
from smelt.codegen.llvm.compile import refuse_unknown
from smelt.codegen.llvm.gemm.gemm_spec import Product
from smelt.codegen.llvm.gemm.symbolic_gemm import SizedProducts, of_lengths, work
from smelt.codegen.llvm.host_cpu import host
from smelt.codegen.llvm.short_rows import of_length, row_of
from smelt.codegen.llvm.windows.window_codegen import compile_windows
from smelt.codegen.llvm.windows.window_spec import Window
from smelt.graph.tensor_specs import at_numbers
from smelt.loops.kernel_ir import Kernel
from smelt.loops.kernel_sizes import at_sizes
from smelt.plan.machine_code import CompiledKernel
from smelt.plan.plan_items import Item, LaunchItem
from smelt.plan.size_decisions import Decisions
from smelt.schedule.schedule import ExternItem, KernelItem, Schedule
from smelt.schedule.schedule import Item as ScheduleItem
from smelt.shapes.expr import Size, Sym, all_static, free_syms, subs

WITH_WINDOWS = 8  # sets of sizes that have windows of their own: each takes some milliseconds to compile


class SymbolicCodegen:
    """What gives the launches of `schedule`. It keeps all code. `products`: those that are generated. Raises NeedsFixedSize
    for kernels that there is no code for that does for all sizes."""

    def __init__(
        self, schedule: Schedule, compile_kernels: KernelCompiler, products: Products | None
    ) -> None:
        self._schedule = schedule
        self._compile_kernels, self._options = compile_kernels, products
        self._products = SizedProducts()
        self._windows: dict[Window, CompiledKernel] = {}
        self._sets_with_windows = 0
        self._code: dict[Kernel, CompiledKernel] = {}
        items = [i for i in schedule.items if isinstance(i, KernelItem)]
        refuse_unknown(i.kernel for i in items)
        self._behind = _behind_products(schedule) if products is not None else frozenset()
        self._rows = {id(i): row for i in items if (row := row_of(i.kernel)) is not None}
        chosen = self._behind | self._rows.keys()  # what their code is depends on numbers
        self._compile([i.kernel for i in items if id(i) not in chosen])

    def symbolic(self, decisions: Decisions) -> Sequence[Item]:
        """All of them, with symbols in their sizes."""
        return self._launches(self._with_sized_products(decisions), decisions)

    def is_symbolic(self) -> bool:
        """Whether `symbolic` gives the products that are generated at numbers, which are likely ones here."""
        if self._options is None or not any(map(is_product, self._schedule.items)):
            return True
        if any(isinstance(i, ExternItem) and i.op in WINDOW_CALLS for i in self._schedule.items):
            return False
        specs = [b.spec for b in self._schedule.buffers]
        likely = {s: s.likely for spec in specs for n in (*spec.shape, *spec.stride) for s in free_syms(n)}
        buffers = [replace(b, spec=at_numbers(b.spec, likely)) for b in self._schedule.buffers]
        if any(n < 0 for b in buffers for n in all_static(*b.spec.shape)):
            return False  # sizes that are likely each, but not together
        wanted = self._with_products(replace(self._schedule, buffers=buffers), likely)
        found = self._with_sized_products(Decisions(likely))
        return _products(found) == _products(wanted)

    def _with_sized_products(self, decisions: Decisions) -> Sequence[ScheduleItem | ProductItem]:
        if self._options is None:
            return self._schedule.items
        prefer = partial(self._prefer_sized, decisions)
        return with_products(self._schedule, self._options.absorb, prefer, decisions.values)

    def _prefer_sized(self, decisions: Decisions, item: ProductItem) -> bool:
        """Notes what `cost.prefers_product` depends on."""
        assert self._options is not None
        if item.lengths is not None:
            assert isinstance(item.product, Product)
            count, shares = work(item.product, item.lengths)
            _ = decisions.at_least(count, self._options.threads) or decisions.at_least(count, shares)
        return self._options.prefer(item.product)

    def at(self, schedule: Schedule, values: Mapping[Sym, int]) -> Sequence[Item]:
        """`schedule`: that of all sizes at `values`, but for its kernels, whose items are its own."""
        items = self._launches(self._with_products(schedule, values), Decisions(values))
        return [_given(item, values) for item in items]

    def _launches(self, items: Sequence[ScheduleItem | ProductItem], decisions: Decisions) -> Sequence[Item]:
        kernels = {id(i): self._kernel(i, decisions) for i in items if isinstance(i, KernelItem)}
        self._compile(kernel for kernel, _ in kernels.values())
        products = [i for i in items if isinstance(i, ProductItem)]
        code = {key: self._code[kernel] for key, (kernel, _) in kernels.items()}
        code |= compile_by(products, self._products.compile, self._compile_windows)
        for i in products:
            if i.lengths is not None and isinstance(i.product, Product):
                code[id(i)] = of_lengths(code[id(i)], i.product, i.lengths, decisions)
        launches = [(launched(i, code), kernels.get(id(i))) for i in items]
        return [item if made is None else _given(item, made[1]) for item, made in launches]

    def _with_products(
        self, schedule: Schedule, values: Mapping[Sym, int]
    ) -> Sequence[ScheduleItem | ProductItem]:
        """The items with products and windows; kernels that none of them absorbed are those of all sizes."""
        if self._options is None:
            return schedule.items
        numbered = {
            id(i): replace(i, kernel=at_sizes(i.kernel, values))
            for i in schedule.items
            if isinstance(i, KernelItem) and id(i) in self._behind and i.kernel.sizes
        }
        own = {id(numbered[id(i)]): i for i in schedule.items if id(i) in numbered}
        at_values = replace(schedule, items=[numbered.get(id(i), i) for i in schedule.items])
        found = with_products(at_values, self._options.absorb, self._prefer)
        return [own.get(id(i), i) for i in found]

    def _kernel(self, item: KernelItem, decisions: Decisions) -> tuple[Kernel, Mapping[Sym, Size]]:
        """What is compiled for it, and what its symbols stand for."""
        row = self._rows.get(id(item))
        return (item.kernel, {}) if row is None else of_length(item.kernel, row, decisions, host())

    def _prefer(self, item: ProductItem) -> bool:
        assert self._options is not None
        product = item.product
        known = isinstance(product, Product) or replace(product, name="") in self._windows
        return (known or self._sets_with_windows < WITH_WINDOWS) and self._options.prefer(product)

    def _compile(self, kernels: Iterable[Kernel]) -> None:
        missing = [k for k in dict.fromkeys(kernels) if k not in self._code]
        if missing:
            self._code.update(zip(missing, self._compile_kernels(missing)))

    def _compile_windows(self, windows: Sequence[Window]) -> list[CompiledKernel]:
        missing = {key: w for w in windows if (key := replace(w, name="")) not in self._windows}
        if missing:
            self._sets_with_windows += 1
            self._windows.update(zip(missing, compile_windows(list(missing.values()))))
        return [self._windows[replace(w, name="")] for w in windows]


def _products(items: Iterable[ScheduleItem | ProductItem]) -> list[tuple[int, ...]]:
    """The buffers of each."""
    return [item.buffers for item in items if isinstance(item, ProductItem)]


def _given(item: Item, sizes: Mapping[Sym, Size]) -> Item:
    """A launch with what `sizes` says in the place of symbols."""
    if not isinstance(item, LaunchItem):
        return item
    extent, *others = (subs(size, sizes) for size in (item.code.extent, *item.code.sizes))
    return replace(item, code=replace(item.code, extent=extent, sizes=tuple(others)))


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
