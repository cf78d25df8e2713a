"""The virtual machine: it runs a frame's bytecode over real objects, with fakes in place of tensors.

`capture_frame` is the entry: it wraps the argument slots, runs the frame inside a `Trace`, and gives the graphs, the guards,
the result and the effects. Whatever happens, outside objects are afterwards as they were before.
"""

from __future__ import annotations

import builtins
import functools
import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn

import smelt.capture.builtins
import smelt.capture.containers
import smelt.capture.conversions
import smelt.capture.copying
import smelt.capture.descriptors
import smelt.capture.evaluation
import smelt.capture.library
import smelt.capture.optimizers
import smelt.capture.output
import smelt.capture.suspended  # noqa: F401
from smelt.capture import (
    arity,
    attributes,
    breaks,
    calls,
    effects,
    gradients,
    managers,
    operators,
    raising,
    texts,
    transforms,
    windows,
)
from smelt.capture.arrays import Array
from smelt.capture.attributes import TypeInfo
from smelt.capture.breaks import Break
from smelt.capture.code import Code, decode
from smelt.capture.effects import Call, Effect, Enter, Leave
from smelt.capture.emit import collect_fakes
from smelt.capture.endings import Ending, Return
from smelt.capture.frames import Frame, Generator, VMCallable
from smelt.capture.natives import REFUSED, is_native_module, runs_natively
from smelt.capture.objects import Outside
from smelt.capture.opcodes import HANDLERS, unknown
from smelt.capture.resume import Originals
from smelt.capture.tables import BUILTINS, FUNCTIONS, METHODS, TENSOR_METHODS
from smelt.capture.texts import Text
from smelt.capture.values import (
    LEAF_TYPES,
    MISSING,
    NULL,
    BuiltinType,
    FunctionType,
    MethodType,
    instance_dict,
)
from smelt.config import Config
from smelt.errors import Unsupported
from smelt.graph import state as trace_state
from smelt.graph.ir import Line
from smelt.guards import state
from smelt.guards.guard import Guard
from smelt.guards.origin import Origin
from smelt.reasons import UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT, Reason
from smelt.trace.fake import FakeTensor, hashed
from smelt.trace.graphs import Traced
from smelt.trace.record import Trace
from smelt.trace.selected import NotCopies
from smelt.trace.symbols import PLAIN_TYPE, PlainNumbersOnly

arity.note((*BUILTINS, *(getattr(base, name) for base, name in METHODS if hasattr(base, name))))
_decoded: dict[int, tuple[Any, Code]] = {}  # id of a code object -> (weak reference, decoded)
_RECURSION_LIMIT = 20_000
_CALLING = ("CALL", "CALL_FUNCTION_EX")  # an earlier one may have been answered without a frame
_BUILTINS = vars(builtins)


def decoded(code: types.CodeType) -> Code:
    entry = _decoded.get(id(code))
    if entry is None:
        key = id(code)
        entry = (weakref.ref(code, lambda _: _decoded.pop(key, None)), decode(code, HANDLERS, unknown))
        _decoded[key] = entry
    return entry[1]


class UserException(Exception):
    """Raised by `capture_frame` when the user's code raised `error` (at `line`). Everything is rolled back."""

    def __init__(self, error: BaseException, line: Line | None = None, told: bool = False) -> None:
        super().__init__(repr(error))
        self.error = error
        self.line = line
        self.told = told  # the program was told that it is being compiled


class Stopped(BaseException):
    """Raised where capture is to stop; the frames stay as they are."""


