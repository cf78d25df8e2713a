"""The virtual machine: it runs a frame's bytecode over real objects, with fakes in place of tensors.

`capture_frame` is the entry: it wraps the argument slots, runs the frame inside a `Trace`, and gives the graphs, the guards,
the result and the effects. Whatever happens, outside objects are afterwards as they were before.
"""

from __future__ import annotations

import builtins
import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

import smelt.capture.builtins
import smelt.capture.containers
import smelt.capture.library  # noqa: F401
from smelt.capture import attributes, calls, operators, transforms, windows
from smelt.capture.attributes import TypeInfo
from smelt.capture.code import Code, decode
from smelt.capture.effects import Effect
from smelt.capture.emit import collect_fakes
from smelt.capture.frames import Frame, Generator, VMCallable
from smelt.capture.natives import is_native_module, runs_natively
from smelt.capture.objects import Outside
from smelt.capture.opcodes import HANDLERS, unknown
from smelt.capture.tables import BUILTINS, FUNCTIONS, METHODS, TENSOR_METHODS
from smelt.capture.values import MISSING, NULL, FunctionType, MethodType
from smelt.config import Config
from smelt.errors import Unsupported
from smelt.graph.ir import Line
from smelt.guards import state
from smelt.guards.guard import Guard
from smelt.guards.origin import Origin
from smelt.reasons import UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT, Reason
from smelt.trace.fake import FakeTensor, hashed
from smelt.trace.graphs import Traced
from smelt.trace.record import Trace

_decoded: dict[int, tuple[Any, Code]] = {}  # id of a code object -> (weak reference, decoded)
_RECURSION_LIMIT = 20_000
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

    def __init__(self, error: BaseException, line: Line | None = None) -> None:
        super().__init__(repr(error))
        self.error = error
        self.line = line


