"""Torch's operators on lists of tensors, `torch._foreach_*`, as one operator for each tensor.

They are a matter of speed on devices where starting a kernel is expensive. On a CPU eager computes them tensor by tensor;
so does the aten graph, where what is done to one tensor after the other can be fused. The torch-level graph has the call.
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
# What is done to each tensor, of which the rest of the arguments may be lists too.
_SEVERAL = {
    **{n: n for n in ("add", "sub", "mul", "div", "clamp_min", "clamp_max", "pow", "lerp", "addcmul", "addcdiv", "copy")},
    "maximum": "clamp_min",
    "minimum": "clamp_max",
}  # fmt: skip
_SCALED = frozenset(("addcmul", "addcdiv"))
_Body = Callable[[Args, Kwargs], Any]


def _body(name: str, method: Callable[..., Any]) -> _Body:
    """The loop. A call that it does not know is NotImplemented."""
    scaled = name.rstrip("_") in _SCALED

    def body(args: Args, kwargs: Kwargs) -> Any:
        options = {k: v for k, v in kwargs.items() if k in ("alpha", "non_blocking")}
        given = [*args, *(v for k, v in kwargs.items() if k not in options)]
        if not given or not isinstance(given[0], (list, tuple)):
            return NotImplemented
        count = len(given[0])
        lists = [list(v) if isinstance(v, (list, tuple)) else [v] * count for v in given]
        if any(len(values) != count for values in lists):
            return NotImplemented  # for its own error
        if scaled and len(lists) == 4:
            values = lists.pop()
            if any(isinstance(v, torch.Tensor) for v in values):
                return NotImplemented
            made = [method(*each, value=value) for *each, value in zip(*lists, values)]
        else:
            made = [method(*each, **options) for each in zip(*lists)]
        return given[0] if name.endswith("_") else tuple(made)

    return body


def _unscale(args: Args, kwargs: Kwargs) -> Any:
    """What a GradScaler does to the gradients: divides them by the scale, and notes whether all were finite."""
    if kwargs or len(args) != 3:
        return NotImplemented
    gradients, found_infinite, inverse_scale = args
    for gradient in gradients:
        found_infinite.masked_fill_(gradient.isfinite().all().logical_not(), 1.0)
        gradient.mul_(inverse_scale)
    return None


def _made_bodies() -> dict[Any, _Body]:
    found: dict[Any, _Body] = {}
    for name, method in {**{n: n for n in _UNARY}, **_SEVERAL}.items():
        for suffix in ("", "_"):
            function = getattr(torch, f"_foreach_{name}{suffix}", None)
            of_one = getattr(torch.Tensor, method + suffix, None)
            if function is not None and of_one is not None:
                found[function] = _body(name + suffix, of_one)
    found[unscale] = _unscale
    return found


COMPOSITES = _made_bodies()
