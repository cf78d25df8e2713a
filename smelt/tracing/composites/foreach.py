"""Torch's operators on tensor lists, `torch._foreach_*`, as one operator per tensor.

They save kernel launches on devices. On a CPU eager computes them tensor by tensor; so does the aten graph, where
consecutive operators on one tensor can be fused. The torch-level graph has the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.torch_private import unscale
from smelt.tracing.record.call_arguments import Args, Kwargs

_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma", "log",
    "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh",
    "trunc", "zero", "clone",
)  # fmt: skip
# Foreach function -> method of each tensor; the remaining arguments may be lists as well.
_SEVERAL = {
    **{n: n for n in ("add", "sub", "mul", "div", "clamp_min", "clamp_max", "pow", "lerp", "addcmul", "addcdiv", "copy")},
    "maximum": "clamp_min",
    "minimum": "clamp_max",
}  # fmt: skip
_SCALED = frozenset(("addcmul", "addcdiv"))
_Composite = Callable[[Args, Kwargs], Any]


def _for_each(name: str, method: Callable[..., Any]) -> _Composite:
    """The loop over tensors. It returns NotImplemented for calls that it does not support."""
    scaled = name.rstrip("_") in _SCALED

    def composite(args: Args, kwargs: Kwargs) -> Any:
        options = {k: v for k, v in kwargs.items() if k in ("alpha", "non_blocking")}
        operands = [*args, *(v for k, v in kwargs.items() if k not in options)]
        if not operands or not isinstance(operands[0], (list, tuple)):
            return NotImplemented
        count = len(operands[0])
        lists = [list(v) if isinstance(v, (list, tuple)) else [v] * count for v in operands]
        if any(len(values) != count for values in lists):
            return NotImplemented  # torch raises its own error
        if scaled and len(lists) == 4:
            values = lists.pop()
            if any(isinstance(v, torch.Tensor) for v in values):
                return NotImplemented
            results = [method(*each, value=value) for *each, value in zip(*lists, values)]
        else:
            results = [method(*each, **options) for each in zip(*lists)]
        return operands[0] if name.endswith("_") else tuple(results)

    return composite


def _unscale(args: Args, kwargs: Kwargs) -> Any:
    """A GradScaler's update of the gradients: divides them by the scale, and records whether all were finite."""
    if kwargs or len(args) != 3:
        return NotImplemented
    gradients, found_infinite, inverse_scale = args
    for gradient in gradients:
        found_infinite.masked_fill_(gradient.isfinite().all().logical_not(), 1.0)
        gradient.mul_(inverse_scale)
    return None


def _composites() -> dict[Any, _Composite]:
    table: dict[Any, _Composite] = {}
    for name, method in {**{n: n for n in _UNARY}, **_SEVERAL}.items():
        for suffix in ("", "_"):
            function = getattr(torch, f"_foreach_{name}{suffix}", None)
            of_one = getattr(torch.Tensor, method + suffix, None)
            if function is not None and of_one is not None:
                table[function] = _for_each(name + suffix, of_one)
    table[unscale] = _unscale
    return table


COMPOSITES = _composites()
