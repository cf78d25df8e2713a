"""The layout of the native guard tree: one node per source, cheap checks and likely failures first.

The tree is a tuple of nodes in depth-first order (parents before children). A node is
`(parent_index, accessor_kind, accessor_key, checks, collect_index)`: parent -1 for a root, whose key is the slot number
("arg") or the object ("const"); checks are `(guard_index, kind, value)`; collect_index is the position of the node's object
among the objects that the tree passes to the compiled frame, or -1. Guards about several sources are checked at the last of
their nodes, after all of these objects have been read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from smelt._native import isinstance
from smelt.guards.guard import Guard
from smelt.guards.guard_kinds import KINDS, SizeRead
from smelt.guards.read_source import SAVED_TENSORS
from smelt.guards.source import Source
from smelt.guards.specialized_sizes import SizesRead
from smelt.guards.tensor_facts import TensorFacts

Check = tuple[int, str, object]
Node = tuple[int, str, object, tuple[Check, ...], int]


@dataclass(frozen=True)
class TreeSpec:
    """The argument of `_native.GuardTree`, and the guards that its indices refer to. `weak`: objects to which the tree has
    weak references (`object_lifetimes.py`)."""

    nodes: tuple[Node, ...]
    n_collect: int
    guards: tuple[Guard, ...]
    weak: tuple[object, ...] = ()

    @property
    def native(self) -> tuple[tuple[Node, ...], int, tuple[object, ...]]:
        """The argument of `_native.GuardTree`."""
        return self.nodes, self.n_collect, self.weak


@dataclass(eq=False)
class _Node:
    """The node of a source during the layout."""

    source: Source | None  # None: of the guards that are about no object
    guards: list[int] = field(default_factory=list)
    children: list[_Node] = field(default_factory=list)
    collect: int = -1
    index: int = -1


def _value_key(value: object) -> Hashable:
    """Equal for equal values of guards; unequal types, zeros of different sign and NaN differ."""
    if isinstance(value, tuple):
        return tuple(map(_value_key, value))
    if isinstance(value, (float, complex)):
        return type(value), repr(value)
    if isinstance(value, (int, str, bytes, TensorFacts)):
        return type(value), value
    return id(value)


def unique(guards: Iterable[Guard]) -> tuple[Guard, ...]:
    """`guards` without repetitions, and without those that another guard on the same source implies. The first of equal
    guards remains, with its line."""
    first: dict[Hashable, Guard] = {}
    for guard in guards:
        first.setdefault((guard.kind, guard.source, _value_key(guard.value)), guard)
    implied = {(kind, g.source) for g in first.values() for kind in g.kind.implies}
    return tuple(g for g in first.values() if (g.kind.name, g.source) not in implied)


class _Layout:
    """The nodes of all sources: created, sorted, then numbered depth first. `guard_kinds.py` has its protocol."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self.guards = guards
        self.sizes = SizesRead(guards)
        self.nodes: dict[Source, _Node] = {}
        self.roots: list[_Node] = []

    def sources(self, guard: Guard) -> tuple[Source, ...]:
        """The sources that are read before a relation is checked: the tensor in place of each size that its check reads."""
        if guard.kind.reads_numbers:
            return tuple(dict.fromkeys(self.sizes.owner(number) or number for number in guard.sources))
        return guard.sources

    def node(self, source: Source) -> _Node:
        """The node of `source`; creates it and the nodes above it if necessary."""
        found = self.nodes.get(source)
        if found is None:
            found = self.nodes[source] = _Node(source)
            siblings = self.roots if source.base is None else self.node(source.base).children
            siblings.append(found)
        return found

    def numbered(self) -> list[_Node]:
        """All nodes depth first, `index` set."""
        order: list[_Node] = []
        stack = list(reversed(self.roots))
        while stack:
            node = stack.pop()
            node.index = len(order)
            order.append(node)
            stack.extend(reversed(node.children))
        return order

    def index(self, source: Source) -> int:
        """The index of the node of `source`."""
        return self.nodes[source].index

    def operand(self, source: Source) -> tuple[str, int]:
        """How an expression reads the number at `source`."""
        if self.sizes.owner(source) is not None:
            return "size", self.sizes.word(source)
        return "leaf", self.index(source)

    def size_reads(self, tensor: Source) -> tuple[SizeRead, ...]:
        """The sizes that the check of a tensor reads."""
        return self.sizes.reads(tensor)

    def last(self, guard: Guard) -> _Node:
        """The node that is read last among those that `guard` needs."""
        return max((self.nodes[o] for o in self.sources(guard)), key=lambda node: node.index)

    def sort(self) -> None:
        """Sort arguments before constants, and siblings by their cheapest check (stable)."""
        self.roots.sort(key=lambda node: (_root_rank(node), self._rank(node)))
        for node in self.nodes.values():
            if len(node.children) > 1:
                node.children.sort(key=self._rank)

    def _rank(self, node: _Node) -> int:
        if node.source is not None and node.source.key in SAVED_TENSORS:
            return len(KINDS) + 1  # other guards of the object refuse hooks, which would run
        return min((self.guards[i].kind.rank for i in node.guards), default=len(KINDS))


def _root_rank(node: _Node) -> int:
    assert node.source is not None
    return 0 if node.source.kind == "arg" else 1


def _key(source: Source) -> object:
    return source.index if source.kind == "arg" else source.known if source.kind == "const" else source.key


def build(guards: Iterable[Guard], collect: Sequence[Source], weak: Iterable[object] = ()) -> TreeSpec:
    """The tree that checks `guards` and collects the objects at the sources `collect`, in that order. It has weak
    references to the objects in `weak`, which each call that it accepts keeps alive."""
    facts = unique(guards)
    layout = _Layout(facts)
    relations: list[int] = []
    unrelated: list[int] = []  # about no object
    for i, guard in enumerate(facts):
        if guard.kind.is_relation:
            relations.append(i)
            for source in layout.sources(guard):
                layout.node(source)
        elif guard.source is None:
            unrelated.append(i)
        else:
            layout.node(guard.source).guards.append(i)
    for number, source in enumerate(collect):
        layout.node(source).collect = number
    layout.sort()
    if unrelated:
        layout.roots.insert(0, _Node(None, unrelated))
    order = layout.numbered()
    for i in relations:
        if not facts[i].kind.reads_numbers or not layout.sizes.add(facts[i], i, layout.index):
            layout.last(facts[i]).guards.append(i)
    nodes = tuple(_nodes(order, layout))
    held = {id(part) for _, _, key, checks, _ in nodes for part in (key, *(value for _, _, value in checks))}
    return TreeSpec(nodes, len(collect), facts, tuple(x for x in weak if id(x) in held))


def _nodes(order: list[_Node], layout: _Layout) -> Iterator[Node]:
    for node in order:
        source = node.source
        guards = [(i, layout.guards[i]) for i in node.guards]
        guards.sort(key=lambda guard: guard[1].kind.rank)
        checks = tuple((i, g.kind.name, g.kind.native_value(g.source, g.value, layout)) for i, g in guards)
        if source is None:
            yield -1, "const", None, checks, -1
        else:
            parent = -1 if source.base is None else layout.index(source.base)
            yield parent, source.kind, _key(source), checks, node.collect
