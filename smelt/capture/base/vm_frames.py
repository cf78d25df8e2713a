"""Frames and generators of the VM, as data.

A frame's state is complete between any two instructions, and stays so when an instruction fails: an instruction pops its
operands only after it has succeeded. The result of a call is delivered by the caller's own instruction.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, Protocol, cast

from smelt._native import isinstance
from smelt.capture.base.bytecode import PY313, Code
from smelt.capture.base.value_kinds import FunctionType, Sentinel
from smelt.graph.ir import Line


class Handled:
    """On the stack of a frame that handles an exception: the exception that was handled before."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class LastInstruction:
    """On the stack of a frame that handles an exception: the index of the instruction that raised it."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at


_CALLEE = 1 << 40  # more instructions than a frame can begin


@dataclass(frozen=True, eq=False)
class Delivery:
    """What the waiting instruction of a caller makes of its callee's result: `after(result, *values)`; and, unless it is
    None, `otherwise(error, *values)` of what the callee raises. Functions of `capture/semantics/result_polyfills.py`."""

    after: Callable[..., object]
    values: tuple[object, ...] = ()
    otherwise: Callable[..., object] | None = None


class Frame:
    """One call of a Python function. What `stack`, `locals` and the namespaces hold is the user's."""

    __slots__ = (
        "callees", "code", "deliveries", "function", "globals", "handled", "instructions", "kwnames", "locals", "loops",
        "names", "namespace", "nodes", "order", "parent", "pc", "prepared", "result", "stack", "stop", "ticks", "yielded",
    )  # fmt: skip

    stack: list[Any]
    locals: list[Any]
    result: Any
    namespace: Any  # the mapping of names of a class body
    names: dict[str, Any] | None  # what locals() gave

    def __init__(self, code: Code, function: FunctionType, slots: list[object]) -> None:
        self.code = code
        self.function = function
        self.globals = function.__globals__
        self.instructions = code.instructions
        self.pc = 0
        self.stack = []
        self.locals = slots
        self.kwnames: tuple[str, ...] = ()
        self.parent: Frame | None = None
        self.handled: BaseException | None = None  # what a bare `raise` raises again
        self.result = None
        self.yielded = False
        self.namespace = None
        self.names = None
        # what makes the result of the instruction at which the caller waits of this frame's, one after the other; None: the
        # caller cannot be left there
        self.deliveries: tuple[Delivery, ...] | None = None
        self.ticks = 0  # instructions begun
        # the tick of the instruction that called last, and how many times it did before
        self.callees = (0, 0)
        # what BEFORE_WITH has found before it calls `__enter__`: `__exit__`
        self.prepared: tuple[object, ...] = ()
        self.order = 0  # how many times the caller's instruction had called before it called this frame
        self.stop = 0  # at which of them capture is to stop: 0 is at none
        self.nodes = 0  # how many nodes the graph had when it began
        # of each loop that runs, by its first instruction: the tick of its first jump back, and the nodes that there were
        self.loops: dict[int, tuple[int, int]] = {}

    def moment(self, ticks: int) -> int:
        """The moment at which the frame has begun so many instructions, different from each of the other frames that its
        caller's instruction calls."""
        return self.order * _CALLEE + ticks

    def stop_at(self, moment: int) -> None:
        """Capture is to stop at a moment of this frame, or of another that the caller's instruction calls."""
        order, ticks = divmod(moment, _CALLEE)
        self.stop = ticks if order == self.order else 0

    @property
    def source(self) -> CodeType:
        """The code object that the frame stems from: of a resume function's frame, that of the user's function."""
        original = self.code.original
        return self.function.__code__ if original is None else original.source

    @property
    def prologue(self) -> int:
        """How many instructions come before those of `source`."""
        return self.code.original.prologue if self.code.original else 0

    @property
    def places(self) -> Sequence[int]:
        """By slot of `source`: which slot of `locals` it is."""
        return self.code.original.places if self.code.original else range(self.code.nlocals)

    @property
    def line(self) -> Line:
        """Source line of the instruction that runs (or failed)."""
        return self.code.line(self.pc - 1 if self.pc else 0)

    def unwind(self, error: BaseException) -> bool:
        """Moves to the handler of `error` in this frame, as the exception table says; False if there is none."""
        at = self.pc - 1
        for start, end, target, depth, push_at in self.code.handlers:
            if start <= at < end:
                del self.stack[depth:]
                if push_at:
                    self.stack.append(LastInstruction(at))
                self.stack.append(error)
                self.kwnames = ()
                self.pc = target
                return True
        return False

    def clear(self) -> None:
        """Drops what the frame holds, its locals in order and then its stack: it has ended."""
        slots = self.locals
        for at in range(len(slots)):
            slots[at] = None
        self.stack.clear()


