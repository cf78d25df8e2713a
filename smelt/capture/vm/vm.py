"""`VM`: one capture, as the packages that carry out the program see it.

The state stands here, in parts (`vm_state.py`); the operations are declared here and defined above, by the modules that know
them (`semantics/`, `interpreter/`), since each of them may come back to any other: a call may run code, which adds, whose
`__add__` is called. What always holds: an object on the machine's stack is the user's own object, except that tensors are
fakes and what is known at run time only has a stand-in.
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
from smelt.capture.environment.environment import Outside
from smelt.capture.proxies.array_proxy import Array
from smelt.capture.proxies.text_proxy import Text
from smelt.capture.vm.vm_state import (
    Cells,
    Classes,
    Contexts,
    Disclosed,
    Exceptions,
    Frames,
    HeldByGraph,
    Scopes,
    Stopping,
    Work,
)
from smelt.errors import Unsupported
from smelt.graph.ir import Line
from smelt.tracing.fake.fake_tensor import FakeTensor, class_of_fake
from smelt.tracing.record.trace import Trace
from smelt.tracing.symbolic.sym_numbers import PLAIN_TYPE
from smelt.tracing.symbolic.symbolic_ranges import SHOWN_AS


class VM(ABC):
    """One capture."""

    trace: Trace
    outside: Outside
    frame: Frame | None  # the innermost frame that runs
    failure: Unsupported | None  # why capture must end, whatever native code makes of the error
    # the user's code runs: what it drops is finalized (of the class: a machine that has ended holds nothing)
    running = False
    released = False

    def __init__(self, trace: Trace, outside: Outside, exceptions: Exceptions, contexts: Contexts) -> None:
        self.trace = trace
        self.outside = outside
        self.frame = None
        self.failure = None
        self.frames = Frames()
        self.stopping = Stopping()
        self.work = Work()
        self.exceptions = exceptions
        self.scopes = Scopes()
        self.cells = Cells()
        self.contexts = contexts
        self.classes = Classes(
            partial(wrap_values.reach_class, outside), outside.overlay.name, self.work.looked_through
        )
        self.disclosed = Disclosed()
        self.held = HeldByGraph()

    def release(self) -> None:
        """Lets go of the user's objects: in the cycles of a capture they would live until the next collection."""
        self.trace.forget_inputs()
        for generator in filter(None, (reference() for reference in self.frames.generators)):
            if generator.frame is not None:
                generator.frame.parent = None  # whose stack may lead back to the generator
        # Said first: when what is held is dropped, weak references to it may call functions of the program.
        self.released = True
        vars(self.outside).clear()
        held = vars(self)
        for name in [n for n in held if n != "released"]:
            del held[name]

    @property
    def calling(self) -> Frame:
        """The innermost frame, for what only a frame can call."""
        assert self.frame is not None
        return self.frame

    # ---- classes

    def type_info(self, cls: type) -> TypeInfo:
        """What is known of `cls`."""
        return self.classes.info(cls)

    def class_of(self, obj: object) -> type:
        """`type(obj)` as the user sees it."""
        kind = type(obj)
        if isinstance(obj, FakeTensor):
            return class_of_fake(obj)
        if isinstance(obj, Array):
            return obj.dtype.type if obj.scalar else np.ndarray
        if isinstance(obj, VMCallable):
            return type(obj.function)
        return _SHOWN_AS.get(kind) or PLAIN_TYPE.get(kind, kind)

    # ---- running

    @abstractmethod
    def run(self, frame: Frame, error: BaseException | None = None) -> object:
        """Runs `frame` until it returns or yields. With `error`, it is raised where the frame stands."""

    @abstractmethod
    def direct(self, frame: Frame) -> Frame:
        """`frame`, made for the instruction that is being carried out: its result is that of the instruction."""

    @abstractmethod
    def check_work(self) -> None:
        """Raises Unsupported where the program did much since the graph grew last: Python does that faster."""

    @abstractmethod
    def decode(self, code: types.CodeType) -> Code:
        """The instructions of `code`, each with its handler."""

    @abstractmethod
    def drop(self, generator: Generator) -> None:
        """A suspended generator that nobody holds any more is closed."""

    @abstractmethod
    def where(self) -> Line | None:
        """The user's line that runs: the innermost frame outside of torch and the standard library."""

    @abstractmethod
    def locate(self, error: Unsupported) -> None:
        """Adds the user's line and stack to a reason, where it was raised first."""

    @abstractmethod
    def raise_again(self, error: BaseException) -> NoReturn:
        """Raises `error` as it was: with its context and, in this frame, its traceback."""

    @abstractmethod
    def handled_exception(self) -> BaseException | None:
        """What `sys.exception()` is for the program."""

    @abstractmethod
    def is_compiling(self) -> bool:
        """The answer to `torch.compiler.is_compiling()`."""

    # ---- calls

    @abstractmethod
    def call(self, fn: object, args: Sequence[object], kwargs: dict[str, object]) -> object:
        """`fn(*args, **kwargs)`."""

    @abstractmethod
    def call_function(
        self, fn: FunctionType, args: Sequence[object], kwargs: dict[str, object] | None = None
    ) -> object:
        """The call of a function written in Python."""

    @abstractmethod
    def instantiate(self, cls: type, args: Sequence[object], kwargs: dict[str, object]) -> object:
        """`type.__call__(cls, *args, **kwargs)`."""

    @abstractmethod
    def native(
        self, fn: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object] | None = None
    ) -> object:
        """The call of native code; Python functions that it starts come back to the machine."""

    @abstractmethod
    def keyed(self, fn: Callable[..., object], obj: object, key: object, *rest: object) -> object:
        """`fn(obj, key, *rest)` of a container, of whose contents only what equals `key` is looked at."""

    @abstractmethod
    def called_back(self, fn: FunctionType, *slots: object) -> object:
        """Native code starts `fn`, whose frame has these argument slots."""

    @abstractmethod
    def native_callable(self, fn: object) -> Callable[..., object]:
        """`fn` as native code may call it."""

    @abstractmethod
    def native_argument(self, value: object) -> object:
        """An argument of a native function."""

    # ---- operators

    @abstractmethod
    def binary(self, fn: Callable[..., object], left: object, right: object) -> object:
        """`fn(left, right)` of the module operator."""

    @abstractmethod
    def truth(self, value: object) -> bool:
        """`bool(value)`."""

    @abstractmethod
    def same(self, left: object, right: object) -> bool:
        """`left is right`."""

    @abstractmethod
    def contains(self, value: object, container: object) -> bool:
        """`value in container`."""

    @abstractmethod
    def subscript(self, obj: object, key: object) -> object:
        """`obj[key]`."""

    @abstractmethod
    def item_value(self, obj: object, key: object, value: object) -> object:
        """`value`, which the container `obj` has at `key`, as a value of the machine."""

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
        """`obj` as native code may iterate over it."""

    @abstractmethod
    def elements(self, obj: object, limit: int | None = None, hinted: bool = False) -> Sequence[object]:
        """All elements of `obj`, or `limit` of them."""


_SHOWN_AS: dict[type, type] = {
    Generator: types.GeneratorType, Coroutine: types.CoroutineType, Text: str, **SHOWN_AS
}  # fmt: skip
