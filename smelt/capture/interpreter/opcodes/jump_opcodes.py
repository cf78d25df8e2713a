"""Jumps and loops."""

from __future__ import annotations

from smelt.capture.base.bytecode import ENDED_ITERATOR, LOOP_END, PY313, Handler
from smelt.capture.base.vm_frames import Frame
from smelt.capture.graph_breaks.finalizers import check_temporaries
from smelt.capture.interpreter.opcodes.opcode_table import HANDLERS, opcode
from smelt.capture.interpreter.opcodes.operator_opcodes import TRUE
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.semantics.values.asserted_conditions import assume_branch
from smelt.capture.vm.vm import VM


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
def _jump_if_false(vm: VM, frame: Frame, arg: int) -> None:
    value = frame.stack[-1]
    if value is not True and (value is False or value is None or not _truth(vm, frame, value, frame.pc, arg)):
        frame.pc = arg
    frame.stack.pop()


@opcode("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_IF_TRUE")
def _jump_if_true(vm: VM, frame: Frame, arg: int) -> None:
    value = frame.stack[-1]
    if value is True or (
        value is not False and value is not None and _truth(vm, frame, value, arg, frame.pc)
    ):
        frame.pc = arg
    frame.stack.pop()


def _truth(vm: VM, frame: Frame, value: object, if_true: int, if_false: int) -> bool:
    """`bool(value)`, or its assumed value."""
    holds = assume_branch(vm, frame, value, if_true, if_false)
    vm.frames.set_call_site(frame)
    return vm.truth(value) if holds is None else holds


@opcode("TO_BOOL")
def _to_bool(vm: VM, frame: Frame, arg: int) -> None:
    """`bool(value)`. Before a jump, which takes only a bool, it also applies the assumption about the jump's condition."""
    value = frame.stack[-1]
    if type(value) is bool:
        return
    pc = frame.pc
    name, target = frame.code.names[pc], frame.instructions[pc][1]
    holds = None
    if name == "POP_JUMP_IF_TRUE":
        holds = assume_branch(vm, frame, value, target, pc + 1)
    elif name == "POP_JUMP_IF_FALSE":
        holds = assume_branch(vm, frame, value, pc + 1, target)
    vm.frames.set_call_site(frame, TRUE)
    frame.stack[-1] = vm.truth(value) if holds is None else holds


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

    def handler(vm: VM, frame: Frame, arg: int) -> None:
        jump(vm, frame, arg)
        if frame.pc == arg:
            _record_loop(vm, frame, arg)

    return handler


for _condition in ("TRUE", "FALSE", "NONE", "NOT_NONE"):
    HANDLERS[f"POP_JUMP_BACKWARD_IF_{_condition}"] = _back_if(HANDLERS[f"POP_JUMP_FORWARD_IF_{_condition}"])


@opcode("JUMP_IF_FALSE_OR_POP")
def _jump_if_false_or_pop(vm: VM, frame: Frame, arg: int) -> None:
    if vm.truth(frame.stack[-1]):
        frame.stack.pop()
    else:
        frame.pc = arg


@opcode("JUMP_IF_TRUE_OR_POP")
def _jump_if_true_or_pop(vm: VM, frame: Frame, arg: int) -> None:
    if vm.truth(frame.stack[-1]):
        frame.pc = arg
    else:
        frame.stack.pop()


@opcode("GET_ITER", "GET_YIELD_FROM_ITER")
def _get_iter(vm: VM, frame: Frame, arg: int) -> None:
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
