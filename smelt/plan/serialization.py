"""Serialization of plans. docs/plan.md documents the header and the encoding of values.

Machine code is stored as the object files that LLVM emitted. Reading executes nothing: kernels are linked when the
plan is made executable, on a processor that has the features they use.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence

import torch

from smelt.errors import PlanError, VerificationError
from smelt.graph.ir import TensorSpec
from smelt.plan.arena_placement import Interval
from smelt.plan.machine_code import Block, Function, Library, Processor
from smelt.plan.steps import Alloc, Aten, BumpVersion, Free, Launch, ParallelLaunch, Plan, Reg, View
from smelt.plan.symbolic_plan import SymbolicPlan
from smelt.plan.type_conformance import fields_of
from smelt.plan.value_encoding import Reader, Writer
from smelt.plan.verify_plan import verify
from smelt.shapes.expr import Size

MAGIC = b"smeltpln"
VERSION = 7  # of the form: raised with each change of what follows, also of the meaning of a step
HEADER = struct.Struct("<8sIIQ")  # magic, version, CRC-32 of the body, bytes of the body

# Number of a record -> its class, and its fields in order.
RECORDS: dict[int, tuple[type, tuple[str, ...]]] = {
    1: (Reg, ("index",)),
    2: (TensorSpec, ("shape", "stride", "dtype", "device", "offset", "requires_grad")),
    3: (Alloc, ("out", "shape", "stride", "dtype", "device", "arena", "over")),
    4: (View, ("out", "src", "shape", "stride", "offset", "user_visible")),
    5: (Launch, ("kernel", "regs", "extent", "grain", "note", "by_value", "device", "sizes")),
    6: (ParallelLaunch, ("launches", "work", "grain", "note")),
    7: (Aten, ("op", "args", "kwargs", "outs", "note", "expect", "user_visible")),
    8: (BumpVersion, ("regs",)),
    9: (Free, ("regs",)),
    10: (Processor, ("triple", "name", "features")),
    11: (Block, ("threads", "shared", "parts")),
    12: (Interval, ("key", "nbytes", "begin", "end")),
}
_NUMBERS = {cls: (number, fields) for number, (cls, fields) in RECORDS.items()}
# A library: its processor, object files, exports, and where among the libraries each imported symbol is defined.
LibraryFields = tuple[Processor, tuple[bytes, ...], tuple[str, ...], dict[str, int]]
# Of a plan with symbolic sizes: its conditions, intervals and alignment.
Sized = tuple[tuple[tuple[Size, bool], ...], tuple[Interval, ...], int]
# Fields of a plan, in order, behind torch's version, the libraries and the kernels.
PLAN = (
    "n_inputs", "constants", "n_registers", "steps", "outputs", "arena_bytes", "release_gil", "numbers", "device",
    "on_host", "title",
)  # fmt: skip


def to_bytes(plan: Plan) -> bytes:
    """`plan` with its constants and machine code. Raises PlanError for values without a serialized form (a random
    generator as an argument, a constant that is not on the CPU)."""
    writer = Writer(_NUMBERS)
    writer.value(str(torch.__version__))
    _write_plan(writer, plan, _write_libraries(writer, [plan]))
    body = bytes(writer.data)
    return HEADER.pack(MAGIC, VERSION, zlib.crc32(body), len(body)) + body


def plans_to_bytes(plans: Sequence[Plan | SymbolicPlan]) -> tuple[bytes, list[bytes]]:
    """Several plans that share their libraries, without headers: the libraries, and each plan. Raises as `to_bytes`."""
    inner = [plan.plan if isinstance(plan, SymbolicPlan) else plan for plan in plans]
    writer = Writer(_NUMBERS)
    index = _write_libraries(writer, inner)
    written = []
    for plan, steps in zip(plans, inner):
        of_plan = Writer(_NUMBERS)
        _write_plan(of_plan, steps, index)
        sized = (plan.conditions, plan.intervals, plan.alignment) if isinstance(plan, SymbolicPlan) else None
        of_plan.value(sized)
        written.append(bytes(of_plan.data))
    return bytes(writer.data), written


def libraries_from_bytes(data: bytes) -> list[Library]:
    """The libraries that `plans_to_bytes` wrote, importers last. Raises PlanError as `from_bytes`."""
    reader = Reader(data, RECORDS)
    libraries = _read_libraries(reader)
    _require_end(reader)
    return libraries


def plan_from_bytes(data: bytes, libraries: Sequence[Library]) -> Plan | SymbolicPlan:
    """A plan that `plans_to_bytes` wrote. Raises PlanError as `from_bytes`."""
    reader = Reader(data, RECORDS)
    plan = _read_fields(reader, libraries)
    sized = reader.like(Sized | None, "what a plan knows of sizes")
    _require_end(reader)
    return plan if sized is None else SymbolicPlan(plan, *sized)


def _require_end(reader: Reader) -> None:
    if not reader.at_end():
        raise PlanError("bytes behind the plan")


def _write_libraries(writer: Writer, plans: Sequence[Plan]) -> Mapping[Library, int]:
    """The positions of the libraries that these plans need."""
    libraries = _in_order({f.library: None for plan in plans for f in plan.kernels.values()})
    index = {library: i for i, library in enumerate(libraries)}
    writer.value([_library_fields(library, index) for library in libraries])
    return index


def _write_plan(writer: Writer, plan: Plan, index: Mapping[Library, int]) -> None:
    writer.value({symbol: (index[f.library], f.name, f.block) for symbol, f in plan.kernels.items()})
    for field in PLAN:
        writer.value(getattr(plan, field))


def from_bytes(data: bytes) -> Plan:
    """The plan that `to_bytes` wrote. Raises PlanError for other bytes: another format or version, missing or damaged
    bytes, a plan of another version of torch, operators that are not registered in this process."""
    reader = Reader(_body(data), RECORDS)
    try:
        plan = _read_plan(reader)
        verify(plan)
    except VerificationError as error:
        raise PlanError(f"no plan, although the checksum holds: {error}") from error
    if not reader.at_end():
        raise PlanError("bytes behind the plan")
    return plan


def _body(data: bytes) -> bytes:
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise PlanError("these bytes are no plan of smelt")
    _, version, checksum, length = HEADER.unpack_from(data)
    if version != VERSION:
        raise PlanError(f"a plan of version {version}; this smelt reads version {VERSION}")
    body = data[HEADER.size :]
    if len(body) != length:
        raise PlanError(f"{length} bytes of plan are expected, {len(body)} are there")
    if zlib.crc32(body) != checksum:
        raise PlanError("the checksum of the plan does not hold: the bytes are damaged")
    return body


def _read_plan(reader: Reader) -> Plan:
    version = reader.of(str)
    if version != str(torch.__version__):
        raise PlanError(f"a plan made with torch {version}; operators of {torch.__version__} may differ")
    return _read_fields(reader, _read_libraries(reader))


def _read_libraries(reader: Reader) -> list[Library]:
    libraries: list[Library] = []
    for processor, objects, exports, imports in reader.of(list[LibraryFields]):
        libraries.append(
            Library(processor, objects, exports, {s: _at(libraries, i) for s, i in imports.items()})
        )
    return libraries


def _read_fields(reader: Reader, libraries: Sequence[Library]) -> Plan:
    kernels = {
        symbol: _exported(_at(libraries, i), name, block)
        for symbol, (i, name, block) in reader.of(dict[str, tuple[int, str, Block | None]]).items()
    }
    declared = fields_of(Plan)
    return Plan(kernels=kernels, **{field: reader.like(declared[field], field) for field in PLAN})


def _exported(library: Library, name: str, block: Block | None) -> Function:
    if name not in library.exports:
        raise PlanError(f"a library without the function {name}")
    return Function(library, name, block)


def _at(libraries: Sequence[Library], index: int) -> Library:
    if not 0 <= index < len(libraries):
        raise PlanError(f"no library {index}")
    return libraries[index]


def _library_fields(library: Library, index: Mapping[Library, int]) -> LibraryFields:
    imports = {symbol: index[other] for symbol, other in library.imports.items()}
    return library.processor, library.objects, library.exports, imports


def _in_order(libraries: Iterable[Library]) -> Sequence[Library]:
    """The libraries and all that they import, importers last."""
    ordered: dict[Library, None] = {}

    def add(library: Library) -> None:
        if library not in ordered:
            for other in library.imports.values():
                add(other)
            ordered[library] = None

    for library in libraries:
        add(library)
    return list(ordered)
