"""Partition of a joint graph into a forward and a backward graph that save as few bytes between them as the rules
allow.

`partition` is a pure function: nodes of the two graphs are copies. `min_cut.py` decides what is saved, `save_costs.py`
has the costs, `recompute_classes.py` what may be recomputed.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from smelt.autograd.gradient_liveness import live_for
from smelt.autograd.min_cut import Cut, within_budget
from smelt.autograd.min_cut_problem import CutProblem
from smelt.autograd.save_costs import NO_HINTS, Hints, Kind, SaveOption
from smelt.config import Config
from smelt.graph.graph_passes import extract, has_effect
from smelt.graph.graph_printer import spec_text
from smelt.graph.ir import Graph, Line, Node, NumberSpec, TensorSpec, argument_nodes
from smelt.ops.may_raise import must_run
from smelt.ops.node_builders import CLONE, converted
from smelt.ops.symbolic_rules import STRIDED
from smelt.rewrites.graph_rewriter import NodeBuilder
from smelt.tracing.backward.joint import Joint


@dataclass(frozen=True)
class Saved:
    """A value that the backward starts from.

    `index`: of the primal, or the primal of an alias, as it is after the forward ran; of the forward output; or, for a
    temporary, among the extra outputs of the forward graph. `nbytes`: the cost of saving it beyond what the user holds.
    `name`: of the placeholder. `is_recomputed_from`: of an alias, values that eager saves are computed from it again.
    `data`: of an output to whose `data` the program may assign: the backward reads "old" data as eager's, or "new" data;
    "mixed": eager's reads both.
    """

    kind: Kind
    index: int
    spec: TensorSpec | NumberSpec
    name: str
    nbytes: int
    line: Line | None
    why: str
    is_recomputed_from: bool = False
    data: Literal["old", "new", "mixed"] = "old"


@dataclass(frozen=True)
class Partition:
    """`forward` takes the primals and returns (*forward outputs, *temporaries); `backward` takes (*saved, *tangents)
    and returns the gradients, None where there is none."""

    forward: Graph
    backward: Graph
    saved: tuple[Saved, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that live from forward to backward, beyond primals and outputs."""
        return sum(s.nbytes for s in self.saved)

    def donated(self, backward: Graph) -> frozenset[int]:
        """The inputs of a backward that the forward created for it: it owns them if it is the last to run."""
        temporaries = {s.name for s in self.saved if s.kind == "temporary"}
        return frozenset(i for i, p in enumerate(backward.placeholders) if p.name in temporaries)

    def describe(self) -> str:
        """One row for each saved value: its kind, type, bytes, the user's line, the reason."""
        rows = [("saved", "as", "type", "bytes", "line", "why")]
        for s in self.saved:
            line = f"{s.line.filename}:{s.line.line}" if s.line is not None else ""
            rows.append((s.name, s.kind, spec_text(s.spec), str(s.nbytes), line, s.why))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        return "\n".join([*text, f"{self.nbytes} bytes beyond primals and outputs"])

    __str__ = describe


def partition(joint: Joint, config: Config, hints: Hints = NO_HINTS) -> Partition:
    """The partition with the fewest saved bytes. Raises VerificationError if the backward reads a value of the forward
    that can neither be saved nor recomputed. `hints`: sample values of size symbols; the graphs are correct for any
    sizes."""
    shared: set[Node] = set()
    while True:
        problem = CutProblem(joint, config, shared, hints)
        cut, bans = within_budget(problem, config.activation_memory_budget)
        parts = _Builder(problem, cut, bans).build()
        if len(joint.tangents) < 2 or not (more := _read_beyond_eager(problem, cut, parts) - shared):
            return parts
        shared |= more


def level_of(graph: Graph) -> str:
    """Whether an aten graph is the "forward" or the "backward" of a joint graph, by its placeholders."""
    return "backward" if any(p.name.startswith("tangents_") for p in graph.placeholders) else "forward"


