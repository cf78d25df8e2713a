"""Kernels of Triton that programs launch, and such programs: of two tensors of 100 elements, on any device that runs the
kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


@triton.jit
def scale(x, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(x + i, tl.load(x + i, mask=mask) * factor, mask=mask)


@triton.jit
def scale_rows(x, stride, columns, factor, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    mask = i < columns
    row = x + tl.program_id(0) * stride
    tl.store(row + i, tl.load(row + i, mask=mask) * factor, mask=mask)


@triton.jit
def with_bias(x, bias, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    value = tl.load(x + i, mask=mask)
    if bias is not None:
        value += tl.load(bias + i, mask=mask)
    tl.store(out + i, value, mask=mask)


@triton.jit
def subtract(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) - 2 * tl.load(y + i, mask=mask), mask=mask)


def tuned(**options: Any) -> Callable[[Any], Any]:
    """`triton.autotune`, whose measurement takes the last configuration."""
    times = iter(range(1_000_000, 0, -1))

    def bench(call: Callable[[], None], quantiles: Any) -> list[float]:
        call()
        return [float(next(times))] * 3

    configs = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})]
    return triton.autotune(configs=configs, key=["n"], do_bench=bench, **options)


tuned_add = tuned()(add)
tuned_scale = tuned(restore_value=["x"])(scale)


@tuned(reset_to_zero=["out"])
@triton.jit
def accumulate(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # Not `tl.sum`: Triton's interpreter does not take back what it changes for a function that a kernel calls.
    tl.atomic_add(out + i * 0, tl.load(x + i, mask=i < n), mask=i < n)


heuristic_add = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})(add)


def added(x, y):
    out = torch.empty_like(x)
    n = x.numel()
    add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=16)
    return out


def between_operators(x, y):
    return (added(x * 2, y.sin()) + x).relu()


def on_a_tuple(x, y):
    out = torch.zeros_like(x)
    add[(triton.cdiv(x.numel(), 32), 1)](x, y, out, x.numel(), BLOCK=32)
    return out, x.sum()


def by_keyword(x, y):
    out = torch.zeros_like(x)
    add[(4,)](x=x, y=y, out=out, n=x.numel(), BLOCK=32, num_warps=2)
    return out


def in_place_on_an_input(x, y):
    scale[(4,)](x, x.numel(), 3.0, BLOCK=32)
    return x + y


def in_place_after_a_read(x, y):
    before = x * 1
    kept = x.sin()
    scale[(4,)](x, x.numel(), 3.0, BLOCK=32)
    return before, kept, x * 2


def both_inputs(x, y):
    scale[(4,)](x, x.numel(), 3.0, BLOCK=32)
    scale[(4,)](y, y.numel(), 0.5, BLOCK=32)
    scale[(4,)](x, x.numel(), 2.0, BLOCK=32)


def the_input_is_returned(x, y):
    scale[(4,)](x, x.numel(), 3.0, BLOCK=32)
    return x


def a_view_of_an_input(x, y):
    scale[(1,)](x[10:30], 20, 3.0, BLOCK=32)
    return x.sum()


def a_view_is_taken_before(x, y):
    view = x.view(10, 10)[2]
    scale[(4,)](x, x.numel(), 3.0, BLOCK=32)
    return view * 1, view


def columns_of_a_temporary(x, y):
    wide = (x * 2).view(10, 10)
    part = wide[:, 3:7]
    scale_rows[(10,)](part, part.stride(0), 4, 5.0, BLOCK=4)
    return wide, part + 1


def columns_of_a_transposed_one(x, y):
    wide = (x * 2).view(10, 10).t()
    scale_rows[(10,)](wide, wide.stride(1), 10, 5.0, BLOCK=16)
    return wide * y.view(10, 10)


def beyond_the_view(x, y):
    wide = torch.cat((x, y)).view(20, 10)
    scale_rows[(10,)](wide[5], 10, 10, 5.0, BLOCK=16)  # ten rows from the fifth on
    return wide


def one_tensor_twice(x, y):
    z = x * 2
    add[(4,)](z, z, z, z.numel(), BLOCK=32)
    return z


def two_views_of_one(x, y):
    z = torch.cat((x, y))
    add[(4,)](z[:100], z[100:], z[50:150], 50, BLOCK=64)
    return z


def the_old_value_is_used(x, y):
    z = x * 2
    w = z + 1
    scale[(4,)](z, z.numel(), 3.0, BLOCK=32)
    return w, z, z - w


def a_copy_survives(x, y):
    z = x * 2
    c = z.clone()
    scale[(4,)](z, z.numel(), 3.0, BLOCK=32)
    return c, z


def two_outputs(x, y):
    a, b = torch.empty_like(x), torch.empty_like(x)
    add[(4,)](x, y, a, x.numel(), BLOCK=32)
    add[(4,)](a, y, b, x.numel(), BLOCK=32)
    return a * b, b


def in_a_loop(x, y):
    out = torch.zeros_like(x)
    for k in range(4):
        add[(4,)](out, y * k, out, x.numel(), BLOCK=32)
    return out


def not_used(x, y):
    add[(4,)](x, y, torch.empty_like(x), x.numel(), BLOCK=32)
    return x + 1


def without_a_bias(x, y):
    out, other = torch.empty_like(x), torch.empty_like(x)
    with_bias[(4,)](x, None, out, x.numel(), BLOCK=32)
    with_bias[(4,)](x, y, other, x.numel(), BLOCK=32)
    return out - other


def by_a_tuner(x, y):
    out = torch.empty_like(x)
    tuned_add[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
    return out * 2


def by_a_tuner_that_restores(x, y):
    tuned_scale[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x.numel(), 3.0)
    return x + y


def by_a_tuner_that_resets(x, y):
    out = torch.zeros(1, device=x.device)
    accumulate[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out + y.sum()


def by_heuristics(x, y):
    out = torch.empty_like(x)
    heuristic_add[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
    return out


def by_another_dtype(x, y):
    bits = x.clone()
    add[(4,)](
        bits.view(torch.int32),
        torch.ones(100, dtype=torch.int32, device=x.device),
        bits.view(torch.int32),
        100,
        BLOCK=32,
    )
    return bits


def a_constant_is_written(x, y):
    table = torch.tensor([1.0, 2.0, 3.0], device=x.device)
    scale[(1,)](table, 3, 2.0, BLOCK=4)
    return table, x[:3] * table


PROGRAMS = (
    added, between_operators, on_a_tuple, by_keyword, in_place_on_an_input, in_place_after_a_read, both_inputs,
    the_input_is_returned, a_view_of_an_input, a_view_is_taken_before, columns_of_a_temporary,
    columns_of_a_transposed_one, beyond_the_view, one_tensor_twice, two_views_of_one, the_old_value_is_used,
    a_copy_survives, two_outputs, in_a_loop, not_used, without_a_bias, by_a_tuner, by_a_tuner_that_restores,
    by_a_tuner_that_resets, by_heuristics, by_another_dtype, a_constant_is_written,
)  # fmt: skip


def make() -> tuple[torch.Tensor, ...]:
    return torch.randn(100), torch.randn(100)


# ---- programs that are trained


class Doubled(torch.autograd.Function):
    """x + x by a kernel, whose backward is one too; the input is saved, and written by nobody."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return added(x, y)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        grad = grad.contiguous()
        first, second = torch.empty_like(x), torch.zeros_like(y)
        n = x.numel()
        add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](grad, x, first, n, BLOCK=32)
        subtract[(4,)](y, grad, second, n, BLOCK=32)
        return first, second


class ScaledInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        scale[(4,)](x, x.numel(), 3.0, BLOCK=32)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        scale[(4,)](grad, grad.numel(), 3.0, BLOCK=32)
        return grad


def by_a_function(x, y):
    return (Doubled.apply(x * 2, y.sin()) * y).sum()


def functions_in_a_chain(x, y):
    for _ in range(3):
        x = Doubled.apply(x, y)
    return (x * x).mean()


def in_place_by_a_function(x, y):
    return (ScaledInPlace.apply(x * y) * x).sum()


def beside_what_has_gradients(x, y):
    out = added(x.detach(), y)
    return (out * x).sum() + y.exp().sum()


def written_behind_autograd(x, y):
    h = x.exp()  # whose backward reads what it gave
    scale[(4,)](h, h.numel(), 3.0, BLOCK=32)
    return (h * y).sum()


def read_before_it_is_written(x, y):
    h = x * 1
    z = h.sin()  # whose backward reads its input, as it is then
    scale[(4,)](h, h.numel(), 3.0, BLOCK=32)
    return (z * y).sum()


TRAINED = (
    by_a_function, functions_in_a_chain, in_place_by_a_function, beside_what_has_gradients,
    written_behind_autograd, read_before_it_is_written,
)  # fmt: skip
