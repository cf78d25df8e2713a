"""Schedule to plan: addresses for kernels, ATen calls for externs, memory for buffers, an end for every lifetime.

Buffer i of the schedule is register i of the plan. A *root* is a buffer with memory of its own; views, and results that
an operator's schema declares as aliases, belong to the root whose memory they share. Only roots of kind `temp` on the
CPU that neither the user nor a foreign operator can keep go to the arena.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from smelt.codegen.extern import aliased_values, is_foreign, out_variant, returns_alias, written_values
from smelt.codegen.generated.items import Prefer, ProductItem, compile_items, with_products
from smelt.config import Config
from smelt.graph.ir import TensorSpec
from smelt.loops.ir import Kernel
from smelt.plan.memory import Interval, place
from smelt.plan.steps import (
    Alloc,
    Aten,
    BumpVersion,
    Free,
    Launch,
    Plan,
    Reg,
    Step,
    View,
    defines,
    launches,
    reads,
    registers_in,
    span_bytes,
)
from smelt.plan.together import Touched, side_by_side
from smelt.schedule.schedule import BufferSpec, BufRef, ExternItem, Item, KernelItem, Schedule, ViewItem

# Touching less memory than this is over before another Python thread could make use of the GIL (about 20 us).
GIL_BYTES = 1 << 18


class CompiledKernel(Protocol):
    """What code generation gives for a kernel."""

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> int: ...
    @property
    def extent(self) -> int: ...
    @property
    def grain(self) -> int: ...


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
    memory = _Memory(schedule, items)
    code = dict(zip(map(id, kernels), compiled)) | products
    writer = _Writer(schedule, memory, code, config)
    for item in items:
        writer.add(item)
    joined = side_by_side(writer.steps, writer.touched, config.threads or torch.get_num_threads())
    freed = with_frees(joined, memory.n_held, writer.outputs)
    steps, arena_bytes = with_arena(freed, memory.may_use_arena)
    return Plan(
        n_inputs=memory.n_inputs,
        constants=schedule.constants,
        n_registers=writer.n_registers,
        steps=steps,
        outputs=writer.outputs,
        arena_bytes=arena_bytes,
        release_gil=is_long(steps, schedule),
        keepalive=(owner, products_owner),
    )


def is_long(steps: Iterable[Step], schedule: Schedule) -> bool:
    """Whether running these steps takes long enough to let other Python threads run meanwhile."""
    steps = list(steps)
    if any(isinstance(step, Aten) for step in steps):
        return True
    touched = 0
    for launch in launches(steps):
        specs = (schedule.buffers[r].spec for r in launch.regs if r < len(schedule.buffers))
        touched += sum(span_bytes(s.shape, s.stride, s.dtype) for s in specs)
    return touched > GIL_BYTES


# ------------------------------------------------------------------------------------------------- whose memory is it


class _Memory:
    """Which root each buffer belongs to, and which roots must not be in the arena."""

    def __init__(self, schedule: Schedule, items: Sequence[Item | ProductItem]) -> None:
        self.buffers = schedule.buffers
        self.n_inputs = sum(b.kind == "input" for b in schedule.buffers)
        self.n_held = self.n_inputs + len(schedule.constants)
        self._root: dict[int, int] = {}
        self._kept: set[int] = set()
        self.by_pointer: set[int] = set()  # buffers whose strides somebody relies on
        for item in items:
            _ALIASES[type(item)](self, item)
        for out in schedule.outputs:
            if out is not None:
                self.keep(out)

    def root(self, buffer: int) -> int:
        while (up := self._root.get(buffer, buffer)) != buffer:
            buffer = up
        return buffer

    def join(self, out: int, src: int) -> None:
        """`out` shares memory with `src`."""
        a, b = self.root(out), self.root(src)
        if a != b:
            self._root[a] = b
            if a in self._kept:
                self._kept.add(b)

    def keep(self, buffer: int) -> None:
        """Somebody may hold on to the memory after the call."""
        self._kept.add(self.root(buffer))

    def is_kept(self, buffer: int) -> bool:
        return self.root(buffer) in self._kept

    def may_use_arena(self, register: int) -> bool:
        if register >= len(self.buffers):
            return False
        buffer: BufferSpec = self.buffers[register]
        root = self.root(register)
        return (
            buffer.kind == "temp"
            and buffer.spec.device.type == "cpu"
            and root == register
            and root not in self._kept
        )


def _kernel_aliases(memory: _Memory, item: KernelItem) -> None:
    memory.by_pointer.update(b for b in item.buffers if b is not None)


def _product_aliases(memory: _Memory, item: ProductItem) -> None:
    memory.by_pointer.update(item.buffers)


def _view_aliases(memory: _Memory, item: ViewItem) -> None:
    memory.join(item.out, item.src)
    memory.by_pointer.add(item.src)
    if item.user_visible:
        memory.keep(item.out)


def _extern_aliases(memory: _Memory, item: ExternItem) -> None:
    used = tuple(references((item.args, item.kwargs)))
    if is_foreign(item.op):
        for buffer in used:
            memory.keep(buffer)
    for result, out in enumerate(item.outs):
        if out is not None:
            for buffer in references(aliased_values(item.op, result, item.args, item.kwargs)):
                memory.join(out, buffer)


_ALIASES: dict[type, Callable[[_Memory, Any], None]] = {
    KernelItem: _kernel_aliases,
    ProductItem: _product_aliases,
    ViewItem: _view_aliases,
    ExternItem: _extern_aliases,
}


def references(value: Any) -> Iterator[int]:
    """The buffers inside an extern's arguments."""
    if isinstance(value, BufRef):
        yield value.id
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from references(item)
    elif isinstance(value, dict):
        yield from references(tuple(value.values()))


