"""Graph breaks: the frames of the VM at the instruction that cannot be captured, as the end of a compiled frame.

When capture stops before an instruction, the compiled frame runs the graph so far, replays the effects, performs the
instruction as Python source (`break_instructions.py`), and goes on in a resume function for each way that it can go. `plan`
makes a `Break` of the frames of the VM at the stop; `Break.write` gives the statements.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

from smelt.capture.base.bytecode import Code
from smelt.capture.base.vm_frames import Delivery, Frame, LastInstruction, is_smelts
from smelt.capture.graph_breaks.break_instructions import ROWS, Constant, Step
from smelt.capture.graph_breaks.callback_functions import COMPILED, step_with_compiled
from smelt.capture.graph_breaks.code_positions import Place
from smelt.capture.graph_breaks.continuation_stack import is_chain, remaining, waiting_points
from smelt.capture.graph_breaks.live_locals import handler_at
from smelt.capture.graph_breaks.profitability import has_tensors
from smelt.capture.graph_breaks.resume_functions import Originals, Resumes, continuation
from smelt.capture.graph_breaks.resume_points import (
    AfterCall,
    Continuation,
    Placeholder,
    Polyfill,
    WaitingFrame,
)
from smelt.capture.graph_breaks.suspended_frames import after
from smelt.capture.graph_breaks.uncaptured_loops import LOOPING, loop_step
from smelt.errors import Unsupported
from smelt.reasons import LONG_COMPUTATION, UNSUPPORTED_EFFECT, UNSUPPORTED_OPCODE, Reason


class Writer(Protocol):
    """What `emit.Writer` offers here."""

    def __call__(self, x: object) -> str: ...
    def bind(self, x: object, expression: str) -> None:
        """From now on `x` is written as `expression`."""

    def fresh_name(self, hint: str) -> str:
        """A variable name that the compiled frame does not use yet."""

    def constant(self, x: object, hint: str) -> str:
        """The name under which the compiled frame finds `x` in its scope."""

    def given_function(self) -> str:
        """The name of a function: see `Resumes.given`."""

    def function(self, parameters: Sequence[str], body: Sequence[str], place: Place) -> str:
        """The name of a function whose frames look like the user's at `place`."""


@dataclass(frozen=True)
class Break:
    """What a compiled frame does in place of returning: it carries out `step`, and hands over to a resume function.

    `successors`: for each successor of the step, the frames that go on, innermost first. `handling`: the frames that go on
    if the step raises and one of them handles it; `error` stands for what was raised. `handled`: the exception that the
    innermost frame is handling, which the step must see as the one that is handled. `places`: where the frames stand,
    outermost first; `skipped`: how many of them are outside of the one that handles what the step raises.
    """

    reason: Reason
    step: Step
    successors: tuple[tuple[WaitingFrame, ...], ...]
    handling: tuple[WaitingFrame, ...] | None
    error: Placeholder
    handled: BaseException | None = None
    places: tuple[Place, ...] = ()
    skipped: int = 0

    @property
    def roots(self) -> tuple[object, ...]:
        """The objects that the compiled frame needs for it."""
        found = [*self.step.operands, *([] if self.handled is None else [self.handled])]
        for waiting in (*self.successors, *([self.handling] if self.handling else [])):
            # twice where it is needed twice: one object
            found += [v for frame in waiting for v in _values(frame)]
        return tuple(v for v in found if type(v) not in (Placeholder, Constant))

    def write(self, writer: Writer, resumes: Resumes) -> list[str]:
        """The last statements of the compiled frame: the step, and a tail call for each successor."""
        for value in (*self.step.operands, self.error):
            if type(value) is Placeholder:
                writer.bind(value, writer.fresh_name(value.name))
            elif value is COMPILED:
                writer.bind(value, writer.given_function())
            elif type(value) is Constant:
                writer.bind(value, writer.constant(value.value, value.name))
        lines = [f"# graph break: {_comment(self.reason)}"]
        body, conditions = self._statements(writer)
        if self.handled is not None:
            body = _while_handling(writer, self.handled, body)
        if self.handling is None:
            lines += body
        else:
            lines += [
                "try:",
                *(f"    {line}" for line in body),
                f"except BaseException as {writer(self.error)}:",
            ]
            if self.skipped:
                lines.append(f"    leave_frames({writer(self.error)}, {self.skipped})")
            lines.append(f"    {_tail(writer, resumes, self.handling)}")
        first = _tail(writer, resumes, self.successors[0])
        for condition, successor in zip(conditions, self.successors[1:], strict=True):
            lines += [f"if {condition}:", f"    {_tail(writer, resumes, successor)}"]
        return [*lines, first]

    def _statements(self, writer: Writer) -> tuple[list[str], list[str]]:
        """The step and its conditions, in functions that stand for the frames inside of the outermost."""
        text, inner = self.step.text, self.places[1:]
        count = text.replace("{{", "").replace("}}", "").count("{}")
        written = [writer(v) for v in self.step.operands]
        given: dict[str, str] = {}  # what the step takes -> how it calls that
        if inner:
            for value, name in zip(self.step.operands, written):
                if type(value) is not Placeholder:
                    given.setdefault(name, f"a{len(given)}")
        operands = iter([given.get(name, name) for name in written])
        body = text.format(*itertools.islice(operands, count)).splitlines()
        conditions = [c.format(*itertools.islice(operands, c.count("{}"))) for c in self.step.conditions]
        made = [n for v, n in zip(self.step.operands, written) if type(v) is Placeholder]
        if conditions and not body and (self.handling is not None or self.handled is not None or inner):
            name = writer.fresh_name("condition")
            body, conditions, made = [f"{name} = bool({conditions[0]})"], [name], [name]
        if inner:
            body = _in_frames(writer, body, given, list(dict.fromkeys(made)), inner)
        return body, conditions


