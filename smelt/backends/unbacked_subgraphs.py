"""Graphs with unbacked sizes, split at the operators that produce such sizes.

    step := subgraph | size producer | number

A subgraph compiles as a graph of its own. If it has symbols, it compiles for all sizes, each of which is a size of one of
its inputs. A size producer is an operator whose result has an unbacked size; it runs eagerly between subgraphs. When a size
is known, the conditions that the graph assumes about it are checked. Inputs are mutated in the last subgraph only, so that
the original function can take over the call until then.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.errors import NeedsFixedSize, OtherSizes
from smelt.graph import torch_settings
from smelt.graph.free_symbols import symbols_in
from smelt.graph.graph_callable import Compiled
from smelt.graph.graph_passes import extract
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes, map_nodes
from smelt.graph.operator_effects import effects
from smelt.graph.subgraphs import has_kernels
from smelt.graph.tensor_specs import empty_like_spec
from smelt.graph.unbacked_sizes import unbacked_sizes_of
from smelt.shapes.expr import Expression, Sym, Values, contiguous_stride, evaluate, leaves
from smelt.shapes.substitute import substitute
from smelt.torch_private import OpOverload
from smelt.tracing.fake.returned_views import allow_inplace_writes
from smelt.tracing.record.traced import SizeInput, Traced
from smelt.tracing.symbolic.symbolic_layouts import SizeSource
from smelt.tracing.symbolic.unbacked_numbers import Condition, NumberCondition

AnyCondition = Condition | NumberCondition
# Makes a subgraph callable; the mapping says which input has the size of each of its symbols.
CompileSubgraph = Callable[[Graph, Mapping[Sym, SizeInput]], Compiled]

_CPU = torch.device("cpu")
_MAX_FAILURES = 8  # calls in succession whose sizes the graph does not accept
_RETRY_INTERVAL = 16  # calls


@dataclass
class Run:
    """The state of one call: the values of nodes, and the sizes of symbols."""

    env: dict[Node, Any]
    values: dict[Sym, int]


@dataclass
class _Subgraph:
    """Nodes that compile together. `dead`: the nodes that no later step reads."""

    inputs: list[Node]
    outputs: list[Node]
    call: Compiled
    dead: list[Node] = field(default_factory=list)

    @property
    def nodes(self) -> list[Node]:
        return [*self.inputs, *self.outputs]

    def run(self, run: Run) -> None:
        env = run.env
        for node, value in zip(self.outputs, self.call(tuple([env[n] for n in self.inputs]))):
            env[node] = value


@dataclass
class _SizeProducer:
    """An operator with unbacked result sizes.

    Args:
        items: the nodes that select one of several results.
        sources: each size, with the node and the dimension that has it.
        conditions: what the graph assumes about sizes that are known from here on.
        small: the sizes below a symbol's lower bound that the graph accepts.
    """

    node: Node
    items: list[Node]
    sources: list[tuple[Sym, Node, int]]
    conditions: list[AnyCondition]
    small: frozenset[int]
    dead: list[Node] = field(default_factory=list)

    @property
    def nodes(self) -> list[Node]:
        return [self.node, *self.items, *argument_nodes(self.node)]

    def run(self, run: Run) -> None:
        env, values, node = run.env, run.values, self.node
        args, kwargs = (map_nodes(a, env.__getitem__) for a in (node.args, node.kwargs))
        with torch_settings.beneath_autograd():
            result = env[node] = node.target(*args, **kwargs)
            for item in self.items:
                env[item] = result[item.args[1]]
            for sym, holder, dim in self.sources:
                size = values[sym] = env[holder].shape[dim]
                if size < sym.lo and size not in self.small:
                    raise OtherSizes(f"smelt: a graph for {sym} >= {sym.lo} was called with {size}")
            _check(self.conditions, values)
            for holder in self.items or [node]:
                env[holder] = _laid_out(env[holder], holder.spec, values)


@dataclass
class _Number:
    """A Python number that is computed from sizes."""

    node: Node
    expression: Expression
    dead: list[Node] = field(default_factory=list)
    nodes: tuple[Node, ...] = ()

    def run(self, run: Run) -> None:
        run.env[self.node] = evaluate(self.expression, run.values)


_Step = _Subgraph | _SizeProducer | _Number
_Segment = list[Node]  # the nodes of a subgraph that is not compiled yet


def _check(conditions: Iterable[AnyCondition], values: Values) -> None:
    for condition in conditions:
        if not condition.holds(values):
            sizes = ", ".join(f"{s} = {values[s]}" for s in sorted(condition.symbols, key=str))
            raise OtherSizes(f"smelt: a graph for {condition} was called with {sizes}")


def _laid_out(tensor: torch.Tensor, spec: TensorSpec, values: Values) -> torch.Tensor:
    """The tensor with the strides that the graph assumes."""
    if spec.stride == contiguous_stride(spec.shape) and tensor.is_contiguous():
        return tensor
    if tensor.stride() == substitute(spec.stride, values) or not tensor.numel():
        return tensor
    return empty_like_spec(substitute(spec, values), tensor.device).copy_(tensor)


def run_in_parts(traced: Traced, compile_subgraph: CompileSubgraph) -> Compiled:
    """Runs the aten graph of `traced`, which needs no gradients, split. Raises NeedsFixedSize where it cannot be."""
    check_divisible(traced)
    split = SplitGraph(traced, traced.aten_graph, compile_subgraph)

    def call(tensors: tuple[Any, ...]) -> Sequence[Any]:
        results = split.finish(split.start(tensors))
        return allow_inplace_writes(results, tensors) if torch.is_grad_enabled() else results

    return call


def devices_of(graph: Graph) -> frozenset[torch.device]:
    """The devices of the graph's tensors."""
    specs = (node.spec for node in graph)
    return frozenset(
        s.device
        for spec in specs
        for s in (spec if isinstance(spec, tuple) else (spec,))
        if isinstance(s, TensorSpec)
    )


