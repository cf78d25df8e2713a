"""The new value of a base after a write through one of its views: rows of view operators have the inverse operator."""

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
    """How a view was created from `source`: the operator and its arguments as recorded (`source_node`: the argument
    that is the source), and the index of the result."""

    source: FakeTensor
    target: OpOverload
    args: Args
    kwargs: Kwargs
    source_node: Node
    spec: Any
    item: int | None


def scatter_back(emitter: Emitter, view: View, base: Node, value: Node) -> Node:
    """`base` (the current value of the view's source) with `value` written through the view."""
    rule = row(view.target).written_through
    if rule is None:
        raise emitter.refuse(f"a view by {view.target} is written")
    trailing = view.args[1:]
    if view.item is not None:
        return rule(emitter, base, value, view.item, *trailing, **view.kwargs)
    return rule(emitter, base, value, *trailing, **view.kwargs)
