"""Methods of tensors: metadata, parameters and buffers, and methods that mutate more than the values."""

from __future__ import annotations

import inspect
import math
import operator
from typing import Protocol, cast

import torch
from torch import nn

from smelt._native import isinstance
from smelt.capture.base.call_handlers import (
    TENSOR_METHODS,
    Args,
    Handler,
    Kwargs,
    builtin,
    function,
    unsupported,
)
from smelt.capture.environment import wrap_values
from smelt.capture.semantics import attributes
from smelt.capture.semantics.calls.native_calls import run_native
from smelt.capture.semantics.calls.torch_function_overrides import check_replaced_under_modes
from smelt.capture.torch_calls.autograd.tensor_state import make_parameter
from smelt.capture.vm.vm import VM
from smelt.ops.node_builders import ALIAS
from smelt.reasons import TENSOR_SUBCLASS, UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT
from smelt.torch_private import DisableTorchFunctionSubclass, one_hot
from smelt.tracing.fake.fake_tensor import FakeTensor, check_class, fake_numel, fake_stride
from smelt.tracing.fake.plain_tensor_classes import is_plain_subclass


def _tensor_size(vm: VM, tensor: FakeTensor, dim: int | None = None) -> object:
    shape = attributes.shape_of(tensor)
    return shape if dim is None else shape[dim]


_METADATA: dict[str, Handler] = {
    "size": _tensor_size,
    "dim": lambda vm, t: len(t.spec.shape),
    "ndimension": lambda vm, t: len(t.spec.shape),
    "numel": lambda vm, t: fake_numel(t),
    "stride": lambda vm, t, dim=None: fake_stride(t) if dim is None else fake_stride(t)[dim],
    "is_floating_point": lambda vm, t: t.spec.dtype.is_floating_point,
    "is_complex": lambda vm, t: t.spec.dtype.is_complex,
    "element_size": lambda vm, t: t.spec.dtype.itemsize,
    "get_device": lambda vm, t: -1 if t.spec.device.type == "cpu" else t.spec.device.index,
}
TENSOR_METHODS.update(_METADATA)


def as_subclass(vm: VM, tensor: FakeTensor, cls: type) -> object:
    """`tensor.as_subclass(cls)`, for which torch calls no `__torch_function__`."""
    created_here = isinstance(cls, type) and vm.env.sources.is_created_class(cls)
    if (
        not isinstance(cls, type)
        or created_here
        or not is_plain_subclass(cls)
        or issubclass(cls, nn.Parameter)
    ):
        raise unsupported(f"a tensor becomes a {cls!r}", TENSOR_SUBCLASS)
    vm.env.facts.use_class(cls)
    with DisableTorchFunctionSubclass():
        alias = cast(FakeTensor, vm.call_native(ALIAS, (tensor,)))
    alias.subclass = None if cls is torch.Tensor else cls
    vm.trace.call.has_subclasses = True
    return alias


TENSOR_METHODS["as_subclass"] = as_subclass


def _check_not_input(vm: VM, tensor: FakeTensor, name: str) -> None:
    if vm.trace.is_environment(tensor):
        raise unsupported(f"Tensor.{name} of a tensor of the environment", UNSUPPORTED_EFFECT)


def _not_for_inputs(name: str) -> Handler:
    """The method `name`, which is refused for environment tensors: their mutation would not be replayed."""

    def handler(vm: VM, tensor: FakeTensor, *args: object, **kwargs: object) -> object:
        _check_not_input(vm, tensor, name)
        return wrap_values.to_fake(vm.env, getattr(tensor, name)(*args, **kwargs))

    return handler


# Methods that mutate more of a tensor than its values.
for _name in (
    "rename_", "share_memory_", "set_", "resize_", "resize_as_", "detach_",
    "_clear_non_serializable_cached_data", "__setstate__", "sparse_resize_", "sparse_resize_and_clear_",
    "unsqueeze_", "squeeze_", "transpose_", "t_", "swapaxes_", "swapdims_", "as_strided_", "set_data", "_set_data",
):  # fmt: skip
    if hasattr(torch.Tensor, _name):
        TENSOR_METHODS[_name] = _not_for_inputs(_name)


function(torch.Tensor.__iter__)(lambda vm, args, kwargs: iter(args[0].unbind(0)))


# ------------------------------------------------------------------------------------------- creating tensors


