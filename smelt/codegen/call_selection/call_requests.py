"""The request for one ATen call: a product or a window, or the reason why neither can replace it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.codegen.llvm.gemm.epilogue import Epilogue, product_value, rewrite
from smelt.codegen.llvm.gemm.gemm_spec import Product
from smelt.codegen.llvm.windows.window_spec import Window
from smelt.graph.ir import TensorSpec
from smelt.loops.compute_dtypes import opmath
from smelt.loops.kernel_ir import Buffer, Value
from smelt.schedule.schedule import ExternItem
from smelt.shapes.expr import Size, bounds

Argument = TensorSpec | float | Sequence[int] | None


@dataclass(frozen=True)
class Request:
    """A product (or window) that replaces one ATen call. The function's buffers: args[i] for i in `operands`, then the
    inputs of the caller's epilogue, then the output."""

    product: Product | Window
    operands: tuple[int, ...]


class NotGenerated(Exception):
    """Raised while a call is described; its text says why the call stays ATen's."""


def tensor(argument: Argument) -> TensorSpec:
    """The operand. Raises NotGenerated where there is none."""
    if not isinstance(argument, TensorSpec):
        raise NotGenerated("an operand is not a tensor")
    return argument


def integers(sizes: Sequence[Size]) -> tuple[int, ...]:
    """Sizes or strides as numbers. Raises NotGenerated for a symbolic one."""
    if not all(isinstance(s, int) for s in sizes):
        raise NotGenerated("a dynamic size")
    return tuple(sizes)  # type: ignore[arg-type]


def with_bias(
    epilogue: Epilogue, argument: Argument, indices: Sequence[Size], dtype: torch.dtype
) -> Epilogue:
    """`epilogue` of (product + bias); the bias is input 0, its dimensions are the last ones of `indices` or of size 1.
    Narrow floats are added as float32, and rounded once. Raises NotGenerated for a bias of another dtype."""
    spec = tensor(argument)
    if spec.dtype != dtype:
        raise NotGenerated(f"a bias of {spec.dtype}")
    shape, stride = integers(spec.shape), integers(spec.stride)
    index: Size = 0
    for size, step, dim_index in zip(shape, stride, indices[len(indices) - len(shape) :]):
        if size != 1:
            index = index + dim_index * step
    sums = opmath(dtype)
    bias = as_dtype(Value("load", (0, index, None), spec.dtype), sums)
    total = as_dtype(Value("add", (product_value(sums), bias), sums), dtype)
    inputs = (Buffer("bias", spec.dtype, "in"), *epilogue.inputs)
    later = rewrite(epilogue.value, lambda b, e: (b + 1, e), total) if epilogue.value else total
    return Epilogue(inputs, later)


def as_dtype(value: Value, dtype: torch.dtype) -> Value:
    """`value`, converted if it is of another dtype."""
    return value if value.dtype is dtype else Value("cast", (value,), dtype)


def is_dense(spec: TensorSpec) -> bool:
    """Contiguous, and known to have elements."""
    expected: Size = 1
    for size, stride in zip(reversed(spec.shape), reversed(spec.stride)):
        if bounds(size)[0] < 1 or (size != 1 and stride != expected):
            return False
        expected = expected * size
    return True


def in_schema_order(item: ExternItem) -> list[Any]:
    """All arguments of the call, defaults included."""
    schema = item.op._schema.arguments
    values = [*item.args]
    for argument in schema[len(values) :]:
        values.append(item.kwargs.get(argument.name, argument.default_value))
    return values
