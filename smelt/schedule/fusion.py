"""Fusion: which units become one kernel. A unit joins a group if that is legal (the unit has a position in the group)
and profitable.

A group has `outer` loops and a position for each of its units: the unit's own loop symbols in terms of the outer
symbols and of the `inner` loops of its stage. A *flat* group (elementwise) has all loops outside. A *row* group has
reductions, or elementwise units with inner loops: one outer point is one row.

An *anchor* determines a unit's position: an element that the unit reads and whose position in the group is known.
Legality then requires that everything the unit reads from the group was computed at the same outer point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from smelt.cost_model import Costs
from smelt.loops.lazy_tensor import Extern, Index, Reduce, Scan, Tensor
from smelt.schedule.index_spaces import Loops, linear, radix, solve, substituted
from smelt.schedule.inlining import Unit
from smelt.shapes.expr import Size, Sym, affine, bounds, free_syms, likely, loop_sym, numel


@dataclass(frozen=True, eq=False)
class UnitIndexing:
    """A unit's position in a group: its own symbols in terms of the group's, and the loops of its stage."""

    values: Mapping[Sym, Size]
    inner: Loops
    index: Index  # of the unit's tensor, in the group's symbols


@dataclass(frozen=True)
class Refusal:
    """Why a unit may not join a group, as text for the report."""

    reason: str


@dataclass(eq=False)
class Group:
    """Units that become one kernel, in program order, or one ATen call (`extern`), which no unit joins."""

    id: int
    outer: Loops
    units: list[Unit] = field(default_factory=list)
    indexing_of: dict[Tensor, UnitIndexing] = field(default_factory=dict)
    extern: Extern | None = None
    after: int = 0  # bit i: this group runs after group i
    parents: set[int] = field(default_factory=set)  # groups that it reads from
    last: int = 0  # program order of its last member

    @property
    def is_flat(self) -> bool:
        """Whether all units are elementwise over the outer loops."""
        return all(not p.inner for p in self.indexing_of.values())

    @property
    def fusible(self) -> bool:
        """Whether units may join."""
        return self.extern is None and not isinstance(self.units[0].tensor.definition, Scan)


@dataclass(frozen=True, eq=False)
class Anchor:
    """An element of `shape` at `index` (the group's symbols; `inner`: its stage's loops), read at `own` (the unit's)."""

    index: Index
    shape: tuple[Size, ...]
    inner: Loops
    own: Index


@dataclass(frozen=True, eq=False)
class Fit:
    """How a unit joins a group. `outer` and `values`: new outer loops, and the old outer symbols in terms of the new
    ones, if the unit turns an elementwise group into a row group."""

    indexing: UnitIndexing
    outer: Loops | None = None
    values: Mapping[Sym, Size] | None = None
    inner: Loops = ()


def alone(unit: Unit, id: int) -> Group:
    """A group of one unit."""
    outer = outer_loops(unit.loops)
    values: dict[Sym, Size] = {s: o for (s, _), (o, _) in zip(unit.loops, outer)}
    inner = stage_loops(unit.reduce_loops)
    values.update({s: i for (s, _), (i, _) in zip(unit.reduce_loops, inner)})
    if isinstance(unit.tensor.definition, Scan):
        along = unit.index[unit.tensor.definition.dim]
        scanned = tuple((o, n) for (s, _), (o, n) in zip(unit.loops, outer) if s is along)
        inner, outer = stage_loops(scanned), tuple(loop for loop in outer if loop not in scanned)
        values.update({along: inner[0][0]})  # type: ignore[dict-item]
    index = substituted(unit.index, values)
    group = Group(id, outer, last=unit.tensor.order)
    group.units.append(unit)
    group.indexing_of[unit.tensor] = UnitIndexing(values, inner, index)
    return group


def outer_loops(loops: Loops) -> Loops:
    """Loops of the same sizes with outer symbols, named by position."""
    return tuple((loop_sym(f"o{k}", size), size) for k, (_, size) in enumerate(loops))


def stage_loops(loops: Sequence[tuple[Sym, Size]]) -> Loops:
    """Loops of the same sizes with the group's names for inner loops, so that equal stages have equal loops."""
    return tuple((loop_sym(f"i{k}", size), size) for k, (_, size) in enumerate(loops))


# ---- legality


def fit(group: Group, unit: Unit) -> Fit | Refusal:
    """The position of `unit` in `group`, or the reason why it has none."""
    if group.units[0].tensor.spec.device != unit.tensor.spec.device:
        return Refusal("they are on different devices")
    refusal: Fit | Refusal = Refusal("they have nothing in common")
    for anchor in _anchors(group, unit):
        refusal = _fit_by(group, unit, anchor)
        if isinstance(refusal, Fit):
            wrong = _reads_elsewhere(group, unit, refusal)
            if wrong is None:
                return refusal
            refusal = Refusal(wrong)
    return refusal


def _anchors(group: Group, unit: Unit) -> Iterator[Anchor]:
    """The elements that the unit reads from the group, reductions first, as they determine the rows; else common reads."""
    inside = [(t, own) for t, own in unit.reads if t in group.indexing_of]
    inside.sort(key=lambda r: (not isinstance(r[0].definition, Reduce), len(group.indexing_of[r[0]].inner)))
    for tensor, own in inside:
        yield Anchor(group.indexing_of[tensor].index, tensor.shape, _index_loops(group, tensor), own)
    if not inside:
        yield from _shared(group, unit)


def _index_loops(group: Group, tensor: Tensor) -> Loops:
    """The inner loops that an element of the tensor depends on (none for a reduction)."""
    return () if isinstance(tensor.definition, Reduce) else group.indexing_of[tensor].inner


def _shared(group: Group, unit: Unit) -> Iterator[Anchor]:
    """Tensors from outside of the group that both read, each element once."""
    reads = dict(unit.reads)
    for other in group.units:
        indexing = group.indexing_of[other.tensor]
        for tensor, own in other.reads:
            if tensor in reads and numel(tensor.shape) == _space(other) == _space(unit):
                index = substituted(own, indexing.values)
                if radix(index, tensor.shape, dict((*group.outer, *indexing.inner))) is not None:
                    yield Anchor(index, tensor.shape, indexing.inner, reads[tensor])


def _space(unit: Unit) -> Size:
    return numel([size for _, size in (*unit.loops, *unit.reduce_loops)])


def _fit_by(group: Group, unit: Unit, anchor: Anchor) -> Fit | Refusal:
    sizes = dict((*unit.loops, *unit.reduce_loops))
    digits = radix(anchor.own, anchor.shape, sizes)
    if digits is None:
        return Refusal("it reads the other's result at an index that is no rearrangement of it")
    values = solve(digits, anchor.index, anchor.shape)
    reduced = [s for s, _ in unit.reduce_loops if s in values]
    rest = tuple((s, n) for s, n in unit.loops if s not in values)
    if reduced:
        return _fit_reduction(group, unit, anchor, values, bool(rest))
    if any(not free_syms(values[s]).isdisjoint(dict(anchor.inner)) for s, _ in unit.loops if s in values):
        if unit.reduce_loops or rest:
            return Refusal("its rows are finer than the other's")
        return _fit_indexing(unit, values, anchor.inner)
    if unit.reduce_loops:
        if rest:
            return Refusal("it has more rows than the other")
        inner = stage_loops(unit.reduce_loops)
        values.update({s: i for (s, _), (i, _) in zip(unit.reduce_loops, inner)})
        return _fit_indexing(unit, values, inner)
    if rest and group.is_flat:
        return Refusal("it broadcasts the other's result")
    inner = stage_loops(rest)
    values.update({s: i for (s, _), (i, _) in zip(rest, inner)})
    return _fit_indexing(unit, values, inner)


def _fit_indexing(unit: Unit, values: dict[Sym, Size], inner: Loops) -> Fit:
    return Fit(UnitIndexing(values, inner, substituted(unit.index, values)))


def _fit_reduction(
    group: Group, unit: Unit, anchor: Anchor, values: dict[Sym, Size], more_rows: bool
) -> Fit | Refusal:
    """The position of a reduction over an elementwise unit of the group."""
    if more_rows:
        return Refusal("it has more rows than the other")
    if group.is_flat and not anchor.inner:
        return _fit_by_splitting(group, unit, anchor)
    inner_syms = {s for s, _ in anchor.inner}
    if any(not free_syms(values[s]).isdisjoint(inner_syms) for s, _ in unit.loops):
        return Refusal("its rows are not the other's rows")
    rows = {s for s, _ in group.outer}
    if any(not free_syms(values[s]).isdisjoint(rows) for s, _ in unit.reduce_loops if s in values):
        return Refusal("it reduces over the other's rows")
    inner = stage_loops(unit.reduce_loops)
    values.update({s: i for (s, _), (i, _) in zip(unit.reduce_loops, inner)})
    return _fit_indexing(unit, values, inner)


def _fit_by_splitting(group: Group, unit: Unit, anchor: Anchor) -> Fit | Refusal:
    """The elementwise group as a row group with the reduction's rows; its units get inner loops."""
    digits = radix(anchor.index, anchor.shape, dict(group.outer))
    if digits is None:
        return Refusal("the other's loops are no rearrangement of what is read")
    outer = outer_loops(unit.loops)
    inner = stage_loops(unit.reduce_loops)
    own: dict[Sym, Size] = {s: o for (s, _), (o, _) in zip(unit.loops, outer)}
    own.update({s: i for (s, _), (i, _) in zip(unit.reduce_loops, inner)})
    values = solve(digits, substituted(anchor.own, own), anchor.shape)
    return Fit(UnitIndexing(own, inner, substituted(unit.index, own)), outer, values, inner)


def _reads_elsewhere(group: Group, unit: Unit, found: Fit) -> str | None:
    """The reason if `unit` would read an element of the group that another outer point computes."""
    outer = dict(found.outer or group.outer)
    for tensor, own in unit.reads:
        indexing = group.indexing_of.get(tensor)
        if indexing is None:
            continue
        index, inner = indexing.index, _index_loops(group, tensor)
        if found.values is not None:
            index, inner = substituted(index, found.values), found.inner
        read = substituted(own, found.indexing.values)
        if read == index:
            continue
        digits = radix(index, tensor.shape, outer | dict(inner))
        if not inner or digits is None:
            return f"it reads {tensor.name} at another point"
        at = solve(digits, read, tensor.shape)
        if any(at[s] is not s for s in at if s in outer):
            return f"it reads {tensor.name} of another row"
    return _overwrites(group, unit, found)


def _overwrites(group: Group, unit: Unit, found: Fit) -> str | None:
    """Why a store to a graph input may not fuse: another read of its old value follows, or its place is unknown."""
    for other in group.units:
        if other.insert is not None and other.target is not None:
            if other.target is unit.target or any(t is other.target for t, _ in unit.reads):
                return f"some indexing_of of {other.target.name} are written, and it needs all of them"
    if unit.target is None:
        return None
    one_stage = group.is_flat and found.values is None and all(u.is_map for u in group.units)
    for other in group.units:
        for tensor, own in other.reads:
            if tensor is unit.target:
                read = substituted(own, group.indexing_of[other.tensor].values)
                if not one_stage or read != found.indexing.index or unit.insert is not None:
                    return f"it overwrites {tensor.name}, which the other still reads"
    return None


# ---- profit


def unprofitable(group: Group, unit: Unit, found: Fit, costs: Costs) -> str | None:
    """Why a legal fusion does not pay; None if it saves memory traffic at no cost."""
    if any(u.deep and u.tensor in dict(unit.reads) for u in group.units):
        return "the expression would be too deep"
    if len({t for u in (*group.units, unit) for t, _ in u.reads}) > costs.kernel_buffers:
        return "the kernel would touch too many buffers"
    if found.outer is not None:
        rows, points = likely(numel([n for _, n in found.outer])), likely(_space(unit))
        if rows < costs.row_kernel_rows and points > costs.row_kernel_points:
            return "too few rows to share among threads"
    if _is_lonely(group, unit, found, costs):
        return "its rows are long, and too few to share among workers"
    return None


def _is_lonely(group: Group, unit: Unit, found: Fit, costs: Costs) -> bool:
    """Whether an elementwise unit would loop over long rows, with a reduction, with fewer rows than workers."""
    if found.values is not None:
        tensor = group.units[0].tensor
        index = substituted(group.indexing_of[tensor].index, found.values)
    elif unit.is_map:
        tensor, index = unit.tensor, found.indexing.index
    else:
        return False
    address, items, columns_of_item = linear(tensor, index), 1, 1
    for sym, size in found.outer or group.outer:
        split = affine(address, sym)
        columns = costs.item_columns if split is not None and split[0] == 1 else 1
        items *= -(-likely(size) // columns)
        columns_of_item = max(columns_of_item, min(columns, likely(size)))
    if columns_of_item * bounds(numel([n for _, n in found.indexing.inner]))[0] < costs.long_row:
        return False
    return items < costs.worker_items * costs.threads


# ---- joining


def join(group: Group, unit: Unit, found: Fit) -> None:
    """Add the unit at the position `found`, which may turn a flat group into a row group."""
    if found.outer is not None and found.values is not None:
        group.outer = found.outer
        for tensor, indexing in group.indexing_of.items():
            values = {s: substituted((e,), found.values)[0] for s, e in indexing.values.items()}
            group.indexing_of[tensor] = UnitIndexing(
                values, found.inner, substituted(indexing.index, found.values)
            )
    group.units.append(unit)
    group.indexing_of[unit.tensor] = found.indexing
    group.last = max(group.last, unit.tensor.order)
