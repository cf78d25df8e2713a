"""Which values of the forward the backward starts from: a minimum cut.

The network has two nodes for each value, joined by an edge as wide as the bytes that keeping the value costs; cutting it
means to keep it. Values lead to what is computed from them by edges that cannot be cut. The source stands for the
forward, the sink for the backward. Besides

* source -> value: what it costs to compute it again in the backward; infinite where that is banned (`classes.py`);
* value -> sink: infinite if an operator of the backward reads it;
* value -> sink: a token, if the backward recorded it but it depends on no tangent (the sine of a cosine's derivative).
  Such a value may be computed in the forward already, where that saves bytes: a mask is smaller than what it is made of.
  Not so what may not run twice: the products that a checkpoint of the user's computes again, say.

Bytes are multiplied by more than all else together: the cut keeps the fewest bytes, and among equals takes the least
work. So a transcendental function is only run again where that saves bytes, and of values of equal size the one nearest
to its use is kept.

One more ban bounds the memory in use while the backward runs: along a chain of values that the backward reads and that
are computed again one from the other, at most `LONGEST_CHAIN` are. The last value of a residual stream is needed first;
without the bound it would take the whole stream to compute it, and all of that would be held until its turn comes.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from smelt.autograd.classes import class_of, work_of
from smelt.autograd.flow import INFINITE, Network
from smelt.autograd.memory import Keep, Memory
from smelt.autograd.redraw import Redraw, redraw
from smelt.autograd.rewrites import Formula, Maker, form, formula, items_of
from smelt.errors import VerificationError
from smelt.graph.ir import Node, TensorSpec, argument_nodes
from smelt.graph.passes import has_effect
from smelt.graph.sizes import numel, static
from smelt.ops.recompute import Class
from smelt.trace.joint import Joint

LONGEST_CHAIN = 4
_CHAIN = f"the end of a chain of {LONGEST_CHAIN + 1} values that the backward reads"
_TOKENS = 1 << 20  # all work together


@dataclass(frozen=True)
class Cut:
    """`kept` in the order of the joint graph; `again`: forward nodes that the backward runs again; `early`: nodes that the
    backward recorded and the forward runs."""

    kept: dict[Node, Keep]
    again: frozenset[Node]
    early: frozenset[Node]

    @property
    def nbytes(self) -> int:
        return sum(keep.nbytes for keep in self.kept.values())


class Needs:
    """What the backward is made of.

    `late`: nodes that can only run there; `read`: the other values that these read; `backward`: all that the forward need
    not run. Formulas and forms (see `rewrites.py`) are other ways to compute values of the forward and late nodes;
    `redraws`, where `draws_again`, are those of random numbers. `position` orders all nodes, also those that
    are not in the joint graph.
    """

    def __init__(self, joint: Joint, draws_again: bool = False) -> None:
        self.joint = joint
        self.memory = Memory(joint)
        graph = joint.graph
        gradients = [n for n in graph.output.args[0][joint.n_outputs :] if n is not None]
        late = self._late(gradients)
        self.names = {n.name for n in graph}
        maker = Maker(self.names)
        self.forms = {n: f for n in late if n.op == "call_function" and (f := form(n, maker)) is not None}
        self.backward = joint.backward.union(*(f.masks for f in self.forms.values()))
        self.redraws = self._find_redraws(maker) if draws_again else {}
        self.formulas = self._find_formulas(maker)
        self.virtual = {n for f in self.formulas.values() for n in f.nodes}
        self.position = self._order()
        self.late = [n for n in graph if n in late and n.op != "placeholder"]
        self.read = {a for n in self.late for a in self.arguments(n) if a not in late}
        self.read.update(n for n in gradients if n not in late)

    def _late(self, gradients: list[Node]) -> set[Node]:
        """What depends on tangents, or has an effect, and is needed; and the tangents."""
        graph = self.joint.graph
        tangents = set(graph.placeholders[self.joint.n_primals :])
        late = set(tangents)
        for node in graph:
            if node in self.joint.backward:
                if has_effect(node) or any(a in late for a in argument_nodes(node)):
                    late.add(node)
        alive = set(gradients)
        for node in reversed(graph.nodes):
            if node in late and (node in alive or has_effect(node)):
                alive.add(node)
                alive.update(argument_nodes(node))
        return (late & alive) | tangents

    def _find_redraws(self, maker: Maker) -> dict[Node, Redraw]:
        drawn = (n for n in self.joint.graph if n not in self.joint.backward and class_of(n) is Class.RANDOM)
        return {n: made for n in drawn if (made := redraw(n, maker)) is not None}

    def _find_formulas(self, maker: Maker) -> dict[Node, Formula]:
        found = {value: made.formula for value, made in self.redraws.items()}
        for items in items_of(n for n in self.joint.graph if n not in self.joint.backward).values():
            value = items.get(0)
            if value is not None and (made := formula(value, items, maker)) is not None:
                found[value] = made
        return found

    def _order(self) -> dict[Node, int]:
        """Formulas stand after all results of the operator whose result they give; forms before what they replace, states
        of generators before what they draw."""
        last = {**{n: n for n in self.redraws}, **{items[0]: n for n, items in self._last_items()}}
        after = {last[value]: f.nodes for value, f in self.formulas.items()}
        order: list[Node] = []
        for node in self.joint.graph:
            form = self.forms.get(node)
            if form is not None:
                order += (*form.masks, *form.extras, form.node)
            if node in self.redraws:
                order.append(self.redraws[node].state)
            order += (node, *after.get(node, ()))
        return {n: i for i, n in enumerate(order)}

    def _last_items(self) -> Iterator[tuple[Node, dict[int, Node]]]:
        for items in items_of(self.joint.graph).values():
            if items.get(0) in self.formulas:
                yield list(items.values())[-1], items

    def arguments(self, node: Node) -> Iterator[Node]:
        """What the backward must have to compute a node, in the cheapest of the ways there are."""
        made = self.formulas.get(node)
        if made is not None:
            yield made.nodes[-1]
            return
        form = self.forms.get(node)
        if form is not None and form.masks:
            yield form.masks[-1]
        for argument in argument_nodes(node):
            if form is None or argument not in form.spared:
                yield self.current(argument, node)

    def current(self, argument: Node, user: Node) -> Node:
        """What a node reads for an argument: for a primal that was overwritten before, the node that wrote it."""
        write = self.memory.written.get(argument)
        if write is None or self.position[write] >= self.position[user]:
            return argument
        return write

    def keep(self, node: Node) -> Keep | None:
        return None if node in self.virtual else self.memory.keep(node)

    def cone(self, banned: Container[Node]) -> list[Node]:
        """All values that the backward could be computed from, back to what cannot be computed again; in order."""
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
        """Forward nodes that must not run again, with the reason."""
        found: dict[Node, str] = {}
        for node in self.joint.graph:
            if node.op != "get_attr" and node not in self.backward:
                kind = class_of(node)
                if kind.recompute != "always":
                    found[node] = f"{kind.name}: {kind.reason}"
        for made in self.redraws.values():
            found[made.state] = "random: its numbers are drawn again"
        return found

    def chain_bans(self, bans: dict[Node, str]) -> dict[Node, str]:
        """Where chains of values that would be computed again, and held, become too long."""
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
            if length[node] >= LONGEST_CHAIN and node not in self.backward and self.keep(node) is not None:
                found[node] = _CHAIN
                del length[node]
        return found


def minimum(needs: Needs, bans: dict[Node, str]) -> Cut:
    """The cut that keeps the fewest bytes. Raises VerificationError if the backward reads what cannot be kept."""
    cone = [n for n in needs.cone(bans) if n.op != "get_attr"]
    number = {node: i for i, node in enumerate(cone)}
    keeps = [needs.keep(node) for node in cone]
    work = [0 if n in bans or n in needs.backward else work_of(n) for n in cone]
    total = sum(work) or 1
    byte = 2 * (_TOKENS + 2 * len(cone))
    source, sink = 2 * len(cone), 2 * len(cone) + 1
    network = Network(2 * len(cone) + 2)
    for i, node in enumerate(cone):
        keep = keeps[i]
        network.add(2 * i, 2 * i + 1, INFINITE if keep is None else keep.nbytes * byte + 1)
        if node in bans:
            network.add(source, 2 * i, INFINITE)
        else:
            if work[i]:
                network.add(source, 2 * i, 1 + work[i] * _TOKENS // total)
            for argument in needs.arguments(node):
                if argument in number:
                    network.add(2 * number[argument] + 1, 2 * i, INFINITE)
        if node in needs.read:
            network.add(2 * i + 1, sink, INFINITE)
        if node in needs.backward:
            network.add(2 * i, sink, 1 if class_of(node).recompute == "always" else INFINITE)
            for argument in needs.arguments(node):
                if argument in needs.backward and argument in number:  # early only if what it reads is
                    network.add(2 * i, 2 * number[argument], INFINITE)
    if network.maximize(source, sink) >= INFINITE:
        raise VerificationError("the backward reads a value that can neither be kept nor computed again")
    side = network.reachable(source)
    return _read_off(needs, cone, keeps, side)


def _read_off(needs: Needs, cone: list[Node], keeps: list[Keep | None], side: list[bool]) -> Cut:
    """Only what the backward really needs of a cut."""
    number = {node: i for i, node in enumerate(cone)}
    kept: set[Node] = set()
    again: set[Node] = set()
    stack = [n for n in needs.read if n in number]
    while stack:
        node = stack.pop()
        if node in kept or node in again:
            continue
        if side[2 * number[node]]:
            kept.add(node)
        else:
            again.add(node)
            stack += [a for a in needs.arguments(node) if a in number]
    ordered = {n: keep for n, keep in zip(cone, keeps) if n in kept and keep is not None}
    early = {n for n in kept if n in needs.backward}
    stack = list(early)
    while stack:
        new = [a for a in needs.arguments(stack.pop()) if a in needs.backward and a not in early]
        early.update(new)
        stack += new
    return Cut(ordered, frozenset(again), frozenset(early))


def within_budget(needs: Needs, budget: float) -> tuple[Cut, dict[Node, str]]:
    """The cut for an `activation_memory_budget`, and the bans that it respects.

    1 respects all bans. Below, bans are lifted in an order that does not depend on the budget: first of the operators whose
    result has most bytes for the work, then of chains. 0 lifts all that can be lifted; between, as few as bring the kept
    bytes down to the same fraction of the way from there to the default. Fewer bans never mean more bytes, so bytes grow
    with the budget.
    """
    bans = needs.bans()
    chains = needs.chain_bans(bans)
    default = minimum(needs, {**bans, **chains})
    if budget >= 1:
        return default, {**bans, **chains}
    order = _lifting_order(needs, bans) + sorted(chains, key=needs.position.__getitem__)

    def lifted(count: int) -> dict[Node, str]:
        gone = set(order[:count])
        return {n: why for n, why in {**bans, **chains}.items() if n not in gone}

    least = minimum(needs, lifted(len(order)))
    allowed = least.nbytes + budget * (default.nbytes - least.nbytes)
    low, high, best = 0, len(order), least
    while low < high:  # the least count whose cut is small enough
        middle = (low + high) // 2
        cut = minimum(needs, lifted(middle))
        if cut.nbytes <= allowed:
            high, best = middle, cut
        else:
            low = middle + 1
    return best, lifted(low)


def _lifting_order(needs: Needs, bans: dict[Node, str]) -> list[Node]:
    candidates = [n for n in bans if class_of(n).recompute == "budget" or n in needs.redraws]
    return sorted(candidates, key=lambda n: (work_of(n) / max(1, _result_bytes(n)), needs.position[n]))


def _result_bytes(node: Node) -> int:
    specs = node.spec if isinstance(node.spec, tuple) else (node.spec,)
    return sum(s.dtype.itemsize * static(numel(s.shape)) for s in specs if isinstance(s, TensorSpec))
