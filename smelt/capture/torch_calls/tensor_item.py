"""What tensors of one element hold, as symbolic numbers: `item()`, and tensors given where an operator takes a number.

The number that a 0-d float tensor from outside holds when the call begins is read by the guard tree, as it reads other
numbers. What the trace did to such tensors since (counting steps, multiplying a product of momenta, computing a learning
rate) is repeated in Python's arithmetic, rounded to the tensor's type after each operation as eager rounds. So nothing
waits for the graph, and another value needs no other graph. Where the number itself is needed (an index, a text), or the
tensor was computed in another way, nothing is read: the graph breaks there. A symbolic number has the type of the number
that it stands for in annotations.

What a GPU holds is read in the same way. That waits for its stream, as in eager, but before the graph.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch

from smelt._native import isinstance
from smelt.capture.vm.vm import VM
from smelt.errors import NeedsFixedSize
from smelt.graph.ir import Node, TensorSpec
from smelt.graph.operator_effects import effects
from smelt.graph.pytree import map_leaves
from smelt.shapes.expr import Expr, Size, Sym, evaluate, free_syms
from smelt.shapes.number_operations import Number, float32
from smelt.torch_private import DisableTorchDispatch, OpOverload
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in
from smelt.tracing.record.trace import Trace
from smelt.tracing.symbolic.sym_nodes import Symbol
from smelt.tracing.symbolic.sym_numbers import NUMBERS
from smelt.tracing.symbolic.symbolic_numbers import PlainNumbersOnly

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
    aten.neg.default: operator.neg, aten.abs.default: abs,
}  # fmt: skip
_DIVISIONS = frozenset((aten.div.Tensor, aten.div.Scalar, aten.div_.Tensor, aten.div_.Scalar))
_COMPARISONS: dict[Any, Callable[[Any, Any], Any]] = {
    getattr(getattr(aten, n), overload): getattr(operator, n)
    for n in ("lt", "le", "gt", "ge", "eq", "ne")
    for overload in ("Tensor", "Scalar")
}
_TESTS: dict[Any, Callable[[Any], bool]] = {
    aten.isnan.default: lambda a: bool(a != a),
    aten.isinf.default: lambda a: bool(abs(a) == math.inf),
}
_NOT = frozenset((aten.logical_not.default, aten.bitwise_not.default))
_AND = frozenset((aten.logical_and.default, aten.bitwise_and.Tensor, aten.mul.Tensor))
_OR = frozenset((aten.logical_or.default, aten.bitwise_or.Tensor, aten.add.Tensor))
# Operators that only put the elements of one tensor at other places.
_MOVES = frozenset((
    aten.select.int, aten.slice.Tensor, aten.unbind.int, aten.view.default, aten._unsafe_view.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default, aten.expand.default,
    aten.permute.default, aten.transpose.int, aten.t.default, aten.flip.default, aten.split.Tensor,
))  # fmt: skip
_MOST_ELEMENTS = 16  # of a condition on all elements of a tensor
_SMALL = 1024  # elements of a tensor of which single ones are read
_SAME = frozenset((aten.clone.default, aten._to_copy.default))
_LAYOUT = ("dtype", "layout", "device", "pin_memory", "memory_format")
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
    """The number that `tensor` holds now, symbolic where it may change from call to call, or a bool that is guarded; None
    where only the graph can tell."""
    numbers = vm.outside.numbers
    if not numbers.follows_counts or (tensor.dtype is torch.bool and not numbers.decides):
        return None
    with vm.trace.paused():
        try:
            reading = _Reading(vm)
            found = reading.condition(tensor) if tensor.dtype is torch.bool else reading.of(tensor)
        except (_Unknown, ArithmeticError):
            return None
    if reading.symbols:
        raise NeedsFixedSize("elements of a tensor are read", frozenset(reading.symbols))
    return found


def _is_exact(node: Node) -> bool:
    """Whether what `node` computes is what Python computes. A GPU multiplies by the reciprocal of a number that it divides
    by."""
    spec = node.spec
    return node.target not in _DIVISIONS or not isinstance(spec, TensorSpec) or spec.device.type == "cpu"


class _Reading:
    """Computes what tensors hold now from the operators that the trace recorded. Raises _Unknown where it cannot.
    `symbols`: those of sizes that are taken for what they are now, which must be numbers for what was found to hold."""

    def __init__(self, vm: VM) -> None:
        self._vm = vm
        self._trace: Trace = vm.trace
        if vm.outside.numbers.writes is None:
            vm.outside.numbers.writes = _Writes(self._trace)
        self._writes: _Writes = vm.outside.numbers.writes
        self.symbols: set[Sym] = set()

    def _now(self, size: Size) -> int:
        if isinstance(size, int):
            return size
        self.symbols |= free_syms(size)
        assert self._trace.numbers.symbols is not None
        return int(evaluate(size, self._trace.numbers.symbols.hints))

    def _shape(self, spec: TensorSpec) -> tuple[int, ...]:
        return tuple(map(self._now, spec.shape))

    def _elements(self, spec: TensorSpec) -> int:
        return math.prod(self._shape(spec))

    def _is_floats(self, spec: object) -> bool:
        return (
            isinstance(spec, TensorSpec)
            and spec.dtype in (torch.float32, torch.float64)
            and spec.device.type in ("cpu", "cuda")
            and self._elements(spec) <= _SMALL
        )

    def of(self, tensor: FakeTensor) -> Number:
        """The number in `tensor`, which may have been written in place since the call began."""
        if not self._is_floats(tensor.spec) or tensor.dim():
            raise _Unknown
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
            if compute is None or not _is_exact(node):
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

    def condition(self, tensor: FakeTensor) -> bool:
        """What a tensor of one bool holds: guarded."""
        if tensor.aten_node is None or tensor.storage_key in self._trace.writes.storages:
            raise _Unknown
        decided = self._condition(tensor.aten_node, 0)
        try:
            return decided()
        except PlainNumbersOnly:
            raise _Unknown from None

    def _condition(self, node: Node, at: int) -> Callable[[], bool]:
        """What decides, and guards, the bool at a place in a tensor; the numbers that it compares are read here."""
        spec, target = node.spec, node.target
        if node.op != "call_function" or not isinstance(spec, TensorSpec) or spec.dtype is not torch.bool:
            raise _Unknown
        if target in _COMPARISONS:
            compare, (a, b) = _COMPARISONS[target], self._compared(node, at)
            return lambda: bool(compare(a, b))
        if target in _TESTS:
            test, (number,) = _TESTS[target], self._compared(node, at)
            return lambda: test(number)
        if target in (aten.all.default, aten.any.default):
            (source,) = node.args
            count = self._elements(source.spec)
            if count > _MOST_ELEMENTS:
                raise _Unknown
            parts = [self._part(source, i) for i in range(count)]
            several = all if target is aten.all.default else any
            return lambda: several(part() for part in parts)
        if target in _NOT:
            negated = self._part(node.args[0], self._place(node, node.args[0], at))
            return lambda: not negated()
        if target in _AND or target in _OR:
            left, right = (self._part(a, self._place(node, a, at)) for a in node.args)
            return (lambda: left() and right()) if target in _AND else (lambda: left() or right())
        source, at = self._source(node, at)
        return self._part(source, at)

    def _part(self, value: object, at: int) -> Callable[[], bool]:
        if not isinstance(value, Node):
            raise _Unknown
        self._check_unwritten(value)
        return self._condition(value, at)

    def _compared(self, node: Node, at: int) -> list[Number]:
        """The two numbers that a comparison compares at a place of its result."""
        specs = [a.spec for a in node.args if isinstance(a, Node) and isinstance(a.spec, TensorSpec)]
        if not all(map(self._is_floats, specs)):
            raise _Unknown
        dtypes = [s.dtype for s in specs if s.shape] or [s.dtype for s in specs]
        dtype = torch.float64 if torch.float64 in dtypes else torch.float32
        return [self._operand(a, dtype, self._place(node, a, at)) for a in node.args]

    def _place(self, node: Node, operand: object, at: int) -> int:
        """Where an operator reads an operand for the element of its result at `at`."""
        if (
            not isinstance(operand, Node)
            or not isinstance(operand.spec, TensorSpec)
            or not operand.spec.shape
        ):
            return 0
        places = torch.arange(self._elements(operand.spec)).view(self._shape(operand.spec))
        return int(places.expand(self._shape(node.spec)).flatten()[at])

    def _source(self, node: Node, at: int) -> tuple[Node, int]:
        """The tensor and the place that an operator took the element of its result at `at` from."""
        if node.target is operator.getitem:
            several, which = node.args
            target, (source, *rest) = several.target, several.args
            kwargs = several.kwargs
        else:
            which, target, (source, *rest), kwargs = None, node.target, node.args, node.kwargs
        known = (
            target in _MOVES or target in _VIEWS or (target in _SAME and source.spec.dtype is node.spec.dtype)
        )
        if not known or self._elements(source.spec) > _SMALL:
            raise _Unknown
        if target not in _MOVES:
            return source, at
        places = torch.arange(self._elements(source.spec)).view(self._shape(source.spec))
        moved = target(places, *map_leaves(rest, Expr, self._now), **map_leaves(kwargs, Expr, self._now))
        return source, int((moved if which is None else moved[which]).flatten()[at])

    def _check_unwritten(self, node: Node) -> None:
        storage = self._writes.storage_of(node)
        if storage is None or storage in self._trace.writes.storages:  # maybe after it was read
            raise _Unknown

    def _first(self, tensor: FakeTensor, at: int = 0) -> Number:
        """The number that `tensor` held before it was written, at a place."""
        real = self._trace.real(tensor)
        if real is None:
            return self._given(tensor.aten_node, at)
        if tensor.subclass is not None:
            raise _Unknown
        source = self._vm.outside.sources[id(tensor)]
        if not real.dim():
            source = source.child("member", "item").child("call", None)
        elif (
            self._is_floats(tensor.spec) and tensor.device.type == "cpu" and self._vm.outside.numbers.decides
        ):
            source = source.child("element", at)
        else:
            raise _Unknown
        with DisableTorchDispatch():
            value = real.detach().flatten()[at].item()
        if type(value) not in (int, float):
            raise _Unknown
        self._vm.outside.numbers.readings.add(source)
        return cast(Number, self._vm.outside.numbers.at(source, value))

    def _given(self, node: Node | None, at: int = 0) -> Number:
        """The number in the tensor that the operator of `node` made, at a place."""
        if node is None or not self._is_floats(node.spec):
            raise _Unknown
        if node.op == "get_attr":
            return float(self._trace.tape.aten.graph.constants[node.target].flatten()[at].item())
        if node.op != "call_function":
            raise _Unknown
        if node.target in _MADE:
            return _rounded(self._number(_MADE[node.target](*node.args)), node.spec.dtype)
        if node.target in _MOVES or node.target in _VIEWS or node.target is operator.getitem:
            return self._before(*self._source(node, at))
        compute = _ARITHMETIC.get(node.target)
        if (compute is None and node.target not in _SAME) or not _is_exact(node):
            raise _Unknown
        operands = self._operands(node, node.spec.dtype, at)
        value = compute(*operands) if compute else operands[0]
        return _rounded(cast(Number, value), node.spec.dtype)

    def _operands(self, node: Node, dtype: torch.dtype, at: int = 0) -> list[Number | None]:
        """The numbers that an operator on tensors of `dtype` computes with; None for the tensor that it writes."""
        kwargs = {k: v for k, v in node.kwargs.items() if k not in _LAYOUT}
        if kwargs.pop("alpha", 1) != 1 or any(v not in (None, False) for v in kwargs.values()):
            raise _Unknown
        first, *rest = node.args
        read = None if node.target in _IN_PLACE else self._operand(first, dtype, self._place(node, first, at))
        return [read, *(self._operand(a, dtype, self._place(node, a, at)) for a in rest)]

    def _operand(self, value: object, dtype: torch.dtype, at: int = 0) -> Number:
        if isinstance(value, Node) and isinstance(value.spec, TensorSpec):
            self._check_unwritten(value)
            number = self._before(value, at)
            return number if value.spec.dtype is dtype else _rounded(number, dtype)
        return _rounded(self._number(value), dtype)

    def _before(self, node: Node, at: int = 0) -> Number:
        """The number that the tensor of `node` held before its memory was written, at a place."""
        fake = self._writes.input_at(node)
        return self._given(node, at) if fake is None else self._first(fake, at)

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
        symbol = cast(Symbol, cast(torch.SymFloat, value).node)
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
        self.storage_of(node)
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
    if not isinstance(node.target, OpOverload):
        return
    info = effects(node.target)
    for name in info.writes:
        value = info.argument(name, node.args, node.kwargs)
        yield from (v for v in (value if isinstance(value, (list, tuple)) else (value,)) if v is not None)