def check_divisible(traced: Traced) -> None:
    """Raise NeedsFixedSize for graphs that are not split at unbacked sizes."""
    if devices_of(traced.aten_graph) != {_CPU} or has_kernels(traced.aten_graph):
        raise NeedsFixedSize("kernels of the program's, or a GPU", frozenset())


class SplitGraph:
    """A graph split at its unbacked sizes. `start` runs it until all sizes are known, `finish` runs the remainder."""

    def __init__(self, traced: Traced, graph: Graph, compile_subgraph: CompileSubgraph) -> None:
        assert traced.unbacked is not None
        self._graph = graph
        self._sizes = traced.sizes
        self._small = traced.unbacked.small
        self._first_conditions: list[AnyCondition] = []
        self._failures = self._skipped = 0  # successive calls
        placeholders = graph.placeholders
        n_numbers = len(traced.unbacked.numbers)
        self.inputs = placeholders[: len(placeholders) - n_numbers]
        self.numbers = placeholders[len(self.inputs) :]
        self._expressions = dict(zip(self.numbers, traced.unbacked.numbers, strict=True))
        self._outputs: tuple[Node | None, ...] = graph.output.args[0]
        steps = self._split(traced.unbacked.conditions, compile_subgraph)
        last = max((i for i, s in enumerate(steps) if not isinstance(s, _Subgraph)), default=-1)
        _free_early(steps, {*self._outputs, *self.numbers})
        self._start, self._finish = steps[: last + 1], steps[last + 1 :]
        produced = {s: None for p in steps if isinstance(p, _SizeProducer) for s, _, _ in p.sources}
        self.symbols = tuple({**self._sizes, **produced})

    def start(self, inputs: Sequence[Any]) -> Run:
        """Runs the steps before the last size is known. Raises OtherSizes where the graph does not accept the sizes; after
        many such calls in succession, it raises at once in most calls."""
        if self._failures > _MAX_FAILURES:
            self._skipped += 1
            if self._skipped % _RETRY_INTERVAL:
                raise OtherSizes("smelt: a graph was not for the sizes of the calls before")
        try:
            run = self._run_start(inputs)
        except OtherSizes:
            self._failures += 1
            raise
        self._failures = 0
        return run

    def _run_start(self, inputs: Sequence[Any]) -> Run:
        values = {sym: s.source.read(inputs[s.input]) for sym, s in self._sizes.items()}
        _check(self._first_conditions, values)
        run = Run(dict(zip(self.inputs, inputs)), values)
        _run(self._start, run)
        return run

    def numbers_of(self, run: Run) -> list[Any]:
        """The numbers, computed from sizes, that are arguments of operators."""
        return [run.env[node] for node in self.numbers]

    def finish(self, run: Run) -> tuple[Any, ...]:
        """Runs the remainder. Returns the outputs of the graph."""
        _run(self._finish, run)
        return tuple([None if n is None else run.env[n] for n in self._outputs])

    # ---- splitting

    def _split(self, conditions: Sequence[AnyCondition], compile_subgraph: CompileSubgraph) -> list[_Step]:
        graph = self._graph
        holders = _Holders(graph.placeholders)
        known = set(self._sizes)
        open_conditions = list(conditions)
        open_numbers = list(self.numbers)
        segments: list[_Segment | _SizeProducer | _Number] = [[]]
        items = {n: n.args[0] for n in graph if n.target is operator.getitem and unbacked_sizes_of(n.args[0])}

        def resolved() -> list[AnyCondition]:
            """The open conditions whose sizes are all known now."""
            conditions = [c for c in open_conditions if c.symbols <= known]
            open_conditions[:] = [c for c in open_conditions if not c.symbols <= known]
            return conditions

        self._first_conditions = resolved()
        for node in graph.nodes:
            if node.op in ("placeholder", "output") or node in items:
                continue
            sizes = unbacked_sizes_of(node)
            if sizes and any(_mutates(n) for s in segments if isinstance(s, list) for n in s):
                raise NeedsFixedSize("something is written before a size is known", frozenset())
            if not sizes:
                segments[-1].append(node)  # type: ignore[union-attr]
                continue
            results = [item for item, source in items.items() if source is node]
            for holder in results or [node]:
                holders.add(holder)
            if not all(sym in holders for sym in sizes):  # no node reads the results that have them
                results = [_item(node, index) for index in range(len(node.spec))]
                for holder in results:
                    holders.add(holder)
            known |= sizes
            sources = [(sym, *holders[sym]) for sym in sorted(sizes, key=str)]
            segments.append(_SizeProducer(node, results, sources, resolved(), self._small))
            for number in list(open_numbers):
                if {*leaves(self._expressions[number])} <= known:
                    open_numbers.remove(number)
                    segments.append(_Number(number, self._expressions[number]))
            segments.append([])
        if open_conditions or open_numbers:
            raise NeedsFixedSize("a size is not known when the graph has run", frozenset())
        return self._compiled([s for s in segments if s != []], holders, compile_subgraph)

    def _compiled(
        self,
        segments: Sequence[_Segment | _SizeProducer | _Number],
        holders: _Holders,
        compile_subgraph: CompileSubgraph,
    ) -> list[_Step]:
        read_later: list[set[Node]] = []  # the nodes that steps after each segment read, last segment first
        live = {n for n in self._outputs if n is not None}
        for segment in reversed(segments):
            read_later.append(set(live))
            if isinstance(segment, list):
                live.update(a for n in segment for a in argument_nodes(n))
            elif isinstance(segment, _SizeProducer):
                live.update(argument_nodes(segment.node))
        steps: list[_Step] = []
        for segment, later in zip(segments, reversed(read_later)):
            if not isinstance(segment, list):
                steps.append(segment)
                continue
            outputs = [n for n in segment if n in later]
            graph, inputs, sizes = _extract(self._graph, segment, outputs, holders)
            steps.append(_Subgraph(inputs, outputs, compile_subgraph(graph, sizes)))
            for node in outputs:
                holders.add(node)
        return steps


