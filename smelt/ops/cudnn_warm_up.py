"""Warm-up of a backward's grouped convolutions during compilation: cuDNN builds each at its first call, which takes long.

torch caches cuDNN's plans per thread, and autograd runs backwards on a thread of its own for each GPU. The convolutions are
therefore called on that thread, on uninitialized tensors: by a backward that a background thread starts.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator, Set
from typing import Any

import torch

from smelt.cost_model import Costs
from smelt.graph.ir import Graph, Node, TensorSpec
from smelt.graph.tensor_specs import empty_like_spec
from smelt.ops.convolution_settings import Convolution
from smelt.ops.cudnn_layouts import is_cudnns
from smelt.ops.depthwise_convolution import BACKWARD, are_generated
from smelt.ops.layouts.meta_layouts import META

_ENDING = threading.Event()  # the process ends
# (gradient, images, weight, settings, which of three gradients)
Call = tuple[TensorSpec, TensorSpec, TensorSpec, Convolution, tuple[bool, bool, bool]]


def begin(graph: Graph, backward: Set[Node], costs: Costs, device: torch.device) -> threading.Thread | None:
    """Start calling the convolutions of the backward on `device` in the background; None if there are none."""
    calls = list(dict.fromkeys(convolutions(graph, backward, costs, device)))
    if not calls or torch.cuda.is_current_stream_capturing():
        return None
    thread = threading.Thread(target=_warm, args=(calls, device), name="smelt-warm-up", daemon=True)
    thread.start()
    atexit.register(_end, thread)
    return thread


def _end(thread: threading.Thread) -> None:
    """Wait for autograd's thread at interpreter exit; otherwise the process would end with an error."""
    _ENDING.set()
    thread.join()


def convolutions(graph: Graph, backward: Set[Node], costs: Costs, device: torch.device) -> Iterator[Call]:
    """The grouped convolutions that cuDNN computes, a call for each gradient."""
    for node in graph:
        if node.target is not BACKWARD or node not in backward:
            continue
        grad, x, weight = (a.spec for a in node.args[:3])
        settings, wanted = Convolution(*node.args[4:10]).frozen(), node.args[10]
        c = settings.over(len(weight.shape) - 2)
        if x.device != device or not c.has_numbers or c.groups == 1 or not _is_known(grad, x, weight):
            continue
        if not is_cudnns(device, empty_like_spec(x, META), empty_like_spec(weight, META), c):
            continue
        own = are_generated(grad, x, weight, c, costs)
        for k in range(2):
            if wanted[k] and not own[k]:
                yield grad, x, weight, settings, (k == 0, k == 1, False)


def _is_known(*specs: TensorSpec) -> bool:
    return all(type(n) is int for s in specs for n in (*s.shape, *s.stride))


def _warm(calls: list[Call], device: torch.device) -> None:
    def run() -> None:
        for *specs, settings, wanted in calls:
            if _ENDING.is_set():
                return
            BACKWARD(*(empty_like_spec(s, device) for s in specs), None, *settings, wanted)

    try:
        with torch.cuda.device(device), torch.enable_grad():
            x = torch.zeros((), device=device, requires_grad=True)
            torch.autograd.backward(_Run.apply(x, run))
    except RuntimeError:  # memory is short, say: the program itself will see
        pass


class _Run(torch.autograd.Function):
    """Runs a function on autograd's thread, as a backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, run: Callable[[], None]) -> torch.Tensor:
        ctx.run = run
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.run()
        return grad, None
