"""Tracebacks of exceptions that the interpreted program raises and handles: they show the program's frames, as in eager."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from smelt.capture.base.vm_frames import Frame, is_smelt_scope
from smelt.capture.graph_breaks import continuation_stack
from smelt.capture.reconstruction.traceback_reconstruction import traceback_entry
from smelt.capture.vm.vm import VM

TracebackEntry = tuple[types.CodeType, dict[str, object], int, int]  # code, globals, instruction offset, line


def traceback_entries(vm: VM, frame: Frame) -> Iterator[TracebackEntry]:
    """The traceback entries for an exception that leaves `frame`, innermost first; none for a frame of smelt."""
    if continuation_stack.is_continuation_stack(frame.function):
        for point in continuation_stack.unwound_points(frame):
            yield _entry(vm, point.user_code, point.scope, point.at - 1)
    elif not is_smelt_scope(frame.globals):
        yield _entry(vm, frame.user_code, frame.globals, frame.pc - 1 - frame.prologue)


def _entry(vm: VM, source: types.CodeType, scope: dict[str, object], index: int) -> TracebackEntry:
    code = vm.decode(source)
    return source, scope, code.offsets[index], code.lines[index]


@dataclass(frozen=True)
class ExtendTraceback:
    """A callable that adds `entries`, innermost first, to the traceback of an exception."""

    entries: tuple[TracebackEntry, ...]

    def __call__(self, error: BaseException) -> None:
        error.__traceback__ = extended(error.__traceback__, self.entries)


def extended(
    traceback: types.TracebackType | None, entries: Sequence[TracebackEntry], frame: Frame | None = None
) -> types.TracebackType | None:
    """`traceback` with `entries`, innermost first, around it. It keeps `frame` alive, with its local variables."""
    for code_position in entries:
        if frame is not None:
            frame.in_traceback = True
        traceback = traceback_entry(traceback, *code_position, frame)
    return traceback
