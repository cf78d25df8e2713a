"""Loops that a condition on a tensor ends: `while error.max() > tolerance: ...` as one node of the graph.

At a jump that enters such a loop, the VM runs the body twice in copies of the frame: first to find the variables that
change, then on proxies of them. Only tensors may change, and keep their layouts. Loops over iterators are nested branches
(`conditional_jumps.py`); others break the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from smelt.capture.base.bytecode import Code
from smelt.capture.base.value_kinds import NULL
from smelt.capture.base.vm_frames import Frame
from smelt.capture.graph_breaks.finalizers import has_finalizer
from smelt.capture.graph_breaks.live_locals import successors
from smelt.capture.torch_calls import control_flow
from smelt.capture.torch_calls.branch_effects import CreatedObjects, EnvironmentContents, IteratorCopies
from smelt.capture.torch_calls.frame_copies import Branch, live_variables, reachable_state, run_copy
from smelt.capture.torch_calls.subgraph_capture import refuse
from smelt.capture.vm.vm import VM
from smelt.tracing.fake.fake_tensor import FakeTensor

_GOES_ON = frozenset(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "NOP", "NOT_TAKEN"))


@dataclass(frozen=True)
class _Test:
    """An instruction that decides whether the loop goes on, and whether it does if its operand is true."""

    at: int
    if_true: bool


def capture_loop(vm: VM, frame: Frame, condition: FakeTensor, if_true: Branch, if_false: Branch) -> bool:
    """Capture the loop that starts at the current jump, and continue after it; False if none starts there. Raises
    Unsupported for a loop that cannot be captured."""
    jump = frame.pc - (frame.code.names[frame.pc - 1] != "TO_BOOL")
    for body, end, goes_on in ((if_true, if_false, True), (if_false, if_true, False)):
        tests = _tests(frame.code, jump, body.at, end.at)
        if tests:
            return _captured(vm, frame, condition if goes_on else _negated(vm, condition), body, end, tests)
    return False


def _negated(vm: VM, condition: FakeTensor) -> FakeTensor:
    return cast(FakeTensor, vm.call_native(torch.logical_not, (condition,)))


def _captured(
    vm: VM, frame: Frame, condition: FakeTensor, body: Branch, end: Branch, tests: Sequence[_Test]
) -> bool:
    if frame.namespace is not None:
        raise refuse("a loop in a class body")
    before = [*frame.locals]
    recorded = control_flow.begin_recording(vm)
    after, _ = _step(vm, frame, body, tests, before)
    if after is None:
        control_flow.discard(vm, recorded)
        return False
    live = {*live_variables(frame, body.at), *live_variables(frame, end.at)}
    changed = [slot for slot in sorted(live) if after[slot] is not before[slot]]
    first = [before[slot] for slot in changed]
    if not all(type(x) is FakeTensor and type(after[slot]) is FakeTensor for x, slot in zip(first, changed)):
        raise refuse("the loop changes a variable that is not a tensor")
    control_flow.discard(vm, recorded)
    carried = [
        *cast("list[FakeTensor]", first),
        cast(FakeTensor, vm.call_native(torch.Tensor.reshape, (condition, ()))),
    ]
    recorded = control_flow.begin_recording(vm)
    proxies = control_flow.proxies(vm, carried)
    inside = [*before]
    for slot, proxy in zip(changed, proxies):
        inside[slot] = proxy
    after, goes_on = _step(vm, frame, body, tests, inside)
    if after is None or any(after[slot] is not inside[slot] for slot in live - {*changed}):
        raise refuse("other variables of the loop change in its second step")
    results = [cast(FakeTensor, after[slot]) for slot in changed]
    finals = control_flow.end_loop(vm, recorded, carried, proxies, [*results, cast(FakeTensor, goes_on)])
    dropped = [
        v for slot, v in enumerate(after) if v is not inside[slot] and slot not in changed and v is not NULL
    ]
    if any(map(has_finalizer, dropped)):
        raise refuse("a variable of the loop holds an object with a finalizer")
    frame.locals[:] = [b if a is b else NULL for a, b in zip(after, before)]
    for slot, final in zip(changed, finals):
        frame.locals[slot] = final
    frame.stack[:], frame.pc = end.stack, end.at
    return True


def _step(
    vm: VM, frame: Frame, body: Branch, tests: Sequence[_Test], variables: Sequence[object]
) -> tuple[list[object] | None, object]:
    """The variables after one iteration, and the loop condition as a tensor; None if the body advances an iterator."""
    created, environment = CreatedObjects(vm.env.sources.find, reachable_state(vm)), EnvironmentContents(vm)
    iterators = IteratorCopies()
    if any(hasattr(type(x), "__next__") and iterators.copy(x) is x for x in body.stack):
        return None, None
    at, stack, slots = run_copy(vm, frame, body, [test.at for test in tests], iterators, variables)
    if iterators.advanced(stack):
        return None, None
    if created.take_contents() or environment.take_contents():
        raise refuse("a step of the loop changes an object")
    test = next(test for test in tests if test.at == at)
    condition = control_flow.as_condition(vm, stack[-1])
    if type(condition) is not FakeTensor or condition.elem.numel() != 1 or condition.subclass is not None:
        raise refuse("the loop condition is not a tensor of one element")
    goes_on = vm.call_native(torch.Tensor.reshape, (condition, ()))
    return slots, goes_on if test.if_true else vm.call_native(torch.logical_not, (goes_on,))


def _tests(code: Code, jump: int, body: int, end: int) -> list[_Test]:
    """The conditional jumps that decide whether the loop that begins at `body` goes on, if `jump` is one of them or decides
    whether it begins, and `end` is outside of it; else none. Loops over iterators have none."""
    loops = _loops_of(code)
    around = [loop for loop in loops if jump in loop.body]
    first = _past_jumps(code, body)
    if around:
        loop = min(around, key=lambda loop: len(loop.body))
    else:
        loop = next((loop for loop in loops if _past_jumps(code, loop.head) == first), _Loop(-1, frozenset()))
    if code.names[loop.head] == "FOR_ITER" or body not in loop.body or end in loop.body:
        return []
    found = []
    for at in loop.body:
        name, following = code.names[at], successors(code, at)
        if "POP_JUMP" not in name or name.endswith("NONE"):
            continue
        for goes_on, leaves, if_true in ((*following, False), (*reversed(following), True)):
            if leaves not in loop.body and _past_jumps(code, goes_on) == first:
                test = at - 1 if code.names[at - 1] == "TO_BOOL" else at
                found.append(_Test(test, if_true is name.endswith("TRUE")))
    return found


@dataclass(frozen=True)
class _Loop:
    """A natural loop: its first instruction, and all of its instructions."""

    head: int
    body: frozenset[int]


def _loops_of(code: Code) -> Sequence[_Loop]:
    """`_loops`, computed once."""
    if code.loops is None:
        code.loops = _loops(code)
    return cast("Sequence[_Loop]", code.loops)


def _loops(code: Code) -> list[_Loop]:
    """The natural loops of the control flow graph without exception handlers."""
    before: dict[int, list[int]] = {}
    for at in range(len(code.names)):
        for following in successors(code, at):
            before.setdefault(following, []).append(at)
    loops = []
    for head, sources in before.items():
        pending = [at for at in sources if at >= head and "BACKWARD" in code.names[at]]
        body = {head} if pending else set[int]()
        while pending:
            at = pending.pop()
            if at not in body:
                body.add(at)
                pending += before.get(at, ())
        if body:
            loops.append(_Loop(head, frozenset(body)))
    return loops


def _past_jumps(code: Code, at: int) -> int:
    seen: set[int] = set()
    while code.names[at] in _GOES_ON and at not in seen:
        seen.add(at)
        at = successors(code, at)[0]
    return at
