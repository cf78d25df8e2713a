"""`sys._getframe` and `inspect.currentframe`: frame objects of the program.

The graph breaks before the call of the function that requests a frame. The frames around it belong to compiled frames:
during the call they look like the user's frames, but they have no locals, and afterwards they stay at that line. So the call
runs eagerly if the requesting function reads locals of its callers or may retain a frame.
"""

from __future__ import annotations

import inspect
import sys
import types
from typing import NoReturn

from smelt.capture.base.bytecode import SUSPENDABLE, Code
from smelt.capture.base.call_handlers import Args, Kwargs, builtin, function, unsupported
from smelt.capture.semantics.attributes.instance_attributes import READ_EFFECTS
from smelt.capture.vm.vm import VM

_LOADS = frozenset(("LOAD_FAST", "LOAD_FAST_CHECK"))
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD"))
_FRAME_FUNCTIONS = frozenset(("_getframe", "currentframe"))
_NAME_LOADS = _ATTRIBUTES | {"LOAD_GLOBAL", "LOAD_NAME"}
_CALL_PREFIXES = frozenset(("PUSH_NULL", "PRECALL"))
# Other instructions allowed on a frame: it is dropped, or compared with None.
_HARMLESS = frozenset(("POP_TOP", "LOAD_CONST", "TO_BOOL", "NOT_TAKEN"))


@builtin(sys._getframe)
@function(inspect.currentframe)
def _getframe(vm: VM, args: Args, kwargs: Kwargs) -> NoReturn:
    frame = vm.current_frame
    error = unsupported("sys._getframe")
    error.breaks = not _is_retained(frame.code, frame.pc, set(), is_own=not args or args[0] == 0)
    raise error


def _refuse_frame(vm: VM, frame: object) -> NoReturn:
    """Frames of a traceback never ran: they have no locals and no caller."""
    error = unsupported("the locals or the caller of a traceback's frame")
    error.breaks = False
    raise error


for _name in ("f_back", "f_locals"):
    READ_EFFECTS[vars(types.FrameType)[_name]] = _refuse_frame


def retains_frames(code: Code) -> bool:
    """Whether the code calls `sys._getframe` or `inspect.currentframe`, by these names, and retains the frame or reads its
    locals. A graph break may precede the call."""
    for at, (_, argument) in enumerate(code.instructions):
        called = argument[0] if type(argument) is tuple and argument else argument
        if type(called) is str and called in _FRAME_FUNCTIONS and code.names[at] in _NAME_LOADS:
            call = next((i for i in range(at, len(code.names)) if code.names[i] == "CALL"), None)
            is_own = call is not None and all(n in _CALL_PREFIXES for n in code.names[at + 1 : call])
            if call is None or _is_retained(code, call + 1, set(), is_own):
                return True
    return False


def _is_retained(code: Code, at: int, variables: set[int], is_own: bool) -> bool:
    """Whether a frame on top of the stack before instruction `at` may outlive this call, or another frame's locals are read.
    `variables`: local variables already visited."""
    name, argument = code.names[at], code.instructions[at][1]
    if name in _ATTRIBUTES:
        attribute = argument if name == "LOAD_METHOD" else argument[0]
        if attribute == "f_back":
            return _is_retained(code, at + 1, variables, is_own=False)
        return attribute == "f_locals" and not is_own
    # a generator's variables survive its suspension
    if name == "STORE_FAST" and not code.flags & SUSPENDABLE:
        if argument in variables:
            return False
        variables.add(argument)
        loads = [i for i, n in enumerate(code.names) if n in _LOADS and code.instructions[i][1] == argument]
        return any(_is_retained(code, i + 1, variables, is_own) for i in loads)
    return name not in _HARMLESS and "JUMP" not in name
