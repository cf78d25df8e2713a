"""The state of a capture, in parts: each holds what one concept of the machine has to remember.

All of it lives as long as one capture. Objects are known by `id`; whoever stores an id keeps the object alive.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from types import CellType, CodeType, TracebackType
from typing import Any

from smelt._native import isinstance
from smelt.capture.base.type_lookup import TypeInfo
from smelt.capture.base.value_kinds import MISSING, FunctionType, Sentinel
from smelt.capture.base.vm_frames import Delivery, Frame, Generator, Tail
from smelt.capture.vm.native_reachability import NativeReach
from smelt.graph.torch_settings import TorchSettings
from smelt.shapes.expr import Sym
from smelt.tracing.fake.fake_tensor import FakeTensor

Manager = Any  # a context manager, the user's or torch's, of which attributes besides __enter__ and __exit__ are read


@dataclass
class Frames:
    """The frames that run, besides the innermost one (`VM.frame`)."""

    root: Frame | None = None  # the captured frame, once it runs
    # whose instruction is being carried out, while what is called gives its result
    tail: Tail | None = None
    depth: int = 0  # frames that run
    depth_limit: int = field(default_factory=sys.getrecursionlimit)
    # frames that are calling a module's `forward` without `__call__`
    module_callers: list[Frame | None] = field(default_factory=list)
    generators: list[weakref.ref[Generator]] = field(default_factory=list)
    stubborn: list[Generator] = field(default_factory=list)  # that yielded when they were closed
    natively: object = None  # a function with a handler, which runs for real now

    def wait_in(self, frame: Frame, *deliveries: Delivery) -> None:
        """What is called next gives the result of the instruction of `frame` that is being carried out."""
        self.tail = frame, frame.ticks, deliveries

    def take_tail(self) -> Tail | None:
        """`tail`: the caller decides what of all that it calls gives the result, and puts it back for that."""
        tail, self.tail = self.tail, None
        return tail


@dataclass
class Stopping:
    """Where capture is to end before the frame does."""

    path: tuple[int, ...] = ()  # the tick of each frame, from the root on
    frames: list[Frame] = field(default_factory=list)  # the frames at the stop, outermost first


_ITEMS_OF_A_TICK = 8  # how many items are looked through while the machine carries out an instruction


@dataclass
class Work:
    """How much the machine has done since a node was added to the graph."""

    ticks: int = 0  # instructions of frames that have ended or wait
    limit: int = 0  # at how many to look whether there are new nodes
    nodes: int = 0  # how many there were then

    def looked_through(self, items: int) -> None:
        """As many items were looked at for C code: as much work as a few instructions."""
        self.ticks += items // _ITEMS_OF_A_TICK


@dataclass
class Exceptions:
    """What is raised and handled inside and around the machine."""

    host: BaseException | None  # handled by the interpreter that runs the machine
    outer: BaseException | None  # handled around the captured call
    some_handler: bool = False  # some frame has a handler for exceptions
    raising: BaseException | None = None  # on its way through frames: it has its context
    # a KeyboardInterrupt that the program raised itself; any other is a signal that arrived during capture
    own_interrupt: BaseException | None = None
    # of an exception that is raised again; MISSING: of none
    traceback: TracebackType | Sentinel | None = MISSING
    # where the exception on its way has passed frames since it was raised, innermost first; the traceback that it had then
    passed: list[tuple[CodeType, dict[str, object], int, int]] = field(default_factory=list)
    before: TracebackType | None = None
    # tracebacks of exceptions from outside that were raised again, as they were before, by id of the exception
    original_tracebacks: dict[int, tuple[BaseException, TracebackType | None]] = field(default_factory=dict)

    def restore(self) -> None:
        """Exceptions from outside are as they were before the capture."""
        for error, traceback in self.original_tracebacks.values():
            error.__traceback__ = traceback


@dataclass
class Scopes:
    """The names that code sees."""

    globals: dict[tuple[int, str], object] = field(default_factory=dict)  # by id of the namespace and name
    made: dict[int, dict[str, object]] = field(default_factory=dict)  # scopes made by the trace, by id


@dataclass
class Cells:
    """Variables that functions share."""

    values: dict[int, object] = field(default_factory=dict)  # what outside cells held, by id of the cell
    # of outside cells in closures that the trace made: the function from outside that has them, and where
    places: dict[int, tuple[FunctionType, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Entered:
    """A manager that the program has entered natively and not left."""

    manager: Manager
    attributes: dict[str, object]  # its own, before
    settings: TorchSettings  # before
    inside: TorchSettings  # just after


@dataclass(frozen=True)
class Left:
    """A manager from outside that the program has left."""

    manager: Manager
    attributes: dict[str, object]  # its own, before
    after: TorchSettings  # the settings just after


@dataclass
class Contexts:
    """Settings that are open: context managers, context variables, transforms, modes."""

    transforms: tuple[
        int, str | None, bool, int
    ]  # `function_transforms.open_transforms()` when the capture began
    entered: list[Entered] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    # by setter: the settings before
    process: dict[FunctionType, tuple[object, ...]] = field(default_factory=dict)
    variables: dict[int, object] = field(default_factory=dict)  # values of ContextVars, by id
    tokens: list[tuple[ContextVar[object], Token[object]]] = field(default_factory=list)
    under_modes: bool = False  # a mode of torch has seen calls before the trace did


@dataclass
class Classes:
    """What is known of classes, and what C code may reach through their instances."""

    reach_class: Callable[[type], None]  # guards what C code may call of a class
    look: Callable[[type, str], object]  # what a class has in itself under a name
    looked_through: Callable[[int], None]  # counts the items of containers that C code may reach
    infos: dict[type, TypeInfo] = field(default_factory=dict)
    being_made: list[tuple[str, tuple[type, ...]]] = field(default_factory=list)  # by C code: name and bases
    native_reach: NativeReach = field(init=False)

    def __post_init__(self) -> None:
        self.native_reach = NativeReach(self.reach_class, self.looked_through)

    def info(self, cls: type) -> TypeInfo:
        """What is known of `cls`, made when it is asked for first."""
        found = self.infos.get(cls)
        if found is None:
            found = self.infos[cls] = TypeInfo(cls, self.look)
        return found

    def has_looked_up(self, owner: type, name: str) -> bool:
        """Whether the trace has looked for `name` on a class that inherits from `owner`."""
        return any(name in info.found for cls, info in self.infos.items() if owner in cls.__mro__)

    def forget(self, changed: object) -> None:
        """`changed`, if it is a class, was changed: what was known of it and of what inherits from it no longer holds."""
        if isinstance(changed, type):
            self.native_reach = NativeReach(self.reach_class, self.looked_through)
            self.infos = {c: i for c, i in self.infos.items() if changed not in c.__mro__}


@dataclass
class Disclosed:
    """What the program was told of the capture, and what the capture assumed of the program."""

    compiling: bool = True  # the answer where it asks whether it is being compiled
    assumes: bool = False  # conditions on tensors are what does not raise
    assumed: bool = False  # one was
    selects: bool = False  # both branches of a condition may run, and one result is chosen
    choosing: int = 0  # of how many conditions the branches are running
    trusts_marks: bool = False  # functions marked with `torch.compiler.allow_in_graph` run natively
    in_marked: int = 0  # in how many of them it is
    was_asked: bool = False
    # paths of the symbolic numbers in texts, and the symbols of sizes
    shown_numbers: set[tuple[object, ...]] = field(default_factory=set)
    shown_sizes: set[Sym] = field(default_factory=set)


@dataclass
class HeldByGraph:
    """What autograd and the graph hold of the user's."""

    # tensors that a hook was registered on, with their `grad_fn` then
    hooked: list[tuple[FakeTensor, object]] = field(default_factory=list)
    # tensors that the program made, of which it set `grad`
    with_grad: list[FakeTensor] = field(default_factory=list)
    # cells of functions that the graph calls, with their contents
    cells: list[tuple[CellType, object]] = field(default_factory=list)
