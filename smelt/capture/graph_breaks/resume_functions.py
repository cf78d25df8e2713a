"""Resume functions: the rest of a frame after a graph break, as a function of the values that are still alive.

Equal points share one resume function, also the points that resume functions of the same code lead to, so that a loop with a
break in it has a bounded number of them.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.bytecode import SUSPENDABLE, Code, Original, note_original
from smelt.capture.base.call_handlers import BUILTINS
from smelt.capture.base.native_functions import runs_natively
from smelt.capture.base.value_kinds import NULL
from smelt.capture.base.vm_frames import Frame, Handled, LastInstruction
from smelt.capture.graph_breaks.continuation_stack import ChainText
from smelt.capture.graph_breaks.finalizers import ends_with_effect
from smelt.capture.graph_breaks.generator_steps import Step
from smelt.capture.graph_breaks.live_locals import live_slots
from smelt.capture.graph_breaks.resume_argument_facts import NOTHING_HANDED, Handed, handed
from smelt.capture.graph_breaks.resume_bytecode import Exit, Handling, Null, Offset, Push, Value, resumed
from smelt.capture.graph_breaks.resume_points import Continuation, Point, Polyfill, WaitingFrame
from smelt.capture.reconstruction.generated_source import identifier
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OBJECT, Reason

_UNLIKE = SUSPENDABLE | inspect.CO_ASYNC_GENERATOR | inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
BUILTINS[_native.release_arguments] = lambda vm, args, kwargs: None


class Originals:
    """The code objects that frames stem from, decoded, and what is live where."""

    def __init__(self, decode: Callable[[types.CodeType], Code]) -> None:
        self._decode = decode

    def of(self, frame: Frame) -> tuple[types.CodeType, Code]:
        """The code object that `frame` stems from, and how it is decoded: for a resume function that of the original."""
        resumed = frame.code.original is not None
        return frame.source, self._decode(frame.source) if resumed else frame.code

    def offset(self, source: types.CodeType, at: int) -> int:
        """Where instruction `at` of `source` stands in it, in bytes."""
        return self._decode(source).offsets[at]

    def live(self, source: types.CodeType, code: Code) -> list[frozenset[int]]:
        """For each instruction the slots whose values are read later; computed once for each code object."""
        if code.live is None:
            code.live = live_slots(code, source)
        return code.live


def continuation(
    originals: Originals, frame: Frame, at: int, stack: Sequence[object], whole: bool = False
) -> Continuation:
    """Where `frame` goes on: at instruction `at` of its own code, with `stack`. `whole`: also with the locals that it does
    not read any more, which others may look at; of those it always has what something happens to when it is dropped."""
    source, code = originals.of(frame)
    at -= frame.prologue
    assert at >= 0, "a graph break in the prologue of a resume function"
    at = _past_jumps(code, at)
    slots, values = [], []
    live = originals.live(source, code)[at]
    for slot in range(code.nlocals):
        value = frame.locals[frame.places[slot]]
        if not (whole or slot in live or ends_with_effect(value)):
            continue
        if value is not NULL and not (code.local_names[slot] == "__class__" and slot in _free(code)):
            slots.append(slot)
            values.append(value)
    layout, pushed = _layout(frame, stack, len(slots))
    point = Point(source, at, tuple(slots), layout, frame.globals, _class_cell(frame))
    return Continuation(point, (*values, *pushed), code.names[at] == "RETURN_VALUE")


def _past_jumps(code: Code, at: int) -> int:
    """The instruction that comes after jumps back from `at`: of two ways to a loop's head, one resume function is enough."""
    seen = set()
    while code.names[at] == "JUMP_BACKWARD" and at not in seen:
        seen.add(at)
        at = code.instructions[at][1]
    return at


def _free(code: Code) -> range:
    return range(code.nlocals - code.nfree, code.nlocals)


def _class_cell(frame: Frame) -> types.CellType | None:
    names = frame.code.free_names
    if "__class__" not in names:
        return None
    return frame.locals[frame.code.nlocals - len(names) + names.index("__class__")]


def _layout(frame: Frame, stack: Sequence[object], first: int) -> tuple[tuple[Push, ...], list[object]]:
    """What the prologue pushes, and the values that it takes for that."""
    pushes: list[Push] = []
    values: list[object] = []
    markers = [v for v in stack if type(v) is Handled]
    handled = [m.error for m in markers[1:]] + [frame.handled]  # what is handled above each marker
    for value in stack:
        if value is NULL:
            pushes.append(Null())
        elif type(value) is LastInstruction:
            pushes.append(Offset(value.at - frame.prologue))
        elif type(value) is Handled:
            pushes.append(Handling(first + len(values)))
            values.append(handled.pop(0))
        else:
            pushes.append(Value(first + len(values)))
            values.append(value)
    return tuple(pushes), values


def resume_function(
    decode: Callable[[types.CodeType], Code],
    point: Point,
    exits: Sequence[Exit] = (),
    made_at_exit: Callable[[int, dict[str, object]], object] | None = None,
) -> types.FunctionType:
    """The function that goes on at `point`, given its live locals and what is on its stack, to its end or one of `exits`.
    Of a generator's point, it is a generator function."""
    if point.scope.get("__builtins__", builtins) not in (builtins, vars(builtins)):
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, "a module with __builtins__ of its own"))
    source, code = point.source, decode(point.source)
    extra = [
        _extra_name(code, p, i)
        for i, p in enumerate(p for p in point.layout if isinstance(p, (Value, Handling)))
    ]
    name = f"resume_in_{identifier(source.co_name)}_at_{code.lines[point.at]}"
    made, prologue = resumed(source, code, point.at, point.slots, point.layout, extra, exits, made_at_exit)
    note_original(made, Original(source, prologue, _places(made, code, point, len(extra))))
    closure = None if not made.co_freevars else (point.cell,)
    function = types.FunctionType(made, point.scope, name, None, closure)  # type: ignore[arg-type]
    function.__qualname__ = name
    return function


