"""Resume functions: the code after a graph break, as a function of the live values.

Equal resume points share one resume function, including points that resume functions of the same code reach: a loop with a
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
from smelt.capture.base.bytecode import SUSPENDABLE, Code, ResumedCode, register_original
from smelt.capture.base.call_handlers import BUILTINS
from smelt.capture.base.native_functions import runs_natively
from smelt.capture.base.value_kinds import NULL
from smelt.capture.base.vm_frames import Frame, LastInstruction, PreviousException
from smelt.capture.graph_breaks.continuation_stack import ContinuationStackSource
from smelt.capture.graph_breaks.finalizers import has_finalizer
from smelt.capture.graph_breaks.generator_steps import GeneratorStep
from smelt.capture.graph_breaks.live_locals import live_slots
from smelt.capture.graph_breaks.resume_argument_facts import NO_RESUME_FACTS, ResumeFacts, resume_facts
from smelt.capture.graph_breaks.resume_bytecode import Exit, Handling, Null, Offset, Push, Value, resume_code
from smelt.capture.graph_breaks.resume_points import FrameContinuation, Polyfill, ResumePoint, SuspendedFrame
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.runtime.generated_source import identifier

_UNLIKE = SUSPENDABLE | inspect.CO_ASYNC_GENERATOR | inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
BUILTINS[_native.release_arguments] = lambda vm, args, kwargs: None


class OriginalCode:
    """The user's code objects, decoded, with the liveness of their slots. `kept`: the ids of objects that variables
    hold even where they are dead."""

    def __init__(self, decode: Callable[[types.CodeType], Code], kept: frozenset[int] = frozenset()) -> None:
        self._decode = decode
        self.kept = kept

    def of(self, frame: Frame) -> tuple[types.CodeType, Code]:
        """The user's code object of `frame` and its decoded form: for a resume function those of the original."""
        is_resume_function = frame.code.original is not None
        return frame.user_code, self._decode(frame.user_code) if is_resume_function else frame.code

    def offset(self, user_code: types.CodeType, at: int) -> int:
        """The byte offset of instruction `at` of `user_code`."""
        return self._decode(user_code).offsets[at]

    def live(self, user_code: types.CodeType, code: Code) -> list[frozenset[int]]:
        """The live slots before each instruction, computed once for each code object."""
        if code.live is None:
            code.live = live_slots(code, user_code)
        return code.live


def frame_continuation(
    originals: OriginalCode, frame: Frame, at: int, stack: Sequence[object], all_locals: bool = False
) -> FrameContinuation:
    """The continuation of `frame` at instruction `at` of its own code, with `stack`. It holds the live locals and those with
    finalizers; `all_locals`: the dead ones too, which introspection may show."""
    user_code, code = originals.of(frame)
    at -= frame.prologue
    assert at >= 0, "a graph break in the prologue of a resume function"
    at = _past_jumps(code, at)
    slots, values = [], []
    live = originals.live(user_code, code)[at]
    for slot in range(code.nlocals):
        value = frame.locals[frame.slots[slot]]
        if not (all_locals or slot in live or id(value) in originals.kept or has_finalizer(value)):
            continue
        if value is not NULL and not (code.local_names[slot] == "__class__" and slot in _free(code)):
            slots.append(slot)
            values.append(value)
    layout, pushed = _layout(frame, stack, len(slots))
    point = ResumePoint(user_code, at, tuple(slots), layout, frame.globals, _class_cell(frame))
    return FrameContinuation(point, (*values, *pushed), code.names[at] == "RETURN_VALUE")


def _past_jumps(code: Code, at: int) -> int:
    """The target of the backward jumps at `at`, so that all points that lead to a loop's head share one resume function."""
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
    """The pushes of the prologue for `stack`, and their arguments; parameter `first` is the first of these."""
    pushes: list[Push] = []
    values: list[object] = []
    markers = [v for v in stack if type(v) is PreviousException]
    handled = [m.error for m in markers[1:]] + [frame.handled]  # the exception handled above each marker
    for value in stack:
        if value is NULL:
            pushes.append(Null())
        elif type(value) is LastInstruction:
            pushes.append(Offset(value.index - frame.prologue))
        elif type(value) is PreviousException:
            pushes.append(Handling(first + len(values)))
            values.append(handled.pop(0))
        else:
            pushes.append(Value(first + len(values)))
            values.append(value)
    return tuple(pushes), values


