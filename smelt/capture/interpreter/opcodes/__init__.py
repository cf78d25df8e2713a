"""Opcode handlers, `handler(vm, frame, argument)`, one module per family.

A handler returns True when the frame is done (its result is in `frame.result`), else None. It pops its operands after the
operation has succeeded. Importing the package fills `HANDLERS`, one table for CPython 3.11 to 3.14.
"""

from smelt.capture.interpreter.opcodes import (
    await_opcodes,
    container_opcodes,
    exception_opcodes,
    function_opcodes,
    intrinsic_opcodes,
    jump_opcodes,
    match_opcodes,
    name_opcodes,
    operator_opcodes,
    stack_opcodes,
    template_string_opcodes,
)
from smelt.capture.interpreter.opcodes.opcode_table import HANDLERS, unknown

__all__ = [
    "HANDLERS", "await_opcodes", "container_opcodes", "exception_opcodes", "function_opcodes", "intrinsic_opcodes",
    "jump_opcodes", "match_opcodes", "name_opcodes", "operator_opcodes", "stack_opcodes", "template_string_opcodes",
    "unknown",
]  # fmt: skip
