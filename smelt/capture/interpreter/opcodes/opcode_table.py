"""The table that the modules of this package fill, and its entry for opcodes that have none."""

from __future__ import annotations

from collections.abc import Callable

from smelt.capture.base.bytecode import Handler
from smelt.capture.base.vm_frames import Frame
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OPCODE, Reason

HANDLERS: dict[str, Handler] = {}


def opcode(*names: str) -> Callable[[Handler], Handler]:
    """Registers a handler for the opcodes of these names."""

    def add(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return add


def unknown(name: str) -> Handler:
    """The handler of an opcode that has none: it refuses to be captured."""

    def refuse(vm: VM, frame: Frame, arg: int) -> object:
        raise Unsupported(Reason(UNSUPPORTED_OPCODE, name))

    return refuse
