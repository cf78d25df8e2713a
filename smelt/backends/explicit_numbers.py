"""Torch-level graphs that read numbers from tensors themselves.

smelt's own backend splits a graph at its unbacked numbers (`unbacked_subgraphs.py`). A backend that runs or compiles calls
of torch receives one graph, as from torch.compile: `item()` nodes read the numbers, other nodes compute with them, and
`check_number` nodes check what the graph assumes, each as soon as its numbers are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx.node import has_side_effect

from smelt.errors import BackendError, NeedsFixedSize, OtherSizes
from smelt.graph.free_symbols import symbols_of_arguments
from smelt.graph.graph_callable import Compiled
from smelt.graph.ir import Graph, Line, Node, NumberSpec, OpKind, TensorSpec, free_name
from smelt.graph.pytree import map_leaves
from smelt.graph.unbacked_sizes import AS_SIZES, is_unbacked, sizes_tensor
from smelt.ops.node_builders import ASSERT_NUMBER
from smelt.shapes.expr import Expr, Expression, Size, Sym, free_syms
from smelt.shapes.number_operations import OPERATIONS, OPPOSITES, Number
from smelt.torch_private import is_tracing
from smelt.tracing.record.number_inputs import NumberInput
from smelt.tracing.record.traced import Traced
from smelt.tracing.symbolic.sym_nodes import Symbol
from smelt.tracing.symbolic.symbolic_layouts import ITSELF, SizeSource
from smelt.tracing.symbolic.unbacked_numbers import Condition, NumberCondition

_INT = NumberSpec(int)
_FAILED_CHECK = "smelt: a graph for numbers was called with others: not"

# The functions that accept torch's symbols, where those of Python compute plain numbers only.
_FOR_SYMBOLS: dict[str, Callable[..., Any]] = {
    "min": torch.sym_min,
    "max": torch.sym_max,
    "int": torch.sym_int,
    "float": torch.sym_float,
}


def check_number(holds: bool | torch.SymBool, condition: str) -> None:
    """Raise OtherSizes unless `holds`; for a symbol of torch's, assert it where the graph runs."""
    if is_tracing():
        raise BackendError("the backend traces a graph with the numbers that its example inputs hold")
    text = f"{_FAILED_CHECK} {condition}"
    if isinstance(holds, torch.SymBool):
        ASSERT_NUMBER(holds, text)
    elif not holds:
        raise OtherSizes(text)


has_side_effect(check_number)  # for backends that eliminate dead code


@dataclass
class ExplicitGraph:
    """`graph` takes the inputs of its trace, without the unbacked numbers. `symbols`: the unbacked number that a node reads.
    `results`: for each output of the trace, the index of the output of `graph`, or a list of those that are the sizes to
    return in one tensor. `numbers`: nodes or values of the requested numbers."""

    graph: Graph
    symbols: dict[Node, Sym] = field(default_factory=dict)
    results: list[int | list[int]] = field(default_factory=list)
    numbers: list[Any] = field(default_factory=list)

    def wrap(self, compiled: Compiled) -> Compiled:
        """The callable for the trace, from one for `graph`."""
        if not self.symbols:
            return compiled

        def call(tensors: tuple[Any, ...]) -> Sequence[Any]:
            try:
                outputs = compiled(tensors)
            except RuntimeError as error:
                if _FAILED_CHECK in str(error):
                    raise OtherSizes(str(error)) from None
                raise
            return [
                outputs[r] if isinstance(r, int) else sizes_tensor([outputs[i] for i in r])
                for r in self.results
            ]

        return call


def with_explicit_numbers(
    traced: Traced, computes: bool = False, requested: Sequence[Symbol] = ()
) -> ExplicitGraph:
    """The torch-level graph of `traced`. With `computes`, it computes the numbers that are its inputs from sizes of tensors,
    and those `requested`; other numbers are those of this call. Raises NeedsFixedSize where a number is not known when it is
    needed."""
    computed = traced.numbers if computes else ()
    plain = traced.unbacked is None and not computed and not requested
    if plain and not symbols_of_arguments(traced.torch_graph):
        return ExplicitGraph(traced.torch_graph)
    return _Builder(traced, computed, requested).build()


