"""A joint graph becomes a forward and a backward graph, with as few bytes kept between them as the rules allow.

`partition` is a pure function: nodes of the two graphs are copies. What is kept is decided in `cut.py`, what keeping
costs in `memory.py`, what may run twice in `classes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from smelt.autograd.classes import aten
from smelt.autograd.cut import Cut, Needs, within_budget
from smelt.autograd.memory import Keep, Kind, Memory
from smelt.config import Config
from smelt.graph.ir import Graph, Line, Node, NumberSpec, TensorSpec, argument_nodes, map_nodes
from smelt.graph.passes import has_effect
from smelt.graph.printer import spec_text
from smelt.trace.joint import Joint


@dataclass(frozen=True)
class Saved:
    """A value that the backward starts from.

    `index`: of the primal, as it is after the forward ran; of the forward output; or, of a temporary, among the extra
    outputs of the forward graph. `nbytes`: what keeping it costs beyond what the user holds. `name`: of the placeholder.
    """

    kind: Kind
    index: int
    spec: TensorSpec | NumberSpec
    name: str
    nbytes: int
    line: Line | None
    why: str


@dataclass(frozen=True)
class Partition:
    """`forward` takes the primals and gives (*forward outputs, *temporaries); `backward` takes (*saved, *tangents) and gives
    the gradients, None where there is none."""

    forward: Graph
    backward: Graph
    saved: tuple[Saved, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that live from forward to backward, beyond primals and outputs."""
        return sum(s.nbytes for s in self.saved)

    def describe(self) -> str:
        """One row for each saved value: what it is, its bytes, the user's line, why it is saved."""
        rows = [("saved", "as", "type", "bytes", "line", "why")]
        for s in self.saved:
            line = f"{s.line.filename}:{s.line.line}" if s.line is not None else ""
            rows.append((s.name, s.kind, spec_text(s.spec), str(s.nbytes), line, s.why))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        return "\n".join([*text, f"{self.nbytes} bytes beyond primals and outputs"])

    __str__ = describe


def partition(joint: Joint, config: Config) -> Partition:
    """Raises VerificationError if the backward reads a value of the forward that can neither be kept nor made again."""
    memory = Memory(joint)
    needs = Needs(joint, memory)
    cut, bans = within_budget(needs, config.activation_memory_budget)
    return _Builder(needs, cut, bans).build()


