"""The tape of a trace: the nodes of both levels, and the fakes that aten nodes return."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch

from smelt.graph.ir import Node
from smelt.torch_private import DisableFuncTorch, DisableTorchDispatch
from smelt.tracing.fake.fake_tensor import FakeTensor, wrap
from smelt.tracing.record.call_arguments import Args, Kwargs
from smelt.tracing.record.current_call import CurrentCall
from smelt.tracing.record.graph_builder import Builder


@dataclass(slots=True)
class TapeEntry:
    """An aten node and its result: a fake, or a tuple or list of fakes (and other values)."""

    node: Node
    out: Any

    def replace(self, old: FakeTensor, new: FakeTensor) -> None:
        """Replace `old` by `new` in the result."""
        self.out = _replaced(self.out, old, new)


def _replaced(value: Any, old: FakeTensor, new: FakeTensor) -> Any:
    if isinstance(value, (list, tuple)):
        return [_replaced(v, old, new) for v in value]
    return new if value is old else value


class Tape:
    """The recorded nodes of one trace.

    `torch` and `aten` build the graphs of the two levels. `entries` has one entry for each recorded aten node, in
    execution order, except the `getitem` nodes that read one of several results. `effectful` holds torch-level nodes
    that stay in the graph although nothing reads their result: they change a tensor without an operator that writes
    memory. Invariant: a fake in an entry names the aten node that first returned it.
    """

    def __init__(self, call: CurrentCall) -> None:
        self.torch = Builder("torch")
        self.aten = Builder("aten")
        self.entries: list[TapeEntry] = []
        self.effectful: set[Node] = set()
        self._call = call

    def add_operator(self, func: Any, args: Args, kwargs: Kwargs, stem: str, spec: Any) -> Node:
        """Append an aten node of the running call. `finish_operator` must follow."""
        call, aten = self._call, self.aten
        node = Node("call_function", func, args, kwargs, aten.name(stem), spec, call.line(), call.source())
        aten.graph.nodes.append(node)
        return node

    def finish_operator(self, node: Node, out: Any) -> None:
        """Set the aten node of every new fake in `out`, the result of `node`; add the entry."""
        if type(out) is FakeTensor:
            if out.aten_node is None:
                out.aten_node = node
        elif isinstance(out, (tuple, list)):
            for i, value in enumerate(out):
                if type(value) is FakeTensor and value.aten_node is None:
                    value.aten_node = self.aten.make(
                        "call_function", operator.getitem, (node, i), {}, "getitem", value.spec, node.line, node.source
                    )  # fmt: skip
        self.entries.append(TapeEntry(node, out))

    def add_constant(self, value: torch.Tensor) -> FakeTensor:
        """A fake for a tensor whose value is part of the program."""
        with DisableFuncTorch(), DisableTorchDispatch():
            elem = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
            fake = wrap(elem, value.device)
        call = self._call
        name = self.aten.name("constant")
        self.aten.graph.constants[name] = value
        node = Node("get_attr", name, (), {}, name, fake.spec, call.line(), call.source())
        self.aten.graph.nodes.append(node)
        self.entries.append(TapeEntry(node, fake))
        fake.aten_node = node
        if call.node is None:  # otherwise the torch-level call that created it names it
            self.torch.graph.constants[name] = value
            fake.torch_node = self.torch.make("get_attr", name, (), {}, name, fake.spec, node.line)
        return fake

    def rebind(self, fake: FakeTensor, view: FakeTensor) -> FakeTensor:
        """Turn `fake` into `view`. Its former value becomes another fake, which is returned, so that earlier nodes keep
        their results."""
        before = wrap(fake.elem, fake.device, fake.spec)
        before.aten_node, before.torch_node = fake.aten_node, fake.torch_node
        for entry in self.entries:
            entry.replace(fake, before)
            entry.replace(view, fake)
        fake.elem, fake.cached_spec, fake.aten_node = view.elem, view.spec, view.aten_node
        self._call.mutated = True
        if self._call.node is not None:
            self.effectful.add(self._call.node)
        return before
