"""The new value of a base after one of its views was written: the rows of view operators have their inverses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from smelt.graph.ir import Node
from smelt.ops.node_builders import Emitter
from smelt.ops.registry import row
from smelt.torch_private import OpOverload
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.call_arguments import Args, Kwargs


@dataclass(slots=True)
class View:
    """How a fake was taken from another one: the view operator and its arguments as recorded (`at`: the argument that is
    the source's node), and which of its results this is."""

    source: FakeTensor
    target: OpOverload
    args: Args
    kwargs: Kwargs
    at: Node
    spec: Any
    item: int | None


def scatter_back(emitter: Emitter, view: View, base: Node, value: Node) -> Node:
    """`base` (the present value of the view's source) with `value` written through the view."""
    rule = row(view.target).written_through
    if rule is None:
        raise emitter.refuse(f"a view by {view.target} is written")
    rest = view.args[1:]
    if view.item is not None:
        return rule(emitter, base, value, view.item, *rest, **view.kwargs)
    return rule(emitter, base, value, *rest, **view.kwargs)