class _Builder:
    def __init__(self, needs: Needs, cut: Cut, bans: dict[Node, str]) -> None:
        self.needs = needs
        self.joint = needs.joint
        self.cut = cut
        self.bans = bans
        self.tangents = self.joint.graph.placeholders[self.joint.n_primals :]
        self.names = {n.name for n in self.joint.graph}
        # (value, the node that the forward returns for it), in the order of the forward's extra outputs
        self.temporaries: list[tuple[Node, Node]] = []
        self.copies: dict[Node, list[Node]] = {}  # value -> what the forward makes of it at once

    def build(self) -> Partition:
        saved = tuple(self._saved(node, keep) for node, keep in self.cut.kept.items())
        return Partition(self._forward(), self._backward(), saved)

    def _saved(self, node: Node, keep: Keep) -> Saved:
        index, kept = keep.index, node
        if keep.kind == "temporary":
            index = len(self.temporaries)
            if keep.copies:
                kept = self._made(node, aten.clone.default, (node,), node.spec)
            self.temporaries.append((node, kept))
        return Saved(keep.kind, index, node.spec, node.name, keep.nbytes, node.line, self._why(node, keep))

    def _made(self, node: Node, op: Any, args: tuple[Any, ...], spec: Any) -> Node:
        """A node of the forward that stands right after `node`."""
        name = f"{node.name}_kept"
        while name in self.names:
            name += "_"
        self.names.add(name)
        made = Node("call_function", op, args, {}, name, spec, node.line, node.source)
        self.copies.setdefault(node, []).append(made)
        return made

    def _why(self, node: Node, keep: Keep) -> str:
        if keep.kind != "temporary":
            return f"held by the caller ({keep.kind})"
        if node in self.needs.memory.primals:
            return (
                "the forward overwrites it"
                if node in self.needs.memory.written
                else "the caller may overwrite it"
            )
        if node in self.bans:
            return self.bans[node]
        return "fewest bytes"

    # ---- forward

    def _forward(self) -> Graph:
        joint = self.joint
        primals = joint.graph.placeholders[: joint.n_primals]
        outputs = joint.graph.output.args[0][: joint.n_outputs]
        returned = (*outputs, *(kept for _, kept in self.temporaries))
        order = _alive(self._forward_order(), returned)
        return _graph(joint.graph, primals, order, returned, lambda argument, user: argument)

    def _forward_order(self) -> list[Node]:
        """In the order of the joint graph; what the backward recorded, as soon as what it reads is there."""
        nodes = self.joint.graph.nodes
        followers = self._followers()
        order: list[Node] = []
        for node in nodes[:-1]:
            if node not in self.joint.backward and node not in self.tangents:
                for done in (node, *followers.get(node, ())):
                    order.append(done)
                    order += self.copies.get(done, ())
        return [n for n in order if n.op != "placeholder"]

    def _followers(self) -> dict[Node, list[Node]]:
        """Forward node -> the early nodes that run right after it."""
        position = self.needs.position
        after: dict[Node, Node] = {}
        followers: dict[Node, list[Node]] = {}
        for node in sorted(self.cut.early, key=position.__getitem__):
            reads = [after.get(a, a) for a in self.needs.arguments(node)]
            after[node] = max(reads, key=position.__getitem__, default=self.joint.graph.nodes[0])
            followers.setdefault(after[node], []).append(node)
        return followers

    # ---- backward

    def _backward(self) -> Graph:
        """Late nodes in their order; what they read is computed just before it is first read."""
        needs, graph = self.needs, self.joint.graph
        gradients = graph.output.args[0][self.joint.n_outputs :]
        placeholders = [*self.cut.kept, *self.tangents]
        made = set(placeholders)
        order: list[Node] = []
        for node in needs.late:
            order += [*self._missing(needs.arguments(node), made), node]
            made.add(node)
        order += self._missing((n for n in gradients if n is not None), made)
        return _graph(graph, placeholders, order, gradients, needs.current)

    def _missing(self, reads: Iterable[Node], made: set[Node]) -> list[Node]:
        """What has to be computed before `reads` can be read, in order; adds it to `made`."""
        stack = list(reads)
        found: list[Node] = []
        while stack:
            node = stack.pop()
            if node not in made:
                made.add(node)
                found.append(node)
                stack += self.needs.arguments(node)
        return sorted(found, key=self.needs.position.__getitem__)


def _alive(order: list[Node], returned: Iterable[Node | None]) -> list[Node]:
    """`order` without what neither a returned value nor an effect needs."""
    used = {n for n in returned if n is not None}
    alive: list[Node] = []
    for node in reversed(order):
        if node in used or has_effect(node):
            alive.append(node)
            used.update(argument_nodes(node))
    return alive[::-1]


def _graph(
    joint: Graph,
    placeholders: Iterable[Node],
    order: Iterable[Node],
    returned: Iterable[Node | None],
    read: Callable[[Node, Node], Node],
) -> Graph:
    """A graph of copies. `read(argument, user)`: the node whose copy `user` reads for `argument`."""
    graph = Graph("aten")
    copies: dict[Node, Node] = {}
    for node in placeholders:
        copies[node] = Node("placeholder", node.name, (), {}, node.name, node.spec, node.line, node.source)
    for node in order:

        def copy_for(argument: Node, user: Node = node) -> Node:
            return copies[read(argument, user)]

        args, kwargs = map_nodes(node.args, copy_for), map_nodes(node.kwargs, copy_for)
        new = Node(node.op, node.target, args, kwargs, node.name, node.spec, node.line, node.source)
        copies[node] = new
        if node.op == "get_attr":
            graph.constants[node.target] = joint.constants[node.target]
    outputs = tuple(None if n is None else copies[n] for n in returned)
    specs = tuple(None if n is None else n.spec for n in outputs)
    graph.nodes = [*copies.values(), Node("output", "output", (outputs,), {}, "output", specs)]
    return graph
