"""Conversions between tensors and NumPy arrays, which share memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch

from smelt.capture.base.call_handlers import BUILTINS, TENSOR_METHODS, Args, Kwargs, unsupported
from smelt.capture.proxies.array_proxy import DTYPES, ArrayProxy, storage_of
from smelt.capture.proxies.numpy_functions import create
from smelt.capture.proxies.numpy_trial import arrays_in
from smelt.capture.semantics.calls.native_calls import registered_or_native
from smelt.capture.vm.vm import VM
from smelt.reasons import DATA_DEPENDENT
from smelt.tracing.fake.fake_tensor import FakeTensor

_NEEDS_DETACH = "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."


def _numpy(vm: VM, tensor: FakeTensor, *args: object, **kwargs: bool) -> object:
    """`tensor.numpy()`: the array itself if the values are constants, else a proxy."""
    known = vm.trace.constants.value(tensor)
    if known is not None:
        return known.numpy(*args, **kwargs).copy()
    if args or kwargs or tensor.device.type != "cpu" or tensor.dtype not in DTYPES:
        raise unsupported("Tensor.numpy of such a tensor", DATA_DEPENDENT)
    if tensor.requires_grad:
        raise RuntimeError(_NEEDS_DETACH)
    return ArrayProxy(tensor.detach())


TENSOR_METHODS["numpy"] = _numpy


def _register(function: Callable[..., object], convert: Callable[..., torch.Tensor]) -> None:
    """Register `convert` for calls of `function`, which creates tensors, with an array proxy or an array of the program."""
    default = registered_or_native(function)

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        if args and type(args[0]) is ArrayProxy:
            return convert(args[0], *args[1:], **kwargs)
        if args and type(args[0]) is np.ndarray and _is_created(vm, args[0]):
            return convert(ArrayProxy(_constant(vm, args[0], shared=convert is _shared)), *args[1:], **kwargs)
        if args and type(args[0]) in (list, tuple) and next(arrays_in(args[0]), None) is not None:
            copied: Callable[..., torch.Tensor] = _copied
            return copied(ArrayProxy(_stacked(args[0])), *args[1:], **kwargs)
        return default(vm, args, kwargs)

    BUILTINS[function] = handler


def _stacked(value: object) -> torch.Tensor:
    """Nested lists of arrays of one dtype and shape as a tensor. Raises Unsupported for other elements, whose dtype torch
    finds by rules of their own."""
    if type(value) is ArrayProxy and not value.scalar:
        return value.tensor
    if type(value) not in (list, tuple) or not value:
        raise unsupported("a tensor of arrays and other values")
    parts = [_stacked(part) for part in cast("Sequence[object]", value)]
    if len({(part.dtype, part.shape) for part in parts}) != 1:
        raise unsupported("a tensor of arrays with different dtypes or shapes")
    return torch.stack(parts)


def _is_created(vm: VM, array: np.ndarray) -> bool:
    """Whether the program created the array and those whose memory it views."""
    at: object = array
    while type(at) is np.ndarray and id(at) not in vm.env.sources:
        at = at.base
    return at is None and array.dtype in DTYPES.values()


def _constant(vm: VM, array: np.ndarray, shared: bool) -> torch.Tensor:
    """A constant with the values of an array of the program. `shared`: both become read-only, as eager shares memory."""
    at: np.ndarray | None = array if shared else None
    while at is not None:
        at.flags.writeable, at = False, at.base
    with vm.trace.paused():
        value = torch.from_numpy(array.copy(order="K"))
    constant: FakeTensor = vm.trace.tape.add_constant(value)
    if shared:
        vm.trace.writes.frozen.add(storage_of(constant))
    return constant


def _shared(
    array: ArrayProxy, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> torch.Tensor:
    if array.scalar:
        raise unsupported("a tensor that shares a NumPy scalar's memory")
    return array.tensor.detach().to(device=device, dtype=dtype)


def _copied(
    array: ArrayProxy,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    copy = array.tensor.clone(memory_format=torch.contiguous_format).to(device=device, dtype=dtype)
    return copy.requires_grad_() if requires_grad else copy


_register(torch.from_numpy, _shared)
_register(torch.as_tensor, _shared)
_register(torch.asarray, _shared)
_register(torch.tensor, _copied)


def _register_creation(function: Callable[..., object]) -> None:
    """Handle calls of a function of NumPy that creates arrays with an array proxy, or nested lists of them."""
    default = registered_or_native(function)

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        if len(args) == 1 and next(arrays_in(args[0]), None) is not None:
            return create(function, args[0], **kwargs)
        return default(vm, args, kwargs)

    BUILTINS[function] = handler


for _function in (np.array, np.asarray, np.asanyarray, np.ascontiguousarray):
    _register_creation(_function)


def _register_like(function: Callable[..., object]) -> None:
    """Handle calls of a function of NumPy that creates an array with the layout of a tensor."""
    default = registered_or_native(function)

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        # NumPy copies what is no array into C order.
        if args and type(args[0]) is FakeTensor:
            args = _numpy(vm, cast(FakeTensor, args[0].contiguous())), *args[1:]
        return default(vm, args, kwargs)

    BUILTINS[function] = handler


for _like in (np.empty_like, np.full_like, np.ones_like, np.zeros_like):
    _register_like(cast("Callable[..., object]", _like))