class VM:
    """One capture."""

    functions = FUNCTIONS
    builtins = BUILTINS
    methods = METHODS
    tensor_methods = TENSOR_METHODS
    # the user's code runs: what it drops is finalized (of the class: a VM that has ended holds nothing)
    running = False
    released = False

    def __init__(self) -> None:
        self.trace = Trace(self.where)
        self.trace.on_unknown = self._unknown_tensor
        self.outside = Outside(self.trace, self.where)
        self.frame: Frame | None = None
        # the frame whose CALL is being carried out, while what is called gives its result
        self.tail: Frame | None = None
        self.stop: tuple[int, ...] = ()  # where to stop: the tick of each frame from the root on
        self.stopped: list[Frame] = []  # the frames at the stop, outermost first
        self.root: Frame | None = None  # the captured frame, once it runs
        self.handles = False  # some frame has a handler for exceptions
        self.under_modes = False  # a mode of torch has seen calls before the trace did
        self.compiling = True  # what the program is told when it asks
        self.told_compiling = False  # it was told so
        self.shown_numbers: set[tuple[Any, ...]] = set()  # paths of the symbolic numbers in texts
        self.context_values: dict[int, Any] = {}
        self.context_tokens: list[tuple[Any, Any]] = []
        self._types: dict[type, TypeInfo] = {}
        self._globals: dict[tuple[int, str], Any] = {}
        self._cells: dict[int, Any] = {}
        self._own_scopes: dict[int, dict[str, Any]] = {}  # dictionaries made by the trace that hold globals
        self.depth, self.depth_limit = 0, sys.getrecursionlimit()  # frames that run, and how many may
        self.generators: list[weakref.ref[Generator]] = []
        # what is handled around the VM, and around the call
        self.host, self.outer = sys.exception(), raising.outer()
        self.raising: BaseException | None = None  # on its way through frames: it has its context
        self.traceback: Any = MISSING  # of an exception that is raised again
        # outside cells in closures that the trace made
        self._places: dict[int, tuple[FunctionType, int]] = {}
        # Context managers entered natively, with what they were before; and those from outside that were left.
        self._entered: list[tuple[Any, dict[str, Any]]] = []
        self._left: list[tuple[Any, dict[str, Any]]] = []
        # frames that are calling a module's `forward` without `__call__`
        self.module_callers: list[Frame | None] = []
        self._levels = transforms.levels()
        self.failure: Unsupported | None = (
            None  # why capture must end, whatever native code makes of the error
        )
        self.kinds = windows.Kinds(self.outside.use_class)
        self.running_natively: Any = None  # a function with a handler, which runs for real
        # tensors that a hook was registered on, with their `grad_fn`
        self.hooked: list[tuple[FakeTensor, Any]] = []
        # cells of functions that the graph holds, with their contents
        self.held_cells: list[tuple[Any, Any]] = []
        # names and bases of classes that C code makes
        self.making_classes: list[tuple[str, tuple[type, ...]]] = []

    # ---- where

    def where(self) -> Line | None:
        """The user's line that runs: the innermost frame outside of torch and the standard library."""
        frame = self.frame or self.root
        while frame is not None:
            if not is_library(frame.code.filename) or frame.parent is None:
                return frame.line
            frame = frame.parent
        return None

    def stack(self) -> tuple[Line, ...]:
        lines = []
        frame = self.frame or self.root
        while frame is not None:
            lines.append(frame.line)
            frame = frame.parent
        return tuple(reversed(lines))

    def is_compiling(self) -> bool:
        """The answer to `torch.compiler.is_compiling()`."""
        self.told_compiling |= self.compiling
        return self.compiling

    def calls_module(self, frame: Frame | None) -> bool:
        """Whether `frame` is calling a module, whose `__call__` has no frame here."""
        return any(f is frame for f in self.module_callers)

    def ended(self, frame: Frame) -> Any:
        """The result of a frame that has returned or yielded; what it held and nobody else does is dropped."""
        result, frame.result = frame.result, None
        if not frame.yielded and type(result) is not Generator:
            frame.clear()
        return result

    def drop(self, generator: Generator) -> None:
        """A suspended generator that nobody holds any more."""
        raising, traceback = self.raising, self.traceback
        try:
            generator.close()
        except Unsupported:
            pass  # noted
        except BaseException as e:
            self.locate(Unsupported(Reason(UNSUPPORTED_EFFECT, f"a generator that is dropped raises {e!r}")))
        finally:
            self.raising, self.traceback = raising, traceback

    def raise_again(self, error: BaseException) -> NoReturn:
        """Raises `error` as it was: with its context and, in this frame, its traceback."""
        self.raising, self.traceback = error, error.__traceback__
        raise error

    def handled_exception(self) -> BaseException | None:
        frame = self.frame
        while frame is not None:
            if frame.handled is not None:
                return frame.handled
            frame = frame.parent
        if self.outer is not None:
            raise Unsupported(
                Reason(UNSUPPORTED_EFFECT, "an exception is raised while the caller handles another")
            )
        self.outside.guard("eq", self.outside.const(sys.exception).child("call", None), None)
        return None

    # ---- the loop

    def run(self, frame: Frame, error: BaseException | None = None) -> Any:
        """Runs `frame` until it returns or yields. With `error`, it is raised where the frame stands."""
        self.depth += 1
        if self.depth > self.depth_limit:
            self.depth -= 1
            raise RecursionError("maximum recursion depth exceeded")
        frame.parent, self.frame = self.frame, frame
        instructions, stop = frame.instructions, frame.stop
        if frame.code.handlers:
            self.handles = True
        try:
            while True:
                try:
                    if error is not None:
                        raised, error = error, None
                        raise raised
                    while True:
                        pc = frame.pc
                        frame.pc = pc + 1
                        frame.ticks = ticks = frame.ticks + 1
                        if ticks == stop:
                            self.check_stop(frame)
                        handler, arg = instructions[pc]
                        if handler(self, frame, arg):
                            return self.ended(frame) if self.generators else frame.result
                except Unsupported as e:
                    self.locate(e)
                    raise
                except Stopped:
                    raise
                except BaseException as e:
                    if self.failure is not None:
                        raise self.failure from e
                    if e is not self.raising:
                        raising.without(e, self.host)
                        raising.chain(e, self.handled_exception())
                    elif self.traceback is not MISSING:
                        e.__traceback__ = self.traceback
                    self.raising, self.traceback = e, MISSING
                    if not frame.unwind(e):
                        raise
                    self.raising = None
        finally:
            self.frame = frame.parent
            self.depth -= 1

    def locate(self, error: Unsupported) -> None:
        """Adds the user's line and stack to a reason, where it was raised first."""
        if self.failure is None:
            reason = error.reason
            error.reason = replace(reason, line=self.where() or reason.line, stack=self.stack())
            error.args = (str(error.reason),)
            self.failure = error
            error.path = tuple(f.ticks for f in self._resumable_frames()) if error.breaks else ()

    # ---- stops

    def _resumable_frames(self) -> list[Frame]:
        """The frames, from the root on, that can be left in the middle: each waits at a CALL for the next one's result."""
        frames: list[Frame] = []
        frame = self.frame
        while frame is not None:
            frames.append(frame)
            frame = frame.parent
        frames.reverse()
        if not frames or frames[0] is not self.root:
            return []
        count = next((i for i, f in enumerate(frames) if i and not f.direct), len(frames))
        return frames[:count]

    def direct(self, frame: Frame) -> Frame:
        """`frame`, made for the call of the CALL that is being carried out."""
        caller, self.tail = self.tail, None
        if caller is not None and caller is self.frame and caller.code.names[caller.pc - 1] in _CALLING:
            frame.direct = True
            depth = len(self.stopped)
            if caller.ticks == caller.stop and depth and self.stopped[-1] is caller:
                frame.stop = self.stop[depth]
        return frame

    def check_stop(self, frame: Frame) -> None:
        """`frame` is about to begin the instruction at which capture is to stop in it, or in what it calls."""
        self.stopped.append(frame)
        if len(self.stopped) == len(self.stop):
            raise Stopped

    def run_class_body(self, body: FunctionType, namespace: Any) -> Any:
        code = self.decode(body.__code__)
        frame = Frame(code, body, [NULL] * code.nlocals)
        frame.namespace = namespace
        return self.run(frame)

    decode = staticmethod(decoded)
    originals = Originals(decoded)

    # ---- calls

    call = calls.call
    call_function = calls.call_function
    instantiate = calls.instantiate
    native = windows.native
    keyed = windows.keyed
    called_back = windows.called_back

    def native_callable(self, fn: Any) -> Any:
        """`fn` as native code may call it."""
        if type(fn) is BuiltinType:
            return VMCallable(self, fn) if calls.has_effects(fn) else fn
        return VMCallable(self, fn) if self._is_python(fn) else fn

    def native_argument(self, value: Any) -> Any:
        """An argument of a native function: Python callables come back to the VM. Raises Unsupported for an outside
        object of C that holds data (an array, a buffer): what native code reads from it could not be guarded."""
        kind = type(value)
        if kind in (FunctionType, MethodType):
            return VMCallable(self, value) if self._is_python(value) else value
        if kind is functools.partial or (kind is BuiltinType and calls.has_effects(value)):
            return VMCallable(self, value)
        self.outside.use_content(value)
        if id(value) in self.outside.origins and calls.is_opaque(value):
            raise Unsupported(Reason(UNSUPPORTED_OBJECT, f"native code reads an outside {kind.__qualname__}"))
        return value

    def _is_python(self, fn: Any) -> bool:
        kind = type(fn)
        if kind is FunctionType:
            return fn in FUNCTIONS or fn in REFUSED or not is_native_module(fn.__globals__.get("__name__"))
        if kind is MethodType:
            return self._is_python(fn.__func__)
        if kind is functools.partial:
            return True
        self.outside.use_content(fn)
        if isinstance(fn, type):
            return (
                type(fn) is type
                and self.type_info(fn).find("__init__")[0] is attributes.FUNCTION
                and fn not in BUILTINS
            )
        return self.type_info(kind).find("__call__")[0] is attributes.FUNCTION

    def enter(self, manager: Any) -> Any:
        """`manager.__enter__()`."""
        how, found, _ = self.type_info(type(manager)).find("__enter__")
        native = how is not attributes.FUNCTION or runs_natively(found)
        self.outside.check_readable(manager)
        before = dict(instance_dict(manager) or {})
        entered = self.call(attributes.load_special(self, manager, "__enter__"), (), {})
        if native:
            self._entered.append((manager, before))
        return entered

    def left(self, manager: Any) -> None:
        """`manager.__exit__` is about to run."""
        if isinstance(manager, torch.autocast):
            self.trace.leave_autocast()
        if self._entered and self._entered[-1][0] is manager:
            self._entered.pop()
        elif id(manager) in self.outside.origins:
            self._leave_outside(manager)

    def _leave_outside(self, manager: Any) -> None:
        """A manager that was entered before a graph break: only those whose effect can be taken back."""
        if not isinstance(manager, _REVERSIBLE):
            what = type(manager).__qualname__
            raise Unsupported(Reason(UNSUPPORTED_EFFECT, f"a {what} entered before a graph break is left"))
        origin = self.outside.origins[id(manager)]
        for name, value in vars(manager).items():
            if type(value) in LEAF_TYPES:
                self.outside.wrap(value, origin.child("attr", name))
        self._left.append((manager, dict(vars(manager))))

    # ---- the end

    def release(self) -> None:
        """Lets go of the user's objects: in the cycles of a capture they would live until the next collection."""
        self.trace.forget_inputs()
        vars(self.outside).clear()
        vars(self).clear()
        self.released = True

    # ---- names

    def load_global(self, namespace: dict[str, Any], name: str) -> Any:
        key = (id(namespace), name)
        value = self._globals.get(key, MISSING)
        if value is MISSING:
            value = self._read_global(namespace, name)
            if id(namespace) not in self._own_scopes:
                self._globals[key] = value
        return value

    def own_scope(self, scope: dict[str, Any]) -> None:
        """`scope`, made by the trace, is to hold the globals of code that runs."""
        self._own_scopes[id(scope)] = scope
        if "__builtins__" not in scope:
            self.outside.const(_BUILTINS)
            scope["__builtins__"] = _BUILTINS

    def expose(self, namespace: dict[str, Any]) -> dict[str, Any]:
        """`globals()`: from now on it is an object like any other, which stays as it is."""
        if self.outside.log.touches_any(namespace):
            raise Unsupported(Reason(UNSUPPORTED_EFFECT, "globals() of a module whose names were changed"))
        self.outside.const(namespace)
        self.outside.fixed.add(id(namespace))
        return namespace

    def _read_global(self, namespace: dict[str, Any], name: str) -> Any:
        outside = self.outside
        if id(namespace) in self._own_scopes and name in namespace:
            return namespace[name]
        if name in namespace:
            return outside.wrap(namespace[name], outside.const(namespace).child("item", name))
        found = namespace.get("__builtins__", _BUILTINS)
        found = found if isinstance(found, dict) else vars(found)
        outside.guard("contains", outside.const(namespace), (name, False), key=name)
        if name not in found:
            outside.guard("contains", outside.const(found), (name, False), key=name)
            raise NameError(f"name {name!r} is not defined", name=name)
        return outside.wrap(found[name], outside.const(found).child("item", name))

    def store_global(self, namespace: dict[str, Any], name: str, value: Any) -> None:
        if id(namespace) in self._own_scopes:
            namespace[name] = value
            return
        self.outside.const(namespace)
        self.outside.check_changeable(namespace)
        self.outside.log.touch_global(namespace, name)
        namespace[name] = value
        self._globals[id(namespace), name] = value

    def delete_global(self, namespace: dict[str, Any], name: str) -> None:
        if id(namespace) not in self._own_scopes:
            self.outside.check_changeable(namespace)
            self.outside.log.touch_global(namespace, name)
        del namespace[name]
        self._globals.pop((id(namespace), name), None)

    def read_cell(self, function: FunctionType, cell: Any, at: int) -> Any:
        value = self._cells.get(id(cell), MISSING)
        if value is MISSING:
            origin = self.outside.const(function).child("cell", at)
            value = self._cells[id(cell)] = self.outside.wrap(cell.cell_contents, origin)
        return value

    def holds_value(self, cell: Any) -> bool:
        """Whether a cell from outside that a resume function was given is not empty, guarded."""
        empty = effects.cell_value(cell) is MISSING
        if empty:
            raise Unsupported(Reason(UNSUPPORTED_OBJECT, "an empty cell from outside"))
        return True

    def read_held_cell(self, cell: Any) -> Any:
        """The contents of a cell that is itself a value from outside."""
        value = self._cells.get(id(cell), MISSING)
        if value is MISSING:
            origin = self.outside.origins[id(cell)].child("member", "cell_contents")
            value = self._cells[id(cell)] = self.outside.wrap(cell.cell_contents, origin)
        return value

    def cell_written(self, cell: Any) -> bool:
        return id(cell) in self.outside.log._cells

    def touch_cell(self, function: FunctionType, cell: Any, at: int) -> None:
        log = self.outside.log
        log.touch_cell(cell)
        self._register_cell(function, cell, at)

    def _register_cell(self, function: FunctionType, cell: Any, at: int) -> None:
        self.outside.register(
            cell, self.outside.const(function).child("member", "__closure__").child("item", at)
        )

    def register_cells(self, frame: Frame) -> None:
        """The cells of a function from outside are outside objects."""
        if id(frame.function) in self.outside.origins:
            for at, cell in enumerate(frame.function.__closure__ or ()):
                self._register_cell(frame.function, cell, at)

    def made_function(self, frame: Frame, made: FunctionType) -> None:
        """A function made by the trace. Its closure may hold cells from outside, which it reads and writes as such."""
        self.outside.made_function(made)
        own = {id(c) for c in made.__closure__ or ()}
        if not own or id(frame.function) not in self.outside.origins:
            return
        first = frame.code.nlocals - frame.code.nfree
        for at, cell in enumerate(frame.locals[first:]):
            if id(cell) in own:
                self._places[id(cell)] = (frame.function, at)
                self._register_cell(frame.function, cell, at)

    def cell_place(self, frame: Frame, arg: int) -> tuple[FunctionType, int] | None:
        """The function from outside whose closure holds a cell, and where; None for a cell that the trace made."""
        first = frame.code.nlocals - frame.code.nfree
        if arg < first:
            return None
        if id(frame.function) in self.outside.origins:
            return frame.function, arg - first
        return self._places.get(id(frame.locals[arg]))

    def cell_contents(self, frame: Frame, at: int) -> Any:
        """What the cell in a slot holds; MISSING if it is empty."""
        cell = frame.locals[at]
        if not self.cell_written(cell):
            place = self.cell_place(frame, at)
            if place is not None and self.holds_value(cell):
                return self.read_cell(place[0], cell, place[1])
            if id(cell) in self.outside.origins and self.holds_value(cell):
                return self.read_held_cell(cell)
        return effects.cell_value(cell)

    def _named_slots(self, frame: Frame) -> Iterable[tuple[str, int]]:
        """The user's variables and where they are: a resume function has slots besides."""
        original = frame.code.original
        if original is None:
            return zip(frame.code.local_names, range(frame.code.nlocals))
        return zip(self.decode(original.source).local_names, original.places)

    def local_names(self, frame: Frame | None) -> dict[str, Any]:
        """`locals()`: for a function always the same dictionary, brought up to date."""
        assert frame is not None
        if frame.namespace is not None:
            return frame.namespace
        found = frame.names = {} if frame.names is None else frame.names
        for name, at in self._named_slots(frame):
            value = frame.locals[at]
            if type(value) is types.CellType:
                value = self.cell_contents(frame, at)
            if value is not NULL and value is not MISSING:
                found[name] = value
            else:
                found.pop(name, None)
        return found

    # ---- types

    def type_info(self, cls: type) -> TypeInfo:
        info = self._types.get(cls)
        if info is None:
            info = self._types[cls] = TypeInfo(cls)
        return info

    def has_looked_up(self, owner: type, name: str) -> bool:
        """Whether the trace has looked for `name` on a class that inherits from `owner`."""
        return any(name in info.found for cls, info in self._types.items() if owner in cls.__mro__)

    def forget_type(self, owner: Any) -> None:
        if isinstance(owner, type):
            self.kinds = windows.Kinds(self.outside.use_class)
            self._types = {c: i for c, i in self._types.items() if owner not in c.__mro__}

    def class_of(self, obj: Any) -> type:
        """`type(obj)` as the user sees it."""
        kind = type(obj)
        if kind is FakeTensor:
            return nn.Parameter if getattr(obj, "_is_param", False) else torch.Tensor
        if kind is Generator:
            return types.GeneratorType
        if kind is VMCallable:
            return type(obj.function)
        if kind is Text:
            return str
        if kind is Array:
            return obj.dtype.type if obj.scalar else np.ndarray
        return PLAIN_TYPE.get(kind, kind)

    # ---- operations

    binary = operators.binary
    truth = operators.truth
    same = operators.same
    contains = operators.contains
    subscript = operators.subscript
    item_value = operators.item_value
    store_item = operators.store_item
    delete_item = operators.delete_item
    get_iter = operators.get_iter
    next = operators.next_item
    iterable = operators.iterable
    elements = operators.elements

    # ---- tensors

    def _unknown_tensor(self, real: torch.Tensor) -> FakeTensor:
        origin = self.outside.origins.get(id(real))
        if origin is None:
            raise Unsupported(
                Reason(UNSUPPORTED_OBJECT, f"a tensor of shape {list(real.shape)} that native code holds")
            )
        return self.outside.wrap(real, origin)

    # ---- the end

    def leave_contexts(self) -> None:
        """Undoes what is still entered when capture ends early."""
        for variable, token in reversed(self.context_tokens):
            variable.reset(token)
        self.context_tokens.clear()
        while self._entered:
            manager, before = self._entered.pop()
            if not isinstance(manager, managers.IDLE):
                manager.__exit__(None, None, None)
            _restore_attributes(manager, before)
        while self._left:
            manager, before = self._left.pop()
            if isinstance(manager, managers.IDLE):
                continue
            manager.__enter__()
            if not isinstance(manager, torch.inference_mode):  # which holds what its __enter__ made
                _restore_attributes(manager, before)
        with self.trace.paused():
            for function, args in trace_state.difference(trace_state.read(), self.trace.first_state):
                function(*args)
        transforms.restore(self._levels)


