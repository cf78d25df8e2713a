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
from smelt.capture.vm.vm import VM
from smelt.torch_private import assert_async, maybe_current_level
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.torch_function_handlers import is_handled
from smelt.tracing.symbolic.sym_nodes import UnbackedComparison

_cpu = torch.Tensor.cpu
_MOST = 400  # instructions in a branch that only raises
_LEAVES = frozenset({"RETURN_VALUE", "RETURN_CONST", "YIELD_VALUE", "RETURN_GENERATOR", "SEND"})
_RAISES = frozenset({"RAISE_VARARGS", "RERAISE"})


def assume_branch(vm: VM, frame: Frame, value: object, if_true: int, if_false: int) -> bool | None:
    """Assumed value of a condition that selects one of two instructions; None if neither or both branches only raise, if the
    exception is handled in the captured code, or if the graph cannot check the condition. Records the check."""
    if type(value) is UnbackedComparison:
        return _assumed_of_sizes(frame, value, if_true, if_false)
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
    _check(vm, value if holds else vm.call_native(torch.logical_not, (value,)))
    return holds


def _assumed_of_sizes(frame: Frame, value: UnbackedComparison, if_true: int, if_false: int) -> bool | None:
    """The same for a comparison of unbacked sizes."""
    raises = _only_raises(frame, if_true), _only_raises(frame, if_false)
    if raises[0] == raises[1] or any(_handles(f) for f in _frames(frame)):
        return None
    value.assume(raises[1])
    return raises[1]


def assume(vm: VM, frame: Frame, condition: FakeTensor) -> bool:
    """Record the check that `condition` holds; False if the graph cannot check it."""
    may = _may_assume(vm, frame, condition)
    if may:
        _check(vm, condition)
    return may


def _may_assume(vm: VM, frame: Frame, condition: FakeTensor) -> bool:
    """Whether the graph can check the condition and no captured code handles the program's exception."""
    if not vm.assumptions.assumes or not _is_checkable(vm, condition):
        return False
    return not any(_handles(f) for f in _frames(frame))


def _check(vm: VM, condition: object) -> None:
    """Record a check on the CPU, which waits for the condition as eager does: a failed check on a GPU would end the
    process."""
    vm.call_native(assert_async, (vm.call_native(_cpu, (condition,)),))
    vm.assumptions.assumed = True


def _frames(frame: Frame | None) -> Iterator[Frame]:
    while frame is not None:
        yield frame
        frame = frame.parent


def _handles(frame: Frame) -> bool:
    """Whether an exception at the frame's current instruction reaches a handler that continues the program. A handler that
    raises, or the end of a `with`, does not."""
    handler = _handler(frame.code, frame.pc - 1)
    return handler is not None and not _only_raises(frame, handler)


def _handler(code: Code, at: int) -> int | None:
    return next((target for start, end, target, _, _ in code.handlers if start <= at < end), None)


def _is_checkable(vm: VM, value: FakeTensor) -> bool:
    """Whether `value` is a bool scalar whose value is unknown."""
    if value.dtype is not torch.bool or value.device.type not in ("cpu", "cuda") or value.dim() != 0:
        return False
    return maybe_current_level() is None and vm.trace.constants.value(value) is None


def _only_raises(frame: Frame, start: int) -> bool:
    """Whether every path from an instruction leaves the frame by an exception."""
    seen: set[int] = set()
    todo, raises = [start], False
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        if frame.code.names[at] in _LEAVES or len(seen) > _MOST:
            return False
        raises |= frame.code.names[at] in _RAISES
        todo += _ways(frame, at)
    return raises


def _ways(frame: Frame, at: int) -> Iterator[int]:
    """Possible successors of an instruction."""
    names = frame.code.names
    handler = _handler(frame.code, at)
    if handler is not None:
        yield handler
    if names[at] in _RAISES:
        return
    before = names[at - 2 if at and names[at - 1] == "TO_BOOL" else at - 1]
    suppresses = at > 0 and before == "WITH_EXCEPT_START"  # few context managers suppress exceptions
    if ("JUMP" in names[at] or names[at] == "FOR_ITER") and not suppresses:
        yield cast(int, frame.instructions[at][1])
    if names[at] not in ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"):
        yield at + 1
