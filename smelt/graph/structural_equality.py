"""Structural equality of two graphs for concrete sizes: one was recorded for any sizes, the other for these.

The order of pure nodes does not matter, nor do operators that for these sizes return their argument: where a size is 1,
programs and torch leave out an `expand` or a copy (`contiguous`, `reshape`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from operator import getitem
from typing import Any

import torch

from smelt.graph.ir import Graph, Node, TensorSpec
from smelt.graph.operator_effects import effects
from smelt.shapes.expr import Expr, Size, Sym, subs
from smelt.torch_private import OpOverload

Nodes = Collection[Node]
Values = Mapping[Sym | Node, Size]  # of symbols, and of placeholders of numbers that are sizes


def structurally_equal(
    graph: Graph, other: Graph, values: Values, others: Values, *, parts: tuple[Nodes, Nodes] = ((), ())
) -> bool:
    """Whether the nodes are the same, with the same arguments and results once the symbols and number inputs of each graph
    take their values. Remaining symbols and constants must be equal. Nodes with effects (of a torch-level graph: all calls)
    have the same order, results share memory with each other and with inputs in the same way, and `parts` are the same
    nodes of both graphs. Strides are ignored: tensors of zero or one rows may have any."""
    if graph.constants.keys() != other.constants.keys():
        return False
    if any(not torch.equal(t, other.constants[name]) for name, t in graph.constants.items()):
        return False
    numbers: dict[Any, int] = {}
    one, two = (_Numbered(g, known, numbers) for g, known in ((graph, values), (other, others)))
    return (
        one.ordered == two.ordered
        and {*one.numbers.values()} == {*two.numbers.values()}
        and (one.results, one.shared) == (two.results, two.shared)
        and one.of(parts[0]) == two.of(parts[1])
    )


_aten = torch.ops.aten
_IDENTITIES = frozenset({_aten.clone.default, _aten.expand.default, "contiguous", "expand"})
# Operators that the shape of the result defines, with the name by which they are compared: after a copy `reshape` calls
# `_unsafe_view`, with all sizes, otherwise `view`.
_BY_SHAPE = dict.fromkeys((_aten.view.default, _aten._unsafe_view.default), _aten.view.default)
_BY_SHAPE[_aten.expand.default] = _aten.expand.default


class _Numbered:
    """The value numbers of a graph's nodes; equal nodes of graphs that share `numbers` have the same. `ordered`: those of
    nodes with effects. `results`: those of the outputs. `shared`: for each output the first one in the same memory, and
    the input whose memory that is."""

    def __init__(self, graph: Graph, known: Values, numbers: dict[Any, int]) -> None:
        self._known, self._values = known, _of_symbols(known)
        self.numbers: dict[Node, int] = {}
        self.ordered: list[int] = []
        memory: dict[Node, Node] = {}  # the node that allocates it
        for i, node in enumerate(n for n in graph if n not in known and n.op != "output"):
            memory[node] = memory.get(node.args[0], node) if _shares_memory(node) else node
            if self._is_identity(node):
                self.numbers[node] = self.numbers[node.args[0]]
                continue
            target = i if node.op == "placeholder" else _BY_SHAPE.get(node.target, node.target)
            args = node.args[:1] if node.target in _BY_SHAPE else node.args
            # A pure node reads what the ordered nodes before it left, so that their count belongs to it.
            key = node.op, target, self._key((args, node.kwargs, node.spec)), len(self.ordered)
            self.numbers[node] = numbers.setdefault(key, len(numbers))
            if _is_ordered(node):
                self.ordered.append(self.numbers[node])
        outputs = graph.output.args[0]
        self.results = self._key(outputs)
        storages = [memory.get(out) if isinstance(out, Node) else None for out in outputs]
        self.shared = [
            (storages.index(m), self.numbers[m] if m is not None and m.op == "placeholder" else None)
            for m in storages
        ]

    def of(self, nodes: Nodes) -> set[int]:
        """The numbers of these nodes; number inputs have none."""
        return {self.numbers[node] for node in nodes if node in self.numbers}

    def _is_identity(self, node: Node) -> bool:
        if node.target not in _IDENTITIES or not isinstance(node.args[0], Node):
            return False
        a, b = node.spec, node.args[0].spec
        return isinstance(a, TensorSpec) and isinstance(b, TensorSpec) and self._key(a) == self._key(b)

    def _key(self, x: Any) -> Any:
        """A hashable form, in which symbols have their values and nodes their numbers."""
        x = self._known.get(x, x) if isinstance(x, Node) else x
        if isinstance(x, Node):
            return Node, self.numbers.get(x, x.name)  # by name: a tangent that no node reads
        if isinstance(x, Expr) or type(x) is int:
            return int, subs(x, self._values)
        if isinstance(x, TensorSpec):
            return x.dtype, x.device, x.requires_grad, self._key(x.shape)
        if isinstance(x, (tuple, list)):
            # A torch.Size holds no symbols, so that a shape with symbols is a tuple.
            return tuple if type(x) is torch.Size else type(x), *map(self._key, x)
        if isinstance(x, dict):
            return dict, *((k, self._key(v)) for k, v in x.items())
        if isinstance(x, slice):
            return slice, *map(self._key, (x.start, x.stop, x.step))
        if is_dataclass(x) and not isinstance(x, type):
            return type(x), *(self._key(getattr(x, f.name)) for f in fields(x))
        if isinstance(x, (float, complex)):
            return type(x), repr(x)
        return type(x), x


def _is_ordered(node: Node) -> bool:
    if node.op in ("placeholder", "get_attr") or node.target is getitem:
        return False
    return not isinstance(node.target, OpOverload) or not effects(node.target).pure


def _shares_memory(node: Node) -> bool:
    """Whether an aten-level node returns memory of its first argument."""
    if not node.args or not isinstance(node.args[0], Node) or node.op != "call_function":
        return False
    if node.target is getitem:
        return _shares_memory(node.args[0])
    return isinstance(node.target, OpOverload) and effects(node.target).shares_memory


def _of_symbols(values: Values) -> dict[Sym, Size]:
    return {sym: size for sym, size in values.items() if isinstance(sym, Sym)}


class _Same:
    def __init__(self, values: Values, others: Values) -> None:
        self._values, self._others = _of_symbols(values), _of_symbols(others)

    def __call__(self, a: Any, b: Any) -> bool:
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
    return _Same(values, others)(a, b)
