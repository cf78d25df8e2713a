"""Graph breaks: the exit of a compiled frame at an instruction that cannot be captured.

When capture stops before an instruction, the compiled frame runs the graph so far, replays the effects, runs the
instruction as Python source (`break_instructions.py`), and tail-calls a resume function for each successor of the
instruction. `plan` creates a `Break` from the frames of the VM; `Break.write` writes the statements.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

from smelt._native import isinstance
from smelt.capture.base.bytecode import SUSPENDABLE, Code
from smelt.capture.base.vm_frames import Frame, LastInstruction, ResultHandler, is_smelt_scope
from smelt.capture.graph_breaks.break_instructions import (
    BREAK_INSTRUCTIONS,
    BreakInstruction,
    Constant,
    Successor,
)
from smelt.capture.graph_breaks.callback_functions import (
    COMPILED_CALLBACK,
    instruction_with_compiled_callbacks,
)
from smelt.capture.graph_breaks.code_positions import CodePosition
from smelt.capture.graph_breaks.continuation_stack import (
    is_continuation_stack,
    remaining_frames,
    suspended_points,
)
from smelt.capture.graph_breaks.live_locals import handler_at
from smelt.capture.graph_breaks.profitability import has_tensors
from smelt.capture.graph_breaks.resume_functions import (
    OriginalCode,
    ResumeFunctions,
    frame_continuation,
    make_resume_function,
)
from smelt.capture.graph_breaks.resume_points import (
    FrameContinuation,
    Placeholder,
    Polyfill,
    PolyfillContinuation,
    SuspendedFrame,
)
from smelt.capture.graph_breaks.suspended_frames import state_after_call
from smelt.capture.graph_breaks.temporaries import opens, with_temporaries
from smelt.capture.graph_breaks.uncaptured_loops import (
    LOOP_JUMPS,
    expression_start,
    uncaptured_expression,
    uncaptured_loop,
)
from smelt.errors import DropsObserved, Unsupported
from smelt.reasons import LONG_COMPUTATION, SIDE_EFFECT_IO, UNSUPPORTED_EFFECT, UNSUPPORTED_OPCODE, Reason


class Writer(Protocol):
    """The part of `emit.Writer` that graph breaks use."""

    def __call__(self, x: object) -> str: ...
    def bind(self, x: object, expression: str) -> None:
        """Write `x` as `expression` from now on."""

    def fresh_name(self, hint: str) -> str:
        """A variable name that the compiled frame does not use yet."""

    def constant(self, x: object, hint: str) -> str:
        """The name under which the compiled frame finds `x` in its scope."""

    def callback_compiler(self) -> str:
        """The name of `ResumeFunctions.compiled_callback` in the compiled frame."""

    def function(self, parameters: Sequence[str], body: Sequence[str], position: CodePosition) -> str:
        """The name of a function whose frames look like the user's at `position`."""


