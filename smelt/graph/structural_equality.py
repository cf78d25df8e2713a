"""Structural equality of two graphs for concrete sizes: one was recorded for any sizes, the other for these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from smelt.graph.ir import Graph, Node, TensorSpec
from smelt.shapes.expr import Expr, Size, Sym, subs

Values = Mapping[Sym | Node, Size]  # of symbols, and of placeholders of numbers that are sizes


def structurally_equal(graph: Graph, other: Graph, values: Values, others: Values) -> bool:
    """Whether the nodes are the same, with the same arguments and results once the symbols and number inputs of each
    graph take their values. Remaining symbols and constants must be equal. Strides are ignored: tensors of zero or one
    rows may have any."""
    pairs: dict[Node, Node] = {}
    nodes, others_nodes = (
        [n for n in g if n not in known] for g, known in ((graph, values), (other, others))
    )
    if len(nodes) != len(others_nodes) or graph.constants.keys() != other.constants.keys():
        return False
    if any(not torch.equal(t, other.constants[name]) for name, t in graph.constants.items()):
        return False
    same = _Same(pairs, values, others)
    for a, b in zip(nodes, others_nodes):
        if a.op != b.op or (a.op != "placeholder" and a.target != b.target):
            return False
        if not (same(a.args, b.args) and same(a.kwargs, b.kwargs) and same(a.spec, b.spec)):
            return False
        pairs[a] = b
    return True


def _of_symbols(values: Values) -> dict[Sym, Size]:
    return {sym: size for sym, size in values.items() if isinstance(sym, Sym)}


class _Same:
    def __init__(self, pairs: Mapping[Node, Node], values: Values, others: Values) -> None:
        self._pairs, self._known, self._others_known = pairs, values, others
        self._values, self._others = _of_symbols(values), _of_symbols(others)

    def __call__(self, a: Any, b: Any) -> bool:
        a = self._known.get(a, a) if isinstance(a, Node) else a
        b = self._others_known.get(b, b) if isinstance(b, Node) else b
        if isinstance(a, Node):
            return self._pairs.get(a, a) is b
        if isinstance(a, (Expr, int)) and isinstance(b, (Expr, int)) and bool not in (type(a), type(b)):
            return bool(subs(a, self._values) == subs(b, self._others))
        if isinstance(a, TensorSpec):
            facts = isinstance(b, TensorSpec) and (a.dtype, a.device, a.requires_grad)
            return facts == (b.dtype, b.device, b.requires_grad) and self(a.shape, b.shape)
        if type(a) is not type(b):
            return False
        if isinstance(a, (tuple, list)):
            return len(a) == len(b) and all(map(self, a, b))
        if isinstance(a, dict):
            return list(a) == list(b) and all(self(a[k], b[k]) for k in a)
        if is_dataclass(a):
            return all(self(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
        if isinstance(a, slice):
            return self((a.start, a.stop, a.step), (b.start, b.stop, b.step))
        return bool(a == b) or (a != a and b != b)


def same_for(a: Any, b: Any, values: Values, others: Values) -> bool:
    """The same comparison for values that hold sizes but no nodes."""
    return _Same({}, values, others)(a, b)
