"""Rows for NumPy objects that capture creates: dtypes, scalars, and arrays small enough for the source."""

from __future__ import annotations

import numpy as np

from smelt._native import isinstance
from smelt.capture.proxies.array_proxy import DTYPES
from smelt.capture.reconstruction.reconstruction_kind import ReconstructionKind

_SMALL_ARRAY = 4096  # bytes, of up to four characters each in the source

_VALUES = frozenset("?biufcSU")  # kinds of dtypes whose scalars are Python literals
_TIMES = frozenset("Mm")

_DTYPE = ReconstructionKind(lambda x: (), lambda x, text: f"numpy_dtype({x.name!r})")
_SCALAR = ReconstructionKind(
    lambda x: (), lambda x, text: f"numpy_dtype({x.dtype.str!r}).type({text(x.item())})"
)
_ARRAY = ReconstructionKind(
    lambda x: (), lambda x, text: f"from_bytes({x.tobytes()!r}, {x.dtype.str!r}).reshape({x.shape!r}).copy()"
)


def numpy_kind(x: object) -> ReconstructionKind | None:
    """The row of a NumPy object; None for other objects, and where the source cannot hold the values."""
    if isinstance(x, np.dtype) and x in DTYPES.values():
        return _DTYPE
    if isinstance(x, np.generic) and x.dtype.kind in _VALUES and type(x.item()) is not type(x):
        return _SCALAR
    return _ARRAY if type(x) is np.ndarray and _is_small(x) else None


def _is_small(x: np.ndarray) -> bool:
    """Whether the source can hold the array's values."""
    return (
        x.base is None
        and x.flags.c_contiguous
        and x.flags.writeable
        and x.dtype.kind in _VALUES | _TIMES
        and x.itemsize > 0
        and x.nbytes <= _SMALL_ARRAY
    )
