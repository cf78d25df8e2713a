"""Launches of a schedule with symbolic sizes on a CPU.

A kernel compiles once for all sizes; a kernel over short rows compiles once more for each number of vectors in a row. The
launches are symbolic: they are valid for all sizes with the same outcomes of the decisions that chose their code. So are
launches of products whose descriptors depend on sizes by no more than `Lengths`.

A schedule with other products, or with windows, has launches for concrete sizes: which calls are generated, and their
epilogues, are chosen as for fixed sizes. The code of a product takes its sizes as arguments; the code of a window is for one
set of sizes, so only the first sets have generated windows.
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
from smelt.loops.kernel_ir import Kernel
from smelt.loops.kernel_sizes import at_sizes
from smelt.plan.machine_code import CompiledKernel
from smelt.plan.plan_items import Item, LaunchItem
from smelt.plan.size_decisions import Decisions
from smelt.schedule.schedule import ExternItem, KernelItem, Schedule
from smelt.schedule.schedule import Item as ScheduleItem
from smelt.shapes.expr import Size, Sym, all_static, free_syms, subs
from smelt.shapes.substitute import substitute

MAX_WINDOW_SETS = 8  # sets of sizes with generated windows: each takes some milliseconds to compile


class SymbolicCodegen:
    """Generates the launches of `schedule` and caches their code. `products`: which products are generated. Raises
    NeedsFixedSize for kernels without code for all sizes."""

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
        self._epilogues = _possible_epilogues(schedule) if products is not None else frozenset()
        self._rows = {id(i): row for i in items if (row := row_of(i.kernel)) is not None}
        deferred = self._epilogues | self._rows.keys()  # their code depends on sizes
        self._compile([i.kernel for i in items if id(i) not in deferred])

    def symbolic(self, decisions: Decisions) -> Sequence[Item]:
        """All launches, with symbolic sizes."""
        return self._launches(self._with_symbolic_products(decisions), decisions)

    def is_symbolic(self) -> bool:
        """Whether `symbolic` generates the products that concrete sizes would have generated, by likely sizes."""
        if self._options is None or not any(map(is_product, self._schedule.items)):
            return True
        if any(isinstance(i, ExternItem) and i.op in WINDOW_CALLS for i in self._schedule.items):
            return False
        specs = [b.spec for b in self._schedule.buffers]
        likely = {s: s.likely for spec in specs for n in (*spec.shape, *spec.stride) for s in free_syms(n)}
        buffers = substitute(self._schedule.buffers, likely)
        if any(n < 0 for b in buffers for n in all_static(*b.spec.shape)):
            return False  # each size is likely, but not all together
        wanted = self._with_products(replace(self._schedule, buffers=buffers), likely)
        symbolic = self._with_symbolic_products(Decisions(likely))
        return _products(symbolic) == _products(wanted)

    def _with_symbolic_products(self, decisions: Decisions) -> Sequence[ScheduleItem | ProductItem]:
        if self._options is None:
            return self._schedule.items
        prefer = partial(self._prefer_symbolic, decisions)
        return with_products(self._schedule, self._options.fuse_epilogues, prefer, decisions.values)

    def _prefer_symbolic(self, decisions: Decisions, item: ProductItem) -> bool:
        """Records the decisions that `prefers_product` depends on."""
        assert self._options is not None
        if item.lengths is not None:
            assert isinstance(item.product, Product)
            count, shares = work(item.product, item.lengths)
            _ = decisions.at_least(count, self._options.threads) or decisions.at_least(count, shares)
        return self._options.prefer(item.product)

    def at(self, schedule: Schedule, values: Mapping[Sym, int]) -> Sequence[Item]:
        """The launches for the sizes `values`. `schedule`: the one at these sizes, with the items of kernels unchanged."""
        items = self._launches(self._with_products(schedule, values), Decisions(values))
        return [_substituted(item, values) for item in items]

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
        return [item if chosen is None else _substituted(item, chosen[1]) for item, chosen in launches]

    def _with_products(
        self, schedule: Schedule, values: Mapping[Sym, int]
    ) -> Sequence[ScheduleItem | ProductItem]:
        """The items with generated products and windows. Other kernels than their epilogues have the code for all sizes."""
        if self._options is None:
            return schedule.items
        concrete = {
            id(i): replace(i, kernel=at_sizes(i.kernel, values))
            for i in schedule.items
            if isinstance(i, KernelItem) and id(i) in self._epilogues and i.kernel.sizes
        }
        symbolic = {id(concrete[id(i)]): i for i in schedule.items if id(i) in concrete}
        at_values = replace(schedule, items=[concrete.get(id(i), i) for i in schedule.items])
        items = with_products(at_values, self._options.fuse_epilogues, self._prefer)
        return [symbolic.get(id(i), i) for i in items]

    def _kernel(self, item: KernelItem, decisions: Decisions) -> tuple[Kernel, Mapping[Sym, Size]]:
        """The kernel that compiles for it, and the sizes of its symbols."""
        row = self._rows.get(id(item))
        return (item.kernel, {}) if row is None else of_length(item.kernel, row, decisions, host())

    def _prefer(self, item: ProductItem) -> bool:
        assert self._options is not None
        product = item.product
        known = isinstance(product, Product) or replace(product, name="") in self._windows
        return (known or self._sets_with_windows < MAX_WINDOW_SETS) and self._options.prefer(product)

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
    """The buffers of each product."""
    return [item.buffers for item in items if isinstance(item, ProductItem)]


def _substituted(item: Item, sizes: Mapping[Sym, Size]) -> Item:
    """A launch with `sizes` substituted for its symbols."""
    if not isinstance(item, LaunchItem):
        return item
    extent, *others = (subs(size, sizes) for size in (item.code.extent, *item.code.sizes))
    return replace(item, code=replace(item.code, extent=extent, sizes=tuple(others)))


def _possible_epilogues(schedule: Schedule) -> frozenset[int]:
    """The `id`s of kernels that may become the epilogue of a product. They compile when they are launched."""
    readers = readers_of(schedule)
    ids = set()
    for item in schedule.items:
        if isinstance(item, ExternItem) and is_product(item):
            users = readers.get(item.outs[0], [])  # type: ignore[arg-type]
            if len(users) == 1 and users[0] >= 0 and isinstance(schedule.items[users[0]], KernelItem):
                ids.add(id(schedule.items[users[0]]))
    return frozenset(ids)
