"""What eager's autograd graph saves: which results share a saved value, which inputs nodes save, and which operators save
what they write.

Eager's nodes free their saved tensors when they have run. Of two results computed from the same node, only one can be
differentiated unless the graph is retained; results that share no such node can be differentiated one after the other.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from smelt.torch_private import NODES_IN_C, DisableTorchDispatch, DisableTorchFunction, OpOverload
from smelt.tracing.backward.autograd_graph import Edge, topological_order
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in

_MOST_OVERLOADS = 10


def shared_saves(
    results: Sequence[Any], outside: Iterable[Any], reads_saved: Collection[Any], cuts: Collection[Edge]
) -> tuple[tuple[int, ...], ...]:
    """For each of `results` (autograd nodes): those whose gradients pass the same node that saves something, in
    ascending order, including itself if it passes any. Nodes beyond `outside` do not count, nor do nodes beyond the results
    `cuts`: these raise on their own. A node of a user's function counts if it is in `reads_saved`, that is, if its backward
    reads what it saved."""
    order = topological_order(results, frozenset(outside))
    reached_from = dict.fromkeys(order, 0)  # bit k: reachable from result k
    for k, node in enumerate(results):
        if node in reached_from:
            reached_from[node] |= 1 << k
    shared = [0] * len(results)
    groups = set()
    for node in order:
        for edge in node.next_functions:
            if edge[0] in reached_from and edge not in cuts:
                reached_from[edge[0]] |= reached_from[node]
        kind: Any = type(node)
        if node in reads_saved if hasattr(kind, "_forward_cls") else _kind_saves(kind):
            groups.add(reached_from[node])
    for group in groups:
        for k in _bits(group):
            shared[k] |= group
    return tuple(tuple(_bits(bits)) for bits in shared)


def _bits(group: int) -> list[int]:
    return [k for k in range(group.bit_length()) if group >> k & 1]


@functools.cache
def _kind_saves(kind: Any) -> bool:
    """Whether nodes of this type save tensors."""
    return any(name.startswith("_raw_saved_") for name in dir(kind))


def saved_inputs(
    results: Sequence[Any], outside: Iterable[Any], inputs: Sequence[FakeTensor]
) -> frozenset[int]:
    """The positions of the inputs that nodes behind `results` save: not only views of them, or values computed from them.
    Eager reads the `data` that such an input has in the backward."""
    saved = set(map(id, _saved_fakes(results, outside)))
    return frozenset(i for i, fake in enumerate(inputs) if id(fake) in saved)


def saved_outputs(
    results: Sequence[Any], outside: Iterable[Any], outputs: Sequence[FakeTensor]
) -> dict[int, bool]:
    """The positions of the outputs that nodes behind `results` save as their inputs: eager reads the `data` that such an
    output has in the backward. And whether nodes save its former memory too: as their result, or in a view."""
    saved = _saved_fakes(results, outside)
    ids = set(map(id, saved))
    return {
        i: _saves_its_result(output)
        or any(f is not output and f.storage_key == output.storage_key for f in saved)
        for i, output in enumerate(outputs)
        if id(output) in ids
    }


def _saves_its_result(output: FakeTensor) -> bool:
    """Whether the node of a result may save that, which it restores as another tensor."""
    kind: Any = type(output.grad_fn)
    names = ("result", f"result{output.output_nr}", "output", "self_or_result")
    return hasattr(kind, "_forward_cls") or any(hasattr(kind, f"_raw_saved_{name}") for name in names)


def _saved_fakes(results: Sequence[Any], outside: Iterable[Any]) -> list[FakeTensor]:
    found: list[FakeTensor] = []
    for node in topological_order(results, frozenset(outside)):
        with contextlib.suppress(RuntimeError):  # a node that the program's `backward()` freed
            found += fakes_in(saved_by(node))
    return found


def saved_by(node: Any) -> list[Any]:
    """The values of the attributes in which an autograd node saves tensors. Raises RuntimeError for a freed node."""
    kind: Any = type(node)
    with DisableTorchFunction(), DisableTorchDispatch():
        return [getattr(node, name) for name in _attributes(kind)]


@functools.cache
def _attributes(kind: Any) -> tuple[str, ...]:
    if hasattr(kind, "_forward_cls"):
        return ("saved_tensors",)
    return tuple(name.replace("_raw", "", 1) for name in dir(kind) if name.startswith("_raw_saved_"))


@functools.cache
def saves_its_result(target: Any) -> bool:
    """Whether an operator writes a tensor that its autograd node then saves, as `tanh_` does. The node of a view is
    hidden in `CopySlices`, so the operator's name determines the node type; the types of its overloads count as one."""
    if type(target) is not OpOverload or not target._schema.is_mutable:
        return False
    stem = "".join(word.capitalize() for word in target._schema.name.split("::")[-1].split("_"))
    kinds = (getattr(NODES_IN_C, f"{stem}Backward{i}", None) for i in range(_MOST_OVERLOADS))
    return any(name.startswith("_raw_saved_result") for kind in kinds for name in dir(kind))