@dataclass(frozen=True)
class Break:
    """The exit at a graph break: the compiled frame runs `instruction` and tail-calls a resume function.

    `successors`: for each successor of the instruction, the frames that resume, innermost first. `handling`: the frames that
    resume if the instruction raises and one of them handles exceptions; `error`: the placeholder of the exception.
    `handled`: the exception that the innermost frame is handling, which is the context of new ones. `positions`: the
    positions of the frames, outermost first; `skipped`: the number of frames outside of the one that handles exceptions.
    """

    reason: Reason
    instruction: BreakInstruction
    successors: tuple[tuple[SuspendedFrame, ...], ...]
    handling: tuple[SuspendedFrame, ...] | None
    error: Placeholder
    handled: BaseException | None = None
    positions: tuple[CodePosition, ...] = ()
    skipped: int = 0

    @property
    def roots(self) -> tuple[object, ...]:
        """The objects that the compiled frame needs for it."""
        roots = [*self.instruction.operands, *([] if self.handled is None else [self.handled])]
        for frames in (*self.successors, *([self.handling] if self.handling else [])):
            # An object that is used twice is a root twice: then it has a name.
            roots += [v for frame in frames for v in _values(frame)]
        return tuple(v for v in roots if type(v) not in (Placeholder, Constant))

    def write(self, writer: Writer, resume_functions: ResumeFunctions) -> list[str]:
        """The last statements of the compiled frame: the instruction, and a tail call for each successor."""
        for value in (*self.instruction.operands, self.error):
            if type(value) is Placeholder:
                writer.bind(value, writer.fresh_name(value.name))
            elif value is COMPILED_CALLBACK:
                writer.bind(value, writer.callback_compiler())
            elif type(value) is Constant:
                writer.bind(value, writer.constant(value.value, value.name))
        lines = [f"# graph break: {comment_of(self.reason)}"]
        body, conditions = self._statements(writer)
        if self.handled is not None and body:
            body = _while_handling(writer, self.handled, body)
        if self.handling is None or not body:
            lines += body
        else:
            lines += [
                "try:",
                *(f"    {line}" for line in body),
                f"except BaseException as {writer(self.error)}:",
            ]
            if self.skipped:
                lines.append(f"    leave_frames({writer(self.error)}, {self.skipped})")
            lines.append(f"    {_tail(writer, resume_functions, self.handling)}")
        first = _tail(writer, resume_functions, self.successors[0])
        for condition, successor in zip(conditions, self.successors[1:], strict=True):
            lines += [f"if {condition}:", f"    {_tail(writer, resume_functions, successor)}"]
        return [*lines, first]

    def _statements(self, writer: Writer) -> tuple[list[str], list[str]]:
        """The instruction and its conditions, within one function for each frame inside of the outermost."""
        text, inner = self.instruction.text, self.positions[1:]
        count = text.replace("{{", "").replace("}}", "").count("{}")
        written = [writer(v) for v in self.instruction.operands]
        arguments: dict[str, str] = {}  # an operand's expression -> its parameter in the innermost function
        if inner:
            for value, name in zip(self.instruction.operands, written):
                if type(value) is not Placeholder:
                    arguments.setdefault(name, f"a{len(arguments)}")
        operands = iter([arguments.get(name, name) for name in written])
        body = text.format(*itertools.islice(operands, count)).splitlines()
        conditions = [
            c.format(*itertools.islice(operands, c.count("{}"))) for c in self.instruction.conditions
        ]
        results = [n for v, n in zip(self.instruction.operands, written) if type(v) is Placeholder]
        if conditions and not body and (self.handling is not None or self.handled is not None or inner):
            name = writer.fresh_name("condition")
            body, conditions, results = [f"{name} = bool({conditions[0]})"], [name], [name]
        if inner and body:
            body = _in_frames(writer, body, arguments, list(dict.fromkeys(results)), inner)
        return body, conditions


def _in_frames(
    writer: Writer,
    body: Sequence[str],
    arguments: dict[str, str],
    results: Sequence[str],
    positions: Sequence[CodePosition],
) -> list[str]:
    """`body`, which computes `results` from `arguments`, in nested functions for the positions, outermost first."""
    names = list(arguments.values())
    returned = f"return {', '.join(results)}"
    call = writer.function(names, [*body, *([returned] if results else [])], positions[-1])
    for position in reversed(positions[:-1]):
        call = writer.function(names, [f"return {call}({', '.join(names)})"], position)
    targets = f"{', '.join(results)} = " if results else ""
    return [f"{targets}{call}({', '.join(arguments)})"]


def _while_handling(writer: Writer, error: BaseException, body: list[str]) -> list[str]:
    """`body` while `error` is being handled: new exceptions get it as their context."""
    handled, trace = writer(error), writer.fresh_name("traceback")
    inner = [f"    {line}" for line in body]
    raised = [f"{trace} = {handled}.__traceback__", "try:", f"    raise_without_context({handled})"]
    return [*raised, "except BaseException:", f"    {handled}.__traceback__ = {trace}", *inner]


def _values(frame: SuspendedFrame) -> Iterator[object]:
    yield from frame.normal.values
    if frame.handler is not None:
        yield from frame.handler.values


def comment_of(reason: Reason) -> str:
    """The comment that names a break in its compiled frame."""
    at = f" at {reason.line}" if reason.line else ""
    return f"{reason.kind.id}{at}" + (f" ({' '.join(reason.detail.splitlines())})" if reason.detail else "")


def _tail(writer: Writer, resume_functions: ResumeFunctions, frames: Sequence[SuspendedFrame]) -> str:
    """The tail call that resumes `frames`, innermost first, without those that only return their callee's result."""
    suspended = list(frames)
    while suspended[0].normal.returns:
        value = suspended.pop(0).normal.values[-1]
        if not suspended:
            return f"return {writer(value)}"
        suspended[0] = _with_result(suspended[0], value)
    target, values = resume_functions.continuation_stack(suspended)
    resume_functions.record_facts(target, values)
    name = writer.constant(target, target.__name__)
    return f"return tail({', '.join([name, *map(writer, values)])})"


