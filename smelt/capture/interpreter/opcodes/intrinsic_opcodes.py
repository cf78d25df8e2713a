"""The opcodes of 3.12 for intrinsic functions."""

from __future__ import annotations

from smelt.capture.base.vm_frames import Frame
from smelt.capture.interpreter.opcodes.exception_opcodes import prep_reraise_star
from smelt.capture.interpreter.opcodes.opcode_table import HANDLERS, opcode
from smelt.capture.reconstruction.constants import note_type_variable
from smelt.capture.semantics.values import intrinsics
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OPCODE, Reason

OPCODES = {5: "UNARY_POSITIVE", 6: "LIST_TO_TUPLE"}  # intrinsics with one operand that are opcodes of 3.11


@opcode("CALL_INTRINSIC_1")
def _call_intrinsic_1(vm: VM, frame: Frame, arg: int) -> object:
    if arg in OPCODES:
        return HANDLERS[OPCODES[arg]](vm, frame, arg)
    handler = intrinsics.UNARY.get(arg)
    if handler is None:
        raise Unsupported(Reason(UNSUPPORTED_OPCODE, f"CALL_INTRINSIC_1 {arg}"))
    frame.stack[-1] = note_type_variable(handler(frame.globals, frame.stack[-1]))
    return None


@opcode("CALL_INTRINSIC_2")
def _call_intrinsic_2(vm: VM, frame: Frame, arg: int) -> None:
    if arg == intrinsics.PREP_RERAISE_STAR:
        return prep_reraise_star(vm, frame, arg)
    handler = intrinsics.BINARY.get(arg)
    if handler is None:
        raise Unsupported(Reason(UNSUPPORTED_OPCODE, f"CALL_INTRINSIC_2 {arg}"))
    frame.stack[-2:] = (note_type_variable(handler(frame.globals, *frame.stack[-2:])),)
