"""`torch.tensor` and its like on nested lists with tensors of one element.

Eager reads the value of each tensor; here the graph converts the tensors to the result's dtype and stacks them. That needs
no value where the conversion cannot raise: to a floating-point dtype, or to the dtype that the elements promote to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import BUILTINS, TENSOR_METHODS, Args, Kwargs
from smelt.capture.semantics.calls.native_calls import registered_or_native, run_native
from smelt.capture.vm.vm import VM
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.sym_numbers import Float, Int

_NUMBERS = (bool, int, float, Int, Float)


def _has_tensor(data: object) -> bool:
    """Whether nested lists hold a tensor."""
    if type(data) in (list, tuple):
        return any(map(_has_tensor, cast("Sequence[object]", data)))
    return isinstance(data, torch.Tensor)


def _shape(vm: VM, data: object, elements: list[object]) -> tuple[int, ...] | None:
    """The shape of nested lists, whose elements are appended to `elements`; None if they are ragged or empty."""
    if type(data) not in (list, tuple):
        elements.append(data)
        return ()
    rows = [_shape(vm, row, elements) for row in vm.elements(data)]
    if not rows or rows[0] is None or any(row != rows[0] for row in rows):
        return None
    return len(rows), *rows[0]


def _dtype_of(element: object) -> torch.dtype | None:
    """The dtype with which an element takes part in promotion; None for an element that this module does not convert."""
    if type(element) is FakeTensor:
        scalar = all(n == 1 for n in element.spec.shape)
        plain = element.subclass is None and not element.requires_grad and not element.is_complex()
        return element.dtype if scalar and plain else None
    if type(element) not in _NUMBERS:
        return None
    if type(element) is bool:
        return torch.bool
    return torch.get_default_dtype() if type(element) in (float, Float) else torch.int64


def _stacked(
    vm: VM,
    data: object,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    scalar: Callable[..., object],
) -> torch.Tensor | None:
    """`torch.tensor(data, dtype=dtype, device=device)`; None where the values must be read. `scalar`: creates a tensor of a
    number."""
    elements: list[object] = []
    shape = _shape(vm, data, elements) if _has_tensor(data) else None
    if not shape:
        return None
    dtypes = [_dtype_of(element) for element in elements]
    if None in dtypes:
        return None
    promoted = functools.reduce(torch.promote_types, cast("list[torch.dtype]", dtypes))
    dtype = dtype or promoted
    if dtype is not promoted and not dtype.is_floating_point:
        return None
    device = device or torch.get_default_device()
    rows = [_converted(element, dtype, device, scalar) for element in elements]
    return torch.stack(rows).reshape(shape)


def _converted(
    element: object, dtype: torch.dtype, device: torch.device | str, scalar: Callable[..., object]
) -> torch.Tensor:
    if type(element) is not FakeTensor:
        return cast(torch.Tensor, scalar(element, dtype=dtype, device=device))
    element = element.reshape(())  # type: ignore[assignment]
    if dtype.is_floating_point and element.dtype is torch.int64:  # eager converts it to a Python float first
        element = element.to(torch.float64)  # type: ignore[assignment]
    return element.to(dtype=dtype, device=device)


def _register(function: Callable[..., object]) -> None:
    """Register the conversion for calls of `function` with lists of tensors."""
    call = registered_or_native(function)

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        if len(args) != 1 or kwargs.keys() - {"dtype", "device"}:
            return call(vm, args, kwargs)
        dtype, device = cast(torch.dtype, kwargs.get("dtype")), cast(torch.device, kwargs.get("device"))
        result = _stacked(vm, args[0], dtype, device, lambda x, **options: call(vm, [x], options))
        return call(vm, args, kwargs) if result is None else result

    BUILTINS[function] = handler


def _new_tensor(vm: VM, tensor: FakeTensor, *args: object, **kwargs: object) -> object:
    """`tensor.new_tensor(data)`, whose dtype and device are those of `tensor`."""
    if len(args) == 1 and not kwargs.keys() - {"dtype", "device"} and tensor.subclass is None:
        dtype, device = kwargs.get("dtype") or tensor.dtype, kwargs.get("device") or tensor.device
        result = _stacked(
            vm,
            args[0],
            cast(torch.dtype, dtype),
            cast(torch.device, device),
            lambda x, **options: vm.call(torch.tensor, [x], options),
        )
        if result is not None:
            return result
    return run_native(vm, torch.Tensor.new_tensor, (tensor, *args), kwargs)


for _function in (torch.tensor, torch.as_tensor, torch.asarray):
    _register(_function)
TENSOR_METHODS["new_tensor"] = _new_tensor
