"""Traceable wrapper subclasses: tensors that hold others, with a `__tensor_flatten__` and a `__torch_dispatch__`.

A wrapper has no fake: the program works with the object itself, whose inner tensors have fakes. An operator on a wrapper is
not recorded. Beneath autograd the dispatch mode calls the `__torch_dispatch__` of its class as part of the program, and
records the operators on inner tensors that it runs. Invariant: `CurrentCall.wrappers` has, by id, every wrapper that the
program may use: of the environment, where guards cover its metadata, or created in the capture.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch

from smelt.torch_private import (
    DisableTorchDispatch,
    DisableTorchFunction,
    TorchDispatchMode,
    make_wrapper_subclass,
)
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.call_arguments import LEAF_TYPES, Args
from smelt.tracing.record.current_call import CurrentCall

# Methods that only read the metadata which the guards of a wrapper cover.
METADATA_READS: frozenset[Any] = frozenset(
    (
        torch.Tensor.size, torch.Tensor.stride, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.nelement,
        torch.Tensor.ndimension, torch.Tensor.is_contiguous, torch.Tensor.is_floating_point, torch.Tensor.is_complex,
        torch.Tensor.element_size, torch.Tensor.__len__, torch.is_floating_point, torch.is_complex, torch.numel,
        torch.is_tensor,
    )
)  # fmt: skip


# Names by which a class computes attributes, keeps them outside the instance's dictionary, or finalizes the instance.
_HIDING = ("__getattr__", "__getattribute__", "__setattr__", "__slots__", "__del__")


def is_wrapper_class(cls: type) -> bool:
    """Whether tensors of `cls` are traceable wrappers, by what it defines in Python."""
    if not issubclass(cls, torch.Tensor) or cls is FakeTensor or type(cls) is not type(torch.Tensor):
        return False
    handler = next(
        (vars(k)["__torch_dispatch__"] for k in cls.__mro__ if "__torch_dispatch__" in vars(k)), None
    )
    flattens = type(getattr(cls, "__tensor_flatten__", None)) is FunctionType
    own = [vars(k) for k in cls.__mro__ if k not in torch.Tensor.__mro__]
    hides = any(name in names for names in own for name in _HIDING)
    return flattens and not hides and type(handler) is classmethod and type(handler.__func__) is FunctionType


class _Asked(Exception):
    """An operator was called."""


class _Probe(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Asked


def has_own_metadata(real: torch.Tensor) -> bool:
    """Whether the sizes and strides of a wrapper are its own, so that reading them runs no Python code."""
    with DisableTorchFunction(), DisableTorchDispatch():
        if real.layout is not torch.strided or real.is_quantized or real.is_nested:
            return False
    with DisableTorchFunction():
        try:
            with _Probe():
                real.size(), real.stride(), real.storage_offset()
        except _Asked:
            return False
    return True


def wrapper_of_size(x: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Creates a wrapper of a size, with `strides` and `storage_offset`, that is like `x` otherwise and has no attributes."""
    with DisableTorchFunction(), DisableTorchDispatch():
        options: dict[str, Any] = {
            "dtype": x.dtype,
            "layout": x.layout,
            "device": x.device,
            "requires_grad": False,
        }
        return functools.partial(make_wrapper_subclass, type(x), **options)


def wrapper_like(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Creates a wrapper with the class and the metadata of `x`, without attributes."""
    with DisableTorchFunction(), DisableTorchDispatch():
        layout: dict[str, Any] = {"strides": tuple(x.stride()), "storage_offset": x.storage_offset()}
        return functools.partial(wrapper_of_size(x), tuple(x.size()), **layout)


def wrappers_in(call: CurrentCall, args: Args, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The wrappers among the arguments of a call."""
    return [value for value in _tensors((*args, *kwargs.values())) if id(value) in call.wrappers]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        kind = type(value)
        if kind is list or kind is tuple:
            yield from _tensors(value)
        elif kind is dict:
            yield from _tensors(value.values())
        elif kind is not FakeTensor and kind not in LEAF_TYPES and isinstance(value, torch.Tensor):
            yield value


def unknown_results(call: CurrentCall, out: Any) -> bool:
    """Whether a result holds a tensor that is neither a fake nor a wrapper which the program created."""
    return any(id(value) not in call.wrappers for value in _tensors((out,)))
