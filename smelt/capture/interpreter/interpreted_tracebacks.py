"""The tracebacks of exceptions that the interpreted program raises and handles: they show its frames, as eager's do."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from smelt.capture.base.vm_frames import Frame, is_smelts
from smelt.capture.graph_breaks import continuation_stack
from smelt.capture.reconstruction.traceback_reconstruction import entry
from smelt.capture.vm.vm import VM

Place = tuple[types.CodeType, dict[str, object], int, int]  # code, globals, offset of the instruction, line


def places(vm: VM, frame: Frame) -> Iterator[Place]:
    """Where an exception passes `frame`, innermost first: several places for a chain, none for a frame of smelt's own."""
    if continuation_stack.is_chain(frame.function):
        for point in continuation_stack.passed(frame):
            yield _place(vm, point.source, point.scope, point.at - 1)
    elif not is_smelts(frame.globals):
        yield _place(vm, frame.source, frame.globals, frame.pc - 1 - frame.prologue)


def _place(vm: VM, source: types.CodeType, scope: dict[str, object], at: int) -> Place:
    code = vm.decode(source)
    return source, scope, code.offsets[at], code.lines[at]


@dataclass(frozen=True)
class Passage:
    """Called with an exception: it has passed `places`, innermost first, besides the frames that its traceback shows."""

    places: tuple[Place, ...]

    def __call__(self, error: BaseException) -> None:
        error.__traceback__ = made_of(self.places, error.__traceback__)


def made_of(passed: Sequence[Place], rest: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback of an exception that passed these places, innermost first; `rest` is what it had before."""
    for place in passed:
        rest = entry(rest, *place)
    return rest
