"""Frames and generators of the VM.

Invariant: a frame's state is complete between any two instructions, also when an instruction fails: an instruction pops its
operands only after it succeeds. The caller's own instruction pushes the result of a call.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, Protocol, cast

from smelt._native import isinstance
from smelt.capture.base.bytecode import PY313, Code
from smelt.capture.base.value_kinds import NULL, FunctionType, Sentinel
from smelt.errors import Unsupported
from smelt.graph.ir import Line
from smelt.runtime.generated_source import COMPILED_SCOPE


class PreviousException:
    """Stack entry of a frame that handles an exception: the exception that it handled before."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class LastInstruction:
    """Stack entry of a frame that handles an exception: the index of the instruction that raised it."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Operands(list[object]):
    """The arguments of a call instruction, whose operands are those on `stack` from index `start` on."""

    __slots__ = ("stack", "start")

    def __init__(self, arguments: list[object], stack: list[object], start: int) -> None:
        super().__init__(arguments)
        self.stack = stack
        self.start = start

    def hand_over(self) -> None:
        """Drop the arguments, which a callee's frame holds now. The operands keep their places on the stack."""
        self.clear()
        self.stack[self.start :] = [NULL] * (len(self.stack) - self.start)


_CALLEE = 1 << 40  # more than the instructions that a frame can execute


@dataclass(frozen=True, eq=False)
class ResultHandler:
    """How a caller's suspended instruction converts the outcome of its callee: `on_result(result, *values)`, and
    `on_error(error, *values)` for what it raises (None: the error propagates). Functions of
    `capture/semantics/result_polyfills.py`."""

    on_result: Callable[..., object]
    values: tuple[object, ...] = ()
    on_error: Callable[..., object] | None = None


class Frame:
    """One call of a Python function. `stack`, `locals` and the namespaces hold the user's objects."""

    __slots__ = (
        "call_index", "calls", "code", "function", "globals", "handled", "in_traceback", "instructions", "kwnames", "locals",
        "locals_dict", "loops", "namespace", "nodes", "parent", "pc", "pending_exit", "result", "result_handlers", "stack",
        "stop", "ticks", "yielded",
    )  # fmt: skip

    stack: list[Any]
    locals: list[Any]
    result: Any
    namespace: Any  # the mapping of names of a class body
    locals_dict: dict[str, Any] | None  # the result of locals()

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
        self.handled: BaseException | None = None  # what a bare `raise` reraises
        self.result = None
        self.yielded = False
        self.in_traceback = False  # a traceback may hold this frame
        self.namespace = None
        self.locals_dict = None
        # convert this frame's outcome to the result of the caller's instruction, in order; None: the graph cannot break
        # in the middle of that instruction
        self.result_handlers: tuple[ResultHandler, ...] | None = None
        self.ticks = 0  # the number of instructions begun
        # the tick of the last instruction that called, and how many calls it made before the last one
        self.calls = (0, 0)
        self.pending_exit: tuple[object, ...] = ()  # `__exit__`, while BEFORE_WITH calls `__enter__`
        self.call_index = 0  # how many calls the caller's instruction made before this one
        self.stop = 0  # the tick at which capture stops; 0: it does not
        self.nodes = 0  # the number of graph nodes when the frame began
        # by first instruction of each running loop: the tick of its first jump back, and the number of nodes then
        self.loops: dict[int, tuple[int, int]] = {}

    def position(self, ticks: int) -> int:
        """Encode a tick of this frame, different from those of all other frames that the caller's instruction calls."""
        return self.call_index * _CALLEE + ticks

    def stop_at(self, position: int) -> None:
        """Stop capture at `position`, which may be that of another frame that the caller's instruction calls."""
        call_index, ticks = divmod(position, _CALLEE)
        self.stop = ticks if call_index == self.call_index else 0

    @property
    def user_code(self) -> CodeType:
        """The code object of the user's function; a resume function's frame continues that function."""
        original = self.code.original
        return self.function.__code__ if original is None else original.code

    @property
    def prologue(self) -> int:
        """The number of instructions before those of `user_code`."""
        return self.code.original.prologue if self.code.original else 0

    @property
    def slots(self) -> Sequence[int]:
        """The index in `locals` of each local variable slot of `user_code`."""
        return self.code.original.slots if self.code.original else range(self.code.nlocals)

    @property
    def line(self) -> Line:
        """The source line of the running (or failed) instruction."""
        return self.code.line(self.pc - 1 if self.pc else 0)

    def unwind(self, error: BaseException) -> bool:
        """Jump to the handler of `error` in this frame's exception table; False if there is none."""
        index = self.pc - 1
        for start, end, target, depth, pushes_index in self.code.handlers:
            if start <= index < end:
                del self.stack[depth:]
                if pushes_index:
                    self.stack.append(LastInstruction(index))
                self.stack.append(error)
                self.kwnames = ()
                self.pc = target
                return True
        return False

    def __del__(self) -> None:
        """Drop what a frame that an exception left holds, in the order of CPython."""
        self.clear()

    def clear(self) -> None:
        """Drop the locals, in order, and then the stack of a frame that has ended."""
        slots = self.locals
        for index in range(len(slots)):
            slots[index] = None
        self.stack.clear()