@builtin(nn.Parameter)
def _parameter(vm: VM, args: Args, kwargs: Kwargs) -> object:
    check_replaced_under_modes(vm, nn.Parameter)
    data = kwargs.get("data", args[0] if args else None)
    requires_grad = cast(bool, kwargs.get("requires_grad", args[1] if len(args) > 1 else True))
    if type(data) is not FakeTensor:
        raise unsupported("nn.Parameter of something that is not a tensor", UNSUPPORTED_OBJECT)
    return make_parameter(vm, data, requires_grad)


class _BufferMarks(Protocol):
    """The attributes that make a tensor a buffer."""

    persistent: bool
    _is_buffer: bool


@builtin(nn.parameter.Buffer)
def _buffer(vm: VM, args: Args, kwargs: Kwargs) -> object:
    check_replaced_under_modes(vm, nn.parameter.Buffer)
    call = inspect.signature(_buffer_signature).bind(*args, **kwargs)
    call.apply_defaults()
    data, persistent = call.arguments["data"], call.arguments["persistent"]
    if type(data) is not FakeTensor:
        raise unsupported("nn.Buffer of something that is not a tensor", UNSUPPORTED_OBJECT)
    check_class(data, "a buffer")
    buffer = data.detach().requires_grad_(data.requires_grad)
    marks = cast(_BufferMarks, buffer)
    marks.persistent, marks._is_buffer = persistent, True
    return buffer


def _buffer_signature(data: object = None, *, persistent: bool = True) -> None: ...


@builtin(one_hot)
def _one_hot(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """`one_hot` by `scatter_`, which raises for classes out of range too; torch's implementation compares values."""
    call = inspect.signature(_one_hot_signature).bind(*args, **kwargs)
    call.apply_defaults()
    classes, count = cast("tuple[object, int]", call.args)
    if type(classes) is not FakeTensor or count < -1 or classes.device.type != "cpu" or classes.numel() == 0:
        return one_hot(*args, **kwargs)
    if count == -1:
        count = cast(
            "int", vm.binary(operator.add, vm.call_native(torch.Tensor.item, (classes.max(),), {}), 1)
        )
    zeros = torch.zeros((*classes.shape, count), dtype=torch.int64)
    return zeros.scatter_(-1, classes.unsqueeze(-1), 1)


def _one_hot_signature(tensor: object, num_classes: int = -1) -> None: ...


def _fits(value: object, dtype: torch.dtype | None) -> bool:
    """Whether `value` is a 0-d tensor whose values all fit into `dtype`: otherwise ATen reads and checks the value."""
    if type(value) is not FakeTensor or value.dim() != 0 or value.requires_grad:
        return False
    low, high = _RANGES.get(value.dtype, (1, 0))
    least, most = _RANGES.get(dtype or _default_dtype(value), (0, 0))
    return least <= low <= high <= most


_RANGES: dict[torch.dtype, tuple[float, float]] = {
    torch.bool: (0, 1),
    **{
        t: (torch.iinfo(t).min, torch.iinfo(t).max)
        for t in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    },
    **{
        t: (-math.inf, torch.finfo(t).max)
        for t in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    },
}


def _default_dtype(number: FakeTensor) -> torch.dtype:
    """The default dtype of `torch.full` with this fill value."""
    if number.dtype.is_floating_point:
        return torch.get_default_dtype()
    return torch.bool if number.dtype is torch.bool else torch.int64


_fill = torch.Tensor.fill_


@builtin(torch.full)
def _full(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """`torch.full(size, value)`; if `value` is a tensor, zeros that `fill_` overwrites."""
    options = dict(zip(("size", "fill_value"), args)) | kwargs
    size, value = options.pop("size", None), options.pop("fill_value", None)
    dtype = cast("torch.dtype | None", options.get("dtype"))
    if len(args) > 2 or options.get("out") is not None or not _fits(value, dtype):
        return run_native(vm, torch.full, args, kwargs)
    options["dtype"] = dtype or _default_dtype(cast(FakeTensor, value))
    options.pop("out", None)
    return vm.call_native(_fill, (vm.call_native(torch.zeros, (size,), options), value))


def _new_full(vm: VM, tensor: FakeTensor, size: object, fill_value: object, **options: object) -> object:
    if not _fits(fill_value, cast("torch.dtype | None", options.get("dtype")) or tensor.dtype):
        return run_native(vm, torch.Tensor.new_full, (tensor, size, fill_value), options)
    return vm.call_native(
        _fill, (vm.call_native(torch.Tensor.new_zeros, (tensor, size), options), fill_value)
    )


TENSOR_METHODS["new_full"] = _new_full
