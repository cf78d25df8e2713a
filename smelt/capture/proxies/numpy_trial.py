"""Trial runs of NumPy functions on arrays of the same layouts, whose results torch's results must match.

A run on ones determines the result's type, dtype, shape, strides and aliasing, and any error. A run on edge values (the
limits of the dtype, zeros of both signs, infinities, NaN, halves) compares the values: NumPy and torch differ for Python
integers that a dtype cannot hold, for example.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from smelt._native import isinstance
from smelt.capture.proxies.array_proxy import DTYPES, ArrayProxy, refusal, storage_of
from smelt.torch_private import DisableTorchDispatch, DisableTorchFunction

_Compute = Callable[..., object]  # takes the arguments of the NumPy function, arrays as `ArrayProxy`s
_Operands = Sequence[tuple[ArrayProxy, object]]  # each `ArrayProxy` and the ones that replace it
_UNSUPPORTED_ERRORS = (NotImplementedError, RuntimeError, TypeError, ValueError, IndexError)


def ones(value: object) -> object:
    """Ones with the layout of an `ArrayProxy` (zeros for integers, which are valid indices), in separate memory, so that
    views differ from copies; other values unchanged."""
    if not isinstance(value, ArrayProxy):
        return value
    fill = value.dtype.type(0 if value.dtype.kind in "iu" else 1)
    return fill if value.scalar else _laid_out(value, np.full(1, fill))


def _laid_out(array: ArrayProxy, elements: np.ndarray) -> np.ndarray:
    """`elements`, repeated, with the layout of `array`."""
    extent = 1 + sum((n - 1) * s for n, s in zip(array.shape, array.tensor.stride())) if array.size else 0
    return np.lib.stride_tricks.as_strided(np.resize(elements, extent), array.shape, array.strides)


def map_nested(fn: Callable[[object], object], value: object) -> object:
    """`value` with `fn` applied to the leaves of its tuples, lists and dictionaries."""
    if type(value) is tuple:
        return tuple(map_nested(fn, v) for v in value)
    if type(value) is list:
        return [map_nested(fn, v) for v in value]
    if type(value) is dict:
        return {k: map_nested(fn, v) for k, v in value.items()}
    return fn(value)


def call_mapped(
    function: Callable[..., object],
    fn: Callable[[object], object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> object:
    """`function(*args, **kwargs)` with `fn` applied to the leaves of the arguments."""
    return function(*(map_nested(fn, a) for a in args), **{k: map_nested(fn, v) for k, v in kwargs.items()})


def arrays_in(value: object) -> Iterator[ArrayProxy]:
    """All `ArrayProxy`s in nested lists, tuples and dictionaries."""
    if isinstance(value, ArrayProxy):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from arrays_in(v)
    elif isinstance(value, dict):
        yield from arrays_in(list(value.values()))


def check_against_trial(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    compute: _Compute,
) -> object:
    """Result of `compute(*args, **kwargs)` with torch as the `ArrayProxy`s that `function(*args, **kwargs)` returns with
    NumPy.

    Raises as `function` does on ones, and Unsupported if torch's result does not match NumPy's on ones or edge values.
    """
    operands: list[tuple[ArrayProxy, object]] = []

    def replace(value: object) -> object:
        trial_value = ones(value)
        if isinstance(value, ArrayProxy):
            operands.append((value, trial_value))
        return trial_value

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = call_mapped(function, replace, args, kwargs)
    try:
        result = compute(*args, **kwargs)
    except _UNSUPPORTED_ERRORS as error:  # NumPy itself succeeded
        raise refusal(f"{function!r} ({error})") from error
    wrapped = _wrap_result(function, expected, result, operands)
    step = min([_ROTATION, *(max(1, array.size) for array, _ in operands)])
    # Also on finite numbers only: a NaN among the elements hides the others from a sum.
    starts = [_NUMBERS_ONLY, *range(0, len(_INTEGER_EDGES), step)] if operands else []
    if not all(_agrees_on_edges(function, args, kwargs, compute, first) for first in starts):
        raise refusal(f"{function!r}, which gives other values in torch,")
    return wrapped


_NUMBERS_ONLY = -1
_INTEGER_EDGES = (0, 1, "min", 2, "max", 3, -1, 7, "min", 5, -2, 100)
_FLOAT_EDGES = (0.5, 1.0, -0.0, 2.5, -1.5, "inf", 0.0, 3.0, "nan", -2.0, "-inf", 100.0)
_ROTATION = 5  # elements by which runs on many elements, and operands, differ


def _edges(dtype: np.dtype[np.generic], first: int) -> np.ndarray:
    """Edge values of `dtype`, the `first`-th in front."""
    if first < 0 and dtype.kind != "b":
        values = np.array([3, 1, 2, 7, 5, 4, 6], dtype)
        first = 0
    elif dtype.kind == "b":
        values = np.array([True, False, False, True, True])
    elif dtype.kind == "f":
        values = np.array([float(x) for x in _FLOAT_EDGES], dtype)
    else:
        limits = np.iinfo(dtype)  # type: ignore[type-var]
        known = {"min": limits.min, "max": limits.max}
        numbers = [known[x] if isinstance(x, str) else x for x in _INTEGER_EDGES]
        values = np.array([x for x in numbers if x >= limits.min], dtype)
    return np.roll(values, -first)


def _agrees_on_edges(
    function: _Compute, args: Sequence[object], kwargs: Mapping[str, object], compute: _Compute, first: int
) -> bool:
    """Whether torch computes what NumPy computes of edge values. True also where NumPy raises: for the indices and sizes
    that no array has."""
    made: dict[int, tuple[np.ndarray | np.generic, ArrayProxy]] = {}

    def both(value: object) -> tuple[object, object]:
        if not isinstance(value, ArrayProxy):
            return value, value
        if id(value) not in made:
            elements = _edges(value.dtype, first if first < 0 else first + _ROTATION * len(made))
            found = elements[0] if value.scalar else _laid_out(value, elements)
            twin = np.array(found) if value.scalar else _laid_out(value, elements)
            made[id(value)] = found, ArrayProxy(torch.from_numpy(twin), value.scalar)
        return made[id(value)]

    with (
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
        DisableTorchDispatch(),
        DisableTorchFunction(),
        torch.no_grad(),
    ):
        warnings.simplefilter("ignore")
        try:
            expected = call_mapped(function, lambda v: both(v)[0], args, kwargs)
        except Exception:
            return True
        try:
            result = call_mapped(compute, lambda v: both(v)[1], args, kwargs)
        except _UNSUPPORTED_ERRORS:
            return False
        return _same_values(expected, result)


# Roundings that sums and functions of two libraries may differ by, by the dtype's name.
_TOLERANCES = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-9}


def _same_values(expected: object, result: object) -> bool:
    if isinstance(expected, (list, tuple)) and isinstance(result, (list, tuple)):
        return len(expected) == len(result) and all(map(_same_values, expected, result))
    if not isinstance(result, torch.Tensor):
        return bool(expected == result)
    wanted, found = np.asarray(expected), result.numpy()
    if wanted.shape != found.shape:
        return False
    tolerance = _TOLERANCES.get(wanted.dtype.name)
    if tolerance is None:
        return bool(np.array_equal(wanted, found))
    return bool(np.allclose(wanted, found, tolerance, tolerance, equal_nan=True))


def _wrap_result(function: object, expected: object, result: object, operands: _Operands) -> object:
    """Torch's `result` as an `ArrayProxy`, or as a list or tuple of them like the trial's result."""
    if (
        isinstance(expected, (list, tuple))
        and isinstance(result, (list, tuple))
        and len(expected) == len(result)
    ):
        return type(expected)(_wrap_result(function, a, b, operands) for a, b in zip(expected, result))
    if not isinstance(expected, (np.ndarray, np.generic)) or not isinstance(result, torch.Tensor):
        raise refusal(f"{function!r} with a result that is not an array")
    if DTYPES.get(result.dtype) != expected.dtype or tuple(result.shape) != expected.shape:
        raise refusal(f"{function!r}, whose result has another dtype or shape in torch,")
    if isinstance(expected, np.generic):
        shares = any(storage_of(result) == storage_of(array.tensor) for array, _ in operands)
        return ArrayProxy(result.clone() if shares else result, scalar=True)
    owner = next((array for array, trial_value in operands if _is_view(expected, trial_value)), None)
    return _match_layout(function, expected, result, owner, operands)


def _match_layout(
    function: object,
    expected: np.ndarray,
    result: torch.Tensor,
    owner: ArrayProxy | None,
    operands: _Operands,
) -> ArrayProxy:
    """Torch's result with the aliasing and strides of the trial's result."""
    shares = any(storage_of(result) == storage_of(array.tensor) for array, _ in operands)
    strides = tuple(s // expected.itemsize for s in expected.strides)
    same = (
        all(n == 1 or a == b for n, a, b in zip(result.shape, result.stride(), strides)) or not result.numel()
    )
    if owner is not None and (not shares or not same):
        raise refusal(f"{function!r}, which returns no view in torch,")
    if owner is None and (shares or not same):
        result = torch.empty_strided(result.shape, strides, dtype=result.dtype).copy_(result)
    elif tuple(result.stride()) != strides and result.numel():  # in dimensions of size 1
        result = result.as_strided(result.shape, strides)
    return ArrayProxy(result)


def _is_view(expected: np.ndarray, trial_value: object) -> bool:
    return isinstance(trial_value, np.ndarray) and np.may_share_memory(expected, trial_value)