# Managers of torch that are a setting and nothing else: leaving and entering them again changes nothing.
_REVERSIBLE = (
    torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.inference_mode, torch.autocast, *managers.IDLE,
)  # fmt: skip
# Grad mode inside of those that change it.
_GRAD_IN: dict[type, Callable[[Any], bool]] = {
    torch.no_grad: lambda m: False,
    torch.enable_grad: lambda m: True,
    torch.set_grad_enabled: lambda m: m.mode,
    torch.inference_mode: lambda m: not m.mode,
}
_STDLIB = types.__file__.rsplit("/", 1)[0] + "/"
_TORCH = torch.__file__.rsplit("/", 1)[0] + "/"


def is_library(filename: str) -> bool:
    """Files of the standard library and of torch: not the user's."""
    if filename.startswith(_STDLIB) and "site-packages" not in filename:
        return True
    return (
        filename.startswith((_TORCH, "<frozen", "<string>", "<smelt"))
        or "/smelt/capture/polyfills" in filename
    )


@dataclass
class CapturedFrame:
    """What a capture gives. The values in `ending` and `effects` are real objects in which tensors are fakes."""

    traced: Traced
    input_origins: tuple[Origin, ...]
    guards: tuple[Guard, ...]
    ending: Ending
    origin_of: Callable[[object], Origin | None]
    effects: tuple[Effect, ...]
    code: types.CodeType
    name: str
    filename: str
    first_line: int
    outside: Outside
    handles: bool  # the program has handlers for exceptions
    release: Callable[[], None]  # to be called when this is no longer needed: `VM.release`

    @property
    def result(self) -> Any:
        """What the frame returned."""
        assert isinstance(self.ending, Return)
        return self.ending.result


