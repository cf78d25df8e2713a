"""Units: the tensors that get loops of their own. All other tensors are inlined into the expressions that read them.

A *unit* is a tensor that must be materialized (arguments of ATen calls, graph outputs), a reduction, a scan, or an
elementwise tensor that is too expensive to recompute at each read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from smelt.cost_model import Costs
from smelt.graph.operator_effects import is_effectful
from smelt.graph.pytree import leaves
from smelt.loops.kernel_ir import Lookup, Value
from smelt.loops.lazy_tensor import (
    CopyBack,
    Extern,
    Index,
    Insert,
    Load,
    Map,
    Program,
    Reduce,
    RuntimeIndex,
    Scan,
    Tensor,
)
from smelt.loops.loop_values import both
from smelt.schedule.index_spaces import Loops, own_loops, radix, solve, substituted
from smelt.schedule.nest_simplification import split_loops
from smelt.shapes.expr import Size, Sym, likely, numel, static


@dataclass(eq=False)
class Unit:
    """`value`: what the unit computes at `index` (over its own `loops`, reduced over `reduce_loops`). Loads in it are
    `load(order of the tensor, index tuple, mask)`; `reads` lists them. `target`: the graph input, or memory to fill,
    that the unit is stored to. `insert`: the unit covers only the elements `inserted_at` (in its own symbols) of the
    target, offset by `lookups`. `names`: the operators whose arithmetic it contains. `inlined`: those of them that are
    inlined. `deep`: readers must load the unit from memory."""

    tensor: Tensor
    index: Index
    loops: Loops
    reduce_loops: Loops
    value: Value
    reads: list[tuple[Tensor, Index]]
    target: Tensor | None = None
    names: tuple[str, ...] = ()
    deep: bool = False
    insert: Insert | None = None
    inserted_at: Index = ()
    lookups: tuple[Lookup, ...] = ()
    inlined: tuple[Tensor, ...] = ()

    def at(self, index: Index) -> dict[Sym, Size]:
        """The values of the unit's own symbols at an element of its tensor."""
        if len(self.loops) == sum(isinstance(e, Sym) for e in self.index):
            return {e: i for e, i in zip(self.index, index) if isinstance(e, Sym)}
        digits = radix(self.index, self.tensor.shape, dict(self.loops))
        assert digits is not None, "a unit's own loops run over its elements"
        return solve(digits, index, self.tensor.shape)

    @property
    def is_map(self) -> bool:
        """Whether it is elementwise: neither a reduction nor a scan."""
        return isinstance(self.tensor.definition, Map)


@dataclass
class Units:
    """`steps`: units and ATen calls in program order. `required`: tensors that must be materialized."""

    steps: list[Unit | Extern] = field(default_factory=list)
    required: set[Tensor] = field(default_factory=set)


def base(tensor: Tensor) -> Tensor:
    """The tensor whose memory a view aliases."""
    while tensor.is_view:
        tensor = tensor.inputs[0]
    return tensor


def returned(program: Program) -> set[Tensor]:
    """The tensors whose memory the results alias."""
    return {base(t) for t in program.outputs if t is not None}


def _runs(call: Extern, needed: set[Tensor]) -> bool:
    """Whether an ATen call must run: it has effects besides its results, or a result is needed."""
    return is_effectful(call.op) or call.raises or any(r in needed for r in call.results)


def choose_units(program: Program, costs: Costs, join: bool = True) -> Units:
    """The units in program order. `join` False: every elementwise tensor that is not a view is a unit."""
    required = required_in_memory(program)
    targets = {step.source: step for step in program.steps if isinstance(step, CopyBack | Insert)}
    written = {step.target for step in targets.values()}
    deep = _deep(program, required, costs.inline_depth)
    required |= deep
    while True:
        chosen = _choose(program, required, written.union(targets), costs, join)
        steps: list[Unit | Extern] = []
        for step in program.steps:
            if isinstance(step, Extern):
                if step.order in chosen.externs:
                    steps.append(step)
            elif step in chosen.tensors:
                steps.append(_unit(step, chosen.tensors, targets.get(step), costs.shortest_loop))  # type: ignore[arg-type]
        clash = _overwritten_too_early(steps)
        if not clash:
            for unit in steps:
                if isinstance(unit, Unit):
                    unit.deep = unit.tensor in deep
            return Units(_read(steps, program), required - set(targets))
        required |= clash


