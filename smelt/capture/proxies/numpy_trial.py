"""The trial of a NumPy function: it runs on ones of the same layouts, and what torch computes must look like its result.

So NumPy itself says which type, dtype, shape and strides the result has, whether it is a view, and which error is raised.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from smelt._native import isinstance
from smelt.capture.proxies.array_proxy import DTYPES, Array, refusal, storage_of

_Operands = Sequence[tuple[Array, object]]  # each `Array` with the ones that stood for it
_NOT_COMPUTED = (NotImplementedError, RuntimeError, TypeError, ValueError, IndexError)


def ones(value: object) -> object:
    """Ones (of integers zeros, which are always good indices) laid out as an `Array`, in memory of their own, so that views
    are told from copies; anything else as it is."""
    if not isinstance(value, Array):
        return value
    fill = value.dtype.type(0 if value.dtype.kind in "iu" else 1)
    if value.scalar:
        return fill
    extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.tensor.stride())) if value.size else 0
    memory = np.full(extent, fill)
    return np.lib.stride_tricks.as_strided(memory, value.shape, value.strides)


def map_nested(fn: Callable[[object], object], value: object) -> object:
    """`value` with `fn` applied to what its tuples, lists and dictionaries hold."""
    if type(value) is tuple:
        return tuple(map_nested(fn, v) for v in value)
    if type(value) is list:
        return [map_nested(fn, v) for v in value]
    if type(value) is dict:
        return {k: map_nested(fn, v) for k, v in value.items()}
    return fn(value)


def arrays_in(value: object) -> Iterator[Array]:
    """The `Array`s in `value`, in lists, tuples and dictionaries at any depth."""
    if isinstance(value, Array):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from arrays_in(v)
    elif isinstance(value, dict):
        yield from arrays_in(list(value.values()))


def checked(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    compute: Callable[[], object],
) -> object:
    """What `compute` gives with torch, as the `Array`s that `function(*args, **kwargs)` gives with NumPy.

    Raises what `function` raises on ones, and Unsupported where torch's result does not look like NumPy's."""
    operands: list[tuple[Array, object]] = []

    def stand_in(value: object) -> object:
        made = ones(value)
        if isinstance(value, Array):
            operands.append((value, made))
        return made

    tried = [map_nested(stand_in, a) for a in args]
    named = {k: map_nested(stand_in, v) for k, v in kwargs.items()}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        like = function(*tried, **named)
    try:
        got = compute()
    except _NOT_COMPUTED as error:  # NumPy itself did it
        raise refusal(f"{function!r} ({error})") from error
    return _dressed(function, like, got, operands)


def _dressed(function: object, like: object, got: object, operands: _Operands) -> object:
    """Torch's result `got` as an `Array`, or as the list or tuple of them that the trial's result `like` is."""
    if isinstance(like, (list, tuple)) and isinstance(got, (list, tuple)) and len(like) == len(got):
        return type(like)(_dressed(function, a, b, operands) for a, b in zip(like, got))
    if not isinstance(like, (np.ndarray, np.generic)) or not isinstance(got, torch.Tensor):
        raise refusal(f"{function!r} with a result that is no array")
    if DTYPES.get(got.dtype) != like.dtype or tuple(got.shape) != like.shape:
        raise refusal(f"{function!r}, whose result torch gives another dtype or shape,")
    if isinstance(like, np.generic):
        return Array(got, scalar=True)
    owner = next((array for array, stood in operands if _is_view(like, stood)), None)
    return _laid_out(function, like, got, owner, operands)


def _laid_out(
    function: object, like: np.ndarray, got: torch.Tensor, owner: Array | None, operands: _Operands
) -> Array:
    """`got` with the memory of the trial's result: a view exactly where that is one, else with its strides."""
    shares = any(storage_of(got) == storage_of(array.tensor) for array, _ in operands)
    strides = tuple(s // like.itemsize for s in like.strides)
    same = all(n == 1 or a == b for n, a, b in zip(got.shape, got.stride(), strides)) or not got.numel()
    if owner is not None and (not shares or not same):
        raise refusal(f"{function!r}, a view that torch does not give,")
    if owner is None and (shares or not same):
        got = torch.empty_strided(got.shape, strides, dtype=got.dtype).copy_(got)
    elif tuple(got.stride()) != strides and got.numel():  # of dimensions of size 1
        got = got.as_strided(got.shape, strides)
    return Array(got, from_environment=owner is not None and owner.from_environment)


def _is_view(like: np.ndarray, stood: object) -> bool:
    return isinstance(stood, np.ndarray) and np.may_share_memory(like, stood)
