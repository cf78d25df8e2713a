"""Functions with data-dependent results that capture assumes and the graph checks.

`torch.equal` and `torch.allclose` return a bool, which a tensor of the graph holds. Where the program branches on it to
raise an exception, it is an asserted condition, as `if not (a == b).all(): raise` is. `torch.bincount(x, minlength=n)` has
an element for each value up to the largest, which is mostly less than `n`. Where a check fails, the original function runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

from smelt.capture.base.call_handlers import TENSOR_METHODS, Args, Kwargs, builtin, function
from smelt.capture.base.value_kinds import callee_and_args
from smelt.capture.base.vm_frames import Frame
from smelt.capture.semantics.calls.native_calls import run_native
from smelt.capture.semantics.calls.python_functions import interpret
from smelt.capture.semantics.values.asserted_conditions import assume, assume_branch
from smelt.capture.torch_calls.item_calls import deferred_number
from smelt.capture.vm.vm import VM
from smelt.torch_private import all_true_or_assert
from smelt.tracing.fake.fake_tensor import FakeTensor

_JUMPS = {
    "POP_JUMP_FORWARD_IF_TRUE": True,
    "POP_JUMP_IF_TRUE": True,
    "POP_JUMP_FORWARD_IF_FALSE": False,
    "POP_JUMP_IF_FALSE": False,
}


def _jump(frame: Frame, called: Callable[..., object]) -> tuple[int, int] | None:
    """The targets of the branch on the result of the current call of `called`, for True and for False; None where the
    program does something else with the result."""
    code, at = frame.code, frame.pc
    operands = {"CALL": 2, "CALL_KW": 3}.get(code.names[at - 1])  # besides the arguments
    if code.names[at] == "TO_BOOL":
        at += 1
    if operands is None or code.names[at] not in _JUMPS:
        return None
    fn, _ = callee_and_args(
        frame.stack, len(frame.stack) - cast(int, frame.instructions[frame.pc - 1][1]) - operands
    )
    if fn is not called and getattr(fn, "__name__", None) != called.__name__:
        return None
    target = cast(int, frame.instructions[at][1])
    return (target, at + 1) if _JUMPS[code.names[at]] else (at + 1, target)


def _comparison(
    name: str, elementwise: Callable[..., torch.Tensor], is_comparable: Callable[[Args, Kwargs], bool]
) -> None:
    """Register `torch.name(a, b)` and `a.name(b)`: whether all elements of `elementwise` are True."""
    function: Callable[..., object] = getattr(torch, name)

    def assume_result(vm: VM, args: Args, kwargs: Kwargs) -> object:
        if not is_comparable(args, kwargs):
            return NotImplemented
        frame = vm.current_frame
        targets = _jump(frame, function)
        if targets is None and not vm.assumptions.captures_jumps:
            return NotImplemented
        condition = vm.call_native(torch.all, (vm.call_native(elementwise, args, kwargs),))
        holds = None if targets is None else assume_branch(vm, frame, condition, *targets)
        found = deferred_number(vm, condition) if holds is None else holds
        return NotImplemented if found is None else found

    @builtin(function)
    def of_function(vm: VM, args: Args, kwargs: Kwargs) -> object:
        holds = assume_result(vm, args, kwargs)
        return run_native(vm, function, args, kwargs) if holds is NotImplemented else holds

    def of_method(vm: VM, *args: object, **kwargs: object) -> object:
        return of_function(vm, args, kwargs)

    TENSOR_METHODS[name] = of_method


def _is_elementwise(args: Args, kwargs: Kwargs) -> bool:
    """Whether `torch.equal` compares these two tensors element by element: it calls tensors on the same memory equal."""
    if len(args) != 2 or kwargs or any(type(a) is not FakeTensor for a in args):
        return False
    a, b = cast("tuple[FakeTensor, FakeTensor]", args)
    return a.shape == b.shape and a.dtype == b.dtype and a.storage_key != b.storage_key


_comparison("equal", torch.eq, _is_elementwise)
_comparison("allclose", torch.isclose, lambda args, kwargs: all(type(a) is FakeTensor for a in args[:2]))


if all_true_or_assert is not None:

    @function(all_true_or_assert)
    def _all_true(vm: VM, args: Args, kwargs: Kwargs) -> object:
        """Whether the arguments of a distribution are valid."""
        targets, holds = _jump(vm.current_frame, all_true_or_assert), None
        if targets is not None and args and type(args[0]) is FakeTensor:
            holds = assume_branch(vm, vm.current_frame, vm.call_native(torch.all, args[:1]), *targets)
        return interpret(vm, all_true_or_assert, args, kwargs) if holds is None else holds


def _count(vm: VM, values: object, weights: object = None, minlength: object = 0) -> object:
    """The counts of values that are assumed to be below `minlength`; NotImplemented where that cannot be checked."""
    if type(values) is not FakeTensor or weights is not None or type(minlength) is not int or minlength <= 0:
        return NotImplemented
    if values.dim() != 1 or values.is_floating_point() or values.dtype is torch.bool or not values.numel():
        return NotImplemented
    low, high = values.aminmax()
    if not assume(vm, vm.current_frame, cast(FakeTensor, (low >= 0) & (high < minlength))):
        return NotImplemented
    vm.exceptions.has_handlers = True  # the original function does not raise where the check fails
    counts = torch.zeros(minlength, dtype=torch.int64, device=values.device)
    return counts.index_add_(0, values, torch.ones_like(values, dtype=torch.int64))


@builtin(torch.bincount)
def _bincount(vm: VM, args: Args, kwargs: Kwargs) -> object:
    arguments = dict(zip(("values", "weights", "minlength"), args)) | kwargs
    arguments["values"] = arguments.pop("input", arguments.get("values"))
    counts = _count(vm, **arguments)
    return run_native(vm, torch.bincount, args, kwargs) if counts is NotImplemented else counts


def _bincount_method(vm: VM, *args: object, **kwargs: object) -> object:
    return _bincount(vm, args, kwargs)


TENSOR_METHODS["bincount"] = _bincount_method