def _read(steps: Sequence[Unit | Extern], program: Program) -> list[Unit | Extern]:
    """The program without components that no index of their readers selects."""
    needed = returned(program)
    kept: list[Unit | Extern] = []
    for step in reversed(steps):
        if isinstance(step, Unit):
            if step.target is None and step.tensor not in needed:
                continue
            needed.update(t for t, _ in step.reads)
        elif _runs(step, needed):
            needed.update(base(t) for t in leaves([step.args, step.kwargs], Tensor))
        else:
            continue
        kept.append(step)
    return kept[::-1]


def required_in_memory(program: Program) -> set[Tensor]:
    """Tensors that are materialized however the program is fused: results, and arguments of ATen calls."""
    required = returned(program)
    for step in program.steps:
        if isinstance(step, Extern):
            required.update(base(t) for t in leaves([step.args, step.kwargs], Tensor))
    return required


def _deep(program: Program, required: set[Tensor], most: int) -> set[Tensor]:
    """Elementwise tensors at which deep expressions are cut. A tensor `required` in memory already ends one."""
    depth: dict[Tensor, int] = {}
    deep: set[Tensor] = set()
    for step in program.steps:
        if isinstance(step, Tensor) and isinstance(step.definition, Map):
            depth[step] = 1 + max((depth.get(t, 0) for t in step.inputs), default=0)
            if step in required:
                depth[step] = 0
            elif depth[step] >= most and not step.is_view:
                deep.add(step)
                depth[step] = 0
    return deep


def _overwritten_too_early(steps: list[Unit | Extern]) -> set[Tensor]:
    """Tensors to compute first because a copy into an input would read, through them, an input that is already
    overwritten, or other elements of the one it overwrites."""
    clash: set[Tensor] = set()
    overwritten: set[Tensor] = set()
    for step in steps:
        if isinstance(step, Unit) and step.target is not None and step.insert is None:
            own = {(step.target, step.index)}
            if any(t in overwritten or (t is step.target and (t, i) not in own) for t, i in step.reads):
                clash.update(step.tensor.inputs)
            overwritten.add(step.target)
    return clash


@dataclass
class _Chosen:
    tensors: set[Tensor]
    externs: set[int]


def _choose(
    program: Program, required: set[Tensor], targets: set[Tensor], costs: Costs, join: bool
) -> _Chosen:
    """Walk the program backwards, count the reads of each tensor, and decide which are worth a unit."""
    weight = _weights(program, required, costs)
    reads: Counter[Tensor] = Counter()
    needed = returned(program) | targets
    chosen = _Chosen(set(), set())
    for step in reversed(program.steps):
        if isinstance(step, Extern):
            if _runs(step, needed):
                chosen.externs.add(step.order)
                needed.update(base(t) for t in leaves([step.args, step.kwargs], Tensor))
        elif isinstance(step, Tensor) and (step in needed or reads[step]):
            points = _points(step)
            kept = step in needed or step in required
            if kept or _worth_a_unit(step, weight[step], reads[step], costs, join):
                chosen.tensors.add(step)
            else:
                points = reads[step]
            for t in step.inputs:
                reads[t] += points
                if not isinstance(t.definition, Map):
                    needed.add(t)
    return chosen


def _worth_a_unit(tensor: Tensor, weight: float, reads: int, costs: Costs, join: bool) -> bool:
    """Whether storing a tensor once and loading it costs less than recomputing it at each read."""
    if not isinstance(tensor.definition, Map):
        return True
    if tensor.definition.view:
        return False
    if not join or weight > costs.inline_limit:
        return True
    points = _points(tensor)
    return reads * weight > points * (weight + costs.store) + reads * costs.load + costs.launch


def _points(tensor: Tensor) -> int:
    total: Size = numel(tensor.shape)
    if isinstance(tensor.definition, Reduce):
        total = total * numel(tensor.definition.sizes)
    return likely(total)


