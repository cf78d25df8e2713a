"""`F.interpolate` of images with symbolic sizes: torch's C++ code specializes sizes before it dispatches to an
operator.

For a factor that is a fraction of a small power of two, the result sizes are products and quotients of sizes; a given
size is used as it is. The result is the operator that torch's code dispatches to, with the same arguments. Other calls
are left to torch; wrong ones raise eager's errors.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from smelt.graph.sample_sizes import syms_of
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.call_arguments import Args, Kwargs
from smelt.tracing.symbolic.numbers_in_containers import wrap_nested

aten = torch.ops.aten

# (mode, image dimensions) -> operator; those in `_LINEAR` and `_SMOOTHED` have `align_corners`.
_NEAREST: dict[tuple[str, int], Any] = {
    ("nearest", 1): aten.upsample_nearest1d, ("nearest", 2): aten.upsample_nearest2d,
    ("nearest", 3): aten.upsample_nearest3d, ("nearest-exact", 1): aten._upsample_nearest_exact1d,
    ("nearest-exact", 2): aten._upsample_nearest_exact2d, ("nearest-exact", 3): aten._upsample_nearest_exact3d,
}  # fmt: skip
_LINEAR: dict[tuple[str, int], Any] = {
    ("linear", 1): aten.upsample_linear1d, ("bilinear", 2): aten.upsample_bilinear2d,
    ("trilinear", 3): aten.upsample_trilinear3d, ("bicubic", 2): aten.upsample_bicubic2d,
}  # fmt: skip
_SMOOTHED: dict[tuple[str, int], Any] = {
    ("bilinear", 2): aten._upsample_bilinear2d_aa, ("bicubic", 2): aten._upsample_bicubic2d_aa,
}  # fmt: skip
_FINEST = 64  # largest denominator of a factor


def _interpolate(
    x: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    if type(x) is not FakeTensor or not 3 <= x.dim() <= 5 or (size is None) == (scale_factor is None):
        return NotImplemented
    if not syms_of(x.spec) and not _is_symbolic(size):
        return NotImplemented
    pixels = wrap_nested(x.shape)[2:]
    key = mode, len(pixels)
    is_linear = key in _LINEAR
    operators = _SMOOTHED if antialias else _LINEAR if is_linear else _NEAREST
    if key not in operators or (not is_linear and align_corners is not None):
        return NotImplemented
    factors: list[Any] = [None] * len(pixels)
    if size is None:
        factors = _each(scale_factor, len(pixels))
        sizes = [_scaled(n, factor) for n, factor in zip(pixels, factors)]
        if recompute_scale_factor:
            factors = [None] * len(pixels)
    else:
        sizes = _each(size, len(pixels))
    if len(sizes) != len(pixels) or (recompute_scale_factor and size is not None) or None in sizes:
        return NotImplemented
    options = (bool(align_corners),) if is_linear else ()
    return operators[key].default(x, sizes, *options, *factors)


def _is_symbolic(size: Any) -> bool:
    return any(isinstance(n, torch.SymInt) for n in (size if isinstance(size, (list, tuple)) else [size]))


def _each(value: Any, count: int) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value] * count


def _scaled(size: Any, factor: Any) -> Any:
    """`floor(size * factor)`; None where the factor is no fraction with a small denominator."""
    if type(factor) not in (int, float) or not 0 < factor < 1 << 16:
        return None
    numerator, denominator = factor.as_integer_ratio()
    return size * numerator // denominator if denominator <= _FINEST else None


def _resized(args: Args, kwargs: Kwargs) -> Any:
    named = dict(kwargs)
    x = named.pop("input") if "input" in named else args[0]
    return _interpolate(x, *args[1:] if args else (), **named)


COMPOSITES = {F.interpolate: _resized}
