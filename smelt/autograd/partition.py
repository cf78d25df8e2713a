"""A joint graph becomes a forward and a backward graph, with as few bytes kept between them as the rules allow.

`partition` is a pure function: nodes of the two graphs are copies. What is kept is decided in `min_cut.py`, what keeping
costs in `save_costs.py`, what may run twice in `recompute_classes.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from smelt.autograd.gradient_liveness import live_for
from smelt.autograd.min_cut import Cut, within_budget
from smelt.autograd.min_cut_problem import CutProblem
from smelt.autograd.recompute_formulas import NodeBuilder
from smelt.autograd.save_costs import NO_HINTS, Hints, SaveOption, Kind
from smelt.config import Config
from smelt.graph.graph_passes import has_effect
from smelt.graph.graph_printer import spec_text
from smelt.graph.ir import Graph, Line, Node, NumberSpec, TensorSpec, argument_nodes, map_nodes
from smelt.ops.may_raise import must_run
from smelt.tracing.backward.joint import Joint

aten = torch.ops.aten


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

    def given(self, backward: Graph) -> frozenset[int]:
        """The inputs of a backward that the forward made for it: nobody else holds them if it is the last to run."""
        made = {s.name for s in self.saved if s.kind == "temporary"}
        return frozenset(i for i, p in enumerate(backward.placeholders) if p.name in made)

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


def partition(joint: Joint, config: Config, hints: Hints = NO_HINTS) -> Partition:
    """Raises VerificationError if the backward reads a value of the forward that can neither be kept nor made again.
    `hints`: what sizes are taken for that have symbols; the graphs are right for any."""
    shared: set[Node] = set()
    while True:
        problem = CutProblem(joint, config, shared, hints)
        cut, bans = within_budget(problem, config.activation_memory_budget)
        made = _Builder(problem, cut, bans).build()
        if len(joint.tangents) < 2 or not (more := _read_beyond_eager(problem, cut, made) - shared):
            return made
        shared |= more


def level_of(graph: Graph) -> str:
    """Which part of a joint graph an aten graph is, "forward" or "backward", by what it takes."""
    return "backward" if any(p.name.startswith("tangents_") for p in graph.placeholders) else "forward"


def _read_beyond_eager(problem: CutProblem, cut: Cut, made: Partition) -> set[Node]:
    """Values that are kept in the user's hands, and read for the gradients of more results than in eager."""
    backward, memory = made.backward, problem.memory
    given = backward.placeholders
    reads = live_for(backward.nodes[:-1], given[len(made.saved) :], set(backward.nodes))
    found = set()
    for (node, keep), value in zip(cut.saved.items(), given):
        base = memory.bases.get(node, node)
        in_hand = keep.kind != "temporary" and isinstance(node.spec, TensorSpec)
        if in_hand and reads[value] & ~memory.eager.get(base, 0):
            found.add(base)
    return found