@contextmanager
def _quiet() -> Iterator[None]:
    """No garbage collection (a third of the time otherwise), room for the recursion of the VM, modes restored."""
    collecting, limit, grad = gc.isenabled(), sys.getrecursionlimit(), torch.is_grad_enabled()
    gc.disable()
    sys.setrecursionlimit(max(limit, _RECURSION_LIMIT))
    try:
        yield
    finally:
        torch._C._set_grad_enabled(grad)
        sys.setrecursionlimit(limit)
        if collecting:
            gc.enable()


@dataclass(frozen=True)
class Stop:
    """Before which instruction to end capture, and why.

    `path`: how many instructions each frame has begun, outermost first.
    """

    path: tuple[int, ...]
    reason: Reason


def capture_frame(
    fn: FunctionType,
    slots: Sequence[object],
    config: Config,
    *,
    name: str,
    stop: Stop | None = None,
    dynamic: frozenset[tuple[Any, ...]] = frozenset(),
    compiling: bool = True,
    copies: bool = True,
    differentiate: bool = False,
    counts: bool = False,
) -> CapturedFrame:
    """Captures a call of `fn` whose frame has these argument slots, to its end or up to `stop`. Numbers at the origins
    with a path in `dynamic` are symbolic; where that makes the program raise, they are not. `compiling` is what the
    program is told when it asks whether it is being compiled. `copies`: of views at unknown places are made.
    `differentiate`: where gradients are needed, the joint graph is wanted. `counts`: the step counts of
    optimizers are symbolic.

    Raises:
        Unsupported: with the user's line and stack, and the `path` of a stop before the instruction that raised it.
        NotDifferentiable: there is no joint graph.
        NotCopies: `copies` do not do.
        UserException: the user's code raised.
    """
    vm = VM()
    vm.trace.differentiate = differentiate
    vm.trace.copies.allowed = copies
    vm.depth_limit -= _stack_depth()
    vm.stop = stop.path if stop else ()
    vm.outside.dynamic = dynamic
    vm.outside.follows_counts = counts
    vm.compiling = compiling
    captured = None
    with _quiet():
        try:
            captured = _capture(vm, fn, slots, name, stop)
            return captured
        except Exception as e:
            fixed = _to_fix(vm, e)
            counts = counts and not _needs_plain_numbers(vm, e)
            if not fixed and counts == vm.outside.follows_counts:
                if isinstance(e, Unsupported):
                    vm.locate(e)
                raise
        finally:
            vm.leave_contexts()
            vm.outside.log.roll_back()
            if vm.trace.symbols is not None:
                vm.trace.symbols.release()
            if captured is None:
                vm.release()
    return capture_frame(
        fn,
        slots,
        config,
        name=name,
        stop=stop,
        dynamic=dynamic - fixed,
        compiling=compiling,
        copies=copies,
        differentiate=differentiate,
        counts=counts,
    )


