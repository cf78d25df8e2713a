"""The optimizers of torch: how many steps were made, as a number.

An optimizer counts its steps in 0-d tensors on the CPU. `step` adds one to each, reads them, and computes with Python's
floats what the update is multiplied with. What it reads is a symbolic number here: what the tensor holds when the call
begins, which the guard tree reads as it reads other numbers, plus what the trace has added since. So the arithmetic is
eager's, in double precision, and the next step needs no other graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import optimizer

from smelt.capture import calls
from smelt.capture.tables import function
from smelt.graph.ir import Node
from smelt.ops.kinds import effects
from smelt.trace.fake import FakeTensor, fakes_in
from smelt.trace.record import Trace

aten = torch.ops.aten
_COUNTS = (torch.float32, torch.float64)
_EXACT = 1 << 23  # up to here adding integers to a float of 32 bits is exact

_helpers: Any = optimizer


@function(_helpers._get_value)
def _get_value(vm: Any, args: Any, kwargs: Any) -> Any:
    (tensor,) = args
    if type(tensor) is not FakeTensor:
        return tensor
    count = _count(vm, tensor)
    return tensor.item() if count is None else count


_zero_grad: Any = optimizer.Optimizer.zero_grad


@function(_zero_grad)
def _set_gradients_to_zero(vm: Any, args: Any, kwargs: Any) -> Any:
    """Torch disables it for its own compiler's sake, by a wrapper that changes the function at its first call."""
    return calls.interpret(vm, _zero_grad.__wrapped__, args, kwargs)


def _count(vm: Any, tensor: FakeTensor) -> Any:
    """The number that `tensor` holds; None if it is not a count, or something else than integers was done to it."""
    spec = tensor.spec
    if spec.shape or spec.dtype not in _COUNTS or spec.device.type != "cpu" or not vm.outside.follows_counts:
        return None
    with vm.trace.paused():
        added = _added(vm, tensor)
        first = None if added is None else _first(vm, tensor, bool(added))
    return None if first is None else first + added


def _first(vm: Any, tensor: FakeTensor, exact: bool) -> Any:
    """What it held before it was written; `exact`: only a number to which integers can be added exactly."""
    trace: Trace = vm.trace
    real = trace.real(tensor)
    if real is None:
        return _made_with(trace, tensor.aten_node)
    origin = vm.outside.origins[id(tensor)].child("member", "item").child("call", None)
    with torch._C._DisableTorchDispatch():
        value = real.item()
    if exact and not (value % 1 == 0 and abs(value) < _EXACT):
        return None
    number = vm.outside.number_at(origin, value)
    if exact:  # which is required of later calls
        bool(number % 1 == 0), bool(abs(number) < _EXACT)
    return number


def _made_with(trace: Trace, node: Node | None) -> float | None:
    """The value of a tensor that the trace made without looking at others."""
    if node is None or node.args or node.op != "get_attr":
        return None
    return float(trace.aten.graph.constants[node.target].item())


def _added(vm: Any, tensor: FakeTensor) -> int | None:
    """What was added to the tensor in place, an integer; None if it was written otherwise."""
    storage = tensor.storage_key
    if storage not in vm.trace.written:
        return 0
    if vm.outside.writes is None:
        vm.outside.writes = _Writes(vm.trace)
    total = 0
    for node, written in vm.outside.writes.to(storage):
        amount = _amount(vm.trace, node)
        if amount is None or written is not tensor.aten_node:
            return None
        total += amount
    return total


class _Writes:
    """The operators that wrote each storage, brought up to date when asked: an optimizer asks for each parameter."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._by_storage: dict[int | None, list[tuple[Node, Node]]] = {}  # None: where is not known
        self._storages: dict[Node, int] = {}
        self._seen = 0  # of the trace's records
        self._inputs: list[FakeTensor] = []  # that no operator has had
        self._seen_inputs = 0

    def to(self, storage: int) -> list[tuple[Node, Node]]:
        """(operator, what it was given to write), of those that may have written it."""
        records = self._trace.records
        for record in records[self._seen :]:
            self._storages.update((f.aten_node, f.storage_key) for f in fakes_in(record.out) if f.aten_node)
            for written in _written(record.node):
                if written not in self._storages:
                    self._look_at_inputs()
                self._by_storage.setdefault(self._storages.get(written), []).append((record.node, written))
        self._seen = len(records)
        return [*self._by_storage.get(storage, ()), *self._by_storage.get(None, ())]

    def _look_at_inputs(self) -> None:
        self._inputs += self._trace.inputs[self._seen_inputs :]
        self._seen_inputs = len(self._trace.inputs)
        self._storages.update((f.aten_node, f.storage_key) for f in self._inputs if f.aten_node)
        self._inputs = [f for f in self._inputs if not f.aten_node]


def _written(node: Node) -> Iterator[Node]:
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    info = effects(node.target)
    for name in info.writes:
        value = info.argument(name, node.args, node.kwargs)
        yield from (v for v in (value if isinstance(value, (list, tuple)) else (value,)) if v is not None)


def _amount(trace: Trace, node: Node) -> int | None:
    if node.target not in (aten.add_.Tensor, aten.add_.Scalar):
        return None
    other, *rest = node.args[1:]
    alpha = rest[0] if rest else node.kwargs.get("alpha", 1)
    if isinstance(other, Node):
        other = _made_with(trace, other)
    if type(other) not in (int, float) or type(alpha) not in (int, float):
        return None
    amount = other * alpha
    return int(amount) if amount % 1 == 0 and abs(amount) < _EXACT else None
