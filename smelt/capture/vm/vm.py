"""`VM`: the state and the abstract operations of one capture.

The state is grouped by concept (`vm_state.py`). The operations are declared here and implemented by the modules of
`semantics/` and `interpreter/`, because any of them may call any other: a call runs code, which adds, which calls `__add__`.

Invariant: an object on the VM's stack is the user's own object, except that tensors are fakes and values known only at run
time are proxies.
"""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NoReturn

import numpy as np

from smelt._native import isinstance
from smelt.capture.base.bytecode import Code
from smelt.capture.base.type_lookup import TypeInfo
from smelt.capture.base.value_kinds import FunctionType
from smelt.capture.base.vm_frames import Coroutine, Frame, Generator, VMCallable
from smelt.capture.environment import wrap_values
from smelt.capture.environment.environment import Environment
from smelt.capture.proxies.array_proxy import ArrayProxy, BoundMethod
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.proxies.text_proxy import TextProxy
from smelt.capture.vm.vm_state import (
    Assumptions,
    Cells,
    Classes,
    ConditionalJumps,
    Contexts,
    Exceptions,
    Frames,
    HeldByGraph,
    Scopes,
    StopPoint,
    Work,
)
from smelt.errors import Unsupported
from smelt.graph.ir import Line
from smelt.tracing.fake.fake_tensor import FakeTensor, class_of_fake
from smelt.tracing.record.trace import Trace
from smelt.tracing.symbolic.sym_nodes import UnbackedComparison
from smelt.tracing.symbolic.sym_numbers import PLAIN_TYPE
from smelt.tracing.symbolic.symbolic_ranges import PROXIED_TYPES


