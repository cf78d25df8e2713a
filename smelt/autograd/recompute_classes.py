"""What it means to run a node of the forward a second time, in the backward: its class, and the work it takes.

The registry of operators names the class of an ATen operator; where it does not, schema and tags say it.
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
    """What a node looks at: the argument whose memory its result shares. None for fresh results."""
    if node.op != "call_function" or class_of(node) is not Class.VIEW:
        return None
    source: Any = node.args[0]
    if node.target is operator.getitem:
        return view_source(source)
    does = effects(node.target)
    if does.view:  # `_unsafe_view` does not say so
        name = next(r.arg for r in does.results if r.kind == "view")
        source = does.argument(name, node.args, node.kwargs)
    return source if isinstance(source, Node) else None


def has_conj_neg_bit(node: Node) -> bool:
    """Whether the signs of what it shows are others than those in memory: it is a conjugate or negative that nobody has
    computed, or a view of one."""
    seen: Node | None = node
    while seen is not None and seen.target not in LAZY:
        seen = view_source(seen)
    return seen is not None


def work_of(node: Node, hints: Mapping[Sym, int]) -> int:
    """Simple operations that running the node again costs, where sizes are as `hints` say."""
    kind = class_of(node)
    sizes = [_numel(n.spec, hints) for n in (node, *argument_nodes(node))]
    if kind is Class.PRODUCT:
        return 2 * _product_work(sizes)
    return kind.work * max(sizes)


def _product_work(sizes: list[int]) -> int:
    """Multiplications. Of two matrices (n, k) and (k, m), n*k*m is the root of the product of the three sizes; for a
    batch, a convolution or attention this is their order of magnitude."""
    largest = sorted(sizes)[-3:]
    return math.isqrt(math.prod(largest))


def _numel(spec: Any, hints: Mapping[Sym, int]) -> int:
    if isinstance(spec, TensorSpec):
        count: int = evaluate(numel(spec.shape), hints)
        return count
    if isinstance(spec, tuple):
        return max((_numel(s, hints) for s in spec), default=0)
    return 1
