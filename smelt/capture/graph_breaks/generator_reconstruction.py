"""Generators that leave the compiled frame: rows for `RECONSTRUCTION_KINDS`.

A generator of the VM becomes a real one that is suspended at the same `yield`. If it has tensors it runs in steps
(`generator_steps.py`). Else it is a resume function with the generator flag, which restores the frame and jumps to the
`yield`; the first `next` returns there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smelt._native import isinstance
from smelt.capture.base.vm_frames import CREATED, FINISHED, SUSPENDED, Coroutine, Generator
from smelt.capture.graph_breaks.generator_steps import (
    SuspendedVMGenerator,
    Suspension,
    advanced,
    finished,
    generator,
)
from smelt.capture.graph_breaks.profitability import has_tensors
from smelt.capture.graph_breaks.resume_functions import OriginalCode, frame_continuation, make_resume_function
from smelt.capture.graph_breaks.resume_points import FrameContinuation
from smelt.capture.reconstruction.frame_globals import provide
from smelt.capture.reconstruction.reconstruction_kind import Expressions, ReconstructionKind, unsupported
from smelt.capture.reconstruction.reconstruction_table import RECONSTRUCTION_KINDS
from smelt.capture.semantics import cells
from smelt.capture.vm.vm import VM


def _vm(g: Generator) -> VM:
    assert isinstance(g.vm, VM)  # only the VM creates these
    return g.vm


def _continuation(g: Generator, at_yield: bool = False) -> FrameContinuation:
    """The continuation of the generator's frame after its `yield`; the last value is the one that is sent. `at_yield`: the
    continuation at the `yield` itself, with all locals, which `gi_frame` shows."""
    frame, vm = g.frame, _vm(g)
    cells.register_cells(vm, frame)
    if g.state is CREATED:  # POP_TOP and RESUME come next
        return frame_continuation(
            OriginalCode(vm.decode), frame, frame.pc + 1, frame.stack, all_locals=at_yield
        )
    if g.state is SUSPENDED:
        at, stack = frame.pc - at_yield, [*frame.stack, None]
        return frame_continuation(OriginalCode(vm.decode), frame, at, stack, all_locals=at_yield)
    raise unsupported(g, "a generator that is running")


def _runs_in_steps(g: Generator) -> bool:
    return g.state is not FINISHED and has_tensors((g,))


def _needs(g: Generator) -> Iterable[object]:
    if g.state is FINISHED:
        return ()
    if not _runs_in_steps(g):
        return _continuation(g, at_yield=True).values
    return _step_arguments(g, _continuation(g))


def _step_arguments(g: Generator, continuation: FrameContinuation) -> Sequence[object]:
    """The arguments of the step that resumes at `continuation`, without the value that is sent."""
    return continuation.values[: None if g.state is CREATED else -1]


def _state_text(g: Generator, text: Expressions) -> tuple[str, str]:
    """The step that resumes the generator, and its arguments."""
    continuation = _continuation(g)
    call, step = text.step(continuation.point)
    arguments = [*map(text, _step_arguments(g, continuation))]
    values = f"({', '.join(arguments)}{',' * (len(arguments) == 1)})"
    return f"{text.constant(call, 'step')}, {text.constant(step, 'bytecode')}", values


def _text(g: Generator, text: Expressions) -> str:
    function, source = g.function, g.user_code
    names = f"{function.__name__!r}, {function.__qualname__!r}, {text.constant(source, 'code')}"
    if g.state is FINISHED:
        return f"finished_generator({names})"
    if not _runs_in_steps(g):
        continuation = _continuation(g, at_yield=True)
        function_at_yield = make_resume_function(_vm(g).decode, continuation.point)
        function_at_yield.__name__, function_at_yield.__qualname__ = function.__name__, function.__qualname__
        call = f"{text.constant(function_at_yield, function.__name__)}({', '.join(map(text, continuation.values))})"
        return call if g.state is CREATED else f"advanced({call})"
    calls, values = _state_text(g, text)
    begins = ", begins=True" if g.state is CREATED else ""
    return f"generator({names}, Suspension(None, {calls}, {values}){begins})"


def _suspension_parts(state: SuspendedVMGenerator) -> Iterable[object]:
    return (state.value, *_step_arguments(state.generator, _continuation(state.generator)))


def _suspension_text(state: SuspendedVMGenerator, text: Expressions) -> str:
    value = text(state.value)
    calls, values = _state_text(state.generator, text)
    return f"Suspension({value}, {calls}, {values})"


RECONSTRUCTION_KINDS[Generator] = RECONSTRUCTION_KINDS[Coroutine] = ReconstructionKind(_needs, _text)
RECONSTRUCTION_KINDS[SuspendedVMGenerator] = ReconstructionKind(_suspension_parts, _suspension_text)
provide(advanced=advanced, generator=generator, finished_generator=finished, Suspension=Suspension)
