"""The state of one capture, one class for each concept of the VM.

All of it lives as long as the capture. Objects are keyed by `id`; code that stores an id must keep the object alive.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from types import CellType, CodeType, TracebackType
from typing import Any

import torch

from smelt._native import isinstance
from smelt.capture.base.type_lookup import TypeInfo
from smelt.capture.base.value_kinds import MISSING, FunctionType, Sentinel
from smelt.capture.base.vm_frames import (
    CallSite,
    Frame,
    Generator,
    ResultHandler,
    WeakCallback,
    is_smelt_scope,
)
from smelt.capture.environment.side_effects import Call
from smelt.capture.vm.native_reachability import NativeReachability
from smelt.graph.ir import Node
from smelt.graph.torch_settings import TorchSettings
from smelt.guards.source import Source
from smelt.shapes.expr import Sym
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in
from smelt.tracing.record.opaque_call_recorder import OpaqueCall
from smelt.tracing.record.tape import TapeEntry

Manager = Any  # a context manager of the user or of torch; attributes besides __enter__ and __exit__ are read


@dataclass
class Frames:
    """The running frames, besides the innermost one (`VM.frame`)."""

    root: Frame | None = None  # the captured frame, once it runs
    call_site: CallSite | None = None  # the instruction whose result the next callee returns
    depth: int = 0  # number of running frames
    depth_limit: int = field(default_factory=sys.getrecursionlimit)
    # frames that are calling a module's `forward` without `__call__`
    module_callers: list[Frame | None] = field(default_factory=list)
    generators: list[weakref.ref[Generator]] = field(default_factory=list)
    # callbacks of weak references whose objects are alive; a callback dies when it has run
    weak_callbacks: list[weakref.ref[WeakCallback]] = field(default_factory=list)
    unclosed: list[Generator] = field(default_factory=list)  # yielded when they were closed
    running_natively: object = None  # a function that has a handler but runs natively now

    def set_call_site(self, frame: Frame, *result_handlers: ResultHandler) -> None:
        """Declare that the next call returns the result of the instruction that `frame` is executing."""
        self.call_site = frame, frame.ticks, result_handlers

    def take_call_site(self) -> CallSite | None:
        """Clear and return `call_site`, which an operation of several calls sets before the one that returns its result."""
        call_site, self.call_site = self.call_site, None
        return call_site


@dataclass
class StopPoint:
    """The instruction at which capture stops before the frame ends."""

    path: tuple[int, ...] = ()  # the tick of each frame, from the root on
    frames: list[Frame] = field(default_factory=list)  # the frames at the stop, outermost first


_ITEMS_PER_TICK = 8  # items scanned in the time of one interpreted instruction


@dataclass
class Work:
    """The work that the VM did since the graph last grew."""

    ticks: int = 0  # instructions of frames that have ended or are suspended
    limit: int = 0  # the number of ticks at which to look for new nodes
    nodes: int = 0  # the number of nodes at the last look

    def count_items(self, items: int) -> None:
        """Add the cost of scanning `items` items for native code."""
        self.ticks += items // _ITEMS_PER_TICK


@dataclass
class Exceptions:
    """Exceptions that are raised or handled in the program and around the capture."""

    host: BaseException | None  # handled by the interpreter that runs the VM
    outer: BaseException | None  # handled by the caller of the captured function
    has_handlers: bool = False  # a frame has exception handlers
    # The exception that propagates through frames and whose context is set, or the ids of it and of its traceback, whose
    # frames hold the program's objects: these die where native code drops the exception.
    in_flight: BaseException | tuple[int, int] | None = None
    # a KeyboardInterrupt that the program raised; any other is a signal that arrived during capture
    program_interrupt: BaseException | None = None
    # the traceback of an exception that is reraised; MISSING: no exception is
    reraised_traceback: TracebackType | Sentinel | None = MISSING
    # where the environment's exception in flight left frames since it was raised, innermost first
    traceback_entries: list[tuple[CodeType, dict[str, object], int, int]] = field(default_factory=list)
    # of reraised exceptions of the environment, by id: the exception and its traceback before the capture
    original_tracebacks: dict[int, tuple[BaseException, TracebackType | None]] = field(default_factory=dict)

    def propagate(self, error: BaseException) -> None:
        """Record that `error`, with the program's traceback, leaves a frame or is handled there."""
        traceback = error.__traceback__
        self.in_flight = error if traceback is None else (id(error), id(traceback))
        self.reraised_traceback = MISSING

    def traceback_in_flight(self, error: BaseException) -> TracebackType | Sentinel | None:
        """The program's traceback of `error`, below entries of the frames that run the VM; MISSING if it is newly raised."""
        if error is self.in_flight:
            return None if isinstance(self.reraised_traceback, Sentinel) else self.reraised_traceback
        if not isinstance(self.in_flight, tuple) or self.in_flight[0] != id(error):
            return MISSING
        found = error.__traceback__
        while found is not None and (
            id(found) != self.in_flight[1] or is_smelt_scope(found.tb_frame.f_globals)
        ):
            found = found.tb_next
        return MISSING if found is None else found

    def restore(self) -> None:
        """Restore the tracebacks of the environment's exceptions."""
        for error, traceback in self.original_tracebacks.values():
            error.__traceback__ = traceback


