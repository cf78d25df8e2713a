"""torch.fx's graph, with a table that needs no library."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch.fx

from smelt.graph.graph_printer import columns, target_text

_INPLACE = frozenset(
    getattr(operator, name)
    for name in dir(operator)
    if name.startswith("i") and f"__{name}__" in dir(operator)
) - {operator.inv, operator.invert, operator.index, operator.is_, operator.is_not}


def _target_text(target: Any) -> str:
    if isinstance(target, str):
        return target
    unknown: dict[str, Any] = {}
    text = target_text(target, unknown)
    return f"{target.__module__}.{target.__name__}" if unknown and hasattr(target, "__name__") else text


def _is_impure(node: torch.fx.Node) -> bool:
    return _is_inplace(node) or node.is_impure()


def _is_inplace(node: torch.fx.Node) -> bool:
    if node.op == "call_module":
        module = node.graph.owning_module
        called = None if module is None else operator.attrgetter(str(node.target))(module)
        return getattr(called, "inplace", False) is True
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    by_name = (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
    return (
        by_name
        or node.target in _INPLACE
        or node.target is operator.setitem
        or node.kwargs.get("inplace") is True
        or node.kwargs.get("out") is not None
    )


class Graph(torch.fx.Graph):
    """`torch.fx.Graph`: nodes of six opcodes (placeholder, get_attr, call_function, call_method, call_module, output), which
    can be inserted, replaced, erased and printed."""

    def create_node(
        self,
        op: str,
        target: Any,
        args: Any = None,
        kwargs: Any = None,
        name: str | None = None,
        type_expr: Any = None,
    ) -> torch.fx.Node:
        """Append a node. Rename one for a module or attribute called `self`, which is a parameter of the generated code."""
        if op in ("call_module", "get_attr") and (name or target) == "self":
            name = "self_module"
        return super().create_node(op, target, args, kwargs, name, type_expr)

    def print_tabular(self) -> None:
        """Print one row per node."""
        rows: list[tuple[str, ...]] = [("opcode", "name", "target", "args", "kwargs")]
        rows += [
            tuple(map(str, (n.op, n.name, _target_text(n.target), n.args, n.kwargs))) for n in self.nodes
        ]
        print(columns(rows))

    def eliminate_dead_code(self, is_impure_node: Callable[[torch.fx.Node], bool] | None = None) -> bool:
        """Erase nodes without users; return whether there were any. Unlike torch.fx, keep calls that write in place, because
        another node may read what they wrote. `is_impure_node` selects other nodes to keep."""
        return super().eliminate_dead_code(is_impure_node or _is_impure)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Graph:
        return as_smelt_graph(super().__deepcopy__({} if memo is None else memo))


def as_smelt_graph(graph: torch.fx.Graph) -> Graph:
    """Give a graph of torch.fx's class smelt's class, in place; leave instances of subclasses. Return it."""
    if type(graph) is torch.fx.Graph:
        graph.__class__ = Graph
    return graph  # type: ignore[return-value]
