"""Passes over graphs: dead code, common subexpressions.

Passes that modify their argument are for stages that build a graph (`smelt.tracing.record.finish_trace`,
`smelt.tracing.backward.joint_builder`, `smelt.autograd`): no other code refers to it before the stage ends.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from smelt.graph import torch_settings
from smelt.graph.ir import Graph, Node, argument_nodes, map_nodes
from smelt.graph.operator_effects import effects, is_effectful, is_programs
from smelt.graph.unbacked_sizes import unbacked_sizes_of
from smelt.graph.user_kernel_calls import RUN_KERNEL_FUNCTIONAL
from smelt.torch_private import OpOverload


def has_effect(node: Node) -> bool:
    """Whether a node must stay although it has no readers (`is_effectful`)."""
    return is_effectful(node.target)


def stays_in_backward(node: Node) -> bool:
    """Whether a node of a backward must stay although it has no readers: it has an effect, or its operator is not torch's.
    The program's own code calls such an operator in eager, too; torch's operators may belong to gradients that eager does
    not compute."""
    return has_effect(node) or is_programs(node.target)


def changes_state(node: Node) -> bool:
    """Whether a torch-level node changes settings of torch or autograd without an operator."""
    return node.target in torch_settings.CHANGES or (
        node.op == "call_method" and node.target in ("requires_grad_", "retain_grad", "detach_")
    )


def eliminate_dead(graph: Graph, keep: Callable[[Node], bool] = has_effect) -> int:
    """Remove unused nodes for which `keep` is False, then unused constants; return the number of nodes."""
    used: set[Node] = set()
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node in used or node.op in ("placeholder", "output") or keep(node):
            kept.append(node)
            used.update(argument_nodes(node))
    removed = len(graph.nodes) - len(kept)
    graph.nodes[:] = kept[::-1]
    names = {n.target for n in graph.nodes if n.op == "get_attr"}
    for name in graph.constants.keys() - names:
        del graph.constants[name]
    return removed


def eliminate_detach(graph: Graph, everywhere: bool = False) -> int:
    """Remove `detach` and `alias` of computed values without other users, since an aten graph has no gradients to
    stop; return their number. `everywhere`: remove all of them, for graphs whose results never share memory."""
    users = Counter(n for node in graph.nodes for n in argument_nodes(node))
    replaced: dict[Node, Node] = {}
    for node in graph.nodes:
        if isinstance(node.target, OpOverload) and effects(node.target).identity:
            source = replaced.get(node.args[0], node.args[0])
            if everywhere or (source.op == "call_function" and users[node.args[0]] == 1):
                replaced[node] = source
    substitute(graph, replaced)
    return len(replaced)


def substitute(graph: Graph, replaced: Mapping[Node, Node]) -> None:
    """Remove the keys of `replaced`; their users read the values instead."""
    if not replaced:
        return
    graph.nodes[:] = [n for n in graph.nodes if n not in replaced]
    for node in graph.nodes:
        node.args = map_nodes(node.args, lambda n: replaced.get(n, n))
        node.kwargs = map_nodes(node.kwargs, lambda n: replaced.get(n, n))


def copied(nodes: Iterable[Node], constants: Mapping[str, torch.Tensor]) -> tuple[Graph, dict[Node, Node]]:
    """(aten graph, copies): a graph of copies of `nodes`, which are in execution order, and the copy of each node."""
    graph = Graph("aten")
    copy_of: dict[Node, Node] = {}
    graph.constants = dict(constants)
    for node in nodes:
        args, kwargs = (map_nodes(a, copy_of.__getitem__) for a in (node.args, node.kwargs))
        copy_of[node] = Node(node.op, node.target, args, kwargs, node.name, node.spec, node.line, node.source)
    graph.nodes = list(copy_of.values())
    return graph, copy_of


def extract(
    graph: Graph,
    inputs: Iterable[Node],
    nodes: Iterable[Node],
    results: Iterable[Node | None],
    read: Callable[[Node, Node], Node] = lambda argument, user: argument,
) -> Graph:
    """An aten graph of copies of `nodes`, in order, that takes `inputs` and returns `results`. `read(argument, user)`: the
    node whose copy `user` reads for `argument`."""
    part = Graph("aten")
    copies: dict[Node, Node] = {}
    for node in inputs:
        copies[node] = replace(node, op="placeholder", target=node.name, args=(), kwargs={})
    for node in nodes:

        def copy_for(argument: Node, user: Node = node) -> Node:
            return copies[read(argument, user)]

        args, kwargs = map_nodes(node.args, copy_for), map_nodes(node.kwargs, copy_for)
        copies[node] = replace(node, args=args, kwargs=kwargs)
        if node.op == "get_attr":
            part.constants[node.target] = graph.constants[node.target]
    outputs = tuple([None if n is None else copies[n] for n in results])
    specs = tuple([None if n is None else n.spec for n in outputs])
    part.nodes = [*copies.values(), Node("output", "output", (outputs,), {}, "output", specs)]
    return part


def eliminate_common(graph: Graph, among: Collection[Node] = ()) -> int:
    """Merge pure aten nodes of equal target and arguments; return the number of removed nodes. For functional aten
    graphs.

    Values that an output may alias are not merged: the caller may write one of the outputs. The nodes `among` merge
    only with each other: a value that a checkpoint rematerializes must not be saved by the forward.
    """
    apart = memory_of_outputs(graph)
    first: dict[Any, Node] = {}
    replaced: dict[Node, Node] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        if replaced:
            node.args = map_nodes(node.args, lambda n: replaced.get(n, n))
            node.kwargs = map_nodes(node.kwargs, lambda n: replaced.get(n, n))
        if node not in apart and _joinable(node):
            same = first.setdefault((node in among, _value_key(node)), node)
            if same is not node:
                replaced[node] = same
                continue
        kept.append(node)
    removed = len(graph.nodes) - len(kept)
    graph.nodes[:] = kept
    return removed


def _joinable(node: Node) -> bool:
    """Not uninitialized memory, which other operators write: a merged one would have to be copied. Not user kernels,
    which may print."""
    if node.op == "get_attr" or node.target is operator.getitem:
        return True
    if type(node.target) is not OpOverload or node.target is RUN_KERNEL_FUNCTIONAL or unbacked_sizes_of(node):
        return False
    return effects(node.target).pure and effects(node.target).unfilled != 0


def _value_key(node: Node) -> Any:
    return (node.op, node.target, _freeze(node.args), _freeze(node.kwargs))


def _freeze(value: Any) -> Any:
    """A hashable form. It includes types, so that 1, 1.0 and True differ."""
    kind = type(value)
    if kind is Node:
        return value
    if isinstance(value, (tuple, list)):
        return (kind, *map(_freeze, value))
    if isinstance(value, dict):
        return (kind, *((k, _freeze(v)) for k, v in value.items()))
    return (kind, repr(value) if isinstance(value, (float, complex)) else value)


def memory_of_outputs(graph: Graph) -> set[Node]:
    """Nodes whose memory an output may share."""
    reach: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or (node in reach and (node.target is operator.getitem or is_view(node))):
            reach.update(argument_nodes(node))
    return reach


def is_view(node: Node) -> bool:
    """Whether a result may be in the memory of an argument that the operator does not write."""
    return type(node.target) is OpOverload and effects(node.target).shares_memory


def viewed(node: Node) -> Iterator[Node]:
    """The value, and the chain of tensors that it is a view of, up to the one that owns the memory."""
    yield node
    call = node.args[0] if node.target is operator.getitem else node
    if is_view(call) and isinstance(call.args[0], Node):
        yield from viewed(call.args[0])


def base_of(node: Node) -> Node:
    """The node that allocates the value's memory."""
    *_, base = viewed(node)
    return base