@dataclass
class Scopes:
    """Global variables and the scopes that the trace created."""

    globals: dict[tuple[int, str], object] = field(default_factory=dict)  # by id of the namespace and name
    # scopes that the trace created, by id
    created: dict[int, dict[str, object]] = field(default_factory=dict)


@dataclass
class Cells:
    """Closure cells of the environment."""

    values: dict[int, object] = field(default_factory=dict)  # what they held, by id of the cell
    # of those that closures created by the trace share: the function of the environment, and the index in its closure
    owners: dict[int, tuple[FunctionType, int]] = field(default_factory=dict)


@dataclass
class EnteredManager:
    """A context manager that the program entered natively and has not exited."""

    manager: Manager
    attributes: dict[str, object]  # its instance attributes before it was entered
    settings: TorchSettings  # before it was entered
    settings_inside: TorchSettings  # after it was entered
    # the changes of the warning filters since, which end with the manager
    calls: list[Call] = field(default_factory=list)
    recorded: list[object] | None = None  # of a `catch_warnings(record=True)`: its list
    shown: list[object] = field(default_factory=list)  # what the program has added to it by `warnings.warn`


@dataclass(frozen=True)
class ExitedManager:
    """A context manager of the environment that the program exited."""

    manager: Manager
    attributes: dict[str, object]  # its instance attributes before it was exited
    settings: TorchSettings  # after it was exited


@dataclass
class Contexts:
    """Context managers, context variables, function transforms and modes in effect."""

    # `function_transforms.open_transforms()` when the capture began
    transforms: tuple[int, str | None, bool, int]
    entered: list[EnteredManager] = field(default_factory=list)
    exited: list[ExitedManager] = field(default_factory=list)
    # by setter: the settings before
    process: dict[FunctionType, tuple[object, ...]] = field(default_factory=dict)
    switches: dict[Callable[[], object], object] = field(default_factory=dict)  # when the capture began
    variables: dict[int, object] = field(default_factory=dict)  # values of ContextVars, by id
    tokens: list[tuple[ContextVar[object], Token[object]]] = field(default_factory=list)
    under_modes: bool = False  # a torch mode handled calls before the trace


@dataclass
class Classes:
    """Facts about classes, and whether native code may call Python code through their instances."""

    guard_native_access: Callable[[type], None]  # guards the methods of a class that native code may call
    lookup: Callable[[type, str], object]  # the value that a class itself holds under a name
    count_items: Callable[[int], None]  # counts the items of containers that native code may reach
    infos: dict[type, TypeInfo] = field(default_factory=dict)
    # classes that native code is creating: name and bases
    under_construction: list[tuple[str, tuple[type, ...]]] = field(default_factory=list)
    native_reachability: NativeReachability = field(init=False)

    def __post_init__(self) -> None:
        self.native_reachability = NativeReachability(self.guard_native_access, self.count_items)

    def info(self, cls: type) -> TypeInfo:
        """The lookup facts of `cls`, created on first use."""
        info = self.infos.get(cls)
        if info is None:
            info = self.infos[cls] = TypeInfo(cls, self.lookup)
        return info

    def has_looked_up(self, owner: type, name: str) -> bool:
        """Whether the trace looked up `name` on a subclass of `owner`."""
        return any(name in info.found for cls, info in self.infos.items() if owner in cls.__mro__)

    def forget(self, changed: object) -> None:
        """Drop the facts about `changed`, if it is a class, and about its subclasses."""
        if isinstance(changed, type):
            self.native_reachability = NativeReachability(self.guard_native_access, self.count_items)
            self.infos = {c: i for c, i in self.infos.items() if changed not in c.__mro__}


