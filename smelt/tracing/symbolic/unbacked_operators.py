"""Operators with data-dependent result sizes, and reads of numbers: unbacked symbols stand for what only the graph
knows.

`nonzero` of a tensor that is not written in between is recorded once, so that all tensors selected by one mask have
one size. An index by masks becomes an index by their `nonzero()`. Invariant: the program never receives a `nonzero()`
tensor that such an index reads, as it may write it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.graph.ir import Node, TensorSpec
from smelt.graph.operator_effects import effects
from smelt.graph.sample_sizes import MOST_UNBACKED, at
from smelt.graph.tensor_specs import make_spec
from smelt.graph.unbacked_sizes import AS_SIZES, unbacked_sizes_of, unbacked_symbol
from smelt.ops.node_builders import CLONE, SCALAR
from smelt.ops.registry import row
from smelt.ops.symbolic_results import symbols_in
from smelt.ops.symbolic_rules import SELECT, STRIDED
from smelt.shapes.expr import Size, Sym
from smelt.torch_private import OpOverload, maybe_current_level
from smelt.tracing.fake.fake_tensor import FakeTensor, fake_shape, fakes_in
from smelt.tracing.record.aten_call_recorder import AtenCallRecorder
from smelt.tracing.record.call_arguments import Args, Kwargs
from smelt.tracing.symbolic.symbolic_numbers import Symbols
from smelt.tracing.symbolic.unbacked_numbers import UnbackedNumber

aten = torch.ops.aten
_CPU = torch.device("cpu")
_MASKS = (torch.bool, torch.uint8)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _symbols(recorder: AtenCallRecorder, *tensors: Any) -> Symbols | None:
    """The `Symbols` to create unbacked numbers with; None where they must not be symbolic."""
    numbers, call = recorder.numbers, recorder.call
    if numbers.symbols_for_unbacked is None or call.is_opaque or maybe_current_level() is not None:
        return None
    if any(type(t) is not FakeTensor or t.device != _CPU or t.subclass is not None for t in tensors):
        return None
    symbols = numbers.symbols_for_unbacked()
    return None if len(symbols.unbacked.numbers) >= MOST_UNBACKED or call.backwards is not None else symbols


class _NewNumbers:
    """Creates the unbacked numbers of one operator; their carriers are known when it is recorded. `what`: their description
    in messages."""

    def __init__(self, symbols: Symbols, what: str) -> None:
        self._symbols, self._what = symbols, what
        self.created: list[UnbackedNumber] = []

    def size(self) -> Sym:
        facts = self._symbols.unbacked
        number = UnbackedNumber(unbacked_symbol(len(facts.numbers), facts.specialized_value), self._what, 0)
        number.hint = at(number.sym, 0)
        self.created.append(number)
        self._symbols.unbacked_leaf(number)
        return number.sym

    def carried_by(self, out: Any) -> None:
        """Set the carriers: fakes that have the numbers as sizes."""
        for fake in out if isinstance(out, (tuple, list)) else (out,):
            shape = fake.spec.shape
            for number in self.created:
                if number.carrier is None and number.sym in shape:
                    number.carrier, number.dim = fake, shape.index(number.sym)


# ---- numbers


def number(recorder: AtenCallRecorder, tensor: Any) -> Any:
    """The number in a tensor of one integer. None where it cannot be symbolic, or where native code created the tensor
    inside a call: the torch-level graph has no node for it."""
    if _symbols(recorder, tensor) is None or not (tensor.torch_node or recorder.inputs.holds(tensor)):
        return None
    keys = [("number", key) for key in _value_keys(recorder, tensor)]
    carrier = _recorded_for(recorder, tensor, keys)
    if carrier is not None:
        return fake_shape(carrier)[1]
    carrier = _as_sizes(recorder, [tensor])
    if carrier is NotImplemented:
        return None
    _add_torch_node(recorder, AS_SIZES, ([tensor],), carrier)
    recorder.mask_indices |= dict.fromkeys(keys, (tensor, carrier))
    return fake_shape(carrier)[1]


def _as_sizes(recorder: AtenCallRecorder, tensors: Sequence[Any]) -> Any:
    symbols = _symbols(recorder, *tensors)
    if symbols is None or len(symbols.unbacked.numbers) + len(tensors) > MOST_UNBACKED:
        return NotImplemented
    if any(t.dtype not in _INTEGERS or any(n != 1 for n in t.spec.shape) for t in tensors):
        return NotImplemented
    new = _NewNumbers(symbols, "a number that a tensor holds")
    shape: list[Size] = [0, *(new.size() for _ in tensors)]
    spec = make_spec(tuple(shape), (0,) * len(shape), torch.float32, _CPU)
    carrier = recorder.record_with_specs(AS_SIZES, (list(tensors),), {}, spec)
    new.carried_by(carrier)
    return carrier


def _add_torch_node(recorder: AtenCallRecorder, func: OpOverload, args: Args, out: FakeTensor) -> None:
    """Give a fake that no torch-level call returns a torch-level node: the number may leave the graph through it."""

    def node(value: Any) -> Any:
        if isinstance(value, list):
            return [node(v) for v in value]
        return value.torch_node or recorder.inputs.torch_node(value)

    line = recorder.call.line()
    stem = func._schema.name.split("::")[1]
    out.torch_node = recorder.tape.torch.make(
        "call_function", func, tuple(map(node, args)), {}, stem, out.spec, line
    )


def size_of(recorder: AtenCallRecorder, size: Size) -> Size:
    """A symbol for a size over unbacked symbols, which might be negative for some sample values."""
    symbols = recorder.numbers.symbols
    assert symbols is not None
    symbol = symbols.unbacked.size_symbols.get(size)
    if symbol is None:
        scalar = recorder.run(SCALAR, (symbols.number(size),), {"dtype": torch.int64})
        carrier = _as_sizes(recorder, [scalar])
        if carrier is NotImplemented:
            return size
        symbol = symbols.unbacked.size_symbols[size] = carrier.spec.shape[1]
        symbols.assume("eq", symbol, size)
    return symbol


# ---- indices of masks


def mask_indices(recorder: AtenCallRecorder, mask: FakeTensor, exposed: bool = False) -> FakeTensor | None:
    """`mask.nonzero()`; None where its size cannot be symbolic. `exposed`: the program receives it."""
    keys = _value_keys(recorder, mask)
    recorded = _recorded_for(recorder, mask, keys)
    if recorded is not None and not exposed and recorded.storage_key not in recorder.exposed_masks:
        return recorded
    indices = _record_nonzero(recorder, mask) if recorded is None else _copied(recorder, recorded)
    if indices is None:
        return None
    if exposed:
        recorder.exposed_masks.add(indices.storage_key)
    if recorded is None or not exposed:
        recorder.mask_indices |= dict.fromkeys(keys, (mask, indices))
    return indices


def _copied(recorder: AtenCallRecorder, indices: FakeTensor) -> FakeTensor:
    """A copy with the same strides, which `clone` changes where there are no rows."""
    copied = recorder.run(CLONE, (indices,), {})
    layout = (list(indices.spec.shape), list(indices.spec.stride))
    laid_out: FakeTensor = recorder.run(STRIDED, (copied, *layout), {})
    return laid_out


def _record_nonzero(recorder: AtenCallRecorder, mask: FakeTensor) -> FakeTensor | None:
    symbols = _symbols(recorder, mask)
    if symbols is None or not mask.spec.shape:
        return None
    named = recorder.call.node is not None
    if named and mask.torch_node is None and not recorder.inputs.holds(mask):
        return (
            None  # a mask that C++ created within the call (`torch.combinations`): it has no torch-level node
        )
    new = _NewNumbers(symbols, "how many elements a mask selects")
    rows, dims = new.size(), len(mask.spec.shape)
    spec = make_spec((rows, dims), (1, rows), torch.int64, _CPU)
    indices: FakeTensor = recorder.record_with_specs(aten.nonzero.default, (mask,), {}, spec)
    new.carried_by(indices)
    if named:
        _add_torch_node(recorder, aten.nonzero.default, (mask,), indices)
    return indices


def _recorded_for(recorder: AtenCallRecorder, tensor: FakeTensor, keys: Sequence[Any]) -> FakeTensor | None:
    """The result recorded for an equal tensor, unless one of the two was written."""
    found = next((recorder.mask_indices[key][1] for key in keys if key in recorder.mask_indices), None)
    if found is None or not recorder.writes.storages.isdisjoint((tensor.storage_key, found.storage_key)):
        return None
    return found


def _value_keys(recorder: AtenCallRecorder, tensor: FakeTensor) -> list[Any]:
    """Value keys: tensors with a common key are equal, as long as they are not written. They are the same, or computed
    by the same operators from the same tensors, none of which was written."""
    node = tensor.aten_node or recorder.inputs.aten_node(tensor)
    visited: list[Node] = []
    keys = [_computation_key(node, 0, []), _computation_key(node, _DEPTH, visited)]
    return keys if not recorder.writes.happened or _nodes_written(recorder).isdisjoint(visited) else keys[:1]


def _nodes_written(recorder: AtenCallRecorder) -> set[Node | None]:
    """Nodes of tensors whose memory some operator wrote."""
    storages = recorder.writes.storages
    fakes = [fake for entry in recorder.tape.entries for fake in fakes_in(entry.out)]
    return {fake.aten_node for fake in (*recorder.inputs, *fakes) if fake.storage_key in storages}


def _computation_key(node: Node, depth: int, visited: list[Node]) -> Any:
    """A key that is equal for nodes with equal computations up to `depth` operators. Appends the nodes it depends on
    to `visited`."""
    while isinstance(node.target, OpOverload) and effects(node.target).identity:  # saved tensors of autograd
        node = node.args[0]
    visited.append(node)
    is_pure = (
        isinstance(node.target, OpOverload) and effects(node.target).pure and not unbacked_sizes_of(node)
    )
    if not depth or not is_pure:
        return node

    def key(value: Any) -> Any:
        if isinstance(value, Node):
            return _computation_key(value, depth - 1, visited)
        if isinstance(value, (list, tuple)):
            return tuple(map(key, value))
        return type(value), repr(value) if isinstance(value, float) else value

    return node.target, key(node.args), tuple((k, key(v)) for k, v in node.kwargs.items())


_DEPTH = 6  # operators between two masks and their common sources


def indexed(recorder: AtenCallRecorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """An index by masks, as an index by their `nonzero()`."""
    fake, indices, *trailing = args
    if trailing and not symbols_in(trailing, _spec):
        return NotImplemented  # the written values need no size
    selected: list[Any] = []
    for index in indices:
        if not isinstance(index, torch.Tensor) or index.dtype not in _MASKS:
            selected.append(index)
            continue
        nonzero = mask_indices(recorder, index) if type(index) is FakeTensor else None
        if nonzero is None:
            return NotImplemented
        dims = index.dim()
        selected += [recorder.run(SELECT, (nonzero, 1, d), {}) for d in range(dims)]
    return recorder.run(func, (fake, selected, *trailing), kwargs)


def _spec(value: Any) -> TensorSpec | None:
    return value.spec if type(value) is FakeTensor else None


# ---- other operators


def record_unbacked(recorder: AtenCallRecorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Run an operator with a data-dependent result size; NotImplemented where the size cannot be symbolic."""
    arguments = {a.name: a.default_value for a in func._schema.arguments}
    arguments.update(zip(arguments, args))
    arguments.update(kwargs)
    if func is aten.nonzero.default:
        indices = mask_indices(recorder, args[0], exposed=True) if type(args[0]) is FakeTensor else None
        return NotImplemented if indices is None else indices
    if func is AS_SIZES:
        return _as_sizes(recorder, args[0])
    if func is aten.masked_select.default:
        return _selected(recorder, *args)
    unbacked = row(func).unbacked
    tensors = [v for v in arguments.values() if isinstance(v, torch.Tensor)]
    symbols = None if unbacked is None else _symbols(recorder, *tensors)
    if symbols is None or unbacked is None:
        return NotImplemented
    what, specs = unbacked
    new = _NewNumbers(symbols, what)
    spec = specs(new.size, **arguments)
    if spec is NotImplemented:
        return NotImplemented
    out = recorder.record_with_specs(func, args, kwargs, spec)
    new.carried_by(out)
    return out


def _selected(recorder: AtenCallRecorder, x: Any, mask: Any) -> Any:
    if type(x) is not FakeTensor or type(mask) is not FakeTensor or x.spec.shape != mask.spec.shape:
        return NotImplemented
    return indexed(recorder, aten.index.Tensor, (x, [mask]), {})
