"""Closure cells. The cells of an environment function's closure are environment objects."""

from __future__ import annotations

from smelt.capture.base.value_kinds import MISSING, CellType, FunctionType, cell_value
from smelt.capture.base.vm_frames import Frame
from smelt.capture.environment import wrap_values
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OBJECT, Reason


def read_closure_cell(vm: VM, function: FunctionType, cell: CellType, index: int) -> object:
    """Contents of the cell at index `at` of an environment function's closure, guarded."""
    value = vm.cells.values.get(id(cell), MISSING)
    if value is MISSING:
        source = vm.env.sources.const(function).child("cell", index)
        value = vm.cells.values[id(cell)] = wrap_values.wrap(vm.env, cell.cell_contents, source)
    return value


def has_contents(vm: VM, cell: CellType) -> bool:
    """True for an environment cell with contents. Raises Unsupported for an empty cell, which no guard can check."""
    if cell_value(cell) is MISSING:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, "an empty cell of the environment"))
    return True


def read_cell_object(vm: VM, cell: CellType) -> object:
    """Contents of a cell object that is itself an environment object."""
    value = vm.cells.values.get(id(cell), MISSING)
    if value is MISSING:
        source = vm.env.sources[id(cell)].child("member", "cell_contents")
        value = vm.cells.values[id(cell)] = wrap_values.wrap(vm.env, cell.cell_contents, source)
    return value


def is_cell_written(vm: VM, cell: CellType) -> bool:
    """Whether the trace has changed the cell."""
    return vm.env.log.has_written_cell(cell)


def write_cell(vm: VM, frame: Frame, arg: int, value: object) -> None:
    """Store `value` in the cell in slot `arg`; MISSING empties the cell."""
    cell, position = frame.locals[arg], closure_position(vm, frame, arg)
    if position is None and id(cell) not in vm.env.sources:
        if value is MISSING:
            del cell.cell_contents
        else:
            cell.cell_contents = value
        return
    vm.env.log.set_cell(cell, value)
    if position is not None:
        _register_closure_cell(vm, position[0], cell, position[1])


def _register_closure_cell(vm: VM, function: FunctionType, cell: CellType, index: int) -> None:
    vm.env.sources.register(
        cell, vm.env.sources.const(function).child("member", "__closure__").child("item", index)
    )


def register_cells(vm: VM, frame: Frame) -> None:
    """Register the closure cells of the frame's function if it is an environment object."""
    if id(frame.function) in vm.env.sources:
        for index, cell in enumerate(frame.function.__closure__ or ()):
            _register_closure_cell(vm, frame.function, cell, index)


def register_function(vm: VM, fn: FunctionType) -> None:
    """Record a function created by the trace. Its globals are environment objects unless the trace created them."""
    vm.env.sources.register_created_function(fn)
    if id(fn.__globals__) not in vm.scopes.created:
        vm.env.sources.const(fn.__globals__)


def register_closure(vm: VM, frame: Frame, fn: FunctionType) -> None:
    """Record a function created in `frame` by the trace. Its closure may share environment cells with the frame."""
    register_function(vm, fn)
    closure_ids = {id(c) for c in fn.__closure__ or ()}
    if not closure_ids or id(frame.function) not in vm.env.sources:
        return
    first = frame.code.nlocals - frame.code.nfree
    for index, cell in enumerate(frame.locals[first:]):
        if id(cell) in closure_ids:
            vm.cells.owners[id(cell)] = (frame.function, index)
            _register_closure_cell(vm, frame.function, cell, index)


def closure_position(vm: VM, frame: Frame, arg: int) -> tuple[FunctionType, int] | None:
    """The environment function with the cell in slot `arg`, and the index there; None if the trace created the cell."""
    first = frame.code.nlocals - frame.code.nfree
    if arg < first:
        return None
    if id(frame.function) in vm.env.sources:
        return frame.function, arg - first
    return vm.cells.owners.get(id(frame.locals[arg]))


def cell_contents(vm: VM, frame: Frame, slot: int) -> object:
    """Contents of the cell in slot `at`; MISSING if it is empty."""
    cell = frame.locals[slot]
    if not is_cell_written(vm, cell):
        position = closure_position(vm, frame, slot)
        if position is not None and has_contents(vm, cell):
            return read_closure_cell(vm, position[0], cell, position[1])
        if id(cell) in vm.env.sources and has_contents(vm, cell):
            return read_cell_object(vm, cell)
    return vm.env.overlay.cell(cell)
