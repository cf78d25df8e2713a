"""Assembly of a group's units into a loop kernel: which units are stored, in which stages, and the expressions of each
stage.

Stages are ordered by level. A reader of a reduction is one level above it; elementwise units stand on the level of the
last reduction they need. Elementwise units of a level with equal loops share a stage, and so do reductions; reductions
of values that such a stage computes join it, so that the values are computed once and not loaded again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from smelt.cost_model import Costs
from smelt.loops.kernel_ir import (
    Buffer,
    Kernel,
    Loop,
    MapStage,
    ReduceStage,
    Reduction,
    ReductionKind,
    ScanStage,
    Stage,
    Store,
    Value,
    indices,
    walk,
)
from smelt.loops.kernel_sizes import size_symbols
from smelt.loops.lazy_tensor import Index, Reduce, Scan, Tensor
from smelt.loops.loop_values import COSTS, Moved, both, compare, where
from smelt.loops.loop_values import index as index_value
from smelt.schedule.fusion import Group, UnitIndexing
from smelt.schedule.index_spaces import Loops, linear, position, radix, solve, substituted
from smelt.schedule.inlining import Unit
from smelt.schedule.nest_simplification import tidy
from smelt.shapes.expr import Size, Sym, bounds, likely, numel, subs

NAME_LENGTH = 72

StageKey = tuple[int, str, Loops]


@dataclass
class _Draft:
    """A stage before its loops are simplified."""

    kind: str
    loops: Loops
    stores: list[Store] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)
    kinds: list[ReductionKind] = field(default_factory=list)  # of scans


@dataclass(frozen=True, eq=False)
class _Context:
    """How a unit's expression is rewritten: its own symbols, and a condition on all its loads."""

    values: dict[Sym, Size]
    mask: Value | None
    stage: StageKey
    done: dict[Value, Value] = field(default_factory=dict)


