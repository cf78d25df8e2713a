"""ATen operators that slide a window over planes: depthwise convolutions, max and average pooling.

Each entry of WINDOW_CALLS describes an extern as a `WindowCall`, or says why generated code cannot replace it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import torch

from smelt.codegen.call_selection.call_requests import NotGenerated, Request, with_bias
from smelt.codegen.llvm.gemm.epilogue import ROW, Epilogue
from smelt.codegen.llvm.gemm.epilogue import refusal as epilogue_refusal
from smelt.codegen.llvm.windows.window_spec import Pair, Window, refusal
from smelt.graph.ir import TensorSpec
from smelt.ops.convolution_settings import Convolution
from smelt.schedule.schedule import ExternItem, Schedule
from smelt.shapes.expr import static
from smelt.torch_private import OpOverload

aten = torch.ops.aten


@dataclass(frozen=True)
class WindowCall:
    """An extern as a window without epilogue. `buffers`: X, W if it has weights, the bias if it has one; `result`: the
    extern's own result as matrices [image, channel, pixel]."""

    window: Window
    buffers: tuple[int | None, ...]
    result: TensorSpec
    bias: TensorSpec | None = None

    def plan(self, out: TensorSpec, name: str, epilogue: Epilogue) -> Request | str:
        """The window that computes `epilogue` of the extern's result into `out`, with the shape of `result`, or why not."""
        try:
            if self.bias is not None:
                epilogue = with_bias(epilogue, self.bias, [ROW], out.dtype)
        except NotGenerated as refused:
            return str(refused)
        reason = self._refusal(out, epilogue)
        if reason is not None:
            return reason
        strides = (static(out.stride[0]), static(out.stride[1]))
        window = replace(self.window, name=name, y_strides=strides, epilogue=epilogue)
        return Request(window, tuple(range(len(self.buffers))))

    def _refusal(self, out: TensorSpec, epilogue: Epilogue) -> str | None:
        if out.dtype != self.window.dtype:
            return f"a result of {out.dtype}"
        if out.shape[2] != 1 and out.stride[2] != 1:
            return "pixels of the result are not contiguous"
        return epilogue_refusal(epilogue, out.dtype)


def _depthwise(schedule: Schedule, item: ExternItem, arguments: Sequence[Any]) -> WindowCall | str:
    x, weight, bias, *settings = arguments
    c = Convolution(*settings)
    xs, ws = schedule.buffers[x.id].spec, schedule.buffers[weight.id].spec
    if c.transposed or len(xs.shape) != 4 or not c.groups == xs.shape[1] == ws.shape[0]:
        return "not a depthwise convolution"
    bs = None if bias is None else schedule.buffers[bias.id].spec
    if any(s is not None and s.dtype != xs.dtype for s in (ws, bs)):
        return "operands of several dtypes"
    buffers = (x.id, weight.id) if bias is None else (x.id, weight.id, bias.id)
    return _window(
        schedule, item, "sum", buffers, xs, ws.shape[2:], c.stride, c.padding, c.dilation,
        w_strides=(ws.stride[0], *ws.stride[2:]), bias=bs,
    )  # fmt: skip


def _max_pool(schedule: Schedule, item: ExternItem, arguments: Sequence[Any]) -> WindowCall | str:
    x, kernel, stride, padding, dilation, _ = arguments
    spec = schedule.buffers[x.id].spec
    return _window(schedule, item, "max", (x.id,), spec, kernel, stride or kernel, padding, dilation)


def _mean_pool(schedule: Schedule, item: ExternItem, arguments: Sequence[Any]) -> WindowCall | str:
    """Average pooling whose windows all count the same number of pixels."""
    x, kernel, stride, padding, ceil_mode, count_include_pad, divisor = arguments
    if divisor is None and (ceil_mode or (any(padding) and not count_include_pad)):
        return "windows at the border count fewer pixels"
    spec = schedule.buffers[x.id].spec
    count = prod(_pair(kernel)) if divisor is None else divisor
    return _window(
        schedule, item, "mean", (x.id,), spec, kernel, stride or kernel, padding, (1, 1), divisor=count
    )


def _window(
    schedule: Schedule,
    item: ExternItem,
    kind: Literal["sum", "max", "mean"],
    buffers: tuple[int, ...],
    x: TensorSpec,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *,
    w_strides: tuple[Any, ...] = (0, 0, 0),
    bias: TensorSpec | None = None,
    divisor: int = 1,
) -> WindowCall | str:
    y = schedule.buffers[item.outs[0]].spec  # type: ignore[index]
    sizes = (*x.shape, *y.shape, *x.stride, *y.stride, *w_strides)
    if len(x.shape) != 4 or not all(isinstance(s, int) for s in sizes):
        return "not images of fixed sizes"
    if 0 in (*x.shape, *y.shape):
        return "an empty operand"
    pixels = prod(y.shape[2:])
    if any(s != 1 and have != want for s, have, want in zip(y.shape[2:], y.stride[2:], (y.shape[3], 1))):
        return "planes of the result are not contiguous"
    column = x.stride[3] if x.shape[3] != 1 else 1
    window = Window(
        name="", kind=kind, dtype=y.dtype, planes=_pair(y.shape[:2]), size=_pair(x.shape[2:]),
        out=_pair(y.shape[2:]), kernel=_pair(kernel), stride=_pair(stride), padding=_pair(padding),
        dilation=_pair(dilation), x_strides=(*x.stride[:3], column),  # type: ignore[arg-type]
        w_strides=w_strides, y_strides=_pair(y.stride[:2]), divisor=divisor,
    )  # fmt: skip
    reason = refusal(window)
    if reason is not None:
        return reason
    result = replace(y, shape=(*y.shape[:2], pixels), stride=(*y.stride[:2], 1))
    return WindowCall(window, buffers, result, bias)


def _pair(sizes: Sequence[Any]) -> Pair:
    """One number stands for both directions."""
    return (sizes[0], sizes[-1])


Describe = Callable[[Schedule, ExternItem, Sequence[Any]], WindowCall | str]
WINDOW_CALLS: dict[OpOverload, Describe] = {
    aten.convolution.default: _depthwise,
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.avg_pool2d.default: _mean_pool,
}
