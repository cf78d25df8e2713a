"""The epilogue of a product (or window): any elementwise `loops.kernel_ir.Value`, applied to each element before it is
stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from smelt.loops.kernel_ir import POINTWISE, Buffer, Value, walk
from smelt.shapes.expr import Size, Sym, affine, free_syms

# the symbols of an epilogue's indices: the flat batch index, and the element's row and column
BATCH, ROW, COL = Sym("gemm_batch"), Sym("gemm_row"), Sym("gemm_col")


@dataclass(frozen=True)
class Epilogue:
    """C = value(product), or the product. Loads number `inputs` from 0, with indices over BATCH, ROW and COL."""

    inputs: tuple[Buffer, ...] = ()
    value: Value | None = None


NO_EPILOGUE = Epilogue()


def product_value(dtype: torch.dtype) -> Value:
    """The sum of products, as an operand of an epilogue's value."""
    return Value("result", ("product",), dtype)


def refusal(epilogue: Epilogue, dtype: torch.dtype) -> str | None:
    """Why a product of `dtype` cannot have this epilogue; None if it can."""
    if epilogue.value is None:
        return None
    if epilogue.value.dtype != dtype:
        return f"the epilogue gives {epilogue.value.dtype}"
    for value in walk([epilogue.value]):
        if value.op == "load":
            _, index, mask = value.args
            line = affine(index, COL)
            if mask is not None:
                return "the epilogue loads under a mask"
            if line is None or line[0] not in (0, 1) or not free_syms(index) <= {BATCH, ROW, COL}:
                return f"the epilogue loads at {index}"
        elif value.op not in ("const", "cast", "result") and value.op not in POINTWISE:
            return f"the epilogue contains {value.op}"
    return None


def rewrite(value: Value, load: Callable[[int, Size], tuple[int, Size]], product: Value | None) -> Value:
    """`value` with each load's (buffer, index) mapped by `load`, and the product replaced (None: unchanged)."""
    memo: dict[int, Value] = {}

    def visit(v: Value) -> Value:
        if id(v) not in memo:
            memo[id(v)] = change(v)
        return memo[id(v)]

    def change(v: Value) -> Value:
        if v.op == "result":
            return product or v
        if v.op == "load":
            return Value("load", (*load(v.args[0], v.args[1]), v.args[2]), v.dtype)
        return Value(v.op, tuple(visit(a) if isinstance(a, Value) else a for a in v.args), v.dtype)

    return visit(value)
