"""Verification of the graph invariants in `smelt.graph.ir`."""

from __future__ import annotations

import keyword
import operator
from collections.abc import Iterable

from smelt.errors import VerificationError
from smelt.graph.free_symbols import dimensions, symbols_in
from smelt.graph.input_writes import WRITE_INPUT
from smelt.graph.ir import Graph, Node, argument_nodes
from smelt.graph.operator_effects import effects
from smelt.graph.unbacked_sizes import is_unbacked
from smelt.shapes.expr import Sym
from smelt.torch_private import OpOverload


def verify(graph: Graph, functional: bool = False, sizes: Iterable[Sym] = ()) -> None:
    """Raises VerificationError if an invariant does not hold. `functional`: only inputs are written, each by at most
    one `copy_`. `sizes`: symbols that are known without the graph's inputs, as a backward knows those of its forward.
    """
    _verify_shape(graph)
    defined: set[Node] = set()
    names: set[str] = set()
    for node in graph.nodes:
        _verify_name(node, names)
        for argument in argument_nodes(node):
            if argument not in defined:
                raise VerificationError(f"{node.name} uses {argument.name}, which does not stand before it")
        _verify_target(graph, node)
        defined.add(node)
    _verify_symbols(graph, sizes)
    if functional:
        _verify_functional(graph)


def _verify_shape(graph: Graph) -> None:
    kinds = [n.op for n in graph.nodes]
    if not kinds or kinds[-1] != "output" or kinds.count("output") != 1:
        raise VerificationError("a graph ends with its one output node")
    count = kinds.count("placeholder")
    if any(kind != "placeholder" for kind in kinds[:count]):
        raise VerificationError("placeholders come first")
    if not isinstance(graph.output.args[0], tuple):
        raise VerificationError("the output node takes one tuple")


def _verify_name(node: Node, names: set[str]) -> None:
    if not node.name.isidentifier() or keyword.iskeyword(node.name):
        raise VerificationError(f"{node.name!r} is no identifier")
    if node.name in names:
        raise VerificationError(f"two nodes are called {node.name}")
    names.add(node.name)


def _verify_target(graph: Graph, node: Node) -> None:
    if node.op == "get_attr" and node.target not in graph.constants:
        raise VerificationError(f"{node.name} reads the constant {node.target!r}, which the graph lacks")
    if node.op == "call_method" and not (node.args and isinstance(node.target, str)):
        raise VerificationError(f"{node.name}: a method call needs a name and an object")
    if node.op == "call_function":
        if not callable(node.target):
            raise VerificationError(f"{node.name}: {node.target!r} cannot be called")
        aten = isinstance(node.target, OpOverload) or node.target is operator.getitem
        if graph.level == "aten" and not aten:
            raise VerificationError(f"{node.name}: {node.target!r} is no ATen operator")


def _verify_symbols(graph: Graph, sizes: Iterable[Sym]) -> None:
    unbound = set(symbols_in(graph.nodes)) - dimensions(graph.placeholders).keys() - set(sizes)
    unbound = {sym for sym in unbound if not is_unbacked(sym)}  # the forward may have known it
    if unbound:
        raise VerificationError(f"{min(s.name for s in unbound)} is the size of no placeholder's dimension")


def _verify_functional(graph: Graph) -> None:
    written: set[Node] = set()
    for node in graph.nodes:
        if not isinstance(node.target, OpOverload) or not effects(node.target).writes:
            continue
        target = node.args[0] if node.args else None
        if not isinstance(target, Node) or target.op != "placeholder" or node.target is not WRITE_INPUT:
            raise VerificationError(f"{node.name}: {node.target} writes memory")
        if target in written:
            raise VerificationError(f"{node.name}: {target} is written twice")
        written.add(target)
