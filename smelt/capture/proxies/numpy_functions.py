"""NumPy functions on array proxies: those that `torch._numpy` computes as NumPy does."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import torch

from smelt._native import isinstance
from smelt.capture.proxies.array_proxy import TORCH_DTYPES, ArrayProxy, refusal
from smelt.capture.proxies.numpy_trial import arrays_in, call_mapped, check_against_trial, map_nested, ones
from smelt.capture.proxies.numpy_ufuncs import constant_tensor
from smelt.torch_private import torch_numpy as tnp

_FUNCTION_NAMES = """
    sum prod mean std var max min amax amin argmax argmin any all cumsum cumprod ptp concatenate stack vstack hstack dstack
    column_stack split array_split hsplit vsplit where clip reshape transpose ravel swapaxes moveaxis expand_dims squeeze
    broadcast_to zeros_like ones_like full_like empty_like copy dot outer inner vdot tensordot einsum trace diagonal diag
    tril triu flip fliplr flipud roll tile repeat sort round around atleast_1d atleast_2d count_nonzero rot90 take diff
    meshgrid real imag kron nan_to_num isclose gradient append cov corrcoef take_along_axis broadcast_arrays isreal
    iscomplex vander linalg.norm fft.fftshift fft.ifftshift
"""
_FUNCTIONS: dict[object, Callable[..., object]] = {}  # by function: its implementation in torch
for _name in _FUNCTION_NAMES.split():
    try:
        _FUNCTIONS[operator.attrgetter(_name)(np)] = operator.attrgetter(_name)(tnp)
    except AttributeError:
        continue
# Torch does not implement products of booleans.
_NO_BOOLEAN_PRODUCTS = frozenset((np.dot, np.inner, np.outer, np.vdot, np.tensordot, np.einsum))
_METADATA: dict[object, Callable[[ArrayProxy], object]] = {
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: lambda a: a.size,
}


def apply(function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """`function(*args, **kwargs)` of NumPy with an `ArrayProxy` among the arguments."""
    if function in _METADATA and len(args) == 1 and isinstance(args[0], ArrayProxy):
        return _METADATA[function](args[0])
    implemented, name = _FUNCTIONS.get(function), getattr(function, "__name__", function)
    if implemented is None or (function in _NO_BOOLEAN_PRODUCTS and _any_boolean(args, kwargs)):
        raise refusal(f"numpy.{name}")
    if "out" in kwargs or "where" in kwargs:
        raise refusal(f"numpy.{name} with out or where")

    def compute(*args: object, **kwargs: object) -> object:
        return map_nested(_from_torch, call_mapped(implemented, _for_torch, args, kwargs))

    return check_against_trial(function, args, kwargs, compute)


def create(function: Callable[..., object], value: object, **kwargs: object) -> object:
    """`np.array` or a function like it of an `ArrayProxy`, or of nested lists of arrays, scalars and numbers."""
    if kwargs.keys() - {"dtype"}:
        raise refusal(f"numpy.{function.__name__} with {sorted(kwargs)}")

    def compute(value: object, **kwargs: object) -> torch.Tensor:
        trial = function(map_nested(ones, value), **kwargs)
        assert isinstance(trial, np.ndarray)
        if trial.dtype not in TORCH_DTYPES:
            raise NotImplementedError(trial.dtype)
        stacked = _stacked(value, TORCH_DTYPES[trial.dtype])
        return stacked if function is not np.array or not isinstance(value, ArrayProxy) else stacked.clone()

    return check_against_trial(function, (value,), kwargs, compute)


def _stacked(value: object, dtype: torch.dtype) -> torch.Tensor:
    if type(value) in (list, tuple):
        return torch.stack([_stacked(part, dtype) for part in cast("Sequence[object]", value)])
    return (value.tensor if isinstance(value, ArrayProxy) else constant_tensor(value)).to(dtype)


def _any_boolean(args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    return any(a.dtype == np.bool_ for a in arrays_in((*args, *kwargs.values())))


def _for_torch(value: object) -> object:
    if isinstance(value, ArrayProxy):
        return tnp.ndarray(value.tensor)
    if isinstance(value, (np.ndarray, np.generic)):
        return tnp.ndarray(constant_tensor(value))
    if isinstance(value, np.dtype) or (
        isinstance(value, type) and issubclass(value, (np.generic, int, float))
    ):
        return tnp.dtype(np.dtype(value).name)
    return value


def _from_torch(value: object) -> object:
    return value.tensor if isinstance(value, tnp.ndarray) else value
