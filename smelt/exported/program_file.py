"""The file of an exported program: sections with checksums. docs/export.md has its grammar; native/exported/ reads it.

Every byte but the padding between sections is covered by a checksum.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from smelt import _native
from smelt.autograd.node_data import Layout, NodeData, SavedValue
from smelt.errors import PlanError, ProgramError
from smelt.exported.input_checks import NumberOf, Path, Rule, SizeRule, TensorRule
from smelt.exported.result_nest import ResultNode
from smelt.exported.weights_file import Weight, storable, write_weights
from smelt.graph.ir import TensorSpec
from smelt.plan import value_encoding
from smelt.plan.value_encoding import decode
from smelt.runtime.whole_files import written_whole

MAGIC = b"smeltprg"
VERSION = 4  # of the format; `read` also takes files of version 3
ALIGNMENT = 64  # of each section, and of each weight in its section
HEADER = struct.Struct(
    "<8sIIQI"
)  # magic, version, number of sections, bytes of the file, CRC-32 of header and table
ENTRY = struct.Struct("<16sQQI")  # name, offset, bytes, CRC-32
WEIGHTS = b"weights"


@dataclass(frozen=True)
class Parameter:
    """A parameter of the signature. `kind` is inspect's; `default` counts where `is_stored`: others have no form."""

    name: str
    kind: int
    has_default: bool
    is_stored: bool
    default: Any


@dataclass(frozen=True)
class BackwardData:
    """The backward for the tangents `defined`. `reach`: how far it computes; `donated`: the inputs that it may free."""

    graph: int
    defined: tuple[int, ...]
    reach: int
    donated: tuple[int, ...]


@dataclass(frozen=True)
class Gradients(NodeData):
    """How a method is differentiated. `backwards`: for all tangents of a group and for each alone."""

    backwards: tuple[BackwardData, ...]


@dataclass(frozen=True)
class Method:
    """One callable of a program: how arguments become inputs of a graph, and its outputs a result.

    `n_args` and `keywords`: how the example passed its arguments. `inputs`: for each input of the graph a path in the
    arguments, the name of a tensor of the state, or a number. `examples`: the sizes of the example. `differentiated`: the
    inputs that may require grad. `gradients`: None if calls compute none; otherwise `graph` is a forward.
    """

    name: str
    graph: int
    signature: tuple[Parameter, ...]
    n_args: int
    keywords: tuple[str, ...]
    rules: tuple[TensorRule | Rule, ...]
    sizes: tuple[SizeRule, ...]
    examples: tuple[int, ...]
    inputs: tuple[str | Path | NumberOf, ...]
    stores: tuple[tuple[str, int], ...]
    result: tuple[ResultNode, ...]
    differentiated: tuple[int, ...]
    gradients: Gradients | None


@dataclass(frozen=True)
class Ref:
    """A node as an argument of a later one."""

    index: int


@dataclass(frozen=True)
class GraphNode:
    """A node of an aten graph (`graph/ir.py`). `target`: an operator, "getitem", or the name of a constant; `line`: file,
    line and function of the user's code."""

    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str
    spec: Any
    line: tuple[str, int, str] | None


@dataclass(frozen=True)
class GraphData:
    """An aten graph; `constants`: the tensors of the state that hold its constants, by name."""

    nodes: tuple[GraphNode, ...]
    constants: dict[str, str]


@dataclass(frozen=True)
class InnerGraphs:
    """The graphs inside a graph (`graph/subgraphs.py`), in an argument of a node. `rule`: `stored_name`; that of a loop has
    `carried` values."""

    rule: str
    carried: int
    graphs: tuple[GraphData, ...]


@dataclass(frozen=True)
class StepGraphs(InnerGraphs):
    """The graphs of a loop that take numbers in tensors, or of its backward. `held`: for each graph, these tensors."""

    held: tuple[tuple[int, ...], ...]
    tangents: int


