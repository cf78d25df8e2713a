"""Tensors of every dtype for the tests of single operators, and how closely a lowering must agree with eager."""

import torch

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int8, torch.int32, torch.int64, torch.uint8]
TOLERANCE = {
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1e-2},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
}


def make(dtype, *shape, low=-3, high=3):
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_floating_point:
        return (torch.rand(shape) * (high - low) + low).to(dtype)
    return torch.randint(max(low, 0) if dtype is torch.uint8 else low, high + 1, shape, dtype=dtype)


def name_of(value):
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None
