"""Calls that may write what their first argument is: a graph input, where the graph gives that their result at its end, or
memory that nothing is in yet.

A functional graph has `cache.index_copy_(0, step, row)` give the whole cache anew, and copies that back at its end. Nobody
sees the old rows in between if the input has no other readers; then the rows can be written where they are to be at last,
and what reads the result reads the input.

This comes before the graph's end, where nothing can raise any more. A call that raises later is made again from the start
(`capture/emit/eager_fallback.py`), and finds the new rows in the input: that makes no difference, since nothing reads
what was there before, and what raises before such a write in the program does so in the plan.

Likewise `out = torch.empty(...)`, of which parts are given values one after the other: if nothing else reads what is there
in between, each part can be written where it is to be. What it is computed from is then in memory until the next at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch

from smelt.graph.ir import Graph, Node, argument_nodes
from smelt.graph.operator_effects import effects
from smelt.ops.registry import row
from smelt.torch_private import OpOverload

aten = torch.ops.aten

_EMPTY = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_strided.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
    }
)

Readers = Mapping[Node, Sequence[Node]]  # of each node, one for each time that it is read


def overwriting(graph: Graph, live: frozenset[Node]) -> frozenset[Node]:
    """The calls whose first argument is an input, memory that is `empty`, or what another of them gives, and may be written
    by them. `live`: the nodes that run."""
    readers: dict[Node, list[Node]] = {}
    for node in graph:
        for argument in argument_nodes(node) if node in live else ():
            readers.setdefault(argument, []).append(node)
    copies = (node for node in graph if node.target is aten.copy_.default)
    of_inputs = (call for copy in copies for call in _chain(copy, readers))
    of_empty = (call for node in graph if is_empty(node) for call in _filling(node, readers))
    return frozenset((*of_inputs, *of_empty))


def is_empty(node: Node) -> bool:
    """Whether a call gives memory of its own whose elements nobody knows."""
    return node.target in _EMPTY


def _filling(node: Node, readers: Readers) -> list[Node]:
    """The calls that fill memory one after the other, the first one first. Anything may read what the last one gives, unless
    it writes that again: then all of it would be copied."""
    calls: list[Node] = []
    while True:
        found = [r for r in readers.get(node, ()) if not _is_a_name(r, node, readers, False)]
        writers = [r for r in found if _writes_places(r) and r.args[0] is node]
        if not writers:
            return calls
        if len(found) > 1:
            return []
        (node,) = writers
        calls.append(node)


def _chain(copy: Node, readers: Readers) -> list[Node]:
    """The calls that give an input its new value one after the other, the last one first."""
    target, call = copy.args[:2]
    calls: list[Node] = []
    while isinstance(call, Node) and _writes_places(call):
        calls.append(call)
        call = call.args[0]
    if not calls or call is not target or not _is_read_by(target, [calls[-1], copy], readers, True):
        return []
    if not all(_is_read_by(inside, [outside], readers) for outside, inside in pairwise(calls)):
        return []
    return [] if _is_kept(calls[0], readers) else calls


def _is_read_by(node: Node, expected: Sequence[Node], readers: Readers, is_input: bool = False) -> bool:
    """Whether these calls, each once, are all that reads the elements of a node before the end."""
    found = [reader for reader in readers[node] if not _is_a_name(reader, node, readers, is_input)]
    return sorted(map(id, found)) == sorted(map(id, expected))


def _is_a_name(reader: Node, node: Node, readers: Readers, is_input: bool) -> bool:
    """Whether what reads a node needs no element of it: views that are only copied to (`cache[:, 3] = row`), and an input
    that is returned, or a view of it, which has the new value then."""
    if reader.op == "output":
        return is_input
    if reader.target is aten.copy.default:
        return reader.args[0] is node and reader.args[1] is not node
    is_view = isinstance(reader.target, OpOverload) and effects(reader.target).view
    return is_view and all(
        _is_a_name(further, reader, readers, is_input) for further in readers.get(reader, ())
    )


def _writes_places(node: Node) -> bool:
    """Whether a call gives its first argument with something in some of its places, whatever was there."""
    entry = row(node.target)
    if entry.insert is None and entry.in_place is None:
        return False
    does, first = effects(node.target), node.args[0]
    adds = "accumulate" in does.names and does.argument("accumulate", node.args, node.kwargs)
    return not adds and isinstance(first, Node) and first.spec == node.spec


def _is_kept(node: Node, readers: Readers) -> bool:
    """Whether the graph gives a value, or something that may share its memory."""
    for reader in readers.get(node, ()):
        if reader.op == "output":
            return True
        results = effects(reader.target).results if isinstance(reader.target, OpOverload) else None
        is_fresh = results is not None and all(result.kind == "fresh" for result in results)
        if not is_fresh and reader.target is not aten.copy_.default and _is_kept(reader, readers):
            return True
    return False
