"""`torch.utils.checkpoint.checkpoint`: one opaque call, whose forward the backward recomputes."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import cast

import torch
import torch.utils.checkpoint

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, builtin, function, unsupported
from smelt.capture.environment import wrap_values
from smelt.capture.semantics.calls import native_calls
from smelt.capture.torch_calls.autograd.opaque_calls import run_opaque
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.torch_private import (
    CachedTorchDispatchMode,
    CachingTorchDispatchMode,
    checkpoint_of_decorated,
    is_checkpoint_valid,
)
from smelt.tracing.backward.not_differentiable import refuse
from smelt.tracing.record.wrapper_gradients import requires_grad
from smelt.tracing.record.wrapper_subclasses import wrappers_in

_Function = torch.autograd.Function
_CHECKPOINT = torch.utils.checkpoint.checkpoint


class _Reentrant(_Function):
    """The autograd node of a reentrant checkpoint, on fakes."""

    @staticmethod
    def forward(ctx: object, run: Callable[[], object], *args: object) -> object:  # type: ignore[override]
        return run()

    @staticmethod
    def backward(ctx: object, *grads: object) -> object:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, "a backward through a reentrant checkpoint"))


_NO_CONTEXTS = torch.utils.checkpoint.noop_context_fn
_SELECTIVE_MODES = (CachingTorchDispatchMode, CachedTorchDispatchMode)


def _is_selective(vm: VM, context_fn: object) -> bool:
    """Whether the contexts of a checkpoint only select the results to save or recompute, as those of
    `create_selective_checkpoint_contexts` do. The results are the same, and the partition of a joint graph decides what it
    saves: so the policy is not called, and must have no side effects."""
    if context_fn is _NO_CONTEXTS:
        return True
    contexts = vm.call(context_fn, (), {})
    if not isinstance(contexts, tuple) or tuple(map(type, contexts)) != _SELECTIVE_MODES:
        return False
    policy = contexts[0].policy_fn
    return type(policy) is FunctionType and (
        policy.__module__ == torch.utils.checkpoint.__name__ or _is_pure(policy)
    )


def _is_pure(policy: FunctionType) -> bool:
    """Whether a function has neither stores nor calls."""
    return not any(i.opname.startswith(_EFFECTS) for i in dis.get_instructions(policy.__code__))


_EFFECTS = (
    "STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "STORE_GLOBAL", "STORE_DEREF", "DELETE_", "CALL", "IMPORT", "YIELD",
)  # fmt: skip


def _has_gradient(inputs: Args) -> bool:
    """Whether the results of a reentrant checkpoint of `inputs` have a gradient, in a joint graph as of any checkpoint."""
    return any(isinstance(x, torch.Tensor) and requires_grad(x) for x in inputs)


@contextmanager
def _as_reentrant(vm: VM) -> Iterator[None]:
    before, vm.trace.autograd.reentrant = vm.trace.autograd.reentrant, True
    try:
        yield
    finally:
        vm.trace.autograd.reentrant = before


@builtin(torch.is_grad_enabled)
def _is_grad_enabled(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """Refuse within a reentrant checkpoint, whose forward and recomputation in the backward have different grad modes."""
    if vm.trace.autograd.reentrant:
        raise refuse("a reentrant checkpoint whose function reads the grad mode")
    return native_calls.run_native(vm, torch.is_grad_enabled, args, kwargs)


@function(_CHECKPOINT)
def _checkpoint(vm: VM, args: Args, kwargs: Kwargs) -> object:
    call = inspect.signature(_CHECKPOINT).bind(*args, **kwargs)
    call.apply_defaults()
    arguments = call.arguments
    if arguments["function"] is None:  # since torch 2.14: a decorator
        return vm.call(_CHECKPOINT.__wrapped__, args, kwargs)  # type: ignore[attr-defined]
    target, reentrant, more = arguments["function"], arguments["use_reentrant"], dict(arguments["kwargs"])
    more.pop("preserve_rng_state", None)
    special = arguments["debug"] or arguments.get("respect_saved_tensors_hooks") is not None
    if reentrant is None or special or not _is_selective(vm, arguments["context_fn"]):
        raise unsupported("torch.utils.checkpoint with these options")
    if reentrant and more:
        raise ValueError("Unexpected keyword arguments: " + ",".join(more))
    inputs = arguments["args"]
    if not torch.is_grad_enabled():
        return vm.call(target, inputs, more)

    def run() -> object:
        return vm.call(target, inputs, more)

    if not reentrant:
        return run_opaque(vm, _CHECKPOINT, args, kwargs, run)
    if not _has_gradient(inputs) and wrappers_in(vm.trace.call, inputs, {}):  # which no opaque call may take
        with torch.no_grad():
            return run()
    if vm.trace.autograd.wants_joint and _has_gradient(inputs):
        with _as_reentrant(vm):
            return run_opaque(vm, _CHECKPOINT, args, kwargs, run)
    return run_opaque(vm, _CHECKPOINT, args, kwargs, lambda: _Reentrant.apply(run, *inputs))  # type: ignore[no-untyped-call]


@function(is_checkpoint_valid)
def _is_checkpoint_valid(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """Whether no backward of only some gradients is running in this thread."""
    source = vm.env.sources.const(is_checkpoint_valid).child("call", None)
    return wrap_values.wrap(vm.env, is_checkpoint_valid(), source)


if checkpoint_of_decorated is not None:

    @function(checkpoint_of_decorated)
    def _checkpoint_of_decorated(vm: VM, args: Args, kwargs: Kwargs) -> object:
        target, arguments, named = cast(tuple[object, Args, Kwargs], args)
        if named.keys() & kwargs.keys():
            raise unsupported(
                "torch.utils.checkpoint of a function whose parameters are named as those of checkpoint"
            )
        return _checkpoint(vm, [target, *arguments], {**named, **kwargs})