def _with_result(frame: SuspendedFrame, value: object) -> SuspendedFrame:
    """The frame after its callee has returned `value`."""
    continuation = frame.normal
    values = tuple(value if v is frame.result else v for v in continuation.values)
    return SuspendedFrame(replace(continuation, values=values), None)


def _instruction(frame: Frame, error: Unsupported, depth: int) -> tuple[BreakInstruction, bool]:
    """The break instruction at which `frame` stands, `depth` frames deep; an empty one if the code continues there. And
    whether its result may be a temporary whose end has an effect."""
    # the code would continue behind KW_NAMES
    if error.continues and len(error.reason.stack) == depth and not frame.kwnames:
        return BreakInstruction((), (Successor(frame.pc, list(frame.stack)),)), False
    name, arg = frame.code.names[frame.pc], frame.instructions[frame.pc][1]
    if name not in BREAK_INSTRUCTIONS:
        raise Unsupported(Reason(UNSUPPORTED_OPCODE, f"a graph break at {name}"))
    if len(error.reason.stack) > depth and has_tensors(frame.stack):  # its callee cannot be captured
        instruction = instruction_with_compiled_callbacks(frame)
        if instruction is not None:
            return instruction, False
    instruction = BREAK_INSTRUCTIONS[name](frame, arg)
    ends = isinstance(error, DropsObserved) or (error.reason.kind is SIDE_EFFECT_IO and opens(instruction))
    return instruction, ends


def _with_temporaries(
    originals: OriginalCode,
    decode: Callable[[types.CodeType], Code],
    frames: Sequence[Frame],
    instruction: BreakInstruction,
) -> tuple[Sequence[Frame], BreakInstruction, bool]:
    """`instruction`, at which the innermost of `frames` stands, up to the one that drops its result, which may be one of
    the caller: then the frames without the innermost. And whether that is a function with the frame's exception handlers:
    an expression that jumps or creates functions."""
    frame = frames[-1]
    whole = with_temporaries(frame, instruction)
    if whole is not instruction or len(instruction.successors) != 1 or frame.code.names[frame.pc] != "CALL":
        return frames, whole, False
    try:
        depth = len(instruction.successors[0].stack)
        return frames, uncaptured_expression(originals, decode, frame, depth), True
    except Unsupported:
        pass
    callers, call = frames, instruction
    while _returns_to_call(callers):
        if call is instruction:
            start = expression_start(originals, frame)
            function, result = make_resume_function(decode, start.point), Placeholder("result")
            text = f"{{}} = {{}}({', '.join(['{}'] * len(start.values))})"
            call = BreakInstruction((result, Constant(function, "opener"), *start.values), (), text)
        callers = callers[:-1]
        call = replace(call, successors=(Successor(*state_after_call(callers[-1], call.operands[0])),))
        whole = with_temporaries(callers[-1], call)
        if whole is not call:
            return callers, whole, False
    return frames, instruction, False


def _returns_to_call(frames: Sequence[Frame]) -> bool:
    """Whether the innermost frame returns what it computes next, without handlers, to a call of a captured frame."""
    frame = frames[-1]
    returns = frame.code.names[frame.pc + 1] == "RETURN_VALUE" and handler_at(frame.code, frame.pc) is None
    special = frame.result_handlers or frame.handled is not None or frame.user_code.co_flags & SUSPENDABLE
    if len(frames) < 2 or not returns or special:
        return False
    caller = frames[-2]
    return not is_continuation_stack(caller.function) and caller.code.names[caller.pc] == "CALL"


