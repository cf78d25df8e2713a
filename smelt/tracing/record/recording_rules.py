"""Per-operator recording rules: `RULES` has one for each `TraceRule` that rows of the operator registry name.

A rule is called as `rule(recorder, func, args, kwargs)`. It returns the result, or NotImplemented to have the operator
recorded in the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from smelt.errors import NeedsFixedSize
from smelt.graph.ir import TensorSpec
from smelt.graph.pytree import leaves, map_leaves
from smelt.graph.sample_sizes import agreed
from smelt.graph.tensor_specs import static_sizes
from smelt.ops.node_builders import CAST, SCALAR
from smelt.ops.registry import row
from smelt.ops.symbolic_rules import STRIDED
from smelt.ops.trace_rules import TraceRule
from smelt.reasons import UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT
from smelt.shapes.expr import Size, Sym, free_syms, numel, static
from smelt.torch_private import DisableTorchDispatch, OpOverload
from smelt.tracing.fake import meta_results
from smelt.tracing.fake.fake_tensor import (
    FakeTensor,
    check_fixed,
    fake_shape,
    fake_stride,
    symbols_of,
    wrap,
)
from smelt.tracing.record.aten_call_recorder import AtenCallRecorder
from smelt.tracing.record.call_arguments import Args, Kwargs
from smelt.tracing.record.number_inputs import numbers_to_sizes
from smelt.tracing.symbolic import unbacked_operators
from smelt.tracing.symbolic.numbers_in_containers import has_symbols
from smelt.tracing.symbolic.sym_numbers import SYMBOLIC, specialize

Rule = Callable[[AtenCallRecorder, OpOverload, Args, Kwargs], Any]


def _device(recorder: AtenCallRecorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    return args[0].device


def _plain_sizes(read: Callable[[FakeTensor], Sequence[Size]]) -> Rule:
    """The rule for sizes that C++ code reads from a tensor as plain ints: they are specialized, and nothing is
    recorded."""
    return lambda recorder, func, args, kwargs: [specialize(n) for n in read(args[0])]


def _read_value(recorder: AtenCallRecorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    if type(args[0]) in SYMBOLIC:
        return specialize(args[0])
    value = recorder.constants.value(args[0])
    if value is None:
        number = recorder.constants.number(args[0])
        if number is not None:
            return number
        number = recorder.constants.integer(args[0], recorder.numbers)
        if number is not None:
            return number
        number = unbacked_operators.number(recorder, args[0])
        if number is not None:
            return number
        raise recorder.data_dependent_error("item(), bool(), int() or float() of a tensor")
    return value.item()


def _lift(recorder: AtenCallRecorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """`torch.tensor(data)` passes the finished tensor to `lift_fresh`: it is a constant of the program."""
    if type(args[0]) is FakeTensor:
        return args[0]
    return recorder.tape.add_constant(args[0].clone())


def _dynamic(recorder: AtenCallRecorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Operators whose result depends on values: computed at once if the values are constants."""
    out = recorder.constants.run(func, args, kwargs)
    if out is None:
        return unbacked_operators.record_unbacked(recorder, func, args, kwargs)
    if isinstance(out, torch.Tensor):
        return recorder.tape.add_constant(out)
    if isinstance(out, (tuple, list)):
        return type(out)(recorder.tape.add_constant(t) if isinstance(t, torch.Tensor) else t for t in out)
    return out


