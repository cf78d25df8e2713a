"""Jumps and loops."""

from __future__ import annotations

from smelt.capture.base.bytecode import ENDED_ITERATOR, LOOP_END, PY313, Handler
from smelt.capture.base.vm_frames import Frame
from smelt.capture.graph_breaks.finalizers import check_temporaries
from smelt.capture.interpreter.opcodes.opcode_table import HANDLERS, opcode
from smelt.capture.interpreter.opcodes.operator_opcodes import TRUE
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.semantics.values.asserted_conditions import assume_branch
from smelt.capture.torch_calls.conditional_jumps import Outcome, capture_branches, capture_range_loop
from smelt.capture.torch_calls.frame_copies import Branch
from smelt.capture.vm.vm import VM
from smelt.tracing.symbolic.symbolic_ranges import SymbolicRange


@opcode("JUMP_FORWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def _jump(vm: VM, frame: Frame, arg: int) -> None:
    if frame.code.original is not None and frame.pc == frame.prologue:
        check_temporaries(vm, frame, arg)
    frame.pc = arg


@opcode("JUMP_BACKWARD")
def _jump_back(vm: VM, frame: Frame, arg: int) -> None:
    _record_loop(vm, frame, arg)
    frame.pc = arg


def _record_loop(vm: VM, frame: Frame, head: int) -> None:
    """Record the first jump back to `head`. Raises Unsupported after many instructions without a new graph node."""
    if head not in frame.loops:
        frame.loops[head] = frame.ticks, len(vm.trace.tape.torch.graph.nodes)
    if vm.work.ticks + frame.ticks > vm.work.limit:
        vm.check_long_computation()


@opcode("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_IF_FALSE")
def _jump_if_false(vm: VM, frame: Frame, arg: int) -> bool | None:
    value = frame.stack[-1]
    if value is not True:
        holds = False if value is False or value is None else _truth(vm, frame, value, frame.pc, arg)
        if type(holds) is Outcome:
            return holds.value
        if not holds:
            frame.pc = arg
    frame.stack.pop()
    return None


@opcode("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_IF_TRUE")
def _jump_if_true(vm: VM, frame: Frame, arg: int) -> bool | None:
    value = frame.stack[-1]
    if value is not False and value is not None:
        holds = True if value is True else _truth(vm, frame, value, arg, frame.pc)
        if type(holds) is Outcome:
            return holds.value
        if holds:
            frame.pc = arg
    frame.stack.pop()
    return None


def _truth(vm: VM, frame: Frame, value: object, if_true: int, if_false: int) -> bool | Outcome:
    """`bool(value)`, or its assumed value, for a jump that pops it; what became of a jump whose branches were captured."""
    found = _decided(vm, frame, value, if_true, if_false)
    if type(found) is Outcome:
        return found
    vm.frames.set_call_site(frame)
    return vm.truth(value) if found is None else found


def _decided(vm: VM, frame: Frame, value: object, if_true: int, if_false: int) -> bool | Outcome | None:
    """The assumed value of a condition on top of the stack, which the jump pops, or what became of a jump whose branches
    were captured; else None."""
    holds = assume_branch(vm, frame, value, if_true, if_false)
    if holds is not None:
        return holds
    rest = frame.stack[:-1]
    return capture_branches(vm, frame, value, Branch(if_true, rest), Branch(if_false, rest))


@opcode("TO_BOOL")
def _to_bool(vm: VM, frame: Frame, arg: int) -> bool | None:
    """`bool(value)`. Before a jump, which takes only a bool, it is the jump."""
    value = frame.stack[-1]
    if type(value) is bool or (type(value) is NumberProxy and value.kind is bool):
        return None
    pc = frame.pc
    name, target = frame.code.names[pc], frame.instructions[pc][1]
    found = None
    if name in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"):
        if_true, if_false = (target, pc + 1) if name == "POP_JUMP_IF_TRUE" else (pc + 1, target)
        found = _decided(vm, frame, value, if_true, if_false)
    if type(found) is Outcome:
        return found.value
    vm.frames.set_call_site(frame, TRUE)
    frame.stack[-1] = vm.truth(value) if found is None else found
    return None


@opcode("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_IF_NONE")
def _jump_if_none(vm: VM, frame: Frame, arg: int) -> None:
    if _is_none(frame.stack[-1]):
        frame.pc = arg
    frame.stack.pop()


@opcode("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE")
def _jump_if_not_none(vm: VM, frame: Frame, arg: int) -> None:
    if not _is_none(frame.stack[-1]):
        frame.pc = arg
    frame.stack.pop()


def _is_none(value: object) -> bool:
    return value is None or (type(value) is OpaqueProxy and value.kind is type(None))


def _back_if(jump: Handler) -> Handler:
    """The handler of a conditional jump back, from that of the jump forward."""

    def handler(vm: VM, frame: Frame, arg: int) -> bool | None:
        ended: bool | None = jump(vm, frame, arg)
        if frame.pc == arg:
            _record_loop(vm, frame, arg)
        return ended

    return handler


for _condition in ("TRUE", "FALSE", "NONE", "NOT_NONE"):
    HANDLERS[f"POP_JUMP_BACKWARD_IF_{_condition}"] = _back_if(HANDLERS[f"POP_JUMP_FORWARD_IF_{_condition}"])


def _jump_or_pop(jumps_if: bool) -> Handler:
    """The handler of a jump that keeps a value of the truth `jumps_if`, and pops another one."""

    def handler(vm: VM, frame: Frame, arg: int) -> bool | None:
        kept, popped = Branch(arg, [*frame.stack]), Branch(frame.pc, frame.stack[:-1])
        branches = (kept, popped) if jumps_if else (popped, kept)
        outcome = capture_branches(vm, frame, frame.stack[-1], *branches)
        if outcome is not None:
            return outcome.value
        if vm.truth(frame.stack[-1]) is jumps_if:
            frame.pc = arg
        else:
            frame.stack.pop()
        return None

    return handler


opcode("JUMP_IF_FALSE_OR_POP")(_jump_or_pop(False))
opcode("JUMP_IF_TRUE_OR_POP")(_jump_or_pop(True))


@opcode("GET_ITER", "GET_YIELD_FROM_ITER")
def _get_iter(vm: VM, frame: Frame, arg: int) -> None:
    if type(frame.stack[-1]) is SymbolicRange and capture_range_loop(vm, frame):
        return
    vm.frames.set_call_site(frame)
    frame.stack[-1] = vm.get_iter(frame.stack[-1])


@opcode("FOR_ITER")
def _for_iter(vm: VM, frame: Frame, arg: int) -> None:
    try:
        value = vm.next(frame.stack[-1])
    except StopIteration:
        if not ENDED_ITERATOR:
            frame.stack.pop()
        frame.pc = arg + LOOP_END
        return
    frame.stack.append(value)


@opcode("END_FOR")
def _end_for(vm: VM, frame: Frame, arg: int) -> None:
    del frame.stack[-1 if PY313 else -2 :]
