"""Exceptions and context managers."""

from __future__ import annotations

from smelt._native import isinstance
from smelt.capture.base.bytecode import EXIT_DEPTH
from smelt.capture.base.value_kinds import MISSING, unbound_callable
from smelt.capture.base.vm_frames import Frame, PreviousException
from smelt.capture.graph_breaks.break_instructions import not_a_manager_text
from smelt.capture.interpreter.opcodes.opcode_table import HANDLERS, opcode
from smelt.capture.semantics import attributes
from smelt.capture.semantics.values import raise_exceptions
from smelt.capture.vm.vm import VM

HANDLERS.update(
    RERAISE=lambda vm, frame, arg: vm.reraise(frame.stack[-1]),
    LOAD_ASSERTION_ERROR=lambda vm, frame, arg: frame.stack.append(AssertionError),
)


@opcode("PUSH_EXC_INFO")
def _push_exc_info(vm: VM, frame: Frame, arg: int) -> None:
    error = frame.stack.pop()
    frame.stack += (PreviousException(frame.handled), error)
    frame.handled = error


@opcode("POP_EXCEPT")
def _pop_except(vm: VM, frame: Frame, arg: int) -> None:
    frame.handled = frame.stack.pop().error


@opcode("CHECK_EXC_MATCH")
def _check_exc_match(vm: VM, frame: Frame, arg: int) -> None:
    classes = raise_exceptions.check_classes(frame.stack[-1])
    frame.stack[-1] = raise_exceptions.matches(frame.stack[-2], classes)


@opcode("CHECK_EG_MATCH")
def _check_eg_match(vm: VM, frame: Frame, arg: int) -> None:
    match, rest = raise_exceptions.split_group(vm, *frame.stack[-2:])
    frame.stack[-2:] = (rest, match)
    if match is not None:
        frame.handled = match


@opcode("PREP_RERAISE_STAR")
def prep_reraise_star(vm: VM, frame: Frame, arg: int) -> None:
    """Replace both operands by the exception that remains to be raised after the clauses of `except*`, or None."""
    frame.stack[-2:] = (raise_exceptions.combine_raised(vm, *frame.stack[-2:]),)


@opcode("RAISE_VARARGS")
def _raise_varargs(vm: VM, frame: Frame, arg: int) -> None:
    handled = vm.handled_exception()
    if arg == 0 and handled is not None:
        vm.reraise(handled)
    if arg == 0:
        raise RuntimeError("No active exception to reraise")
    raised = frame.stack[-arg]
    error = raise_exceptions.create_exception(vm, raised if vm.class_of(raised) else None)
    if arg == 2:
        raise_exceptions.set_cause(vm, error, frame.stack[-1])
    if isinstance(error, KeyboardInterrupt):
        vm.exceptions.program_interrupt = error
    vm.exceptions.in_flight = None  # so that an exception that is raised again gets a new context
    raise error


def context_methods(vm: VM, manager: object, a: str = "", kind: str = "") -> tuple[object, object]:
    """`__enter__` and `__exit__` of a manager, with `a` before their names. Raises the TypeError of 3.13 and earlier."""
    enter, leave = (attributes.load_special(vm, manager, f"__{a}{name}__") for name in ("enter", "exit"))
    if enter is MISSING or leave is MISSING:
        missed = "" if enter is MISSING else f" (missed __{a}exit__ method)"
        name = vm.class_of(manager).__name__
        raise TypeError(f"{name!r} object does not support the {kind}context manager protocol{missed}")
    return enter, leave


@opcode("BEFORE_WITH")
def _before_with(vm: VM, frame: Frame, arg: int) -> None:
    enter, leave = context_methods(vm, frame.stack[-1])
    frame.pending_exit = (leave,)
    vm.frames.set_call_site(frame)
    entered = vm.call(enter, (), {})
    frame.pending_exit = ()
    frame.stack[-1:] = (leave, entered)


@opcode("WITH_EXCEPT_START")
def _with_except_start(vm: VM, frame: Frame, arg: int) -> None:
    error, leave = frame.stack[-1], frame.stack[-EXIT_DEPTH]
    frame.stack.append(vm.call(leave, (type(error), error, error.__traceback__), {}))


@opcode("LOAD_SPECIAL")
def _load_special(vm: VM, frame: Frame, arg: str) -> None:
    """Load the special methods of a `with` statement of 3.14."""
    owner = frame.stack[-1]
    found = attributes.load_special(vm, owner, arg)
    if found is MISSING:
        raise TypeError(not_a_manager_text(vm.class_of(owner), arg))
    frame.stack[-1:] = unbound_callable(found)
