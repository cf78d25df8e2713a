"""How far results are apart, relative to the largest value of each tensor; eager in float64, which errors are told from."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

GRADIENT_FLOOR = 1e-3  # of the largest of all gradients: below it, gradients are zero but for rounding


def distance(got: torch.Tensor, want: torch.Tensor, floor: float = 0.0) -> float:
    """The largest difference, relative to the largest magnitude of `want` (at least `floor`). Infinite where shapes, dtypes
    or what is finite differ."""
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return float("inf")
    got, want = got.detach(), want.detach()
    if torch.equal(got, want):
        return 0.0
    exact = torch.complex128 if want.is_complex() else torch.float64
    got, want = got.to(exact), want.to(exact)
    finite = want.isfinite()
    if not torch.equal(got.isfinite(), finite) or not torch.equal(
        got[~finite].nan_to_num(), want[~finite].nan_to_num()
    ):
        return float("inf")
    scale = max(floor, magnitude(want))
    apart = magnitude(got - want)
    return apart / scale if scale else (0.0 if apart == 0 else float("inf"))


def magnitude(tensor: torch.Tensor) -> float:
    """The largest of the finite values."""
    values = tensor.detach().abs()
    return values.nan_to_num(0, 0, 0).max().item() if tensor.numel() else 0.0


def largest(got: Mapping[Any, torch.Tensor], want: Mapping[Any, torch.Tensor], floor: float = 0.0) -> float:
    """The largest distance of tensors of one name; infinite where there are others."""
    if got.keys() != want.keys():
        return float("inf")
    return max((distance(got[k], want[k], floor) for k in want), default=0.0)


def of_lists(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """The largest distance of tensors at one place, compared in double precision."""
    return largest(dict(enumerate(in_double(got))), dict(enumerate(in_double(want))))


def overall(got: Mapping[Any, torch.Tensor], want: Mapping[Any, torch.Tensor]) -> float:
    """The norm of the differences of all tensors together, relative to that of `want`: where rounding is coarse, single
    elements are far off."""
    apart = sum((got[k].detach() - want[k].detach()).abs().square().sum().item() for k in want)
    return math.sqrt(apart / sum(w.detach().abs().square().sum().item() for w in want.values()))


def of_gradients(got: Mapping[str, torch.Tensor], want: Mapping[str, torch.Tensor]) -> float:
    """The same of gradients, some of which are zero but for rounding."""
    return largest(got, want, GRADIENT_FLOOR * max(map(magnitude, want.values()), default=0.0))


def in_double(value: Any) -> Any:
    """Tensors in containers, those of floating point in double precision; what else there is, as it is."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {k: in_double(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [in_double(v) for v in value]
    return value


def double_of(model: nn.Module) -> nn.Module:
    """A copy that computes in float64: parameters, buffers, and what the model itself converts to float32."""
    copied: Any = copy.deepcopy(model).double()
    if hasattr(config := getattr(copied, "config", None), "_experts_implementation"):
        config._experts_implementation = "eager"  # grouped products have no float64
    forward = copied.forward

    @functools.wraps(forward)
    def forward_in_double(*args: Any, **kwargs: Any) -> Any:
        with _Double():
            return forward(*args, **kwargs)

    copied.forward = forward_in_double
    return copied


class _Double(TorchFunctionMode):
    """Conversions to float32 are to float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(part in getattr(func, "__name__", "") for part in ("rand", "normal", "uniform")):
            return func(*args, **kwargs)  # other numbers are drawn for float64
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*map(_wide, args), **{k: _wide(v) for k, v in kwargs.items()})


def _wide(value: object) -> object:
    return torch.float64 if value is torch.float32 else value