def plan(
    originals: OriginalCode,
    decode: Callable[[types.CodeType], Code],
    frames: Sequence[Frame],
    error: Unsupported,
) -> Break:
    """The break, because of `error`, before the instruction at which the innermost of `frames` (outermost first) stands.

    Raises Unsupported for an instruction without a row in `BREAK_INSTRUCTIONS`.
    """
    innermost, reason, handles = frames[-1], error.reason, False
    loops = reason.kind is LONG_COMPUTATION and innermost.code.names[innermost.pc] in LOOP_JUMPS
    if loops:
        instruction, handles = uncaptured_loop(originals, decode, innermost), True
    else:
        instruction, ends = _instruction(innermost, error, len(frames))
        if ends:
            frames, instruction, handles = _with_temporaries(originals, decode, frames, instruction)
            innermost = frames[-1]
    callers = _suspended_callers(originals, frames)
    normal = [
        frame_continuation(originals, s.frame or innermost, s.at, s.stack) for s in instruction.successors
    ]
    successors = tuple((SuspendedFrame(continuation, None), *callers) for continuation in normal)
    raised = Placeholder("error")
    # the function of a loop or expression has this frame's exception handlers
    handler = None if handles else _to_handler(originals, innermost, raised)
    own = SuspendedFrame(normal[0], None, handler, raised)
    if any(frame.handled is not None for frame in frames[:-1]):
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a graph break in what an exception handler calls"))
    user_frames = [*_user_frames(originals, frames)]
    handlers = [
        i for i, (_, has_handler) in enumerate(user_frames) if has_handler and not (handles and i == 0)
    ]
    positions = tuple(position for position, _ in reversed(user_frames) if position is not None)
    skipped = sum(position is not None for position, _ in user_frames[handlers[0] + 1 :]) if handlers else 0
    return Break(
        reason, instruction, successors, *_handling((own, *callers)), innermost.handled, positions, skipped
    )


def _user_frames(
    originals: OriginalCode, frames: Sequence[Frame]
) -> Iterator[tuple[CodePosition | None, bool]]:
    """The positions of the user's frames (None in C code), innermost first, and whether they handle exceptions there."""
    for frame in reversed(frames):
        if is_continuation_stack(frame.function):
            for point, handles in suspended_points(frame.function, frame.pc):
                at = 0 if point is None else originals.offset(point.user_code, point.at - 1)
                yield None if point is None else CodePosition(point.user_code, at, point.scope), handles
        elif not is_smelt_scope(frame.globals):
            handles = handler_at(frame.code, frame.pc) is not None
            at = originals.offset(frame.user_code, frame.pc - frame.prologue)
            yield CodePosition(frame.user_code, at, frame.globals), handles
        yield from ((None, handler.on_error is not None) for handler in frame.result_handlers or ())


def _suspended_callers(originals: OriginalCode, frames: Sequence[Frame]) -> tuple[SuspendedFrame, ...]:
    """The suspended frames, innermost first, without those that only return their callee's result."""
    suspended: list[SuspendedFrame] = []
    for frame, callee in zip(reversed(frames[:-1]), reversed(frames)):
        suspended += map(_result_conversion, callee.result_handlers or ())
        remaining = remaining_frames(frame)
        suspended += [_suspended_frame(originals, frame)] if remaining is None else remaining
    return tuple(frame for frame in suspended if frame.handler or not frame.normal.returns)


def _suspended_frame(originals: OriginalCode, frame: Frame) -> SuspendedFrame:
    result, error = Placeholder("result"), Placeholder("error")
    normal = frame_continuation(originals, frame, *state_after_call(frame, result))
    return SuspendedFrame(normal, result, _to_handler(originals, frame, error), error)


def _result_conversion(conversion: ResultHandler) -> SuspendedFrame:
    """The work of a suspended instruction in C after its callee, as a frame of its own."""
    result, error = Placeholder("result"), Placeholder("error")
    normal = PolyfillContinuation(_polyfill(conversion.on_result), (result, *conversion.values))
    handler = None
    if conversion.on_error is not None:
        handler = PolyfillContinuation(_polyfill(conversion.on_error), (error, *conversion.values))
    return SuspendedFrame(normal, result, handler, error)


def _polyfill(function: Callable[..., object]) -> Polyfill:
    return Polyfill(cast(types.FunctionType, function))


def _to_handler(originals: OriginalCode, frame: Frame, error: Placeholder) -> FrameContinuation | None:
    """The continuation of `frame` where its current instruction raises `error`; None without a handler."""
    handler = handler_at(frame.code, frame.pc)
    if handler is None:
        return None
    target, depth, push_at = handler
    stack = [*frame.stack[:depth], *([LastInstruction(frame.pc)] if push_at else []), error]
    return frame_continuation(originals, frame, target, stack)


def _handling(frames: Sequence[SuspendedFrame]) -> tuple[tuple[SuspendedFrame, ...] | None, Placeholder]:
    """The frames that resume after an exception of the innermost instruction (None: no handler), and its placeholder."""
    for i, frame in enumerate(frames):
        if frame.handler is not None:
            assert frame.error is not None
            return (SuspendedFrame(frame.handler, None), *frames[i + 1 :]), frame.error
    return None, Placeholder("error")
