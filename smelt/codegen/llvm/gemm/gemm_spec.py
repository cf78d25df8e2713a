"""A matrix product to compile, as data: sizes, operand layouts, the epilogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from smelt.codegen.llvm.gemm.epilogue import NO_EPILOGUE, Epilogue
from smelt.shapes.expr import Size


@dataclass(frozen=True)
class Matrix:
    """The layout of a (batch of a) matrix: strides in elements; `outer`, `inner` are the strides of the batch."""

    row: int
    col: int
    outer: int = 0
    inner: int = 0

    @property
    def transposed(self) -> Matrix:
        """The same memory with rows and columns exchanged."""
        return Matrix(self.col, self.row, self.outer, self.inner)


@dataclass(frozen=True)
class Lengths:
    """The components of a product that may be symbolic, the others being constants: `m`, `k`, and A's strides."""

    m: Size
    k: Size
    row: Size
    col: Size


@dataclass(frozen=True)
class Product:
    """C[o, i, m, n] = epilogue(sum over k of A[o, i, m, k] * B[o, i, k, n]) over o < batch[0], i < batch[1].

    The machine function's buffers are A, B, the epilogue's inputs, C. C must not overlap any other, and its columns
    are contiguous (c.col == 1). `name`: the function's symbol.
    """

    name: str
    dtype: torch.dtype
    batch: tuple[int, int]
    m: int
    n: int
    k: int
    a: Matrix
    b: Matrix
    c: Matrix
    epilogue: Epilogue = NO_EPILOGUE

    @property
    def lengths(self) -> Lengths:
        """The product's own lengths."""
        return Lengths(self.m, self.k, self.a.row, self.a.col)

    @property
    def form(self) -> Literal["NN", "NT", "TN", "TT"]:
        """The layouts of A and B. N: rows are contiguous."""
        a, b = ("N" if x.col == 1 else "T" for x in (self.a, self.b))
        return a + b  # type: ignore[return-value]
