"""The handler table, which the modules of this package fill, and the handler of unsupported opcodes."""

from __future__ import annotations

from collections.abc import Callable

from smelt.capture.base.bytecode import Handler
from smelt.capture.base.vm_frames import Frame
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OPCODE, Reason

HANDLERS: dict[str, Handler] = {}


def opcode(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for these opcodes."""

    def add(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return add


def unknown(name: str) -> Handler:
    """The handler of an unsupported opcode: it raises Unsupported."""

    def refuse(vm: VM, frame: Frame, arg: int) -> object:
        raise Unsupported(Reason(UNSUPPORTED_OPCODE, name))

    return refuse
