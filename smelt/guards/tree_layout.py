"""The layout of the native guard tree: one node for each source, what is cheap or likely to fail first.

The tree is a tuple of nodes in depth-first order (parents before children). A node is
`(parent_index, accessor_kind, accessor_key, checks, collect_index)`: parent -1 for a root, whose key is the slot number
("arg") or the object ("const"); checks are `(guard_index, kind, value)`; collect_index is the place of the node's object
among the objects that the tree hands to the compiled frame, or -1. Guards about several sources hang on the last of their
nodes, where all of them have been read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from smelt._native import isinstance
from smelt.guards.guard import Guard, TensorFacts
from smelt.guards.source import Source
from smelt.guards.specialized_sizes import SizesRead
from smelt.shapes.expr import postfix

Check = tuple[int, str, object]
Node = tuple[int, str, object, tuple[Check, ...], int]

# Guards on one object are checked in this order: what is cheap, or likely to fail, comes first.
RANK = {
    kind: i
    for i, kind in enumerate(
        (
            "type",
            "id",
            "eq",
            "number",
            "len",
            "tensor",
            "function",
            "type_version",
            "no_hooks",
            "not_in_dict",
            "no_attr",
            "slot",
            "plain_leaf",
            "how_written",
            "contains",
            "keys",
            "table",
            "alias",
            "distinct",
            "no_overlap",
            "expression",
        )
    )
}
_SEVERAL = ("alias", "distinct", "no_overlap", "expression")


@dataclass(frozen=True)
class TreeSpec:
    """What `_native.GuardTree` is built from, and the guards that the indices in it mean. `brought`: objects that the tree
    does not keep alive (`object_lifetimes.py`)."""

    nodes: tuple[Node, ...]
    n_collect: int
    guards: tuple[Guard, ...]
    brought: tuple[object, ...] = ()

    @property
    def native(self) -> tuple[tuple[Node, ...], int, tuple[object, ...]]:
        """The argument of `_native.GuardTree`."""
        return self.nodes, self.n_collect, self.brought


@dataclass(eq=False)
class _Place:
    """A source's node while the tree is being laid out."""

    source: Source | None
    guards: list[int] = field(default_factory=list)
    children: list[_Place] = field(default_factory=list)
    collect: int = -1
    index: int = -1


def _value_key(value: object) -> Hashable:
    """A key under which equal guard values meet; unequal types, zeros of different sign and NaN stay apart."""
    if isinstance(value, TensorFacts):
        return value
    if isinstance(value, tuple):
        return tuple(_value_key(v) for v in value)
    if isinstance(value, (float, complex)):
        return type(value), repr(value)
    if isinstance(value, (int, str, bytes, bool)):
        return type(value), value
    return id(value)


def unique(guards: Iterable[Guard]) -> tuple[Guard, ...]:
    """`guards` without repetitions; of equal ones the first stays, with its line. A "type" guard goes where an "id", "eq" or
    "tensor" guard on the same source says more."""
    kept: dict[Hashable, Guard] = {}
    for guard in guards:
        kept.setdefault((guard.kind, guard.source, _value_key(guard.value)), guard)
    typed = {g.source for g in kept.values() if g.kind in ("id", "eq", "tensor")}
    return tuple(g for g in kept.values() if g.kind != "type" or g.source not in typed)


