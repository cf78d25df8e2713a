"""The typed data of a report. Its text, its JSON and its HTML page derive from a `Report` alone.

JSON objects have the fields as keys, in this order: docs/api.md shows them, page/src/data.ts reads them. Tuples
are in order of time, sizes in bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

# Notes on `Reason.cost_ms` and on a `Frame` with `resumes`, for the printed report; page/src/ has the same words.
OF_COST = "excluding compilation and lost fusion"
OF_RESUME_FUNCTION = (
    "the rest of {0} after a graph break; stack_0, stack_1, ... are intermediate values of {0}"
)


@dataclass(frozen=True)
class Line:
    """A line of the user's program. `text`: of the lines of reasons only."""

    file: str
    line: int
    function: str
    text: str | None = None


@dataclass(frozen=True)
class File:
    """A file that a line of the report is in."""

    file: str
    first_line: int
    text: str


@dataclass(frozen=True)
class Phase:
    """A step of compiling, from the start of the observation; phases nest, such as `lower` within `backend`. The
    outermost is `compile`."""

    name: str
    frame: str
    start_ms: float
    ms: float

    def contains(self, other: Phase) -> bool:
        """Whether `other` lies within this phase."""
        return self.start_ms <= other.start_ms and other.start_ms + other.ms <= self.start_ms + self.ms


@dataclass(frozen=True)
class Guard:
    """A guard as an expression, and the line that needs it."""

    text: str
    kind: str
    source: str | None
    line: Line | None


@dataclass(frozen=True)
class Entry:
    """An entry. `source`: its compiled frame; `sizes`: `s0 = x.shape[0]`; `graphs`: ids; `seconds`: of compiling it,
    without a backward, which compiles at its first gradient."""

    number: int
    guards: tuple[Guard, ...]
    source: str
    sizes: tuple[str, ...]
    seconds: float
    graphs: tuple[int, ...]


@dataclass(frozen=True)
class Frame:
    """A function, or the resume function of the function `resumes`."""

    name: str
    resumes: str | None
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Reason:
    """Why a frame broke or ran eagerly. `cost_ms`: how long Python runs at a break in one call, if measured. It excludes
    compilation, the entry into the resume function, and what fusion across the break would save."""

    frame: str
    id: str
    summary: str
    detail: str
    hint: str
    line: Line | None
    stack: tuple[Line, ...]
    cost_ms: float | None


@dataclass(frozen=True)
class Recompile:
    """An entry that rejected a call. `guard` is empty if all its guards hold when they are evaluated again. `call`: the
    number of the call, which other entries may have rejected, too; `compiled`: whether it has an entry of its own now."""

    frame: str
    entry: int
    guard: str
    where: str
    was: str
    now: str
    line: Line | None
    at_ms: float
    call: int
    compiled: bool


@dataclass(frozen=True)
class Restriction:
    """Specialized sizes, by the program's names, and the operation that needs it."""

    frame: str
    sizes: tuple[str, ...]
    detail: str
    line: Line | None


@dataclass(frozen=True)
class Node:
    """A node. `shape` and `dtype` are of tensors, `type` is the text of both; `module`: as in `named_modules`."""

    name: str
    op: str
    target: str
    inputs: tuple[str, ...]
    shape: tuple[int | str, ...] | None
    dtype: str | None
    type: str
    line: Line | None
    module: str | None


