"""Diagonals of matrices that are not square: those of the square that they are in. Whether rows or columns end a
diagonal is a comparison, and so a guard."""

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
    """The operator's result, by operators on a square that `run` runs; None where it is no diagonal, or the tensor is
    square already."""
    if func in (DIAGONAL, DIAGONAL_COPY):
        arguments = by_name(func, args, kwargs)
        if type(arguments["self"]) is not FakeTensor:
            return None
        square = _square(symbols, arguments, arguments["self"].spec.shape)
        return None if square is None else square.diagonal(run, func, arguments["self"])
    if func is DIAGONAL_BACKWARD:
        arguments = by_name(func, args, kwargs)
        square = _square(symbols, arguments, tuple(arguments["input_sizes"]))
        return None if square is None else square.backward(run, arguments["grad_output"])
    return None


@dataclass(frozen=True)
class _Square:
    """The submatrix of `count` rows and columns from `starts` on, in `dims` of a tensor of this shape."""

    shape: tuple[Size, ...]
    dims: tuple[int, int]
    starts: tuple[int, int]
    count: Size

    @property
    def sliced_dims(self) -> list[tuple[int, int]]:
        """The dimensions that the square is a slice of, with its start there."""
        return [
            (d, start) for d, start in zip(self.dims, self.starts) if start or self.shape[d] != self.count
        ]

    def diagonal(self, run: Run, func: OpOverload, source: Any) -> Any:
        for d, start in self.sliced_dims:
            source = run(SLICE, (source, d, start, start + self.count), {})
        return run(func, (source, 0, *self.dims), {})

    def backward(self, run: Run, grad: Any) -> Any:
        sizes = [self.count if d in self.dims else n for d, n in enumerate(self.shape)]
        gradient = run(DIAGONAL_BACKWARD, (grad, list(sizes), 0, *self.dims), {})
        for d, start in self.sliced_dims:
            sizes[d] = self.shape[d]
            gradient = run(SLICE_BACKWARD, (gradient, list(sizes), d, start, start + self.count, 1), {})
        return gradient


def _square(symbols: Symbols, arguments: Kwargs, shape: tuple[Size, ...]) -> _Square | None:
    """The square; None where the tensor is square, there is no diagonal, or the operator raises."""
    rank, offset = len(shape), arguments["offset"]
    if not all(-rank <= arguments[name] < rank for name in ("dim1", "dim2")):
        return None
    row, column = (arguments[name] % rank for name in ("dim1", "dim2"))
    if shape[row] == shape[column] or not any(isinstance(shape[d], Expr) for d in (row, column)):
        return None
    starts = max(-offset, 0), max(offset, 0)
    down, right = shape[row] - starts[0], shape[column] - starts[1]
    if any(symbols.compare("lt", n, 1) for n in (down, right)):
        return None
    count = down if symbols.compare("le", down, right) else right
    return _Square(shape, (row, column), starts, count)
