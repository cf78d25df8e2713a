"""Runs of a part of a frame in a copy of it, which leave the frame as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from smelt.capture.base.value_kinds import NULL
from smelt.capture.base.vm_frames import RUNNING, Frame, Generator
from smelt.capture.graph_breaks.live_locals import live_slots
from smelt.capture.torch_calls.branch_effects import IteratorCopies
from smelt.capture.torch_calls.subgraph_capture import refuse
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import DATA_DEPENDENT, Reason


@dataclass(frozen=True)
class Branch:
    """One way from a jump: the first instruction, and the stack there."""

    at: int
    stack: list[object]


def reachable_state(vm: VM) -> Iterator[object]:
    """What the running frames hold, except the cells of environment functions, which are environment objects, and the
    generators whose frames these are."""
    frame = vm.frame
    while frame is not None:
        n_own = frame.code.nlocals - (frame.code.nfree if id(frame.function) in vm.env.sources else 0)
        values = (v for v in (*frame.stack, *frame.locals[:n_own]) if v is not NULL)
        yield from (v for v in values if type(v) is not Generator or v.state is not RUNNING)
        frame = frame.parent


def live_variables(frame: Frame, at: int) -> list[int]:
    """The slots of the variables that are live before instruction `at`."""
    code = frame.code
    if code.live is None:
        code.live = live_slots(code, frame.function.__code__)
    return sorted(code.live[at])


class _Stop(tuple[int, list[object], list[object]]):
    """The instruction before which a copy stopped, the stack and the variables there, as the result of a frame."""

    __slots__ = ()


class MeetingPointMissed(Unsupported):
    """A branch that returns before the branches meet: an exception that it handles led elsewhere."""


def run_copy(
    vm: VM,
    frame: Frame,
    branch: Branch,
    stops: Sequence[int],
    iterators: IteratorCopies,
    variables: Sequence[object] | None = None,
) -> tuple[int, list[object], list[object]]:
    """Run a branch in a copy of the frame, with these variables. The instruction of `stops` before which it stopped, the
    stack and the variables there; without stops, the result of the frame as the stack. Raises Unsupported where the frame
    is left in another way."""
    slots = frame.locals if variables is None else variables
    copy = Frame(frame.code, frame.function, [*map(iterators.copy, slots)])
    copy.stack, copy.pc, copy.handled = [*map(iterators.copy, branch.stack)], branch.at, frame.handled
    copy.namespace, copy.locals_dict = frame.namespace, frame.locals_dict
    stop: _Stop | None = None

    def reach(vm: VM, frame: Frame, arg: object) -> bool:
        nonlocal stop
        if frame is not copy:
            raise refuse("one jumps out of another one within it")
        stop = frame.result = _Stop((frame.pc - 1, [*frame.stack], [*frame.locals]))
        return True

    if stops:
        copy.instructions = [*frame.instructions]
        for at in stops:
            copy.instructions[at] = reach, copy.instructions[at][1]
    try:
        result = vm.run(copy)
    except Unsupported:
        raise
    except Exception as error:
        if vm.failure is not None:
            raise vm.failure from error
        raise refuse(f"one raises {type(error).__name__}") from None
    # An exception that the branch has handled can leave it in no value: values of both branches are joined.
    if copy.yielded or copy.handled is not frame.handled:
        raise refuse("one leaves the frame or its exception handler")
    if not stops:
        return -1, [result], []
    if stop is None:
        raise MeetingPointMissed(Reason(DATA_DEPENDENT, "one returns"))
    return stop
