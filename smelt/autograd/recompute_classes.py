"""Recomputation of forward nodes in the backward: the class of an operator, and the work of a node.

The operator registry names the class of an ATen operator; otherwise its schema and tags decide.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from smelt.graph.conj_neg_bits import LAZY
from smelt.graph.ir import Node, TensorSpec, argument_nodes
from smelt.graph.operator_effects import effects
from smelt.ops.recompute_rules import Class, OperatorClass
from smelt.ops.registry import row
from smelt.shapes.expr import Sym, evaluate, numel
from smelt.torch_private import OpOverload


def class_of(node: Node) -> OperatorClass:
    """The class of an aten node; depends on its target alone, except for powers."""
    if node.op != "call_function":
        return Class.INPUT
    named = _class_of(node.target)
    return named if isinstance(named, OperatorClass) else named(node)


@cache
def _class_of(op: Any) -> OperatorClass | Callable[[Node], OperatorClass]:
    if op is operator.getitem:
        return Class.VIEW
    if not isinstance(op, OpOverload):
        return Class.OPAQUE
    does = effects(op)
    if does.random:
        return Class.RANDOM
    if does.writes:
        return Class.EFFECT
    if does.data_dependent or does.dynamic_shape:
        return Class.VALUE_DEPENDENT
    if op.namespace not in ("aten", "prims"):
        return Class.OPAQUE
    if does.view:
        return Class.VIEW
    return row(op).recompute or (Class.POINTWISE if torch.Tag.pointwise in op.tags else Class.OTHER)


def view_source(node: Node) -> Node | None:
    """The argument whose memory a view node's result shares. None for fresh results."""
    if node.op != "call_function" or class_of(node) is not Class.VIEW:
        return None
    source: Any = node.args[0]
    if node.target is operator.getitem:
        return view_source(source)
    does = effects(node.target)
    if does.view:  # `_unsafe_view` does not declare it
        name = next(r.arg for r in does.results if r.kind == "view")
        source = does.argument(name, node.args, node.kwargs)
    return source if isinstance(source, Node) else None


def has_conj_neg_bit(node: Node) -> bool:
    """Whether a node's values differ from memory by a pending conjugation or negation: it is a lazy conjugate or
    negative, or a view of one."""
    current: Node | None = node
    while current is not None and current.target not in LAZY:
        current = view_source(current)
    return current is not None


def work_of(node: Node, hints: Mapping[Sym, int]) -> int:
    """The number of simple operations that running the node again costs, at the sizes `hints`."""
    kind = class_of(node)
    sizes = [_numel(n.spec, hints) for n in (node, *argument_nodes(node))]
    if kind is Class.PRODUCT:
        return 2 * _product_work(sizes)
    return kind.work * max(sizes)


def _product_work(sizes: list[int]) -> int:
    """The number of multiplications. For two matrices (n, k) and (k, m), n*k*m is the root of the product of the three
    sizes; for a batch, a convolution or attention this is their order of magnitude."""
    largest = sorted(sizes)[-3:]
    return math.isqrt(math.prod(largest))


def _numel(spec: Any, hints: Mapping[Sym, int]) -> int:
    if isinstance(spec, TensorSpec):
        count: int = evaluate(numel(spec.shape), hints)
        return count
    if isinstance(spec, tuple):
        return max((_numel(s, hints) for s in spec), default=0)
    return 1
