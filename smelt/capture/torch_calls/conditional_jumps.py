"""Jumps on tensors: `if x.mean() > 0: ...` within one graph.

The VM runs both branches of the jump, each in a copy of the frame, to the instruction where they meet: the immediate
post-dominator of the jump, or the end of the frame if one of them returns. The frame continues there with one value for each
pair of values that the branches leave on the stack and in live variables (`control_flow.join`). Two numbers become a proxy.

If values cannot be joined there, or the program needs such a number itself, the rest of the frame is captured once for each
branch, up to `_MAX_COPIED` deep.

The graph may compute both branches, so their only effects may be stores that can be joined (`branch_effects.py`),
in-place writes of tensors, and random draws, which the graph makes for the taken branch only; they must raise nothing.
Otherwise the graph breaks at the jump, and the reason says why.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.base.bytecode import Code
from smelt.capture.base.value_kinds import LEAF_TYPES, NULL
from smelt.capture.base.vm_frames import Frame
from smelt.capture.graph_breaks.finalizers import has_finalizer
from smelt.capture.graph_breaks.live_locals import successors
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.proxies.text_proxy import Unreadable
from smelt.capture.torch_calls import control_flow, tensor_item
from smelt.capture.torch_calls.branch_effects import (
    Contents,
    CreatedObjects,
    EnvironmentContents,
    IteratorCopies,
    StoredKey,
)
from smelt.capture.torch_calls.conditional_loops import capture_loop, capture_range
from smelt.capture.torch_calls.frame_copies import (
    Branch,
    MeetingPointMissed,
    live_variables,
    reachable_state,
    run_copy,
)
from smelt.capture.torch_calls.joined_values import Unjoinable, check_joinable
from smelt.capture.torch_calls.subgraph_capture import mark, refuse
from smelt.capture.vm.vm import VM
from smelt.errors import NeedsFixedSize, Unsupported
from smelt.graph.ir import Line
from smelt.reasons import TENSOR_CONDITION, Reason
from smelt.torch_private import maybe_current_level
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.sym_nodes import UnbackedComparison
from smelt.tracing.symbolic.symbolic_ranges import SymbolicRange

_MAX_DEPTH = 16  # of branches within branches
_MAX_CAPTURED = 1024  # conditions of one graph: 1,000 in an unrolled loop take four seconds to compile
_MAX_TAILS = 32  # conditions after which the rest of a frame is captured for each branch
_MAX_COPIED = 3  # depth to which the rest of a frame is captured once for each branch


class Outcome(Enum):
    """What became of a jump whose branches were captured: the frame continues where they meet, or it has ended."""

    MET = False
    ENDED = True


def capture_branches(
    vm: VM, frame: Frame, condition: object, if_true: Branch, if_false: Branch
) -> Outcome | None:
    """Capture both branches of the jump at which `frame` stands; None for a jump whose condition is known or that is not to
    be captured. Raises Unsupported where the branches cannot be captured."""
    if type(condition) is NumberProxy:
        condition = condition.condition()
    at = frame.pc - 1
    jump = frame.user_code, at - frame.prologue, torch.is_grad_enabled()
    if not vm.assumptions.captures_jumps or not _may_capture(vm, condition):
        return None
    if jump in vm.assumptions.uncaptured_jumps:
        raise Unsupported(Reason(TENSOR_CONDITION, vm.assumptions.uncaptured_jumps[jump]))
    state = vm.conditional_jumps
    state.running = state.running or jump
    state.depth += 1
    try:
        if state.depth > _MAX_DEPTH:
            raise refuse(f"more than {_MAX_DEPTH} nested conditions on tensors")
        if state.captured >= _MAX_CAPTURED:
            raise refuse(f"more than {_MAX_CAPTURED} conditions on tensors")
        pred = control_flow.as_condition(vm, condition)
        outcome = Outcome.MET
        if not capture_loop(vm, frame, cast(FakeTensor, pred), if_true, if_false):
            meeting_point = _meeting_point_of(frame.code, at)
            outcome = _captured(vm, frame, cast(FakeTensor, pred), (if_true, if_false), meeting_point)
    except Unsupported as error:
        if isinstance(error, NeedsFixedSize) and vm.env.sizes.paths_of(error.symbols):
            raise
        if isinstance(error, Unreadable) and state.joined_numbers:
            raise
        vm.failure = None  # found again at the jump
        raise Unsupported(Reason(TENSOR_CONDITION, _why(error.reason, frame.line))) from None
    state.depth -= 1
    if not state.depth:
        state.running = None
    state.captured += 1
    return outcome


def capture_range_loop(vm: VM, frame: Frame) -> bool:
    """Capture the `for` loop over the range on the stack, if its length is unbacked, and continue after it; False for
    another range or loop. Raises Unsupported where the loop cannot be captured."""
    values = cast(SymbolicRange, frame.stack[-1])
    at = frame.pc - 1
    jump = frame.user_code, at - frame.prologue, torch.is_grad_enabled()
    if not values.is_unbacked or frame.code.names[frame.pc] != "FOR_ITER" or not _captures(vm):
        return False
    state = vm.conditional_jumps
    if jump in vm.assumptions.uncaptured_jumps or state.depth >= _MAX_DEPTH:
        return False
    state.running = state.running or jump
    state.depth += 1
    captured = capture_range(vm, frame, values.bounds)
    state.depth -= 1
    if not state.depth:
        state.running = None
    state.captured += captured
    return captured


def _captures(vm: VM) -> bool:
    return vm.assumptions.captures_jumps and maybe_current_level() is None and control_flow.may_record(vm)


_PREFIX = "bool() of a tensor; its branches are not captured: "


def _why(reason: Reason, line: Line) -> str:
    """Why the branches of the jump at `line` are not captured."""
    if reason.kind is TENSOR_CONDITION and reason.detail.startswith(_PREFIX):
        return reason.detail
    where = "" if reason.line is None or reason.line == line else f", line {reason.line.line}"
    return f"{_PREFIX}{reason.detail}{where}"


def _may_capture(vm: VM, condition: object) -> bool:
    if type(condition) is UnbackedComparison:
        return control_flow.may_record(vm)
    if not tensor_item.is_unknown_element(vm, condition) or not control_flow.may_record(vm):
        return False
    return tensor_item.number(vm, cast(FakeTensor, condition)) is None


def _check_frame(vm: VM, frame: Frame, branches: Sequence[Branch], meeting_point: int | None) -> None:
    """Raise Unsupported for a class body, whose names are not joined, for branches that leave a `with`, which each would
    exit, and for the rest of a frame that is captured too often."""
    if frame.namespace is not None:
        raise refuse("they are in a class body")
    if meeting_point is None:
        stack = itertools.chain(*(branch.stack for branch in branches))
        values = (FakeTensor, NumberProxy, *LEAF_TYPES)
        if not all(hasattr(type(x), "__next__") or type(x) in values for x in stack):
            raise refuse("one leaves a `with`")
        vm.conditional_jumps.tails += 1
        if vm.conditional_jumps.tails > _MAX_TAILS:
            raise refuse(f"more than {_MAX_TAILS} conditions on tensors after which the function may end")


@dataclass
class _Left:
    """What a branch leaves: the stack and the variables where the branches meet (only the result, on the stack, if the frame
    ends), the changed contents of created objects, and what it stored into environment objects."""

    stack: list[object]
    slots: list[object]
    contents: dict[int, Contents]
    stores: dict[StoredKey, object]


def _captured(
    vm: VM, frame: Frame, pred: FakeTensor, branches: tuple[Branch, Branch], meeting_point: int | None
) -> Outcome:
    _check_frame(vm, frame, branches, meeting_point)
    created, environment = CreatedObjects(vm.env.sources.find, reachable_state(vm)), EnvironmentContents(vm)
    recorded, held = control_flow.begin_recording(vm), _held(vm)
    recorded.condition = pred
    joins, vm.env.log.joins_contents = vm.env.log.joins_contents, True
    left = []
    for branch in branches:
        iterators = IteratorCopies()
        stops = [] if meeting_point is None else [meeting_point]
        try:
            _, *end = run_copy(vm, frame, branch, stops, iterators)
        except MeetingPointMissed:
            created.take_contents()
            environment.take_contents()
            vm.env.log.joins_contents = joins
            control_flow.discard(vm, recorded)
            return _captured(vm, frame, pred, branches, None)
        stack, slots = ([*map(iterators.original, values)] for values in end)
        left.append(_Left(stack, slots, created.take_contents(), environment.take_contents()))
        recorded.marks.append(mark(vm.trace))
    recorded.marks.pop()
    vm.env.log.joins_contents = joins
    control_flow.check_quiet(vm, recorded)
    if _held(vm) != held:
        raise refuse("one changes what autograd or a cached function holds")
    changed = sorted(left[0].contents.keys() | left[1].contents.keys())
    stored = list(left[0].stores | left[1].stores)
    live = [] if meeting_point is None else live_variables(frame, meeting_point)

    def values(of: _Left) -> list[list[object]]:
        contents: list[object] = [of.contents.get(i, created.before[i]) for i in changed]
        stores = [of.stores[at] if at in of.stores else environment.now(at) for at in stored]
        return [of.stack, [of.slots[slot] for slot in live], contents, stores]

    try:
        both = map(values, left)
        joined = control_flow.join(vm, recorded, *both, is_statement=True, exists=created.exists)
    except Unjoinable as error:
        named = _naming_variable(vm, error, frame, live, *(each.slots for each in left))
        if meeting_point is None or vm.conditional_jumps.depth > _MAX_COPIED:
            raise named from None
        control_flow.discard(vm, recorded)
        try:
            return _captured(vm, frame, pred, branches, None)
        except Unjoinable:
            raise named from None
    stack, variables, contents, stores = cast("list[list[object]]", joined)
    for i, content in zip(changed, contents):
        created.set_contents(i, cast(Contents, content))
    environment.set_contents(dict(zip(stored, stores)))
    if meeting_point is None:
        (frame.result,) = stack
        return Outcome.ENDED
    frame.stack[:], frame.locals[:] = stack, _kept(left[0].slots, left[1].slots)
    for slot, value in zip(live, variables):
        frame.locals[slot] = value
    frame.pc = meeting_point
    return Outcome.MET


def _naming_variable(
    vm: VM,
    error: Unjoinable,
    frame: Frame,
    live: Sequence[int],
    if_true: Sequence[object],
    if_false: Sequence[object],
) -> Unjoinable:
    """The error of one of the `live` variables, with its name, if that is the cause. The last two arguments: the variables
    after each branch."""
    for slot in live:
        try:
            check_joinable(if_true[slot], if_false[slot], vm.assumptions.joins_numbers)
        except Unjoinable as found:
            name = frame.code.local_names[slot]
            return Unjoinable(replace(found.reason, detail=f"{found.reason.detail} in `{name}`"))
    return error


def _kept(slots: Sequence[object], others: Sequence[object]) -> list[object]:
    """The variables that are one object after both branches; NULL for others, which are dead or are joined. Raises
    Unsupported for one whose end may have an effect."""
    dropped = [v for a, b in zip(slots, others) if a is not b for v in (a, b) if v is not NULL]
    if any(map(has_finalizer, dropped)):
        raise refuse("they leave different objects with finalizers in a variable")
    return [a if a is b else NULL for a, b in zip(slots, others)]


def _held(vm: VM) -> list[int]:
    """Counts that grow when a branch has an effect that cannot be joined."""
    held, autograd = vm.held, vm.trace.autograd
    calls = (*(memo.calls for memo in held.memos.values()), *autograd.flag_calls.values())
    sizes = [len(held.repeatable), len(held.hooked), len(held.with_grad), len(held.resized), len(held.cells)]
    return [
        *sizes,
        len(held.containers),
        sum(len(cast("list[object]", c)) for c in calls),
        len(vm.trace.inputs.rebound),
    ]


# ---- where branches meet

_END = -1  # of the frame


def _meeting_point_of(code: Code, at: int) -> int | None:
    """`_meeting_point`, computed once."""
    if at not in code.meeting_points:
        code.meeting_points[at] = _meeting_point(code, at)
    return code.meeting_points[at]


def _meeting_point(code: Code, at: int) -> int | None:
    """The immediate post-dominator of the jump at `at`; None for the end of the frame. Paths that raise do not count.

    K. D. Cooper, T. J. Harvey, K. Kennedy: A Simple, Fast Dominance Algorithm (2001), on the reversed control flow graph."""
    before: dict[int, list[int]] = {}
    after: dict[int, list[int]] = {}
    pending = [at]
    while pending:
        now = pending.pop()
        if now in after:
            continue
        ends = code.names[now] in ("RETURN_VALUE", "RETURN_CONST")
        after[now] = [_END] if ends else successors(code, now)
        for following in after[now]:
            before.setdefault(following, []).append(now)
            if following != _END:
                pending.append(following)
    order = _postorder(before)
    number = {node: i for i, node in enumerate(order)}
    parents = {_END: _END}

    def common(a: int, b: int) -> int:
        while a != b:
            while number[a] < number[b]:
                a = parents[a]
            while number[b] < number[a]:
                b = parents[b]
        return a

    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            known = [n for n in after[node] if n in parents]
            parent = known[0]
            for other in known[1:]:
                parent = common(parent, other)
            if parents.get(node) != parent:
                parents[node], changed = parent, True
    found = parents.get(at, _END)
    return None if found == _END else found


def _postorder(before: dict[int, list[int]]) -> list[int]:
    """The instructions from which the frame's end is reached, in postorder of the reversed control flow graph."""
    order: list[int] = []
    seen = {_END}
    path = [(_END, iter(before.get(_END, ())))]
    while path:
        node, rest = path[-1]
        following = next((n for n in rest if n not in seen), None)
        if following is None:
            order.append(node)
            path.pop()
        else:
            seen.add(following)
            path.append((following, iter(before.get(following, ()))))
    return order