@dataclass(frozen=True)
class TargetData:
    """The plans of a graph for one kind of processor: `needs` are the features of its instructions, as Linux names them.
    `code` is the section of the machine code, `plans` those of the plans, best first; `constants`: for each, the tensors of
    the state that are its constants."""

    graph: int
    triple: str
    needs: tuple[str, ...]
    torch: str
    code: str
    plans: tuple[str, ...]
    constants: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Tables:
    """What a call needs besides plans and weights. `producer`: versions of what wrote the program."""

    producer: dict[str, str]
    methods: tuple[Method, ...]
    targets: tuple[TargetData, ...]

    @property
    def constants(self) -> set[str]:
        """The names of the tensors of the state that are constants of plans."""
        return {name for target in self.targets for names in target.constants for name in names}


@dataclass(frozen=True)
class Contents:
    """The contents of a program's file: its tables, the sections of its graphs and plans, and its state."""

    tables: Tables
    packed: Mapping[str, bytes]
    state: Mapping[str, torch.Tensor] = field(repr=False)

    def graph(self, number: int) -> GraphData:
        """A graph, decoded. Raises ProgramError, also for an operator that this process does not have."""
        name = f"graph.{number}"
        try:
            graph: GraphData = decode(self.section(name), RECORDS)
        except PlanError as error:
            raise ProgramError(f"{name}: {error}") from error
        return graph

    def section(self, name: str) -> bytes:
        """A section of a graph, of plans or of machine code. Raises ProgramError if it is missing or damaged."""
        try:
            return _native.unpacked(self.stored(name))
        except ValueError as error:
            raise ProgramError(str(error)) from error

    def stored(self, name: str) -> bytes:
        """A section in its stored form. Raises ProgramError if it is missing."""
        if name not in self.packed:
            raise ProgramError(f"no section {name}")
        return self.packed[name]


RECORDS: dict[int, tuple[type, tuple[str, ...]]] = {
    number: (cls, tuple(f.name for f in fields(cls)))
    for number, cls in {
        1: Parameter, 2: Method, 3: Ref, 4: GraphNode, 5: GraphData, 6: TargetData, 7: Weight, 8: Tables, 9: TensorRule,
        10: Rule, 11: SizeRule, 12: ResultNode, 13: TensorSpec,
        14: NumberOf, 15: Layout, 16: SavedValue, 17: BackwardData, 18: Gradients, 19: InnerGraphs, 20: StepGraphs,
    }.items()
}  # fmt: skip
_NUMBERS = {cls: (number, fields) for number, (cls, fields) in RECORDS.items()}


def encoded(value: Any) -> bytes:
    """A value as bytes. Raises PlanError for a value without an encoding."""
    return value_encoding.encoded(value, _NUMBERS)


def as_read(tables: Tables) -> Tables:
    """The tables as `read` returns them, with the symbols of serialized plans."""
    read: Tables = decode(encoded(tables), RECORDS)
    return read


def is_constant(value: Any) -> bool:
    """Whether a program can hold this value and compare others to it: it is read from a file as what it was."""
    if type(value) in (tuple, list):
        return all(map(is_constant, value))
    if type(value) is dict:
        return all(map(is_constant, (*value.keys(), *value.values())))
    kinds = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.layout)
    return type(value) in kinds and can_be_encoded(value)


def can_be_encoded(value: Any) -> bool:
    """Whether a program can hold this constant."""
    try:
        return len(encoded(value)) < 1 << 20
    except (PlanError, UnicodeEncodeError):
        return False