class Resume(Protocol):
    """The callable of a resume function or chain: it answers from compiled entries, or has a frame compiled."""

    __name__: str
    __wrapped__: types.FunctionType

    def __call__(self, *arguments: object) -> object: ...


class Resumes:
    """The resume functions and chains of one compiled function. `wrap(function)` makes the callable that compiles it."""

    def __init__(
        self, wrap: Callable[[types.FunctionType], Resume], decode: Callable[[types.CodeType], Code]
    ) -> None:
        self._wrap = wrap
        self._decode = decode
        # What the symbols of sizes are in this call, of the latest graph that has some.
        self.sizes: frozenset[int] = frozenset()
        # key -> (callable, what its ids belong to)
        self._made: dict[tuple[object, ...], tuple[Resume, Sequence[Point | Polyfill]]] = {}
        self._steps: dict[tuple[object, ...], Step] = {}
        # By the id of the callable: what the latest graph before it hands it.
        self._handed: dict[int, Handed] = {}

    def clear(self) -> None:
        """Forgets them all; those in use stay alive."""
        self._made.clear()
        self._steps.clear()
        self._handed.clear()

    def hands(self, target: object, values: Sequence[object]) -> None:
        """A compiled frame ends in a call of `target`, which goes on with these values of its capture."""
        self._handed[id(target)] = handed(values)

    def handed(self, target: object) -> Handed:
        """What `target` is handed by the compiled frame that was made last of those that call it."""
        return self._handed.get(id(target), NOTHING_HANDED)

    @property
    def callables(self) -> list[Resume]:
        """All that were made, in order."""
        return [made for made, _ in self._made.values()]

    def function(self, point: Point | Polyfill) -> Resume | types.FunctionType:
        """The resume function of `point`."""
        if isinstance(point, Polyfill):
            return point.function
        if point.source.co_flags & SUSPENDABLE:
            return self.step(point)[0]
        found = self._made.get(point.key)
        if found is None:
            found = self._made[point.key] = self._wrap(resume_function(self._decode, point)), [point]
        return found[0]

    def step(self, point: Point) -> tuple[Resume, Step]:
        """What goes on at `point` of a generator up to its next `yield`: a callable that is compiled, and what that runs."""
        found = self._made.get(point.key)
        if found is None:
            yields = replace(point, at=point.at - 1)
            step = Step(
                resume_function(self._decode, point), functools.partial(resume_function, self._decode, yields)
            )
            stub = step.stub(len(point.slots) + sum(isinstance(p, (Value, Handling)) for p in point.layout))
            found = self._made[point.key] = self._wrap(stub), [point]
            self._steps[point.key] = step
        return found[0], self._steps[point.key]

    def given(self, function: Callable[..., object]) -> Callable[..., object]:
        """`function` as code of C may call it, with positional arguments: compiled, unless it is of a kind that is not."""
        bound = (function.__self__,) if isinstance(function, types.MethodType) else ()
        plain = function.__func__ if isinstance(function, types.MethodType) else function
        if not isinstance(plain, types.FunctionType) or not _is_plain(plain):
            return function
        source, code = plain.__code__, self._decode(plain.__code__)
        slots = (*_free(code), *range(code.argcount))
        resume = self.function(Point(source, code.names.index("RESUME"), slots, (), plain.__globals__, None))
        values = (*(plain.__closure__ or ()), *bound)
        return functools.partial(resume, *values) if values else resume

    def chain(self, frames: Sequence[WaitingFrame]) -> tuple[Resume | types.FunctionType, tuple[object, ...]]:
        """The callable that goes on in all `frames`, innermost first, and the values that it takes."""
        if len(frames) == 1:
            return self.function(frames[0].normal.point), frames[0].normal.values
        text = ChainText(frames, self.function)
        found = self._made.get(text.key)
        if found is None:
            found = self._made[text.key] = self._wrap(text.compiled()), text.points
        return found[0], tuple(text.values)


def _is_plain(function: types.FunctionType) -> bool:
    """Whether a frame of `function` begins with nothing but its positional arguments and its closure."""
    code = function.__code__
    begins = not (code.co_cellvars or code.co_kwonlyargcount or function.__defaults__ or function.__dict__)
    return (
        begins
        and not code.co_flags & _UNLIKE
        and "__class__" not in code.co_freevars
        and not runs_natively(function)
    )


def _extra_name(code: Code, push: Push, number: int) -> str:
    return f"{'handled' if isinstance(push, Handling) else 'stack'}_{number}"


def _places(made: types.CodeType, code: Code, point: Point, extra: int) -> tuple[int, ...]:
    """See assemble: parameters first, then those for the stack, then the other slots; `__class__` last."""
    fixed = [i for i in _free(code) if code.local_names[i] == "__class__"]
    rest = [i for i in range(code.nlocals) if i not in point.slots and i not in fixed]
    order: list[int | None] = [*point.slots, *([None] * extra), *rest, *fixed]
    places = {slot: at for at, slot in enumerate(order) if slot is not None}
    return tuple(places[i] for i in range(code.nlocals))
