"""Outside objects: where each was found, what was read from them, and the guards that those reads need.

`Outside.wrap` turns what was read at an origin into a value of the VM: a tensor becomes its fake, everything else is
itself. What always holds: every outside object that the VM has met is kept alive and has exactly one origin (a second way
to reach it adds an alias guard); every fact that was learnt from one is guarded, unless the trace itself wrote it.
"""

from __future__ import annotations

import _thread
import array
import copyreg
import operator
import re
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from smelt.capture.base.values import IMMUTABLE_TYPE_FLAG, FunctionType, is_constant, is_identity
from smelt.capture.outside import changes, contents, wrapping
from smelt.capture.outside.undo_log import UndoLog
from smelt.capture.rebuilding.kinds import note_class
from smelt.capture.standins.arrays import Array
from smelt.errors import Unsupported
from smelt.graph.ir import Line
from smelt.graph.numbers import Expression, leaves
from smelt.guards import state
from smelt.guards.guard import Guard
from smelt.guards.origin import Origin
from smelt.reasons import DATA_DEPENDENT, UNSUPPORTED_OBJECT, Reason
from smelt.trace.fake import FakeTensor
from smelt.trace.symbols import PlainNumbersOnly, Symbols
from smelt.trace.trace import Trace

UNGUARDABLE: frozenset[type] = frozenset(
    {
        type({}.keys()), type({}.values()), type({}.items()), types.MappingProxyType, np.ndarray, memoryview, bytearray,
        array.array, _thread.LockType, type(_thread.RLock()),
    }
)  # fmt: skip
# Objects of C that never change but hold what no guard can read.
IMMUTABLE_HOLDERS = frozenset(
    {operator.itemgetter, operator.attrgetter, operator.methodcaller, re.Pattern, re.Match}
)


def _const_name(value: Any) -> str:
    for owner, key in ((value, "__qualname__"), (value, "__name__")):
        name = getattr(owner, key, None) if is_identity(value) else None
        if isinstance(name, str):
            return name
    return type(value).__name__


def _note_slots(cls: type) -> None:
    """`copy` and `pickle` keep the names of a class's slots in the class: asked for now, that is no change of it later."""
    for base in cls.__mro__:
        if not base.__flags__ & IMMUTABLE_TYPE_FLAG and type(base).__setattr__ is type.__setattr__:
            copyreg._slotnames(base)  # type: ignore[attr-defined]