def _in_frames(
    writer: Writer, body: Sequence[str], given: dict[str, str], made: Sequence[str], places: Sequence[Place]
) -> list[str]:
    """`body`, which makes `made` out of what is `given`, in a function for each place, outermost first."""
    names = list(given.values())
    returned = f"return {', '.join(made)}"
    call = writer.function(names, [*body, *([returned] if made else [])], places[-1])
    for place in reversed(places[:-1]):
        call = writer.function(names, [f"return {call}({', '.join(names)})"], place)
    targets = f"{', '.join(made)} = " if made else ""
    return [f"{targets}{call}({', '.join(given)})"]


def _while_handling(writer: Writer, error: BaseException, body: list[str]) -> list[str]:
    """`body`, with `error` as the exception that is handled: new ones get it as their context."""
    handled, trace = writer(error), writer.fresh_name("traceback")
    inner = [f"    {line}" for line in body]
    raised = [f"{trace} = {handled}.__traceback__", "try:", f"    raise_as_it_is({handled})"]
    return [*raised, "except BaseException:", f"    {handled}.__traceback__ = {trace}", *inner]


def _values(frame: WaitingFrame) -> Iterator[object]:
    yield from frame.normal.values
    if frame.handler is not None:
        yield from frame.handler.values


def _comment(reason: Reason) -> str:
    at = f" at {reason.line}" if reason.line else ""
    return f"{reason.kind.id}{at}" + (f" ({reason.detail})" if reason.detail else "").replace("\n", " ")


def _tail(writer: Writer, resumes: Resumes, frames: Sequence[WaitingFrame]) -> str:
    """The statement that goes on in `frames`, innermost first. A frame that only returns what it is given is left out."""
    waiting = list(frames)
    while waiting[0].normal.returns:
        value = waiting.pop(0).normal.values[-1]
        if not waiting:
            return f"return {writer(value)}"
        waiting[0] = _answered(waiting[0], value)
    target, values = resumes.chain(waiting)
    resumes.hands(target, values)
    name = writer.constant(target, target.__name__)
    return f"return tail({', '.join([name, *map(writer, values)])})"


def _answered(frame: WaitingFrame, value: object) -> WaitingFrame:
    """The frame, after its callee has returned `value`."""
    rest = frame.normal
    values = tuple(value if v is frame.result else v for v in rest.values)
    return WaitingFrame(replace(rest, values=values), None)


def _step(frame: Frame, reason: Reason, depth: int) -> Step:
    """The instruction at which `frame` stands, `depth` frames deep."""
    name, arg = frame.code.names[frame.pc], frame.instructions[frame.pc][1]
    if name not in ROWS:
        raise Unsupported(Reason(UNSUPPORTED_OPCODE, f"a graph break at {name}"))
    if len(reason.stack) > depth and has_tensors(frame.stack):  # what it calls cannot be captured
        step = step_with_compiled(frame)
        if step is not None:
            return step
    return ROWS[name](frame, arg)


