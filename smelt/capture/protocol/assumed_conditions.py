"""Conditions on tensors where one branch only raises: `if not valid.all(): raise ValueError(...)`.

The other branch is captured, and the graph checks the condition, as an operator that may raise. Where the check fails the
call is made again by the original function (`emit/rerun.py`), which goes the other way. That needs a graph that leaves
nothing behind when it raises: where it would not, the frame is captured again without such assumptions.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from smelt.capture.base.bytecode import Code
from smelt.capture.base.frames import Frame
from smelt.capture.machine.vm import VM
from smelt.trace.fake import FakeTensor

_MOST = 200  # instructions of a branch that only raises
_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "YIELD_VALUE", "RETURN_GENERATOR", "SEND", "FOR_ITER"})


def assumed(vm: VM, frame: Frame, value: object, if_true: int, if_false: int) -> bool | None:
    """What a condition is assumed to be, when the program goes on at one of two instructions; None where neither only
    raises or the exception is handled here, and where the graph could not check it. Records the check."""
    if type(value) is not FakeTensor or not _may_assume(vm, frame, value):
        return None
    raises = _only_raises(frame.code, if_true), _only_raises(frame.code, if_false)
    if raises[0] == raises[1]:
        return None
    holds = raises[1]
    _check(vm, value if holds else vm.native(torch.logical_not, (value,)))
    return holds


def assume(vm: VM, frame: Frame, condition: FakeTensor) -> bool:
    """Records the check that `condition` holds; False where the graph could not check it."""
    may = _may_assume(vm, frame, condition)
    if may:
        _check(vm, condition)
    return may


def _may_assume(vm: VM, frame: Frame, condition: FakeTensor) -> bool:
    """Whether the graph can check the condition, and an exception of the program is not handled here."""
    if not vm.disclosed.assumes or not _is_checkable(vm, condition):
        return False
    return not any(_is_handled(f.code, f.pc - 1) for f in _frames(frame))


def _check(vm: VM, condition: object) -> None:
    vm.native(torch._assert_async, (condition,))
    vm.disclosed.assumed = True


def _frames(frame: Frame | None) -> Iterator[Frame]:
    while frame is not None:
        yield frame
        frame = frame.parent


def _is_handled(code: Code, at: int) -> bool:
    """Whether an exception of instruction `at` comes to a handler, not just to the end of a `with`."""
    for start, end, target, _, _ in code.handlers:
        if start <= at < end:
            return "WITH_EXCEPT_START" not in code.names[target : target + 3]
    return False


def _is_checkable(vm: VM, value: FakeTensor) -> bool:
    """Whether it is one bool on a CPU (on other devices a check that fails ends the process) that is not known."""
    if value.dtype is not torch.bool or value.device.type != "cpu" or value.dim() != 0:
        return False
    return torch._C._functorch.maybe_current_level() is None and vm.trace.known.value(value) is None


def _only_raises(code: Code, start: int) -> bool:
    """Whether the instructions from `start` come to a `raise` that leaves the function, without a way around it."""
    for at, name in enumerate(code.names[start : start + _MOST], start):
        if name == "RAISE_VARARGS":
            return not _is_handled(code, at)
        if "JUMP" in name or name in _ENDS:
            return False
    return False