def is_smelts(scope: Mapping[str, object]) -> bool:
    """Whether these are the globals of a module of smelt, or of a compiled frame."""
    return COMPILED_SCOPE in scope or str(scope.get("__name__", "")).startswith("smelt.")


COMPILED_SCOPE = (
    "__smelt_compiled__"  # a name in the globals of compiled frames, whose module may be the user's
)


# A frame, the tick of its instruction whose result is what is called next gives, and what becomes of that.
Tail = tuple[Frame, int, tuple[Delivery, ...]]


def through(
    tail: Tail | None,
    after: Callable[..., object],
    *values: object,
    otherwise: Callable[..., object] | None = None,
) -> Tail | None:
    """`tail`, where the instruction gives `after(result, *values)`, or `otherwise(error, *values)`."""
    if tail is None:
        return None
    frame, tick, deliveries = tail
    return frame, tick, (Delivery(after, values, otherwise), *deliveries)


CREATED, SUSPENDED, RUNNING, FINISHED = (Sentinel(n) for n in ("created", "suspended", "running", "finished"))


class Generators(Protocol):
    """Where a machine keeps the generators that it has made."""

    generators: list[weakref.ref[Generator]]
    stubborn: list[Generator]


class Machine(Protocol):
    """What generators and callables need of the machine that runs their frames: the VM (`capture/vm/vm.py`)."""

    running: bool  # the user's code runs
    released: bool  # the capture is over

    @property
    def frames(self) -> Generators:
        """The generators that run in this capture are noted there."""

    def run(self, frame: Frame, error: BaseException | None = None) -> object:
        """Runs `frame` until it returns or yields; with `error`, raises that where the frame stands."""

    def call(self, fn: object, args: Sequence[object], kwargs: dict[str, object]) -> object:
        """The call, carried out by the machine."""

    def next(self, iterator: object) -> object:
        """`next(iterator)`, carried out by the machine."""

    def iterable(self, obj: object) -> Iterable[object]:
        """`obj` as native code may iterate over it."""

    def elements(self, obj: object) -> Sequence[object]:
        """All elements of `obj`."""

    def subscript(self, obj: object, key: object) -> object:
        """`obj[key]`, carried out by the machine."""

    def drop(self, generator: Generator) -> None:
        """Closes a suspended generator that nobody holds any more."""


