"""`torch.func` and `torch.vmap`: the VM interpretes torch's own Python code, whose wrapper tensors wrap fakes.

A transform wraps its inputs, which are fakes, so that the operators on the wrappers become operators on the fakes, which the
trace records. Invariant: when a capture ends, also with an exception, the levels of transforms, the level of forward-mode
differentiation and the saved-tensor hooks are as they were when it began.
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
    return (transform_depth(), why_hooks_are_disabled(), is_fwd_grad_enabled(), forward_mode_level())


def check_start(now: OpenTransforms) -> None:
    """Raise Unsupported within an open transform: values would leave the call wrapped for its level."""
    if now[0]:
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a call inside a transform of torch.func"))


def check_break(before: OpenTransforms) -> None:
    """Raise Unsupported if a transform was opened since `open_transforms` returned `before`: the compiled frame has none
    open, and its values would be wrapped for a closed level. The graph breaks at a caller's call of the transform."""
    if transform_depth() > before[0]:
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a graph break inside a transform of torch.func"))


def restore(before: OpenTransforms) -> None:
    """Close what was opened since `open_transforms` returned `before`."""
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
    """The gradients of a transform's level, whose operators are recorded as they run."""
    return gradients_in_transforms(*args, **kwargs)


@function(load_decompositions)
def _load_decompositions(vm: VM, args: Args, kwargs: Kwargs) -> None:
    """Load the decompositions unrecorded: it happens once in a process and is invisible to the program."""
    with vm.trace.paused():
        load_decompositions()
