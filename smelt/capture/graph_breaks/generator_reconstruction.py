"""Generators that leave capture: rows for `rebuilding.kinds.KINDS`.

A generator of the VM becomes a real one that is suspended where it was. If it has tensors it goes on in steps
(`generator_steps.py`). Else it is a resume function with the generator flag, which restores the frame and jumps to the
`yield`; the first `next` comes out of that again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smelt._native import isinstance
from smelt.capture.base.vm_frames import CREATED, FINISHED, SUSPENDED, Coroutine, Generator
from smelt.capture.graph_breaks.generator_steps import (
    MachinesState,
    Suspension,
    advanced,
    finished,
    generator,
)
from smelt.capture.graph_breaks.profitability import has_tensors
from smelt.capture.graph_breaks.resume_functions import Originals, continuation, resume_function
from smelt.capture.graph_breaks.resume_points import Continuation
from smelt.capture.reconstruction.frame_globals import provide
from smelt.capture.reconstruction.reconstruction_kind import Expressions, Kind, unsupported
from smelt.capture.reconstruction.reconstruction_table import KINDS
from smelt.capture.semantics import cells
from smelt.capture.vm.vm import VM


def _machine(g: Generator) -> VM:
    assert isinstance(g.vm, VM)  # nothing else makes generators
    return g.vm


def _continuation(g: Generator, at_yield: bool = False) -> Continuation:
    """Where the generator's frame goes on; behind a `yield`, the last value is what is sent then. `at_yield`: at the `yield`
    itself, with all locals, which others may look at."""
    frame, vm = g.frame, _machine(g)
    cells.register_cells(vm, frame)
    if g.state is CREATED:  # POP_TOP and RESUME come next
        return continuation(Originals(vm.decode), frame, frame.pc + 1, frame.stack, whole=at_yield)
    if g.state is SUSPENDED:
        at, stack = frame.pc - at_yield, [*frame.stack, None]
        return continuation(Originals(vm.decode), frame, at, stack, whole=at_yield)
    raise unsupported(g, "a generator that is running")


def _goes_in_steps(g: Generator) -> bool:
    return g.state is not FINISHED and has_tensors((g,))


def _parts(g: Generator) -> Iterable[object]:
    if g.state is FINISHED:
        return ()
    if not _goes_in_steps(g):
        return _continuation(g, at_yield=True).values
    return _taken(g, _continuation(g))


def _taken(g: Generator, rest: Continuation) -> Sequence[object]:
    """What a step takes that goes on at `rest`, but for what is sent."""
    return rest.values[: None if g.state is CREATED else -1]


def _state_text(g: Generator, text: Expressions) -> tuple[str, str]:
    """What goes on in the generator, and the values that it takes."""
    rest = _continuation(g)
    call, step = text.step(rest.point)
    parts = [*map(text, _taken(g, rest))]
    values = f"({', '.join(parts)}{',' * (len(parts) == 1)})"
    return f"{text.constant(call, 'step')}, {text.constant(step, 'bytecode')}", values


def _text(g: Generator, text: Expressions) -> str:
    function, source = g.frame.function, g.frame.source
    names = f"{function.__name__!r}, {function.__qualname__!r}, {text.constant(source, 'code')}"
    if g.state is FINISHED:
        return f"finished_generator({names})"
    if not _goes_in_steps(g):
        rest = _continuation(g, at_yield=True)
        made = resume_function(_machine(g).decode, rest.point)
        made.__name__, made.__qualname__ = function.__name__, function.__qualname__
        call = f"{text.constant(made, made.__name__)}({', '.join(map(text, rest.values))})"
        return call if g.state is CREATED else f"advanced({call})"
    calls, values = _state_text(g, text)
    begins = ", begins=True" if g.state is CREATED else ""
    return f"generator({names}, Suspension(None, {calls}, {values}){begins})"


def _suspension_parts(state: MachinesState) -> Iterable[object]:
    return (state.value, *_taken(state.generator, _continuation(state.generator)))


def _suspension_text(state: MachinesState, text: Expressions) -> str:
    value = text(state.value)
    calls, values = _state_text(state.generator, text)
    return f"Suspension({value}, {calls}, {values})"


KINDS[Generator] = KINDS[Coroutine] = Kind(_parts, _text)
KINDS[MachinesState] = Kind(_suspension_parts, _suspension_text)
provide(advanced=advanced, generator=generator, finished_generator=finished, Suspension=Suspension)