class Generator:
    """A generator whose frame the VM runs; native code may iterate it like any other."""

    __slots__ = ("__weakref__", "frame", "state", "vm")
    kind = "generator"

    def __init__(self, vm: Machine, frame: Frame) -> None:
        self.vm = vm
        self.frame = frame
        self.state = CREATED
        vm.frames.generators.append(weakref.ref(self))

    def __iter__(self) -> Generator:
        return self

    def __next__(self) -> object:
        return self.send(None)

    def send(self, value: object) -> object:
        """As `generator.send`: runs the frame to its next `yield`. Raises StopIteration where it returns."""
        if self.state is FINISHED:
            raise StopIteration
        if self.state is CREATED and value is not None:
            raise TypeError(f"can't send non-None value to a just-started {self.kind}")
        self.frame.stack.append(value)
        return self._resume(None)

    def throw(
        self, kind: type[BaseException] | BaseException, value: object = None, traceback: object = None
    ) -> object:
        """As `generator.throw`: raises the exception where the frame is suspended, first in what it delegates to."""
        error = (
            kind if isinstance(kind, BaseException) else value if isinstance(value, BaseException) else kind()
        )
        if self.state is FINISHED:
            raise error
        if self.state is CREATED:
            self.state = FINISHED
            raise error
        inner = self._delegate()
        if inner is not None:
            try:
                return self._throw_into(inner, error)
            except StopIteration as stop:
                return self._end_delegation(stop.value)
            except BaseException as raised:
                error = raised
        self.frame.stack.append(None)
        return self._resume(error)

    @property
    def running(self) -> bool:
        """`gi_running`."""
        return self.state is RUNNING

    @property
    def suspended(self) -> bool:
        """`gi_suspended`: it has yielded and not ended."""
        return self.state is SUSPENDED

    @property
    def protected(self) -> bool:
        """Whether it may have something to do when it is dropped: it has a `try` or a `with`."""
        code = self.frame.code
        # 3.12 protects every generator as a whole, to make a RuntimeError of StopIteration, and each `yield from`
        own = ("CALL_INTRINSIC_1", "CLEANUP_THROW")
        targets = (code.names[target] for _, _, target, _, _ in code.handlers)
        return self.state is not FINISHED and any(name not in own for name in targets)

    @property
    def yieldfrom(self) -> object:
        """What it delegates to, or None."""
        return self._delegate()

    def _delegate(self) -> object:
        """The iterator of the `yield from` at which the generator is suspended, or None."""
        frame = self.frame
        resumes_delegation = (
            frame.code.names[frame.pc] == "RESUME" and frame.instructions[frame.pc][1] & 3 >= 2
        )
        return frame.stack[-1] if self.state is SUSPENDED and resumes_delegation else None

    def _throw_into(self, inner: object, error: BaseException) -> object:
        """Throws `error` into the iterator `inner` and gives what that yields. Raises what it raises, and `error` itself if
        `inner` has no `throw` or was closed."""
        closing = isinstance(error, GeneratorExit)
        method = getattr(inner, "close" if closing else "throw", None)
        arguments = () if closing else (error,)
        if method is not None:
            self.state = RUNNING
            try:
                answer = (
                    method(*arguments)
                    if isinstance(inner, Generator)
                    else self.vm.call(method, arguments, {})
                )
            finally:
                self.state = SUSPENDED
            if not closing:
                return answer
        raise error

    def _end_delegation(self, value: object) -> object:
        """Continues the frame after its `yield from`, whose value is `value`."""
        frame = self.frame
        target = frame.instructions[frame.pc - 2][1]  # SEND, YIELD_VALUE, RESUME
        if frame.code.names[target] == "END_SEND":
            frame.stack.append(value)
        else:
            frame.stack[-1] = value
        frame.pc = target
        return self._resume(None)

    def __del__(self) -> None:
        """Dropped by the user's code: its `finally` blocks run now."""
        if self.state is SUSPENDED and self.vm.running:
            self.vm.drop(self)

    def close(self) -> object:
        """As `generator.close`; from 3.13 on it gives what the frame returns. Raises RuntimeError if that yields again."""
        if self.state is SUSPENDED:
            try:
                self.throw(GeneratorExit())
            except GeneratorExit:
                return None
            except StopIteration as stop:
                return stop.value if PY313 else None
            # dropped, it would be closed again; what that raises no one sees
            self.vm.frames.stubborn.append(self)
            raise RuntimeError(f"{self.kind} ignored GeneratorExit")
        self.state = FINISHED
        return None

    def _resume(self, error: BaseException | None) -> object:
        if self.state is RUNNING:
            raise ValueError(f"{self.kind} already executing")
        self.state = RUNNING
        frame = self.frame
        frame.yielded = False
        try:
            value = self.vm.run(frame, error)
        except StopIteration as stop:
            self.state = FINISHED
            raise RuntimeError(f"{self.kind} raised StopIteration") from stop
        except BaseException:
            self.state = FINISHED
            raise
        if frame.yielded:
            self.state = SUSPENDED
            return value
        self.state = FINISHED
        raise StopIteration(value)


