"""Elementwise operators, and backwards that multiply elementwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from smelt.ops.layouts.meta import fresh, of_cpp

aten = torch.ops.aten


def _by_mul(grad: torch.Tensor, x: torch.Tensor, *_: Any, **__: Any) -> Any:
    """A backward that multiplies elementwise: TensorIterator lays it out like any product."""
    if grad.dtype != x.dtype or not x.is_floating_point() or grad.shape != x.shape:
        return NotImplemented
    return of_cpp(aten.mul.Tensor, (grad, x), {})


def _by_mul_swapped(grad: torch.Tensor, x: torch.Tensor, *_: Any) -> Any:
    return _by_mul(x, grad)


def _elu_backward(grad: torch.Tensor, *settings: Any) -> Any:
    return _by_mul(grad, settings[-1])


def _with_number(func: OpOverload) -> Callable[..., Any]:
    """The form of `func` whose second operand is a tensor takes a number too."""
    return lambda x, number, *rest: of_cpp(func, (x, number, *rest), {})


def _scaled_in_place(x: torch.Tensor, number: Any) -> Any:
    return x if x.is_floating_point() and type(number) in (int, float) else NotImplemented


def _where_number(condition: torch.Tensor, number: Any, other: torch.Tensor) -> Any:
    dtype = torch.result_type(other, number)
    return of_cpp(aten.where.self, (condition, fresh((), dtype), other), {})


def _masked_fill(x: torch.Tensor, mask: torch.Tensor, value: Any) -> Any:
    if mask.dtype != torch.bool:
        return NotImplemented
    if isinstance(value, torch.Tensor) and (value.dim() or not torch.can_cast(value.dtype, x.dtype)):
        return NotImplemented
    return fresh(torch.broadcast_tensors(x, mask)[0].shape, x.dtype)


LAYOUTS: dict[OpOverload, Callable[..., Any]] = {
    aten.gelu_backward.default: _by_mul,
    aten.silu_backward.default: _by_mul,
    aten.mish_backward.default: _by_mul,
    aten.tanh_backward.default: _by_mul,
    aten.sigmoid_backward.default: _by_mul,
    aten.softplus_backward.default: _by_mul,
    aten.hardtanh_backward.default: _by_mul,
    aten.hardswish_backward.default: _by_mul,
    aten.threshold_backward.default: _by_mul_swapped,
    aten.leaky_relu_backward.default: _by_mul_swapped,
    aten.hardsigmoid_backward.default: _by_mul,
    aten.elu_backward.default: _elu_backward,
    aten.div.Scalar: _with_number(aten.div.Tensor),
    aten.mul.Scalar: _with_number(aten.mul.Tensor),
    aten.div_.Scalar: _scaled_in_place,
    aten.mul_.Scalar: _scaled_in_place,
    aten.where.ScalarSelf: _where_number,
    aten.masked_fill.Scalar: _masked_fill,
    aten.masked_fill.Tensor: _masked_fill,
}