def _to_fix(vm: VM, error: Exception) -> frozenset[tuple[Any, ...]]:
    """Paths of the numbers that must not be symbolic for capture to get by `error`."""
    if vm.trace.symbols is not None and isinstance(error, texts.Unreadable):
        return frozenset(vm.shown_numbers)
    return vm.outside.dynamic if _needs_plain_numbers(vm, error) else frozenset()


def _needs_plain_numbers(vm: VM, error: Exception) -> bool:
    """Whether capture may get by `error` without symbolic numbers."""
    if vm.trace.symbols is None or isinstance(error, (texts.Unreadable, NotCopies)):
        return False
    return isinstance(error, PlainNumbersOnly) or not isinstance(error, Unsupported)


def _capture(
    vm: VM, fn: FunctionType, slots: Sequence[object], name: str, stop: Stop | None
) -> CapturedFrame:
    outside, trace = vm.outside, vm.trace
    vm.under_modes = managers.check_modes()
    transforms.check_start(vm._levels)
    snapshot = state.snapshot()
    outside.guard("global_state", None, snapshot)
    outside.const(fn)
    outside.made_function(fn)  # entries belong to its code object
    code = vm.decode(fn.__code__)
    hashed.clear()
    with trace:
        frame = Frame(code, fn, [NULL] * code.nlocals)
        for i, value in enumerate(slots):
            frame.locals[i] = outside.wrap(value, Origin("arg", code.local_names[i], None, i))
        try:
            ending = _run_root(vm, frame, stop)
            _check_left(vm, ending)
            settings = _settings(vm)
        finally:
            # while the modes of the trace are on, as they were when the contexts were entered
            vm.leave_contexts()
        effects = (*outside.log.effects(), *settings)
        outside.guard_distinct()
        outside.guard_changed_classes()
        _guard_hashed(vm)
        _guard_offsets(vm)
        gradients.check_end(vm)
        outside.log.roll_back()
        fakes = _fakes(vm, ending, effects)
        if vm.under_modes:
            gradients.check_history([*fakes, *trace.inputs])
        trace.copies.check((*fakes, *trace.counted_from_start))
        traced = trace.finish(fakes)
    if state.snapshot() != snapshot:
        raise Unsupported(
            Reason(UNSUPPORTED_EFFECT, "global state (grad mode, autocast, ...) is different at the end")
        )
    return CapturedFrame(
        traced=traced,
        input_origins=tuple(outside.origins[id(f)] for f in traced.inputs),
        guards=(*outside.guards, *_overlap_guards(vm, traced)),
        ending=ending,
        origin_of=outside.origin_of,
        effects=effects,
        code=fn.__code__,
        name=name,
        filename=fn.__code__.co_filename,
        first_line=fn.__code__.co_firstlineno,
        outside=outside,
        handles=vm.handles,
        release=vm.release,
    )


