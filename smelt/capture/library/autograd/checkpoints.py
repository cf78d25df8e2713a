"""`torch.utils.checkpoint.checkpoint`: one opaque call, whose forward the backward runs again."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
import torch.utils.checkpoint

from smelt.capture.base.handlers import Args, Kwargs, function, unsupported
from smelt.capture.library.autograd.opaque_calls import run_opaque
from smelt.capture.machine.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OBJECT, Reason

_Function = torch.autograd.Function
_CHECKPOINT = torch.utils.checkpoint.checkpoint


class _Reentrant(_Function):
    """What a reentrant checkpoint is to autograd, on fakes."""

    @staticmethod
    def forward(ctx: object, run: Callable[[], object], *args: object) -> object:  # type: ignore[override]
        return run()

    @staticmethod
    def backward(ctx: object, *grads: object) -> object:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, "a backward through a reentrant checkpoint"))


@function(_CHECKPOINT)
def _checkpoint(vm: VM, args: Args, kwargs: Kwargs) -> object:
    call = inspect.signature(_CHECKPOINT).bind(*args, **kwargs)
    call.apply_defaults()
    given = call.arguments
    target, reentrant, more = given["function"], given["use_reentrant"], dict(given["kwargs"])
    more.pop("preserve_rng_state", None)
    if (
        reentrant is None
        or given["debug"]
        or given["context_fn"] is not torch.utils.checkpoint.noop_context_fn
    ):
        raise unsupported("torch.utils.checkpoint with these options")
    if reentrant and more:
        raise ValueError("Unexpected keyword arguments: " + ",".join(more))
    inputs = given["args"]
    if not torch.is_grad_enabled():
        return vm.call(target, inputs, more)

    def run() -> object:
        return vm.call(target, inputs, more)

    if not reentrant:
        return run_opaque(vm, _CHECKPOINT, args, kwargs, run)
    return run_opaque(vm, _CHECKPOINT, args, kwargs, lambda: _Reentrant.apply(run, *inputs))  # type: ignore[no-untyped-call]
