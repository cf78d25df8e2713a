"""The nodes of the torch-level graph that return the tensors of a joint graph, for replays of that graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from smelt.graph.ir import Node
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in
from smelt.tracing.functionalize.recorded_writes import WriteCall, base_of
from smelt.tracing.record.trace_parts import TraceParts


@dataclass(frozen=True)
class TorchLevelTensor:
    """`node` returns the tensor or, if `by_view`, a view of it: no torch-level call returns the tensor itself.

    `history_node`: once this node has run, the tensor has its final autograd history. `written_later`: its memory is
    written after that.
    """

    node: Node
    history_node: Node
    by_view: bool = False
    written_later: bool = False


def in_copied_graph(tensor: TorchLevelTensor, copy_of: Mapping[Node, Node]) -> TorchLevelTensor:
    """The entry for a copy of the graph."""
    node, history_node = tensor.node, tensor.history_node
    return replace(tensor, node=copy_of.get(node, node), history_node=copy_of.get(history_node, history_node))


def torch_level_tensors(
    parts: TraceParts, fakes: Sequence[FakeTensor]
) -> tuple[TorchLevelTensor | None, ...]:
    """Entries for `fakes`; None for those that the torch-level graph does not have. Call it with the recording modes
    disabled."""
    recorded = [f for entry in parts.tape.entries for f in fakes_in(entry.out) if f.torch_node is not None]
    views = {id(base_of(f)): f.torch_node for f in reversed(recorded) if f._is_view()}
    order = {node: i for i, node in enumerate(parts.tape.torch.graph.nodes)}
    calls: dict[int, list[WriteCall]] = {}
    for call in parts.writes.calls:
        calls.setdefault(call.base.storage_key, []).append(call)
    found: list[TorchLevelTensor | None] = []
    for fake in fakes:
        node = fake.torch_node or views.get(id(fake))
        if node is None:
            found.append(None)
            continue
        written = calls.get(fake.storage_key, [])
        rebasing = written[: _rebasing(fake, written)]
        history_node = max([node, *(c.node for c in rebasing[-1:])], key=lambda n: order.get(n, -1))
        found.append(
            TorchLevelTensor(node, history_node, fake.torch_node is None, len(rebasing) < len(written))
        )
    return tuple(found)


def _rebasing(fake: FakeTensor, calls: Sequence[WriteCall]) -> int:
    """The number of `calls`, which write the memory of `fake`, after which it has its final history."""
    if base_of(fake) is not fake:
        return len(calls)  # a view updates its history after each write
    return next((i for i, c in enumerate(calls, 1) if c.base is fake and c.history is fake.grad_fn), 0)