def _weights(program: Program, required: set[Tensor], costs: Costs) -> dict[Tensor, float]:
    """Cost of computing one element, if inputs that are cheap or read once are inlined and others are loaded, as are
    tensors `required` in memory. Equal layers thus weigh the same, whatever precedes them."""
    uses: Counter[Tensor] = Counter(t for s in program.steps if isinstance(s, Tensor) for t in s.inputs)
    weight: dict[Tensor, float] = {}

    def of_input(t: Tensor) -> float:
        definition = t.definition
        if not isinstance(definition, Map) or t in required or weight[t] > costs.inline_limit:
            return costs.load
        return weight[t] if uses[t] == 1 or weight[t] <= costs.store or definition.view else costs.load

    for step in program.steps:
        if isinstance(step, Tensor):
            weight[step] = getattr(step.definition, "cost", 1.0) + sum(map(of_input, step.inputs))
    return weight


# ---- from a tensor to its expression


def _unit(tensor: Tensor, units: set[Tensor], target: CopyBack | Insert | None, shortest: int) -> Unit:
    """The unit of a tensor. Loops split where an operand is read at their quotient, so that rows are recognized."""
    index, loops = own_loops(tensor.shape, "d")
    unit = _unit_over(tensor, index, loops, units, target)
    if isinstance(tensor.definition, Map):
        read = [e for t, i in unit.reads if t in units for e in i]
        split, values = split_loops(loops, read, shortest)
        if values:
            unit = _unit_over(tensor, substituted(index, values), split, units, target)
    return unit


def _unit_over(
    tensor: Tensor, index: Index, loops: Loops, units: set[Tensor], target: CopyBack | Insert | None
) -> Unit:
    definition = tensor.definition
    reader = _Reader(units)
    load = _Load(reader, None)
    reduce_loops: Loops = ()
    if isinstance(definition, Map):
        value = definition.body(load, index)
    elif isinstance(definition, Scan):
        value = load(definition.inputs[0], index)
    else:
        assert isinstance(definition, Reduce)
        inner, reduce_loops = own_loops(definition.sizes, "r")
        value = definition.body(load, index, inner)
    insert = target if isinstance(target, Insert) else None
    lookups = (
        ()
        if insert is None
        else tuple(_lookup(insert.target, p, load, index) for p in insert.runtime_indices)
    )
    names = (*sorted(reader.names, key=reader.names.__getitem__), tensor.name)
    return Unit(
        tensor,
        index,
        loops,
        reduce_loops,
        value,
        list(reader.reads),
        None if target is None else target.target,
        names,
        insert=insert,
        inserted_at=() if insert is None else insert.at(index),
        lookups=lookups,
        inlined=tuple(reader.inlined),
    )


def _lookup(target: Tensor, runtime_index: RuntimeIndex, load: Load, index: Index) -> Lookup:
    """The runtime offset of the inserted element at `index`."""
    return Lookup(
        runtime_index.value(load, index),
        static(target.spec.stride[runtime_index.dim]),
        static(target.shape[runtime_index.dim]),
    )


class _Reader:
    """Collects the reads of an expression, each once."""

    def __init__(self, units: set[Tensor]) -> None:
        self.units = units
        self.reads: dict[tuple[Tensor, Index], None] = {}
        self.done: dict[tuple[Tensor, Index, Value | None], Value] = {}
        self.names: dict[str, int] = {}
        self.inlined: dict[Tensor, None] = {}

    def element(self, tensor: Tensor, index: Index, mask: Value | None) -> Value:
        definition = tensor.definition
        if isinstance(definition, Map) and tensor not in self.units:
            if definition.cost:
                self.names.setdefault(tensor.name, tensor.order)
                self.inlined[tensor] = None
            return definition.body(_Load(self, mask), index)
        self.reads[tensor, index] = None
        return Value("load", (tensor.order, index, mask), tensor.dtype)


class _Load:
    """A `Load` that inlines tensors without a unit."""

    __slots__ = ("mask", "reader")

    def __init__(self, reader: _Reader, mask: Value | None) -> None:
        self.reader, self.mask = reader, mask

    def __call__(self, tensor: Tensor, index: Index) -> Value:
        key = (tensor, index, self.mask)
        value = self.reader.done.get(key)
        if value is None:
            value = self.reader.done[key] = self.reader.element(tensor, index, self.mask)
        return value

    def where(self, mask: Value) -> Load:
        return _Load(self.reader, both(self.mask, mask))