def _index(recorder: AtenCallRecorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Indexing by a mask: by constant indices if the mask is a constant."""
    fake, indices, *values_written = args
    masks = [i for i in indices if isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8)]
    values = {id(mask): recorder.constants.value(mask) for mask in masks}
    if not masks:
        return NotImplemented
    if values_written or any(value is None for value in values.values()):
        return unbacked_operators.indexed(recorder, func, args, kwargs)
    constant_indices: list[Any] = []
    for index in indices:
        value = values.get(id(index))
        with recorder.call.paused():
            selected = [index] if value is None else value.nonzero().unbind(1)
        constant_indices += (
            selected if value is None else [recorder.tape.add_constant(s.contiguous()) for s in selected]
        )
    return recorder.run(func, (fake, constant_indices), {})


def _as_other(recorder: AtenCallRecorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The call that the operator's row names, which declares its aliases and writes."""
    known = row(func)
    other, other_args = known.recorded_as(*args) if known.recorded_as else (known.view, args)
    assert other is not None
    return NotImplemented if other is func else recorder.run(other, other_args, kwargs)


def _attention_choice(recorder: AtenCallRecorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The kernel that `scaled_dot_product_attention` selects, queried from the real device with uninitialized tensors
    of the arguments' layouts: only layouts decide."""
    device = args[0].device
    if device.type != "cpu" and not (device.type == "cuda" and torch.cuda.is_available()):
        return NotImplemented
    fakes = leaves((args, kwargs), FakeTensor)

    def chosen(*specs: TensorSpec) -> Any:
        tensors = map(_empty_with_layout, fakes, specs)
        real_args, real_kwargs = map_leaves((args, kwargs), FakeTensor, lambda _: next(tensors))
        return func(*real_args, **real_kwargs)

    return agreed([f.spec for f in fakes], chosen, "sizes decide which attention kernel is selected")


def _empty_with_layout(fake: FakeTensor, spec: TensorSpec) -> torch.Tensor:
    shape, stride = static_sizes(spec.shape), static_sizes(spec.stride)
    like = torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device)
    return like.requires_grad_(fake.requires_grad) if fake.requires_grad else like


def _change_metadata(recorder: AtenCallRecorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """`squeeze_`, `t_`, ...: the tensor becomes a view of its former value, recorded as the view operator."""
    fake = args[0]
    if recorder.inputs.holds(fake) or id(fake) in recorder.inputs.rebound:
        raise recorder.call.unsupported(UNSUPPORTED_EFFECT, f"{func} changes the shape of an input tensor")
    view = row(func).view
    assert view is not None
    (_, *sizes), named = numbers_to_sizes(view, args, kwargs)
    if has_symbols((sizes, named)):
        raise NeedsFixedSize(f"{func} of symbolic numbers", recorder.numbers.sizes)
    if view is STRIDED:
        _check_bounds(recorder, fake, *sizes, **named)
    result = recorder.run(view, args, kwargs)
    with DisableTorchDispatch():  # not `func`, whose C++ code would specialize symbolic sizes
        fake.as_strided_(result.size(), result.stride(), result.storage_offset())
    recorder.tape.rebind(fake, result)
    return fake


def _as_strided(recorder: AtenCallRecorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Check the bounds of `as_strided`: shape functions do not."""
    (fake, *layout), named = numbers_to_sizes(func, args, kwargs)
    if has_symbols((layout, named)):
        raise NeedsFixedSize(f"{func} of symbolic numbers", recorder.numbers.sizes)
    if row(func).trace_rule is TraceRule.STRIDED_SCATTER:
        check_fixed(args, str(func))
        layout = layout[1:]
    _check_bounds(recorder, fake, *layout, **named)
    return NotImplemented


def _check_bounds(
    recorder: AtenCallRecorder,
    fake: FakeTensor,
    size: Sequence[Size],
    stride: Sequence[Size],
    storage_offset: Size | None = None,
) -> None:
    """Raise Unsupported where the view exceeds the elements that the inputs cover: guards do not cover the rest of an
    input's storage. `storage_offset` counts from the start of the storage."""
    first: Size = fake.spec.offset if storage_offset is None else storage_offset
    if storage_offset is not None:
        recorder.writes.addressed_from_start.append(fake)
    symbols = symbols_of(fake) | frozenset().union(*map(free_syms, (*size, *stride, first)))
    if symbols:
        _check_symbolic_bounds(recorder, fake, storage_offset, _span(size, stride), symbols)
        return
    low, high = _covered(recorder, fake)
    first = static(first)
    if 0 not in size and not low <= first <= first + _span(size, stride) < high:
        raise recorder.call.unsupported(
            UNSUPPORTED_OBJECT, "as_strided reaches beyond the elements of its tensor"
        )


def _check_symbolic_bounds(
    recorder: AtenCallRecorder, fake: FakeTensor, first: Size | None, span: Size, symbols: frozenset[Sym]
) -> None:
    """`_check_bounds` for symbolic sizes: only for dense tensors, and an offset from the start of the storage
    (`first`) only for tensors that are not inputs."""
    spec, numbers = fake.spec, recorder.numbers.symbols
    dense = 1 + _span(spec.shape, spec.stride) == numel(spec.shape)
    if first is not None and (spec.offset != 0 or recorder.inputs.in_storage(fake.storage_key)):
        dense = False
    if not dense or numbers is None:
        raise NeedsFixedSize("as_strided of a tensor with symbolic sizes", symbols)
    first = first or 0
    if numbers.compare("lt", first, 0) or not numbers.compare("lt", first + span, numel(spec.shape)):
        raise NeedsFixedSize("as_strided reaches beyond the elements of its tensor", symbols)


def _span(size: Iterable[Size], stride: Iterable[Size]) -> Any:
    """Distance from the first element to the last, in elements."""
    return sum((n - 1) * step for n, step in zip(size, stride))


def _covered(recorder: AtenCallRecorder, fake: FakeTensor) -> tuple[int, int]:
    """The half-open range of elements of `fake`'s storage that exist at every call."""
    inputs = [i for i in recorder.inputs.in_storage_with_offsets(fake.storage_key) if i.numel()]
    if not inputs:
        return 0, fake.elem.untyped_storage().nbytes() // fake.elem.itemsize
    first = min(int(i.storage_offset()) for i in inputs)
    return first, max(int(i.storage_offset()) + _span(i.size(), i.stride()) for i in inputs) + 1


def _refuse_effect(recorder: AtenCallRecorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    raise recorder.call.unsupported(UNSUPPORTED_EFFECT, str(func))


def _zero_tensor(recorder: AtenCallRecorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """A zero tensor without memory, which forward-mode differentiation creates. Its fake is one as well, so that torch
    skips the products and sums that eager skips."""
    device = meta_results.canonical_device(kwargs.get("device") or "cpu")
    elem = func(*args, **{**kwargs, "device": "meta"})
    fake = wrap(elem, device)
    node = recorder.tape.add_operator(func, args, kwargs, "zero", fake.spec)
    recorder.tape.finish_operator(node, fake)
    return fake


def _converted(recorder: AtenCallRecorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """`Tensor.to` called by native code beneath autograd: the `_to_copy` that it dispatches to, or the tensor
    itself."""
    fake, *positional = args
    names = [a.name for a in func._schema.arguments[1:]]
    options = {**dict(zip(names, positional)), **kwargs}
    other = options.pop("other", None)
    dtype = options.get("dtype") or (fake if other is None else other).dtype
    device = meta_results.canonical_device(options.get("device") or (fake if other is None else other).device)
    if (dtype, device) == (fake.dtype, fake.device) and not options.get("copy"):
        return fake
    passed = {k: options[k] for k in ("non_blocking", "memory_format") if options.get(k)}
    return recorder.run(CAST, (fake,), {"dtype": dtype, "device": device, **passed})


def _number_copied(recorder: AtenCallRecorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """A cast of a Python number by a transform: `x * 2` reaches Python with a number."""
    if isinstance(args[0], torch.Tensor):
        return NotImplemented
    options = {k: kwargs[k] for k in ("dtype", "device") if kwargs.get(k) is not None}
    return recorder.run(SCALAR, args, options)


RULES: dict[TraceRule | None, Rule] = {
    TraceRule.DEVICE: _device,
    TraceRule.SIZES: _plain_sizes(fake_shape),
    TraceRule.STRIDES: _plain_sizes(fake_stride),
    TraceRule.NUMBER: _read_value,
    TraceRule.TRUTH: lambda *call: bool(_read_value(*call)),
    TraceRule.VALUES: _dynamic,
    TraceRule.LIFT: _lift,
    TraceRule.MASKS: _index,
    TraceRule.AS_OTHER: _as_other,
    TraceRule.RESHAPED: _change_metadata,
    TraceRule.STRIDED: _as_strided,
    TraceRule.STRIDED_SCATTER: _as_strided,
    TraceRule.ATTENTION: _attention_choice,
    TraceRule.ZERO: _zero_tensor,
    TraceRule.CONVERSION: _converted,
    TraceRule.COPY: _number_copied,
    TraceRule.REFUSED: _refuse_effect,
}