class Coroutine(Generator):
    """A coroutine whose frame the VM runs. The program can await it, or hand it on."""

    __slots__ = ()
    kind = "coroutine"

    def __iter__(self) -> Generator:
        raise TypeError("'coroutine' object is not iterable")

    def send(self, value: object) -> object:
        """As `coroutine.send`."""
        if self.state is FINISHED:
            raise RuntimeError("cannot reuse already awaited coroutine")
        return super().send(value)

    def __del__(self) -> None:
        """Dropped by the user's code: one that never ran is warned of."""
        if self.state in (CREATED, SUSPENDED) and self.vm.running:
            self.vm.drop(self)


class VMCallable:
    """A callable handed to native code: calling it comes back to the VM. `finish` makes of its result what native code may
    look at."""

    __slots__ = ("finish", "function", "vm")

    function: Any

    def __init__(self, vm: Machine, fn: object, finish: Callable[[object], object] | None = None) -> None:
        self.vm = vm
        self.function = fn
        self.finish = finish

    def __call__(self, *args: object, **kwargs: object) -> object:
        if self.vm.released:  # native code kept it for longer than the capture
            return self.function(*args, **kwargs)
        result = self.vm.call(self.function, args, kwargs)
        return result if self.finish is None else self.finish(result)

    def __repr__(self) -> str:
        return repr(self.function)

    def __hash__(self) -> int:
        return hash(self.function)

    def __eq__(self, other: object) -> bool:
        return self.function == (other.function if type(other) is VMCallable else other)


class VMIterator:
    """An iterator of the user's, handed to native code: asking it for an element comes back to the VM. It may be asked while
    it is being asked, which a generator could not."""

    __slots__ = ("iterator", "vm")

    def __init__(self, vm: Machine, iterator: object) -> None:
        self.vm = vm
        self.iterator = iterator

    def __iter__(self) -> VMIterator:
        return self

    def __next__(self) -> object:
        if self.vm.released:  # native code kept it for longer than the capture
            return next(cast("Iterator[object]", self.iterator))
        return self._given(self.vm.next(self.iterator))

    def _given(self, element: object) -> object:
        """What native code gets for an element."""
        return element


class VMIterables(VMIterator):
    """An iterator of iterables, handed to native code that walks over each of them."""

    __slots__ = ()

    def _given(self, element: object) -> object:
        return self.vm.iterable(element)


class VMTuples(VMIterator):
    """An iterator of iterables, handed to native code that makes a tuple of each."""

    __slots__ = ()

    def _given(self, element: object) -> object:
        return tuple(self.vm.elements(element))


class VMSequence:
    """An object with `__getitem__` in Python alone, over which native code iterates by index."""

    __slots__ = ("sequence", "vm")

    def __init__(self, vm: Machine, sequence: object) -> None:
        self.vm = vm
        self.sequence = sequence

    def __getitem__(self, index: int) -> object:
        if self.vm.released:
            return self.sequence[index]  # type: ignore[index]
        return self.vm.subscript(self.sequence, index)


class VMSizedSequence(VMSequence):
    """One that also has `__len__`, which tells how much is left of an iterator."""

    __slots__ = ()

    def __len__(self) -> int:
        if self.vm.released:
            return len(self.sequence)  # type: ignore[arg-type]
        return cast(int, self.vm.call(len, (self.sequence,), {}))


WALKED = (VMIterator, VMIterables, VMTuples, VMSequence, VMSizedSequence)  # what native code may walk over
SEQUENCE_ITERATOR: type = type(iter(cast("Sequence[object]", VMSequence.__new__(VMSequence))))
