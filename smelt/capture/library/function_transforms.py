"""`torch.func` and `torch.vmap`: torch's own Python code is interpreted, its wrapped tensors are made over fakes.

A transform wraps the fakes it is given, so that the operators on them come down to operators on the fakes,
which the trace records. What always holds: when a capture ends, however it ends, the levels of transforms, the level of
forward-mode differentiation and the saved-tensor hooks are what they were when it began.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from smelt.capture.base.handlers import Args, Kwargs, function
from smelt.capture.machine.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_EFFECT, Reason

_gradients = torch.func.vjp.__globals__["_autograd_grad"]
_load_once = torch.func.vmap.__globals__["vmap_impl"].__globals__["lazy_load_decompositions"]
_hooks_message = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message  # type: ignore[attr-defined]
_disable_hooks = torch._C._autograd._saved_tensors_hooks_disable  # type: ignore[attr-defined]
_enable_hooks = torch._C._autograd._saved_tensors_hooks_enable  # type: ignore[attr-defined]
_functorch: Any = torch._C._functorch
# One by one: `pop_dynamic_layer_stack_and_undo_to_depth` of torch 2.11 leaves two levels for each.
_LEAVE = {
    _functorch.TransformType.Vmap: _functorch._vmap_decrement_nesting,
    _functorch.TransformType.Grad: _functorch._grad_decrement_nesting,
    _functorch.TransformType.Jvp: _functorch._jvp_decrement_nesting,
    _functorch.TransformType.Functionalize: _functorch._func_decrement_nesting,
}

OpenTransforms = tuple[int, str | None, bool, int]


def open_transforms() -> OpenTransforms:
    """(open transforms, why saved-tensor hooks are disabled, forward gradients enabled, level of forward mode)."""
    return (
        _functorch.get_dynamic_layer_stack_depth(),
        _hooks_message(),
        torch._C._is_fwd_grad_enabled(),
        forward_ad._current_level,
    )


def check_start(now: OpenTransforms) -> None:
    """Raises Unsupported inside of a transform that is open already: values would leave the call wrapped for its level."""
    if now[0]:
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a call inside a transform of torch.func"))


def check_break(before: OpenTransforms) -> None:
    """Raises Unsupported if a transform was opened since `open_transforms` gave `before`: the compiled frame has none open,
    and its values would be wrapped for a level that is gone. The graph breaks at a caller's call of the transform."""
    if _functorch.get_dynamic_layer_stack_depth() > before[0]:
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a graph break inside a transform of torch.func"))


def restore(before: OpenTransforms) -> None:
    """Leaves what is still open since `open_transforms` gave `before`."""
    depth, message, forward, level = before
    while _functorch.get_dynamic_layer_stack_depth() > depth:
        _LEAVE[_functorch.peek_interpreter_stack().key()]()
    if _hooks_message() != message:
        _enable_hooks() if message is None else _disable_hooks(message)
    torch._C._set_fwd_grad_enabled(forward)
    while forward_ad._current_level > level:
        forward_ad.exit_dual_level()


@function(_gradients)
def _autograd_grad(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """The gradients of a transform's level: of operators that were recorded, hence recorded themselves."""
    return _gradients(*args, **kwargs)


@function(_load_once)
def _load_decompositions(vm: VM, args: Args, kwargs: Kwargs) -> None:
    """Once in a process, and nothing that a program could see."""
    with vm.trace.paused():
        _load_once()