def plan(
    originals: Originals, decode: Callable[[types.CodeType], Code], frames: Sequence[Frame], reason: Reason
) -> Break:
    """Makes the break before the instruction at which `frames` (outermost first) stand; `pc` of each is that of its own.

    Raises Unsupported for an instruction that has no row.
    """
    innermost = frames[-1]
    loops = reason.kind is LONG_COMPUTATION and innermost.code.names[innermost.pc] in LOOPING
    step = loop_step(originals, decode, innermost) if loops else _step(innermost, reason, len(frames))
    callers = _callers(originals, frames)
    normal = [continuation(originals, s.frame or innermost, s.at, s.stack) for s in step.successors]
    successors = tuple((WaitingFrame(rest, None), *callers) for rest in normal)
    error = Placeholder("error")
    # what a loop raises has met the frame's own handlers in the loop's function
    handler = None if loops else _to_handler(originals, innermost, error)
    own = WaitingFrame(normal[0], None, handler, error)
    if any(frame.handled is not None for frame in frames[:-1]):
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a graph break in what an exception handler calls"))
    standing = [*_standing(originals, frames)]
    handlers = [i for i, (_, handles) in enumerate(standing) if handles and not (loops and i == 0)]
    places = tuple(place for place, _ in reversed(standing) if place is not None)
    skipped = sum(place is not None for place, _ in standing[handlers[0] + 1 :]) if handlers else 0
    return Break(reason, step, successors, *_handling((own, *callers)), innermost.handled, places, skipped)


def _standing(originals: Originals, frames: Sequence[Frame]) -> Iterator[tuple[Place | None, bool]]:
    """Where the frames of the user's code stand, innermost first, and whether they handle exceptions there. None stands for
    code of C."""
    for frame in reversed(frames):
        if is_chain(frame.function):
            for point, handles in waiting_points(frame.function, frame.pc):
                at = 0 if point is None else originals.offset(point.source, point.at - 1)
                yield None if point is None else Place(point.source, at, point.scope), handles
        elif not is_smelts(frame.globals):
            handles = handler_at(frame.code, frame.pc) is not None
            at = originals.offset(frame.source, frame.pc - frame.prologue)
            yield Place(frame.source, at, frame.globals), handles
        yield from ((None, delivery.otherwise is not None) for delivery in frame.deliveries or ())


def _callers(originals: Originals, frames: Sequence[Frame]) -> tuple[WaitingFrame, ...]:
    """What waits for a callee, innermost first, without the frames that only hand on its result."""
    waiting: list[WaitingFrame] = []
    for frame, callee in zip(reversed(frames[:-1]), reversed(frames)):
        waiting += map(_delivered, callee.deliveries or ())
        left = remaining(frame)
        waiting += [_waiting(originals, frame)] if left is None else left
    return tuple(frame for frame in waiting if frame.handler or not frame.normal.returns)


def _waiting(originals: Originals, frame: Frame) -> WaitingFrame:
    result, error = Placeholder("result"), Placeholder("error")
    normal = continuation(originals, frame, *after(frame, result))
    return WaitingFrame(normal, result, _to_handler(originals, frame, error), error)


def _delivered(delivery: Delivery) -> WaitingFrame:
    """What an instruction does in C once it has its callee's result."""
    result, error = Placeholder("result"), Placeholder("error")
    normal = AfterCall(_polyfill(delivery.after), (result, *delivery.values))
    handler = None
    if delivery.otherwise is not None:
        handler = AfterCall(_polyfill(delivery.otherwise), (error, *delivery.values))
    return WaitingFrame(normal, result, handler, error)


def _polyfill(function: Callable[..., object]) -> Polyfill:
    return Polyfill(cast(types.FunctionType, function))


def _to_handler(originals: Originals, frame: Frame, error: Placeholder) -> Continuation | None:
    """Where `frame` goes on if the instruction at which it stands raises `error`."""
    handler = handler_at(frame.code, frame.pc)
    if handler is None:
        return None
    target, depth, push_at = handler
    stack = [*frame.stack[:depth], *([LastInstruction(frame.pc)] if push_at else []), error]
    return continuation(originals, frame, target, stack)


def _handling(frames: Sequence[WaitingFrame]) -> tuple[tuple[WaitingFrame, ...] | None, Placeholder]:
    """The frames that go on after an exception of the innermost instruction, and what stands for the exception; None if no
    frame handles it."""
    for i, frame in enumerate(frames):
        if frame.handler is not None:
            assert frame.error is not None
            return (WaitingFrame(frame.handler, None), *frames[i + 1 :]), frame.error
    return None, Placeholder("error")
