"""Conditions on tensors where one branch only raises: `if not valid.all(): raise ValueError(...)`.

The other branch is captured, and the graph checks the condition with an operator that may raise. If the check fails, the
original function repeats the call eagerly (`capture/emit/eager_fallback.py`). That requires a graph without side effects
before the check; otherwise the frame is captured again without such assumptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch

from smelt.capture.base.bytecode import Code
from smelt.capture.base.vm_frames import Frame
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.vm.vm import VM
from smelt.torch_private import assert_async, maybe_current_level
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.torch_function_handlers import is_handled
from smelt.tracing.symbolic.sym_nodes import UnbackedComparison

_cpu = torch.Tensor.cpu
_MAX_INSTRUCTIONS = 400  # instructions in a branch that only raises
_EXIT_INSTRUCTIONS = frozenset({"RETURN_VALUE", "RETURN_CONST", "YIELD_VALUE", "RETURN_GENERATOR", "SEND"})
_RAISE_INSTRUCTIONS = frozenset({"RAISE_VARARGS", "RERAISE"})


def assume_branch(vm: VM, frame: Frame, value: object, if_true: int, if_false: int) -> bool | None:
    """Assumed value of a condition that selects one of two instructions; None if neither or both branches only raise, if the
    exception is handled in the captured code, or if the graph cannot check the condition. Records the check."""
    if type(value) is NumberProxy:
        value = value.condition()
    if type(value) is UnbackedComparison and value.is_of_sizes:
        return _assume_size_branch(frame, value, if_true, if_false)
    if (
        type(value) is not FakeTensor
        or is_handled(vm.trace.call, (value,))
        or not _may_assume(vm, frame, value)
    ):
        return None
    raises = _only_raises(frame, if_true), _only_raises(frame, if_false)
    if raises[0] == raises[1]:
        return None
    holds = raises[1]
    _record_check(vm, value if holds else vm.call_native(torch.logical_not, (value,)))
    return holds


def _assume_size_branch(frame: Frame, value: UnbackedComparison, if_true: int, if_false: int) -> bool | None:
    """`assume_branch` for a comparison of unbacked sizes."""
    raises = _only_raises(frame, if_true), _only_raises(frame, if_false)
    if raises[0] == raises[1] or any(_is_handled(f) for f in _enclosing_frames(frame)):
        return None
    value.assume(raises[1])
    return raises[1]


def assume(vm: VM, frame: Frame, condition: FakeTensor, message: str | None = None) -> bool:
    """Record the check that `condition` holds; False if the graph cannot check it. `message`: that of its failure."""
    checkable = _may_assume(vm, frame, condition)
    if checkable:
        _record_check(vm, condition, message)
    return checkable


def _may_assume(vm: VM, frame: Frame, condition: FakeTensor) -> bool:
    """Whether the graph can check the condition and no captured code handles the program's exception."""
    if not vm.assumptions.assumes or not _is_checkable(vm, condition):
        return False
    return not any(_is_handled(f) for f in _enclosing_frames(frame))


def _record_check(vm: VM, condition: object, message: str | None = None) -> None:
    """Record a check on the CPU, which waits as eager does: a failed check on a GPU would end the process."""
    arguments = () if message is None else (message,)
    vm.call_native(assert_async, (vm.call_native(_cpu, (condition,)), *arguments))
    vm.assumptions.assumed = True


def _enclosing_frames(frame: Frame | None) -> Iterator[Frame]:
    while frame is not None:
        yield frame
        frame = frame.parent


def _is_handled(frame: Frame) -> bool:
    """Whether an exception at the frame's current instruction reaches a handler that continues the program. A handler that
    raises, or the end of a `with`, does not."""
    handler = _handler_target(frame.code, frame.pc - 1)
    return handler is not None and not _only_raises(frame, handler)


def _handler_target(code: Code, at: int) -> int | None:
    return next((target for start, end, target, _, _ in code.handlers if start <= at < end), None)


def _is_checkable(vm: VM, value: FakeTensor) -> bool:
    """Whether `value` is a bool scalar whose value is unknown."""
    if value.dtype is not torch.bool or value.device.type not in ("cpu", "cuda") or value.dim() != 0:
        return False
    return maybe_current_level() is None and vm.trace.constants.value(value) is None


def _only_raises(frame: Frame, start: int) -> bool:
    """Whether every path from an instruction leaves the frame by an exception."""
    visited: set[int] = set()
    pending, raises = [start], False
    while pending:
        at = pending.pop()
        if at in visited:
            continue
        visited.add(at)
        if frame.code.names[at] in _EXIT_INSTRUCTIONS or len(visited) > _MAX_INSTRUCTIONS:
            return False
        raises |= frame.code.names[at] in _RAISE_INSTRUCTIONS
        pending += _successors(frame, at)
    return raises


def _successors(frame: Frame, at: int) -> Iterator[int]:
    """Possible successors of an instruction."""
    names = frame.code.names
    handler = _handler_target(frame.code, at)
    if handler is not None:
        yield handler
    if names[at] in _RAISE_INSTRUCTIONS:
        return
    before = names[at - 2 if at and names[at - 1] == "TO_BOOL" else at - 1]
    suppresses = at > 0 and before == "WITH_EXCEPT_START"  # few context managers suppress exceptions
    if ("JUMP" in names[at] or names[at] == "FOR_ITER") and not suppresses:
        yield cast(int, frame.instructions[at][1])
    if names[at] not in ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"):
        yield at + 1
