"""`torch.autograd.grad`, forward-mode differentiation, and leaving inference mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.utils.checkpoint
from torch.autograd import forward_ad
from torch.autograd.graph import Node

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, function, unsupported
from smelt.capture.base.value_kinds import FunctionType
from smelt.capture.environment import container_contents
from smelt.capture.semantics.calls import native_calls
from smelt.capture.torch_calls.autograd.hooks import hook_registered, reaches_hooks
from smelt.capture.torch_calls.autograd.opaque_calls import natively
from smelt.capture.vm.vm import VM
from smelt.torch_private import are_transforms_active
from smelt.tracing.backward.autograd_graph import reachable_edges
from smelt.tracing.backward.backward_rules import replace_backwards
from smelt.tracing.backward.backward_state import on_this_thread
from smelt.tracing.backward.not_differentiable import refuse
from smelt.tracing.fake.fake_tensor import FakeTensor


@function(torch.autograd.grad)
def _grad(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """`torch.autograd.grad` on the trace's history; its operators are recorded."""
    if kwargs.get("is_grads_batched") or are_transforms_active():
        raise unsupported("torch.autograd.grad with is_grads_batched or inside a transform")
    if hook_registered(vm) and reaches_hooks(vm, args[0] if args else kwargs.get("outputs")):
        if vm.trace.autograd.wants_joint and kwargs.get("create_graph"):
            raise refuse("torch.autograd.grad(create_graph=True) goes through results of the graph before it")
        raise unsupported("torch.autograd.grad after a hook was registered")
    for fake in list(vm.trace.inputs):
        if fake.requires_grad:
            check_leaf(vm, fake)
    outputs = args[0] if args else kwargs.get("outputs")
    roots = (
        [outputs] if type(outputs) is FakeTensor else outputs if isinstance(outputs, (list, tuple)) else ()
    )
    nodes = (
        [] if kwargs.get("create_graph") else history([root for root in roots if type(root) is FakeTensor])
    )
    return run_engine(vm, args, kwargs, nodes)


_engine: Callable[..., object] = torch.autograd.grad


def history(roots: Sequence[FakeTensor]) -> list[Node]:
    """The nodes of autograd's graph that are reachable from `roots`, each once."""
    starts: list[Node] = [root.grad_fn for root in roots if root.grad_fn is not None]
    return list(dict.fromkeys((*starts, *(node for node, _ in reachable_edges(starts)))))


def run_engine(vm: VM, args: Args, kwargs: Kwargs, nodes: Sequence[Node]) -> object:
    """`torch.autograd.grad(*args, **kwargs)` on fakes, as one torch-level call. `nodes`: autograd nodes whose formulas are
    replaced where they depend on values."""
    if torch.is_anomaly_enabled():
        raise unsupported("gradients in autograd's anomaly mode")
    vm.trace.autograd.differentiated = True
    args = [container_contents.native_view(vm.env, a) for a in args]
    kwargs = {k: container_contents.native_view(vm.env, v) for k, v in kwargs.items()}
    log = vm.env.log
    before, log.refusal = (
        log.refusal,
        "the backward of a custom autograd.Function changes an environment object",
    )
    try:
        with natively(vm, torch.autograd.grad), replace_backwards(nodes), on_this_thread():
            return _engine(*args, **kwargs)
    finally:
        log.refusal = before


def check_leaf(vm: VM, fake: FakeTensor) -> None:
    """Raise Unsupported for an input with a history or hooks: gradients must stay within the trace."""
    real = vm.trace.real(fake)
    if fake.device.type not in ("cpu", "cuda") or not _native.is_unhooked_leaf(real):
        raise unsupported("gradients of a tensor that was computed before the call or has hooks")
    vm.env.facts.guard("unhooked_leaf", vm.env.sources.find_or_const(fake))


# --------------------------------------------------------------------------------- forward-mode differentiation


def _switch_level(method: FunctionType, switch: Callable[[], object]) -> None:
    """Register entering or leaving a level of forward-mode differentiation: the graph calls `switch`."""

    @function(method)
    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        with natively(vm, method):
            result = native_calls.call_native_python(vm, method, args, kwargs)
        vm.trace.torch_recorder.switch_level(switch)
        return result


_switch_level(cast(FunctionType, forward_ad.dual_level.__enter__), forward_ad.enter_dual_level)
_switch_level(cast(FunctionType, forward_ad.dual_level.__exit__), forward_ad.exit_dual_level)


_leave = cast(FunctionType, torch.inference_mode.__exit__)


@function(_leave)
def _leave_inference_mode(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """Leave inference mode, which restores the dispatcher's state from its entry: the entry must be within the trace."""
    if id(args[0]) in vm.env.sources:
        raise unsupported("an inference mode that was entered before the call is left")
    with natively(vm, _leave):
        return native_calls.call_native_python(vm, _leave, args, kwargs)
