"""Loops that a condition on a tensor ends: `while error.max() > tolerance: ...` as one node of the graph.

At a jump that enters such a loop, the VM runs its body in copies of the frame: first to find the variables that change,
then on proxies of them. Tensors keep their layouts; ints and floats become numbers that 0-d tensors hold
(`held_numbers.py`), and so does the next number of a `for` loop over a range.

A loop may have several tests that leave it (`while a and b`, `break`). A step computes all of them and then selects, for
each variable, its value at the first test that fails. So what follows a test must not raise. Loops over other iterators are
nested branches (`conditional_jumps.py`), or break the graph.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import torch

from smelt._native import isinstance
from smelt.capture.base.bytecode import ENDED_ITERATOR
from smelt.capture.base.value_kinds import LEAF_TYPES, NULL
from smelt.capture.base.vm_frames import Frame
from smelt.capture.graph_breaks.finalizers import has_finalizer
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.semantics import held_numbers
from smelt.capture.semantics.values.asserted_conditions import assume
from smelt.capture.torch_calls import control_flow, loop_nodes
from smelt.capture.torch_calls.branch_effects import CreatedObjects, EnvironmentContents, IteratorCopies
from smelt.capture.torch_calls.frame_copies import Branch, live_variables, reachable_state, run_copy
from smelt.capture.torch_calls.loop_statements import LoopStatement, Test, exhausted, range_loop, statement_at
from smelt.capture.torch_calls.subgraph_capture import refuse
from smelt.capture.vm.vm import VM
from smelt.errors import FEW_STEPS
from smelt.guards.leaf_equality import same_leaf
from smelt.ops.may_raise import must_run
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.sym_nodes import Symbol
from smelt.tracing.symbolic.unbacked_numbers import HeldNumber

_MAX_PASSES = 8  # to find the variables that change, and the numbers that operators receive
_MAX_UNROLLED = 15  # further steps of a `for` loop over a range, which are nested branches
_RANGE_ITERATOR = type(iter(range(0)))


def capture_loop(vm: VM, frame: Frame, condition: FakeTensor, if_true: Branch, if_false: Branch) -> bool:
    """Capture the loop that starts at the current jump, and continue after it; False if none starts there. Raises
    Unsupported for a loop that cannot be captured."""
    jump = frame.pc - (frame.code.names[frame.pc - 1] != "TO_BOOL")
    for body, end, goes_on in ((if_true, if_false, True), (if_false, if_true, False)):
        statement = statement_at(frame.code, jump, body.at, end.at)
        if statement is not None:
            holds = condition if goes_on else _negated(vm, condition)
            return _Loop(vm, frame, statement, body, end).capture(holds)
    return False


def capture_range(vm: VM, frame: Frame, bounds: Sequence[object]) -> bool:
    """Capture the `for` loop over a range with these bounds, whose iterator the current instruction takes, and continue
    after it; False if the loop cannot be one node, so that the caller handles it. Raises Unsupported for a loop that
    breaks the graph."""
    statement = range_loop(frame.code, frame.pc)
    if statement is None:
        return False
    body = Branch(frame.pc + 1, [*frame.stack])
    end = Branch(exhausted(frame.code, frame.pc), frame.stack[: len(frame.stack) - 1 + ENDED_ITERATOR])
    loop = _Loop(vm, frame, statement, body, end, _Range(*cast("tuple[object, object, int]", bounds)))
    return loop.capture(None)


def _negated(vm: VM, condition: FakeTensor) -> FakeTensor:
    return cast(FakeTensor, vm.call_native(torch.logical_not, (condition,)))


def _both(vm: VM, a: FakeTensor, b: FakeTensor) -> FakeTensor:
    return cast(FakeTensor, vm.call_native(torch.logical_and, (a, b)))


@dataclass(frozen=True)
class _Exit:
    """A test that data decide: whether the loop goes on, as a 0-d tensor, and the variables there."""

    goes_on: FakeTensor
    values: list[object]


@dataclass
class _Carried:
    """What changes in a loop, by position in the list of variables: the proxies of tensors, and numbers. `computed`: numbers
    computed from these that operators receive. `first`: the tensors with which the loop begins, in this order.
    `differentiable`: some require gradients. `proxies`: in the step that is being recorded. `kept`: the variables that keep
    their tensors where the first test ends the loop. `shared`: the ids of tensors that are the value of several
    variables."""

    slots: list[int] = field(default_factory=list)
    numbers: dict[int, HeldNumber] = field(default_factory=dict)
    computed: list[Symbol] = field(default_factory=list)
    first: list[FakeTensor] = field(default_factory=list)
    differentiable: bool = False
    proxies: dict[int, FakeTensor] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)
    shared: set[int] = field(default_factory=set)


class _Range(NamedTuple):
    """The numbers that a loop takes."""

    start: object
    stop: object
    step: int

    @property
    def is_short(self) -> bool:
        """Whether its loop is unrolled."""
        start, stop, step = self
        plain = type(start) is int and type(stop) is int
        return plain and len(range(cast(int, start), cast(int, stop), step)) <= _MAX_UNROLLED


class _Loop:
    """A loop that is captured in a frame. Its variables are those of the frame, and the next number of its range."""

    def __init__(
        self,
        vm: VM,
        frame: Frame,
        statement: LoopStatement,
        body: Branch,
        end: Branch,
        values: _Range | None = None,
    ) -> None:
        """`values`: the range of a loop that begins with the next of them."""
        self._vm = vm
        self._frame = frame
        self._statement = statement
        self._body = body
        self._stop: FakeTensor | None = None
        self._end = end
        self._begins_with_item = values is not None
        if values is None and statement.iterates and body.stack:
            values = _remaining(vm, body.stack[-1])
        self._range = values

    def capture(self, condition: FakeTensor | None) -> bool:
        """Capture the loop, whose condition holds first if `condition` is true; None: that of its range."""
        vm, frame = self._vm, self._frame
        if self._statement.iterates and (self._range is None or self._range.is_short):
            return False
        if frame.namespace is not None:
            raise refuse("a loop in a class body")
        if self._range is not None and type(self._range.stop) is not int:
            self._stop = held_numbers.tensor_of(vm, self._range.stop)
        entered = self._first_comparison() if condition is None else self._enter(condition)
        if entered is None:
            return False
        before = [*frame.locals, None if self._range is None else self._range.start]
        live = {*live_variables(frame, self._body.at), *live_variables(frame, self._end.at)}
        if self._range is not None:
            live.add(len(frame.locals))
        carried = _Carried()
        for _ in range(_MAX_PASSES):
            carried.first = [*self._first(carried, before), entered]
            recorded = control_flow.begin_recording(vm)
            proxies = control_flow.proxies(vm, carried.first, carried.differentiable)
            inside = self._inside(carried, before, proxies)
            carried.proxies, carried.kept = dict(zip(carried.slots, proxies)), set()
            exits, last = self._step(inside)
            if not exits:
                vm.trace.numbers.drop(vm.trace.numbers.computed_from(carried.numbers.values()))
                control_flow.discard(vm, recorded)
                return False
            found = self._changes(carried, live, inside, [*(e.values for e in exits), last])
            if not found:
                return self._finish(recorded, carried, proxies, exits, inside, last)
            control_flow.discard(vm, recorded)
        raise refuse("other variables of the loop change in each of its steps")

    def _enter(self, condition: FakeTensor) -> FakeTensor | None:
        """The condition of the first step, a 0-d tensor, which further tests before the loop may be part of; None where the
        loop does not run then."""
        vm, frame = self._vm, self._frame
        whole = _scalar(vm, condition)
        for test in self._statement.entry:
            start = len(vm.trace.tape.entries)
            _, stack, slots = run_copy(vm, frame, self._body, [test.at], IteratorCopies())
            if any(a is not b for a, b in zip(slots, frame.locals)) or self._may_raise(start):
                raise refuse("a further condition of the loop assigns a variable, or may raise")
            goes_on = self._outcome(test, stack[-1])
            if goes_on is False:
                return None
            if goes_on is not True:
                whole = _both(vm, whole, goes_on)
            self._body = Branch(test.stays, stack[:-1])
        return whole

    def _first_comparison(self) -> FakeTensor:
        assert self._range is not None
        goes_on = self._outcome(Test(0, 0, True, iterates=True), None, self._range.start)
        if type(goes_on) is FakeTensor:
            return goes_on
        return cast(FakeTensor, self._vm.call_native(torch.full, ((), goes_on), {"dtype": torch.bool}))

    def _may_raise(self, start: int) -> bool:
        return any(must_run(entry.node) for entry in self._vm.trace.tape.entries[start:])

    def _first(self, carried: _Carried, before: Sequence[object]) -> list[FakeTensor]:
        """The tensors with which the loop begins."""
        vm = self._vm
        first = {
            slot: held_numbers.first_tensor(vm, before[slot], self._name(slot)) for slot in carried.numbers
        }
        held = {number: first[slot] for slot, number in carried.numbers.items()}
        computed = [held_numbers.tensor_of(vm, symbol.number(), held) for symbol in carried.computed]
        return [
            *(cast(FakeTensor, first.get(slot, before[slot])) for slot in carried.slots),
            *computed,
        ]

    def _inside(
        self, carried: _Carried, before: Sequence[object], proxies: Sequence[FakeTensor]
    ) -> list[object]:
        """The variables within a step."""
        inside = [*before]
        for slot, proxy in zip(carried.slots, proxies):
            held = carried.numbers.get(slot)
            if held is not None:
                held.carrier = proxy
            inside[slot] = proxy if held is None else held_numbers.symbolic(self._vm, held)
        return inside

    def _changes(
        self, carried: _Carried, live: set[int], inside: Sequence[object], after: Sequence[Sequence[object]]
    ) -> bool:
        """Whether more variables change than those carried, or operators receive more numbers. Adds these. Raises
        Unsupported for a variable that cannot be carried."""
        changed = [s for s in sorted(live) if any(not _is_same(v[s], inside[s]) for v in after)]
        added = [slot for slot in changed if slot not in carried.slots]
        for slot in added:
            values = [inside[slot], *(v[slot] for v in after)]
            if all(map(held_numbers.is_number, values)):
                carried.numbers[slot] = held_numbers.held_number(self._vm, self._name(slot), inside[slot])
            elif not all(type(value) is FakeTensor for value in values):
                raise refuse(
                    f"`{self._name(slot)}` changes in the loop, and is neither always a tensor nor always a number"
                )
            carried.differentiable |= torch.is_grad_enabled() and any(
                type(value) is FakeTensor and value.requires_grad for value in values
            )
        carried.slots += added
        numbers = self._vm.trace.numbers
        received = numbers.computed_from(carried.numbers.values())
        known = {symbol.expression for symbol in carried.computed}
        symbols = [n.symbol for n in received if "torch" in n.nodes]
        computed = [s for s in symbols if s.expression.op != "leaf" and s.expression not in known]
        carried.computed += computed
        turned = [
            held_numbers.set_least(number, [v[slot] for v in after])
            for slot, number in carried.numbers.items()
        ]
        found = bool(added or computed) or any(turned)
        if found:
            numbers.drop(received)
        return found

    def _name(self, slot: int) -> str:
        names = self._frame.code.local_names
        return names[slot] if slot < len(names) else "the range"

    # ---- one step

    def _step(self, variables: Sequence[object]) -> tuple[list[_Exit], list[object]]:
        """The tests of a step that data decide, and the variables at its end; no tests where the loop is not captured as
        one: it advances an iterator, or ends."""
        vm, frame = self._vm, self._frame
        *slots, following = variables
        branch, exits, start = self._body, list[_Exit](), None
        if self._begins_with_item:
            branch, following = self._with_item(branch, following)
        while True:
            created, environment = (
                CreatedObjects(vm.env.sources.find, reachable_state(vm)),
                EnvironmentContents(vm),
            )
            iterators = IteratorCopies()
            if any(hasattr(type(x), "__next__") and iterators.copy(x) is x for x in branch.stack):
                return [], []
            at, stack, slots = run_copy(vm, frame, branch, [*self._statement.tests], iterators, slots)
            if iterators.advanced(stack):
                return [], []
            stack, slots = ([*map(iterators.original, values)] for values in (stack, slots))
            if created.take_contents() or environment.take_contents():
                raise refuse("a step of the loop changes an object")
            test = self._statement.tests[at]
            goes_on = self._outcome(test, stack[-1], following)
            if goes_on is False:
                return [], []
            if goes_on is not True:
                exits.append(_Exit(goes_on, [*slots, following]))
                start = len(vm.trace.tape.entries) if start is None else start
            if test.is_last:
                break
            branch = Branch(test.stays, stack if test.iterates else stack[:-1])
            if test.iterates:
                branch, following = self._with_item(branch, following)
        added = [] if start is None else vm.trace.tape.entries[start:]
        self._is_smooth = all(str(getattr(e.node.target, "_opname", "")) in _SMOOTH for e in added)
        if start is not None and self._may_raise(start):
            raise refuse("a step of the loop may raise after a condition that ends the loop")
        return exits, [*slots, following]

    def _with_item(self, branch: Branch, following: object) -> tuple[Branch, object]:
        """A branch with the next number of the range on the stack, and the number after it."""
        assert self._range is not None
        after = self._vm.binary(operator.add, following, self._range.step)
        return Branch(branch.at, [*branch.stack, following]), after

    def _outcome(self, test: Test, value: object, following: object = None) -> bool | FakeTensor:
        """Whether the loop goes on after a test: a bool, or a 0-d tensor where data decide."""
        vm = self._vm
        if test.iterates:
            assert self._range is not None
            rises = self._range.step > 0
            if self._stop is not None:
                number = held_numbers.tensor_of(vm, following)
                value = vm.call_native(torch.lt if rises else torch.gt, (number, self._stop))
            else:
                value = vm.binary(operator.lt if rises else operator.gt, following, self._range.stop)
        elif isinstance(value, NumberProxy):
            value = value.condition()
        elif held_numbers.is_held(value):
            value = vm.binary(operator.ne, value, 0)
        condition = control_flow.as_condition(vm, value)
        if type(condition) is not FakeTensor:
            return vm.truth(condition) is test.if_true
        if condition.elem.numel() != 1 or condition.subclass is not None:
            raise refuse("a condition of the loop is not a tensor of one element")
        goes_on = _scalar(vm, condition)
        return goes_on if test.if_true else _negated(vm, goes_on)

    # ---- the end

    def _finish(
        self,
        recorded: control_flow.RecordedPair,
        carried: _Carried,
        proxies: Sequence[FakeTensor],
        exits: Sequence[_Exit],
        inside: Sequence[object],
        last: Sequence[object],
    ) -> bool:
        """Record the loop, and continue after it."""
        vm, frame = self._vm, self._frame
        existing = control_flow.ExistingTensors(vm, recorded.marks[0].entries, proxies)
        for state in (*(e.values for e in exits), last):
            ids = [id(state[slot]) for slot in carried.slots]
            carried.shared |= {i for i in ids if ids.count(i) > 1}
        results = [self._selected(carried, slot, exits, last, existing) for slot in carried.slots]
        by_slot = dict(zip(carried.slots, results))
        held = {number: by_slot[slot] for slot, number in carried.numbers.items()}
        results += (held_numbers.tensor_of(vm, symbol.number(), held) for symbol in carried.computed)
        results.append(_whole_condition(vm, exits))
        received = vm.trace.numbers.computed_from(carried.numbers.values())
        proxy_of = {
            symbol.expression: p for symbol, p in zip(carried.computed, proxies[len(carried.slots) :])
        }
        proxy_of |= {
            held_numbers.leaf_of(vm, n): cast(FakeTensor, n.carrier) for n in carried.numbers.values()
        }
        numbers = {n.nodes["torch"]: proxy_of[n.symbol.expression] for n in received if "torch" in n.nodes}
        names = [None if slot in carried.numbers else self._name(slot) for slot in carried.slots]
        kept = frozenset(i for i, slot in enumerate(carried.slots) if slot in carried.kept)
        finals, enough = loop_nodes.end_loop(
            vm, recorded, carried.first, proxies, results, names, numbers, (kept, exits[0].goes_on)
        )
        if enough is not None and not assume(vm, frame, enough, FEW_STEPS):
            raise refuse("gradients of a loop whose number of steps cannot be checked")
        self._check_dropped(carried, inside, last)
        vm.trace.numbers.drop(received)
        before = [*frame.locals]
        frame.locals[:] = [b if _is_same(a, b) else NULL for a, b in zip(last, before)]
        for slot, final in zip(carried.slots, finals):
            if slot < len(before):
                number = carried.numbers.get(slot)
                frame.locals[slot] = final if number is None else held_numbers.final_number(number, final)
        if carried.numbers:
            vm.env.numbers.has_proxies = True
        frame.stack[:], frame.pc = self._end.stack, self._end.at
        return True

    def _selected(
        self,
        carried: _Carried,
        slot: int,
        exits: Sequence[_Exit],
        last: Sequence[object],
        existing: control_flow.ExistingTensors,
    ) -> FakeTensor:
        """The value of a variable after a step: that at the first test that ends the loop, or that at the end."""
        number = carried.numbers.get(slot)
        if number is not None:
            for values in (*(e.values for e in exits), last):
                held_numbers.check_next(values[slot], number, self._name(slot))
        value, chosen = last[slot], self._tensor(last[slot], number)
        for test in reversed(exits):
            other = test.values[slot]
            if not _is_same(other, value):
                if number is None:
                    self._check_selected(
                        carried, slot, chosen, test is exits[0], cast(FakeTensor, other), existing
                    )
                operands = (test.goes_on, chosen, self._tensor(other, number))
                value = chosen = cast(FakeTensor, self._vm.call_native(torch.where, operands))
        return chosen

    def _check_selected(
        self,
        carried: _Carried,
        slot: int,
        chosen: FakeTensor,
        is_first: bool,
        other: FakeTensor,
        existing: control_flow.ExistingTensors,
    ) -> None:
        """Raise Unsupported where later code could tell the selected tensor from the one that eager has. A variable may
        keep its value at the first test that ends the loop: it is the tensor from before the loop if no step passes this
        test."""
        keeps = is_first and other is carried.proxies.get(slot)
        shared = any(id(t) in carried.shared for t in (chosen, other))
        is_read = slot in live_variables(self._frame, self._end.at)
        if is_read and (shared or existing.shares(chosen) or (existing.shares(other) and not keeps)):
            raise refuse(f"which tensor `{self._name(slot)}` is depends on the test that ends the loop")
        if keeps:
            carried.kept.add(slot)
        if carried.differentiable and chosen.requires_grad and not self._is_smooth:
            raise refuse(
                "a step of the loop may have infinite derivatives after a condition that ends the loop"
            )

    def _tensor(self, value: object, number: HeldNumber | None) -> FakeTensor:
        return cast(FakeTensor, value) if number is None else held_numbers.tensor_of(self._vm, value)

    def _check_dropped(self, carried: _Carried, inside: Sequence[object], last: Sequence[object]) -> None:
        dropped = [
            v
            for slot, v in enumerate(last)
            if not _is_same(v, inside[slot]) and slot not in carried.slots and v is not NULL
        ]
        if any(map(has_finalizer, dropped)):
            raise refuse("a variable of the loop holds an object with a finalizer")


# Operators with finite derivatives: a gradient of zero stays zero.
_SMOOTH = frozenset(
    (
        "add", "sub", "rsub", "mul", "neg", "tanh", "sigmoid", "sin", "cos", "relu", "gelu", "silu", "abs", "mm", "addmm",
        "bmm", "baddbmm", "mv", "addmv", "dot", "sum", "mean", "amax", "amin", "max", "min", "maximum", "minimum", "where",
        "clamp", "clamp_min", "clamp_max", "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand",
        "unsqueeze", "squeeze", "select", "slice", "clone", "detach", "alias", "_to_copy", "full", "zeros_like",
        "ones_like", "zeros", "ones", "scalar_tensor", "lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or",
        "logical_not", "bitwise_and", "any", "all", "_softmax", "cat", "stack",
    )
)  # fmt: skip


def _whole_condition(vm: VM, exits: Sequence[_Exit]) -> FakeTensor:
    return functools.reduce(functools.partial(_both, vm), (e.goes_on for e in exits))


def _scalar(vm: VM, condition: FakeTensor) -> FakeTensor:
    return cast(FakeTensor, vm.call_native(torch.Tensor.reshape, (condition, ())))


def _is_same(a: object, b: object) -> bool:
    return a is b or (type(a) in LEAF_TYPES and same_leaf(a, b))


def _remaining(vm: VM, iterator: object) -> _Range | None:
    """What an iterator over a range still gives; None for another iterator, and one that the environment holds."""
    if type(iterator) is not _RANGE_ITERATOR or id(iterator) in vm.env.sources:
        return None
    _, (whole,), *state = cast("tuple[object, tuple[range], int]", iterator.__reduce__())
    left = whole[state[0] or 0 :] if state else whole
    return _Range(left.start, left.stop, left.step)
