"""The t-strings of CPython 3.14: templates and interpolations."""

from __future__ import annotations

from smelt.capture.base.value_kinds import INTERPOLATION, TEMPLATE
from smelt.capture.base.vm_frames import Frame
from smelt.capture.interpreter.opcodes.opcode_table import opcode
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OPCODE, Reason

_CONVERSIONS = (None, "s", "r", "a")


@opcode("BUILD_INTERPOLATION")
def _build_interpolation(vm: VM, frame: Frame, arg: int) -> None:
    count = 2 + (arg & 1)
    value, expression, *specs = frame.stack[-count:]
    spec = specs[0] if specs else ""
    if type(spec) is not str:  # a text proxy: the text of a tensor
        raise Unsupported(Reason(UNSUPPORTED_OPCODE, "a t-string with a format that is not known"))
    assert INTERPOLATION is not None
    frame.stack[-count:] = (INTERPOLATION(value, expression, _CONVERSIONS[arg >> 2], spec),)


@opcode("BUILD_TEMPLATE")
def _build_template(vm: VM, frame: Frame, arg: int) -> None:
    strings, interpolations = frame.stack[-2:]
    assert TEMPLATE is not None
    parts = [part for pair in zip(strings, interpolations) for part in pair]
    frame.stack[-2:] = (TEMPLATE(*parts, strings[-1]),)