def is_smelt_scope(scope: Mapping[str, object]) -> bool:
    """Whether `scope` is the globals of a smelt module or of a compiled frame."""
    return COMPILED_SCOPE in scope or str(scope.get("__name__", "")).startswith("smelt.")


def is_smelt_module(scope: Mapping[str, object]) -> bool:
    """Whether `scope` is the globals of a module of smelt. They never change, so that capture adds no guards for them."""
    return COMPILED_SCOPE not in scope and is_smelt_scope(scope)


# A frame, the tick of its current instruction, and how the outcome of the next call becomes that instruction's result.
CallSite = tuple[Frame, int, tuple[ResultHandler, ...]]


def with_result_handler(
    call_site: CallSite | None,
    on_result: Callable[..., object],
    *values: object,
    on_error: Callable[..., object] | None = None,
) -> CallSite | None:
    """`call_site` with a result handler that runs before its others."""
    if call_site is None:
        return None
    frame, tick, result_handlers = call_site
    return frame, tick, (ResultHandler(on_result, values, on_error), *result_handlers)


CREATED, SUSPENDED, RUNNING, FINISHED = (Sentinel(n) for n in ("created", "suspended", "running", "finished"))


class Created(Protocol):
    """What a machine created: generators, and callbacks of weak references to live objects."""

    generators: list[weakref.ref[Generator]]
    weak_callbacks: list[weakref.ref[WeakCallback]]
    unclosed: list[Generator]


class Machine(Protocol):
    """The operations of the VM (`capture/vm/vm.py`) that generators and callables use."""

    running: bool  # user code is running
    released: bool  # the capture is over

    @property
    def frames(self) -> Created:
        """What the program created in this capture."""

    def run(self, frame: Frame, error: BaseException | None = None) -> object:
        """Run `frame` until it returns or yields; with `error`, raise that at its current instruction."""

    def call(self, fn: object, args: Sequence[object], kwargs: dict[str, object]) -> object:
        """`fn(*args, **kwargs)`."""

    def call_native(self, fn: Callable[..., object], args: Sequence[object]) -> object:
        """`fn(*args)` for a C function, whose Python callbacks return to the VM."""

    def next(self, iterator: object) -> object:
        """`next(iterator)`."""

    def iterable(self, obj: object) -> Iterable[object]:
        """Wrap `obj` so that native code may iterate over it."""

    def elements(self, obj: object) -> Sequence[object]:
        """All elements of `obj`."""

    def subscript(self, obj: object, key: object) -> object:
        """`obj[key]`."""

    def drop_generator(self, generator: Generator) -> None:
        """Close a suspended generator whose last reference is gone."""


