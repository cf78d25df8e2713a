"""Diagonals of what has another number of rows than of columns: they are those of a square in it. Which of the two ends them
is a comparison, and so a guard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from smelt.ops.symbolic_rules import DIAGONAL, DIAGONAL_BACKWARD, DIAGONAL_COPY, SLICE, SLICE_BACKWARD
from smelt.shapes.expr import Expr, Size
from smelt.torch_private import OpOverload
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.call_arguments import Args, Kwargs, by_name
from smelt.tracing.symbolic.symbolic_numbers import Symbols

Run = Callable[[OpOverload, Args, Kwargs], Any]


def square_diagonal(run: Run, symbols: Symbols, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """What the operator gives, by operators on a square that `run` runs; None where that is no diagonal, or the square is
    not a part of something larger."""
    if func in (DIAGONAL, DIAGONAL_COPY):
        given = by_name(func, args, kwargs)
        if type(given["self"]) is not FakeTensor:
            return None
        square = _square(symbols, given, given["self"].spec.shape)
        return None if square is None else square.diagonal(run, func, given["self"])
    if func is DIAGONAL_BACKWARD:
        given = by_name(func, args, kwargs)
        square = _square(symbols, given, tuple(given["input_sizes"]))
        return None if square is None else square.backward(run, given["grad_output"])
    return None


@dataclass(frozen=True)
class _Square:
    """The first `count` rows and columns from the `starts` on, in `dims` of what has this shape."""

    shape: tuple[Size, ...]
    dims: tuple[int, int]
    starts: tuple[int, int]
    count: Size

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The dimensions that it is a part of, and where it starts there."""
        return [
            (d, start) for d, start in zip(self.dims, self.starts) if start or self.shape[d] != self.count
        ]

    def diagonal(self, run: Run, func: OpOverload, source: Any) -> Any:
        for d, start in self.parts:
            source = run(SLICE, (source, d, start, start + self.count), {})
        return run(func, (source, 0, *self.dims), {})

    def backward(self, run: Run, grad: Any) -> Any:
        sizes = [self.count if d in self.dims else n for d, n in enumerate(self.shape)]
        whole = run(DIAGONAL_BACKWARD, (grad, list(sizes), 0, *self.dims), {})
        for d, start in self.parts:
            sizes[d] = self.shape[d]
            whole = run(SLICE_BACKWARD, (whole, list(sizes), d, start, start + self.count, 1), {})
        return whole


def _square(symbols: Symbols, given: Kwargs, shape: tuple[Size, ...]) -> _Square | None:
    """None as well where there is no diagonal, or the operator raises."""
    rank, offset = len(shape), given["offset"]
    if not all(-rank <= given[name] < rank for name in ("dim1", "dim2")):
        return None
    row, column = (given[name] % rank for name in ("dim1", "dim2"))
    if shape[row] == shape[column] or not any(isinstance(shape[d], Expr) for d in (row, column)):
        return None
    starts = max(-offset, 0), max(offset, 0)
    down, right = shape[row] - starts[0], shape[column] - starts[1]
    if any(symbols.compare("lt", n, 1) for n in (down, right)):
        return None
    count = down if symbols.compare("le", down, right) else right
    return _Square(shape, (row, column), starts, count)
