"""Values that are known although tensors are fake: what depends on constants of the program only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from smelt.graph.ir import Node
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
    """Finds values by walking back from a fake through the recorded aten nodes.

    If that meets nothing but constants and deterministic operators on memory that no recorded operator wrote, the (small)
    computation is run for real. Nothing is kept, so writing a tensor later cannot make an answer stale.

    `on_read(fake)` is asked for the number that a tensor of one element holds, where it depends on more than constants.
    """

    def __init__(self, call: CurrentCall, tape: Tape, writes: Writes) -> None:
        self.on_read: Callable[[FakeTensor], Any] | None = None
        self._call = call
        self._tape = tape
        self._writes = writes

    def value(self, fake: torch.Tensor) -> torch.Tensor | None:
        """The value of `fake`, or None if it depends on inputs, on random numbers, or on memory that was written. A tensor
        that is no fake is its own value."""
        if type(fake) is not FakeTensor:
            return fake
        if fake.aten_node is None:
            return None
        walk = _Walk(self._tape.aten.graph.constants, self._nodes_written())
        with DisableTorchDispatch(), DisableTorchFunction(), torch.no_grad():
            value = walk.value(fake.aten_node)
        return None if value is UNKNOWN else value

    def number(self, fake: FakeTensor) -> Any:
        """The number that a tensor of one element holds, as `on_read` gives it; None where it gives none."""
        return None if self.on_read is None or self._call.is_opaque else self.on_read(fake)

    def integer(self, fake: torch.Tensor, numbers: NumberInputs, at: int = 0) -> Any:
        """The int that a tensor of few elements holds at a place, if it is computed from ints, symbolic ones among them;
        None where it is not, or not surely what Python computes."""
        if type(fake) is not FakeTensor or fake.aten_node is None or fake.subclass or self._call.is_opaque:
            return None
        level = self._tape.aten.graph.level
        return Integers(numbers, level, self._nodes_written()).held(fake.aten_node, at)

    def run(self, func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """`func` on the values of its arguments; None if one is unknown."""
        real_args = [self._argument(a) for a in args]
        real_kwargs = {k: self._argument(v) for k, v in kwargs.items()}
        if any(a is UNKNOWN for a in (*real_args, *real_kwargs.values())):
            return None
        with DisableTorchDispatch(), DisableTorchFunction(), torch.no_grad():
            return func(*real_args, **real_kwargs)

    def read(self, func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """A torch-level call that reads memory (`numpy()`), on known values; UNKNOWN if they are not known, or if the call
        does more than read."""
        if func not in _READERS:
            return UNKNOWN
        out = self.run(func, args, kwargs)
        return UNKNOWN if out is None else out

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            found = self.value(value)
            return UNKNOWN if found is None else found
        if isinstance(value, (list, tuple)):
            items = [self._argument(v) for v in value]
            return UNKNOWN if any(v is UNKNOWN for v in items) else type(value)(items)
        return value

    def _nodes_written(self) -> list[Node]:
        """Nodes whose memory some recorded operator wrote, before or after: their fakes may hold something else by now."""
        if not self._writes.happened:
            return []
        fakes = (fake for entry in self._tape.entries for fake in fakes_in(entry.out))
        written = (f for f in fakes if f.storage_key in self._writes.storages)
        return [f.aten_node for f in written if f.aten_node is not None]


class _Walk:
    """Computes nodes, each once; those in `unknown` not at all, nor more than `_MAX_NODES`."""

    def __init__(self, constants: Mapping[str, torch.Tensor], unknown: list[Node]) -> None:
        self._constants = constants
        self._values: dict[Node, Any] = dict.fromkeys(unknown, UNKNOWN)
        self._limit = len(self._values) + _MAX_NODES

    def value(self, node: Node) -> Any:
        if node not in self._values:
            hopeless = len(self._values) > self._limit or _is_big(node.spec)
            self._values[node] = UNKNOWN if hopeless else self._computed(node)
        return self._values[node]

    def _computed(self, node: Node) -> Any:
        if node.op == "get_attr":
            return self._constants[node.target]
        if node.op != "call_function":
            return UNKNOWN
        if isinstance(node.target, OpOverload) and not effects(node.target).pure:
            return UNKNOWN
        args, kwargs = self._argument(node.args), self._argument(node.kwargs)
        return UNKNOWN if args is UNKNOWN or kwargs is UNKNOWN else node.target(*args, **kwargs)

    def _argument(self, value: Any) -> Any:
        """`value` with nodes replaced; UNKNOWN if one is."""
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
