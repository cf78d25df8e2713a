"""Graphs with sizes that data decide, cut into parts: what gives such a size is called between them.

A part is compiled as a graph of its own: for any sizes, where it has symbols, all of which are sizes of what it takes. What
crosses from one part to another, or is given to an operator between them, is an input or a result of parts. As soon as a
size is known, the conditions that the graph was made for are checked. Inputs are written in the last part, so that until
then nothing has happened which the original function would not do again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from smelt.errors import NeedsFixedSize, OtherSizes
from smelt.graph import torch_settings
from smelt.graph.free_symbols import symbols_in
from smelt.graph.graph_callable import Compiled
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes, map_nodes
from smelt.graph.operator_effects import effects
from smelt.graph.tensor_specs import at_numbers, empty_like_spec
from smelt.graph.unbacked_sizes import given_sizes
from smelt.shapes import number_expr
from smelt.shapes.expr import Sym, Values, contiguous_stride
from smelt.torch_private import OpOverload
from smelt.tracing.record.traced import SizeInput, Traced
from smelt.tracing.symbolic.symbolic_layouts import SizeSource
from smelt.tracing.symbolic.unbacked_numbers import Condition, NumberCondition

AnyCondition = Condition | NumberCondition
# Makes a graph callable, whose symbols are sizes of its inputs.
CompilePart = Callable[[Graph, Mapping[Sym, SizeInput]], Compiled]


@dataclass
class Run:
    """One call: the values of nodes, and those of symbols."""

    made: dict[Node, Any]
    values: dict[Sym, int]


@dataclass
class _Part:
    """Nodes that are compiled together: what they take, and what others read of them. `done`: what nobody reads after it."""

    takes: list[Node]
    gives: list[Node]
    call: Compiled
    done: list[Node] = field(default_factory=list)

    def run(self, run: Run) -> None:
        made = run.made
        for node, value in zip(self.gives, self.call(tuple([made[n] for n in self.takes]))):
            made[node] = value


@dataclass
class _Given:
    """A node that gives sizes, the nodes that read one of several results of it, where its sizes are found, and what is
    known to hold or not when they are."""

    node: Node
    items: list[Node]
    sources: list[tuple[Sym, Node, int]]
    conditions: list[AnyCondition]
    small: frozenset[int]
    done: list[Node] = field(default_factory=list)

    def run(self, run: Run) -> None:
        made, values, node = run.made, run.values, self.node
        args, kwargs = (map_nodes(a, made.__getitem__) for a in (node.args, node.kwargs))
        with torch_settings.beneath_autograd():
            out = node.target(*args, **kwargs)
        made[node] = out
        for item in self.items:
            made[item] = out[item.args[1]]
        for sym, holder, dim in self.sources:
            size = values[sym] = made[holder].shape[dim]
            if size < sym.lo and size not in self.small:
                raise OtherSizes(f"smelt: a graph for {sym} >= {sym.lo} was called with {size}")
        _check(self.conditions, values)
        with torch_settings.beneath_autograd():
            for holder in self.items or [node]:
                made[holder] = _laid_out(made[holder], holder.spec, values)


def _check(conditions: Iterable[AnyCondition], values: Values) -> None:
    for condition in conditions:
        if not condition.holds(values):
            found = ", ".join(f"{s} = {values[s]}" for s in sorted(condition.symbols, key=str))
            raise OtherSizes(f"smelt: a graph for {condition} was called with {found}")


def _laid_out(tensor: torch.Tensor, spec: TensorSpec, values: Values) -> torch.Tensor:
    """The tensor with the strides that the graph was made for."""
    if spec.stride == contiguous_stride(spec.shape) and tensor.is_contiguous():
        return tensor
    wanted = at_numbers(spec, values)
    if tensor.stride() == wanted.stride or not tensor.numel():
        return tensor
    return empty_like_spec(wanted, tensor.device).copy_(tensor)


@dataclass
class _Number:
    """A Python number that is computed from sizes."""

    node: Node
    expression: number_expr.Expression
    done: list[Node] = field(default_factory=list)

    def run(self, run: Run) -> None:
        run.made[self.node] = number_expr.evaluate(self.expression, run.values.__getitem__)


_PATIENCE = 8  # calls in succession that a graph is not for
_TRIED_AGAIN = 16

_Step = _Part | _Given | _Number


class SplitGraph:
    """A graph in parts. `start` runs it until all sizes are known, `finish` the rest."""

    def __init__(self, traced: Traced, graph: Graph, compile_part: CompilePart) -> None:
        assert traced.data is not None
        self._graph = graph
        self._sizes = traced.sizes
        self._small = traced.data.small
        self._first: list[AnyCondition] = []
        self._failed = self._skipped = 0  # calls, one after the other
        placeholders = graph.placeholders
        of_data = len(traced.data.numbers)
        self.inputs = placeholders[: len(placeholders) - of_data]
        self.numbers = placeholders[len(self.inputs) :]
        self._expressions = dict(zip(self.numbers, traced.data.numbers, strict=True))
        self._outputs: tuple[Node | None, ...] = graph.output.args[0]
        steps = self._cut(traced.data.conditions, compile_part)
        last = max((i for i, s in enumerate(steps) if not isinstance(s, _Part)), default=-1)
        _free_early(steps, last, {*self._outputs, *self.numbers})
        self._start, self._finish = steps[: last + 1], steps[last + 1 :]
        self.symbols = tuple(
            {**self._sizes, **{s: None for g in steps if isinstance(g, _Given) for s, _, _ in g.sources}}
        )

    def start(self, inputs: Sequence[Any]) -> Run:
        """Runs what comes before the last size is known. Raises OtherSizes where sizes are not what the graph is for: at
        once, where that was so in the calls before, but for one in a while."""
        if self._failed > _PATIENCE:
            self._skipped += 1
            if self._skipped % _TRIED_AGAIN:
                raise OtherSizes("smelt: a graph was not for the sizes of the calls before")
        try:
            run = self._started(inputs)
        except OtherSizes:
            self._failed += 1
            raise
        self._failed = 0
        return run

    def _started(self, inputs: Sequence[Any]) -> Run:
        values = {sym: s.source.read(inputs[s.input]) for sym, s in self._sizes.items()}
        _check(self._first, values)
        run = Run(dict(zip(self.inputs, inputs)), values)
        _run(self._start, run)
        return run

    def numbers_of(self, run: Run) -> list[Any]:
        """The numbers that operators are given, which the sizes make."""
        return [run.made[node] for node in self.numbers]

    def finish(self, run: Run) -> tuple[Any, ...]:
        """Runs the rest: the outputs of the graph."""
        _run(self._finish, run)
        return tuple([None if n is None else run.made[n] for n in self._outputs])

    # ---- cutting

    def _cut(self, conditions: Sequence[AnyCondition], compile_part: CompilePart) -> list[_Step]:
        graph = self._graph
        holders = _Holders(graph.placeholders)
        known = set(self._sizes)
        waiting = list(conditions)
        numbers_waiting = list(self.numbers)
        stretches: list[list[Node] | _Given | _Number] = [[]]
        items = {n: n.args[0] for n in graph if n.target is operator.getitem and given_sizes(n.args[0])}

        def settle() -> list[AnyCondition]:
            """The conditions of which all sizes are known by now."""
            settled = [c for c in waiting if c.symbols <= known]
            waiting[:] = [c for c in waiting if not c.symbols <= known]
            return settled

        self._first = settle()
        for node in graph.nodes:
            if node.op in ("placeholder", "output") or node in items:
                continue
            sizes = given_sizes(node)
            if sizes and any(_writes(n) for s in stretches if isinstance(s, list) for n in s):
                raise NeedsFixedSize("something is written before a size is known", frozenset())
            if not sizes:
                stretches[-1].append(node)  # type: ignore[union-attr]
                continue
            own = [item for item, source in items.items() if source is node]
            for holder in own or [node]:
                holders.add(holder)
            if not all(sym in holders for sym in sizes):  # the results that have them are read by nobody
                own = [_item(node, index) for index in range(len(node.spec))]
                for holder in own:
                    holders.add(holder)
            known |= sizes
            sources = [(sym, *holders[sym]) for sym in sorted(sizes, key=str)]
            stretches.append(_Given(node, own, sources, settle(), self._small))
            for number in list(numbers_waiting):
                if {*number_expr.leaves(self._expressions[number])} <= known:
                    numbers_waiting.remove(number)
                    stretches.append(_Number(number, self._expressions[number]))
            stretches.append([])
        if waiting or numbers_waiting:
            raise NeedsFixedSize("a size is not known when the graph has run", frozenset())
        return self._compiled([s for s in stretches if s != []], holders, compile_part)

    def _compiled(
        self, stretches: Sequence[list[Node] | _Given | _Number], holders: _Holders, compile_part: CompilePart
    ) -> list[_Step]:
        read: list[set[Node]] = []  # by what comes after each
        after = {n for n in self._outputs if n is not None}
        for stretch in reversed(stretches):
            read.append(set(after))
            if isinstance(stretch, list):
                after.update(a for n in stretch for a in argument_nodes(n))
            elif isinstance(stretch, _Given):
                after.update(argument_nodes(stretch.node))
        steps: list[_Step] = []
        there = set(self._graph.placeholders)
        for stretch, later in zip(stretches, reversed(read)):
            if not isinstance(stretch, list):
                steps.append(stretch)
                there.update(
                    [stretch.node, *stretch.items] if isinstance(stretch, _Given) else [stretch.node]
                )
                continue
            gives = [n for n in stretch if n in later]
            graph, takes, sizes = _part_of(self._graph, stretch, gives, holders)
            steps.append(_Part(takes, gives, compile_part(graph, sizes)))
            for node in gives:
                holders.add(node)
        return steps


class _Holders:
    """For each symbol, a node and which dimension of it has that size."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._at: dict[Sym, tuple[Node, int]] = {}
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        if isinstance(node.spec, TensorSpec):
            for dim, size in enumerate(node.spec.shape):
                if isinstance(size, Sym):
                    self._at.setdefault(size, (node, dim))

    def __contains__(self, sym: Sym) -> bool:
        return sym in self._at

    def __getitem__(self, sym: Sym) -> tuple[Node, int]:
        if sym not in self._at:
            raise NeedsFixedSize(f"{sym} is the size of no tensor", frozenset((sym,)))
        return self._at[sym]


