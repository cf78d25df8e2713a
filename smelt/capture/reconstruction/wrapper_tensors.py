"""The row of a tensor of a wrapper subclass: the wrapper, then its attributes, among them the inner tensors.

The class's own `__new__`, `__init__` and `__tensor_unflatten__` do not run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from smelt.capture.reconstruction.builtin_containers import dict_text, pairs
from smelt.capture.reconstruction.reconstruction_kind import Expressions, ReconstructionKind, unsupported
from smelt.torch_private import DisableTorchDispatch, DisableTorchFunction, make_wrapper_subclass


def _constructor(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Creates a wrapper like `x` without attributes. Raises Unsupported for a view, which shares more than memory with its
    base, and for a tensor that requires gradients."""
    with DisableTorchFunction(), DisableTorchDispatch():
        if x._is_view() or x.requires_grad or x.grad_fn is not None:
            raise unsupported(x, "a view, or a tensor with gradients, of a wrapper subclass")
        return functools.partial(
            make_wrapper_subclass,
            type(x),
            tuple(x.size()),
            strides=tuple(x.stride()),
            storage_offset=x.storage_offset(),
            dtype=x.dtype,
            layout=x.layout,
            device=x.device,
            requires_grad=False,
        )


def _create(x: torch.Tensor, text: Expressions) -> str:
    return f"{text.constant(_constructor(x), f'new_{type(x).__name__}')}()"


def _fill(x: torch.Tensor, text: Expressions, name: str) -> list[str]:
    return [f"{name}.__dict__.update({dict_text(vars(x), text)})"]


WRAPPER = ReconstructionKind(lambda x: (), _create, _create, _fill, lambda x: pairs(vars(x)), named=True)
