"""Continuation stacks: one function that resumes all frames of nested calls after a graph break.

A break inside of interpreted calls has a resume point for each frame. The stack of these continuations is one function:

    def continuation_of_f(a0, a1, a2):
        result = resume_0_in_h(a0)
        result = resume_1_in_g(a1, result)
        return resume_2_in_f(a2, result)

Capture traces it as one frame: the innermost frame resumes, each caller gets what its callee returned or, in its exception
handler, what its callee raised. At another break below one of these calls, the remaining frames (`remaining_frames`) become
frames of the next continuation stack. So the stacks do not nest, and a loop comes back to the same one.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from smelt._native import isinstance
from smelt.capture.base.bytecode import lines_of, raw_instructions
from smelt.capture.base.value_kinds import LEAF_TYPES
from smelt.capture.base.vm_frames import Frame
from smelt.capture.graph_breaks.code_positions import CodePosition
from smelt.capture.graph_breaks.resume_points import (
    Continuation,
    Placeholder,
    Polyfill,
    ResumePoint,
    SuspendedFrame,
)
from smelt.capture.semantics.calls import calls
from smelt.runtime.generated_source import compile_source, identifier
from smelt.runtime.tail_calls import CONTINUATION_STACK_MODULE, TailCall


@dataclass(frozen=True)
class _Call:
    """A call of a resume function, with the names of its arguments (a parameter, `result` or `error`)."""

    continuation: Continuation  # without its values
    arguments: tuple[str, ...]

    @property
    def point(self) -> ResumePoint | Polyfill:
        return self.continuation.point

    def with_values(self, known: dict[str, object]) -> Continuation:
        return replace(self.continuation, values=tuple(known[name] for name in self.arguments))


_Calls = tuple[_Call, _Call | None]  # of a frame: after its callee has returned, after it has raised
# id of code -> (reference, instruction -> index of its frame, calls of each frame)
_stacks: dict[int, tuple[weakref.ref[types.CodeType], dict[int, int], list[_Calls]]] = {}


def is_continuation_stack(function: types.FunctionType) -> bool:
    """Whether `function` is the continuation of several frames."""
    return id(function.__code__) in _stacks


def remaining_frames(frame: Frame) -> list[SuspendedFrame] | None:
    """The frames above the call at which the continuation stack `frame` is suspended, innermost first; None elsewhere."""
    found = _stacks.get(id(frame.function.__code__))
    if found is None:
        return None
    _, frame_of, calls = found
    at = frame_of.get(frame.pc)
    if at is None:
        return None
    parameters = {name: frame.locals[i] for name, i in frame.code.parameters.items()}
    return [_suspended_frame(*pair, parameters) for pair in calls[at + 1 :]]


def caller_points(frame: Frame) -> list[ResumePoint]:
    """The resume points of the frames above the call that the continuation stack `frame` is making; else none."""
    found = _stacks.get(id(frame.function.__code__))
    if found is None:
        return []
    at = found[1].get(frame.pc - 1)
    points = [] if at is None else [normal.point for normal, _ in found[2][at + 1 :]]
    return [point for point in points if isinstance(point, ResumePoint)]


def suspended_points(function: types.FunctionType, pc: int) -> list[tuple[ResumePoint | None, bool]]:
    """The resume points of the frames above the call at instruction `pc` of a continuation stack, innermost first, each with
    whether the frame handles exceptions there. The point is None for code in C."""
    _, frame_of, calls = _stacks[id(function.__code__)]
    at = frame_of.get(pc)
    return [
        (normal.point if isinstance(normal.point, ResumePoint) else None, handler is not None)
        for normal, handler in (() if at is None else calls[at + 1 :])
    ]


def unwound_points(frame: Frame) -> Iterator[ResumePoint]:
    """The resume points that an exception of a call of the continuation stack `frame` unwinds, up to its handler."""
    for point, handles in suspended_points(frame.function, frame.pc - 1):
        if point is not None:
            yield point
        if handles:
            return


def _suspended_frame(normal: _Call, handler: _Call | None, parameters: dict[str, object]) -> SuspendedFrame:
    result, error = Placeholder("result"), Placeholder("error")
    known = {**parameters, "result": result, "error": error}
    handling = None if handler is None else handler.with_values(known)
    return SuspendedFrame(normal.with_values(known), result, handling, error)


calls.CALLERS[TailCall] = lambda vm, fn, args, kwargs: calls.call(vm, fn.target, args, kwargs)


class ContinuationStackSource:
    """The source of the continuation stack of `frames`, innermost first. `values` are the arguments of the function."""

    def __init__(
        self, frames: Sequence[SuspendedFrame], function: Callable[[ResumePoint | Polyfill], object]
    ) -> None:
        self.values: list[object] = []
        self._outermost = frames[-1].normal.point
        self.name = f"continuation_of_{identifier(self._outermost.user_code.co_name)}"
        self._function = function
        self._names: dict[int, str] = {}  # id of a value -> its parameter
        self._scope: dict[str, object] = {}
        self._calls = [self._frame_calls(frame) for frame in frames]
        self._lines, self._frame_of_line = self._write()

    @property
    def key(self) -> tuple[object, ...]:
        """The key by which stacks of the same points with the same arguments share a function."""
        calls = [call for pair in self._calls for call in pair]
        return "continuation stack", *(call and (call.point.key, call.arguments) for call in calls)

    @property
    def points(self) -> list[ResumePoint | Polyfill]:
        """The points at which its frames may resume."""
        return [call.point for pair in self._calls for call in pair if call is not None]

    def _frame_calls(self, frame: SuspendedFrame) -> _Calls:
        normal = self._call(frame.normal, frame.result, "result")
        handler = None if frame.handler is None else self._call(frame.handler, frame.error, "error")
        return normal, handler

    def _call(self, continuation: Continuation, awaited: Placeholder | None, name: str) -> _Call:
        arguments = (name if v is awaited is not None else self._parameter(v) for v in continuation.values)
        return _Call(replace(continuation, values=()), tuple(arguments))

    def _parameter(self, value: object) -> str:
        known = self._names.get(id(value)) if type(value) not in LEAF_TYPES else None
        if known is None:
            known = self._names[id(value)] = f"a{len(self.values)}"
            self.values.append(value)
        return known

    def _write(self) -> tuple[list[str], dict[int, int]]:
        lines: list[str] = []
        frame_of_line: dict[int, int] = {}
        pending: list[tuple[int, str]] = []  # (frame, statement)
        handled = False  # whether `error` may come from an inner frame

        def flush(indent: str, statements: Sequence[tuple[int, str]]) -> None:
            for frame, statement in statements:
                lines.append(indent + statement)
                frame_of_line[len(lines) + 1] = frame  # the first line is the `def`

        for i, (normal, handler) in enumerate(self._calls):
            last = i == len(self._calls) - 1
            expression = self._expression(normal, last)
            if handler is not None:
                before = [] if handled else ["error = None"]
                lines.extend([*before, "try:"])
                flush("    ", pending)
                lines.extend(["except BaseException as caught:", "    error = caught"])
                lines.extend(["else:", "    error = None"] if handled else [])
                handled = True
                pending = []
                expression += f" if error is None else {self._expression(handler, last)}"
            pending.append((i, f"return {expression}" if last else f"result = {expression}"))
        flush("", pending)
        return lines, frame_of_line

    def _expression(self, call: _Call, last: bool) -> str:
        name = f"resume_{len(self._scope)}_in_{identifier(call.point.user_code.co_name)}"
        function = cast("Callable[..., object]", self._function(call.point))
        self._scope[name] = TailCall(function) if last else function
        return f"{name}({', '.join(call.arguments)})"

    def compile(self) -> types.FunctionType:
        """Compile the function and register which frame each of its instructions belongs to."""
        parameters = ", ".join(f"a{i}" for i in range(len(self.values)))
        source = (
            "\n".join([f"def {self.name}({parameters}):", *(f"    {line}" for line in self._lines)]) + "\n"
        )
        scope = {"__builtins__": __builtins__, "__name__": CONTINUATION_STACK_MODULE, **self._scope}
        function = compile_source(source, self.name, self.name, scope)
        offsets = [start for _, _, start, _ in raw_instructions(function.__code__)[0]]
        lines = lines_of(function.__code__, offsets)
        frames = {at: self._frame_of_line[n] for at, n in enumerate(lines) if n in self._frame_of_line}
        if isinstance(self._outermost, ResumePoint):
            offset = raw_instructions(self._outermost.user_code)[0][self._outermost.at - 1][2]
            CodePosition(self._outermost.user_code, offset).disguise(function)
        key = id(function.__code__)
        reference = weakref.ref(function.__code__, lambda _: _stacks.pop(key, None))
        _stacks[key] = reference, frames, self._calls
        return function
