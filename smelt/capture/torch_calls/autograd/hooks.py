"""Hooks on tensors. They run in the backward, so their registration is an effect that is replayed after the graph."""

from __future__ import annotations

import collections
import inspect
from collections.abc import Callable
from typing import NoReturn, TypeVar

import torch
import torch.utils.checkpoint
from torch.utils.hooks import RemovableHandle

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Handler, Kwargs, function, unsupported
from smelt.capture.environment.side_effects import Call
from smelt.capture.reconstruction.frame_globals import provide
from smelt.capture.reconstruction.reconstruction_kind import ReconstructionKind
from smelt.capture.reconstruction.reconstruction_table import RECONSTRUCTION_KINDS
from smelt.capture.vm.vm import VM
from smelt.reasons import UNSUPPORTED_EFFECT
from smelt.tracing.backward.autograd_graph import reachable_edges
from smelt.tracing.fake.fake_tensor import FakeTensor

T = TypeVar("T")


class HookHandle:
    """The handle of a hook during capture: `remove` replaces the effect. The compiled frame creates the real handle empty,
    and the effect fills it. `forget`: replaces the effect; None once the hook is removed."""

    __slots__ = ("forget",)

    def __init__(self) -> None:
        self.forget: Callable[[], None] | None = None

    def remove(self) -> None:
        """Replace the effect, so that the replay does not register the hook."""
        if self.forget is not None:
            self.forget()
        self.forget = None

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


def _empty_handle() -> RemovableHandle:
    """A handle that the replayed registration fills."""
    return RemovableHandle.__new__(RemovableHandle)


def _fill_removed(handle: RemovableHandle) -> None:
    """Make `handle` that of a hook that the function has removed. Its number counts, as in eager."""
    hooks: dict[int, object] = collections.OrderedDict()
    vars(handle).update(vars(RemovableHandle(hooks)))


def _register_for(
    handle: RemovableHandle, method: Callable[..., RemovableHandle], tensor: torch.Tensor, hook: object
) -> None:
    """`method(tensor, hook)`, whose handle is `handle`."""
    vars(handle).update(vars(method(tensor, hook)))


provide(empty_handle=_empty_handle)
RECONSTRUCTION_KINDS[HookHandle] = ReconstructionKind(lambda x: (), lambda x, text: "empty_handle()")
_REGISTER: dict[str, Callable[..., object]] = {
    "register_hook": torch.Tensor.register_hook,
    "register_post_accumulate_grad_hook": torch.Tensor.register_post_accumulate_grad_hook,
}


def _may_split(vm: VM, tensor: FakeTensor) -> bool:
    """Whether a graph of another backend can be split behind the operator that computes `tensor`: no setting differs there
    from the beginning, and sizes are numbers."""
    nodes = vm.trace.tape.torch.graph.nodes
    settings = any(node.op != "placeholder" and node.spec is None for node in nodes)
    return tensor.torch_node in nodes and not settings and not vm.trace.numbers.sizes


def _register(name: str) -> Handler:
    method = _REGISTER[name]

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        call = inspect.signature(method).bind(*args, **kwargs)
        tensor, hook = call.args
        if not tensor.requires_grad:
            raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        if name != "register_hook" and tensor.grad_fn is not None:
            raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
        if vm.trace.autograd.hides_gradient(tensor, vm.trace.inputs) and not _may_split(vm, tensor):
            raise unsupported(
                "a hook on a tensor that a graph of another backend computes", UNSUPPORTED_EFFECT
            )
        handle = HookHandle()
        registered = Call(_register_for, (handle, method, tensor, hook))
        vm.env.log.defer_call(registered)
        held = (tensor, tensor.grad_fn)
        vm.held.hooked.append(held)
        vm.trace.autograd.hooked.append(tensor)
        calls, hooked = vm.env.log.deferred_calls, vm.trace.autograd.hooked

        def forget() -> None:
            calls[next(i for i, call in enumerate(calls) if call is registered)] = Call(
                _fill_removed, (handle,)
            )
            _drop(vm.held.hooked, held)
            _drop(hooked, tensor)

        handle.forget = forget
        return handle

    return handler


for _hook_name, _hook_method in _REGISTER.items():
    function(_hook_method)(_register(_hook_name))


def hook_registered(vm: VM) -> bool:
    """Whether the program has registered a hook since capture began."""
    return any(call.target is _register_for for call in vm.env.log.deferred_calls)


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