@dataclass(frozen=True)
class Graph:
    """A graph of the level torch, aten, joint, forward or backward. `operators`: the number of its calls."""

    id: int
    frame: str
    level: str
    code: str
    operators: int
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Kernel:
    """A kernel (`generated`) or ATen call (`extern`) of a graph; `us` and the rate, if it was timed."""

    name: str
    graph: int
    code: str
    kind: str
    reads_bytes: int
    writes_bytes: int
    flops: int | None
    us: float | None
    bytes_per_second: float | None
    nodes: tuple[str, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Extern:
    """An operator that ATen computes, and the reason."""

    target: str
    why: str
    graph: int


@dataclass(frozen=True)
class NotFused:
    """Two operators that were not fused, and the reason."""

    a: str
    b: str
    why: str
    graph: int


@dataclass(frozen=True)
class SavedValue:
    """A value that is saved for the backward, and the reason."""

    name: str
    kind: str
    bytes: int
    why: str
    line: Line | None


@dataclass(frozen=True)
class SavedMemory:
    """What a frame saves for its backward, and what eager saves, if that was measured."""

    frame: str
    saved_bytes: int
    eager_saved_bytes: int | None
    values: tuple[SavedValue, ...]


@dataclass(frozen=True)
class MemoryStep:
    """Bytes that are live after a kernel or call of a graph."""

    graph: int
    step: str
    bytes: int


@dataclass(frozen=True)
class Memory:
    """Saved memory, in total and by frame; None without a backward."""

    saved_bytes: int | None
    eager_saved_bytes: int | None
    graphs: tuple[SavedMemory, ...]
    timeline: tuple[MemoryStep, ...]


@dataclass(frozen=True)
class LineEvents:
    """What happened to a line: captured, guarded, break, eager, recompiled."""

    file: str
    line: int
    events: tuple[str, ...]


@dataclass(frozen=True)
class Counts:
    """The figures of a report. `graphs`: captured graphs that compute; their aten, joint, forward and backward graphs do
    not count again. `recompiles`: entries compiled because no entry accepted a call. `kernels`: generated ones;
    `extern_calls`: calls of ATen between them."""

    graphs: int
    breaks: int
    eager: int
    recompiles: int
    entries: int
    guards: int
    kernels: int
    extern_calls: int


@dataclass(frozen=True)
class Note:
    """Why something is missing. `view`: the view of the page that lacks it, or overview."""

    view: str
    text: str


@dataclass(frozen=True)
class Report:
    """Everything about the calls of one function, or of a script.

    Attributes:
        version: of this schema.
        name: of the function or script.
        smelt: its version; `torch`: torch's; `device`: the processor or GPU; `threads`: of a kernel.
        counts: the figures.
        compile_ms: the time of compilation during the observation, the sum of the `compile` phases.
        notes: why something is missing.
        sources: the user's files that `lines` and others name.
        phases: of compilation; some are parts of others.
        frames: the function and its resume functions, with their entries.
        breaks: graph breaks.
        eager: reasons why calls, or parts of them, ran eagerly.
        recompiles: calls that no entry accepted, and the guard that refused.
        restricted_sizes: why sizes are specialized or depend on others.
        graphs: of all levels: torch, aten, joint, forward, backward.
        kernels: generated ones; times where calls were timed.
        externs: calls of ATen between them.
        not_fused: refused fusions, with reasons.
        memory: what is saved for the backward, and bytes held after each kernel.
        lines: the state of each line: captured, guarded, break, eager or recompiled.
    """

    version: int
    name: str
    smelt: str
    torch: str
    device: str
    threads: int
    counts: Counts
    compile_ms: float
    notes: tuple[Note, ...]
    sources: tuple[File, ...]
    phases: tuple[Phase, ...]
    frames: tuple[Frame, ...]
    breaks: tuple[Reason, ...]
    eager: tuple[Reason, ...]
    recompiles: tuple[Recompile, ...]
    restricted_sizes: tuple[Restriction, ...]
    graphs: tuple[Graph, ...]
    kernels: tuple[Kernel, ...]
    externs: tuple[Extern, ...]
    not_fused: tuple[NotFused, ...]
    memory: Memory
    lines: tuple[LineEvents, ...]


def as_json(value: Any) -> Any:
    """Dicts and lists for dataclasses and sequences; None for infinities and NaN, which JSON lacks."""
    if isinstance(value, (str, int)) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value):
        return {name: as_json(getattr(value, name)) for name in _names(value.__class__)}
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [as_json(item) for item in value]
    return value


def json_text(value: Any) -> str:
    """The JSON of `as_json(value)`, in ASCII. Raises TypeError for values that are not JSON."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_fields)
    except ValueError:  # infinities, or NaN
        return json.dumps(as_json(value), separators=(",", ":"))


def _fields(value: Any) -> dict[str, Any] | list[Any]:
    if is_dataclass(value):
        return {name: getattr(value, name) for name in _names(value.__class__)}
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"not JSON: {value!r}")


@cache
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))