class _Builder:
    def __init__(self, problem: CutProblem, cut: Cut, bans: dict[Node, str]) -> None:
        self.problem = problem
        self.joint = problem.joint
        self.cut = cut
        self.bans = bans
        self.tangents = self.joint.graph.placeholders[self.joint.n_primals :]
        # (value, the node that the forward returns for it), in the order of the forward's extra outputs
        self.temporaries: list[tuple[Node, Node]] = []
        self.copies: dict[Node, list[Node]] = {}  # value -> what the forward makes of it at once
        self.given: list[Node] = []  # what the backward's placeholders stand for
        # node of the joint graph -> the node that the backward has for it
        self.instead: dict[Node, Node] = {}
        self.restored: set[Node] = set()  # of those, what is made of a given value alone

    def build(self) -> Partition:
        saved = tuple(self._saved(node, keep) for node, keep in self.cut.saved.items())
        self._choose()
        return Partition(self._forward(), self._backward(), saved)

    def _saved(self, node: Node, keep: SaveOption) -> Saved:
        index, given = keep.index, node
        if keep.kind == "temporary":
            index = len(self.temporaries)
            kept = self._copy(node, keep) if keep.copies else node
            self.temporaries.append((node, kept))
            given = node
            if keep.dtype is not None:
                given = kept
            elif kept.spec.stride != node.spec.stride:  # a copy of what is expanded, or has gaps, is dense
                given = self.instead[node] = kept
        elif keep.through is not None:
            given = keep.through
            self._seen_through(node, given)
        self.given.append(given)
        return Saved(keep.kind, index, given.spec, given.name, keep.nbytes, node.line, self._why(node, keep))

    def _copy(self, node: Node, keep: SaveOption) -> Node:
        """A copy that the forward makes as soon as there is the value."""
        make = NodeBuilder(self.problem.names).begin(node)
        if keep.dtype is None:
            kept = make(aten.clone.default, node)
        else:
            kept = make(aten._to_copy.default, node, dtype=keep.dtype)
            self._comes_back(node, make(aten._to_copy.default, kept, dtype=node.spec.dtype))
        kept.name = make.name(f"{node.name}_kept")
        self.copies.setdefault(node, []).append(kept)
        return kept

    def _seen_through(self, node: Node, view: Node) -> None:
        """The backward is given a view of all of `node` and sees `node` through it."""
        spec = node.spec
        make = NodeBuilder(self.problem.names).begin(node)
        layout = list(spec.shape), list(spec.stride), spec.offset
        self._comes_back(node, make(aten.as_strided.default, view, *layout))

    def _comes_back(self, node: Node, restored: Node) -> None:
        """The backward reads `restored`, made of what is kept, for `node`."""
        restored.name = node.name
        self.instead[node] = restored
        self.restored.add(restored)
        self.problem.position[restored] = self.problem.position[node]

    def _choose(self) -> None:
        """Formulas and replacements where the cut counts on them."""
        kept, recomputed = self.cut.saved, self.cut.recomputed
        for value, formula in self.problem.formulas.items():
            if value in recomputed:
                self.instead[value] = formula.nodes[-1]
        for node, made in self.problem.replacements.items():
            there = any(n in kept or n in recomputed for n in made.spared)
            if made.masks[-1] in kept if made.masks else made.always or not there:
                self.instead[node] = made.node

    def _why(self, node: Node, keep: SaveOption) -> str:
        if keep.kind != "temporary":
            return f"held by the caller ({keep.kind})"
        if node in self.problem.memory.primals:
            return (
                "the forward overwrites it"
                if node in self.problem.memory.written
                else "the caller may overwrite it"
            )
        maker = (
            node.args[0] if node.target is operator.getitem else node
        )  # of several results, or of this one
        return self.bans.get(maker, "fewest bytes")

    # ---- forward

    def _forward(self) -> Graph:
        joint = self.joint
        primals = joint.graph.placeholders[: joint.n_primals]
        outputs = joint.graph.output.args[0][: joint.n_outputs]
        returned = (*outputs, *(kept for _, kept in self.temporaries))
        order = self._alive(self._forward_order(), returned)
        return _graph(joint.graph, primals, order, returned, lambda argument, user: argument)

    def _alive(self, order: list[Node], returned: Iterable[Node | None]) -> list[Node]:
        """`order` without what neither a returned value nor an effect needs, errors of the forward among them."""
        used = {n for n in returned if n is not None}
        alive: list[Node] = []
        for node in reversed(order):
            stays = has_effect if node in self.problem.backward else must_run
            if node in used or stays(node):
                alive.append(node)
                used.update(argument_nodes(node))
        return alive[::-1]

    def _forward_order(self) -> list[Node]:
        """In the order of the joint graph; what the backward recorded, as soon as what it reads is there."""
        nodes = self.joint.graph.nodes
        followers = self._followers()
        order: list[Node] = []
        for node in nodes[:-1]:
            provided = self.problem.provisions.get(node)
            if provided is not None and not self.cut.saved.keys().isdisjoint(provided.saved):
                order += provided.state
            if node not in self.problem.backward and node not in self.tangents:
                for done in (node, *followers.get(node, ())):
                    order.append(done)
                    order += self.copies.get(done, ())
                own = self.problem.copies.copy_of.get(node)
                order += [own] if own in self.cut.saved else []
        return [n for n in order if n.op != "placeholder"]

    def _followers(self) -> dict[Node, list[Node]]:
        """Forward node -> the early nodes that run right after it."""
        position = self.problem.position
        after: dict[Node, Node] = {}
        followers: dict[Node, list[Node]] = {}
        for node in sorted(self.cut.early, key=position.__getitem__):
            reads = [after.get(a, a) for a in self.problem.arguments(node)]
            after[node] = max(reads, key=position.__getitem__, default=self.joint.graph.nodes[0])
            followers.setdefault(after[node], []).append(node)
        return followers

    # ---- backward

    def _backward(self) -> Graph:
        """Late nodes in their order; what they read is computed just before it is first read."""
        graph = self.joint.graph
        gradients = [
            None if n is None else self.instead.get(n, n)
            for n in graph.output.args[0][self.joint.n_outputs :]
        ]
        made = {*self.given, *self.tangents}
        order: list[Node] = []
        for node in self.problem.backward_only:
            order += self._missing([self.instead.get(node, node)], made)
        order += self._missing((n for n in gradients if n is not None), made)
        return _graph(graph, [*self.given, *self.tangents], order, gradients, self._read)

    def _read(self, argument: Node, user: Node) -> Node:
        if user in self.restored:
            return argument
        now = self.problem.current(argument, user)
        return self.instead.get(now, now)

    def _missing(self, wanted: Iterable[Node], made: set[Node]) -> list[Node]:
        """What has to be computed to have `wanted`, in order; adds it to `made`."""
        stack = list(wanted)
        found: list[Node] = []
        while stack:
            node = stack.pop()
            if node not in made:
                made.add(node)
                found.append(node)
                stack += [self._read(a, node) for a in argument_nodes(node)]
        return sorted(found, key=self.problem.position.__getitem__)


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