class VM:
    """One capture."""

    functions = FUNCTIONS
    builtins = BUILTINS
    methods = METHODS
    tensor_methods = TENSOR_METHODS

    def __init__(self) -> None:
        self.trace = Trace(self.where)
        self.trace.on_unknown = self._unknown_tensor
        self.outside = Outside(self.trace, self.where)
        self.frame: Frame | None = None
        self.root: Frame | None = None  # the captured frame, once it runs
        self.context_values: dict[int, Any] = {}
        self.context_tokens: list[tuple[Any, Any]] = []
        self._types: dict[type, TypeInfo] = {}
        self._globals: dict[tuple[int, str], Any] = {}
        self._cells: dict[int, Any] = {}
        self._entered: list[Any] = []  # context managers entered natively
        self._levels = transforms.levels()
        self.failure: Unsupported | None = (
            None  # why capture must end, whatever native code makes of the error
        )
        self.kinds = windows.new_kinds()
        self.making_classes: list[tuple[str, tuple[type, ...]]] = []  # names and bases of classes that C code makes

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

    def frame_at(self, level: int) -> Frame:
        """The frame `level - 1` callers up, as `stacklevel` of warnings counts."""
        frame = self.frame
        assert frame is not None
        for _ in range(level - 1):
            if frame.parent is None:
                break
            frame = frame.parent
        return frame

    def handled_exception(self) -> BaseException | None:
        frame = self.frame
        while frame is not None:
            if frame.handled is not None:
                return frame.handled
            frame = frame.parent
        return None

    # ---- the loop

    def run(self, frame: Frame, error: BaseException | None = None) -> Any:
        """Runs `frame` until it returns or yields. With `error`, it is raised where the frame stands."""
        frame.parent, self.frame = self.frame, frame
        instructions = frame.instructions
        try:
            while True:
                try:
                    if error is not None:
                        raised, error = error, None
                        raise raised
                    while True:
                        pc = frame.pc
                        frame.pc = pc + 1
                        handler, arg = instructions[pc]
                        if handler(self, frame, arg):
                            return frame.result
                except Unsupported as e:
                    self.locate(e)
                    raise
                except BaseException as e:
                    if self.failure is not None:
                        raise self.failure from e
                    if not frame.unwind(e):
                        raise
        finally:
            self.frame = frame.parent

    def locate(self, error: Unsupported) -> None:
        """Adds the user's line and stack to a reason, where it was raised first."""
        if self.failure is None:
            reason = error.reason
            error.reason = replace(reason, line=self.where() or reason.line, stack=self.stack())
            error.args = (str(error.reason),)
            self.failure = error

    def run_class_body(self, body: FunctionType, namespace: Any) -> Any:
        code = self.decode(body.__code__)
        frame = Frame(code, body, [NULL] * code.nlocals)
        frame.namespace = namespace
        return self.run(frame)

    decode = staticmethod(decoded)

    # ---- calls

    call = calls.call
    call_function = calls.call_function
    instantiate = calls.instantiate
    native = windows.native
    keyed = windows.keyed
    called_back = windows.called_back

    def native_callable(self, fn: Any) -> Any:
        """`fn` as native code may call it."""
        return VMCallable(self, fn) if self._is_python(fn) else fn

    def native_argument(self, value: Any) -> Any:
        """An argument of a native function: Python callables come back to the VM. Raises Unsupported for an outside
        object of C that holds data (an array, a buffer): what native code reads from it could not be guarded."""
        kind = type(value)
        if kind in (FunctionType, MethodType):
            return VMCallable(self, value) if self._is_python(value) else value
        if id(value) in self.outside.origins and calls.is_opaque(value):
            raise Unsupported(Reason(UNSUPPORTED_OBJECT, f"native code reads an outside {kind.__qualname__}"))
        return value

    def _is_python(self, fn: Any) -> bool:
        kind = type(fn)
        if kind is FunctionType:
            return not is_native_module(fn.__globals__.get("__name__"))
        if kind is MethodType:
            return self._is_python(fn.__func__)
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
        entered = self.call(attributes.load_attr(self, manager, "__enter__"), (), {})
        if native:
            self._entered.append(manager)
        return entered

    def left(self, manager: Any) -> None:
        """`manager.__exit__` is about to run."""
        if self._entered and self._entered[-1] is manager:
            self._entered.pop()

    # ---- names

    def load_global(self, namespace: dict[str, Any], name: str) -> Any:
        key = (id(namespace), name)
        value = self._globals.get(key, MISSING)
        if value is MISSING:
            value = self._globals[key] = self._read_global(namespace, name)
        return value

    def _read_global(self, namespace: dict[str, Any], name: str) -> Any:
        outside = self.outside
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
        self.outside.const(namespace)
        self.outside.log.touch_global(namespace, name)
        namespace[name] = value
        self._globals[id(namespace), name] = value

    def delete_global(self, namespace: dict[str, Any], name: str) -> None:
        self.outside.log.touch_global(namespace, name)
        del namespace[name]
        self._globals.pop((id(namespace), name), None)

    def read_cell(self, function: FunctionType, cell: Any, at: int) -> Any:
        value = self._cells.get(id(cell), MISSING)
        if value is MISSING:
            origin = self.outside.const(function).child("cell", at)
            value = self._cells[id(cell)] = self.outside.wrap(cell.cell_contents, origin)
        return value

    def cell_written(self, cell: Any) -> bool:
        return id(cell) in self.outside.log._cells

    def touch_cell(self, function: FunctionType, cell: Any, at: int) -> None:
        log = self.outside.log
        log.touch_cell(cell)
        self.outside._register(cell, self.outside.const(function).child("cell", at))

    def made_function(self, frame: Frame, made: FunctionType) -> None:
        """A function made by the trace. Its closure may hold cells from outside: reads of them must stay guarded."""
        self.outside.made_function(made)
        own = {id(c) for c in made.__closure__ or ()}
        if not own or id(frame.function) not in self.outside.origins:
            return
        first = frame.code.nlocals - frame.code.nfree
        for at, cell in enumerate(frame.locals[first:]):
            if id(cell) in own and not self.cell_written(cell):
                self.read_cell(frame.function, cell, at)

    def local_names(self, frame: Frame | None) -> dict[str, Any]:
        """`locals()`."""
        assert frame is not None
        if frame.namespace is not None:
            return frame.namespace
        found = {}
        for name, value in zip(frame.code.local_names, frame.locals):
            if type(value) is types.CellType:
                try:
                    value = value.cell_contents
                except ValueError:
                    continue
            if value is not NULL:
                found[name] = value
        return found

    # ---- types

    def type_info(self, cls: type) -> TypeInfo:
        info = self._types.get(cls)
        if info is None:
            info = self._types[cls] = TypeInfo(cls)
        return info

    def forget_type(self, owner: Any) -> None:
        if isinstance(owner, type):
            self.kinds = windows.new_kinds()
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
        return kind

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
            self._entered.pop().__exit__(None, None, None)
        transforms.restore(self._levels)


_STDLIB = types.__file__.rsplit("/", 1)[0] + "/"
_TORCH = torch.__file__.rsplit("/", 1)[0] + "/"


def is_library(filename: str) -> bool:
    """Files of the standard library and of torch: not the user's."""
    if filename.startswith(_STDLIB) and "site-packages" not in filename:
        return True
    return filename.startswith((_TORCH, "<frozen", "<string>")) or "/smelt/capture/polyfills" in filename