def _read_beyond_eager(problem: CutProblem, cut: Cut, parts: Partition) -> set[Node]:
    """Values saved as the user's tensors and read for the gradients of more results than in eager."""
    backward, memory = parts.backward, problem.memory
    placeholders = backward.placeholders
    reads = live_for(backward.nodes[:-1], placeholders[len(parts.saved) :], set(backward.nodes))
    nodes = list(cut.saved)
    primals = {s.index: node for node, s in zip(nodes, parts.saved) if s.kind in ("primal", "alias")}
    nodes += [primals[s.index] for s in parts.saved[len(nodes) :]]
    found = set()
    for node, saved, value in zip(nodes, parts.saved, placeholders):
        base = memory.bases.get(node, node)
        is_users = saved.kind != "temporary" and isinstance(node.spec, TensorSpec)
        if is_users and reads[value] & ~memory.eager.get(base, 0):
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
        self.copies: dict[Node, list[Node]] = {}  # value -> its copies, made as soon as it exists
        self.inputs: list[Node] = []  # the values of the backward's placeholders
        # node of the joint graph -> the node that the backward uses for it
        self.substitutes: dict[Node, Node] = {}
        self.restored: set[Node] = set()  # substitutes computed from a saved value alone
        self.aliases: dict[Node, Node] = {}  # primal -> the placeholder of an alias of it
        self.saves_itself: set[Node] = set()  # the primals that eager's nodes save

    def build(self) -> Partition:
        saved = [self._saved(node, option) for node, option in self.cut.saved.items()]
        self._choose()
        order, gradients = self._backward_order()
        saved = self._with_data(self._with_aliases(saved, order, gradients), order)
        inputs = (*self.inputs, *self.tangents)
        backward = extract(self.joint.graph, inputs, order, gradients, self._read)
        return Partition(self._forward(), backward, tuple(saved))

    def _saved(self, node: Node, option: SaveOption) -> Saved:
        index, value = option.index, node
        if option.kind == "temporary":
            index = len(self.temporaries)
            saved = self._copy(node, option) if option.copies else node
            self.temporaries.append((node, saved))
            if option.dtype is not None:
                value = saved
            elif saved.spec.stride != node.spec.stride:  # a copy of an expanded or gapped tensor is dense
                value = self.substitutes[node] = saved
        elif option.through is not None:
            value = option.through
            self._restore_from_view(node, value)
        elif option.kind == "primal" and isinstance(node.spec, TensorSpec):
            name = NodeBuilder(self.problem.names).name(f"{node.name}_alias")
            self.aliases[node] = replace(node, op="placeholder", target=name, args=(), kwargs={}, name=name)
            self.saves_itself |= {node} if index in self.joint.saved_primals else set()
        self.inputs.append(value)
        return Saved(
            option.kind, index, value.spec, value.name, option.nbytes, node.line, self._why(node, option)
        )

    def _copy(self, node: Node, option: SaveOption) -> Node:
        """A copy that the forward makes as soon as the value exists."""
        make = NodeBuilder(self.problem.names).begin(node)
        if option.dtype is None:
            copy = make(CLONE, node)
        else:
            copy = converted(make, node, option.dtype)
            self._restore(node, converted(make, copy, node.spec.dtype))
        copy.name = make.name(f"{node.name}_saved")
        self.copies.setdefault(node, []).append(copy)
        return copy

    def _restore_from_view(self, node: Node, view: Node) -> None:
        """Restore `node` in the backward from a saved view of all of it."""
        spec = node.spec
        make = NodeBuilder(self.problem.names).begin(node)
        layout = list(spec.shape), list(spec.stride), spec.offset
        self._restore(node, make(STRIDED, view, *layout))

    def _restore(self, node: Node, restored: Node) -> None:
        """Use `restored`, computed from a saved value, for `node` in the backward."""
        restored.name = node.name
        self.substitutes[node] = restored
        self.restored.add(restored)
        self.problem.position[restored] = self.problem.position[node]

    def _choose(self) -> None:
        """Use the formulas and replacements that the cut relies on."""
        saved, recomputed = self.cut.saved, self.cut.recomputed
        for value, formula in self.problem.formulas.items():
            if value in recomputed:
                self.substitutes[value] = formula.nodes[-1]
        for node, new in self.problem.replacements.items():
            is_available = any(n in saved or n in recomputed for n in new.spared)
            if new.masks[-1] in saved if new.masks else new.always or not is_available:
                self.substitutes[node] = new.node

    def _why(self, node: Node, option: SaveOption) -> str:
        if option.kind != "temporary":
            return f"held by the caller ({option.kind})"
        if node in self.problem.memory.primals:
            return (
                "the forward overwrites it"
                if node in self.problem.memory.written
                else "the caller may overwrite it"
            )
        producer = node.args[0] if node.target is operator.getitem else node
        return self.bans.get(producer, "fewest bytes")

    # ---- forward

    def _forward(self) -> Graph:
        joint = self.joint
        primals = joint.graph.placeholders[: joint.n_primals]
        outputs = joint.graph.output.args[0][: joint.n_forward]
        returned = (*outputs, *(saved for _, saved in self.temporaries))
        order = self._alive(self._forward_order(), returned)
        return extract(joint.graph, primals, order, returned)

    def _alive(self, order: list[Node], returned: Iterable[Node | None]) -> list[Node]:
        """`order` without nodes that neither a returned value nor an effect (including errors of the forward) needs."""
        used = {n for n in returned if n is not None}
        alive: list[Node] = []
        for node in reversed(order):
            stays = has_effect if node in self.problem.backward else must_run
            if node in used or stays(node):
                alive.append(node)
                used.update(argument_nodes(node))
        return alive[::-1]

    def _forward_order(self) -> list[Node]:
        """Nodes in the order of the joint graph; those that the backward recorded, as soon as their arguments exist."""
        nodes = self.joint.graph.nodes
        followers = self._followers()
        order: list[Node] = []
        for node in nodes[:-1]:
            provision = self.problem.provisions.get(node)
            if provision is not None and not self.cut.saved.keys().isdisjoint(provision.saved):
                order += provision.state
            if node not in self.problem.backward and node not in self.tangents:
                for done in (node, *followers.get(node, ())):
                    order.append(done)
                    order += self.copies.get(done, ())
                copy = self.problem.copies.copy_of.get(node)
                order += [copy] if copy in self.cut.saved else []
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

    def _with_aliases(
        self, saved: list[Saved], order: list[Node], gradients: list[Node | None]
    ) -> list[Saved]:
        """`saved` with the aliases of primals that the backward reads: in the place of a primal that it does not read, else
        at the end. Adds them to the inputs of the backward."""
        read = {self._read(a, user) for user in order for a in argument_nodes(user)}.union(gradients)
        bases = self.problem.memory.bases
        recomputed_from = {
            bases.get(a, a)
            for user in order
            if not self._is_eagers(user) and bases.get(user, user) is user
            for a in argument_nodes(user)
        }
        for i, (value, row) in enumerate(zip(tuple(self.inputs), tuple(saved))):
            alias = self.aliases.get(value)
            if alias not in read or alias is None:
                continue
            is_recomputed_from = value in recomputed_from
            new = replace(row, kind="alias", name=alias.name, is_recomputed_from=is_recomputed_from)
            if value in read:
                self.inputs.append(alias)
                saved.append(new)
            else:
                self.inputs[i], saved[i] = alias, new
        return saved

    def _with_data(self, saved: list[Saved], order: list[Node]) -> list[Saved]:
        """`saved` with the data that the backward reads of each output. Only eager's own nodes read new data: what the
        backward computes again comes from old data."""
        others = [user for user in order if user not in self.joint.backward]
        read_again = {self._read(a, user) for user in others for a in argument_nodes(user)}

        def data(value: Node, s: Saved) -> Literal["old", "new", "mixed"]:
            if s.kind != "output" or s.index not in self.joint.saved_outputs:
                return "old"
            is_mixed = self.joint.saved_outputs[s.index] or value in read_again
            return "mixed" if is_mixed else "new"

        return [replace(s, data=data(value, s)) for value, s in zip(self.inputs, saved)]

    def _backward_order(self) -> tuple[list[Node], list[Node | None]]:
        """Backward-only nodes in their order; what they read is computed just before its first read. And the gradients."""
        graph = self.joint.graph
        gradients = [
            None if n is None else self.substitutes.get(n, n)
            for n in graph.output.args[0][self.joint.n_forward :]
        ]
        available = {*self.inputs, *self.aliases.values(), *self.tangents}
        order: list[Node] = []
        for node in self.problem.backward_only:
            order += self._missing([self.substitutes.get(node, node)], available)
        order += self._missing((n for n in gradients if n is not None), available)
        return order, gradients

    def _read(self, argument: Node, user: Node) -> Node:
        if user in self.restored:
            return argument
        now = self.problem.current(argument, user)
        value = self.substitutes.get(now, now)
        itself = self._is_eagers(user) and value in self.saves_itself
        return value if itself else self.aliases.get(value, value)

    def _is_eagers(self, user: Node) -> bool:
        return user in self.problem.backward or user in self.problem.by_replacement

    def _missing(self, wanted: Iterable[Node], available: set[Node]) -> list[Node]:
        """The nodes to compute for `wanted`, in order; adds them to `available`."""
        stack = list(wanted)
        missing: list[Node] = []
        while stack:
            node = stack.pop()
            if node not in available:
                available.add(node)
                missing.append(node)
                stack += [self._read(a, node) for a in argument_nodes(node)]
        return sorted(missing, key=self.problem.position.__getitem__)
