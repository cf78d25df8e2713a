"""`torch.func` and `torch.vmap`: torch's own Python code is interpreted, its wrapped tensors are made over fakes.

A transform wraps the fakes it is given, so that the operators on them come down to operators on the fakes,
which the trace records. What always holds: when a capture ends, however it ends, the levels of transforms, the level of
forward-mode differentiation and the saved-tensor hooks are what they were when it began.
"""

from __future__ import annotations

from torch.autograd import forward_ad

from smelt.capture.base.call_handlers import Args, Kwargs, function
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_EFFECT, Reason
from smelt.torch_private import (
    LEAVE_TRANSFORM,
    disable_saved_tensors_hooks,
    enable_saved_tensors_hooks,
    forward_mode_level,
    gradients_in_transforms,
    innermost_transform,
    is_fwd_grad_enabled,
    load_decompositions,
    set_fwd_grad_enabled,
    transform_depth,
    why_hooks_are_disabled,
)

OpenTransforms = tuple[int, str | None, bool, int]


def open_transforms() -> OpenTransforms:
    """(open transforms, why saved-tensor hooks are disabled, forward gradients enabled, level of forward mode)."""
    return (
        transform_depth(),
        why_hooks_are_disabled(),
        is_fwd_grad_enabled(),
        forward_mode_level(),
    )


def check_start(now: OpenTransforms) -> None:
    """Raises Unsupported inside of a transform that is open already: values would leave the call wrapped for its level."""
    if now[0]:
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a call inside a transform of torch.func"))


def check_break(before: OpenTransforms) -> None:
    """Raises Unsupported if a transform was opened since `open_transforms` gave `before`: the compiled frame has none open,
    and its values would be wrapped for a level that is gone. The graph breaks at a caller's call of the transform."""
    if transform_depth() > before[0]:
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a graph break inside a transform of torch.func"))


def restore(before: OpenTransforms) -> None:
    """Leaves what is still open since `open_transforms` gave `before`."""
    depth, message, forward, level = before
    while transform_depth() > depth:
        LEAVE_TRANSFORM[innermost_transform().key()]()
    if why_hooks_are_disabled() != message:
        enable_saved_tensors_hooks() if message is None else disable_saved_tensors_hooks(message)
    set_fwd_grad_enabled(forward)
    while forward_mode_level() > level:
        forward_ad.exit_dual_level()


@function(gradients_in_transforms)
def _autograd_grad(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """The gradients of a transform's level: of operators that were recorded, hence recorded themselves."""
    return gradients_in_transforms(*args, **kwargs)


@function(load_decompositions)
def _load_decompositions(vm: VM, args: Args, kwargs: Kwargs) -> None:
    """Once in a process, and nothing that a program could see."""
    with vm.trace.paused():
        load_decompositions()
