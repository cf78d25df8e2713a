"""The input of the minimum cut: the values that a backward could start from, and how each follows from others.

A value of the forward may be recomputed from its arguments, or from other values by a formula; an operator of the
backward may be replaced by one that reads less (`recompute_formulas.py`). Some values must not be recomputed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator

from smelt.autograd.defensive_copies import DefensiveCopies
from smelt.autograd.recompute_classes import class_of
from smelt.autograd.recompute_formulas import Formula, Provision, formula, items_of, replacement
from smelt.autograd.rng_replay import replay_draw
from smelt.autograd.save_costs import NO_HINTS, Hints, Memory, SaveOption
from smelt.autograd.softmax_statistics import statistics
from smelt.config import DEFAULT, Config
from smelt.graph.graph_passes import stays_in_backward
from smelt.graph.ir import Node, argument_nodes
from smelt.ops.recompute_rules import Class
from smelt.rewrites.graph_rewriter import NodeBuilder
from smelt.tracing.backward.joint import Joint

LONGEST_CHAIN = 4
_CHAIN = f"the end of a chain of {LONGEST_CHAIN + 1} values that the backward reads"


class CutProblem:
    """What the backward reads, and the ways to compute it.

    `backward_only`: nodes that can run only in the backward; `read`: the other values that these read; `backward`: all
    nodes that the forward need not run. Formulas and replacements (`recompute_formulas.py`) are other ways to compute
    values of the forward and backward-only nodes; `provisions` are what the forward may compute for that: generator
    states, statistics of rows. `position` orders all nodes, also those not in the joint graph. Values in `shared` are
    read from the user's tensors only by eager's own reads (`defensive_copies.py`).
    """

    def __init__(
        self,
        joint: Joint,
        config: Config = DEFAULT,
        shared: Container[Node] = frozenset(),
        hints: Hints = NO_HINTS,
    ) -> None:
        self.joint = joint
        self.memory = Memory(joint, hints)
        graph = joint.graph
        gradients = [n for n in graph.output.args[0][joint.n_forward :] if n is not None]
        backward_only = self._backward_only(gradients)
        self.names = {n.name for n in graph}
        builder = NodeBuilder(self.names)
        calls = [n for n in graph if n in backward_only and n.op == "call_function"]
        self.replacements = {n: f for n in calls if (f := replacement(n, builder, backward_only)) is not None}
        replacements = self.replacements.values()
        self.backward = joint.backward.union(*(f.masks for f in replacements))
        self.by_replacement = {n for f in replacements for n in (f.node, *f.extras)}
        self.provisions = self._find_provisions(builder, config)
        self.formulas = self._find_formulas(builder)
        self.copies = DefensiveCopies(joint, self.memory, shared, builder)
        self.virtual = self.copies.views.union(*(f.nodes for f in self.formulas.values()))
        self.position = self._order()
        self.backward_only = [n for n in graph if n in backward_only and n.op != "placeholder"]
        self.read = {a for n in self.backward_only for a in self.arguments(n) if a not in backward_only}
        self.read.update(n for n in gradients if n not in backward_only)

    def _backward_only(self, gradients: list[Node]) -> set[Node]:
        """Needed nodes that depend on tangents or stay anyway; and the tangents."""
        graph = self.joint.graph
        tangents = set(graph.placeholders[self.joint.n_primals :])
        backward_only = set(tangents)
        for node in graph:
            if node in self.joint.backward:
                if stays_in_backward(node) or any(a in backward_only for a in argument_nodes(node)):
                    backward_only.add(node)
        alive = set(gradients)
        for node in reversed(graph.nodes):
            if node in backward_only and (node in alive or stays_in_backward(node)):
                alive.add(node)
                alive.update(argument_nodes(node))
        return (backward_only & alive) | tangents

    def _find_provisions(self, builder: NodeBuilder, config: Config) -> dict[Node, Provision]:
        nodes = [n for n in self.joint.graph if n not in self.joint.backward]
        items = items_of(nodes)
        found: dict[Node, Provision] = {}
        for node in nodes:
            if class_of(node) is Class.RANDOM:
                provision = replay_draw(node, items.get(node, {}), builder, config)
            else:
                provision = statistics(node, builder, config)
            if provision is not None:
                found[node] = provision
        return found

    def _find_formulas(self, builder: NodeBuilder) -> dict[Node, Formula]:
        found = {value: f for p in self.provisions.values() for value, f in p.formulas.items()}
        for items in items_of(n for n in self.joint.graph if n not in self.joint.backward).values():
            value = items.get(0)
            if value is not None and (f := formula(value, items, builder)) is not None:
                found[value] = f
        return found

    def _order(self) -> dict[Node, int]:
        """Positions: formulas after all results of their operator; replacements before the operator that they replace;
        provisions before their operator."""
        provided = {value for p in self.provisions.values() for value in p.formulas}
        last = {**{n: n for n in provided}, **{items[0]: n for n, items in self._last_items()}}
        after: defaultdict[Node, list[Node]] = defaultdict(list)
        for value, f in self.formulas.items():
            after[last[value]] += f.nodes
        order: list[Node] = []
        for node in self.joint.graph:
            new = self.replacements.get(node)
            if new is not None:
                order += (*new.masks, *new.extras, new.node)
            if node in self.provisions:
                order += self.provisions[node].state
            order += (node, *after[node])
            if node in self.copies.copy_of:
                order.append(self.copies.copy_of[node])
        return {n: i for i, n in enumerate(order)}

    def _last_items(self) -> Iterator[tuple[Node, dict[int, Node]]]:
        for items in items_of(self.joint.graph).values():
            if items.get(0) in self.formulas:
                yield list(items.values())[-1], items

    def arguments(self, node: Node) -> Iterator[Node]:
        """The nodes that the backward needs to compute a node, in the cheapest way."""
        value = self.formulas.get(node)
        if value is not None:
            yield value.nodes[-1]
            return
        new = self.replacements.get(node)
        if new is not None and new.masks:
            yield new.masks[-1]
        for argument in argument_nodes(node):
            if new is None or argument not in new.spared:
                yield self.current(argument, node)

    def current(self, argument: Node, user: Node) -> Node:
        """The node that `user` reads for an argument: for a primal that was overwritten before, the node that wrote
        it."""
        write = self.memory.written.get(argument)
        now = argument if write is None or self.position[write] >= self.position[user] else write
        if user in self.backward or user in self.by_replacement:
            return now
        return self.copies.read(now, user)

    def save_option(self, node: Node) -> SaveOption | None:
        """The cheapest way to save a value, or None where it cannot be saved."""
        if node in self.virtual or (node in self.copies.copies and not self.copies.keeps_layout(node)):
            return None
        return self.memory.save_option(node)

    def cone(self, banned: Container[Node]) -> list[Node]:
        """All values that the backward could be computed from, back to those that cannot be recomputed; in order."""
        seen = set(self.read)
        stack = list(seen)
        while stack:
            node = stack.pop()
            if node not in banned:
                new = [a for a in self.arguments(node) if a not in seen]
                seen.update(new)
                stack += new
        return sorted(seen, key=self.position.__getitem__)

    def bans(self) -> dict[Node, str]:
        """Forward nodes that must not be recomputed, with the reason."""
        found: dict[Node, str] = {}
        for node in self.joint.graph:
            if node.op != "get_attr" and node not in self.backward:
                kind = class_of(node)
                if kind.recompute != "always":
                    found[node] = f"{kind.name}: {kind.reason}"
        for provision in self.provisions.values():
            found |= dict.fromkeys(provision.state, provision.why)
        return {**found, **dict.fromkeys(self.copies.copies, "a copy: the caller may overwrite the value")}

    def chain_bans(self, bans: dict[Node, str]) -> dict[Node, str]:
        """Bans at the ends of too long chains of values that would be recomputed and held."""
        bases = self.memory.bases
        cone = self.cone(bans)
        reads = self.read.union(*(self.arguments(n) for n in cone if n in self.backward))
        held = {bases.get(n, n) for n in reads}
        length: dict[Node, int] = {}
        found: dict[Node, str] = {}
        for node in cone:
            if node in bans or node.op == "get_attr":
                continue
            length[node] = max(
                (length[a] + (a in held) for a in self.arguments(node) if a in length), default=0
            )
            if (
                length[node] >= LONGEST_CHAIN
                and node not in self.backward
                and self.save_option(node) is not None
            ):
                found[node] = _CHAIN
                del length[node]
        return found
