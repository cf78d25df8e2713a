"""Translation of ordered groups to the schedule's items: kernels, ATen calls, and the views that they and the caller
need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from smelt.cost_model import Costs
from smelt.graph.ir import TensorSpec
from smelt.graph.pytree import map_leaves
from smelt.loops.lazy_tensor import Extern, Index, Map, Program, Tensor
from smelt.schedule.fusion import Group
from smelt.schedule.index_spaces import linear, own_loops
from smelt.schedule.inlining import Units, base, returned
from smelt.schedule.kernel_assembly import KernelBuilder
from smelt.schedule.schedule import (
    BufferKind,
    BufferSpec,
    BufRef,
    ExternItem,
    Item,
    KernelItem,
    Schedule,
    ViewItem,
)
from smelt.schedule.sibling_fusion import Pairs, sibling_kernel
from smelt.shapes.expr import Size, affine

Layout = tuple[tuple[Size, ...], tuple[Size, ...], Size]  # shape, stride, offset


def build_schedule(
    program: Program,
    units: Units,
    groups: Sequence[Group],
    refusals: tuple[str, ...],
    costs: Costs,
    siblings: Pairs,
) -> Schedule:
    """The schedule of `program` from its units and their groups in execution order. `refusals`: for the printer.
    `siblings`: groups that may fuse with the group before them."""
    return _Builder(program, units, groups, costs).build(refusals, siblings)


class _Builder:
    def __init__(self, program: Program, units: Units, groups: Sequence[Group], costs: Costs) -> None:
        self.program, self.groups, self.costs = program, groups, costs
        self.items: list[Item] = []
        self.specs: list[BufferSpec] = []
        self.ids: dict[Tensor, int] = {}
        self.views: dict[tuple[int, Layout, int | None], int] = {}
        self.escaping = returned(program)
        self.in_memory = units.required | _read_by_others(groups)
        self.tensors = {t.order: t for t in _all_tensors(program)}
        for tensor in program.inputs:
            self.buffer(tensor, "input")
        for tensor, _ in program.constants:
            self.buffer(tensor, "constant")

    def build(self, refusals: tuple[str, ...], siblings: Pairs) -> Schedule:
        for group in self.groups:
            if group.extern is not None:
                self.extern(group.extern)
                continue
            item = self.kernel(group)
            if group.id in siblings:
                rows = self.items[-1]
                assert isinstance(rows, KernelItem)
                both = sibling_kernel(rows, item, self.costs)
                if isinstance(both, KernelItem):
                    self.items[-1] = both
                    continue
                refusals = (*refusals, f"sums with {rows.kernel.name}: {both}")
            self.items.append(item)
        outputs = tuple(
            None if t is None else self.reference(t, user_visible=True) for t in self.program.outputs
        )
        constants = tuple(value for _, value in self.program.constants)
        return Schedule(self.specs, constants, self.items, outputs, refusals)

    # ---- buffers

    def buffer(self, tensor: Tensor, kind: BufferKind | None = None) -> int:
        """The buffer that holds a materialized tensor."""
        id = self.ids.get(tensor)
        if id is None:
            id = self.ids[tensor] = self.new(
                tensor.spec, kind or ("output" if tensor in self.escaping else "temp")
            )
        return id

    def new(self, spec: TensorSpec, kind: BufferKind) -> int:
        self.specs.append(BufferSpec(len(self.specs), spec, kind))
        return len(self.specs) - 1

    def reference(self, tensor: Tensor, user_visible: bool = False) -> int:
        """The buffer of a tensor, or a view of its base's buffer, created on first use."""
        if not tensor.is_view:
            return self.buffer(tensor)
        source = base(tensor)
        src = self.buffer(source)
        layout = view_layout(tensor, source)
        spec = self.specs[src].spec
        if not user_visible and layout == (spec.shape, spec.stride, 0):
            return src
        key = (src, layout, tensor.order if user_visible else None)  # equal outputs are different objects
        if key not in self.views:
            shape, stride, offset = layout
            seen = replace(tensor.spec, stride=stride, offset=spec.offset + offset)
            out = self.views[key] = self.new(seen, "output" if user_visible else "temp")
            self.items.append(ViewItem(out, src, shape, stride, offset, user_visible))
        return self.views[key]

    def part(self, tensor: Tensor, first: int, last: int) -> tuple[int, int]:
        """The buffer in which a kernel stores elements of `tensor` from `first` to `last`, and the element at which
        the buffer begins. A graph input is its own buffer, so that autograd sees the write."""
        src = self.buffer(tensor)
        spec = self.specs[src].spec
        elements = linear(tensor, tuple(n - 1 for n in spec.shape)) + 1
        if self.specs[src].kind == "input" or not isinstance(elements, int):
            return src, 0
        first, last = max(first, 0), min(last, elements - 1)
        layout: Layout = (last + 1 - first,), (1,), first
        key = (src, layout, None)
        if key not in self.views:
            seen = replace(spec, shape=layout[0], stride=(1,), offset=spec.offset + first)
            out = self.views[key] = self.new(seen, "temp")
            self.items.append(ViewItem(out, src, *layout))
        return self.views[key], first

    # ---- items

    def extern(self, extern: Extern) -> None:
        args, kwargs = (
            map_leaves(tree, Tensor, lambda t: BufRef(self.reference(t)))
            for tree in (extern.args, extern.kwargs)
        )
        outs = tuple(None if r is None else self.buffer(r) for r in extern.results)
        self.items.append(ExternItem(extern.op, args, kwargs, outs, str(extern.line or ""), why=extern.why))

    def kernel(self, group: Group) -> KernelItem:
        kernel, buffers = KernelBuilder(
            group, self.tensors, self.in_memory, self.buffer, self.part, self.costs
        ).build()
        computed = (t for u in group.units for t in (*u.inlined, u.tensor))
        made_of = tuple(dict.fromkeys((t.name, t.line) for t in sorted(computed, key=lambda t: t.order)))
        # What writes an input back has no line, but for that of what it writes.
        lines = [u.tensor.line for u in group.units if u.tensor.line] or [line for _, line in made_of if line]
        return KernelItem(kernel, buffers, str(lines[-1]) if lines else "", made_of)


