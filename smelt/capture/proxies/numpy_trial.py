"""Trial runs of NumPy functions on ones of the same layouts, whose result torch's result must match.

NumPy itself thus determines the result's type, dtype, shape, strides and aliasing, and any error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from smelt._native import isinstance
from smelt.capture.proxies.array_proxy import DTYPES, ArrayProxy, refusal, storage_of

_Operands = Sequence[tuple[ArrayProxy, object]]  # each `ArrayProxy` and the ones that replace it
_UNSUPPORTED_ERRORS = (NotImplementedError, RuntimeError, TypeError, ValueError, IndexError)


def ones(value: object) -> object:
    """Ones with the layout of an `ArrayProxy` (zeros for integers, which are valid indices), in separate memory, so that
    views differ from copies; other values unchanged."""
    if not isinstance(value, ArrayProxy):
        return value
    fill = value.dtype.type(0 if value.dtype.kind in "iu" else 1)
    if value.scalar:
        return fill
    extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.tensor.stride())) if value.size else 0
    memory = np.full(extent, fill)
    return np.lib.stride_tricks.as_strided(memory, value.shape, value.strides)


def map_nested(fn: Callable[[object], object], value: object) -> object:
    """`value` with `fn` applied to the leaves of its tuples, lists and dictionaries."""
    if type(value) is tuple:
        return tuple(map_nested(fn, v) for v in value)
    if type(value) is list:
        return [map_nested(fn, v) for v in value]
    if type(value) is dict:
        return {k: map_nested(fn, v) for k, v in value.items()}
    return fn(value)


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
    compute: Callable[[], object],
) -> object:
    """Result of `compute()` with torch as the `ArrayProxy`s that `function(*args, **kwargs)` returns with NumPy.

    Raises as `function` does on ones, and Unsupported if torch's result does not match NumPy's.
    """
    operands: list[tuple[ArrayProxy, object]] = []

    def replace(value: object) -> object:
        trial_value = ones(value)
        if isinstance(value, ArrayProxy):
            operands.append((value, trial_value))
        return trial_value

    trial_args = [map_nested(replace, a) for a in args]
    trial_kwargs = {k: map_nested(replace, v) for k, v in kwargs.items()}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = function(*trial_args, **trial_kwargs)
    try:
        result = compute()
    except _UNSUPPORTED_ERRORS as error:  # NumPy itself succeeded
        raise refusal(f"{function!r} ({error})") from error
    return _wrap_result(function, expected, result, operands)


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
        return ArrayProxy(result, scalar=True)
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
    return ArrayProxy(result, from_environment=owner is not None and owner.from_environment)


def _is_view(expected: np.ndarray, trial_value: object) -> bool:
    return isinstance(trial_value, np.ndarray) and np.may_share_memory(expected, trial_value)
