"""Constants, the stack, local variables and cells."""

from __future__ import annotations

from smelt.capture.base.value_kinds import MISSING, NULL, CellType
from smelt.capture.base.vm_frames import Frame
from smelt.capture.graph_breaks.finalizers import check_dropped_argument
from smelt.capture.interpreter.opcodes.opcode_table import HANDLERS, opcode
from smelt.capture.semantics import cells
from smelt.capture.vm.vm import VM

HANDLERS.update(
    PUSH_NULL=lambda vm, frame, arg: frame.stack.append(NULL),
    COPY=lambda vm, frame, arg: frame.stack.append(frame.stack[-arg]),
    LOAD_CONST=lambda vm, frame, arg: frame.stack.append(arg),
    LOAD_SMALL_INT=lambda vm, frame, arg: frame.stack.append(arg),
    LOAD_COMMON_CONSTANT=lambda vm, frame, arg: frame.stack.append(arg),
    LOAD_CLOSURE=lambda vm, frame, arg: frame.stack.append(frame.locals[arg]),
    LOAD_DEREF=lambda vm, frame, arg: frame.stack.append(_load_cell(vm, frame, arg)),
)


@opcode("NOP", "RESUME", "CACHE", "PRECALL", "NOT_TAKEN")
def _nop(vm: VM, frame: Frame, arg: int) -> None:
    pass


@opcode("POP_TOP", "POP_ITER")
def _pop_top(vm: VM, frame: Frame, arg: int) -> None:
    if frame.code.original is not None:
        check_dropped_argument(vm, frame, frame.stack[-1], frame.locals)
    frame.stack.pop()


@opcode("SWAP")
def _swap(vm: VM, frame: Frame, arg: int) -> None:
    stack = frame.stack
    stack[-1], stack[-arg] = stack[-arg], stack[-1]


_UNBOUND = "cannot access local variable {!r} where it is not associated with a value"


@opcode("LOAD_FAST", "LOAD_FAST_CHECK")
def _load_fast(vm: VM, frame: Frame, arg: int) -> None:
    value = frame.locals[arg]
    if value is NULL:
        raise UnboundLocalError(_UNBOUND.format(frame.code.local_names[arg]))
    frame.stack.append(value)


@opcode("LOAD_FAST_AND_CLEAR")
def _load_fast_and_clear(vm: VM, frame: Frame, arg: int) -> None:
    frame.stack.append(frame.locals[arg])
    frame.locals[arg] = NULL


@opcode("STORE_FAST")
def _store_fast(vm: VM, frame: Frame, arg: int) -> None:
    if frame.code.original is not None:
        check_dropped_argument(vm, frame, frame.locals[arg], frame.stack)
    frame.locals[arg] = frame.stack.pop()


@opcode("DELETE_FAST")
def _delete_fast(vm: VM, frame: Frame, arg: int) -> None:
    _load_fast(vm, frame, arg)
    frame.stack.pop()
    check_dropped_argument(vm, frame, frame.locals[arg])
    frame.locals[arg] = NULL


@opcode("MAKE_CELL")
def _make_cell(vm: VM, frame: Frame, arg: int) -> None:
    value = frame.locals[arg]
    frame.locals[arg] = CellType() if value is NULL else CellType(value)


@opcode("COPY_FREE_VARS")
def _copy_free_vars(vm: VM, frame: Frame, arg: int) -> None:
    frame.locals[frame.code.nlocals - arg :] = frame.function.__closure__ or ()


def _load_cell(vm: VM, frame: Frame, arg: int) -> object:
    value = cells.cell_contents(vm, frame, arg)
    if value is MISSING:
        raise _unbound_cell(frame, arg)
    return value


def _unbound_cell(frame: Frame, arg: int) -> NameError:
    name = frame.code.local_names[arg]
    if arg < frame.code.nlocals - frame.code.nfree:
        return UnboundLocalError(_UNBOUND.format(name))
    return NameError(
        f"cannot access free variable {name!r} where it is not associated with a value in enclosing scope",
        name=name,
    )


@opcode("LOAD_CLASSDEREF")
def _load_classderef(vm: VM, frame: Frame, arg: int) -> None:
    found = frame.namespace.get(frame.code.local_names[arg], MISSING)
    frame.stack.append(_load_cell(vm, frame, arg) if found is MISSING else found)


@opcode("LOAD_FROM_DICT_OR_DEREF")
def _load_from_dict_or_deref(vm: VM, frame: Frame, arg: int) -> None:
    found = frame.stack[-1].get(frame.code.local_names[arg], MISSING)
    frame.stack[-1] = _load_cell(vm, frame, arg) if found is MISSING else found


@opcode("STORE_DEREF")
def _store_deref(vm: VM, frame: Frame, arg: int) -> None:
    cells.write_cell(vm, frame, arg, frame.stack[-1])
    frame.stack.pop()


@opcode("DELETE_DEREF")
def _delete_deref(vm: VM, frame: Frame, arg: int) -> None:
    _load_cell(vm, frame, arg)
    cells.write_cell(vm, frame, arg, MISSING)
