"""The backward for undefined tangents, which stand for zeros: it computes nothing from them.

Autograd passes an undefined tangent to a node for an output that was not differentiated. A value that depends on no
defined tangent is zero: gradients are linear in tangents, and eager's nodes compute nothing from undefined gradients,
whatever operators their formulas use. Where other operands depend on defined tangents, zeros propagate through operators
that are linear in them. A gradient that stays zero to the end is None, as eager's would be, also beside infinite factors.
Zeros computed from a defined tangent, as for an overwritten value, are a gradient: added to an undefined one they stay one.
Any other operator reads a tensor of zeros.
"""

from __future__ import annotations

import operator
from typing import Any

from smelt.autograd.recompute_classes import class_of
from smelt.autograd.recompute_formulas import layout
from smelt.errors import NeedsFixedSize
from smelt.graph.graph_passes import eliminate_dead, extract, has_effect, stays_in_backward
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes
from smelt.graph.operator_effects import effects
from smelt.graph.tensor_specs import make_spec
from smelt.ops.linearity import is_zero_constant, linear_in
from smelt.ops.node_builders import FULL, MUL
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import row
from smelt.ops.result_specs import result_spec
from smelt.ops.symbolic_rules import STRIDED
from smelt.rewrites.graph_rewriter import GraphRewriter
from smelt.shapes.expr import bounds, extent, free_syms
from smelt.torch_private import OpOverload

_SIGNS: dict[object, int] = {operator.add: 1, operator.sub: -1}  # of the second operand of a sum


def without_tangents(backward: Graph, undefined: frozenset[int]) -> Graph:
    """`backward` without the placeholders of the tangents `undefined` (0 is `tangents_1`), which are zero."""
    return _Zeros(backward).run({f"tangents_{k + 1}" for k in undefined}) if undefined else backward


def without_gradients(backward: Graph, omitted: frozenset[int]) -> Graph:
    """`backward` without the gradients `omitted`, which are None: nothing is computed for them alone."""
    if not omitted:
        return backward
    gradients = [None if i in omitted else n for i, n in enumerate(backward.output.args[0])]
    order = [n for n in backward.nodes[:-1] if n.op != "placeholder"]
    graph = extract(backward, backward.placeholders, order, gradients)
    eliminate_dead(graph)
    return graph


class _Zeros(GraphRewriter):
    """`values`: node of the old graph -> its copy, or None for a value that is zero."""

    def __init__(self, backward: Graph) -> None:
        super().__init__(backward, "zero")
        self.values: dict[Node, Node | None] = {}
        self.defined: set[Node] = set()  # of the old graph: computed from defined tangents
        self.zeros: dict[Node, Node] = {}  # zero value -> a node that holds zeros

    def run(self, undefined: set[str]) -> Graph:
        for node in self.original.nodes[:-1]:
            if self.at(node).op == "placeholder" and node.name in undefined:
                self.values[node] = None
            elif node.op == "call_function" and self._reads_zero(node):
                self.values[node] = self._simplified(node)
            else:
                self.values[node] = self.copy(node, self._tensor)
            if self.values[node] is not None and self._depends_on_tangents(node):
                self.defined.add(node)
        results = tuple(None if n is None else self.values[n] for n in self.original.output.args[0])
        specs = tuple(None if n is None else n.spec for n in results)
        self.write(self.original.output, args=(results,), spec=specs)
        graph = self.finish().graph
        run = {
            self.values[n] for n in self.original.nodes if stays_in_backward(n) and not self._reads_zero(n)
        }
        # Also removes nodes that the original does not read.
        eliminate_dead(graph, lambda n: n in run or has_effect(n))
        return graph

    def _is_zero(self, value: Any) -> bool:
        """Whether an argument is known to be zero."""
        if isinstance(value, Node):
            return self.values[value] is None or is_zero_constant(value)
        if isinstance(value, (list, tuple)):
            return all(map(self._is_zero, value))
        return value is None or (isinstance(value, (int, float)) and value == 0)

    def _reads_zero(self, node: Node) -> bool:
        return any(self.values[argument] is None for argument in argument_nodes(node))

    def _simplified(self, node: Node) -> Node | None:
        if node.target is operator.getitem:
            return None
        if has_effect(node):
            return self.copy(node, self._tensor)
        if self.defined.isdisjoint(argument_nodes(node)) and class_of(node) is not Class.CREATION:
            return None
        if not isinstance(node.target, OpOverload):
            return self.copy(node, self._tensor)
        if row(node.target).on_numbers in _SIGNS and not self.defined.isdisjoint(argument_nodes(node)):
            return self._other_operand(node) or self.copy(node, self._tensor)
        does = effects(node.target)
        for names in linear_in(node.target, does):
            if all(self._is_zero(does.argument(name, node.args, node.kwargs)) for name in names):
                return None
        return self._other_operand(node) or self.copy(node, self._tensor)

    def _other_operand(self, node: Node) -> Node | None:
        """The remaining operand of a sum with one zero operand, with the layout of the sum; None if it is not just the
        other operand."""
        sign = _SIGNS.get(row(node.target).on_numbers)
        if sign is None or not all(isinstance(a, Node) for a in node.args):
            return None
        left, right = node.args
        operand = right if self.values[left] is None else left
        value, factor = self.values[operand], 1 if operand is left else sign * node.kwargs.get("alpha", 1)
        if value is None or layout(value.spec) != layout(node.spec):
            return None
        if factor == 1:
            return value
        return self.emit(MUL, (value, factor), {}, node.spec)

    def _depends_on_tangents(self, node: Node) -> bool:
        if node.op == "placeholder":
            return node.name.startswith("tangents_")
        return not self.defined.isdisjoint(argument_nodes(node))

    # ---- nodes

    def _tensor(self, argument: Node) -> Node:
        """The copy of an argument, or a tensor of zeros."""
        value = self.values[argument] or self.zeros.get(argument)
        if value is None:
            value = self.zeros[argument] = self._zeros_tensor(argument.spec)
        return value

    def _zeros_tensor(self, spec: TensorSpec) -> Node:
        """A tensor of zeros with these strides."""
        options = {"dtype": spec.dtype, "device": spec.device}
        dense = result_spec(FULL, (list(spec.shape), 0), options)
        if dense.stride == spec.stride:
            return self.emit(FULL, (list(spec.shape), 0), options, dense)
        for size in spec.shape:
            if not isinstance(size, int) and bounds(size)[0] < 1:
                raise NeedsFixedSize(f"zeros of {size} elements, which may be none", free_syms(size))
        length = extent(spec.shape, spec.stride)
        flat = make_spec((length,), (1,), spec.dtype, spec.device)
        base = self.emit(FULL, ([length], 0), options, flat)
        shape, stride = list(spec.shape), list(spec.stride)
        laid_out = make_spec(spec.shape, spec.stride, spec.dtype, spec.device)
        return self.emit(STRIDED, (base, shape, stride), {}, laid_out)