def make_resume_function(
    decode: Callable[[types.CodeType], Code],
    point: ResumePoint,
    exits: Sequence[Exit] = (),
    make_exit: Callable[[int, dict[str, object]], object] | None = None,
) -> types.FunctionType:
    """The function that resumes at `point`, of its live locals and stack values, up to its end or one of `exits`. For the
    point of a generator, it is a generator function."""
    if point.scope.get("__builtins__", builtins) not in (builtins, vars(builtins)):
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, "a module with __builtins__ of its own"))
    user_code, code = point.user_code, decode(point.user_code)
    extra = [
        _extra_name(code, p, i)
        for i, p in enumerate(p for p in point.layout if isinstance(p, (Value, Handling)))
    ]
    name = f"resume_in_{identifier(user_code.co_name)}_at_{code.lines[point.at]}"
    new_code, prologue, new_slots = resume_code(
        user_code, code, point.at, point.slots, point.layout, extra, exits, make_exit
    )
    register_original(new_code, ResumedCode(user_code, prologue, new_slots))
    closure = None if not new_code.co_freevars else (point.cell,)
    function = types.FunctionType(new_code, point.scope, name, None, closure)  # type: ignore[arg-type]
    function.__qualname__ = name
    return function


class ResumeCallable(Protocol):
    """The callable of a resume function or continuation stack, which runs a compiled entry or compiles the frame."""

    __name__: str
    __wrapped__: types.FunctionType

    def __call__(self, *arguments: object) -> object: ...


class ResumeFunctions:
    """The resume functions and continuation stacks of a compiled function; `wrap(function)` compiles one."""

    def __init__(
        self, wrap: Callable[[types.FunctionType], ResumeCallable], decode: Callable[[types.CodeType], Code]
    ) -> None:
        self._wrap = wrap
        self._decode = decode
        # The values of the size symbols of the latest graph that has some, in this call.
        self.sizes: frozenset[int] = frozenset()
        # key -> (callable, the points that the ids in the key belong to)
        self._created: dict[tuple[object, ...], tuple[ResumeCallable, Sequence[ResumePoint | Polyfill]]] = {}
        self._steps: dict[tuple[object, ...], GeneratorStep] = {}
        # id of the callable -> facts from the latest graph before it
        self._facts: dict[int, ResumeFacts] = {}

    def clear(self) -> None:
        """Forget all of them; those in use stay alive."""
        self._created.clear()
        self._steps.clear()
        self._facts.clear()

    def record_facts(self, target: object, values: Sequence[object]) -> None:
        """Record the facts of a call of `target` with the traced `values` at the end of a compiled frame."""
        self._facts[id(target)] = resume_facts(values)

    def facts_for(self, target: object) -> ResumeFacts:
        """The facts about the arguments of `target` from the newest compiled frame that calls it."""
        return self._facts.get(id(target), NO_RESUME_FACTS)

    @property
    def callables(self) -> list[ResumeCallable]:
        """All callables, in the order of their creation."""
        return [resume for resume, _ in self._created.values()]

    def function(self, point: ResumePoint | Polyfill) -> ResumeCallable | types.FunctionType:
        """The resume function of `point`."""
        if isinstance(point, Polyfill):
            return point.function
        if point.user_code.co_flags & SUSPENDABLE:
            return self.step(point)[0]
        found = self._created.get(point.key)
        if found is None:
            found = self._created[point.key] = self._wrap(make_resume_function(self._decode, point)), [point]
        return found[0]

    def step(self, point: ResumePoint) -> tuple[ResumeCallable, GeneratorStep]:
        """The step of a generator from `point` to its next `yield`: the callable that compiles it, and the step itself."""
        found = self._created.get(point.key)
        if found is None:
            yields = replace(point, at=point.at - 1)
            step = GeneratorStep(
                make_resume_function(self._decode, point),
                functools.partial(make_resume_function, self._decode, yields),
            )
            stub = step.stub(len(point.slots) + sum(isinstance(p, (Value, Handling)) for p in point.layout))
            found = self._created[point.key] = self._wrap(stub), [point]
            self._steps[point.key] = step
        return found[0], self._steps[point.key]

    def compiled_callback(self, function: Callable[..., object]) -> Callable[..., object]:
        """`function`, compiled if it is plain, for C code that calls it with positional arguments."""
        bound = (function.__self__,) if isinstance(function, types.MethodType) else ()
        plain = function.__func__ if isinstance(function, types.MethodType) else function
        if not isinstance(plain, types.FunctionType) or not _is_plain(plain):
            return function
        user_code, code = plain.__code__, self._decode(plain.__code__)
        slots = (*_free(code), *range(code.argcount))
        resume = self.function(
            ResumePoint(user_code, code.names.index("RESUME"), slots, (), plain.__globals__, None)
        )
        values = (*(plain.__closure__ or ()), *bound)
        return functools.partial(resume, *values) if values else resume

    def continuation_stack(
        self, frames: Sequence[SuspendedFrame]
    ) -> tuple[ResumeCallable | types.FunctionType, tuple[object, ...]]:
        """The callable that resumes all `frames`, innermost first, and its arguments."""
        if len(frames) == 1:
            return self.function(frames[0].normal.point), frames[0].normal.values
        stack = ContinuationStackSource(frames, self.function)
        found = self._created.get(stack.key)
        if found is None:
            found = self._created[stack.key] = self._wrap(stack.compile()), stack.points
        return found[0], tuple(stack.values)


def _is_plain(function: types.FunctionType) -> bool:
    """Whether a frame of `function` begins with only its positional arguments and its closure."""
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