class Generator:
    """A generator whose frame the VM runs; native code may iterate it like any other."""

    __slots__ = ("__weakref__", "frame", "function", "state", "user_code", "vm")
    frame: Any  # a Frame; None once the generator has finished
    kind = "generator"

    def __init__(self, vm: Machine, frame: Frame) -> None:
        self.vm = vm
        self.frame = frame
        self.function = frame.function
        self.user_code = frame.user_code
        self.state = CREATED
        vm.frames.generators.append(weakref.ref(self))

    def __iter__(self) -> Generator:
        return self

    def __next__(self) -> object:
        return self.send(None)

    def send(self, value: object) -> object:
        """`generator.send`: run the frame to its next `yield`. Raises StopIteration when it returns."""
        if self.state is FINISHED:
            raise StopIteration
        if self.state is CREATED and value is not None:
            raise TypeError(f"can't send non-None value to a just-started {self.kind}")
        self.frame.stack.append(value)
        return self._resume(None)

    def throw(
        self, kind: type[BaseException] | BaseException, value: object = None, traceback: object = None
    ) -> object:
        """`generator.throw`: raise the exception in the iterator that it delegates to, else at its `yield`."""
        error = (
            kind if isinstance(kind, BaseException) else value if isinstance(value, BaseException) else kind()
        )
        if self.state is FINISHED:
            raise error
        if self.state is CREATED:
            self._finish()
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
    def has_cleanup(self) -> bool:
        """Whether dropping it may run code of the user: it has a `try` or a `with`."""
        return self.state is not FINISHED and self.frame.code.has_handlers

    @property
    def yieldfrom(self) -> object:
        """The iterator of its current `yield from`, or None."""
        return self._delegate()

    def _delegate(self) -> object:
        """The iterator of the `yield from` at which the generator is suspended, or None."""
        frame = self.frame
        resumes_delegation = (
            frame.code.names[frame.pc] == "RESUME" and frame.instructions[frame.pc][1] & 3 >= 2
        )
        return frame.stack[-1] if self.state is SUSPENDED and resumes_delegation else None

    def _throw_into(self, inner: object, error: BaseException) -> object:
        """Throw `error` into the iterator `inner` and return what it yields. Raises what `inner` raises, and `error` itself
        if `inner` has no `throw` or was closed."""
        closing = isinstance(error, GeneratorExit)
        method = getattr(inner, "close" if closing else "throw", None)
        arguments = () if closing else (error,)
        if method is not None:
            self.state = RUNNING
            try:
                result = (
                    method(*arguments)
                    if isinstance(inner, Generator)
                    else self.vm.call(method, arguments, {})
                )
            finally:
                self.state = SUSPENDED
            if not closing:
                return result
        raise error

    def _end_delegation(self, value: object) -> object:
        """Continue the frame after its `yield from`, which evaluates to `value`."""
        frame = self.frame
        target = frame.instructions[frame.pc - 2][1]  # SEND, YIELD_VALUE, RESUME
        if frame.code.names[target] == "END_SEND":
            frame.stack.append(value)
        else:
            frame.stack[-1] = value
        frame.pc = target
        return self._resume(None)

    def __del__(self) -> None:
        """Run the `finally` blocks when the user's code drops the generator."""
        if self.state is SUSPENDED and self.vm.running:
            self.vm.drop_generator(self)

    def close(self) -> object:
        """`generator.close`: since 3.13 it returns the frame's return value. Raises RuntimeError if the frame yields."""
        if self.state is SUSPENDED:
            try:
                self.throw(GeneratorExit())
            except GeneratorExit as closed:
                closed.__traceback__ = (
                    None  # its frames hold the exception: a cycle with all that the capture holds
                )
                return None
            except StopIteration as stop:
                return stop.value if PY313 else None
            # Keep it alive: dropping it would close it again.
            self.vm.frames.unclosed.append(self)
            raise RuntimeError(f"{self.kind} ignored GeneratorExit")
        self._finish()
        return None

    def _finish(self) -> None:
        self.state = FINISHED
        self.frame = None

    def _resume(self, error: BaseException | None) -> object:
        if self.state is RUNNING:
            raise ValueError(f"{self.kind} already executing")
        self.state = RUNNING
        frame = self.frame
        frame.yielded = False
        try:
            value = self.vm.run(frame, error)
        except StopIteration as stop:
            self._finish()
            raise RuntimeError(f"{self.kind} raised StopIteration") from stop
        except BaseException:
            self._finish()
            raise
        finally:
            frame.parent = None  # as CPython, which so avoids cycles
        if frame.yielded:
            self.state = SUSPENDED
            return value
        self._finish()
        raise StopIteration(value)


