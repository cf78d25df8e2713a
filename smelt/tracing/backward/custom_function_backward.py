"""Backwards of custom `autograd.Function`s in a joint graph: Python code of the user's that autograd's engine calls.

What torch's own operators record in a backward is linear in the tangents, reads nothing but what the forward gave, and
writes nothing that others hold. Whether this holds for a backward that a user wrote has to be checked:

* It may write only memory of its own. Which tensors share memory with a gradient depends on what the engine did before.
* It may not draw random numbers: the graph's backward runs as a whole, the engine calls only what it needs.
* With several tangents it must be linear in them, and give nothing where it gets nothing: a joint graph's backward is cut
  into pieces whose gradients are added, and compiled for tangents that are undefined (eager then does not call it). Not
  so with one tangent: then it runs exactly where eager runs it, on the same gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from smelt.graph.ir import Graph, Node, argument_nodes
from smelt.graph.operator_effects import effects
from smelt.ops.linearity import is_linear
from smelt.torch_private import OpOverload
from smelt.tracing.backward.not_differentiable import refuse
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in
from smelt.tracing.record.tape import TapeEntry


@dataclass
class CustomFunctions:
    """Those that a trace has applied where gradients are wanted.

    `window(run)` is `run()`, with the Python code of the user's that it calls interpreted.
    """

    window: Callable[[Callable[[], Any]], Any]
    called: list[UserBackward] = field(default_factory=list)
    accepts_none: set[int] = field(default_factory=set)  # ids of contexts whose backward is given None for zero
    # contexts whose saved tensors were read; a backward that reads none can run again, whatever was freed
    reads_saved: set[object] = field(default_factory=set)


@dataclass
class UserBackward:
    """One call of a backward. The nodes that it recorded have `source` as theirs. `gives`: the gradients it returned that
    are used; `accepts_none`: it may find None in place of some of several gradients."""

    name: str
    source: Node
    gives: tuple[FakeTensor, ...] = ()
    accepts_none: bool = False


def check_entries(call: UserBackward, entries: Sequence[TapeEntry]) -> None:
    """Checks what a backward of the user's recorded: `entries`. Raises NotDifferentiable."""
    own: set[int] = set()  # storages
    storage: dict[Node, int] = {}
    for entry in entries:
        node = entry.node
        if type(node.target) is OpOverload:
            info = effects(node.target)
            if info.random:
                raise refuse(f"the backward of {call.name} draws random numbers")
            for name in info.writes:
                written = _nodes(info.argument(name, node.args, node.kwargs))
                if any(storage.get(n) not in own for n in written):
                    raise refuse(f"the backward of {call.name} writes a tensor that it has not made")
            if not info.writes and not info.view:
                own.update(f.storage_key for f in fakes_in(entry.out))
        storage.update((f.aten_node, f.storage_key) for f in fakes_in(entry.out) if f.aten_node is not None)


def _nodes(argument: Any) -> Iterator[Node]:
    for value in argument if isinstance(argument, (list, tuple)) else (argument,):
        if isinstance(value, Node):
            yield value


def check_linear(
    graph: Graph, tangents: Sequence[Node], calls: Sequence[UserBackward], gives: Sequence[Node | None]
) -> None:
    """`graph` is a functional joint graph of several `tangents`; `gives` are the nodes of what the calls give, in order.
    Raises NotDifferentiable."""
    names = {call.source: call.name for call in calls}
    depends = set(tangents)
    for node in graph.nodes[:-1]:
        if any(a in depends for a in argument_nodes(node)):
            depends.add(node)
            if node.source in names and not is_linear(node, depends):
                what = f"the backward of {names[node.source]} need not be linear ({node.name})"
                raise refuse(f"{what}, and several outputs have gradients")
    for call in calls:
        if call.accepts_none:
            raise refuse(
                f"the backward of {call.name} takes None for zero, and several outputs have gradients"
            )
    found = iter(gives)
    for call in calls:
        for _ in call.gradients:
            if next(found) not in depends:
                what = f"a gradient that the backward of {call.name} gives depends on none"
                raise refuse(f"{what}, and several outputs have gradients")
