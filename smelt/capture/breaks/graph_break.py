"""Graph breaks: the frames of the VM at the instruction that cannot be captured, as the end of a compiled frame.

When capture stops before an instruction, the compiled frame runs the graph so far, replays the effects, performs the
instruction as Python source (`instructions.py`), and goes on in a resume function for each way that it can go. `plan`
makes a `Break` of the frames of the VM at the stop; `Break.write` gives the statements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from smelt.capture.base.frames import Frame, LastInstruction
from smelt.capture.breaks.chains import remaining
from smelt.capture.breaks.instructions import ROWS, Step
from smelt.capture.breaks.liveness import handler_at
from smelt.capture.breaks.points import Going, Level, Placeholder
from smelt.capture.breaks.resume import Originals, Resumes, going_on
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_EFFECT, UNSUPPORTED_OPCODE, Reason

# how many values an instruction that waits for a callee takes from the stack
_CALLS = {"CALL": lambda arg: arg + 2, "CALL_FUNCTION_EX": lambda arg: 3 + (arg & 1)}


class Writer(Protocol):
    """What `emit.Writer` offers here."""

    def __call__(self, x: object) -> str: ...
    def bind(self, x: object, expression: str) -> None: ...
    def fresh_name(self, hint: str) -> str: ...
    def constant(self, x: object, hint: str) -> str: ...


@dataclass(frozen=True)
class Break:
    """What a compiled frame does in place of returning. `ways`: the levels, innermost first, for each of the step's ways;
    `handling`: those for an exception of the step, if some frame handles it (`error` stands for it)."""

    reason: Reason
    step: Step
    ways: tuple[tuple[Level, ...], ...]
    handling: tuple[Level, ...] | None
    error: Placeholder
    # what the frame is handling: the step sees it as the one that is handled
    handled: BaseException | None = None

    @property
    def roots(self) -> tuple[Any, ...]:
        """The objects that the compiled frame needs for it."""
        found = [*self.step.operands, *([] if self.handled is None else [self.handled])]
        for levels in (*self.ways, *([self.handling] if self.handling else [])):
            # twice where it is needed twice: one object
            found += [v for level in levels for v in _values(level)]
        return tuple(v for v in found if type(v) is not Placeholder)

    def write(self, writer: Writer, resumes: Resumes) -> list[str]:
        """The statements."""
        for value in (*self.step.operands, self.error):
            if type(value) is Placeholder:
                writer.bind(value, writer.fresh_name(value.name))
        lines = [f"# graph break: {_comment(self.reason)}"]
        text = self.step.text
        count = text.replace("{{", "").replace("}}", "").count("{}")
        operands = [writer(v) for v in self.step.operands]
        body = text.format(*operands[:count]).splitlines()
        condition = self.step.condition.format(*operands[count:])
        if condition and not body and (self.handling is not None or self.handled is not None):
            name = writer.fresh_name("condition")
            body, condition = [f"{name} = bool({condition})"], name
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
            lines.append(f"    {_tail(writer, resumes, self.handling)}")
        first = _tail(writer, resumes, self.ways[0])
        if condition:
            lines += [f"if {condition}:", f"    {_tail(writer, resumes, self.ways[1])}"]
        return [*lines, first]


def _while_handling(writer: Writer, error: BaseException, body: list[str]) -> list[str]:
    """`body`, with `error` as the exception that is handled: new ones get it as their context."""
    handled, trace = writer(error), writer.fresh_name("traceback")
    inner = [f"    {line}" for line in body]
    raised = [f"{trace} = {handled}.__traceback__", "try:", f"    raise_as_it_is({handled})"]
    return [*raised, "except BaseException:", f"    {handled}.__traceback__ = {trace}", *inner]


def _values(level: Level) -> Iterator[Any]:
    yield from level.normal.values
    if level.handler is not None:
        yield from level.handler.values


def _comment(reason: Reason) -> str:
    at = f" at {reason.line}" if reason.line else ""
    return f"{reason.kind.id}{at}" + (f" ({reason.detail})" if reason.detail else "").replace("\n", " ")


def _tail(writer: Writer, resumes: Resumes, levels: Sequence[Level]) -> str:
    levels = list(levels)
    while levels[0].normal.returns:
        value = levels.pop(0).normal.values[-1]
        if not levels:
            return f"return {writer(value)}"
        levels[0] = _answered(levels[0], value)
    target, values = resumes.chain(levels)
    name = writer.constant(target, target.__name__)
    return f"return tail({', '.join([name, *map(writer, values)])})"


def _answered(level: Level, value: Any) -> Level:
    """The level whose callee has returned `value`."""
    going = level.normal
    values = tuple(value if v is level.result else v for v in going.values)
    return Level(Going(going.point, values, going.returns), None)


def plan(originals: Originals, frames: Sequence[Frame], reason: Reason) -> Break:
    """The break before the instruction at which `frames` (outermost first) stand: `pc` of each is the instruction's own.

    Raises Unsupported for an instruction that has no row.
    """
    innermost = frames[-1]
    name, arg = innermost.code.names[innermost.pc], innermost.instructions[innermost.pc][1]
    if name not in ROWS:
        raise Unsupported(Reason(UNSUPPORTED_OPCODE, f"a graph break at {name}"))
    step = ROWS[name](innermost, arg)
    callers = _callers(originals, frames[:-1])
    ways = tuple((Level(going_on(originals, innermost, w.at, w.stack), None), *callers) for w in step.ways)
    error = Placeholder("error")
    own = Level(ways[0][0].normal, None, _to_handler(originals, innermost, error), error)
    if any(frame.handled is not None for frame in frames[:-1]):
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a graph break in what an exception handler calls"))
    return Break(reason, step, ways, *_handling((own, *callers)), innermost.handled)


def _callers(originals: Originals, frames: Sequence[Frame]) -> tuple[Level, ...]:
    """The levels of frames that wait for a callee, innermost first, without those that only hand on its result."""
    levels: list[Level] = []
    for frame in reversed(frames):
        left = remaining(frame)
        levels += [_level(originals, frame)] if left is None else left
    return tuple(level for level in levels if level.handler or not level.normal.returns)


def _level(originals: Originals, frame: Frame) -> Level:
    name, arg = frame.code.names[frame.pc], frame.instructions[frame.pc][1]
    result, error = Placeholder("result"), Placeholder("error")
    stack = [*frame.stack[: len(frame.stack) - _CALLS[name](arg)], result]
    normal = going_on(originals, frame, frame.pc + 1, stack)
    return Level(normal, result, _to_handler(originals, frame, error), error)


def _to_handler(originals: Originals, frame: Frame, error: Placeholder) -> Going | None:
    """Where `frame` goes on if the instruction at which it stands raises `error`."""
    handler = handler_at(frame.code, frame.pc)
    if handler is None:
        return None
    target, depth, push_at = handler
    stack = [*frame.stack[:depth], *([LastInstruction(frame.pc)] if push_at else []), error]
    return going_on(originals, frame, target, stack)


def _handling(levels: Sequence[Level]) -> tuple[tuple[Level, ...] | None, Placeholder]:
    """The levels after an exception of the innermost instruction, and what stands for it; None if nobody handles it."""
    for i, level in enumerate(levels):
        if level.handler is not None:
            assert level.error is not None
            return (Level(level.handler, None), *levels[i + 1 :]), level.error
    return None, Placeholder("error")
