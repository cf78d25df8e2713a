"""The values of tensors of one element as symbolic numbers: `item()`, and tensors passed as numbers to an operator.

The guard tree reads the value of a float tensor of one element of the environment when the call begins, like other numbers.
Later operators of the trace on such tensors (counting steps, multiplying a product of momenta, computing a learning rate)
are replayed in Python arithmetic, rounded to the tensor's dtype after each operation as eager rounds. So the number does
not depend on the graph's results, and another value does not recompile. Where the number must be concrete (an index, a
text), or another operator computed the tensor, the graph breaks. In annotations, a symbolic number has the type of its
value.

Values on a GPU are read in the same way. The read waits for the GPU's stream, as in eager, but before the graph.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.vm.vm import VM
from smelt.errors import NeedsFixedSize
from smelt.graph.ir import Node, TensorSpec
from smelt.graph.operator_effects import effects
from smelt.graph.pytree import map_leaves
from smelt.ops.functional_variants import pure_of
from smelt.ops.registry import row
from smelt.shapes.expr import Expr, Size, Sym, evaluate, free_syms
from smelt.shapes.number_operations import Number, float32
from smelt.torch_private import DisableTorchDispatch, OpOverload, maybe_current_level
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in
from smelt.tracing.record.torch_function_handlers import is_handled
from smelt.tracing.record.trace import Trace
from smelt.tracing.symbolic.sym_nodes import Symbol
from smelt.tracing.symbolic.sym_numbers import NUMBERS
from smelt.tracing.symbolic.symbolic_numbers import PlainNumbersOnly

_MAX_EXACT = 1 << 23  # up to here, adding integers to a float32 is exact
_MAX_COUNT = 1 << 52  # up to here, an integer is exact as a Python float

_MAX_CONDITION_ELEMENTS = 16  # of a condition on all elements of a tensor
_MAX_ELEMENTS = 1024  # of a tensor whose elements are read
_LAYOUT = ("dtype", "layout", "device", "pin_memory", "memory_format")


class _Unknown(Exception):
    """The number cannot be computed before the graph runs."""


def is_unknown_element(vm: VM, value: object) -> bool:
    """Whether a value is a tensor of one element that is no constant, and that no transform of torch.func and no code of the
    user reads in another way."""
    if type(value) is not FakeTensor or value.subclass is not None or value.elem.numel() != 1:
        return False
    if maybe_current_level() is not None or is_handled(vm.trace.call, (value,)):
        return False
    return value.device.type in ("cpu", "cuda") and vm.trace.constants.value(value) is None


def number(vm: VM, tensor: FakeTensor) -> Number | None:
    """The current value of `tensor`: a number, symbolic if calls differ, or a guarded bool; None if unbacked."""
    if tensor.dtype is torch.bool and not vm.env.numbers.guards_conditions:
        return None
    return _read(vm, tensor, _ItemReader.condition if tensor.dtype is torch.bool else _ItemReader.of)


def count(vm: VM, tensor: FakeTensor) -> Number | None:
    """The current value of a step count of the environment, an integer in a 0-d tensor; None if it is unbacked."""
    return _read(vm, tensor, _ItemReader.integer)


def _read(vm: VM, tensor: FakeTensor, read: Callable[[_ItemReader, FakeTensor], Number]) -> Number | None:
    if not vm.env.numbers.symbolic_counts and vm.assumptions.may_break:
        return None
    with vm.trace.paused():
        try:
            reader = _ItemReader(vm)
            value = read(reader, tensor)
        except (_Unknown, ArithmeticError):
            return None
    if reader.symbols:
        raise NeedsFixedSize("elements of a tensor are read", frozenset(reader.symbols))
    return value


def _on_numbers(node: Node) -> Callable[..., object]:
    """What `node` computes, or writes in-place, for numbers. Raises _Unknown where it differs from what Python computes:
    a GPU divides by a number by multiplying with its reciprocal."""
    op, spec = node.target, node.spec
    pure = pure_of(op) if isinstance(op, OpOverload) and effects(op).writes else None
    is_out = pure is not None and any(a.is_out for a in op._schema.arguments)
    compute = None if is_out else row(op if pure is None else pure.op).on_numbers
    on_gpu = isinstance(spec, TensorSpec) and spec.device.type != "cpu"
    if compute is None or (compute is operator.truediv and on_gpu):
        raise _Unknown
    return compute


class _ItemReader:
    """Computes the current values of tensors by replaying recorded operators. Raises _Unknown where it cannot. `symbols`:
    the size symbols on whose current values the result depends; they must be specialized."""

    def __init__(self, vm: VM) -> None:
        self._vm = vm
        self._trace: Trace = vm.trace
        if vm.env.numbers.writes is None:
            vm.env.numbers.writes = _Writes(self._trace)
        self._writes: _Writes = vm.env.numbers.writes
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
            and self._elements(spec) <= _MAX_ELEMENTS
        )

    def of(self, tensor: FakeTensor) -> Number:
        """The value of `tensor`, which may have been written in-place since the call began."""
        if not self._is_floats(tensor.spec) or self._elements(tensor.spec) != 1:
            raise _Unknown
        writes = self._writes_to(tensor)
        if not writes:
            return self._initial(tensor)
        increments = [self._increment(node) for node in writes]
        if None not in increments:
            count = self._count(tensor, sum(increments), _MAX_EXACT)  # type: ignore[arg-type]
            if count is not None:
                return count
        return self._after(writes, self._initial(tensor), tensor.spec.dtype)

    def _writes_of(self, storage: int, tensor: Node | None) -> list[Node]:
        """The operators that wrote all of a storage through the tensor of this node."""
        writes = self._writes.to(storage)
        if any(target is not tensor for _, target in writes):
            raise _Unknown
        return [node for node, _ in writes]

    def _after(self, writes: Sequence[Node], held: Number, dtype: torch.dtype, at: int = 0) -> Number:
        """The element at index `at` after these operators, if `held` is its initial value."""
        for node in writes:
            compute, operands = _on_numbers(node), self._operands(node, dtype, at)
            held = _rounded(cast(Number, compute(held, *operands[1:])), dtype)
        return held

    def integer(self, tensor: FakeTensor) -> Number:
        """The value of `tensor`, an int64 to which only integers were added since the call began."""
        if tensor.dtype is not torch.int64 or tensor.dim() or self._trace.real(tensor) is None:
            raise _Unknown
        increments = [self._increment(node) for node in self._writes_to(tensor)]
        held = None if None in increments else self._count(tensor, sum(increments), _MAX_COUNT)  # type: ignore[arg-type]
        if held is None:
            raise _Unknown
        return held

    def _writes_to(self, tensor: FakeTensor) -> list[Node]:
        """The operators that wrote `tensor`. Raises _Unknown where one wrote a view of it."""
        is_written = tensor.storage_key in self._trace.writes.storages
        return self._writes_of(tensor.storage_key, tensor.aten_node) if is_written else []

    def _count(self, tensor: FakeTensor, added: int, below: int) -> Number | None:
        """The initial value of `tensor` plus the sum of the increments; None if the additions are not exact."""
        held = self._initial(tensor)
        is_integer = not tensor.dtype.is_floating_point or held % 1 == 0
        if not (is_integer and abs(held) < below):  # guarded, as is its opposite
            return None
        return held + added

    def _increment(self, node: Node) -> int | None:
        """The integer that the operator adds in-place; None for another operator."""
        try:
            if _on_numbers(node) is not operator.add:
                return None
        except _Unknown:
            return None
        other, *rest = node.args[1:]
        alpha = rest[0] if rest else node.kwargs.get("alpha", 1)
        if isinstance(other, Node):
            if other.op != "get_attr" or self._writes.storage_of(other) in self._trace.writes.storages:
                return None
            other = self._computed(other)
        if type(other) not in (int, float) or type(alpha) not in (int, float):
            return None
        amount = other * alpha
        return int(amount) if amount % 1 == 0 and abs(amount) < _MAX_EXACT else None

    def condition(self, tensor: FakeTensor) -> bool:
        """The value of a tensor of one bool, which is guarded."""
        if tensor.aten_node is None or tensor.storage_key in self._trace.writes.storages:
            raise _Unknown
        evaluate_condition = self._condition(tensor.aten_node, 0)
        try:
            return evaluate_condition()
        except PlainNumbersOnly:
            raise _Unknown from None

    def _condition(self, node: Node, at: int) -> Callable[[], bool]:
        """A function that evaluates and guards the bool at an index of a tensor; the compared numbers are read now."""
        spec, known = node.spec, row(node.target)
        if node.op != "call_function" or not isinstance(spec, TensorSpec) or spec.dtype is not torch.bool:
            raise _Unknown
        condition = known.condition
        if condition is not None:
            numbers = self._compared(node, at)
            return lambda: bool(condition(*numbers))
        if known.logic in ("all", "any"):
            (source,) = node.args
            count = self._elements(source.spec)
            if count > _MAX_CONDITION_ELEMENTS:
                raise _Unknown
            elements = [self._operand_condition(source, i) for i in range(count)]
            reduce = all if known.logic == "all" else any
            return lambda: reduce(element() for element in elements)
        if known.logic == "not":
            operand = self._operand_condition(node.args[0], self._operand_index(node, node.args[0], at))
            return lambda: not operand()
        if known.logic is not None:
            left, right = (self._operand_condition(a, self._operand_index(node, a, at)) for a in node.args)
            return (lambda: left() and right()) if known.logic == "and" else (lambda: left() or right())
        source, at = self._source(node, at)
        return self._operand_condition(source, at)

    def _operand_condition(self, value: object, at: int) -> Callable[[], bool]:
        if not isinstance(value, Node):
            raise _Unknown
        self._check_unwritten(value)
        return self._condition(value, at)

    def _compared(self, node: Node, at: int) -> list[Number]:
        """The operands of a comparison or predicate for the element at index `at` of its result."""
        specs = [a.spec for a in node.args if isinstance(a, Node) and isinstance(a.spec, TensorSpec)]
        if not all(map(self._is_floats, specs)):
            raise _Unknown
        dtypes = [s.dtype for s in specs if s.shape] or [s.dtype for s in specs]
        dtype = torch.float64 if torch.float64 in dtypes else torch.float32
        return [self._operand(node, a, dtype, at) for a in node.args]

    def _operand_index(self, node: Node, operand: object, at: int) -> int:
        """The index at which a pointwise operator reads an operand for the element at index `at` of its result."""
        if (
            not isinstance(operand, Node)
            or not isinstance(operand.spec, TensorSpec)
            or not operand.spec.shape
        ):
            return 0
        indices = torch.arange(self._elements(operand.spec)).view(self._shape(operand.spec))
        return int(indices.expand(self._shape(node.spec)).flatten()[at])

    def _source(self, node: Node, at: int) -> tuple[Node, int]:
        """The tensor and index from which a moving operator takes the element at index `at` of its result."""
        if node.target is operator.getitem:
            call, output = node.args
            target, (source, *rest) = call.target, call.args
            kwargs = call.kwargs
        else:
            output, target, (source, *rest), kwargs = None, node.target, node.args, node.kwargs
        elements = row(target).elements
        if (
            not elements
            or source.spec.dtype != node.spec.dtype
            or self._elements(source.spec) > _MAX_ELEMENTS
        ):
            raise _Unknown
        if elements == "same":
            return source, at
        indices = torch.arange(self._elements(source.spec)).view(self._shape(source.spec))
        moved = target(indices, *map_leaves(rest, Expr, self._now), **map_leaves(kwargs, Expr, self._now))
        return source, int((moved if output is None else moved[output]).flatten()[at])

    def _check_unwritten(self, node: Node) -> None:
        storage = self._writes.storage_of(node)
        if storage is None or storage in self._trace.writes.storages:  # perhaps after it was read
            raise _Unknown

    def _initial(self, tensor: FakeTensor, at: int = 0) -> Number:
        """The initial value of the element at index `at` of `tensor`, before in-place writes."""
        real = self._trace.real(tensor)
        if real is None:
            return self._computed(tensor.aten_node, at)
        if tensor.subclass is not None:
            raise _Unknown
        source = self._vm.env.sources[id(tensor)]
        if not real.dim():
            source = source.child("member", "item").child("call", None)
        elif (
            self._is_floats(tensor.spec)
            and tensor.device.type == "cpu"
            and self._vm.env.numbers.guards_conditions
        ):
            source = source.child("element", at)
        else:
            raise _Unknown
        with DisableTorchDispatch():
            value = real.detach().flatten()[at].item()
        if type(value) not in (int, float):
            raise _Unknown
        self._vm.env.numbers.readings.add(source)
        return cast(Number, self._vm.env.numbers.at(source, value))

    def _computed(self, node: Node | None, at: int = 0) -> Number:
        """The element at index `at` of the tensor that `node` computes."""
        if node is None or not self._is_floats(node.spec):
            raise _Unknown
        if node.op == "get_attr":
            return float(self._trace.tape.aten.graph.constants[node.target].flatten()[at].item())
        if node.op != "call_function":
            raise _Unknown
        known = row(node.target)
        if known.filled is not None:
            return _rounded(self._number(known.filled(*node.args)), node.spec.dtype)
        if known.on_numbers is None and (known.elements or node.target is operator.getitem):
            return self._before(*self._source(node, at))
        compute, operands = _on_numbers(node), self._operands(node, node.spec.dtype, at)
        return _rounded(cast(Number, compute(*operands)), node.spec.dtype)

    def _operands(self, node: Node, dtype: torch.dtype, at: int = 0) -> list[Number | None]:
        """The operands of an operator on `dtype`, for the element at index `at`; None for a tensor that it writes."""
        kwargs = {k: v for k, v in node.kwargs.items() if k not in _LAYOUT}
        if kwargs.pop("alpha", 1) != 1 or any(v not in (None, False) for v in kwargs.values()):
            raise _Unknown
        first, *rest = node.args
        read = None if effects(node.target).writes else self._operand(node, first, dtype, at)
        return [read, *(self._operand(node, a, dtype, at) for a in rest)]

    def _operand(self, node: Node, value: object, dtype: torch.dtype, at: int) -> Number:
        """What an operator reads of its operand `value` for the element at index `at` of its result."""
        if not isinstance(value, Node) or not isinstance(value.spec, TensorSpec):
            return _rounded(self._number(value), dtype)
        at = self._operand_index(node, value, at)
        number = self._after(self._writes_before(node, value), self._before(value, at), value.spec.dtype, at)
        return number if value.spec.dtype is dtype else _rounded(number, dtype)

    def _writes_before(self, node: Node, value: Node) -> list[Node]:
        """The operators that wrote the tensor of `value`, all of which ran before `node`."""
        storage = self._writes.storage_of(value)
        if storage is None:
            raise _Unknown
        if storage not in self._trace.writes.storages:
            return []
        writes = self._writes_of(storage, value)
        if any(self._writes.at(write) >= self._writes.at(node) for write in writes):
            raise _Unknown
        return writes

    def _before(self, node: Node, at: int = 0) -> Number:
        """The element at index `at` of the tensor of `node`, before in-place writes."""
        fake = self._writes.input_at(node)
        return self._computed(node, at) if fake is None else self._initial(fake, at)

    def _number(self, value: object) -> Number:
        if isinstance(value, Node):
            for number_input in self._trace.numbers.by_expression.values():
                if number_input.nodes.get(self._trace.tape.aten.graph.level) is value:
                    return cast(Number, number_input.symbol.number())
            raise _Unknown
        if type(value) is int or type(value) is float:
            return value
        raise _Unknown


def _rounded(value: Number, dtype: torch.dtype) -> Number:
    """`value` rounded to `dtype`."""
    if type(value) in NUMBERS:
        symbol = cast(Symbol, cast(torch.SymFloat, value).node)
        return cast(Number, symbol.symbols.call("float32" if dtype is torch.float32 else "float", symbol))
    return float32(value) if dtype is torch.float32 else float(value)


class _Writes:
    """The operators that wrote each storage, updated incrementally: an optimizer queries them for each parameter."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._by_storage: dict[int | None, list[tuple[Node, Node]]] = {}  # None: unknown storages
        self._storages: dict[Node, int] = {}
        self._inputs_at: dict[Node, FakeTensor] = {}
        self._positions: dict[Node, int] = {}
        self._n_records = 0  # of the tape, that are processed
        self._inputs: list[FakeTensor] = []  # that no operator has read yet
        self._n_inputs = 0  # that are processed

    def to(self, storage: int) -> list[tuple[Node, Node]]:
        """(operator, its written argument), for the operators that may have written this storage."""
        self._update()
        return [*self._by_storage.get(storage, ()), *self._by_storage.get(None, ())]

    def storage_of(self, node: Node) -> int | None:
        """The storage of the tensor of `node`; None if it is not recorded."""
        self._update()
        if node not in self._storages:
            self._update_inputs()
        return self._storages.get(node)

    def at(self, node: Node) -> int:
        """The position of an operator in the tape."""
        self._update()
        return self._positions[node]

    def input_at(self, node: Node) -> FakeTensor | None:
        """The input tensor of a placeholder; None for another node."""
        if node.op == "placeholder" and node not in self._inputs_at:
            self._update_inputs()
        return self._inputs_at.get(node)

    def _update(self) -> None:
        records = self._trace.tape.entries
        for position, record in enumerate(records[self._n_records :], self._n_records):
            self._positions[record.node] = position
            self._storages.update((f.aten_node, f.storage_key) for f in fakes_in(record.out) if f.aten_node)
            for argument in _written_arguments(record.node):
                if argument not in self._storages:
                    self._update_inputs()
                self._by_storage.setdefault(self._storages.get(argument), []).append((record.node, argument))
        self._n_records = len(records)

    def _update_inputs(self) -> None:
        self._inputs += self._trace.inputs[self._n_inputs :]
        self._n_inputs = len(self._trace.inputs)
        for fake in self._inputs:
            if fake.aten_node:
                self._storages[fake.aten_node] = fake.storage_key
                self._inputs_at[fake.aten_node] = fake
        self._inputs = [f for f in self._inputs if not f.aten_node]


def _written_arguments(node: Node) -> Iterator[Node]:
    if not isinstance(node.target, OpOverload):
        return
    info = effects(node.target)
    for name in info.writes:
        value = info.argument(name, node.args, node.kwargs)
        yield from (v for v in (value if isinstance(value, (list, tuple)) else (value,)) if v is not None)
