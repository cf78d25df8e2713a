"""Kernels that are a softmax over their rows of an elementwise value."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from smelt.codegen.triton.approximate_math import below_maximum
from smelt.loops.kernel_ir import Kernel, Loop, MapStage, ReduceStage, Value
from smelt.loops.loop_values import Moved
from smelt.shapes.expr import Size


@dataclass(frozen=True)
class Softmax:
    """For each outer point of its kernel and each point of `keys`: exp(score - the largest) / the sum of that,
    converted to the dtype of the kernel's `out`-th buffer and stored there at `index`. `empty`: the value of rows in
    which all scores are minus infinity, 0 or NaN."""

    keys: Loop
    score: Value
    out: int
    index: Size
    empty: float


def softmax_of(kernel: Kernel) -> Softmax | str:
    """The softmax that `kernel` is, or the reason why it is not one."""
    if kernel.sums is not None or len(kernel.stages) != 3:
        return "other stages"
    if any(b.role in ("local", "inout") for b in kernel.buffers):
        return "it keeps or changes something"
    largest, total, last = kernel.stages
    if not isinstance(largest, ReduceStage) or not isinstance(total, ReduceStage):
        return "other stages"
    if not isinstance(last, MapStage) or len(last.stores) != 1 or last.stores[0].lookups:
        return "other stages"
    if largest.stores or total.stores or len(largest.reductions) != 1 or len(total.reductions) != 1:
        return "it gives more"
    (keys,), (store,) = largest.loops[:1] or (None,), last.stores
    (most,), (added,) = largest.reductions, total.reductions
    sizes = [[loop.size for loop in stage.loops] for stage in (largest, total, last)]
    if keys is None or any(found != [keys.size] for found in sizes):
        return "stages over other loops"
    if most.kind != "max" or added.kind != "sum" or most.value.dtype is not torch.float32:
        return "other reductions"
    weight = Moved({total.loops[0].sym: keys.sym}).value(added.value)
    if below_maximum(weight, {most.name: most.value}) is None:
        return "no sum of exponentials below the maximum"
    move = Moved({last.loops[0].sym: keys.sym})
    empty = _empty(move.value(store.value), weight, most.name, added.name)
    if empty is None:
        return "something else is made of the exponentials"
    return Softmax(keys, most.value, store.buffer, move.index(store.index), empty)


def _empty(value: Value, weight: Value, most: str, total: str) -> float | None:
    """The value for rows of minus infinity, if `value` is otherwise `weight` divided by the sum; None if it is not."""
    value, empty = _converted(value), math.nan
    if value.op == "where":
        nothing, zero, value = value.args[0], value.args[1], _converted(value.args[2])
        largest = Value("result", (most,), torch.float32)
        lowest = Value("const", (-math.inf,), torch.float32)
        if nothing.op != "eq" or set(nothing.args) != {largest, lowest}:
            return None
        if zero.op != "const" or zero.args[0] != 0:
            return None
        empty = 0.0
    quotient = Value("div", (weight, Value("result", (total,), torch.float32)), torch.float32)
    return empty if value is quotient else None


def _converted(value: Value) -> Value:
    """The value before conversions to other float dtypes."""
    while value.op == "cast" and value.dtype.is_floating_point and value.args[0].dtype.is_floating_point:
        (value,) = value.args
    return value
