"""Schedule to plan: which externs become generated code, machine code for everything that has none yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt.codegen.extern import out_variant
from smelt.codegen.generated.items import Prefer, ProductItem, compile_items, with_products
from smelt.config import Config
from smelt.loops.ir import Kernel
from smelt.plan.build import plan_of
from smelt.plan.items import CompiledKernel, Item, LaunchItem, Role
from smelt.plan.steps import Plan
from smelt.schedule.schedule import Item as ScheduleItem
from smelt.schedule.schedule import KernelItem, Schedule

KernelCompiler = Callable[[Sequence[Kernel], Config], tuple[Sequence[CompiledKernel], Any]]


def build_plan(
    schedule: Schedule, config: Config, compile_kernels: KernelCompiler, prefer: Prefer = lambda product: True
) -> Plan:
    """`compile_kernels(kernels, config)` gives one compiled kernel for each, and the owner of the machine code.
    `prefer(product)`: generate this matrix product rather than call ATen."""
    items = with_products(schedule, config, prefer)
    kernels = [i for i in items if isinstance(i, KernelItem)]
    compiled, owner = compile_kernels([i.kernel for i in kernels], config) if kernels else ((), None)
    products, products_owner = compile_items([i for i in items if isinstance(i, ProductItem)])
    code = dict(zip(map(id, kernels), compiled)) | products
    return plan_of(
        schedule, [_launched(i, code) for i in items], config.threads, out_variant, (owner, products_owner)
    )


def _launched(item: ScheduleItem | ProductItem, code: Mapping[int, CompiledKernel]) -> Item:
    """`item` as the plan's builder takes it; `code` by id of item."""
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
