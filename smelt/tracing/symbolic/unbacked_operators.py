"""Operators that give as many elements as data decide, and reads of numbers: symbols stand for what only the graph knows.

`nonzero` of a tensor that is not written in between is recorded once, so that what one mask selects of several tensors has
one size. An index by masks is one by the places where they are true. What always holds: the program is given no places that
an index by a mask reads, as it may write them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.graph.ir import Node, TensorSpec
from smelt.graph.operator_effects import effects
from smelt.graph.sample_sizes import at
from smelt.graph.tensor_specs import make_spec
from smelt.graph.unbacked_sizes import AS_SIZES, unbacked_symbol, given_sizes
from smelt.ops.symbolic_results import symbols_in
from smelt.shapes.expr import Size, Sym, contiguous_stride, numel
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
_MOST = 24  # numbers, as many as `graph/sample_sizes.py` knows values for


def _symbols(recorder: AtenCallRecorder, *given: Any) -> Symbols | None:
    """What makes symbols, where a number may be one."""
    numbers, call = recorder.numbers, recorder.call
    if numbers.symbols_for_unbacked is None or call.is_opaque or maybe_current_level() is not None:
        return None
    if any(type(t) is not FakeTensor or t.device != _CPU or t.subclass is not None for t in given):
        return None
    symbols = numbers.symbols_for_unbacked()
    return None if len(symbols.unbacked.numbers) >= _MOST or call.backwards is not None else symbols


class _New:
    """Makes the symbols of one operator, whose carriers are known when it is recorded. `what`: the numbers, for people."""

    def __init__(self, symbols: Symbols, what: str) -> None:
        self._symbols, self._what = symbols, what
        self.made: list[UnbackedNumber] = []

    def size(self) -> Sym:
        known = self._symbols.unbacked
        number = UnbackedNumber(unbacked_symbol(len(known.numbers), known.specialized_value), self._what, 0)
        number.hint = at(number.sym, 0)
        self.made.append(number)
        self._symbols.unbacked_leaf(number)
        return number.sym

    def carried_by(self, out: Any) -> None:
        """The numbers are the sizes of these fakes."""
        for fake in out if isinstance(out, (tuple, list)) else (out,):
            shape = fake.spec.shape
            for number in self.made:
                if number.carrier is None and number.sym in shape:
                    number.carrier, number.dim = fake, shape.index(number.sym)


# ---- numbers


def number(recorder: AtenCallRecorder, tensor: Any) -> Any:
    """The number that a tensor of one integer holds. None where it cannot be symbolic, or where native code made the tensor
    inside of a call: the torch-level graph has no node for it."""
    if _symbols(recorder, tensor) is None or not (tensor.torch_node or recorder.inputs.holds(tensor)):
        return None
    keys = [("number", value) for value in _values(recorder, tensor)]
    known = _known(recorder, tensor, keys)
    if known is not None:
        return fake_shape(known)[1]
    found = _as_sizes(recorder, [tensor])
    if found is NotImplemented:
        return None
    _name(recorder, AS_SIZES, ([tensor],), found)
    recorder.mask_indices |= dict.fromkeys(keys, (tensor, found))
    return fake_shape(found)[1]


def _as_sizes(recorder: AtenCallRecorder, tensors: Sequence[Any]) -> Any:
    symbols = _symbols(recorder, *tensors)
    if symbols is None or len(symbols.unbacked.numbers) + len(tensors) > _MOST:
        return NotImplemented
    if any(t.dtype not in _INTEGERS or any(n != 1 for n in t.spec.shape) for t in tensors):
        return NotImplemented
    new = _New(symbols, "a number that a tensor holds")
    shape: list[Size] = [0, *(new.size() for _ in tensors)]
    spec = make_spec(tuple(shape), (0,) * len(shape), torch.float32, _CPU)
    carrier = recorder.record_with_specs(AS_SIZES, (list(tensors),), {}, spec)
    new.carried_by(carrier)
    return carrier


def _name(recorder: AtenCallRecorder, func: OpOverload, args: Args, out: FakeTensor) -> None:
    """Gives a fake that no torch-level call gives a torch-level node: the number may leave the graph through it."""

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
    """A symbol for a size that data decide and that is no symbol: for numbers that are tried it might be negative."""
    symbols = recorder.numbers.symbols
    assert symbols is not None
    found = symbols.unbacked.size_symbols.get(size)
    if found is None:
        holds = recorder.run(aten.scalar_tensor.default, (symbols.number(size),), {"dtype": torch.int64})
        carrier = _as_sizes(recorder, [holds])
        if carrier is NotImplemented:
            return size
        found = symbols.unbacked.size_symbols[size] = carrier.spec.shape[1]
        symbols.assume("eq", found, size)
    return found


# ---- places of masks


def places(recorder: AtenCallRecorder, mask: FakeTensor, shown: bool = False) -> FakeTensor | None:
    """`mask.nonzero()`; None where its size cannot be symbolic. `shown`: the program is given it."""
    keys = _values(recorder, mask)
    known = _known(recorder, mask, keys)
    if known is not None and not shown and known.storage_key not in recorder.exposed_masks:
        return known
    found = _recorded(recorder, mask) if known is None else _copied(recorder, known)
    if found is None:
        return None
    if shown:
        recorder.exposed_masks.add(found.storage_key)
    if known is None or not shown:
        recorder.mask_indices |= dict.fromkeys(keys, (mask, found))
    return found


def _copied(recorder: AtenCallRecorder, found: FakeTensor) -> FakeTensor:
    """The same in memory of its own. Where it has no rows, copies have other strides."""
    copied = recorder.run(aten.clone.default, (found,), {})
    layout = (list(found.spec.shape), list(found.spec.stride))
    laid_out: FakeTensor = recorder.run(aten.as_strided.default, (copied, *layout), {})
    return laid_out


def _recorded(recorder: AtenCallRecorder, mask: FakeTensor) -> FakeTensor | None:
    symbols = _symbols(recorder, mask)
    if symbols is None or not mask.spec.shape:
        return None
    named = recorder.call.node is not None
    if named and mask.torch_node is None and not recorder.inputs.holds(mask):
        return (
            None  # a mask that C++ made within the call (`torch.combinations`): nobody could name its places
        )
    new = _New(symbols, "how many elements a mask selects")
    rows, dims = new.size(), len(mask.spec.shape)
    spec = make_spec((rows, dims), (1, rows), torch.int64, _CPU)
    found: FakeTensor = recorder.record_with_specs(aten.nonzero.default, (mask,), {}, spec)
    new.carried_by(found)
    if named:
        _name(recorder, aten.nonzero.default, (mask,), found)
    return found


def _known(recorder: AtenCallRecorder, tensor: FakeTensor, keys: Sequence[Any]) -> FakeTensor | None:
    """What was recorded for an equal tensor, unless this one or that was written."""
    found = next((recorder.mask_indices[key][1] for key in keys if key in recorder.mask_indices), None)
    if found is None or not recorder.writes.storages.isdisjoint((tensor.storage_key, found.storage_key)):
        return None
    return found


def _values(recorder: AtenCallRecorder, tensor: FakeTensor) -> list[Any]:
    """Tensors that have one of these in common are equal, as long as they are not written: the same, or computed alike from
    the same, of which nothing was written."""
    node = tensor.aten_node or recorder.inputs.aten_node(tensor)
    met: list[Node] = []
    keys = [_computed(node, 0, []), _computed(node, _DEPTH, met)]
    return keys if not recorder.writes.happened or _written(recorder).isdisjoint(met) else keys[:1]


def _written(recorder: AtenCallRecorder) -> set[Node | None]:
    """Those that gave a tensor, or stand for one, whose memory some operator wrote."""
    storages = recorder.writes.storages
    fakes = [fake for entry in recorder.tape.entries for fake in fakes_in(entry.out)]
    return {fake.aten_node for fake in (*recorder.inputs, *fakes) if fake.storage_key in storages}


def _computed(node: Node, depth: int, met: list[Node]) -> Any:
    """What is the same for nodes that compute alike, by as many operators; `met` is told which nodes were looked at."""
    while node.target in _SAME:  # as autograd gives what it has saved
        node = node.args[0]
    met.append(node)
    alike = isinstance(node.target, OpOverload) and effects(node.target).pure and not given_sizes(node)
    if not depth or not alike:
        return node

    def key(value: Any) -> Any:
        if isinstance(value, Node):
            return _computed(value, depth - 1, met)
        if isinstance(value, (list, tuple)):
            return tuple(map(key, value))
        return type(value), repr(value) if isinstance(value, float) else value

    return node.target, key(node.args), tuple((k, key(v)) for k, v in node.kwargs.items())


_SAME = (aten.detach.default, aten.alias.default)
_DEPTH = 6  # operators that two masks may be apart from what they are computed from


def indexed(recorder: AtenCallRecorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """An index by masks as one by places."""
    fake, indices, *rest = args
    if func is not aten.index.Tensor and not symbols_in(rest, _spec):
        return NotImplemented  # what is written needs no size
    selected: list[Any] = []
    for index in indices:
        if not isinstance(index, torch.Tensor) or index.dtype not in _MASKS:
            selected.append(index)
            continue
        found = places(recorder, index) if type(index) is FakeTensor else None
        if found is None:
            return NotImplemented
        dims = index.dim()
        selected += [recorder.run(aten.select.int, (found, 1, d), {}) for d in range(dims)]
    return recorder.run(func, (fake, selected, *rest), kwargs)


def _spec(value: Any) -> TensorSpec | None:
    return value.spec if type(value) is FakeTensor else None


# ---- other operators

Sizes = Callable[[_New, FakeTensor, Kwargs], Any]


def sized(recorder: AtenCallRecorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """An operator whose results have a size that data decide; NotImplemented where it cannot be symbolic."""
    given = {a.name: a.default_value for a in func._schema.arguments}
    given.update(zip(given, args))
    given.update(kwargs)
    if func is aten.nonzero.default:
        found = places(recorder, args[0], shown=True) if type(args[0]) is FakeTensor else None
        return NotImplemented if found is None else found
    if func is AS_SIZES:
        return _as_sizes(recorder, args[0])
    if func is aten.masked_select.default:
        return _selected(recorder, *args)
    layout = _LAYOUTS.get(func)
    tensors = [v for v in given.values() if isinstance(v, torch.Tensor)]
    symbols = None if layout is None else _symbols(recorder, *tensors)
    if symbols is None or layout is None:
        return NotImplemented
    new = _New(symbols, _WHAT[func])
    spec = layout(new, **given)
    if spec is NotImplemented:
        return NotImplemented
    out = recorder.record_with_specs(func, args, kwargs, spec)
    new.carried_by(out)
    return out


def _selected(recorder: AtenCallRecorder, x: Any, mask: Any) -> Any:
    if type(x) is not FakeTensor or type(mask) is not FakeTensor or x.spec.shape != mask.spec.shape:
        return NotImplemented
    return indexed(recorder, aten.index.Tensor, (x, [mask]), {})


def _unique(new: _New, self: FakeTensor, return_inverse: bool, return_counts: bool, **_: Any) -> Any:
    size = new.size()
    return (
        _fresh((size,), self),
        _fresh(self.spec.shape if return_inverse else (0,), self, torch.int64),
        _fresh((size,) if return_counts else (0,), self, torch.int64),
    )


def _unique_rows(new: _New, self: FakeTensor, dim: int | None, **flags: Any) -> Any:
    shape = self.spec.shape
    if dim is None:
        return _unique(new, self, **flags)
    if not -len(shape) <= dim < len(shape) or 0 in shape:
        return NotImplemented
    dim, size = dim % len(shape), new.size()
    others = (*shape[:dim], *shape[dim + 1 :])
    _, *strides = contiguous_stride((size, *others))  # it sorts rows that lie one after the other
    strides.insert(dim, numel(others))
    rows = make_spec((*shape[:dim], size, *shape[dim + 1 :]), tuple(strides), self.dtype, _CPU)
    return rows, _fresh((shape[dim],), self, torch.int64), _fresh((size,), self, torch.int64)


def _fresh(shape: tuple[Size, ...], like: FakeTensor, dtype: torch.dtype | None = None) -> TensorSpec:
    return make_spec(shape, contiguous_stride(shape), dtype or like.dtype, _CPU)


def _repeats(new: _New, repeats: FakeTensor, output_size: Any) -> Any:
    return NotImplemented if output_size is not None else _fresh((new.size(),), repeats)


def _counts(new: _New, self: FakeTensor, weights: FakeTensor | None, minlength: Any) -> Any:
    dtype = (
        torch.int64 if weights is None else torch.float32 if weights.dtype is torch.float32 else torch.float64
    )
    return _fresh((new.size(),), self, dtype)


_LAYOUTS: dict[OpOverload, Callable[..., Any]] = {
    aten._unique2.default: _unique,
    aten.unique_dim.default: _unique_rows,
    aten.unique_consecutive.default: _unique_rows,
    aten.repeat_interleave.Tensor: _repeats,
    aten.bincount.default: _counts,
}
_WHAT = {
    aten._unique2.default: "how many values are different",
    aten.unique_dim.default: "how many rows are different",
    aten.unique_consecutive.default: "how many values are different from those before",
    aten.repeat_interleave.Tensor: "a sum of repeats",
    aten.bincount.default: "a largest value",
}
