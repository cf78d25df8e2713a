"""Which values of the forward the backward starts from: a minimum cut.

The network has two nodes for each value, joined by an edge with the bytes that saving the value costs as capacity;
cutting it means saving it. Values lead to the values computed from them by edges that cannot be cut. The source stands
for the forward, the sink for the backward. In addition

* source -> value: the cost of recomputing it in the backward; infinite where that is banned (`recompute_classes.py`);
* value -> sink: infinite if an operator of the backward reads it;
* value -> sink: 1, if the backward recorded it but it depends on no tangent (the sine of a cosine's derivative). Such
  a value may be computed in the forward instead, where that saves bytes: a mask is smaller than its operands. This
  excludes values that may not run twice, such as the products that a user's checkpoint recomputes.

Bytes are multiplied by more than all other costs together: the cut saves the fewest bytes, and among equals takes the
least work. So a transcendental function is recomputed only where that saves bytes, and of values of equal size the one
nearest to its use is saved.

One more ban bounds the memory in use while the backward runs: along a chain of values that the backward reads and that
are recomputed one from the other, at most `min_cut_problem.LONGEST_CHAIN` are recomputed. The last value of a residual
stream is needed first; without the bound, computing it would recompute the whole stream and hold all of it until its
turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.autograd.max_flow import INFINITE, Network
from smelt.autograd.min_cut_problem import CutProblem
from smelt.autograd.recompute_classes import class_of, work_of
from smelt.autograd.save_costs import Hints, SaveOption
from smelt.errors import VerificationError
from smelt.graph.ir import Node, TensorSpec
from smelt.shapes.expr import evaluate, numel

_TOKENS = 1 << 20  # all work together


@dataclass(frozen=True)
class Cut:
    """`saved` in the order of the joint graph; `recomputed`: forward nodes that the backward runs again; `early`:
    nodes that the backward recorded and the forward runs."""

    saved: dict[Node, SaveOption]
    recomputed: frozenset[Node]
    early: frozenset[Node]

    @property
    def nbytes(self) -> int:
        """Bytes that live from forward to backward because of the cut."""
        return sum(option.nbytes for option in self.saved.values())


def minimum(problem: CutProblem, bans: dict[Node, str]) -> Cut:
    """The cut that saves the fewest bytes. Raises VerificationError if the backward reads a value that cannot be
    saved."""
    cone = [n for n in problem.cone(bans) if n.op != "get_attr"]
    number = {node: i for i, node in enumerate(cone)}
    options = [problem.save_option(node) for node in cone]
    work = [0 if n in bans or n in problem.backward else work_of(n, problem.memory.hints) for n in cone]
    total = sum(work) or 1
    byte = 2 * (_TOKENS + 2 * len(cone))
    source, sink = 2 * len(cone), 2 * len(cone) + 1
    network = Network(2 * len(cone) + 2)
    for i, node in enumerate(cone):
        option = options[i]
        network.add(2 * i, 2 * i + 1, INFINITE if option is None else option.nbytes * byte + 1)
        if node in bans:
            network.add(source, 2 * i, INFINITE)
        else:
            if work[i]:
                network.add(source, 2 * i, 1 + work[i] * _TOKENS // total)
            for argument in problem.arguments(node):
                if argument in number:
                    network.add(2 * number[argument] + 1, 2 * i, INFINITE)
        if node in problem.read:
            network.add(2 * i + 1, sink, INFINITE)
        if node in problem.backward:
            network.add(2 * i, sink, 1 if class_of(node).recompute == "always" else INFINITE)
            for argument in problem.arguments(node):
                if argument in problem.backward and argument in number:  # early only if what it reads is
                    network.add(2 * i, 2 * number[argument], INFINITE)
    if network.maximize(source, sink) >= INFINITE:
        raise VerificationError("the backward reads a value that can neither be saved nor recomputed")
    side = network.reachable(source)
    return _read_off(problem, cone, options, side)


def _read_off(
    problem: CutProblem, cone: list[Node], options: list[SaveOption | None], side: list[bool]
) -> Cut:
    """The part of a cut that the backward needs."""
    number = {node: i for i, node in enumerate(cone)}
    saved: set[Node] = set()
    recomputed: set[Node] = set()
    stack = [n for n in problem.read if n in number]
    while stack:
        node = stack.pop()
        if node in saved or node in recomputed:
            continue
        if side[2 * number[node]]:
            saved.add(node)
        else:
            recomputed.add(node)
            stack += [a for a in problem.arguments(node) if a in number]
    ordered = {n: option for n, option in zip(cone, options) if n in saved and option is not None}
    early = {n for n in saved if n in problem.backward}
    stack = list(early)
    while stack:
        new = [a for a in problem.arguments(stack.pop()) if a in problem.backward and a not in early]
        early.update(new)
        stack += new
    return Cut(ordered, frozenset(recomputed), frozenset(early))


def within_budget(problem: CutProblem, budget: float) -> tuple[Cut, dict[Node, str]]:
    """The cut for an `activation_memory_budget`, and the bans that it respects.

    1 respects all bans. Below, bans are lifted in an order that does not depend on the budget: first of the operators
    whose result has most bytes per work, then of chains. 0 lifts all that can be lifted; in between, as few as reduce
    the saved bytes to the same fraction of the distance between that and the default. Fewer bans never mean more
    bytes, so bytes grow with the budget.
    """
    bans = problem.bans()
    chains = problem.chain_bans(bans)
    default = minimum(problem, {**bans, **chains})
    if budget >= 1:
        return default, {**bans, **chains}
    order = _lifting_order(problem, bans) + sorted(chains, key=problem.position.__getitem__)

    def lifted(count: int) -> dict[Node, str]:
        lifted_nodes = set(order[:count])
        return {n: why for n, why in {**bans, **chains}.items() if n not in lifted_nodes}

    least = minimum(problem, lifted(len(order)))
    allowed = least.nbytes + budget * (default.nbytes - least.nbytes)
    low, high, best = 0, len(order), least
    while low < high:  # the least count whose cut is small enough
        middle = (low + high) // 2
        cut = minimum(problem, lifted(middle))
        if cut.nbytes <= allowed:
            high, best = middle, cut
        else:
            low = middle + 1
    return best, lifted(low)


def _lifting_order(problem: CutProblem, bans: dict[Node, str]) -> list[Node]:
    candidates = [
        n
        for n in bans
        if class_of(n).recompute == "budget" or n in problem.provisions.keys() & problem.formulas
    ]
    hints = problem.memory.hints
    return sorted(
        candidates,
        key=lambda n: (work_of(n, hints) / max(1, _result_bytes(n, hints)), problem.position[n]),
    )


def _result_bytes(node: Node, hints: Hints) -> int:
    specs = node.spec if isinstance(node.spec, tuple) else (node.spec,)
    sizes = (s.dtype.itemsize * numel(s.shape) for s in specs if isinstance(s, TensorSpec))
    return sum(evaluate(size, hints) for size in sizes)
