"""Kernels for the tests of Triton's printer: one of each kind, and those of programs as a GPU's costs schedule them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from smelt.loops.kernel_ir import Kernel
from smelt.ops.lowering import lower
from smelt.schedule.schedule import KernelItem
from smelt.schedule.schedule_program import fuse
from smelt.targets.cuda import COSTS
from tests.harness.kernels import (
    bias_gelu,
    doubled_and_summed,
    flat,
    kept,
    layer_norm,
    op,
    pad,
    reduction,
    scaled_and_summed,
    scan,
    softmax,
    softmax_columns,
    transpose,
)
from tests.harness.traced import traced

f32, bf16 = torch.float32, torch.bfloat16


def add(n: int, dtype: torch.dtype = f32) -> Kernel:
    return flat(n, [dtype, dtype], dtype, lambda a, b: op("add", a, b))


KERNELS: dict[str, Kernel] = {
    "pointwise": add(4096),
    "pointwise of any size": add(4097),
    "bf16": add(4096, bf16),
    "bool": flat(4096, [f32, f32], torch.bool, lambda a, b: op("lt", a, b, dtype=torch.bool)),
    "gelu": bias_gelu(64, 512),
    "softmax": softmax(64, 1000),
    "short rows": softmax(64, 33),
    "long rows": softmax(4, 20_000),
    "softmax of columns": softmax_columns(100, 100),
    "softmax with its exponentials kept": kept(64, 1000),
    "layer norm": layer_norm(64, 768),
    "layer norm of bf16": layer_norm(64, 768, bf16),
    "scan": scan("sum", 64, 100, "columns"),
    "scan in blocks": scan("sum", 4, 20_000, "columns"),
    "transpose": transpose(64, 100),
    "pad": pad(17, 33, 2),
    "sums beside": doubled_and_summed(100, 200, "rows"),
    "sums beside rows": scaled_and_summed(1024, 1000, 16),
    "sums beside rows, the last chunk shorter": scaled_and_summed(1000, 1024, 16, bf16),
    "sums beside rows, one at a time": scaled_and_summed(1024, 4096, 16),
    "sums beside long indices": scaled_and_summed((1 << 19) + 1, 8192, 1024, bf16),
    **{f"{kind} of {over}": reduction(kind, 100, 200, f32, over)
       for kind in ("sum", "max", "argmax", "any", "prod") for over in ("columns", "rows")},
    "all of it": reduction("sum", 64, 64, f32, "all"),
    "largest of integers": reduction("min", 30, 40, torch.int64),
}  # fmt: skip


def scheduled(f: Callable, *inputs: torch.Tensor) -> list[Kernel]:
    """The kernels of a program, with the costs of a GPU."""
    items = fuse(lower(traced(f, *inputs)[0], COSTS), COSTS).items
    return [item.kernel for item in items if isinstance(item, KernelItem)]