def write(
    path: str | os.PathLike[str], contents: Contents, weights: str | os.PathLike[str] | None = None
) -> None:
    """Write a program, whole or not at all. `weights`: a safetensors file, written first, for the weights that it can hold
    (`weights_file.storable`). Raises OSError, and ProgramError for a tensor that is not strided, or is on neither a CPU
    nor a CUDA device, and where both files are one."""
    if weights is not None and os.path.realpath(weights) == os.path.realpath(path):
        raise ProgramError(f"{os.fspath(path)}: a program and its weights are two files")
    all_storages, views = _stored(contents.state)
    external: dict[int, Weight] = {}
    if weights is not None:
        external = storable(views, contents.tables.constants)
        write_weights(weights, {view.name: contents.state[view.name] for view in external.values()})
    spans: list[tuple[Any, ...]] = []
    storages, size = [], 0
    for number, storage in enumerate(all_storages):
        device = () if storage.device.type == "cpu" else (storage.device,)
        if number in external:
            spans.append((external[number].name, *device))
            continue
        storages.append(storage)
        spans.append((size, storage.nbytes(), *device))
        size = _aligned(size + storage.nbytes())
    placed = tuple(replace(view, offset=0) if view.storage in external else view for view in views)
    table = encoded((placed, tuple(spans)))
    sections: dict[bytes, Sequence[bytes | memoryview]] = {
        b"tables": (encoded(contents.tables),),
        **{name.encode(): (data,) for name, data in contents.packed.items()},
        b"state": (table,),
        WEIGHTS: [part for s in storages for part in (_memory(s), bytes(_aligned(s.nbytes()) - s.nbytes()))],
    }
    at, rows = _aligned(HEADER.size + ENTRY.size * len(sections)), b""
    starts = []
    for name, parts in sections.items():
        length = sum(len(part) for part in parts)
        rows += ENTRY.pack(name, at, length, _checksum(parts))
        starts.append((at, parts))
        at = _aligned(at + length)
    start = MAGIC, VERSION, len(sections), at
    header = HEADER.pack(*start, 0)
    header = HEADER.pack(*start, zlib.crc32(header + rows))
    with written_whole(path) as file:
        file.write(header + rows)
        for offset, parts in starts:
            file.write(bytes(offset - file.tell()))
            for part in parts:
                file.write(part)
        file.write(bytes(at - file.tell()))


def read(path: str | os.PathLike[str], weights: str | os.PathLike[str] | None = None) -> Contents:
    """Map a program (native/exported/program_file.cpp). Weights are views of the mapped file, or of the file `weights`;
    writes to them do not change the files. Raises OSError, and ProgramError for another file or a damaged one."""
    try:
        other = None if weights is None else os.fsencode(weights)
        sections, state = _native.read_program(os.fspath(path), other)
        tables: Tables = decode(sections.pop("tables"), RECORDS)
    except (ValueError, PlanError, RuntimeError) as error:  # RuntimeError: torch has no such device
        raise ProgramError(f"{os.fspath(path)}: {error}") from error
    return Contents(tables, sections, dict(state))


def _stored(state: Mapping[str, torch.Tensor]) -> tuple[list[Any], list[Weight]]:
    """The storages of the state, and its tensors as views of them."""
    storages: dict[int, tuple[int, Any]] = {}
    weights = []
    for name, tensor in state.items():
        if tensor.device.type not in ("cpu", "cuda") or tensor.layout is not torch.strided:
            raise ProgramError(
                f"the weight {name} is on {tensor.device} with layout {tensor.layout}: programs hold strided "
                "tensors on CPUs and NVIDIA GPUs"
            )
        storage = tensor.untyped_storage()
        number, _ = storages.setdefault(storage.data_ptr() or id(storage), (len(storages), storage))
        weights.append(
            Weight(
                name,
                number,
                tensor.dtype,
                tuple(tensor.shape),
                tensor.stride(),
                int(tensor.storage_offset()),
                tensor.requires_grad and tensor.is_leaf,
            )
        )
    return [storage for _, storage in storages.values()], weights


def _memory(storage: Any) -> memoryview:
    """The bytes of a storage, not copied."""
    if not storage.nbytes():
        return memoryview(b"")
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
    array: Any = whole.set_(storage, 0, (storage.nbytes(),), (1,)).cpu().numpy()
    return memoryview(array)


def _checksum(parts: Sequence[bytes | memoryview]) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum


def _aligned(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT
