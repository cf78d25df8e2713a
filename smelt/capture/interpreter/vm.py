"""The virtual machine: it runs a frame's bytecode over real objects, with fakes in place of tensors.

A `VM` is one capture (`driver/run.py`). Most of what it does is written as functions of a VM in the modules around this
one, a concept each; the class lists them.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn

from smelt.capture.base.bytecode import Code, decode
from smelt.capture.base.frames import Frame, Generator, VMCallable
from smelt.capture.base.handlers import BUILTINS, FUNCTIONS, METHODS, TENSOR_METHODS
from smelt.capture.base.native_functions import REFUSED, is_native_module
from smelt.capture.base.values import MISSING, NULL, BuiltinType, FunctionType, MethodType
from smelt.capture.breaks import suspended
from smelt.capture.breaks.resume import Originals
from smelt.capture.interpreter.opcodes import HANDLERS, unknown
from smelt.capture.library import (
    builtins,
    copying,
    descriptors,
    evaluation,
    function_transforms,
    numpy_conversions,
    optimizers,
    output,
    stdlib,
    tensor_numbers,
)
from smelt.capture.outside.registry import Outside
from smelt.capture.protocol import (
    arity,
    attributes,
    callbacks,
    calls,
    cells,
    containers,
    context_managers,
    operators,
    raising,
    scopes,
)
from smelt.capture.protocol.attributes import TypeInfo
from smelt.capture.standins.arrays import Array
from smelt.capture.standins.texts import Text
from smelt.errors import Unsupported
from smelt.graph.ir import Line
from smelt.reasons import UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT, Reason
from smelt.trace.fake import FakeTensor
from smelt.trace.symbols import PLAIN_TYPE
from smelt.trace.trace import Trace

# Importing these modules fills the tables of `base/handlers.py` and `rebuilding.kinds.KINDS`.
FILLING = (
    builtins, containers, copying, descriptors, evaluation, numpy_conversions, optimizers, output, stdlib, suspended,
)  # fmt: skip
arity.note((*BUILTINS, *(getattr(base, name) for base, name in METHODS if hasattr(base, name))))
_decoded: dict[int, tuple[Any, Code]] = {}  # id of a code object -> (weak reference, decoded)

_CALLING = ("CALL", "CALL_FUNCTION_EX")  # an earlier one may have been answered without a frame


def decoded(code: types.CodeType) -> Code:
    entry = _decoded.get(id(code))
    if entry is None:
        key = id(code)
        entry = (weakref.ref(code, lambda _: _decoded.pop(key, None)), decode(code, HANDLERS, unknown))
        _decoded[key] = entry
    return entry[1]


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
        self.trace.inputs.on_unknown = self._unknown_tensor
        self.trace.known.on_read = functools.partial(tensor_numbers.number, self)
        self.outside = Outside(self.trace, self.where)
        # the frames that run
        self.frame: Frame | None = None
        self.root: Frame | None = None  # the captured frame, once it runs
        # the frame whose CALL is being carried out, while what is called gives its result
        self.tail: Frame | None = None
        self.depth, self.depth_limit = 0, sys.getrecursionlimit()  # frames that run, and how many may
        # frames that are calling a module's `forward` without `__call__`
        self.module_callers: list[Frame | None] = []
        self.generators: list[weakref.ref[Generator]] = []

        # where and why it ends
        self.stop: tuple[int, ...] = ()  # where to stop: the tick of each frame from the root on
        self.stopped: list[Frame] = []  # the frames at the stop, outermost first
        # why capture must end, whatever native code makes of the error
        self.failure: Unsupported | None = None

        # exceptions
        self.handles = False  # some frame has a handler for exceptions
        # what is handled around the VM, and around the call
        self.host, self.outer = sys.exception(), raising.outer()
        self.raising: BaseException | None = None  # on its way through frames: it has its context
        self.traceback: Any = MISSING  # of an exception that is raised again

        # scopes.py, cells.py
        self.global_values: dict[tuple[int, str], Any] = {}
        self.own_scopes: dict[int, dict[str, Any]] = {}  # dictionaries made by the trace that hold globals
        self.cell_values: dict[int, Any] = {}
        # outside cells in closures that the trace made
        self.cell_places: dict[int, tuple[FunctionType, int]] = {}

        # context_managers.py
        # Context managers entered natively, with what they were before; and those from outside that were left.
        self.entered: list[tuple[Any, dict[str, Any]]] = []
        self.left_managers: list[tuple[Any, dict[str, Any]]] = []
        self.context_values: dict[int, Any] = {}
        self.context_tokens: list[tuple[Any, Any]] = []
        self.levels = function_transforms.levels()
        self.under_modes = False  # a mode of torch has seen calls before the trace did

        # classes, and what C code does
        self._types: dict[type, TypeInfo] = {}
        self.kinds = callbacks.Kinds(self.outside.use_class)
        self.running_natively: Any = None  # a function with a handler, which runs for real
        # names and bases of classes that C code makes
        self.making_classes: list[tuple[str, tuple[type, ...]]] = []

        # what the program was told, and what of it autograd and the output hold
        self.compiling = True  # what the program is told when it asks
        self.told_compiling = False  # it was told so
        self.shown_numbers: set[tuple[Any, ...]] = set()  # paths of the symbolic numbers in texts
        # tensors that a hook was registered on, with their `grad_fn`
        self.hooked: list[tuple[FakeTensor, Any]] = []
        # cells of functions that the graph holds, with their contents
        self.held_cells: list[tuple[Any, Any]] = []

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
    native = callbacks.native
    keyed = callbacks.keyed
    called_back = callbacks.called_back
    enter = context_managers.enter
    left = context_managers.left
    leave_contexts = context_managers.leave_contexts

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

    # ---- the end

    def release(self) -> None:
        """Lets go of the user's objects: in the cycles of a capture they would live until the next collection."""
        self.trace.forget_inputs()
        vars(self.outside).clear()
        vars(self).clear()
        self.released = True

    # ---- names

    load_global = scopes.load_global
    store_global = scopes.store_global
    delete_global = scopes.delete_global
    own_scope = scopes.own_scope
    expose = scopes.expose
    local_names = scopes.local_names
    read_held_cell = cells.read_held_cell
    holds_value = cells.holds_value
    cell_written = cells.cell_written
    cell_place = cells.cell_place
    cell_contents = cells.cell_contents
    touch_cell = cells.touch_cell
    register_cells = cells.register_cells
    made_function = cells.made_function

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
            self.kinds = callbacks.Kinds(self.outside.use_class)
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

    def _unknown_tensor(self, real: torch.Tensor) -> FakeTensor:
        origin = self.outside.origins.get(id(real))
        if origin is None:
            raise Unsupported(
                Reason(UNSUPPORTED_OBJECT, f"a tensor of shape {list(real.shape)} that native code holds")
            )
        return self.outside.wrap(real, origin)


_STDLIB = types.__file__.rsplit("/", 1)[0] + "/"
_TORCH = torch.__file__.rsplit("/", 1)[0] + "/"


def is_library(filename: str) -> bool:
    """Files of the standard library and of torch: not the user's."""
    if filename.startswith(_STDLIB) and "site-packages" not in filename:
        return True
    return (
        filename.startswith((_TORCH, "<frozen", "<string>", "<smelt"))
        or "/smelt/capture/protocol/polyfills" in filename
    )
