"""NumPy functions on array proxies: those that `torch._numpy` computes as NumPy does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from smelt._native import isinstance
from smelt.capture.proxies.array_proxy import ArrayProxy, refusal
from smelt.capture.proxies.numpy_trial import arrays_in, call_mapped, check_against_trial, map_nested
from smelt.capture.proxies.numpy_ufuncs import constant_tensor
from smelt.torch_private import torch_numpy as tnp

_FUNCTION_NAMES = """
    sum prod mean std var max min amax amin argmax argmin any all cumsum cumprod ptp concatenate stack vstack hstack dstack
    column_stack split array_split hsplit vsplit where clip reshape transpose ravel swapaxes moveaxis expand_dims squeeze
    broadcast_to zeros_like ones_like full_like empty_like copy dot outer inner vdot tensordot einsum trace diagonal diag
    tril triu flip fliplr flipud roll tile repeat sort round around atleast_1d atleast_2d count_nonzero rot90 take diff
    shape ndim size
"""
_FUNCTIONS = frozenset(getattr(np, name) for name in _FUNCTION_NAMES.split())
# Torch does not implement products of booleans.
_NO_BOOLEAN_PRODUCTS = frozenset((np.dot, np.inner, np.outer, np.vdot, np.tensordot, np.einsum))
_METADATA: dict[object, Callable[[ArrayProxy], object]] = {
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: lambda a: a.size,
}


def apply(function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """`function(*args, **kwargs)` of NumPy with an `ArrayProxy` among the arguments."""
    if function not in _FUNCTIONS:
        raise refusal(f"numpy.{getattr(function, '__name__', function)}")
    if function in _METADATA and len(args) == 1 and isinstance(args[0], ArrayProxy):
        return _METADATA[function](args[0])
    name = function.__name__
    if "out" in kwargs or "where" in kwargs:
        raise refusal(f"numpy.{name} with out or where")
    implemented = getattr(tnp, name, None)
    if implemented is None or (function in _NO_BOOLEAN_PRODUCTS and _any_boolean(args, kwargs)):
        raise refusal(f"numpy.{name}")

    def compute(*args: object, **kwargs: object) -> object:
        return map_nested(_from_torch, call_mapped(implemented, _for_torch, args, kwargs))

    return check_against_trial(function, args, kwargs, compute)


def _any_boolean(args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    return any(a.dtype == np.bool_ for a in arrays_in((*args, *kwargs.values())))


def _for_torch(value: object) -> object:
    if isinstance(value, ArrayProxy):
        return tnp.ndarray(value.tensor)
    if isinstance(value, (np.ndarray, np.generic)):
        return tnp.ndarray(constant_tensor(value))
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return tnp.dtype(np.dtype(value).name)
    return value


def _from_torch(value: object) -> object:
    return value.tensor if isinstance(value, tnp.ndarray) else value