def _run_root(vm: VM, frame: Frame, stop: Stop | None) -> Ending:
    vm.root = frame
    frame.stop = vm.stop[0] if vm.stop else 0
    vm.running = True
    try:
        result = vm.run(frame)
    except Stopped:
        assert stop is not None
        return _plan_break(vm, stop)
    except Unsupported:
        raise
    except Exception as e:
        if vm.failure is not None:
            raise vm.failure from e
        raise UserException(e, vm.where(), vm.told_compiling) from e
    finally:
        vm.running = False
    if stop is not None:
        raise RuntimeError("capture did not come by the instruction at which it was to stop")
    return Return(result)


def _stack_depth() -> int:
    """How many frames there are below the captured one."""
    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


def _check_generators(vm: VM) -> None:
    """A generator with a `finally` to run must be dropped when the user's code drops it: a resume function's caller would
    keep it alive longer."""
    held = {id(v) for frame in vm.stopped for v in (*frame.stack, *frame.locals)}
    for generator in filter(None, (ref() for ref in vm.generators)):
        if id(generator) in held and generator.protected:
            raise Unsupported(
                Reason(UNSUPPORTED_EFFECT, "a graph break while a generator is inside of `try` or `with`")
            )


def _plan_break(vm: VM, stop: Stop) -> Break:
    frames = vm.stopped
    _check_generators(vm)
    transforms.check_break(vm._levels)
    for frame in frames:
        frame.pc -= 1
        vm.register_cells(frame)
    return breaks.plan(vm.originals, frames, stop.reason)


