"""Calls that may overwrite their first argument: a graph input whose new value is their result at the end of the
graph, or uninitialized memory.

In a functional graph `cache.index_copy_(0, step, row)` returns a new cache, and the graph copies that back at its end.
If the input has no other readers, the rows can be written directly to their final memory.

The write then precedes the end of the graph, before which a later call may still raise. Such a call is replayed from
the start (`capture/emit/eager_fallback.py`) and finds the new rows in the input; that makes no difference, since
nothing reads the old rows, and calls that raise before such a write in the program do so in the plan.

Likewise for `out = torch.empty(...)` whose slices are assigned one after the other: if nothing else reads it in
between, each slice can be written in place. The inputs of a slice then stay in memory only until the next slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from smelt.graph.input_writes import WRITE_INPUT, input_writes
from smelt.graph.ir import Graph, Node, argument_nodes
from smelt.graph.operator_effects import effects
from smelt.ops.node_builders import COPY
from smelt.ops.registry import row
from smelt.torch_private import OpOverload

Readers = Mapping[Node, Sequence[Node]]  # of each node, one for each time that it is read


def overwriting(graph: Graph, live: frozenset[Node]) -> frozenset[Node]:
    """The calls that may overwrite their first argument, which is an input, `empty` memory, or the result of another
    of them. `live`: the nodes that run."""
    readers: dict[Node, list[Node]] = {}
    for node in graph:
        for argument in argument_nodes(node) if node in live else ():
            readers.setdefault(argument, []).append(node)
    of_inputs = (call for write in input_writes(graph) for call in _chain(write, readers))
    of_empty = (call for node in graph if is_empty(node) for call in _filling(node, readers))
    return frozenset((*of_inputs, *of_empty))


def is_empty(node: Node) -> bool:
    """Whether a call returns uninitialized memory of its own."""
    return isinstance(node.target, OpOverload) and effects(node.target).unfilled == 0


def _filling(node: Node, readers: Readers) -> list[Node]:
    """The calls that fill memory in sequence, first one first. Any node may read the last result, unless it writes
    that again, which would copy all of it."""
    calls: list[Node] = []
    while True:
        found = [r for r in readers.get(node, ()) if not _is_a_name(r, node, readers, False)]
        writers = [r for r in found if _writes_elements(r) and r.args[0] is node]
        if not writers:
            return calls
        if len(found) > 1:
            return []
        (node,) = writers
        calls.append(node)


def _chain(copy: Node, readers: Readers) -> list[Node]:
    """The calls that produce an input's new value in sequence, last one first."""
    target, call = copy.args[:2]
    calls: list[Node] = []
    while isinstance(call, Node) and _writes_elements(call):
        calls.append(call)
        call = call.args[0]
    if not calls or call is not target or not _is_read_by(target, [calls[-1], copy], readers, True):
        return []
    if not all(_is_read_by(inside, [outside], readers) for outside, inside in pairwise(calls)):
        return []
    return [] if _is_read_later(calls[0], readers) else calls


def _is_read_by(node: Node, expected: Sequence[Node], readers: Readers, is_input: bool = False) -> bool:
    """Whether these calls, each once, are the only readers of a node's elements before the end."""
    found = [reader for reader in readers[node] if not _is_a_name(reader, node, readers, is_input)]
    return sorted(map(id, found)) == sorted(map(id, expected))


def _is_a_name(reader: Node, node: Node, readers: Readers, is_input: bool) -> bool:
    """Whether a reader needs no element of the node: a view that is only copied to (`cache[:, 3] = row`), or a
    returned input or view of it, which then has the new value."""
    if reader.op == "output":
        return is_input
    if reader.target is COPY:
        return reader.args[0] is node and reader.args[1] is not node
    is_view = isinstance(reader.target, OpOverload) and effects(reader.target).view
    return is_view and all(
        _is_a_name(further, reader, readers, is_input) for further in readers.get(reader, ())
    )


def _writes_elements(node: Node) -> bool:
    """Whether a call returns its first argument with some elements replaced, whatever they were."""
    entry = row(node.target)
    if entry.insert is None and entry.in_place is None:
        return False
    does, first = effects(node.target), node.args[0]
    adds = "accumulate" in does.names and does.argument("accumulate", node.args, node.kwargs)
    return not adds and isinstance(first, Node) and first.spec == node.spec


def _is_read_later(node: Node, readers: Readers) -> bool:
    """Whether the graph returns a value, or an alias of it."""
    for reader in readers.get(node, ()):
        if reader.op == "output":
            return True
        results = effects(reader.target).results if isinstance(reader.target, OpOverload) else None
        is_fresh = results is not None and all(result.kind == "fresh" for result in results)
        if not is_fresh and reader.target is not WRITE_INPUT and _is_read_later(reader, readers):
            return True
    return False
