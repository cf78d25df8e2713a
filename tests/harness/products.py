"""Matrix products for the tests of GPU code: as `TiledProduct`s, with tensors for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from smelt.codegen.llvm.gemm.epilogue import BATCH, COL, ROW, product_value
from smelt.codegen.triton.block_gemm import Operand
from smelt.codegen.triton.gemm_kernel import TiledProduct
from smelt.loops.kernel_ir import Buffer, Value
from smelt.shapes.expr import Size

f16, f32 = torch.float16, torch.float32
Tail = Callable[[Value, Callable[[torch.dtype, Size], Value]], Value]


@dataclass(frozen=True)
class Case:
    """Sizes, how the operands lie in memory, in which dtype they are given and multiplied, and what is done behind: `tail`
    of the sums and a function that loads a further input of a dtype at an index."""

    m: int
    n: int
    k: int
    batch: int = 1
    form: str = "NN"
    dtype: torch.dtype = f16
    given: torch.dtype | None = None
    shared: bool = False  # B is the same for the whole batch
    head: Callable[[Value], Value] | None = None
    tail: Tail = lambda sums, load: sums

    def product(self) -> TiledProduct:
        """As code generation takes it."""
        given = self.given or self.dtype
        inputs: list[Buffer] = []

        def load(dtype: torch.dtype, index: Size) -> Value:
            inputs.append(Buffer(f"in{len(inputs)}", dtype, "in"))
            return Value("load", (len(inputs) - 1, index, None), dtype)

        def operand(rows: int, columns: int, transposed: bool, batched: bool) -> Operand:
            index = COL * rows + ROW if transposed else ROW * columns + COL
            value = Value("load", (0, index + BATCH * (rows * columns) if batched else index, None), given)
            value = self.head(value) if self.head else value
            if value.dtype is not self.dtype:
                value = Value("cast", (value,), self.dtype)
            return Operand((Buffer("x", given, "in"),), value)

        value = self.tail(product_value(f32), load)
        return TiledProduct(
            "product", self.batch, self.m, self.n, self.k,
            operand(self.m, self.k, self.form[0] == "T", True),
            operand(self.k, self.n, self.form[1] == "T", not self.shared),
            tuple(inputs), value, BATCH * (self.m * self.n) + ROW * self.n + COL,
        )  # fmt: skip

    def tensors(self, device: str = "cpu") -> list[torch.Tensor]:
        """Flat memory for all buffers, the result's filled with 7 and as many elements longer as a tile may go too far."""
        made = []
        product = self.product()
        sizes = [self.batch * self.m * self.k, (1 if self.shared else self.batch) * self.k * self.n]
        rest = [self.batch * self.m * self.n] * len(product.inputs)
        buffers = (*product.a.inputs, *product.b.inputs, *product.inputs)
        for size, buffer in zip(sizes + rest, buffers, strict=True):
            x = torch.randn(size, device=device)
            made.append((x > 0) if buffer.dtype is torch.bool else x.to(buffer.dtype))
        out = torch.full((self.batch * self.m * self.n + 512,), 7.0, device=device)
        return [*made, out.to(product.value.dtype)]

    def exact(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """The sums alone, in float64."""
        a, b = (self.matrices(t, side).double() for side, t in enumerate(tensors[:2]))
        return a @ b

    def matrices(self, tensor: torch.Tensor, side: int) -> torch.Tensor:
        """An operand as a stack of matrices, as it is multiplied where nothing else is done in front."""
        rows, columns = ((self.m, self.k), (self.k, self.n))[side]
        x = tensor.to(self.dtype)
        if self.form[side] == "T":
            return x.view(-1, columns, rows).transpose(1, 2)
        return x.view(-1, rows, columns)


def cast(value: Value, dtype: torch.dtype) -> Value:
    """`value` as `dtype`."""
    return value if value.dtype is dtype else Value("cast", (value,), dtype)