class Coroutine(Generator):
    """A coroutine whose frame the VM runs."""

    __slots__ = ()
    kind = "coroutine"

    def __iter__(self) -> Generator:
        raise TypeError("'coroutine' object is not iterable")

    def send(self, value: object) -> object:
        """`coroutine.send`."""
        if self.state is FINISHED:
            raise RuntimeError("cannot reuse already awaited coroutine")
        return super().send(value)

    def __del__(self) -> None:
        """Close it, or warn that it never ran, when the user's code drops it."""
        if self.state in (CREATED, SUSPENDED) and self.vm.running:
            self.vm.drop_generator(self)


class VMCallable:
    """A callable for native code that the VM interprets. `convert` turns its result into what native code may read."""

    __slots__ = ("convert", "function", "vm")

    function: Any

    def __init__(self, vm: Machine, fn: object, convert: Callable[[object], object] | None = None) -> None:
        self.vm = vm
        self.function = fn
        self.convert = convert

    def __call__(self, *args: object, **kwargs: object) -> object:
        if self.vm.released:  # native code outlives the capture
            return self.function(*args, **kwargs)
        result = self.vm.call(self.function, args, kwargs)
        return result if self.convert is None else self.convert(result)

    def __repr__(self) -> str:
        if self.vm.released:
            return repr(self.function)
        return cast(str, self.vm.call_native(repr, (self.function,)))  # of the arguments of a partial, too

    def __hash__(self) -> int:
        return hash(self.function)

    def __eq__(self, other: object) -> bool:
        return self.function == (other.function if type(other) is VMCallable else other)


class WeakCallback(VMCallable):
    """The callback of a weak reference that the program creates. It does not run for objects that the capture drops at its
    end: the call runs again, and then its own objects have callbacks."""

    __slots__ = ("__weakref__",)

    def __init__(self, vm: Machine, fn: object) -> None:
        super().__init__(vm, fn)
        vm.frames.weak_callbacks.append(weakref.ref(self))

    def __call__(self, *args: object, **kwargs: object) -> object:
        if self.vm.released:
            return None
        with contextlib.suppress(Unsupported):  # CPython would print it; the capture fails by it anyway
            super().__call__(*args, **kwargs)
        return None


class VMIterator:
    """A user's iterator for native code, advanced by the VM. Unlike a generator, it is reentrant."""

    __slots__ = ("iterator", "vm")

    def __init__(self, vm: Machine, iterator: object) -> None:
        self.vm = vm
        self.iterator = iterator

    def __iter__(self) -> VMIterator:
        return self

    def __next__(self) -> object:
        if self.vm.released:  # native code outlives the capture
            return next(cast("Iterator[object]", self.iterator))
        return self._convert(self.vm.next(self.iterator))

    def _convert(self, element: object) -> object:
        """Convert an element for native code."""
        return element


class VMIterables(VMIterator):
    """An iterator of iterables for native code that iterates over each of them."""

    __slots__ = ()

    def _convert(self, element: object) -> object:
        return self.vm.iterable(element)


class VMTuples(VMIterator):
    """An iterator of iterables for native code that converts each to a tuple."""

    __slots__ = ()

    def _convert(self, element: object) -> object:
        return tuple(self.vm.elements(element))


class VMSequence:
    """An object whose only iteration protocol is a Python `__getitem__`, for native code that iterates by index."""

    __slots__ = ("sequence", "vm")

    def __init__(self, vm: Machine, sequence: object) -> None:
        self.vm = vm
        self.sequence = sequence

    def __getitem__(self, index: int) -> object:
        if self.vm.released:
            return self.sequence[index]  # type: ignore[index]
        return self.vm.subscript(self.sequence, index)


class VMSizedSequence(VMSequence):
    """A sequence that also has `__len__`, the length hint of its iterator."""

    __slots__ = ()

    def __len__(self) -> int:
        if self.vm.released:
            return len(self.sequence)  # type: ignore[arg-type]
        return cast(int, self.vm.call(len, (self.sequence,), {}))


VM_ITERABLES = (VMIterator, VMIterables, VMTuples, VMSequence, VMSizedSequence)
SEQUENCE_ITERATOR: type = type(iter(cast("Sequence[object]", VMSequence.__new__(VMSequence))))