@dataclass
class Assumptions:
    """Assumptions of the capture about the program, and what the program observed of the capture."""

    compiling: bool = True  # the value of `torch.compiler.is_compiling()`
    was_queried: bool = False  # the program called it
    assumes: bool = False  # a condition on a tensor may be assumed to take the branch that does not raise
    assumed: bool = False  # one was assumed
    selects: bool = False  # both branches of a condition may run, and one result is selected
    captures_jumps: bool = False  # both branches of a jump on a tensor may be captured
    # the jumps on tensors at which the graph breaks: why
    uncaptured_jumps: Mapping[object, str] = field(default_factory=dict)
    joins_numbers: bool = True  # numbers that differ by branch become proxies
    choosing: int = 0  # the number of conditions whose branches are running
    may_break: bool = True  # the graph may break before an instruction that cannot be captured
    records_warnings: bool = True  # a `catch_warnings(record=True)` is captured
    assigns_data: bool = True  # assignments to the `data` of a tensor are captured
    trusts_marks: bool = False  # functions marked with `torch.compiler.allow_in_graph` run natively
    marked_depth: int = 0  # the number of running functions that are so marked
    # the sources of symbolic numbers, and the symbols of sizes, that the program formatted into text
    formatted_numbers: set[Source] = field(default_factory=set)
    formatted_sizes: set[Sym] = field(default_factory=set)


class RecordedTensors:
    """The ids and storages of the fakes in the first entries of a tape, which are read once while the tape grows."""

    def __init__(self) -> None:
        self._entries: list[TapeEntry] = []
        self.ids: set[int] = set()
        self.storages: set[int] = set()

    def up_to(self, entries: list[TapeEntry], count: int) -> RecordedTensors:
        """These facts about the first `count` of `entries`, some of which may have been removed since the last call."""
        known = len(self._entries)
        if known > count or (known and entries[known - 1] is not self._entries[-1]):
            known = 0
            for found in (self._entries, self.ids, self.storages):
                found.clear()
        for entry in entries[known:count]:
            fakes = fakes_in(entry.out)
            self.ids.update(map(id, fakes))
            self.storages.update(f.storage_key for f in fakes)
            self._entries.append(entry)
        return self


@dataclass
class ConditionalJumps:
    """Jumps on tensors whose branches are captured: the outermost one whose branches are running, how many are running, and
    how many were captured. `joined_numbers`: numbers that differ by branch became proxies."""

    running: object = None
    depth: int = 0
    tails: int = 0  # branches that were captured to the end of their frame
    recorded: RecordedTensors = field(default_factory=RecordedTensors)
    captured: int = 0
    joined_numbers: bool = False


@dataclass
class CachedCall:
    """A call of a `functools.lru_cache` function: its key, its result, the number of aten nodes then, and the last one."""

    args: tuple[object, ...]
    kwargs: dict[str, object]
    result: object
    count: int
    last: Node | None


@dataclass
class Memo:
    """The calls of one cached function, which it keeps alive: its id is the key of `HeldByGraph.memos`."""

    fn: object
    calls: list[CachedCall] = field(default_factory=list)


@dataclass
class RepeatableCall:
    """A call of a cached function that this capture or other calls of the compiled function may repeat: the inputs that it
    read, the nodes that it recorded, the state of each object of its result, and the number of writes before those that a
    repeated call may see."""

    fn: functools._lru_cache_wrapper[object]
    values: tuple[object, ...]
    read: set[Node]
    made: set[Node]
    states: list[tuple[object, list[object]]]
    writes: int


@dataclass
class HeldByGraph:
    """The user's objects that autograd and the graph hold."""

    memos: dict[int, Memo] = field(default_factory=dict)  # by id of a cached function
    repeatable: list[RepeatableCall] = field(default_factory=list)
    # tensors with a registered hook, and their `grad_fn` at that time
    hooked: list[tuple[FakeTensor, object]] = field(default_factory=list)
    # tensors that the program created and whose `grad` it set
    with_grad: list[FakeTensor] = field(default_factory=list)
    # storages that are resized after the graph, the number of operators before that, and the new sizes in bytes
    resized: list[tuple[torch.UntypedStorage, int, int]] = field(default_factory=list)
    # cells of functions that the graph calls, and their contents
    cells: list[tuple[CellType, object]] = field(default_factory=list)
    # the calls that the graph makes of them, and the containers among the arguments with their items
    containers: list[tuple[OpaqueCall, list[object] | dict[object, object], list[object]]] = field(
        default_factory=list
    )
