"""Rows for NumPy objects that capture creates: dtypes, scalars and arrays. The source holds the values of small arrays; the
compiled frame copies those of others from an array that it holds."""

from __future__ import annotations

from typing import cast

import numpy as np

from smelt._native import isinstance
from smelt.capture.proxies.array_proxy import DTYPES
from smelt.capture.reconstruction.reconstruction_kind import Expressions, ReconstructionKind

_SMALL_ARRAY = 4096  # bytes, of up to four characters each in the source
_LARGE_ARRAY = 1 << 24  # bytes, which the compiled frame may hold

_VALUES = frozenset("?biufcSU")  # kinds of dtypes whose scalars are Python literals
_TIMES = frozenset("Mm")

_DTYPE = ReconstructionKind(lambda x: (), lambda x, text: f"numpy_dtype({x.name!r})")
_SCALAR = ReconstructionKind(
    lambda x: (), lambda x, text: f"numpy_dtype({x.dtype.str!r}).type({text(x.item())})"
)


def _create(x: np.ndarray, text: Expressions) -> str:
    if x.nbytes > _SMALL_ARRAY:
        return f"{text.constant(x.copy(), 'array')}.copy()"
    return f"from_bytes({x.tobytes()!r}, {x.dtype.str!r}).reshape({x.shape!r}).copy()"


_ARRAY = ReconstructionKind(lambda x: (), _create)


def _view_of(
    base: np.ndarray, dtype: str, shape: tuple[int, ...], offset: int, strides: tuple[int, ...]
) -> np.ndarray:
    return np.ndarray(shape, dtype, base, offset, strides)


def _create_view(x: np.ndarray, text: Expressions) -> str:
    offset = x.ctypes.data - cast("np.ndarray", x.base).ctypes.data
    return f"{text.constant(_view_of, 'view_of')}({text(x.base)}, {x.dtype.str!r}, {x.shape!r}, {offset}, {x.strides!r})"


_VIEW = ReconstructionKind(lambda x: (x.base,), _create_view)


def numpy_kind(x: object) -> ReconstructionKind | None:
    """The row of a NumPy object; None for other objects, and where the compiled frame cannot hold the values."""
    if isinstance(x, np.dtype) and x in DTYPES.values():
        return _DTYPE
    if isinstance(x, np.generic) and x.dtype.kind in _VALUES and type(x.item()) is not type(x):
        return _SCALAR
    if type(x) is not np.ndarray or not _is_simple(x):
        return None
    if x.base is None:
        return _ARRAY if _may_hold(x) else None
    is_view = type(x.base) is np.ndarray and x.base.base is None and _is_simple(x.base) and _may_hold(x.base)
    return _VIEW if is_view else None


def _is_simple(x: np.ndarray) -> bool:
    return x.flags.writeable and x.dtype.kind in _VALUES | _TIMES


def _may_hold(x: np.ndarray) -> bool:
    """Whether the compiled frame may hold the array's values."""
    return x.flags.c_contiguous and x.itemsize > 0 and x.nbytes <= _LARGE_ARRAY
