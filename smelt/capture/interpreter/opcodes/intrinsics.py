"""The opcodes of 3.12 for intrinsic functions."""

from __future__ import annotations

from smelt.capture.base.frames import Frame
from smelt.capture.interpreter.opcodes.exceptions import prep_reraise_star
from smelt.capture.interpreter.opcodes.table import opcode
from smelt.capture.machine.vm import VM
from smelt.capture.protocol import intrinsics
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OPCODE, Reason


@opcode("CALL_INTRINSIC_1")
def _call_intrinsic_1(vm: VM, frame: Frame, arg: int) -> None:
    handler = intrinsics.UNARY.get(arg)
    if handler is None:
        raise Unsupported(Reason(UNSUPPORTED_OPCODE, f"CALL_INTRINSIC_1 {arg}"))
    frame.stack[-1] = handler(frame.globals, frame.stack[-1])


@opcode("CALL_INTRINSIC_2")
def _call_intrinsic_2(vm: VM, frame: Frame, arg: int) -> None:
    if arg == intrinsics.PREP_RERAISE_STAR:
        return prep_reraise_star(vm, frame, arg)
    handler = intrinsics.BINARY.get(arg)
    if handler is None:
        raise Unsupported(Reason(UNSUPPORTED_OPCODE, f"CALL_INTRINSIC_2 {arg}"))
    frame.stack[-2:] = (handler(frame.globals, *frame.stack[-2:]),)
