"""The state of each compiled function: its entries, the reasons for eager calls and graph breaks, its next attempt.

The native callable that `wrap` creates holds the entries for dispatch; a `Record` holds them for the driver and reports.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, Protocol

from smelt import _native
from smelt.autograd.compile_joint import JointNode
from smelt.capture.driver.capture_attempts import Attempt
from smelt.capture.driver.capture_frame import CapturedFrame
from smelt.capture.environment.symbolic_size_policy import Path
from smelt.capture.graph_breaks.resume_functions import ResumeFunctions
from smelt.config import Config
from smelt.guards.guard import Guard, format_guards
from smelt.guards.guard_failures import Failure
from smelt.guards.tree_layout import TreeSpec
from smelt.reasons import Reason
from smelt.tracing.record.traced import MadePlan, Traced

Graph = Callable[[tuple[Any, ...]], Sequence[Any]]
Backend = Callable[[Traced, Config], Graph]
HookResult = bool | Callable[[], None]  # see _native.wrap
Callees = tuple[Callable[..., object], Graph | None]  # `compiled` and `only` of _native.add_entry


@dataclass(frozen=True, eq=False)
class Entry:
    """One compiled variant of a function.

    `facts` are its guards as data, `guards` as text; `source` is the compiled frame; `reason` is the failed guard of the
    older entry that the call fitted best; `graph` is what the backend returned; `tree` is the native guard tree and
    `callees` what runs if it accepts a call, as `_native.add_entry` takes them; `seconds` is the compile time, failed
    attempts included; `sizes` are the values of its symbolic sizes in the call that it was compiled for, by their paths.
    """

    name: str
    facts: tuple[Guard, ...]
    source: str
    reason: Failure | None
    traced: Traced
    graph: Graph
    tree: _native.GuardTree
    callees: Callees
    seconds: float
    sizes: Mapping[Path, int]

    def __repr__(self) -> str:
        sizes = ", ".join(f"{path} = {size}" for path, size in self.sizes.items())
        made_for = f", made for {sizes}" if sizes else ""
        return f"<entry of {self.name}: {len(self.facts)} guards, {self.seconds:.2f} s to compile{made_for}>"

    @property
    def computes(self) -> bool:
        """Whether its graph contains an operation."""
        return any(node.op.startswith("call") for node in self.traced.aten_graph)

    @property
    def was_never_reused(self) -> bool:
        """Whether it has had no hit besides the call that it was compiled for: the tree records notes at the second."""
        return self.tree.memo_size() is None

    @property
    def guards(self) -> str:
        """The guards as text, one per line."""
        return format_guards(self.facts)


@dataclass(eq=False)
class Record:
    """The compilation state of one function besides its native entries. `start`: the first attempt of its next capture."""

    start: Attempt
    entries: list[Entry] = field(default_factory=list)
    allowed: int = 0  # entries beyond the recompile limit, for captures that guard fewer values
    reasons: list[Reason] = field(default_factory=list)  # why calls ran eagerly
    breaks: list[Reason] = field(default_factory=list)  # why the graph breaks
    failures: int = 0  # captures that ended in an exception of the user's code
    ran_eagerly_first: bool = False  # as the stance "eager_then_compile" requires
    races: int = 0  # captures during which another thread changed guarded state
    # why a size is specialized, by its source
    specialized_for: dict[str, Reason] = field(default_factory=dict)
    # paths of sizes specialized despite their marks
    refused: set[tuple[object, ...]] = field(default_factory=set)
    no_joint_graph_reason: Reason | None = None  # why the graph runs eagerly under autograd
    not_kept: list[str] = field(default_factory=list)  # why entries are not stored for other processes

    def __repr__(self) -> str:
        return f"<record: {len(self.entries)} entries, {len(self.breaks)} breaks, {len(self.reasons)} eager calls>"


class MadePlans:
    """The plans of one entry. It collects them until `forward` is called, and then passes each new one on."""

    def __init__(self) -> None:
        self._made: list[MadePlan] = []
        self.nodes: list[JointNode] = []  # of a joint graph
        self._forward: Callable[[MadePlan], None] = self._made.append

    def __call__(self, made: MadePlan) -> None:
        self._forward(made)

    def __iter__(self) -> Iterator[MadePlan]:
        return iter(self._made)

    def forward(self, to: Callable[[MadePlan], None]) -> None:
        """Drop the plans made so far, and pass later ones `to` a function."""
        self._made.clear()
        self.nodes.clear()
        self._forward = to


@dataclass(frozen=True)
class NewEntry:
    """An entry of `fn`, made for a call with these argument slots. `plans`: those of its graphs."""

    entry: Entry
    fn: FunctionType
    slots: tuple[object, ...]
    layout: TreeSpec
    captured: CapturedFrame
    plans: MadePlans


class Compiler(Protocol):
    """The callback of one function for cache misses: `FrameCompiler`."""

    name: str
    config: Config
    record: Record
    resume_functions: ResumeFunctions
    target: Callable[[], _native.Wrapped | None]

    def __call__(self, fn: FunctionType, slots: tuple[object, ...]) -> HookResult: ...
    def clear(self) -> None:
        """Drop all entries, for `smelt.reset`."""


# by id of the code object
_compilers: weakref.WeakValueDictionary[int, Compiler] = weakref.WeakValueDictionary()


def wrap(
    fn: FunctionType,
    compiler: Compiler,
    traced: Callable[..., object] | None = None,
    original: FunctionType | None = None,
) -> _native.Wrapped:
    """Create the native callable that dispatches calls of `fn` to compiled entries, and to `compiler` at a cache miss. It
    follows changes of the user's function `original`.

    `fn` should be a copy with its own code object: `entries_of` and `reasons_of` find the compiler by it. The callable owns
    the entries, so that the garbage collector sees them. `traced` runs in place of `fn` under another tracer.
    """
    wrapped = _native.wrap(fn, compiler, traced, original)
    wrapped._smelt_compiled_under_line_tracers = compiler.config.compile_under_tracers
    adopt(wrapped, fn, compiler)
    return wrapped


def adopt(wrapped: _native.Wrapped, fn: FunctionType, compiler: Compiler) -> None:
    """Make `compiler` the one of `fn` and of its native callable."""
    compiler.target = weakref.ref(wrapped)
    compiler.name = fn.__qualname__
    _compilers[id(fn.__code__)] = compiler


def entries_of(code: CodeType) -> list[Entry]:
    """The entries of the function with this code object, oldest first."""
    compiler = _compilers.get(id(code))
    return [] if compiler is None else list(compiler.record.entries)


def reasons_of(code: CodeType) -> tuple[Reason, ...]:
    """Why the function with this code object is not one graph: the reasons of eager calls, then of graph breaks, each oldest
    first; then the same for its resume functions."""
    records = [record for _, record in records_of(code)]
    return tuple(dict.fromkeys(r for record in records for r in (*record.reasons, *record.breaks)))


def records_of(code: CodeType) -> list[tuple[str, Record]]:
    """Name and record of the function with this code object, and of its resume functions in order of creation."""
    compiler = _compilers.get(id(code))
    return [] if compiler is None else _records(compiler)


def all_records() -> list[tuple[str, str | None, Record]]:
    """Name and record of every live compiled function, each followed by its resume functions, with its name."""
    compilers = dict(_compilers)
    resume = {
        id(c.__wrapped__.__code__) for some in compilers.values() for c in some.resume_functions.callables
    }
    return [
        (name, compiler.name if number else None, record)
        for code, compiler in compilers.items()
        if code not in resume
        for number, (name, record) in enumerate(_records(compiler))
    ]


def _records(compiler: Compiler) -> list[tuple[str, Record]]:
    resume_functions = [
        (c.__wrapped__.__qualname__, c.__wrapped__.__code__) for c in compiler.resume_functions.callables
    ]
    found = [(name, _compilers.get(id(c))) for name, c in resume_functions]
    return [(compiler.name, compiler.record), *((n, c.record) for n, c in found if c is not None)]


def reset() -> None:
    """Drop the entries and reasons of every compiled function; each recompiles at its next call."""
    for compiler in list(_compilers.values()):
        compiler.clear()
