"""Backwards of custom `autograd.Function`s in a joint graph: the user's Python code, called by autograd's engine.

What torch's own operators record in a backward is linear in the tangents, reads only results of the forward, and
writes nothing that others hold. A user's backward is checked for this:

* It may write only memory that it allocated. Which tensors share memory with a gradient depends on the engine's
  history.
* It may not draw random numbers: the graph's backward runs completely, the engine runs only the needed part.
* With several tangents it must be linear in them and return no gradient where it gets none: a joint graph's backward
  is split into segments whose gradients are added, and is compiled for undefined tangents, for which eager does not
  call it. With one tangent it runs exactly where eager runs it, on the same gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
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
    """The custom functions that a trace has applied where gradients are wanted.

    `run_interpreted(run)` is `run()` with the user's Python code that it calls interpreted.
    """

    run_interpreted: Callable[[Callable[[], Any]], Any]
    called: list[UserBackward] = field(default_factory=list)
    accepts_none: set[int] = field(default_factory=set)  # ids of contexts whose backward gets None for zero
    # contexts whose saved tensors were read; a backward that reads none can be repeated after they are freed
    reads_saved: set[object] = field(default_factory=set)


@dataclass
class UserBackward:
    """One call of a user's backward. Nodes that it recorded have `source` as their source. `gradients`: the returned
    gradients that are used. `accepts_none`: it may get None for some of several gradients."""

    name: str
    source: Node
    gradients: tuple[FakeTensor, ...] = ()
    accepts_none: bool = False


def check_entries(call: UserBackward, entries: Sequence[TapeEntry]) -> None:
    """Check the entries that a user's backward recorded. Raises NotDifferentiable."""
    allocated: set[int] = set()  # storages
    storage: dict[Node, int] = {}
    for entry in entries:
        node = entry.node
        if type(node.target) is OpOverload:
            info = effects(node.target)
            if info.random:
                raise refuse(f"the backward of {call.name} draws random numbers")
            for name in info.writes:
                written = _nodes(info.argument(name, node.args, node.kwargs))
                if any(storage.get(n) not in allocated for n in written):
                    raise refuse(f"the backward of {call.name} writes a tensor that it has not made")
            if not info.writes and not info.view:
                allocated.update(f.storage_key for f in fakes_in(entry.out))
        storage.update((f.aten_node, f.storage_key) for f in fakes_in(entry.out) if f.aten_node is not None)


def _nodes(argument: Any) -> Iterator[Node]:
    for value in argument if isinstance(argument, (list, tuple)) else (argument,):
        if isinstance(value, Node):
            yield value


def check_all_linear(graph: Graph, tangents: Sequence[Node], backward: Collection[Node]) -> None:
    """Check that the entire `backward`, which code of wrapper subclasses recorded, is linear in the tangents, of which there
    are several. Raises NotDifferentiable."""
    depends = set(tangents)
    for node in graph.nodes[:-1]:
        if node in backward and any(a in depends for a in argument_nodes(node)):
            depends.add(node)
            if not is_linear(node, depends):
                raise refuse(
                    f"several results, and the backward of a wrapper subclass need not be linear ({node.name})"
                )
    returned = [n for n in graph.output.args[0] if n in backward]
    if not depends.issuperset(returned):
        raise refuse("several results, and a gradient of a wrapper subclass that depends on none")


def check_linear(
    graph: Graph, tangents: Sequence[Node], calls: Sequence[UserBackward], gradients: Sequence[Node | None]
) -> None:
    """Check that user backwards in the functional joint graph of several `tangents` are linear. `gradients`: the nodes
    of the gradients of `calls`, in order. Raises NotDifferentiable."""
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
    nodes = iter(gradients)
    for call in calls:
        for _ in call.gradients:
            if next(nodes) not in depends:
                what = f"a gradient that the backward of {call.name} gives depends on none"
                raise refuse(f"{what}, and several outputs have gradients")