def view_layout(tensor: Tensor, source: Tensor) -> Layout:
    """Strides and offset of a view in its base's memory: from its index function if that is affine; otherwise, and for
    empty views, from the trace. Strides of dimensions of size 1 are the trace's."""
    seen = tensor.shape, tensor.spec.stride, tensor.spec.offset - source.spec.offset
    if 0 in tensor.shape:
        return seen
    index, loops = own_loops(tensor.shape, "d")
    at: Size = linear(source, _base_index(tensor, index))
    strides: list[Size] = list(tensor.spec.stride)
    for (sym, _), d in zip(loops, [d for d, i in enumerate(index) if i != 0]):
        split = affine(at, sym)
        if split is None:
            return seen
        strides[d], at = split
    return tensor.shape, tuple(strides), at


def _base_index(tensor: Tensor, index: Index) -> Index:
    """The index into the base of a view's element."""
    while tensor.is_view:
        tensor, index = _step(tensor, index)
    return index


def _step(tensor: Tensor, index: Index) -> tuple[Tensor, Index]:
    seen: list[tuple[Tensor, Index]] = []

    def load(t: Tensor, i: Index) -> Any:
        seen.append((t, i))

    assert isinstance(tensor.definition, Map)
    tensor.definition.body(load, index)  # type: ignore[arg-type]
    return seen[0]


def _read_by_others(groups: Sequence[Group]) -> set[Tensor]:
    """Tensors computed by one group and read by another."""
    return {
        tensor
        for group in groups
        for unit in group.units
        for tensor, _ in unit.reads
        if tensor not in group.indexing_of
    }


def _all_tensors(program: Program) -> list[Tensor]:
    """Every tensor that a kernel may read."""
    tensors = [*program.inputs, *(t for t, _ in program.constants)]
    for step in program.steps:
        if isinstance(step, Tensor):
            tensors.append(step)
        elif isinstance(step, Extern):
            tensors += [r for r in step.results if r is not None]
    return tensors
