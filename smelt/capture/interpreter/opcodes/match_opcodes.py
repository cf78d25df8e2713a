"""`match` statements."""

from __future__ import annotations

from smelt.capture.base.vm_frames import Frame
from smelt.capture.interpreter.opcodes.opcode_table import HANDLERS, opcode
from smelt.capture.semantics.values import match_statement
from smelt.capture.vm.vm import VM

HANDLERS.update(
    GET_LEN=lambda vm, frame, arg: frame.stack.append(vm.call(len, (frame.stack[-1],), {})),
    MATCH_SEQUENCE=lambda vm, frame, arg: frame.stack.append(match_statement.is_sequence(frame.stack[-1])),
    MATCH_MAPPING=lambda vm, frame, arg: frame.stack.append(match_statement.is_mapping(frame.stack[-1])),
    MATCH_KEYS=lambda vm, frame, arg: frame.stack.append(match_statement.match_keys(vm, *frame.stack[-2:])),
)


@opcode("MATCH_CLASS")
def _match_class(vm: VM, frame: Frame, arg: int) -> None:
    subject, cls, names = frame.stack[-3:]
    frame.stack[-3:] = (match_statement.match_class(vm, subject, cls, arg, names),)
