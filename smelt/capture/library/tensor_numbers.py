"""What tensors of one element hold, as symbolic numbers: `item()`, and tensors given where an operator takes a number.

The number that a 0-d float tensor from outside holds when the call begins is read by the guard tree, as it reads other
numbers. What the trace did to such tensors since (counting steps, multiplying a product of momenta, computing a learning
rate) is repeated in Python's arithmetic, rounded to the tensor's type after each operation as eager rounds. So nothing
waits for the graph, and another value needs no other graph. Where the number itself is needed (an index, a text), or the
tensor was computed in another way, nothing is read: the graph breaks there. A symbolic number has the type of the number
that it stands for in annotations.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch

from smelt.capture.machine.vm import VM
from smelt.graph.effects import effects
from smelt.graph.ir import Node, TensorSpec
from smelt.graph.numbers import Number, float32
from smelt.trace.fake import FakeTensor, fakes_in
from smelt.trace.symbols import NUMBERS, Symbol
from smelt.trace.trace import Trace

aten = torch.ops.aten
_EXACT = 1 << 23  # up to here adding integers to a float of 32 bits is exact

# Of what is rounded correctly in both precisions: computed in 64 bits and then rounded to 32, they are what 32 bits give.
_ARITHMETIC: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: operator.add, aten.add.Scalar: operator.add,
    aten.sub.Tensor: operator.sub, aten.sub.Scalar: operator.sub,
    aten.rsub.Scalar: lambda a, b: b - a, aten.rsub.Tensor: lambda a, b: b - a,
    aten.mul.Tensor: operator.mul, aten.mul.Scalar: operator.mul,
    aten.div.Tensor: operator.truediv, aten.div.Scalar: operator.truediv,
    aten.reciprocal.default: lambda a: 1.0 / a,
    aten.neg.default: operator.neg,
}  # fmt: skip
_SAME = frozenset((aten.clone.default, aten._to_copy.default))
_VIEWS = frozenset((aten.detach.default, aten.alias.default))
_IN_PLACE: dict[Any, Callable[..., Any]] = {
    **{getattr(aten, f"{n}_").Tensor: f for n, f in (
        ("add", operator.add), ("sub", operator.sub), ("mul", operator.mul), ("div", operator.truediv),
    )},
    aten.add_.Scalar: operator.add, aten.sub_.Scalar: operator.sub, aten.mul_.Scalar: operator.mul,
    aten.copy_.default: lambda old, new: new,
    aten.fill_.Scalar: lambda old, new: new, aten.fill_.Tensor: lambda old, new: new,
    aten.zero_.default: lambda old: 0.0,
}  # fmt: skip


# What a new tensor is filled with.
_MADE: dict[Any, Callable[..., Any]] = {
    aten.full.default: lambda size, value: value,
    aten.scalar_tensor.default: lambda value: value,
    aten.zeros.default: lambda size: 0.0,
    aten.ones.default: lambda size: 1.0,
}


class _Unknown(Exception):
    """The number cannot be computed before the graph runs."""


def number(vm: VM, tensor: FakeTensor) -> Number | None:
    """The number that `tensor` holds now, symbolic where it may change from call to call; None where only the graph can
    tell."""
    if not vm.outside.numbers.follows_counts or not _is_one_float(tensor.spec):
        return None
    with vm.trace.paused():
        try:
            return _Reading(vm).of(tensor)
        except (_Unknown, ArithmeticError):
            return None


def _is_one_float(spec: object) -> bool:
    return (
        isinstance(spec, TensorSpec)
        and not spec.shape
        and spec.dtype in (torch.float32, torch.float64)
        and spec.device.type == "cpu"
    )


class _Reading:
    """Computes what tensors hold now from the operators that the trace recorded. Raises _Unknown where it cannot."""

    def __init__(self, vm: VM) -> None:
        self._vm = vm
        self._trace: Trace = vm.trace
        if vm.outside.numbers.writes is None:
            vm.outside.numbers.writes = _Writes(self._trace)
        self._writes: _Writes = vm.outside.numbers.writes

    def of(self, tensor: FakeTensor) -> Number:
        """The number in `tensor`, which may have been written in place since the call began."""
        if tensor.storage_key not in self._trace.writes.storages:
            return self._first(tensor)
        writes = []
        for node, written in self._writes.to(tensor.storage_key):
            if written is not tensor.aten_node:
                raise _Unknown
            writes.append(node)
        added = [self._counted(node) for node in writes]
        if None not in added:
            counted = self._count(tensor, sum(added))  # type: ignore[arg-type]
            if counted is not None:
                return counted
        held = self._first(tensor)
        for node in writes:
            compute = _IN_PLACE.get(node.target)
            if compute is None:
                raise _Unknown
            operands = self._operands(node, tensor.spec.dtype)
            held = _rounded(compute(held, *operands[1:]), tensor.spec.dtype)
        return held

    def _count(self, tensor: FakeTensor, added: int) -> Number | None:
        """The first value of `tensor` plus the integers that were added since; None if adding them is not exact."""
        held = self._first(tensor)
        if not (held % 1 == 0 and abs(held) < _EXACT):  # required of later calls too; so is the contrary
            return None
        return held + added

    def _counted(self, node: Node) -> int | None:
        """The integer that the operator adds in place; None if it does something else."""
        if node.target not in (aten.add_.Tensor, aten.add_.Scalar):
            return None
        other, *rest = node.args[1:]
        alpha = rest[0] if rest else node.kwargs.get("alpha", 1)
        if isinstance(other, Node):
            if other.op != "get_attr" or self._writes.storage_of(other) in self._trace.writes.storages:
                return None
            other = self._given(other)
        if type(other) not in (int, float) or type(alpha) not in (int, float):
            return None
        amount = other * alpha
        return int(amount) if amount % 1 == 0 and abs(amount) < _EXACT else None

    def _first(self, tensor: FakeTensor) -> Number:
        """The number that `tensor` held before it was written."""
        real = self._trace.real(tensor)
        if real is None:
            return self._given(tensor.aten_node)
        if tensor.subclass is not None:
            raise _Unknown
        origin = self._vm.outside.origins[id(tensor)].child("member", "item").child("call", None)
        with torch._C._DisableTorchDispatch():
            value = real.item()
        self._vm.outside.numbers.readings.add(origin)
        return cast(Number, self._vm.outside.numbers.at(origin, value))

    def _given(self, node: Node | None) -> Number:
        """The number in the tensor that the operator of `node` made."""
        if node is None or not _is_one_float(node.spec):
            raise _Unknown
        if node.op == "get_attr":
            return float(self._trace.tape.aten.graph.constants[node.target].item())
        if node.op != "call_function":
            raise _Unknown
        if node.target in _MADE:
            return _rounded(self._number(_MADE[node.target](*node.args)), node.spec.dtype)
        if node.target in _VIEWS:
            return self._before(node.args[0])
        compute = _ARITHMETIC.get(node.target)
        if compute is None and node.target not in _SAME:
            raise _Unknown
        operands = self._operands(node, node.spec.dtype)
        value = compute(*operands) if compute else operands[0]
        return _rounded(cast(Number, value), node.spec.dtype)

    def _operands(self, node: Node, dtype: torch.dtype) -> list[Number | None]:
        """The numbers that an operator on tensors of `dtype` computes with; None for the tensor that it writes."""
        kwargs = {
            k: v for k, v in node.kwargs.items() if k not in ("dtype", "layout", "device", "pin_memory")
        }
        if kwargs.pop("alpha", 1) != 1 or any(v not in (None, False) for v in kwargs.values()):
            raise _Unknown
        first, *rest = node.args
        read = None if node.target in _IN_PLACE else self._operand(first, dtype)
        return [read, *(self._operand(a, dtype) for a in rest)]

    def _operand(self, value: object, dtype: torch.dtype) -> Number:
        if isinstance(value, Node) and isinstance(value.spec, TensorSpec):
            storage = self._writes.storage_of(value)
            if storage is None or storage in self._trace.writes.storages:  # maybe after it was read
                raise _Unknown
            return self._before(value)
        return _rounded(self._number(value), dtype)

    def _before(self, node: Node) -> Number:
        """The number that the tensor of `node` held before its memory was written."""
        fake = self._writes.input_at(node)
        return self._given(node) if fake is None else self._first(fake)

    def _number(self, value: object) -> Number:
        if isinstance(value, Node):
            for given in self._trace.numbers.by_expression.values():
                if given.nodes.get(self._trace.tape.aten.graph.level) is value:
                    return cast(Number, given.symbol.number())
            raise _Unknown
        if type(value) is int or type(value) is float:
            return value
        raise _Unknown


def _rounded(value: Number, dtype: torch.dtype) -> Number:
    """`value` as a tensor of this type holds it."""
    if type(value) in NUMBERS:
        symbol: Symbol = cast(torch.SymFloat, value).node
        return cast(Number, symbol.symbols.call("float32" if dtype is torch.float32 else "float", symbol))
    return float32(value) if dtype is torch.float32 else float(value)


class _Writes:
    """The operators that wrote each storage, brought up to date when asked: an optimizer asks for each parameter."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._by_storage: dict[int | None, list[tuple[Node, Node]]] = {}  # None: where is not known
        self._storages: dict[Node, int] = {}
        self._inputs_at: dict[Node, FakeTensor] = {}
        self._seen = 0  # of the trace's records
        self._inputs: list[FakeTensor] = []  # that no operator has had
        self._seen_inputs = 0

    def to(self, storage: int) -> list[tuple[Node, Node]]:
        """(operator, what it was given to write), of those that may have written it."""
        self._look()
        return [*self._by_storage.get(storage, ()), *self._by_storage.get(None, ())]

    def storage_of(self, node: Node) -> int | None:
        """The storage of the tensor that `node` gave; None where no record tells."""
        self._look()
        if node not in self._storages:
            self._look_at_inputs()
        return self._storages.get(node)

    def input_at(self, node: Node) -> FakeTensor | None:
        """The input that is this placeholder."""
        return self._inputs_at.get(node)

    def _look(self) -> None:
        records = self._trace.tape.entries
        for record in records[self._seen :]:
            self._storages.update((f.aten_node, f.storage_key) for f in fakes_in(record.out) if f.aten_node)
            for written in _written(record.node):
                if written not in self._storages:
                    self._look_at_inputs()
                self._by_storage.setdefault(self._storages.get(written), []).append((record.node, written))
        self._seen = len(records)

    def _look_at_inputs(self) -> None:
        self._inputs += self._trace.inputs[self._seen_inputs :]
        self._seen_inputs = len(self._trace.inputs)
        for fake in self._inputs:
            if fake.aten_node:
                self._storages[fake.aten_node] = fake.storage_key
                self._inputs_at[fake.aten_node] = fake
        self._inputs = [f for f in self._inputs if not f.aten_node]


def _written(node: Node) -> Iterator[Node]:
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    info = effects(node.target)
    for name in info.writes:
        value = info.argument(name, node.args, node.kwargs)
        yield from (v for v in (value if isinstance(value, (list, tuple)) else (value,)) if v is not None)
