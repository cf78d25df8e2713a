"""Which values of the forward the backward starts from: a minimum cut.

The network has two nodes for each value, joined by an edge as wide as the bytes that keeping the value costs; cutting it
means to keep it. Values lead to what is computed from them by edges that cannot be cut. The source stands for the
forward, the sink for the backward. Besides

* source -> value: what it costs to compute it again in the backward; infinite where that is banned (`classes.py`);
* value -> sink: infinite if an operator of the backward reads it;
* value -> sink: a token, if the backward recorded it but it depends on no tangent (the sine of a cosine's derivative).
  Such a value may be computed in the forward already, where that saves bytes: a mask is smaller than what it is made of.

Bytes are multiplied by more than all else together: the cut keeps the fewest bytes, and among equals takes the least
work. So a transcendental function is only run again where that saves bytes, and of values of equal size the one nearest
to its use is kept.

One more ban bounds the memory in use while the backward runs: along a chain of values that the backward reads and that
are computed again one from the other, at most `LONGEST_CHAIN` are. The last value of a residual stream is needed first;
without the bound it would take the whole stream to compute it, and all of that would be held until its turn comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from smelt.autograd.classes import class_of, work_of
from smelt.autograd.flow import INFINITE, Network
from smelt.autograd.memory import Keep, Memory
from smelt.errors import VerificationError
from smelt.graph.ir import Node, TensorSpec, argument_nodes
from smelt.graph.passes import has_effect
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


@dataclass
class Needs:
    """What the backward is made of. `late`: nodes that can only run there; `read`: the other values that these read."""

    joint: Joint
    memory: Memory
    position: dict[Node, int] = field(init=False)
    late: list[Node] = field(init=False)
    read: set[Node] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.joint.graph
        self.position = {n: i for i, n in enumerate(graph)}
        gradients = [n for n in graph.output.args[0][self.joint.n_outputs :] if n is not None]
        late = set(graph.placeholders[self.joint.n_primals :])
        for node in graph:
            if node in self.joint.backward and (
                has_effect(node) or any(a in late for a in argument_nodes(node))
            ):
                late.add(node)
        alive = set(gradients)
        for node in reversed(graph.nodes):
            if node in late and (node in alive or has_effect(node)):
                alive.add(node)
                alive.update(argument_nodes(node))
        self.late = [n for n in graph if n in late and n in alive and n.op != "placeholder"]
        self.read = {a for n in self.late for a in self.arguments(n) if a not in late}
        self.read.update(n for n in gradients if n not in late)

    def arguments(self, node: Node) -> Iterator[Node]:
        """What a node reads. A primal that was overwritten before is the node that wrote it."""
        for argument in argument_nodes(node):
            yield self.current(argument, node)

    def current(self, argument: Node, user: Node) -> Node:
        write = self.memory.written.get(argument)
        if write is None or self.position[write] >= self.position[user]:
            return argument
        return write

    def cone(self, banned: set[Node]) -> list[Node]:
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

    def bans(self, lifted: frozenset[Node]) -> dict[Node, str]:
        """Forward nodes that must not run again, with the reason."""
        found: dict[Node, str] = {}
        for node in self.joint.graph:
            if node.op == "get_attr" or node in self.joint.backward:
                continue
            kind = class_of(node)
            if kind.recompute == "never" or (kind.recompute == "budget" and node not in lifted):
                found[node] = f"{kind.name}: {kind.reason}"
        return found

    def chain_bans(self, bans: dict[Node, str]) -> dict[Node, str]:
        """Where chains of values that would be computed again, and held, become too long."""
        bases = self.memory.bases
        cone = self.cone(set(bans))
        reads = self.read.union(*(set(self.arguments(n)) for n in cone if n in self.joint.backward))
        held = {bases[n] for n in reads}
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
                and self.memory.keep(node) is not None
                and node not in self.joint.backward
            ):
                found[node] = _CHAIN
                del length[node]
        return found


def minimum(needs: Needs, bans: dict[Node, str]) -> Cut:
    """The cut that keeps the fewest bytes. Raises VerificationError if the backward reads what cannot be kept."""
    cone = [n for n in needs.cone(set(bans)) if n.op != "get_attr"]
    number = {node: i for i, node in enumerate(cone)}
    keeps = [needs.memory.keep(node) for node in cone]
    work = [0 if n in bans or n in needs.joint.backward else work_of(n) for n in cone]
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
        if node in needs.joint.backward:
            network.add(2 * i, sink, 1)
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
    early = {n for n in kept if n in needs.joint.backward}
    stack = list(early)
    while stack:
        new = [a for a in needs.arguments(stack.pop()) if a in needs.joint.backward and a not in early]
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
    bans = needs.bans(frozenset())
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
    candidates = [n for n in bans if class_of(n).recompute == "budget"]
    return sorted(candidates, key=lambda n: (work_of(n) / max(1, _result_bytes(n)), needs.position[n]))


def _result_bytes(node: Node) -> int:
    specs = node.spec if isinstance(node.spec, tuple) else (node.spec,)
    return sum(s.dtype.itemsize * _count(s) for s in specs if isinstance(s, TensorSpec))


def _count(spec: TensorSpec) -> int:
    count = 1
    for n in spec.shape:
        count *= n  # type: ignore[assignment,operator]
    return count