class _Builder:
    def __init__(self, traced: Traced, computed: Sequence[NumberInput], requested: Sequence[Symbol]) -> None:
        self._traced = traced
        self._requested = requested
        self._explicit = ExplicitGraph(Graph("torch"))
        self._explicit.graph.constants = traced.torch_graph.constants
        self._names = {node.name for node in traced.torch_graph}
        self._values: dict[Any, Any] = {}  # by symbol or expression: a node or a number
        self._copies: dict[Node, Any] = {}
        self._line: Line | None = None
        facts = traced.unbacked
        self._open = [] if facts is None else list(facts.conditions)
        self._unknown: set[Size] = set() if facts is None else set(facts.hints)
        self._placeholders = traced.torch_graph.placeholders
        expressions = () if facts is None else facts.numbers
        numbers = self._placeholders[len(self._placeholders) - len(expressions) :]
        self._expressions = dict(zip(numbers, expressions, strict=True))
        self._leaves: dict[Any, Size | Number] = {}
        for number in computed:
            self._expressions[number.nodes["torch"]] = number.symbol.expression
        for symbol in (*(number.symbol for number in computed), *requested):
            self._leaves.update(symbol.symbols.leaves())

    def build(self) -> ExplicitGraph:
        for node in self._traced.torch_graph:
            self._line = node.line
            if node.op == "output":
                self._add_output(node)
            elif node.target is AS_SIZES:
                for tensor, sym in zip(node.args[0], node.spec.shape[1:], strict=True):
                    self._define(sym, self._add("call_method", "item", (self._copy(tensor),), str(sym)))
            elif node not in self._expressions:
                self._add_copy(node)
        return self._explicit

    def _add_copy(self, node: Node) -> None:
        args, kwargs = map_leaves((node.args, node.kwargs), (Node, Expr), self._copy)
        copy = self._copies[node] = replace(node, args=args, kwargs=kwargs)
        self._explicit.graph.nodes.append(copy)
        for spec in (node.spec,) if isinstance(node.spec, TensorSpec) else ():
            for dim, size in enumerate(spec.shape):
                if isinstance(size, Sym) and size in self._unknown:
                    self._define(size, self._add("call_method", "size", (copy, dim), str(size)))

    def _add_output(self, output: Node) -> None:
        self._define_sizes_of_backward()
        self._explicit.numbers = [self._value(symbol.expression) for symbol in self._requested]
        if self._open:
            raise NeedsFixedSize("a size is not known when the graph has run", frozenset())
        graph_outputs: list[Node | None] = []
        for node in output.args[0]:
            first = len(graph_outputs)
            if node is not None and node.target is AS_SIZES:
                graph_outputs += [self._value(sym) for sym in node.spec.shape[1:]]
                self._explicit.results.append([*range(first, len(graph_outputs))])
            else:
                graph_outputs.append(None if node is None else self._copy(node))
                self._explicit.results.append(first)
        self._explicit.graph.nodes.append(replace(output, args=(tuple(graph_outputs),)))

    def _add(self, op: OpKind, target: Any, args: tuple[Any, ...], stem: str) -> Node:
        name = free_name(stem, self._names)
        node = Node(op, target, args, {}, name, _INT, self._line)
        self._explicit.graph.nodes.append(node)
        return node

    def _copy(self, leaf: Node | Size) -> Any:
        if not isinstance(leaf, Node):
            return self._value(leaf)
        return self._value(self._expressions[leaf]) if leaf in self._expressions else self._copies[leaf]

    # ---- numbers

    def _define(self, sym: Sym, node: Node) -> None:
        """`node` is the unbacked number `sym`. Adds the checks that need no other number."""
        if sym in self._values:
            return
        self._values[sym], self._explicit.symbols[node] = node, sym
        self._unknown.discard(sym)
        for op, text, bound in self._bounds(sym):
            self._add_check(op, node, bound, f"{sym} {text} {bound}")
        self._add_known_conditions()

    def _define_sizes_of_backward(self) -> None:
        """Compute the symbols that only operators of the backward read: each stands for a size that it must equal."""
        for condition in [c for c in self._open if isinstance(c, Condition) and c.op == "eq" and c.outcome]:
            sym = condition.a
            if sym in self._unknown and free_syms(condition.b).isdisjoint(self._unknown):
                self._values[sym] = self._value(condition.b)
                self._unknown.discard(sym)
        self._add_known_conditions()

    def _add_known_conditions(self) -> None:
        known = [c for c in self._open if c.symbols.isdisjoint(self._unknown)]
        self._open = [c for c in self._open if c not in known]
        for condition in known:
            self._add_condition(condition)

    def _bounds(self, sym: Sym) -> Iterator[tuple[str, str, int]]:
        assert self._traced.unbacked is not None
        small = self._traced.unbacked.small
        yield "ge", ">=", min(small, default=sym.lo)
        if 0 in small and 1 not in small:
            yield "ne", "!=", 1

    def _add_condition(self, condition: Condition | NumberCondition) -> None:
        if isinstance(condition, Condition):
            op, a, b = condition.op, self._value(condition.a), self._value(condition.b)
        else:
            op = condition.expression.op
            if op not in OPPOSITES:
                raise NeedsFixedSize(f"{condition} is no comparison", frozenset())
            a, b = map(self._value, condition.expression.args)
        self._add_check(op if condition.outcome else OPPOSITES[op], a, b, str(condition))

    def _add_check(self, op: str, a: Any, b: Any, text: str) -> None:
        holds = self._add("call_function", OPERATIONS[op].function, (a, b), op)
        self._add("call_function", check_number, (holds, text), "check")

    def _value(self, number: Size | Expression | float) -> Any:
        """The node of a number, or the number."""
        if isinstance(number, (int, float)):
            return number
        if number not in self._values:
            self._values[number] = self._compute(number)
        return self._values[number]

    def _compute(self, number: Expression) -> Any:
        if isinstance(number, Sym):
            if is_unbacked(number):
                raise NeedsFixedSize(f"{number} is needed before it is known", frozenset((number,)))
            return self._backed(number)
        if number.op == "leaf":
            return self._value(self._leaves.get(number.args[0], number.args[0]))
        if number.op == "const":
            return number.args[0]
        function = _FOR_SYMBOLS.get(number.op) or OPERATIONS[number.op].function
        return self._add("call_function", function, tuple(map(self._value, number.args)), number.op)

    def _backed(self, sym: Sym) -> Node:
        """The value of a symbol, from an input."""
        found = self._traced.sizes.get(sym)
        if found is None:
            raise NeedsFixedSize(f"{sym} is no size of an input of the graph", frozenset((sym,)))
        source: SizeSource = found.source
        node = self._copies[self._placeholders[found.input]]
        if source.dim != ITSELF:
            node = self._extent(node, source)
        if source.divisor == 1:
            return node
        op = "mod" if source.is_remainder else "floordiv"
        return self._add("call_function", OPERATIONS[op].function, (node, source.divisor), str(sym))

    def _extent(self, tensor: Node, source: SizeSource) -> Node:
        if source.over is None:
            return self._add("call_method", "size", (tensor, source.dim), "size")
        size, step, stride = (
            self._add("call_method", name, (tensor, dim), name)
            for name, dim in (("size", source.over), ("stride", source.over), ("stride", source.dim))
        )
        extent = self._add("call_function", OPERATIONS["mul"].function, (size, step), "extent")
        return self._add("call_function", OPERATIONS["sub"].function, (stride, extent), "gap")
