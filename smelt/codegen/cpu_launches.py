"""Launches of a schedule on a CPU: machine code for its kernels, and for the ATen calls that become generated code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from smelt.codegen.call_selection.generated_calls import ProductItem, compile_items, with_products
from smelt.codegen.llvm.gemm.gemm_spec import Product
from smelt.codegen.llvm.windows.window_spec import Window
from smelt.loops.kernel_ir import Kernel
from smelt.plan.machine_code import CompiledKernel
from smelt.plan.plan_items import Item, LaunchItem, Role
from smelt.schedule.schedule import Item as ScheduleItem
from smelt.schedule.schedule import KernelItem, Schedule

KernelCompiler = Callable[[Sequence[Kernel]], Sequence[CompiledKernel]]  # one for each


@dataclass(frozen=True)
class Products:
    """Which products and windows are generated: those that `prefer` accepts. `threads` share their work. `fuse_epilogues`:
    elementwise kernels that read them may become their epilogues."""

    prefer: Callable[[Product | Window], bool]
    fuse_epilogues: bool = True
    threads: int = 1


def generate(schedule: Schedule, compile_kernels: KernelCompiler, products: Products | None) -> list[Item]:
    """The items of `schedule`, with launches in place of kernels and of the ATen calls that are generated. `products`: None
    where ATen computes every product, convolution and pooling."""
    items: Sequence[ScheduleItem | ProductItem] = schedule.items
    if products is not None:
        items = with_products(schedule, products.fuse_epilogues, lambda item: products.prefer(item.product))
    kernels = [i for i in items if isinstance(i, KernelItem)]
    compiled = compile_kernels([i.kernel for i in kernels]) if kernels else ()
    products_code = compile_items([i for i in items if isinstance(i, ProductItem)])
    code = dict(zip(map(id, kernels), compiled)) | products_code
    return [launched(i, code) for i in items]


def launched(item: ScheduleItem | ProductItem, code: Mapping[int, CompiledKernel]) -> Item:
    """The item of a plan for an item of a schedule. `code`: by `id` of the item."""
    if isinstance(item, KernelItem):
        used = [
            (b, f.role)
            for b, f in zip(item.buffers, item.kernel.buffers)
            if b is not None and f.role != "local"
        ]
        return LaunchItem(code[id(item)], tuple(b for b, _ in used), tuple(r for _, r in used), item.note)
    if isinstance(item, ProductItem):
        reads: list[Role] = ["in"] * (len(item.buffers) - 1)
        return LaunchItem(code[id(item)], item.buffers, (*reads, "out"), item.note, joins=False)
    return item