def _settings(vm: VM) -> list[Effect]:
    """The context managers that are entered or left for good, and the settings that are different now."""
    found: list[Effect] = [Leave(manager) for manager, _ in vm._left]
    replayed: list[Any] = list(vm.trace.first_state)
    now = trace_state.read()
    for manager, attributes_then in vm._left:
        _put_back(type(manager), attributes_then, replayed)
    for manager, _ in vm._entered:
        inside = _GRAD_IN.get(type(manager))
        if (
            inside is not None
            and type(manager) is not torch.inference_mode
            and manager.prev is not replayed[0]
        ):
            found.append(
                Call(torch._C._set_grad_enabled, (manager.prev,))
            )  # what the manager is going to put back
            replayed[0] = manager.prev
        found.append(Enter(manager))
        if inside is not None:
            replayed[0] = inside(manager)
    if found:
        now = (now[0], replayed[1], *now[2:])  # inference mode is left to its manager
    found += [Call(function, args) for function, args in trace_state.difference(tuple(replayed), now)]
    return found


def _put_back(kind: type, manager: dict[str, Any], state: list[Any]) -> None:
    """Changes `state` as leaving a manager with these attributes does. Grad mode is None where nothing tells."""
    if kind in _GRAD_IN:
        state[0] = None if kind is torch.inference_mode else manager["prev"]
    elif issubclass(kind, torch.autocast):
        at = {"cpu": 2, "cuda": 4}.get(manager["device"])
        if at is not None:
            state[at : at + 2] = manager["prev"], manager["prev_fastdtype"]


