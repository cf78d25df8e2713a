"""The row of a tensor of a wrapper subclass: the wrapper, then its attributes, among them the inner tensors.

The class's own `__new__`, `__init__` and `__tensor_unflatten__` do not run. A view that no other tensor shares is created as
one of its own.
"""

from __future__ import annotations

import torch

from smelt._native import isinstance
from smelt.capture.reconstruction.builtin_containers import dict_text, pairs
from smelt.capture.reconstruction.reconstruction_kind import Expressions, ReconstructionKind, unsupported
from smelt.torch_private import DisableTorchDispatch, DisableTorchFunction
from smelt.tracing.record.wrapper_subclasses import wrapper_like, wrapper_of_size
from smelt.tracing.symbolic.numbers_in_containers import has_symbols


def _create(x: torch.Tensor, text: Expressions) -> str:
    with DisableTorchFunction(), DisableTorchDispatch():
        shared = x._is_view() and not text.is_only_view(x)
        if shared or (x.requires_grad and text.result_gradient(x) is None):
            raise unsupported(x, "a view, or a tensor with gradients, of a wrapper subclass")
        size, stride, offset = tuple(x.size()), tuple(x.stride()), x.storage_offset()
    name = f"new_{type(x).__name__}"
    if not has_symbols((size, stride, offset)):
        return f"{text.constant(wrapper_like(x), name)}()"
    sizes, strides = ("".join(f"{_number(n, text)}, " for n in numbers) for numbers in (size, stride))
    options = f"strides=({strides}), storage_offset={_number(offset, text)}"
    return f"{text.constant(wrapper_of_size(x), name)}(({sizes}), {options})"


def _number(n: int | torch.SymInt, text: Expressions) -> str:
    return text.number(n) if isinstance(n, torch.SymInt) else repr(n)


def _fill(x: torch.Tensor, text: Expressions, name: str) -> list[str]:
    lines = [f"{name}.__dict__.update({dict_text(vars(x), text)})"]
    gradient = text.result_gradient(x)
    if gradient is not None:
        inner = ", ".join(map(text, gradient.edges))
        lines.append(f"add_history({name}, {text.constant(gradient.layout, 'layout')}, ({inner},))")
    return lines


WRAPPER = ReconstructionKind(lambda x: (), _create, _create, _fill, lambda x: pairs(vars(x)), named=True)
