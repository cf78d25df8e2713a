"""What each bytecode instruction does: one handler per opcode, `handler(vm, frame, argument)`, a module per family.

A handler returns True when the frame is done (its result is in `frame.result`), else None. Operands leave the stack after
the operation has succeeded. Importing the package fills `HANDLERS`, the table of the CPython versions that are supported:
those of 3.11 to 3.14 stand side by side.
"""

from smelt.capture.interpreter.opcodes import (
    awaiting,
    containers,
    exceptions,
    functions,
    intrinsics,
    jumps,
    names,
    operations,
    patterns,
    stack,
    text_templates,
)
from smelt.capture.interpreter.opcodes.table import HANDLERS, unknown

__all__ = [
    "HANDLERS",
    "awaiting",
    "containers",
    "exceptions",
    "functions",
    "intrinsics",
    "jumps",
    "names",
    "operations",
    "patterns",
    "stack",
    "text_templates",
    "unknown",
]