def _restore_attributes(manager: Any, before: dict[str, Any]) -> None:
    own = instance_dict(manager)
    if own is not None and own != before:
        own.clear()
        own.update(before)


def _check_left(vm: VM, ending: Ending) -> None:
    if vm.failure is not None:  # swallowed by native code
        raise vm.failure
    if vm._entered and isinstance(ending, Return):
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a context manager is entered and not left"))
    if vm.context_tokens:
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a ContextVar is set"))


def _fakes(vm: VM, ending: Ending, effects: Sequence[Effect]) -> list[FakeTensor]:
    """The tensors that the frame's end and stores need."""
    operands = [v for e in effects for v in vars(e).values() if v is not e.target and v is not MISSING]
    return collect_fakes([*ending.roots, *operands], vm.outside.origin_of)


def _guard_hashed(vm: VM) -> None:
    """Tensors that were put in sets or used as keys must again be different ones."""
    origins = tuple(vm.outside.origins[id(f)] for f in hashed.values() if vm.trace.is_input(f))
    hashed.clear()
    if len(origins) > 1:
        vm.outside.guard("distinct", origins[0], origins, key="hashed")


def _guard_offsets(vm: VM) -> None:
    """Where in its storage an input starts matters only to what counts from the storage's start."""
    storages = {f.storage_key for f in vm.trace.counted_from_start}
    for fake in vm.trace.inputs if storages else ():
        if fake.storage_key in storages:
            origin = vm.outside.origins[id(fake)].child("member", "storage_offset").child("call", None)
            vm.outside.guard("eq", origin, fake.elem.storage_offset())


def _overlap_guards(vm: VM, traced: Traced) -> list[Guard]:
    """When an input is written, that it shares no storage with the others is part of the trace."""
    if not traced.mutated or len(traced.inputs) < 2:
        return []
    origins = tuple(vm.outside.origins[id(f)] for f in traced.inputs)
    if any(origin.kind == "array" for origin in origins):
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a tensor is written in place beside a NumPy array"))
    storages = [f.storage_key for f in traced.inputs]
    if len(set(storages)) != len(storages):
        raise Unsupported(
            Reason(UNSUPPORTED_EFFECT, "a tensor is written in place while another shares its storage")
        )
    return [Guard("no_overlap", origins[0], origins)]
