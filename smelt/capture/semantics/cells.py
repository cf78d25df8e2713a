"""Cells: variables that functions share. Those in the closure of a function from outside are environment objects."""

from __future__ import annotations

from smelt.capture.base.value_kinds import MISSING, CellType, FunctionType, cell_value
from smelt.capture.base.vm_frames import Frame
from smelt.capture.environment import wrap_values
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OBJECT, Reason


def read_cell(vm: VM, function: FunctionType, cell: CellType, at: int) -> object:
    """The contents of the cell at index `at` of the closure of an outside function, guarded."""
    value = vm.cells.values.get(id(cell), MISSING)
    if value is MISSING:
        source = vm.env.sources.const(function).child("cell", at)
        value = vm.cells.values[id(cell)] = wrap_values.wrap(vm.env, cell.cell_contents, source)
    return value


def holds_value(vm: VM, cell: CellType) -> bool:
    """True for a cell from outside that holds something. Raises Unsupported for an empty one: no guard says that it is."""
    if cell_value(cell) is MISSING:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, "an empty cell from outside"))
    return True


def read_held_cell(vm: VM, cell: CellType) -> object:
    """The contents of a cell that is itself a value from outside."""
    value = vm.cells.values.get(id(cell), MISSING)
    if value is MISSING:
        source = vm.env.sources[id(cell)].child("member", "cell_contents")
        value = vm.cells.values[id(cell)] = wrap_values.wrap(vm.env, cell.cell_contents, source)
    return value


def cell_written(vm: VM, cell: CellType) -> bool:
    """Whether the trace has changed the cell."""
    return vm.env.log.touches_cell(cell)


def write_cell(vm: VM, frame: Frame, arg: int, value: object) -> None:
    """Stores in the cell in a slot; MISSING empties it."""
    cell, place = frame.locals[arg], cell_place(vm, frame, arg)
    if place is None and id(cell) not in vm.env.sources:
        if value is MISSING:
            del cell.cell_contents
        else:
            cell.cell_contents = value
        return
    vm.env.log.set_cell(cell, value)
    if place is not None:
        _register_cell(vm, place[0], cell, place[1])


def _register_cell(vm: VM, function: FunctionType, cell: CellType, at: int) -> None:
    vm.env.sources.register(
        cell, vm.env.sources.const(function).child("member", "__closure__").child("item", at)
    )


def register_cells(vm: VM, frame: Frame) -> None:
    """Registers the cells in the closure of the frame's function, if that is from outside."""
    if id(frame.function) in vm.env.sources:
        for at, cell in enumerate(frame.function.__closure__ or ()):
            _register_cell(vm, frame.function, cell, at)


def function_made(vm: VM, made: FunctionType) -> None:
    """Notes a function that the trace made. Its globals, if the trace did not make them, stay those that they are."""
    vm.env.facts.made_function(made)
    if id(made.__globals__) not in vm.scopes.made:
        vm.env.sources.const(made.__globals__)


def made_function(vm: VM, frame: Frame, made: FunctionType) -> None:
    """Notes a function that the trace made in `frame`: of the cells in its closure, those that are from outside stay so."""
    function_made(vm, made)
    own = {id(c) for c in made.__closure__ or ()}
    if not own or id(frame.function) not in vm.env.sources:
        return
    first = frame.code.nlocals - frame.code.nfree
    for at, cell in enumerate(frame.locals[first:]):
        if id(cell) in own:
            vm.cells.places[id(cell)] = (frame.function, at)
            _register_cell(vm, frame.function, cell, at)


def cell_place(vm: VM, frame: Frame, arg: int) -> tuple[FunctionType, int] | None:
    """The function from outside whose closure holds a cell, and where; None for a cell that the trace made."""
    first = frame.code.nlocals - frame.code.nfree
    if arg < first:
        return None
    if id(frame.function) in vm.env.sources:
        return frame.function, arg - first
    return vm.cells.places.get(id(frame.locals[arg]))


def cell_contents(vm: VM, frame: Frame, at: int) -> object:
    """What the cell in a slot holds; MISSING if it is empty."""
    cell = frame.locals[at]
    if not cell_written(vm, cell):
        place = cell_place(vm, frame, at)
        if place is not None and holds_value(vm, cell):
            return read_cell(vm, place[0], cell, place[1])
        if id(cell) in vm.env.sources and holds_value(vm, cell):
            return read_held_cell(vm, cell)
    return vm.env.overlay.cell(cell)