class VM(ABC):
    """The state of one capture and the operations that the semantics packages implement."""

    trace: Trace
    env: Environment
    frame: Frame | None  # the innermost running frame
    failure: Unsupported | None  # ends the capture even if native code swallows the error
    # User code is running, so objects that it drops are finalized. A class attribute: `release` empties the instance.
    running = False
    released = False

    def __init__(self, trace: Trace, env: Environment, exceptions: Exceptions, contexts: Contexts) -> None:
        self.trace = trace
        self.env = env
        self.frame = None
        self.failure = None
        self.frames = Frames()
        self.stop_point = StopPoint()
        self.work = Work()
        self.exceptions = exceptions
        self.scopes = Scopes()
        self.cells = Cells()
        self.contexts = contexts
        self.classes = Classes(
            partial(wrap_values.guard_native_access, env), env.class_attribute, self.work.count_items
        )
        self.assumptions = Assumptions()
        self.held = HeldByGraph()
        self.conditional_jumps = ConditionalJumps()

    def release(self) -> None:
        """Drop the references to the user's objects, which reference cycles would keep alive until the next collection."""
        self.trace.release_inputs()
        # Set first: dropping the objects may run callbacks of the program's weak references.
        self.released = True
        vars(self.env).clear()
        held = vars(self)
        for name in [n for n in held if n != "released"]:
            del held[name]

    @property
    def current_frame(self) -> Frame:
        """The innermost frame, which must exist."""
        assert self.frame is not None
        return self.frame

    # ---- classes

    def type_info(self, cls: type) -> TypeInfo:
        """The lookup facts of `cls`."""
        return self.classes.info(cls)

    def class_of(self, obj: object) -> type:
        """`type(obj)` as the user sees it."""
        kind = type(obj)
        if isinstance(obj, FakeTensor):
            return class_of_fake(obj)
        if isinstance(obj, ArrayProxy):
            return obj.dtype.type if obj.scalar else np.ndarray
        if isinstance(obj, VMCallable):
            return type(obj.function)
        if isinstance(obj, (OpaqueProxy, NumberProxy)):
            return obj.kind
        return _SHOWN_AS.get(kind) or PLAIN_TYPE.get(kind, kind)

    # ---- running

    @abstractmethod
    def run(self, frame: Frame, error: BaseException | None = None) -> object:
        """Run `frame` until it returns or yields. With `error`, raise that at the frame's current instruction."""

    @abstractmethod
    def attach_call_site(self, frame: Frame) -> Frame:
        """Link the new `frame` to the instruction being executed, which receives its result; return `frame`."""

    @abstractmethod
    def check_long_computation(self) -> None:
        """Raise Unsupported after many instructions without a new graph node: CPython runs those faster."""

    @abstractmethod
    def decode(self, code: types.CodeType) -> Code:
        """Decode the instructions of `code`, each with its handler."""

    @abstractmethod
    def drop_generator(self, generator: Generator) -> None:
        """Close a suspended generator whose last reference is gone."""

    @abstractmethod
    def current_line(self) -> Line | None:
        """The user's current line: that of the innermost frame outside of torch and the standard library. None in
        smelt's own code, which calls a module."""

    @abstractmethod
    def locate(self, error: Unsupported) -> None:
        """Add the user's line and stack to the reason of `error` where it is first raised."""

    @abstractmethod
    def reraise(self, error: BaseException) -> NoReturn:
        """Raise `error` with its context and, in this frame, its traceback unchanged."""

    @abstractmethod
    def handled_exception(self) -> BaseException | None:
        """The value of `sys.exception()` in the program."""

    @abstractmethod
    def is_compiling(self) -> bool:
        """The value of `torch.compiler.is_compiling()` in the program."""

    # ---- calls

    @abstractmethod
    def call(self, fn: object, args: Sequence[object], kwargs: dict[str, object]) -> object:
        """`fn(*args, **kwargs)`."""

    @abstractmethod
    def call_function(
        self, fn: FunctionType, args: Sequence[object], kwargs: dict[str, object] | None = None
    ) -> object:
        """Call a function written in Python."""

    @abstractmethod
    def instantiate(self, cls: type, args: Sequence[object], kwargs: dict[str, object]) -> object:
        """`type.__call__(cls, *args, **kwargs)`."""

    @abstractmethod
    def call_native(
        self, fn: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object] | None = None
    ) -> object:
        """Call native code; the VM interprets the Python functions that it calls."""

    @abstractmethod
    def native_lookup(self, fn: Callable[..., object], obj: object, key: object, *rest: object) -> object:
        """`fn(obj, key, *rest)` on a container, where `fn` reads only the entry that equals `key`."""

    @abstractmethod
    def call_from_native(self, fn: FunctionType, *slots: object) -> object:
        """Interpret `fn`, which native code calls; its frame has these argument slots."""

    @abstractmethod
    def native_callable(self, fn: object) -> Callable[..., object]:
        """Wrap `fn` so that native code may call it."""

    @abstractmethod
    def native_argument(self, value: object) -> object:
        """Convert `value` to an argument of a native function."""

    # ---- operators

    @abstractmethod
    def binary(self, fn: Callable[..., object], left: object, right: object) -> object:
        """`fn(left, right)`, where `fn` is a function of the module operator."""

    @abstractmethod
    def truth(self, value: object) -> bool:
        """`bool(value)`."""

    @abstractmethod
    def is_same(self, left: object, right: object) -> bool:
        """`left is right`."""

    @abstractmethod
    def contains(self, value: object, container: object) -> bool:
        """`value in container`."""

    @abstractmethod
    def subscript(self, obj: object, key: object) -> object:
        """`obj[key]`."""

    @abstractmethod
    def wrap_item(self, obj: object, key: object, value: object) -> object:
        """Wrap `value`, which the container `obj` holds at `key`, as a value of the VM."""

    @abstractmethod
    def store_item(self, obj: object, key: object, value: object) -> None:
        """`obj[key] = value`."""

    @abstractmethod
    def delete_item(self, obj: object, key: object) -> None:
        """`del obj[key]`."""

    # ---- iteration

    @abstractmethod
    def get_iter(self, obj: object) -> object:
        """`iter(obj)`."""

    @abstractmethod
    def next(self, iterator: object) -> object:
        """`next(iterator)`."""

    @abstractmethod
    def iterable(self, obj: object) -> Iterable[object]:
        """Wrap `obj` so that native code may iterate over it."""

    @abstractmethod
    def elements(self, obj: object, limit: int | None = None, hinted: bool = False) -> Sequence[object]:
        """All elements of `obj`, or at most `limit` of them."""


_SHOWN_AS: dict[type, type] = {
    Generator: types.GeneratorType, Coroutine: types.CoroutineType, TextProxy: str,
    BoundMethod: types.BuiltinMethodType, UnbackedComparison: bool, **PROXIED_TYPES
}  # fmt: skip
