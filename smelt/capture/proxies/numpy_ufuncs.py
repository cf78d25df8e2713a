"""NumPy ufuncs on array proxies: the torch function of each ufunc and the dtype it computes in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch

from smelt._native import isinstance
from smelt.capture.proxies.array_proxy import TORCH_DTYPES, ArrayProxy, refusal
from smelt.capture.proxies.numpy_trial import check_against_trial, ones

_Dtype = np.dtype[np.generic]


def _sign(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.isnan(), x, x.sign()) if x.is_floating_point() else x.sign()


# By the dtype in which a function computes: the result's, the operands' common one, or each operand's own.
BY_RESULT: dict[object, Callable[..., torch.Tensor]] = {
    np.add: torch.add, np.subtract: torch.sub, np.multiply: torch.mul, np.true_divide: torch.true_divide,
    np.floor_divide: torch.floor_divide, np.remainder: torch.remainder, np.power: torch.pow, np.negative: torch.neg,
    np.positive: torch.positive, np.absolute: torch.abs, np.sign: _sign, np.sqrt: torch.sqrt, np.square: torch.square,
    np.exp: torch.exp, np.exp2: torch.exp2, np.expm1: torch.expm1, np.log: torch.log, np.log2: torch.log2,
    np.log10: torch.log10, np.log1p: torch.log1p, np.sin: torch.sin, np.cos: torch.cos, np.tan: torch.tan,
    np.arcsin: torch.asin, np.arccos: torch.acos, np.arctan: torch.atan, np.sinh: torch.sinh, np.cosh: torch.cosh,
    np.tanh: torch.tanh, np.arcsinh: torch.asinh, np.arccosh: torch.acosh, np.arctanh: torch.atanh,
    np.floor: torch.floor, np.ceil: torch.ceil, np.trunc: torch.trunc, np.rint: torch.round,
    np.maximum: torch.maximum, np.minimum: torch.minimum, np.arctan2: torch.atan2, np.hypot: torch.hypot,
    np.bitwise_and: torch.bitwise_and, np.bitwise_or: torch.bitwise_or, np.bitwise_xor: torch.bitwise_xor,
    np.invert: torch.bitwise_not, np.left_shift: torch.bitwise_left_shift, np.right_shift: torch.bitwise_right_shift,
    np.matmul: torch.matmul,
}  # fmt: skip
BY_OPERANDS: dict[object, Callable[..., torch.Tensor]] = {
    np.equal: torch.eq, np.not_equal: torch.ne, np.less: torch.lt, np.less_equal: torch.le, np.greater: torch.gt,
    np.greater_equal: torch.ge,
}  # fmt: skip
BY_ITSELF: dict[object, Callable[..., torch.Tensor]] = {
    np.isnan: torch.isnan, np.isinf: torch.isinf, np.isfinite: torch.isfinite, np.logical_not: torch.logical_not,
    np.logical_and: torch.logical_and, np.logical_or: torch.logical_or, np.logical_xor: torch.logical_xor,
}  # fmt: skip
REDUCTIONS: dict[object, Callable[..., object]] = {
    np.add: np.sum,
    np.multiply: np.prod,
    np.maximum: np.max,
    np.minimum: np.min,
}
# Ufuncs that NumPy defines for integers where torch raises or is undefined: zero divisors, negative powers.
_PARTIAL_INTEGER_UFUNCS = (np.floor_divide, np.remainder, np.power, np.left_shift, np.right_shift)
_SAFE_SHIFT = 8  # bits by which any integer may be shifted
_NO_BOOLEAN_UFUNCS = (np.absolute, np.floor, np.ceil, np.trunc, np.matmul)


def apply_ufunc(ufunc: np.ufunc, args: Sequence[object]) -> object:
    """`ufunc(*args)` with an `ArrayProxy` among the arguments."""
    if ufunc not in BY_RESULT and ufunc not in BY_OPERANDS and ufunc not in BY_ITSELF:
        raise refusal(f"numpy.{ufunc.__name__}")
    if ufunc in _PARTIAL_INTEGER_UFUNCS and not _is_safe(ufunc, args):
        raise refusal(f"numpy.{ufunc.__name__} of unknown integers")
    return check_against_trial(ufunc, args, {}, lambda *operands: _compute(ufunc, operands))


def _compute(ufunc: np.ufunc, args: Sequence[object]) -> torch.Tensor:
    trial_args = [ones(a) for a in args]
    if ufunc in BY_RESULT:
        dtype = _result_dtype(ufunc, trial_args)
        if dtype == np.bool_ and ufunc in _NO_BOOLEAN_UFUNCS:
            raise refusal(f"numpy.{ufunc.__name__} of booleans")
        return BY_RESULT[ufunc](*(_operand(a, dtype) for a in args))
    if ufunc in BY_OPERANDS:
        dtype = _common_dtype(trial_args)
        if not all(_fits(a, dtype) for a in args):
            raise refusal("a comparison with a number out of range")
        return BY_OPERANDS[ufunc](*(_operand(a, dtype) for a in args))
    return BY_ITSELF[ufunc](*(_operand(a, None) for a in args))


def _fits(value: object, dtype: _Dtype) -> bool:
    """Whether a number is representable in `dtype`."""
    if not isinstance(value, int) or dtype.kind not in "iu":
        return True
    limits = np.iinfo(cast("np.dtype[np.integer]", dtype))
    return bool(limits.min <= value <= limits.max)


def _is_safe(ufunc: np.ufunc, args: Sequence[object]) -> bool:
    """Whether the operands are floating-point, or the second is a positive constant."""
    second = args[1]
    if isinstance(second, (int, np.integer)) and not isinstance(second, bool) and second > 0:
        return ufunc not in (np.left_shift, np.right_shift) or bool(second < _SAFE_SHIFT)
    return np.issubdtype(_common_dtype([ones(a) for a in args]), np.floating)


def _common_dtype(operands: Sequence[object]) -> _Dtype:
    return np.result_type(*cast("Sequence[np.ndarray]", operands))


def _result_dtype(ufunc: np.ufunc, trial_args: Sequence[object]) -> _Dtype:
    with np.errstate(all="ignore"):
        dtype: _Dtype = ufunc(*trial_args).dtype
    return dtype


def _operand(value: object, dtype: _Dtype | None) -> torch.Tensor:
    """An operand as a tensor of `dtype` (None: its own)."""
    if isinstance(value, ArrayProxy):
        return value.tensor if dtype is None else value.tensor.to(_torch_dtype(dtype))
    return constant_tensor(value, dtype)


def constant_tensor(value: object, dtype: _Dtype | None = None) -> torch.Tensor:
    """A tensor of `dtype` (None: its own) from a number, a NumPy scalar or (a copy of) the program's array."""
    if not isinstance(value, (int, float, bool, np.generic, np.ndarray)):
        raise refusal(f"an operand of type {type(value).__name__}")
    array = np.asarray(value)
    array = array if dtype is None else array.astype(dtype)
    return torch.tensor(array.tolist(), dtype=_torch_dtype(array.dtype)).reshape(array.shape)


def _torch_dtype(dtype: _Dtype) -> torch.dtype:
    if dtype not in TORCH_DTYPES:
        raise refusal(f"dtype {dtype}")
    return TORCH_DTYPES[dtype]
