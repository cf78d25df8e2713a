"""Two operator sets that a graph can be lowered to, and the lowering.

    core    the operators that torch tags as core ATen, the set of torch.export's `run_decompositions`
    prims   torch's primitives (`torch.ops.prims`)

Both also have the operators without a decomposition: products, convolutions, sorting, random numbers.

smelt itself uses neither set: it lowers ATen operators to loops (`ops/`). The sets are for readers of graphs and for
backends that implement few operators. The decompositions are torch's (`torch._decomp`, `torch._refs`; PrimTorch): each
runs on fakes of a call's operands, and what it calls replaces the call, until only members of the set are left.

Symbolic sizes: each decomposition is recorded for three assignments of the size symbols (`graph/sample_sizes.py`). Integers
that differ between the three become the expression of the symbols that yields all three values.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from smelt.errors import NeedsFixedSize
from smelt.graph import torch_settings
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes, free_name
from smelt.graph.object_handles import handles_in
from smelt.graph.operator_effects import effects
from smelt.graph.pytree import leaves, map_leaves
from smelt.graph.sample_sizes import COUNT, Candidates, at, candidates_of, spec_at
from smelt.graph.tensor_specs import empty_like_spec, make_spec
from smelt.shapes.expr import Expr
from smelt.torch_private import OpOverload, decompositions
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.trace import Trace

log = logging.getLogger("smelt")

OperatorSet = Literal["core", "prims"]
SETS: tuple[OperatorSet, ...] = ("core", "prims")
VERSION = 1  # of both sets: raised when members or decompositions change

Decomposition = Callable[..., Any]


def lowered(graph: Graph, operators: OperatorSet) -> Graph:
    """A copy of the aten `graph` in operators of the set.

    A call stays as it is if its operator has no decomposition, draws random numbers or mutates an argument, or if the
    decomposition fails, returns another dtype, shape or layout, takes a number that changes from call to call, or uses
    integers that are no expressions of the size symbols.
    """
    return _Lowering(operators).of(graph)


def is_member(op: OpOverload, operators: OperatorSet) -> bool:
    """Whether `op` is an operator of the set, so that a graph in its operators may call it."""
    return _is_tagged(op, operators) or _decomposition(op, operators) is None


def _is_tagged(op: OpOverload, operators: OperatorSet) -> bool:
    return torch.Tag.core in op.tags if operators == "core" else op.namespace == "prims"


def _decomposition(op: OpOverload, operators: OperatorSet) -> Decomposition | None:
    """What computes `op` by operators that are nearer to the set."""
    found = decompositions(operators).get(op) or decompositions("prims").get(op)
    if found is None and op._can_decompose():
        return op.decompose
    return found


@dataclass
class _Lowering:
    operators: OperatorSet
    _cached: dict[Any, Graph | None] = field(default_factory=dict)

    def of(self, graph: Graph, within: tuple[OpOverload, ...] = ()) -> Graph:
        """`graph` lowered. `within`: the operators whose decomposition it is."""
        splice = _Splice(graph)
        for node in graph:
            expansion = self._expansion(node, within)
            if expansion is None:
                splice.keep(node)
            else:
                splice.expand(node, expansion)
        return splice.made

    def _expansion(self, node: Node, within: tuple[OpOverload, ...]) -> Graph | None:
        """The graph that replaces a call, with an input for each tensor among its arguments; None where the call stays."""
        op = node.target
        if node.op != "call_function" or not isinstance(op, OpOverload) or op in within:
            return None
        if _is_tagged(op, self.operators):
            return None
        found = _decomposition(op, self.operators)
        operands = [n.spec for n in argument_nodes(node)]
        if found is None or not effects(op).pure or not all(isinstance(s, TensorSpec) for s in operands):
            return None
        if handles_in((node.args, node.kwargs)):
            return None
        key = (op, _frozen((node.args, node.kwargs)), node.spec)
        if key not in self._cached:
            self._cached[key] = self._recorded(node, found, operands, (*within, op))
        return self._cached[key]

    def _recorded(
        self, node: Node, found: Decomposition, operands: list[TensorSpec], within: tuple[OpOverload, ...]
    ) -> Graph | None:
        sizes = leaves((node.args, node.kwargs), Expr)
        specs = [*operands, *leaves(node.spec, TensorSpec)]
        symbolic = bool(sizes) or any(
            isinstance(n, Expr) for spec in specs for n in (*spec.shape, *spec.stride)
        )
        try:
            graphs = [
                self.of(graph, within)
                for k in range(COUNT if symbolic else 1)
                if (graph := _record(node, found, k, self.operators)) is not None
            ]
            if not symbolic:
                return graphs[0] if graphs else None
            return _fit(graphs, candidates_of(specs, sizes)) if len(graphs) == COUNT else None
        except NeedsFixedSize as error:
            log.debug("smelt: %s stays: %s", node.target, error)
            return None


def _frozen(value: Any) -> Any:
    """A key for arguments: nodes by their specs."""
    if isinstance(value, Node):
        return "node", value.spec
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple((k, _frozen(v)) for k, v in value.items())
    return type(value), str(value) if isinstance(value, float) else value


# ------------------------------------------------------------------------------------------- recording a decomposition


def _record(node: Node, function: Decomposition, k: int, operators: OperatorSet) -> Graph | None:
    """What `function` calls for the arguments of `node` under assignment `k`, as a graph of an input for each operand. None
    where its results are others than those of the operator."""
    recorder = Trace()
    reals = [empty_like_spec(spec_at(n.spec, k), n.spec.device) for n in argument_nodes(node)]
    fakes: list[FakeTensor] = []

    def argument(leaf: Any) -> Any:
        if isinstance(leaf, Expr):
            return at(leaf, k)
        fakes.append(recorder.fake(reals[len(fakes)]))
        return fakes[-1]

    expected = [None if s is None else spec_at(s, k) for s in _results(node.spec)]
    try:
        with torch.no_grad(), torch_settings.beneath_autograd(), recorder:
            args, kwargs = map_leaves((node.args, node.kwargs), (Node, Expr), argument)
            results = _results(function(*args, **kwargs))
            if len(results) != len(expected):
                return None
            results = [
                _as(result, spec, fakes, node.target, operators) for result, spec in zip(results, expected)
            ]
            tensors = [r for r in results if r is not None]
        traced = recorder.finish(tensors)
    except Exception as error:  # torch's decompositions may raise; the call then stays
        log.debug("smelt: %s stays, as its decomposition failed: %r", node.target, error)
        return None
    finally:
        recorder.release_inputs()
    graph = traced.aten_graph
    foreign = operators == "core" and any(getattr(n.target, "namespace", "") == "prims" for n in graph)
    if traced.mutated or traced.sizes or traced.numbers or foreign:
        return None
    return _with_operands(graph, traced.inputs, fakes, results)


class _Differs(Exception):
    """A decomposition returns something else than its operator."""


def _results(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _as(
    result: Any,
    spec: TensorSpec | None,
    operands: Sequence[FakeTensor],
    op: OpOverload,
    operators: OperatorSet,
) -> Any:
    """A result in memory of its own, unless the operator returns views. Raises _Differs."""
    if spec is None:
        return None
    if not isinstance(result, FakeTensor) or result.dtype != spec.dtype or tuple(result.shape) != spec.shape:
        raise _Differs
    if not effects(op).shares_memory and any(result.storage_key == fake.storage_key for fake in operands):
        result = torch.ops.prims.clone(result) if operators == "prims" else result.clone()
    strides = zip(result.stride(), spec.stride, spec.shape)
    if any(a != b and n != 1 for a, b, n in strides) and 0 not in spec.shape:
        raise _Differs
    return result


def _with_operands(
    graph: Graph, inputs: Sequence[torch.Tensor], fakes: Sequence[torch.Tensor], results: Sequence[Any]
) -> Graph:
    """The graph with one input for each operand, in order, and None among its results where the operator returns none."""
    known = dict(zip(map(id, inputs), graph.placeholders))
    placeholders = [
        known.get(id(fake)) or Node("placeholder", f"unused_{i}", (), {}, f"unused_{i}")
        for i, fake in enumerate(fakes)
    ]
    outputs = iter(graph.output.args[0])
    graph.output.args = (tuple(None if r is None else next(outputs) for r in results),)
    graph.nodes[:] = [*placeholders, *(n for n in graph.nodes if n.op != "placeholder")]
    return graph


# ------------------------------------------------------------------------------------------------- symbolic sizes


def _fit(graphs: Sequence[Graph], candidates: Candidates) -> Graph | None:
    """The graph whose sizes have the values of these graphs under the assignments; None where there is no such graph."""
    first = graphs[0]
    if any(len(g.nodes) != len(first.nodes) or g.constants for g in graphs):
        return None
    position = [{node: i for i, node in enumerate(g)} for g in graphs]
    made = Graph(first.level)

    def merged(values: Sequence[Any]) -> Any:
        kinds = {type(v) for v in values}
        if len(kinds) > 1:
            raise NeedsFixedSize("a decomposition with other arguments for other sizes", frozenset())
        value = values[0]
        if isinstance(value, Node):
            index = {at[v] for at, v in zip(position, values)}
            if len(index) == 1:
                return made.nodes[index.pop()]
        elif isinstance(value, TensorSpec):
            parts = [merged([getattr(v, name) for v in values]) for name in ("shape", "stride", "offset")]
            return make_spec(parts[0], parts[1], value.dtype, value.device, parts[2])
        elif isinstance(value, (list, tuple)):
            if len({len(v) for v in values}) == 1:
                return type(value)(merged(column) for column in zip(*values))
        elif isinstance(value, dict):
            if len({tuple(v) for v in values}) == 1:
                return {key: merged([v[key] for v in values]) for key in value}
        elif all(v == value for v in values):
            return value
        elif type(value) in (int, float) and all(
            v == int(v) for v in values
        ):  # a float is a divisor, of a mean
            size = candidates.fit([int(v) for v in values])
            if size is not None:
                return size
        raise NeedsFixedSize("a decomposition that depends on sizes", frozenset())

    for nodes in zip(*graphs):
        node = nodes[0]
        if any(n.op != node.op or n.target != node.target for n in nodes):
            return None
        args, kwargs, spec = (
            merged([getattr(n, name) for n in nodes]) for name in ("args", "kwargs", "spec")
        )
        made.nodes.append(Node(node.op, node.target, args, kwargs, node.name, spec))
    return made


# ------------------------------------------------------------------------------------------------------- splicing


class _Splice:
    """A copy of a graph in which other graphs stand for some of its calls."""

    def __init__(self, graph: Graph) -> None:
        self.made = Graph(graph.level)
        self.made.constants = dict(graph.constants)
        self._names: set[str] = set(graph.constants) | {node.name for node in graph}
        self._value: dict[
            Node, Any
        ] = {}  # of a node of the old graph: its node, or the results that replace it

    def keep(self, node: Node) -> None:
        """Copy a node."""
        if node.target is operator.getitem and isinstance(self._value[node.args[0]], tuple):
            self._value[node] = self._value[node.args[0]][node.args[1]]
            return
        args, kwargs = map_leaves((node.args, node.kwargs), Node, self._value.__getitem__)
        self._add(node, args, kwargs, node.name, self._value)

    def expand(self, node: Node, graph: Graph) -> None:
        """Put `graph` in place of a call."""
        operands = [self._value[n] for n in argument_nodes(node)]
        inside: dict[Node, Any] = dict(zip(graph.placeholders, operands, strict=True))
        renamed: Mapping[str, str] = {key: free_name(key, self._names) for key in graph.constants}
        self.made.constants |= {renamed[key]: value for key, value in graph.constants.items()}
        for step in graph.nodes[len(operands) : -1]:
            args, kwargs = map_leaves((step.args, step.kwargs), Node, inside.__getitem__)
            new = self._add(step, args, kwargs, free_name(step.name, self._names), inside)
            new.target = renamed[step.target] if step.op == "get_attr" else step.target
            new.line, new.source = node.line, node.source
        results = tuple(None if r is None else inside[r] for r in graph.output.args[0])
        self._value[node] = results if isinstance(node.spec, (tuple, list)) else results[0]

    def _add(self, node: Node, args: Any, kwargs: Any, name: str, values: dict[Node, Any]) -> Node:
        new = Node(node.op, node.target, args, kwargs, name, node.spec, node.line, node.source)
        values[node] = new
        self.made.nodes.append(new)
        return new