class Outside:
    """The registry of one capture.

    What is done with outside objects is written in three modules: `wrapping.py` reads, `contents.py` looks into containers
    for native code, `changes.py` prepares changes.
    """

    def __init__(self, trace: Trace, where: Callable[[], Line | None]) -> None:
        self.trace = trace
        self.where = where
        self.origins: dict[int, Origin] = {}
        self.log = UndoLog()
        self.attributes: dict[int, dict[Any, Any]] = {}  # what attribute and item reads of an object gave
        self.keep: list[Any] = []  # alive, since they are known by their ids
        self.guards_by_key: dict[Any, Guard] = {}
        self._consts: dict[int, Origin] = {}
        self._functions: set[int] = set()  # guarded already, or made by the trace
        self._made: set[int] = set()  # functions made by the trace
        self._classes: set[type] = set()
        self._fresh_classes: set[int] = set()
        # functions that run natively, with what they read (`library_reads.use_native`)
        self.natives: set[int] = set()
        self.writes: Any = None  # what `tensor_numbers.py` knows of the memory that operators wrote
        self.readings: set[Origin] = set()  # where tensors of one element were read

        # wrapping.py
        self.arrays: dict[int, Array] = {}  # by id of the outside array
        # id of an outside tuple -> what stands for it: fakes in place of tensors
        self.tuples: dict[int, Any] = {}
        # outside objects other than constants, tensors and what identity says all of
        self.objects: dict[int, Any] = {}

        # contents.py
        self.opened: dict[int, Any] = {}  # containers whose contents are guarded: what native code may see
        # of opened containers that hold tensors: the copies with fakes
        self.copies: dict[int, tuple[Any, Any]] = {}
        self.copied: dict[int, Origin] = {}  # by id of such a copy, where its container was found
        self.stale: set[int] = set()  # ids of containers that may have changed since their copies were made

        # changes.py
        self.fixed: set[int] = set()  # outside objects that must not be changed
        self.owners: dict[int, Any] = {}  # id of an instance dictionary -> its instance
        self.changed_classes: dict[type, set[str]] = {}  # the names that were stored before they were read

        # symbolic numbers
        # paths of origins whose numbers change between calls
        self.dynamic: frozenset[tuple[Any, ...]] = frozenset()
        self.follows_counts = False  # numbers in tensors of one element are symbolic from the first call on
        self._numbers: dict[Origin, Any] = {}  # the symbolic number at each of them

    # ---- guards

    @property
    def guards(self) -> tuple[Guard, ...]:
        return tuple(self.guards_by_key.values())

    def guard(self, kind: Any, origin: Origin | None, value: Any = None, key: Any = None) -> None:
        """Adds a guard; `key` tells apart guards of one kind at one origin."""
        k = (kind, origin, key)
        if k not in self.guards_by_key:
            self.guards_by_key[k] = Guard(kind, origin, value, self.where())

    def use_class(self, cls: type) -> None:
        """The trace depends on what the class's attributes are now."""
        if cls in self._classes:
            return
        self._classes.add(cls)
        if (
            not cls.__flags__ & IMMUTABLE_TYPE_FLAG
            and id(cls) not in self._fresh_classes
            and cls is not FakeTensor
        ):
            _note_slots(cls)
            self.guard("type_version", self.const(cls), state.type_version(cls))

    def use_identity(self, value: Any) -> None:
        """The trace depends on which object `value` is: its hash, its address."""
        if isinstance(value, tuple):
            for part in value:
                self.use_identity(part)
            return
        origin = self.origins.get(id(value))
        if origin is None or origin.kind == "const" or is_constant(value) or is_identity(value):
            return
        self.guard("id", origin, self.trace.real(value) if type(value) is FakeTensor else value)

    def use_content(self, value: Any) -> None:
        """The trace depends on what an immutable object of C holds."""
        if type(value) in IMMUTABLE_HOLDERS:
            self.use_identity(value)

    def check_readable(self, value: Any) -> None:
        """Raises Unsupported for an outside object of C that shows the contents of others, which nothing guards."""
        if type(value) in UNGUARDABLE and id(value) in self.origins:
            raise Unsupported(Reason(UNSUPPORTED_OBJECT, f"an outside {type(value).__qualname__} is read"))

    def use_function(self, function: FunctionType) -> None:
        """The trace depends on the function's code and defaults."""
        if id(function) not in self._functions:
            self._functions.add(id(function))
            value = (function.__code__, function.__defaults__, function.__kwdefaults__)
            self.guard("function", self.const(function), value)

    def made_function(self, function: FunctionType) -> None:
        """`function` was made by the trace."""
        self._made.add(id(function))
        self._functions.add(id(function))
        self.keep.append(function)

    # ---- origins

    def const(self, value: Any, name: str | None = None) -> Origin:
        """The root origin of an object known by identity."""
        origin = self._consts.get(id(value))
        if origin is None:
            name = name or (
                value["__name__"] + ".__dict__"
                if type(value) is dict and "__name__" in value
                else _const_name(value)
            )
            origin = self._consts[id(value)] = Origin("const", name, None, value=value)
            self.keep.append(value)
            self.origins.setdefault(id(value), origin)
        return origin

    def origin(self, value: Any) -> Origin:
        """Where `value` was found; an object that was never read from anywhere is known by identity."""
        return self.origins.get(id(value)) or self.const(value)

    def origin_of(self, value: Any) -> Origin | None:
        """Where `value` was found; None for an object that the trace made."""
        found = self.origins.get(id(value))
        if found is None and type(value) is FunctionType and id(value) not in self._made:
            return self.const(value)  # of a class, never read by itself
        return self.copied.get(id(value)) if found is None else found

    def forget_class(self, cls: type) -> None:
        """`cls` was made by the trace."""
        self._fresh_classes.add(id(cls))
        self.keep.append(cls)
        note_class(cls)

    def is_fresh_class(self, cls: type) -> bool:
        """Whether `cls` was made by the trace: what it holds is no outside object."""
        return id(cls) in self._fresh_classes

    def register(self, value: Any, origin: Origin) -> None:
        """`value` was found at `origin`."""
        if id(value) not in self.origins:
            self.origins[id(value)] = origin
            self.keep.append(value)

    def memo(self, obj: Any) -> dict[Any, Any]:
        """What attribute and item reads of `obj` gave."""
        found = self.attributes.get(id(obj))
        if found is None:
            found = self.attributes[id(obj)] = {}
            self.keep.append(obj)
        return found

    # ---- reading, looking inside, changing

    wrap = wrapping.wrap
    fake = wrapping.fake
    open = contents.open
    open_exception = contents.open_exception
    item = contents.item
    view = contents.view
    update_copies = contents.update_copies
    check_changeable = changes.check_changeable
    touch = changes.touch
    touch_class = changes.touch_class
    note_store = changes.note_store
    own_dict = changes.own_dict
    guard_distinct = changes.guard_distinct
    guard_changed_classes = changes.guard_changed_classes

    # ---- symbolic numbers

    def number(self, value: Any, origin: Origin) -> Any:
        """The number read at `origin`: one that changed between calls is symbolic, any other is part of the trace."""
        found = self._numbers.get(origin)
        if found is None:
            if origin.path not in self.dynamic or (type(value) is int and value.bit_length() > 63):
                self.guard("eq", origin, value)
                return value
            found = self.number_at(origin, value)
        return found

    def number_at(self, origin: Origin, value: Any) -> Any:
        """The symbolic number at `origin`, now `value`."""
        found = self._numbers.get(origin)
        if found is None:
            self.guard("number", origin, type(value))
            found = self._numbers[origin] = self._symbols().leaf(origin, value)
        return found

    def _symbols(self) -> Symbols:
        """The symbolic numbers of this capture, made when the first is met."""
        symbols = self.trace.numbers.symbols
        if symbols is None:
            symbols = self.trace.numbers.symbols = Symbols(self._pin_number, self._require)
        return symbols

    def _pin_number(self, origin: Origin, value: Any) -> None:
        if origin in self.readings:
            raise PlainNumbersOnly(Reason(DATA_DEPENDENT, "a number that a tensor holds"))
        self.guard("eq", origin, value)

    def _require(self, expression: Expression, expected: Any) -> None:
        self.guard("expression", leaves(expression)[0], (expression, expected), key=(expression, expected))