class _Holders:
    """For each symbol, a node and the dimension of it that has that size."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._holders: dict[Sym, tuple[Node, int]] = {}
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        if isinstance(node.spec, TensorSpec):
            for dim, size in enumerate(node.spec.shape):
                if isinstance(size, Sym):
                    self._holders.setdefault(size, (node, dim))

    def __contains__(self, sym: Sym) -> bool:
        return sym in self._holders

    def __getitem__(self, sym: Sym) -> tuple[Node, int]:
        if sym not in self._holders:
            raise NeedsFixedSize(f"{sym} is the size of no tensor", frozenset((sym,)))
        return self._holders[sym]


def _extract(
    graph: Graph, segment: _Segment, outputs: Sequence[Node], holders: _Holders
) -> tuple[Graph, list[Node], dict[Sym, SizeInput]]:
    """The subgraph of a segment, its inputs, and the input that has the size of each of its symbols."""
    inside = set(segment)
    inputs = list(dict.fromkeys(a for n in segment for a in argument_nodes(n) if a not in inside))
    symbols = dict.fromkeys(symbols_in([*segment, *inputs]))
    sizes: dict[Sym, SizeInput] = {}
    for sym in symbols:
        index = next((i for i, n in enumerate(inputs) if _has(n, sym)), None)
        if index is None:
            index = len(inputs)
            inputs.append(holders[sym][0])
        sizes[sym] = SizeInput(index, SizeSource(inputs[index].spec.shape.index(sym)), 0)
    return extract(graph, inputs, segment, outputs), inputs, sizes


def _item(node: Node, index: int) -> Node:
    name = f"{node.name}_{index}"
    return Node("call_function", operator.getitem, (node, index), {}, name, node.spec[index])


def _mutates(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and bool(effects(node.target).writes)


def _has(node: Node, sym: Sym) -> bool:
    return isinstance(node.spec, TensorSpec) and sym in node.spec.shape


def _run(steps: Iterable[_Step], run: Run) -> None:
    for step in steps:
        step.run(run)
        for node in step.dead:
            del run.env[node]


def _free_early(steps: Sequence[_Step], live: set[Node | None]) -> None:
    """Each step drops the nodes that no later step reads. `live`: the nodes that the caller reads."""
    read: set[Node | None] = set(live)
    for step in reversed(steps):
        step.dead = [n for n in dict.fromkeys(step.nodes) if n not in read]
        read.update(step.nodes)
