"""What is kept of each compiled function: its entries, why calls of it are not compiled, where its next capture begins.

The native callable that `wrap` makes holds the entries that answer calls; a `Record` is what people and the driver look at.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, Protocol

from smelt import _native
from smelt.capture.driver.capture_attempts import Attempt
from smelt.capture.environment.symbolic_size_policy import Path
from smelt.capture.graph_breaks.resume_functions import Resumes
from smelt.config import Config
from smelt.guards.guard import Guard
from smelt.guards.guard_failures import Failure
from smelt.guards.guard_printer import format_guards
from smelt.reasons import Reason
from smelt.tracing.record.traced import Traced

Graph = Callable[[tuple[Any, ...]], Sequence[Any]]
Backend = Callable[[Traced, Config], Graph]
Answer = bool | Callable[[], None]  # see _native.wrap
Answers = tuple[Callable[..., object], Graph | None]  # `compiled` and `only` of _native.add_entry


@dataclass(frozen=True, eq=False)
class Entry:
    """One compiled variant of a function, as people look at it.

    `facts` are its guards as data, `guards` as text; `source` is the compiled frame; `reason` is the guard of the latest
    older entry that failed and so made this one necessary; `graph` is what the backend returned;
    `tree` is the native guard tree and `answers` what runs where it accepts a call, as `_native.add_entry` takes it;
    `seconds` is what making the entry took, attempts that failed included; `sizes` is what its symbolic sizes were in the
    call it was made for, by their paths.
    """

    name: str
    facts: tuple[Guard, ...]
    source: str
    reason: Failure | None
    traced: Traced
    graph: Graph
    tree: _native.GuardTree
    answers: Answers
    seconds: float
    sizes: Mapping[Path, int]

    @property
    def computes(self) -> bool:
        """Whether its graph holds an operation."""
        return any(node.op.startswith("call") for node in self.traced.aten_graph)

    @property
    def is_one_off(self) -> bool:
        """Whether it has answered no call besides the one that it was made for, as far as is known: a tree makes notes when
        it accepts a second one."""
        return self.tree.memo_size() is None

    @property
    def guards(self) -> str:
        """The guards as text, one a line."""
        return format_guards(self.facts)


@dataclass(eq=False)
class Record:
    """What is known of one compiled function besides its native entries. `start`: the first attempt of its next capture."""

    start: Attempt
    entries: list[Entry] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    breaks: list[Reason] = field(default_factory=list)  # why entries end in a resume function
    failures: int = 0  # captures that ended in an exception of the user's code
    outrun: int = 0  # captures during which another thread changed what was guarded
    refused: set[tuple[object, ...]] = field(
        default_factory=set
    )  # paths of sizes that are numbers, against their marks
    plain_gradients: Reason | None = None  # why autograd follows the graph operator by operator


class Compiler(Protocol):
    """What compiles the calls of one function that no entry answers: `FrameCompiler`."""

    name: str
    record: Record
    resumes: Resumes
    target: Callable[[], _native.Wrapped | None]

    def __call__(self, fn: FunctionType, slots: tuple[object, ...]) -> Answer: ...
    def clear(self) -> None:
        """Drops all entries, as `smelt.reset` asks."""


_compilers: weakref.WeakValueDictionary[int, Compiler] = (
    weakref.WeakValueDictionary()
)  # by id of the code object


def wrap(
    fn: FunctionType,
    compiler: Compiler,
    traced: Callable[..., object] | None = None,
    original: FunctionType | None = None,
) -> _native.Wrapped:
    """The native callable that answers calls of `fn` from compiled entries and asks `compiler` where there are none.
    Changes of the user's function, `original`, are followed.

    `fn` should be a copy with a code object of its own: `entries_of` and `reasons_of` find the compiler by it. Entries
    belong to the callable, so that the garbage collector sees them. `traced` runs in place of `fn` under another tracer.
    """
    wrapped = _native.wrap(fn, compiler, traced, original)
    compiler.target = weakref.ref(wrapped)
    compiler.name = fn.__qualname__
    _compilers[id(fn.__code__)] = compiler
    return wrapped


def entries_of(code: CodeType) -> list[Entry]:
    """The compiled variants of the function whose code object this is, oldest first."""
    compiler = _compilers.get(id(code))
    return [] if compiler is None else list(compiler.record.entries)


def reasons_of(code: CodeType) -> tuple[Reason, ...]:
    """Why the function whose code object this is, is not one graph: calls that ran eagerly, then graph breaks, each oldest
    first; then the same for its resume functions."""
    records = [record for _, record in records_of(code)]
    return tuple(dict.fromkeys(r for record in records for r in (*record.reasons, *record.breaks)))


def records_of(code: CodeType) -> list[tuple[str, Record]]:
    """Name and record of the function whose code object this is, and of its resume functions in order of creation."""
    compiler = _compilers.get(id(code))
    return [] if compiler is None else _records(compiler)


def all_records() -> list[tuple[str, str | None, Record]]:
    """Name and record of every function that was compiled in this process and is not gone; behind each, its resume
    functions, with the name of the function that they resume."""
    compilers = dict(_compilers)
    resume = {id(c.__wrapped__.__code__) for some in compilers.values() for c in some.resumes.callables}
    return [
        (name, compiler.name if number else None, record)
        for code, compiler in compilers.items()
        if code not in resume
        for number, (name, record) in enumerate(_records(compiler))
    ]


def _records(compiler: Compiler) -> list[tuple[str, Record]]:
    resumes = [(c.__wrapped__.__qualname__, c.__wrapped__.__code__) for c in compiler.resumes.callables]
    found = [(name, _compilers.get(id(c))) for name, c in resumes]
    return [(compiler.name, compiler.record), *((n, c.record) for n, c in found if c is not None)]


def reset() -> None:
    """Drops the entries and reasons of every compiled function; each compiles again at its next call."""
    for compiler in list(_compilers.values()):
        compiler.clear()
