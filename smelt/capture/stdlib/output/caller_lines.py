"""Source lines of the user's code that warnings and log records refer to."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import nn

from smelt.capture.base.native_functions import POLYFILLS
from smelt.capture.base.vm_frames import Frame, is_smelt_scope
from smelt.capture.graph_breaks import continuation_stack
from smelt.capture.vm.vm import VM
from smelt.runtime.tail_calls import CONTINUATION_STACK_MODULE

_HIDDEN_MODULES = (
    "smelt.callables",
    *POLYFILLS,
)  # modules whose frames replace C code or do not exist in eager


@dataclass(frozen=True)
class CallerLine:
    """A source line of the user, as warnings and logs report it."""

    filename: str
    line: int
    function: str
    globals: dict[str, Any]


@functools.cache
def _module_frames() -> tuple[CallerLine, CallerLine]:
    """Torch's two frames between the caller of a module and its `forward`, which the VM omits."""

    class Probe(nn.Module):
        def forward(self) -> tuple[CallerLine, CallerLine]:
            inner = sys._getframe(1)
            assert inner.f_back is not None
            return line_of(inner), line_of(inner.f_back)

    found: tuple[CallerLine, CallerLine] = Probe()()
    return found


def line_of(frame: FrameType) -> CallerLine:
    """The line that a frame runs."""
    code = frame.f_code
    return CallerLine(code.co_filename, frame.f_lineno, code.co_name, frame.f_globals)


def line_at(vm: VM, level: int, skip: Callable[[str], bool] = lambda filename: False) -> CallerLine | int:
    """The line `level - 1` callers up, as `stacklevel` counts; an int counts callers above the compiled frame."""
    frame = vm.frame
    while frame is not None:
        for line in _lines_of(vm, frame):
            if not skip(line.filename):
                level -= 1
            if level <= 0:
                return line
        frame = frame.parent
    return level


def _lines_of(vm: VM, frame: Frame) -> Iterator[CallerLine]:
    """Eager's frames for a frame of the VM: several for a continuation stack, none for a frame of smelt."""
    name = frame.globals.get("__name__")
    if name == CONTINUATION_STACK_MODULE:
        for point in continuation_stack.caller_points(frame):
            line = vm.decode(point.user_code).line(point.at - 1)
            yield CallerLine(line.filename, line.line, point.user_code.co_name, point.scope)
    elif name not in _HIDDEN_MODULES:
        yield CallerLine(frame.line.filename, frame.line.line, frame.user_code.co_name, frame.globals)
        if any(f is frame.parent for f in vm.frames.module_callers):
            yield from _module_frames()


def caller_line(level: int) -> CallerLine:
    """The line `level` callers above the compiled frame, not counting frames of smelt; the outermost if there are fewer."""
    frame: FrameType | None = sys._getframe(1)
    result = line_of(sys._getframe(1))
    while frame is not None and level > 0:
        if (
            not is_smelt_scope(frame.f_globals)
            and frame.f_globals.get("__name__") != CONTINUATION_STACK_MODULE
        ):
            level -= 1
            result = line_of(frame)
        frame = frame.f_back
    return result