# ------------------------------------------------------------------------------------------------------------- steps


class _Writer:
    """Turns items into steps. Allocations stand directly before the step that first writes them."""

    def __init__(
        self, schedule: Schedule, memory: _Memory, compiled: dict[int, CompiledKernel], config: Config
    ) -> None:
        self.memory = memory
        self.config = config
        self.compiled = compiled
        self.steps: list[Step] = []
        self.touched: dict[int, Touched] = {}  # by position of a kernel's launch
        self.n_registers = len(schedule.buffers)
        self._fresh: dict[int, int] = {}  # constant -> the register of this call's own copy
        self._defined = set(range(memory.n_held))
        for constant in range(memory.n_inputs, memory.n_held):
            if memory.is_kept(constant):
                self._copy_constant(constant)
        self.outputs = tuple(None if o is None else self.register(o) for o in schedule.outputs)
        self._returned = set(self.outputs)

    def add(self, item: Item | ProductItem) -> None:
        _ITEMS[type(item)](self, item)

    def register(self, buffer: int) -> int:
        return self._fresh.get(buffer, buffer)

    def spec(self, buffer: int) -> TensorSpec:
        return self.memory.buffers[buffer].spec

    def allocate(self, buffer: int) -> None:
        if buffer not in self._defined:
            self._defined.add(buffer)
            s = self.spec(buffer)
            self.steps.append(Alloc(buffer, s.shape, s.stride, s.dtype, s.device))

    def _copy_constant(self, constant: int) -> None:
        """A constant that the user gets to see is a new tensor at each call, as in eager."""
        register = self.n_registers
        self.n_registers += 1
        self._fresh[constant] = register
        op = torch.ops.aten.clone.default
        self.steps.append(Aten(op, (Reg(constant),), {}, (register,), "constant that is returned"))

    def kernel(self, item: KernelItem) -> None:
        compiled = self.compiled[id(item)]
        written = []
        for buffer, formal in zip(item.buffers, item.kernel.buffers):
            if buffer is not None and formal.role in ("out", "inout"):
                self.allocate(buffer)
                if self.memory.root(buffer) < self.memory.n_inputs:
                    written.append(self.memory.root(buffer))
        if written:
            self.steps.append(BumpVersion(tuple(dict.fromkeys(written))))
        self.touched[len(self.steps)] = self._touched(item)
        self.launch(compiled, [b for b in item.buffers if b is not None], item.note)

    def _touched(self, item: KernelItem) -> Touched:
        formals = [
            (self.memory.root(b), f.role) for b, f in zip(item.buffers, item.kernel.buffers) if b is not None
        ]
        return Touched(
            frozenset(b for b, role in formals if role != "out"),
            frozenset(b for b, role in formals if role != "in"),
        )

    def product(self, item: ProductItem) -> None:
        self.allocate(item.buffers[-1])
        self.launch(self.compiled[id(item)], item.buffers, item.note)

    def launch(self, compiled: CompiledKernel, buffers: Sequence[int], note: str) -> None:
        if compiled.extent == 0:
            return
        regs = tuple(map(self.register, buffers))
        grain = self._grain(compiled.extent, compiled.grain)
        self.steps.append(Launch(compiled.name, compiled.address, regs, compiled.extent, grain, note))

    def _grain(self, extent: int, grain: int) -> int:
        """At least a share of the work for each of `config.threads` threads keeps the others out."""
        threads = self.config.threads
        return max(grain, -(-extent // threads)) if threads else max(grain, 1)

    def view(self, item: ViewItem) -> None:
        of_input = self.memory.root(item.src) < self.memory.n_inputs
        visible = item.user_visible or (of_input and item.out in self._returned)
        self._defined.add(item.out)
        self.steps.append(
            View(item.out, self.register(item.src), item.shape, item.stride, item.offset, visible)
        )

    def extern(self, item: ExternItem) -> None:
        args, kwargs = self.arguments(item.args), self.arguments(item.kwargs)
        variant = out_variant(item.op)
        if variant is not None and item.outs[0] is not None:
            self.allocate(item.outs[0])
            kwargs["out"] = Reg(item.outs[0])
            self.steps.append(Aten(variant, args, kwargs, (None,), item.note))
            return
        self._defined.update(o for o in item.outs if o is not None)
        expect = tuple(self.spec(o) if o in self.memory.by_pointer else None for o in item.outs)  # type: ignore[arg-type]
        visible = is_foreign(item.op) or returns_alias(item.op) or self._writes_input(item)
        self.steps.append(Aten(item.op, args, kwargs, item.outs, item.note, expect, visible))

    def arguments(self, value: Any) -> Any:
        """The same with registers for buffers."""
        if isinstance(value, BufRef):
            return Reg(self.register(value.id))
        if isinstance(value, (tuple, list)):
            return tuple(map(self.arguments, value))
        if isinstance(value, dict):
            return {k: self.arguments(v) for k, v in value.items()}
        return value

    def _writes_input(self, item: ExternItem) -> bool:
        targets = references(written_values(item.op, item.args, item.kwargs))
        return any(self.memory.root(b) < self.memory.n_inputs for b in targets)


_ITEMS: dict[type, Callable[[_Writer, Any], None]] = {
    KernelItem: _Writer.kernel,
    ProductItem: _Writer.product,
    ViewItem: _Writer.view,
    ExternItem: _Writer.extern,
}


# ------------------------------------------------------------------------------------------------ lifetimes and arena


def with_frees(steps: Sequence[Step], n_held: int, outputs: Iterable[int | None]) -> list[Step]:
    """Adds a Free behind the last use of every register that a step defines and that is not returned."""
    returned = set(outputs)
    last: dict[int, int] = {}
    for i, step in enumerate(steps):
        last.update(dict.fromkeys((*defines(step), *reads(step)), i))
    ending: dict[int, list[int]] = {}
    for register, i in last.items():
        if register >= n_held and register not in returned:
            ending.setdefault(i, []).append(register)
    freed: list[Step] = []
    for i, step in enumerate(steps):
        freed.append(step)
        if i in ending:
            freed.append(Free(tuple(sorted(ending[i]))))
    return freed


def with_arena(steps: Sequence[Step], may_use_arena: Callable[[int], bool]) -> tuple[tuple[Step, ...], int]:
    """Gives arena offsets to the allocations that may have one. A raw view keeps its source's memory alive."""
    root: dict[int, int] = {}
    born: dict[int, tuple[int, Alloc]] = {}
    dies: dict[int, int] = {}
    for i, step in enumerate(steps):
        if isinstance(step, Alloc) and may_use_arena(step.out):
            root[step.out] = step.out
            born[step.out] = (i, step)
        elif not isinstance(step, Free):
            dies.update((root[r], i) for r in reads(step) if r in root)
            root.update((out, root[src]) for out, src in shares(step) if src in root)
    placement = place(
        [
            Interval(r, span_bytes(a.shape, a.stride, a.dtype), i, max(i, dies.get(r, i)))
            for r, (i, a) in born.items()
        ]
    )
    placed = tuple(
        replace(s, arena=placement.offsets[s.out]) if isinstance(s, Alloc) and s.out in born else s
        for s in steps
    )
    return placed, placement.nbytes


def shares(step: Step) -> Iterator[tuple[int, int]]:
    """Pairs (defined register, register whose memory it shares)."""
    if isinstance(step, View):
        yield step.out, step.src
    elif isinstance(step, Aten):
        for result, out in enumerate(step.outs):
            if out is not None:
                for src in registers_in(aliased_values(step.op, result, step.args, step.kwargs)):
                    yield out, src
