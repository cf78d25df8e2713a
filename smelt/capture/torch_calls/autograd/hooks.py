"""Hooks on tensors. They run in the backward, so their registration is an effect that is replayed after the graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import NoReturn, TypeVar

import torch
import torch.utils.checkpoint

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Handler, Kwargs, function, unsupported
from smelt.capture.environment.side_effects import Call
from smelt.capture.reconstruction.reconstruction_kind import ReconstructionKind
from smelt.capture.reconstruction.reconstruction_kind import unsupported as cannot_reconstruct
from smelt.capture.reconstruction.reconstruction_table import RECONSTRUCTION_KINDS
from smelt.capture.vm.vm import VM
from smelt.reasons import UNSUPPORTED_EFFECT
from smelt.tracing.backward.autograd_graph import reachable_edges
from smelt.tracing.fake.fake_tensor import FakeTensor

T = TypeVar("T")


class HookHandle:
    """The handle of a hook during capture: `remove` deletes the effect."""

    __slots__ = ("_forget",)

    def __init__(self, forget: Callable[[], None]) -> None:
        self._forget: Callable[[], None] | None = forget

    def remove(self) -> None:
        """Delete the effect, so that the replay does not register the hook."""
        if self._forget is not None:
            self._forget()
        self._forget = None

    def __getattr__(self, name: str) -> NoReturn:
        raise unsupported(f"{name} of the handle of a hook")

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def _drop(entries: list[T], dropped: T) -> None:
    at = next((i for i, entry in enumerate(entries) if entry is dropped), None)
    if at is not None:
        del entries[at]


def _cannot_leave(x: object, *expressions: object) -> NoReturn:
    raise cannot_reconstruct(x, "the handle of a hook")


RECONSTRUCTION_KINDS[HookHandle] = ReconstructionKind(_cannot_leave, _cannot_leave)
_REGISTER: dict[str, Callable[..., object]] = {
    "register_hook": torch.Tensor.register_hook,
    "register_post_accumulate_grad_hook": torch.Tensor.register_post_accumulate_grad_hook,
}


def _register(name: str) -> Handler:
    method = _REGISTER[name]

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        call = inspect.signature(method).bind(*args, **kwargs)
        tensor, hook = call.args
        if not tensor.requires_grad:
            raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        if name != "register_hook" and tensor.grad_fn is not None:
            raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
        if vm.trace.autograd.hides_gradient(tensor, vm.trace.inputs):
            raise unsupported(
                "a hook on a tensor that a graph of another backend computes", UNSUPPORTED_EFFECT
            )
        registered = Call(method, (tensor, hook))
        vm.env.log.defer_call(registered)
        held = (tensor, tensor.grad_fn)
        vm.held.hooked.append(held)
        vm.trace.autograd.hooked.append(tensor)
        calls, hooked = vm.env.log.deferred_calls, vm.trace.autograd.hooked

        def forget() -> None:
            _drop(calls, registered)
            _drop(vm.held.hooked, held)
            _drop(hooked, tensor)

        return HookHandle(forget)

    return handler


for _hook_name, _hook_method in _REGISTER.items():
    function(_hook_method)(_register(_hook_name))


def hook_registered(vm: VM) -> bool:
    """Whether the program has registered a hook since capture began."""
    return any(call.target in _REGISTER.values() for call in vm.env.log.deferred_calls)


def reaches_hooks(vm: VM, outputs: object) -> bool:
    """Whether gradients of `outputs` flow through a tensor with a hook."""
    roots = [outputs] if type(outputs) is FakeTensor else outputs
    if not isinstance(roots, (list, tuple)) or any(type(root) is not FakeTensor for root in roots):
        return True
    edges = reachable_edges({root.grad_fn for root in roots if root.grad_fn is not None}) | {
        (root.grad_fn, root.output_nr) for root in roots
    }
    leaves = [*roots, *(getattr(node, "variable", None) for node, _ in edges)]
    return any(
        any(tensor is leaf for leaf in leaves) if grad_fn is None else (grad_fn, tensor.output_nr) in edges
        for tensor, grad_fn in vm.held.hooked
    )


def check_unwritten(vm: VM) -> None:
    """Raise Unsupported where a tensor was written in-place after a hook was registered on it."""
    for tensor, grad_fn in vm.held.hooked:
        if tensor.grad_fn is not grad_fn:
            raise unsupported("a tensor is written in-place after a hook was registered", UNSUPPORTED_EFFECT)
