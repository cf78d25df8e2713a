"""A sliding window to compile, as data, and which windows are supported."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import Literal

import torch

from smelt.codegen.llvm.gemm.epilogue import NO_EPILOGUE, Epilogue
from smelt.codegen.llvm.host_cpu import Host, host

Pair = tuple[int, int]  # vertical, horizontal

SCRATCH_BYTES = 256 << 10  # of one plane, on the stack of a thread
LARGEST = 400  # elements of a window
GRAIN_STEPS = 40_000  # vector instructions that a thread should take at least


@dataclass(frozen=True)
class Window:
    """R[n, c, y, x] = epilogue(combination over i, j of X[n, c, y * stride + i * dilation - padding, (same for x, j)]).

    `kind`: "sum" of X times W[c, i, j], "max" (NaN wins), or "mean" (the sum divided by `divisor`). Padding is 0, for
    "max" -inf. `x_strides`: of image, channel, row, column, in elements; `w_strides`: of c, i, j; `y_strides`: of
    image, channel; rows and columns of the result are contiguous. The function's buffers are X, W (for "sum"), the
    epilogue's inputs, R. In the epilogue BATCH is the image, ROW the channel, COL the pixel.
    """

    name: str
    kind: Literal["sum", "max", "mean"]
    dtype: torch.dtype
    planes: Pair  # images, channels
    size: Pair
    out: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    x_strides: tuple[int, int, int, int]
    w_strides: tuple[int, int, int]
    y_strides: Pair
    divisor: int = 1
    epilogue: Epilogue = NO_EPILOGUE

    @property
    def extent(self) -> int:
        """Work items: planes."""
        return prod(self.planes)

    @property
    def grain(self) -> int:
        """The minimum number of planes per thread."""
        steps = prod(self.out) * prod(self.kernel) // 8 + prod(self.size) // 4
        return max(1, ceil(GRAIN_STEPS / max(steps, 1)))


@dataclass(frozen=True)
class Scratch:
    """A padded plane: `rows` rows of `phases` runs of `run` elements; run p holds columns p, p + phases, ..."""

    rows: int
    phases: int
    run: int

    @property
    def row(self) -> int:
        """Elements of a row, in all phases."""
        return self.phases * self.run


def lanes_for(p: Window, target: Host) -> int:
    """The vector width that wastes least at the end of rows; narrow vectors cost half on a host that splits wide ones."""
    widest = target.lanes(p.dtype.itemsize)
    narrow = max(4, widest // 2)
    return widest if ceil(p.out[1] / widest) * widest <= ceil(p.out[1] / narrow) * narrow else narrow


def scratch_for(p: Window, lanes: int) -> Scratch:
    """Scratch for the plane, its borders, and the lanes of full vectors beyond the last column."""
    rows = max(p.padding[0] + p.size[0], (p.out[0] - 1) * p.stride[0] + (p.kernel[0] - 1) * p.dilation[0] + 1)
    phases = p.stride[1]
    reach = max(p.out[1], lanes) + (p.kernel[1] - 1) * p.dilation[1] // phases
    copied = ceil((p.padding[1] + p.size[1]) / phases) + 1
    return Scratch(rows, phases, ceil(max(reach, copied) / lanes) * lanes)


def refusal(p: Window) -> str | None:
    """Why there is no machine code for `p`."""
    if p.dtype not in (torch.float32, torch.float64):
        return f"windows over {p.dtype}"
    if p.stride[1] > 2:
        return "a horizontal stride above 2"
    scratch = scratch_for(p, host().lanes(p.dtype.itemsize))
    if scratch.rows * scratch.row * p.dtype.itemsize > SCRATCH_BYTES:
        return "a plane that exceeds the scratch memory"
    if prod(p.kernel) > LARGEST:
        return "a window too large to unroll"
    return None