@dataclass
class CapturedFrame:
    """What a capture gives. `result` and the values in `effects` are real objects in which tensors are fakes."""

    traced: Traced
    input_origins: tuple[Origin, ...]
    guards: tuple[Guard, ...]
    result: Any
    origin_of: Callable[[object], Origin | None]
    effects: tuple[Effect, ...]
    code: types.CodeType
    name: str
    filename: str
    first_line: int
    outside: Outside


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


def capture_frame(fn: FunctionType, slots: Sequence[object], config: Config, *, name: str) -> CapturedFrame:
    """Captures a call of `fn` whose frame has these argument slots.

    Raises:
        Unsupported: with the user's line and stack.
        UserException: the user's code raised.
    """
    vm = VM()
    with _quiet():
        try:
            return _capture(vm, fn, slots, name)
        except Unsupported as e:
            vm.locate(e)
            raise
        finally:
            vm.leave_contexts()
            vm.outside.log.roll_back()


def _capture(vm: VM, fn: FunctionType, slots: Sequence[object], name: str) -> CapturedFrame:
    outside, trace = vm.outside, vm.trace
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
            result = _run_root(vm, frame)
            _check_left(vm)
        finally:
            vm.leave_contexts()  # while the modes of the trace are on, as they were when the contexts were entered
        effects = outside.log.effects()
        outside.guard_distinct()
        _guard_hashed(vm)
        _guard_offsets(vm)
        _check_inputs(vm)
        outside.log.roll_back()
        traced = trace.finish(_fakes(vm, result, effects))
    if state.snapshot() != snapshot:
        raise Unsupported(
            Reason(UNSUPPORTED_EFFECT, "global state (grad mode, autocast, ...) is different at the end")
        )
    return CapturedFrame(
        traced=traced,
        input_origins=tuple(outside.origins[id(f)] for f in traced.inputs),
        guards=(*outside.guards, *_overlap_guards(vm, traced)),
        result=result,
        origin_of=lambda obj: outside.origins.get(id(obj)),
        effects=effects,
        code=fn.__code__,
        name=name,
        filename=fn.__code__.co_filename,
        first_line=fn.__code__.co_firstlineno,
        outside=outside,
    )


def _run_root(vm: VM, frame: Frame) -> Any:
    vm.root = frame
    try:
        return vm.run(frame)
    except Unsupported:
        raise
    except Exception as e:
        if vm.failure is not None:
            raise vm.failure from e
        raise UserException(e, vm.where()) from e


def _check_left(vm: VM) -> None:
    if vm.failure is not None:  # swallowed by native code
        raise vm.failure
    if vm._entered:
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a context manager is entered and not left"))
    if vm.context_tokens:
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a ContextVar is set"))


def _fakes(vm: VM, result: Any, effects: Sequence[Effect]) -> list[FakeTensor]:
    """The tensors that the frame's result and stores need."""
    operands = [v for e in effects for v in vars(e).values() if v is not e.target and v is not MISSING]
    return collect_fakes(result, operands, lambda obj: vm.outside.origins.get(id(obj)))


def _guard_hashed(vm: VM) -> None:
    """Tensors that were put in sets or used as keys must again be different ones."""
    origins = tuple(vm.outside.origins[id(f)] for f in hashed.values() if vm.trace.is_input(f))
    hashed.clear()
    if len(origins) > 1:
        vm.outside.guard("distinct", origins[0], origins, key="hashed")


def _guard_offsets(vm: VM) -> None:
    """Where in its storage an input starts matters only to what counts from the storage's start."""
    storages = {f.elem.untyped_storage()._cdata for f in vm.trace.counted_from_start}
    for fake in vm.trace.inputs if storages else ():
        if fake.elem.untyped_storage()._cdata in storages:
            origin = vm.outside.origins[id(fake)].child("member", "storage_offset").child("call", None)
            vm.outside.guard("eq", origin, fake.elem.storage_offset())


def _check_inputs(vm: VM) -> None:
    for fake in vm.trace.inputs:
        real = vm.trace.real(fake)
        if real is not None and fake.is_leaf and fake.requires_grad != real.requires_grad:
            raise Unsupported(Reason(UNSUPPORTED_EFFECT, "requires_grad of a tensor from outside is changed"))


def _overlap_guards(vm: VM, traced: Traced) -> list[Guard]:
    """When an input is written, that it shares no storage with the others is part of the trace."""
    if not traced.mutated or len(traced.inputs) < 2:
        return []
    origins = tuple(vm.outside.origins[id(f)] for f in traced.inputs)
    storages = [f.elem.untyped_storage()._cdata for f in traced.inputs]
    if len(set(storages)) != len(storages):
        raise Unsupported(
            Reason(UNSUPPORTED_EFFECT, "a tensor is written in place while another shares its storage")
        )
    return [Guard("no_overlap", origins[0], origins)]
