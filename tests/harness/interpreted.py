"""Triton's interpreter, made faster. It reduces and scans by functions of a kernel element by element, in Python: minutes
where rows are long. `by_halves()` has it combine whole blocks, in the order of a tree, as a GPU does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from triton.runtime import interpreter

Data = Any  # numpy arrays of one shape


@functools.cache
def by_halves() -> None:
    """From now on, in this process."""
    interpreter.ReduceOps.generic_reduce = _reduced
    interpreter.ScanOps.generic_scan = _scanned


def _combined(ops: Any, inputs: Sequence[Any]) -> Callable[[list[Data], list[Data]], list[Data]]:
    """What the function of `ops` makes of two blocks of each operand."""

    def combine(first: list[Data], second: list[Data]) -> list[Data]:
        given = [ops.to_tensor(d, x.dtype) for half in (first, second) for d, x in zip(half, inputs)]
        made = ops.combine_fn.fn(*given)
        found = made if isinstance(made, tuple) else (made,)
        return [m.handle.data.reshape(f.shape).astype(f.dtype) for m, f in zip(found, first)]

    return combine


def _reduced(ops: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """Neighbours are combined until one is left: sizes are powers of two."""
    whole = ops.axis is None
    inputs, axis = ops.unravel(inputs, ops.axis)
    data, combine = [x.handle.data for x in inputs], _combined(ops, inputs)
    rank = len(inputs[0].shape)
    while (size := data[0].shape[axis]) > 1:
        halves = ([np.take(d, range(begin, size, 2), axis) for d in data] for begin in (0, 1))
        data = combine(*halves)
    shape = [1] * rank if whole else list(data[0].shape)
    if not ops.keep_dims:
        shape = [] if whole else [*shape[:axis], *shape[axis + 1 :]]
    return [ops.to_tensor(d.reshape(shape) if shape else d.item(), x.dtype) for d, x in zip(data, inputs)]


def _scanned(ops: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """Hillis and Steele, "Data parallel algorithms", 1986."""
    data, combine = [x.handle.data for x in inputs], _combined(ops, inputs)
    size = data[0].shape[ops.axis]
    place = np.arange(size).reshape([size if k == ops.axis else 1 for k in range(data[0].ndim)])
    step = 1
    while step < size:
        made = combine([np.roll(d, step, ops.axis) for d in data], data)
        data = [np.where(place < step, d, m) for d, m in zip(data, made)]
        step *= 2
    return [ops.to_tensor(d, x.dtype) for d, x in zip(data, inputs)]
