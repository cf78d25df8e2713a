"""Constant folding: the values of fake tensors that depend only on constants of the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from smelt.graph.ir import Node, argument_nodes
from smelt.graph.operator_effects import effects
from smelt.shapes.expr import Expr
from smelt.torch_private import DisableTorchDispatch, DisableTorchFunction, OpOverload
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in
from smelt.tracing.functionalize.recorded_writes import Writes
from smelt.tracing.record.call_arguments import Args, Kwargs
from smelt.tracing.record.current_call import CurrentCall
from smelt.tracing.record.number_inputs import NumberInputs
from smelt.tracing.record.tape import Tape
from smelt.tracing.symbolic.integer_tensors import Integers

_MAX_ELEMENTS = 1 << 16
_MAX_NODES = 200


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Any = _Unknown()


class ConstantFolding:
    """Evaluates fakes by walking back through the recorded aten nodes.

    If that reaches only constants and deterministic operators on memory that no recorded operator wrote, the (small)
    computation runs for real. No value is cached, so a later write cannot make a result stale.

    `on_read(fake)` returns the number in a tensor of one element that depends on more than constants; None if it is
    not known.
    """

    def __init__(self, call: CurrentCall, tape: Tape, writes: Writes) -> None:
        self.on_read: Callable[[FakeTensor], Any] | None = None
        self._call = call
        self._tape = tape
        self._writes = writes
        self._from_inputs: set[Node] = set()  # nodes that are known to depend on inputs

    def value(self, fake: torch.Tensor) -> torch.Tensor | None:
        """The value of `fake`, or None if it depends on inputs, on random numbers, or on memory that was written. A
        real tensor is its own value."""
        if type(fake) is not FakeTensor:
            return fake
        if fake.aten_node is None:
            return None
        walk = _Walk(self._tape.aten.graph.constants, self._nodes_written(), self._from_inputs)
        with DisableTorchDispatch(), DisableTorchFunction(), torch.no_grad():
            value = walk.value(fake.aten_node)
        return None if value is UNKNOWN else value

    def number(self, fake: FakeTensor) -> Any:
        """The number in a tensor of one element, from `on_read`; None if it is not known."""
        return None if self.on_read is None or self._call.is_opaque else self.on_read(fake)

    def integer(self, fake: torch.Tensor, numbers: NumberInputs, index: int = 0) -> Any:
        """Element `index` of a small integer tensor that is computed from ints, also symbolic ones; None if it is not,
        or might differ from what Python computes."""
        if type(fake) is not FakeTensor or fake.aten_node is None or fake.subclass or self._call.is_opaque:
            return None
        level = self._tape.aten.graph.level
        return Integers(numbers, level, self._nodes_written()).element(fake.aten_node, index)

    def run(self, func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """`func` on the values of its arguments; None if one is unknown."""
        real_args = [self._argument(a) for a in args]
        real_kwargs = {k: self._argument(v) for k, v in kwargs.items()}
        if any(a is UNKNOWN for a in (*real_args, *real_kwargs.values())):
            return None
        with DisableTorchDispatch(), DisableTorchFunction(), torch.no_grad():
            return func(*real_args, **real_kwargs)

    def read(self, func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """The result of a torch-level call that reads memory (`numpy()`) on constants; UNKNOWN if a value is unknown,
        or if the call does more than read."""
        if func not in _READERS:
            return UNKNOWN
        out = self.run(func, args, kwargs)
        return UNKNOWN if out is None else out

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            constant = self.value(value)
            return UNKNOWN if constant is None else constant
        if isinstance(value, (list, tuple)):
            items = [self._argument(v) for v in value]
            return UNKNOWN if any(v is UNKNOWN for v in items) else type(value)(items)
        return value

    def _nodes_written(self) -> list[Node]:
        """Nodes whose memory some recorded operator wrote, before or after: their fakes may have another value by
        now."""
        if not self._writes.happened:
            return []
        fakes = (fake for entry in self._tape.entries for fake in fakes_in(entry.out))
        written = (f for f in fakes if f.storage_key in self._writes.storages)
        return [f.aten_node for f in written if f.aten_node is not None]


class _Walk:
    """Evaluates nodes, each once and at most `_MAX_NODES`; those in `unknown` are not evaluated."""

    def __init__(
        self, constants: Mapping[str, torch.Tensor], unknown: list[Node], from_inputs: set[Node]
    ) -> None:
        self._constants = constants
        self._from_inputs = from_inputs
        self._values: dict[Node, Any] = dict.fromkeys(unknown, UNKNOWN)
        self._limit = len(self._values) + _MAX_NODES

    def value(self, node: Node) -> Any:
        if node in self._from_inputs:
            return UNKNOWN
        if node not in self._values:
            is_unknown = len(self._values) > self._limit or _is_big(node.spec)
            self._values[node] = UNKNOWN if is_unknown else self._computed(node)
        return self._values[node]

    def _computed(self, node: Node) -> Any:
        if node.op == "get_attr":
            return self._constants[node.target]
        if node.op != "call_function":
            self._from_inputs.add(node)
            return UNKNOWN
        if isinstance(node.target, OpOverload) and not effects(node.target).pure:
            return UNKNOWN
        args, kwargs = self._argument(node.args), self._argument(node.kwargs)
        if args is UNKNOWN or kwargs is UNKNOWN:
            if not self._from_inputs.isdisjoint(argument_nodes(node)):
                self._from_inputs.add(node)
            return UNKNOWN
        return node.target(*args, **kwargs)

    def _argument(self, value: Any) -> Any:
        """`value` with nodes replaced by their values; UNKNOWN if one is unknown."""
        if isinstance(value, Node):
            return self.value(value)
        if isinstance(value, Expr):
            return UNKNOWN
        if isinstance(value, dict):
            items = [self._argument(v) for v in value.values()]
            return UNKNOWN if any(v is UNKNOWN for v in items) else dict(zip(value, items))
        if isinstance(value, (list, tuple)):
            items = [self._argument(v) for v in value]
            return UNKNOWN if any(v is UNKNOWN for v in items) else type(value)(items)
        return value


def _is_big(spec: Any) -> bool:
    if isinstance(spec, tuple):
        return any(map(_is_big, spec))
    size = 1
    for n in getattr(spec, "shape", ()):
        if type(n) is not int:
            return True
        size *= n
    return size > _MAX_ELEMENTS


_READERS: frozenset[Any] = frozenset({torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__})