class KernelBuilder:
    """`tensors` by order; `in_memory`: whether readers outside of the group need a tensor; `buffer` gives schedule
    buffers, `part` those of a range of elements and their first element."""

    def __init__(
        self,
        group: Group,
        tensors: dict[int, Tensor],
        in_memory: set[Tensor],
        buffer: Callable[[Tensor], int],
        part: Callable[[Tensor, int, int], tuple[int, int]],
        costs: Costs,
    ) -> None:
        self.group, self.tensors, self.costs = group, tensors, costs
        self.buffer, self.part = buffer, part
        self.in_memory = in_memory
        self.units = {u.tensor: u for u in group.units}
        self.levels = self.level_all()
        self.joint = self.find_joint()
        self.local = self.choose_local()
        self.buffers: list[Buffer] = []
        self.arguments: list[int | None] = []
        self.numbers: dict[object, int] = {}
        self.names: dict[Tensor, str] = {}
        self.contexts: dict[tuple[Tensor, Index, Value | None, StageKey], _Context] = {}

    # ---- stages

    def level_all(self) -> dict[Tensor, int]:
        """The level of each unit; stages run level by level."""
        levels: dict[Tensor, int] = {}
        for unit in self.group.units:
            level = 0
            for tensor, own in unit.reads:
                if tensor in levels:
                    level = max(level, levels[tensor] + self.step(unit, tensor, own))
            levels[unit.tensor] = level
        return levels

    def step(self, unit: Unit, tensor: Tensor, own: Index) -> int:
        """Minimum level distance from a unit to its producers."""
        if isinstance(tensor.definition, Reduce):
            return 1
        indexing = self.group.indexing_of[unit.tensor]
        same = substituted(own, indexing.values) == self.group.indexing_of[tensor].index
        return 0 if same or not unit.is_map else 1

    def key(self, unit: Unit) -> StageKey:
        """The key of a unit's stage."""
        level, inner = self.levels[unit.tensor], self.group.indexing_of[unit.tensor].inner
        if unit.is_map:
            return level, "reduce" if (level, inner) in self.joint else "map", inner
        return level, "scan" if isinstance(unit.tensor.definition, Scan) else "reduce", inner

    def find_joint(self) -> set[tuple[int, Loops]]:
        """Levels and loops whose elementwise units share a stage with the reductions: every reader on that level reads
        at the point that computes the element."""
        indexing_of, units = self.group.indexing_of, self.group.units

        def at(unit: Unit) -> tuple[int, Loops]:
            return self.levels[unit.tensor], indexing_of[unit.tensor].inner

        joint = {at(u) for u in units if isinstance(u.tensor.definition, Reduce)}
        for unit in units:
            for tensor, own in unit.reads:
                read = self.units.get(tensor)
                if read is None or not read.is_map or self.levels[tensor] != self.levels[unit.tensor]:
                    continue
                if (
                    at(read) != at(unit)
                    or substituted(own, indexing_of[unit.tensor].values) != indexing_of[tensor].index
                ):
                    joint.discard(at(read))
        return {(level, inner) for level, inner in joint if inner}

    def stored(self, unit: Unit) -> bool:
        """Whether the unit's elements go to memory that outlives the kernel, or are reduced."""
        return not unit.is_map or unit.tensor in self.in_memory or unit.target is not None

    def is_dear(self, unit: Unit) -> bool:
        """Whether scratch memory is cheaper than recomputing the unit in each stage."""
        return not self.stored(unit) and cost(unit.value) > self.costs.scratch_cost

    def choose_local(self) -> set[Tensor]:
        """Elementwise units that several stages need and that are expensive, if a row of them fits in scratch."""
        stages: dict[Tensor, set[StageKey]] = defaultdict(set)
        local: set[Tensor] = set()
        used = 0
        for unit in reversed(self.group.units):
            tensor = unit.tensor
            inner = self.group.indexing_of[tensor].inner
            row = numel([n for _, n in inner])
            if inner and len(stages[tensor]) > 1 and self.is_dear(unit):
                size = likely(row) * tensor.dtype.itemsize
                if used + size <= self.costs.scratch_bytes:
                    used += size
                    local.add(tensor)
            keys = {self.key(unit)} if self.stored(unit) or tensor in local else stages[tensor]
            for read, _ in unit.reads:
                if read in self.units:
                    stages[read] |= keys
        return local

    def build(self) -> tuple[Kernel, tuple[int | None, ...]]:
        """The kernel, and for each of its buffers the schedule's buffer (None: scratch)."""
        drafts: dict[StageKey, _Draft] = {}
        work = [u for u in self.group.units if self.stored(u) or u.tensor in self.local]
        for unit in sorted(work, key=lambda u: self.key(u)[:2]):
            self.emit(unit, drafts)
        stages = [drafts[key] for key in sorted(drafts, key=lambda key: key[:2])]
        return self.assemble(stages), tuple(self.arguments)

    def emit(self, unit: Unit, drafts: dict[StageKey, _Draft]) -> None:
        """Add a unit's reduction or store to the draft of its stage."""
        tensor, indexing, key = unit.tensor, self.group.indexing_of[unit.tensor], self.key(unit)
        draft = drafts.setdefault(key, _Draft(key[1], key[2]))
        value = self.rewrite(unit.value, _Context(dict(indexing.values), None, key))
        if isinstance(tensor.definition, Reduce):
            name = self.names[tensor] = self.reduction(draft, tensor.definition.kind, value)
            if tensor in self.in_memory:
                result = drafts.setdefault((key[0] + 1, "map", ()), _Draft("map", ()))
                result.stores.append(
                    self.store(tensor, indexing.index, Value("result", (name,), tensor.dtype), False)
                )
        elif tensor in self.local:
            size = numel([n for _, n in indexing.inner])
            number = self.number(
                tensor, Buffer(f"local{len(self.buffers)}", tensor.dtype, "local", size), None
            )
            draft.stores.append(Store(number, self.local_index(indexing), value))
        else:
            draft.kinds.append(getattr(tensor.definition, "kind", "sum"))
            if unit.insert is not None:
                draft.stores.append(self.inserted(unit, value, key))
                return
            overwrites = unit.target is not None
            draft.stores.append(self.store(unit.target or tensor, indexing.index, value, overwrites))

    def reduction(self, draft: _Draft, kind: ReductionKind, value: Value) -> str:
        """The name of a reduction of the stage; equal reductions share one."""
        for r in draft.reductions:
            if r.kind == kind and r.value is value:
                return r.name
        name = f"r{len(self.names)}"
        draft.reductions.append(Reduction(name, kind, value))
        return name

    def store(self, tensor: Tensor, index: Index, value: Value, overwrites: bool) -> Store:
        """The store of an element of `tensor`. `overwrites`: the tensor is a graph input that takes a new value."""
        return Store(self.memory(tensor, "inout" if overwrites else "out"), linear(tensor, index), value)

    def inserted(self, unit: Unit, value: Value, key: StageKey) -> Store:
        """The store of an element of `unit` into its target, relative to the position of the insertion, so that the
        code that fills successive segments is the same."""
        assert unit.target is not None
        indexing = self.group.indexing_of[unit.tensor]
        context = _Context(dict(indexing.values), None, key)
        lookups = tuple(replace(l, value=self.rewrite(l.value, context)) for l in unit.lookups)
        at = linear(unit.target, substituted(unit.inserted_at, indexing.values))
        id, first = self.part(unit.target, *bounds(at))
        return Store(self.memory(unit.target, "inout", id), at - first, value, lookups)

    def memory(self, tensor: Tensor, role: str, id: int | None = None) -> int:
        """The kernel's number for a materialized tensor, or for buffer `id`, a segment of it. A buffer that the kernel
        itself wrote stays an output when it is read."""
        id = self.buffer(tensor) if id is None else id
        known = self.numbers.get(id)
        if known is None:
            return self.number(id, Buffer(f"{role}{len(self.buffers)}", tensor.dtype, role, 0), id)  # type: ignore[arg-type]
        buffer = self.buffers[known]
        if role == "inout" and buffer.role == "in":
            self.buffers[known] = Buffer(f"inout{known}", buffer.dtype, "inout", 0)
        return known

    def number(self, key: object, buffer: Buffer, argument: int | None) -> int:
        """Append a buffer under `key` and return its number."""
        self.numbers[key] = len(self.buffers)
        self.buffers.append(buffer)
        self.arguments.append(argument)
        return len(self.buffers) - 1

    # ---- expressions

    def rewrite(self, value: Value, context: _Context) -> Value:
        """A unit's expression in the group's symbols, over the kernel's buffers; shared parts are rewritten once."""
        done = context.done.get(value)
        if done is None:
            done = context.done[value] = self.rewritten(value, context)
        return done

    def rewritten(self, value: Value, context: _Context) -> Value:
        """`rewrite` of one value, without memoization."""
        if value.op == "load":
            order, index, mask = value.args
            mask = None if mask is None else self.rewrite(mask, context)
            return self.element(
                self.tensors[order], substituted(index, context.values), both(context.mask, mask), context
            )
        if value.op == "index":
            return index_value(subs(value.args[0], context.values))
        if value.op in ("const", "result"):
            return value
        args = tuple([self.rewrite(a, context) for a in value.args])
        if value.op in ("lt", "le", "gt", "ge"):
            return compare(value.op, *args)
        if value.op == "where":
            return where(*args)
        return Value(value.op, args, value.dtype)

    def element(self, tensor: Tensor, index: Index, mask: Value | None, context: _Context) -> Value:
        """An element that the stage reads: from memory, a reduction, scratch, or computed in the stage."""
        unit = self.units.get(tensor)
        if unit is None:
            return Value("load", (self.memory(tensor, "in"), linear(tensor, index), mask), tensor.dtype)
        if isinstance(tensor.definition, Reduce):
            return Value("result", (self.names[tensor],), tensor.dtype)
        indexing = self.group.indexing_of[tensor]
        if self.reads_back(unit, indexing, index, context.stage):
            if tensor in self.local:
                return Value(
                    "load",
                    (self.numbers[tensor], self.local_read(tensor, indexing, index), mask),
                    tensor.dtype,
                )
            return Value("load", (self.memory(tensor, "in"), linear(tensor, index), mask), tensor.dtype)
        key = (tensor, index, mask, context.stage)
        inside = self.contexts.get(key)
        if inside is None:
            inside = self.contexts[key] = _Context(unit.at(index), mask, context.stage)
        return self.rewrite(unit.value, inside)

    def reads_back(self, unit: Unit, indexing: UnitIndexing, index: Index, stage: StageKey) -> bool:
        """Whether a stored element is loaded rather than recomputed: in a later stage, if it varies along that stage."""
        tensor = unit.tensor
        if tensor not in self.local and not self.stored(unit):
            return False
        return index != indexing.index or (self.key(unit) != stage and bool(indexing.inner))

    def local_index(self, indexing: UnitIndexing) -> Size:
        """The scratch index of a unit's element: row-major over the loops of its stage."""
        return position([s for s, _ in indexing.inner], [n for _, n in indexing.inner])

    def local_read(self, tensor: Tensor, indexing: UnitIndexing, index: Index) -> Size:
        """The scratch index of the element of `tensor` at `index`."""
        if index == indexing.index:
            return self.local_index(indexing)
        sizes = dict((*self.group.outer, *indexing.inner))
        digits = radix(indexing.index, tensor.shape, sizes)
        assert digits is not None, "scratch memory read at an index that is no rearrangement"
        at = solve(digits, index, tensor.shape)
        return position([at[s] for s, _ in indexing.inner], [n for _, n in indexing.inner])

    # ---- assembly

    def assemble(self, drafts: list[_Draft]) -> Kernel:
        """The kernel of the drafted stages, with simplified loops."""
        outer, values = self.tidy_outer(drafts)
        stages = tuple(self.stage(draft, values) for draft in drafts)
        buffers, loops = tuple(self.buffers), _loops(outer)
        sizes = size_symbols(buffers, loops, stages)
        return Kernel(self.name(), buffers, loops, stages, sizes=sizes)

    def tidy_outer(self, drafts: list[_Draft]) -> tuple[Loops, dict[Sym, Size]]:
        """The outer loops, simplified over the indices of all stages, and the old symbols in terms of the new."""
        indices, layout = [], []
        for draft in drafts:
            layout += [_in_order(s) for s in draft.stores if self.buffers[s.buffer].role != "local"]
            indices += list(_indices(draft))
        layout.sort(key=lambda e: isinstance(e, int))
        return tidy(self.group.outer, indices, layout + indices, "o", False, self.costs.shortest_loop)

    def stage(self, draft: _Draft, outer: dict[Sym, Size]) -> Stage:
        """The stage of a draft with simplified loops."""
        if draft.kind == "scan":
            return self.scan_stage(draft, outer)
        indices = [subs(e, outer) for e in _indices(draft)]
        layout = [_in_order(s) for s in draft.stores]
        positional = any(r.kind in ("argmax", "argmin") for r in draft.reductions)
        loops, inner = tidy(draft.loops, indices, layout + indices, "i", positional, self.costs.shortest_loop)
        renaming = Moved({**outer, **inner})
        stores = tuple(s.moved(renaming.index, renaming.value) for s in draft.stores)
        if draft.kind == "reduce":
            reductions = tuple(Reduction(r.name, r.kind, renaming.value(r.value)) for r in draft.reductions)
            return ReduceStage(_loops(loops), reductions, stores)
        return MapStage(_loops(loops), stores)

    def scan_stage(self, draft: _Draft, outer: dict[Sym, Size]) -> Stage:
        """The stage of a scan, whose loop is not simplified."""
        renaming = Moved(outer)
        (store,), (loop,) = draft.stores, draft.loops
        return ScanStage(Loop(*loop), draft.kinds[0], store.moved(renaming.index, renaming.value))

    def name(self) -> str:
        """The names of the operators whose arithmetic the kernel contains, in order."""
        names = dict.fromkeys(name for unit in self.group.units for name in unit.names)
        return "_".join(names)[:NAME_LENGTH]


def cost(value: Value) -> float:
    """Arithmetic of an expression, in additions; shared subexpressions count once."""
    return sum(COSTS.get(v.op, 1.0) for v in walk([value]))


def _in_order(store: Store) -> Size:
    """The store index if the lookups are consecutive numbers."""
    total = store.index
    for lookup in store.lookups:
        for v in walk([lookup.value]):
            if v.op in ("load", "index"):
                total = total + (v.args[1] if v.op == "load" else v.args[0]) * lookup.stride
    return total


def _indices(draft: _Draft) -> Iterator[Size]:
    looked_up = [l.value for s in draft.stores for l in s.lookups]
    for root in [s.value for s in draft.stores] + [r.value for r in draft.reductions] + looked_up:
        yield from indices([root])
    for s in draft.stores:
        yield s.index


def _loops(loops: Loops) -> tuple[Loop, ...]:
    return tuple(Loop(sym, size) for sym, size in loops)