def _part_of(
    whole: Graph, stretch: Sequence[Node], gives: Sequence[Node], holders: _Holders
) -> tuple[Graph, list[Node], dict[Sym, SizeInput]]:
    """The graph of a stretch of nodes, what it takes, and where it finds the symbols that it has."""
    inside = set(stretch)
    takes = list(dict.fromkeys(a for n in stretch for a in argument_nodes(n) if a not in inside))
    symbols = dict.fromkeys(symbols_in([*stretch, *takes]))
    sizes: dict[Sym, SizeInput] = {}
    for sym in symbols:
        at = next((i for i, n in enumerate(takes) if _has(n, sym)), None)
        if at is None:
            at = len(takes)
            takes.append(holders[sym][0])
        sizes[sym] = SizeInput(at, SizeSource(takes[at].spec.shape.index(sym)), 0)
    graph = Graph("aten")
    copies: dict[Node, Node] = {}
    for node in takes:
        copies[node] = Node("placeholder", node.name, (), {}, node.name, node.spec, node.line, node.source)
    for node in stretch:
        args, kwargs = (map_nodes(a, copies.__getitem__) for a in (node.args, node.kwargs))
        copies[node] = replace(node, args=args, kwargs=kwargs)
        if node.op == "get_attr":
            graph.constants[node.target] = whole.constants[node.target]
    results = tuple(copies[n] for n in gives)
    output = Node("output", "output", (results,), {}, "output", tuple(n.spec for n in results))
    graph.nodes = [*copies.values(), output]
    return graph, takes, sizes


def _item(node: Node, index: int) -> Node:
    name = f"{node.name}_{index}"
    return Node("call_function", operator.getitem, (node, index), {}, name, node.spec[index])


def _writes(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and bool(effects(node.target).writes)


def _has(node: Node, sym: Sym) -> bool:
    return isinstance(node.spec, TensorSpec) and sym in node.spec.shape


def _run(steps: Iterable[_Step], run: Run) -> None:
    for step in steps:
        step.run(run)
        for node in step.done:
            del run.made[node]


def _free_early(steps: Sequence[_Step], last: int, kept: set[Node | None]) -> None:
    """Each step drops what no later one reads."""
    seen: set[Node | None] = set(kept)
    for step in reversed(steps):
        if isinstance(step, _Part):
            touched = [*step.takes, *step.gives]
        elif isinstance(step, _Given):
            touched = [step.node, *step.items, *argument_nodes(step.node)]
        else:
            touched = []
        step.done = [n for n in dict.fromkeys(touched) if n not in seen]
        seen.update(touched)