class _Layout:
    """Builds the places of all sources, orders them, and numbers them depth first."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self.guards = guards
        self.sizes = SizesRead(guards)
        self.places: dict[Source, _Place] = {}
        self.roots: list[_Place] = []

    def sources(self, guard: Guard) -> tuple[Source, ...]:
        """The sources that must have been read before `guard` is checked."""
        if guard.kind == "alias":
            return guard.source, guard.value  # type: ignore[return-value]
        if guard.kind == "expression":
            return self.sizes.needed(guard)
        if guard.kind in _SEVERAL:
            return tuple(guard.value)
        return () if guard.source is None else (guard.source,)

    def place(self, source: Source) -> _Place:
        """The node of `source`; it and the nodes above it are made where they are missing."""
        found = self.places.get(source)
        if found is None:
            found = self.places[source] = _Place(source)
            siblings = self.roots if source.base is None else self.place(source.base).children
            siblings.append(found)
        return found

    def numbered(self) -> list[_Place]:
        """All places depth first, `index` set."""
        order: list[_Place] = []
        stack = list(reversed(self.roots))
        while stack:
            place = stack.pop()
            place.index = len(order)
            order.append(place)
            stack.extend(reversed(place.children))
        return order

    def index(self, source: Source) -> int:
        """The number of the node at `source`."""
        return self.places[source].index

    def last(self, guard: Guard) -> _Place:
        """Of the places that `guard` needs, the one that is read last."""
        return max((self.places[o] for o in self.sources(guard)), key=lambda place: place.index)

    def native_value(self, guard: Guard, at: _Place) -> object:
        """The value of `guard` as the native check at the node of `at` takes it: other sources become indices of their
        nodes."""
        if guard.kind == "tensor":
            return self.sizes.native(guard)
        if guard.kind == "alias":
            a, b = self.index(guard.source), self.index(guard.value)  # type: ignore[arg-type]
            return b if a == at.index else a
        if guard.kind == "expression":
            expression, expected = guard.value
            return postfix(expression, self._leaf), expected
        if guard.kind in _SEVERAL:
            return tuple(map(self.index, guard.value))
        return guard.value

    def _leaf(self, source: Source) -> tuple[str, int]:
        if self.sizes.owner(source) is not None:
            return "size", self.sizes.word(source)
        return "leaf", self.index(source)

    def sort(self) -> None:
        """Arguments before constants, and among siblings what carries the cheapest check first (stable)."""
        self.roots.sort(key=lambda p: (_root_rank(p), self._rank(p)))
        for place in self.places.values():
            if len(place.children) > 1:
                place.children.sort(key=self._rank)

    def _rank(self, place: _Place) -> int:
        return min((RANK[self.guards[i].kind] for i in place.guards), default=len(RANK))


def _root_rank(place: _Place) -> int:
    assert place.source is not None
    return 0 if place.source.kind == "arg" else 1


def _key(source: Source) -> object:
    return source.index if source.kind == "arg" else source.known if source.kind == "const" else source.key


def build(guards: Iterable[Guard], collect: Sequence[Source], kept: Iterable[object] = ()) -> TreeSpec:
    """The tree that checks `guards`, and collects the objects at the sources `collect`, in that order. It keeps none of
    `kept` alive: each call that it accepts does."""
    facts = unique(guards)
    layout = _Layout(facts)
    several: list[int] = []
    everywhere: list[int] = []
    for i, guard in enumerate(facts):
        sources = layout.sources(guard)
        for source in sources:
            layout.place(source)
        if not sources:
            everywhere.append(i)
        elif guard.kind in _SEVERAL:
            several.append(i)
        else:
            layout.places[sources[0]].guards.append(i)
    for number, source in enumerate(collect):
        layout.place(source).collect = number
    layout.sort()
    if everywhere:
        layout.roots.insert(0, _Place(None, everywhere))
    order = layout.numbered()
    for i in several:
        if facts[i].kind != "expression" or not layout.sizes.add(facts[i], i, layout.index):
            layout.last(facts[i]).guards.append(i)
    nodes = tuple(_nodes(order, layout))
    held = {id(part) for _, _, key, checks, _ in nodes for part in (key, *(value for _, _, value in checks))}
    return TreeSpec(nodes, len(collect), facts, tuple(x for x in kept if id(x) in held))


def _nodes(order: list[_Place], layout: _Layout) -> Iterator[Node]:
    facts = layout.guards
    for place in order:
        source = place.source
        if source is None:
            yield -1, "const", None, tuple((i, facts[i].kind, facts[i].value) for i in place.guards), -1
            continue
        cheapest_first = sorted(place.guards, key=lambda i: RANK[facts[i].kind])
        checks = tuple((i, facts[i].kind, layout.native_value(facts[i], place)) for i in cheapest_first)
        parent = -1 if source.base is None else layout.index(source.base)
        yield parent, source.kind, _key(source), checks, place.collect
