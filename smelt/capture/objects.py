"""Outside objects: where each was found, what was read from them, and the guards that those reads need.

`Outside.wrap` turns what was read at an origin into a value of the VM: a tensor becomes its fake, everything else is
itself. What always holds: every outside object that the VM has met is kept alive and has exactly one origin (a second way
to reach it adds an alias guard); every fact that was learnt from one is guarded, unless the trace itself wrote it.
"""

from __future__ import annotations

import _thread
import array
import collections
import copyreg
import datetime
import decimal
import functools
import operator
import re
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from smelt.capture import arrays
from smelt.capture.effects import UndoLog
from smelt.capture.rebuild import is_bound, note_class
from smelt.capture.values import (
    CONTAINER_BASES,
    CONTAINER_TYPES,
    IMMUTABLE_TYPE_FLAG,
    LEAF_TYPES,
    MISSING,
    BuiltinType,
    FunctionType,
    exception_fields,
    instance_dict,
    is_constant,
    is_identity,
    is_lookup_key,
    is_plain_key,
)
from smelt.errors import Unsupported
from smelt.graph.ir import Line
from smelt.graph.numbers import Expression, leaves
from smelt.guards import state
from smelt.guards.evaluate import tensor_facts
from smelt.guards.guard import Guard
from smelt.guards.origin import Origin, OriginKind, key_name
from smelt.reasons import UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT, Reason
from smelt.trace.fake import FakeTensor
from smelt.trace.record import Trace
from smelt.trace.symbols import NUMBERS, Symbols, plain

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
_is_functorch_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


_VALUE_BASES = (int, float, complex, str, bytes, np.generic)
_VALUES = frozenset(
    (decimal.Decimal, datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone)
)


@functools.cache
def _plain_reader(cls: type) -> str | None:
    """The method without arguments, written in C, that gives the plain value of an instance of `cls`."""
    for name in ("item", "__getnewargs__"):
        found = next((k.__dict__[name] for k in cls.__mro__ if name in k.__dict__), None)
        if type(found) is types.MethodDescriptorType:
            return name
    return None


def _const_name(value: Any) -> str:
    for owner, key in ((value, "__qualname__"), (value, "__name__")):
        name = getattr(owner, key, None) if is_identity(value) else None
        if isinstance(name, str):
            return name
    return type(value).__name__


class ClassState:
    """Called without arguments: whether a class has the attributes that it had, leaving out some names."""

    def __init__(self, cls: type, attributes: dict[str, Any], besides: frozenset[str]) -> None:
        self.cls = cls
        self.mro = cls.__mro__
        self.attributes = attributes
        self.besides = besides

    def __call__(self) -> bool:
        now = {k: v for k, v in vars(self.cls).items() if k not in self.besides}
        before = self.attributes
        return (
            self.cls.__mro__ is self.mro
            and len(now) == len(before)
            and all(before.get(k, MISSING) is v for k, v in now.items())
        )


def _note_slots(cls: type) -> None:
    """`copy` and `pickle` keep the names of a class's slots in the class: asked for now, that is no change of it later."""
    for base in cls.__mro__:
        if not base.__flags__ & IMMUTABLE_TYPE_FLAG and type(base).__setattr__ is type.__setattr__:
            copyreg._slotnames(base)  # type: ignore[attr-defined]


class Outside:
    """The registry of one capture."""

    def __init__(self, trace: Trace, where: Callable[[], Line | None]) -> None:
        self.trace = trace
        self.where = where
        self.origins: dict[int, Origin] = {}
        self.log = UndoLog()
        self.attributes: dict[int, dict[Any, Any]] = {}  # what attribute and item reads of an object gave
        self._guards: dict[Any, Guard] = {}
        self._keep: list[Any] = []
        self._arrays: dict[int, arrays.Array] = {}  # by id of the outside array
        self.fixed: set[int] = set()  # outside objects that must not be changed
        self._objects: dict[
            int, Any
        ] = {}  # outside objects other than constants, tensors and what identity says all of
        self._consts: dict[int, Origin] = {}
        self._classes: set[type] = set()
        # of opened containers that hold tensors: the copies with fakes
        self._copies: dict[int, tuple[Any, Any]] = {}
        self._copied: dict[int, Origin] = {}  # by id of such a copy, where its container was found
        self.stale: set[int] = set()  # ids of containers that may have changed since their copies were made
        self._opened: dict[int, Any] = {}  # containers whose contents are guarded: what native code may see
        self._owners: dict[int, Any] = {}  # id of an instance dictionary -> its instance
        self._fresh_classes: set[int] = set()
        self._changed_classes: dict[type, set[str]] = {}  # the names that were stored before they were read
        # id of an outside tuple -> what stands for it: fakes in place of tensors
        self._tuples: dict[int, Any] = {}
        self._functions: set[int] = set()  # guarded already, or made by the trace
        self._made: set[int] = set()  # functions made by the trace
        # paths of origins whose numbers change between calls
        self.dynamic: frozenset[tuple[Any, ...]] = frozenset()
        self.follows_counts = False  # counts of optimizers are symbolic from the first call on
        self.writes: Any = None  # what `optimizers.py` knows of the memory that operators wrote
        self._numbers: dict[Origin, Any] = {}  # the symbolic number at each of them
        # functions that run natively, with what they read (`reads.use_native`)
        self.natives: set[int] = set()

    # ---- guards

    @property
    def guards(self) -> tuple[Guard, ...]:
        return tuple(self._guards.values())

    def guard(self, kind: Any, origin: Origin | None, value: Any = None, key: Any = None) -> None:
        """Adds a guard; `key` tells apart guards of one kind at one origin."""
        k = (kind, origin, key)
        if k not in self._guards:
            self._guards[k] = Guard(kind, origin, value, self.where())

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
        self._keep.append(function)

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
            self._keep.append(value)
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
        return self._copied.get(id(value)) if found is None else found

    def forget_class(self, cls: type) -> None:
        """`cls` was made by the trace."""
        self._fresh_classes.add(id(cls))
        self._keep.append(cls)
        note_class(cls)

    def is_fresh_class(self, cls: type) -> bool:
        """Whether `cls` was made by the trace: what it holds is no outside object."""
        return id(cls) in self._fresh_classes

    # ---- reading

    def wrap(self, value: Any, origin: Origin, *, decided: bool = False) -> Any:
        """What was read at `origin`, as a value of the VM, guarded. `decided`: another guard (a class's version) already
        says which object is there, so only what can change about it is guarded."""
        kind = type(value)
        if kind in LEAF_TYPES:
            if decided:
                return value
            if self.dynamic and (kind is int or kind is float):
                return self._wrap_number(value, origin)
            self.guard("eq", origin, value)
            if kind is torch.Size:
                self._register(value, origin)  # equal ones are made everywhere, and `is` tells them apart
            return value
        if kind is FakeTensor or kind in NUMBERS:
            return value
        if isinstance(value, torch.Tensor):
            return self._wrap_tensor(value, origin)
        if kind is np.ndarray and arrays.is_traceable(value):
            return self._wrap_array(value, origin)
        if kind is BuiltinType and is_bound(value):
            return self._wrap_bound_builtin(value, origin)
        if is_identity(value):
            if not decided:
                self.guard("id", origin, value)
            self._register(value, self.const(value) if isinstance(value, (type, FunctionType)) else origin)
            return value
        if isinstance(value, tuple):
            return self._wrap_tuple(value, origin, decided)
        if kind is frozenset and is_constant(value):
            if not decided:
                self.guard("eq", origin, value)
            return value
        if isinstance(value, frozenset):
            if id(value) not in self.origins:
                self._guard_elements(origin, list(frozenset.__iter__(value)))
        return self._wrap_object(value, origin)

    def _wrap_bound_builtin(self, value: Any, origin: Origin) -> Any:
        """`values.append`: a new object at each access, known by its name and by what it is bound to."""
        self.guard("type", origin, BuiltinType)
        self.guard("eq", origin.child("member", "__name__"), value.__name__)
        self.wrap(value.__self__, origin.child("member", "__self__"))
        self._register(value, origin)
        return value

    def _wrap_number(self, value: Any, origin: Origin) -> Any:
        """A number that changed between calls is symbolic; any other is part of the trace."""
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
        symbols = self.trace.symbols
        if symbols is None:
            symbols = self.trace.symbols = Symbols(self._pin_number, self._require)
        return symbols

    def _pin_number(self, origin: Origin, value: Any) -> None:
        self.guard("eq", origin, value)

    def _require(self, expression: Expression, expected: Any) -> None:
        self.guard("expression", leaves(expression)[0], (expression, expected), key=(expression, expected))

    def _register(self, value: Any, origin: Origin) -> None:
        if id(value) not in self.origins:
            self.origins[id(value)] = origin
            self._keep.append(value)

    def _wrap_tensor(self, value: torch.Tensor, origin: Origin) -> Any:
        if _is_functorch_wrapped(value):
            return value
        known = self.trace._by_real.get(id(value))
        if known is None:
            fake = self.trace.fake(value, _input_name(origin))
            self.origins[id(fake)] = self.origins[id(value)] = origin
            self._keep.append(value)
            with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
                facts = tensor_facts(value)
            self.guard("tensor", origin, facts)
            return fake
        self._alias(origin, self.origins[id(known[1])])
        return known[1]

    def _wrap_array(self, value: Any, origin: Origin) -> Any:
        """A NumPy array: its tensor is a graph input that the compiled frame makes of it."""
        known = self._arrays.get(id(value))
        if known is not None:
            self._alias(origin, self.origins[id(known)])
            return known
        self.guard("type", origin, np.ndarray)
        self.guard("id", origin.child("member", "dtype"), value.dtype)
        for name in ("shape", "strides"):
            self.guard("eq", origin.child("member", name), getattr(value, name))
        self.guard("eq", origin.child("member", "flags").child("member", "writeable"), True)
        with self.trace.paused():
            real = torch.from_numpy(value)
        fake = self.trace.fake(real, _input_name(origin))
        made = self._arrays[id(value)] = arrays.Array(fake, outside=True)
        self.origins[id(fake)] = origin.child("array", None)
        self.origins[id(made)] = self.origins[id(value)] = origin
        self._keep += (value, made)
        return made

    def _alias(self, origin: Origin, first: Origin) -> None:
        if origin is not first and origin.kind != "const":
            self.guard("alias", origin, first)

    def _wrap_tuple(self, value: tuple[Any, ...], origin: Origin, decided: bool) -> Any:
        kind = type(value)
        if kind is tuple and is_constant(value):
            if not decided:
                self.guard("eq", origin, value)
            return value
        known = self._tuples.get(id(value))
        if known is not None:
            self._alias(origin, self.origins[id(value)])
            return known
        if not decided:
            self.guard("type", origin, kind)
            self.guard("len", origin, len(value))
        items = [
            self.wrap(v, origin.child("item", i), decided=decided)
            for i, v in enumerate(tuple.__iter__(value))
        ]
        self._register(value, origin)
        if all(a is b for a, b in zip(items, tuple.__iter__(value))):
            self._tuples[id(value)] = value
            return value
        if hasattr(kind, "n_sequence_fields"):  # of C: torch.return_types.topk
            made = kind(items)
        else:
            made = tuple.__new__(kind, items)
        own = instance_dict(value)
        if own:
            made.__dict__.update(own)
        self._tuples[id(value)] = made
        self._register(made, origin)
        return made

    def _wrap_object(self, value: Any, origin: Origin) -> Any:
        if type(value) in weakref.ProxyTypes:
            raise Unsupported(Reason(UNSUPPORTED_OBJECT, "an outside weak proxy"))
        first = self.origins.get(id(value))
        if first is None:
            self.guard("type", origin, type(value))
            self._guard_value(value, origin)
            self._register(value, origin)
            self._objects[id(value)] = value
        elif first is not origin and first.kind != "const":
            self._alias(origin, first)
        return value

    def _guard_value(self, value: Any, origin: Origin) -> None:
        """What C code alone knows of a number, a text or a date; dates and decimals are guarded by their identity."""
        if isinstance(value, _VALUE_BASES):
            kind: Any = type(value)
            reader = _plain_reader(kind)
            if reader:
                self.guard("eq", origin.child("member", reader).child("call", None), getattr(value, reader)())
            else:
                self.guard("id", origin, value)
        elif type(value) in _VALUES:
            self.guard("id", origin, value)

    def fake(self, value: Any) -> Any:
        """A value that native code gave: a real tensor in it would escape the trace."""
        if (
            isinstance(value, torch.Tensor)
            and type(value) is not FakeTensor
            and not _is_functorch_wrapped(value)
        ):
            return self.trace._unknown(value)
        return value

    # ---- containers

    def open(self, container: Any) -> Any:
        """Native code is going to look inside: guards all that was in an outside container before the trace, and gives
        what native code may see: the container itself, or a copy with fakes where it holds tensors."""
        key = id(container)
        if key not in self._opened:
            self._opened[key] = self._guard_contents(container)
            self._keep.append(container)
        return self._copy_with_fakes(container) if self._opened[key] else container

    def _copy_with_fakes(self, container: Any) -> Any:
        """Always the same copy, so that iterators and views of it see what is changed later."""
        made = self._copies.get(id(container))
        if made is None:
            made = self._with_fakes(container)
            self._copies[id(container)] = container, made
            self._copied[id(made)] = self.origins[id(container)]
            return made
        _follow(made[1], self._with_fakes(container))
        return made[1]

    def update_copies(self) -> None:
        """After changes: the copies with fakes follow."""
        for key in self.stale:
            if key in self._copies:
                container, made = self._copies[key]
                _follow(made, self._with_fakes(container))
        self.stale.clear()

    def _guard_contents(self, container: Any) -> bool:
        """True if there is a real tensor inside."""
        origin, before = self.origins[id(container)], self.log.contents(container)
        if isinstance(container, dict):
            for key, _ in before:
                self._check_key(key)
            self.guard("keys", origin, tuple(k for k, _ in before))
            wrapped = [plain(self.item(container, k, v)) for k, v in before]
            return any(w is not v for w, (_, v) in zip(wrapped, before))
        if isinstance(container, set):
            self._guard_elements(origin, before)
            return False
        self.guard("len", origin, len(before))
        wrapped = [plain(self.wrap(v, origin.child("item", i))) for i, v in enumerate(before)]
        return any(w is not v for w, v in zip(wrapped, before))

    def _guard_elements(self, origin: Origin, elements: Sequence[Any]) -> None:
        """The elements of a set and their order: two equal sets may be iterated in different orders."""
        for value in elements:
            if not is_plain_key(value):
                raise Unsupported(
                    Reason(UNSUPPORTED_OBJECT, f"an outside set holds a {type(value).__qualname__}")
                )
            if not is_constant(value):
                self.wrap(value, self.const(value), decided=True)
        self.guard("keys", origin, tuple(elements))

    def _check_key(self, key: Any) -> None:
        if not is_plain_key(key):
            raise Unsupported(
                Reason(UNSUPPORTED_OBJECT, f"an outside dictionary has a {type(key).__qualname__} as a key")
            )

    def item(self, container: Any, key: Any, value: Any) -> Any:
        """The value of an outside container at `key`, wrapped."""
        origin = self.origins[id(container)]
        if not is_lookup_key(key):
            self._check_key(key)
        return self.wrap(value, origin.child("item", key))

    def _with_fakes(self, container: Any) -> Any:
        if isinstance(container, dict):
            made = container.copy() if type(container) in CONTAINER_TYPES else dict(container)
            for key, value in dict.items(container):
                dict.__setitem__(made, key, self.view(value))
            return made
        return (
            type(container)(self.view(v) for v in container)
            if type(container) in CONTAINER_TYPES
            else [self.view(v) for v in container]
        )

    def view(self, value: Any, deep: bool = True) -> Any:
        """`value` as native code may see it: real tensors replaced by fakes, and all outside contents guarded."""
        kind = type(value)
        if kind in LEAF_TYPES or kind is FakeTensor:
            return value
        if kind is tuple:
            return self._view_items(value, tuple) if deep else value
        if isinstance(value, CONTAINER_BASES):
            if id(value) in self.origins:
                value = self.open(value)
            if deep and kind in (list, collections.deque):
                return self._view_items(value, kind)
            if deep and kind in (dict, collections.OrderedDict):
                return self._view_dict(value)
            return value
        if isinstance(value, tuple):
            return self._view_items(value, functools.partial(tuple.__new__, kind)) if deep else value
        if isinstance(value, torch.Tensor):
            return self.fake(value)
        if isinstance(value, BaseException):
            self.open_exception(value)
        return self._arrays.get(id(value), value) if kind is np.ndarray else value

    def open_exception(self, error: BaseException) -> None:
        """Native code is going to look at an exception: guards what an outside one says."""
        origin = self.origins.get(id(error))
        if origin is None or id(error) in self._opened:
            return
        self._opened[id(error)] = False
        for name in exception_fields(type(error)):  # type: ignore[arg-type]
            found = self.wrap(getattr(error, name), origin.child("member", name))
            for part in found if type(found) is tuple else ():
                self.view(part)

    def _view_items(self, value: Any, make: Callable[..., Any]) -> Any:
        items = [self.view(v) for v in value]
        return value if all(a is b for a, b in zip(items, value)) else make(items)

    def _view_dict(self, value: Any) -> Any:
        pairs = [(k, self.view(v)) for k, v in dict.items(value)]
        if all(v is w for (_, v), w in zip(pairs, dict.values(value))):
            return value
        return type(value)(pairs)

    # ---- writing

    def check_changeable(self, obj: Any) -> None:
        if id(obj) in self.fixed:
            raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a module's globals() are changed"))

    def touch(self, obj: Any) -> None:
        """Before an outside object changes."""
        self.check_changeable(obj)
        if self._copies:
            self.stale.add(id(obj))
        owner = self._owners.get(id(obj))
        if owner is not None:
            self._touch_one(owner)
        if id(obj) in self.origins:
            self._touch_one(obj)

    def note_store(self, obj: Any, kind: OriginKind, key: Any, value: Any) -> None:
        """`value` is about to be stored in `obj`: an effect even if it is what is there now, unless that is guarded."""
        origin = self.origins.get(id(obj))
        if origin is None or not is_lookup_key(key):
            return
        if self.origins.get(id(value)) is not origin.child(kind, key) or is_identity(value):
            self.log.store(self._owners.get(id(obj), obj), key)

    def _touch_one(self, obj: Any) -> None:
        if self.log.touch(obj):
            self.attributes.pop(id(obj), None)
            self._keep.append(obj)
            own = instance_dict(obj)
            if own is not None and id(own) in self.origins:
                self._touch_one(own)

    def touch_class(self, cls: type, name: str, *, was_read: bool) -> None:
        """Before an attribute of an outside class changes."""
        self.use_class(cls)
        names = self._changed_classes.setdefault(cls, set())
        if not was_read and not self.log.touches(cls, name):
            names.add(name)

    def guard_changed_classes(self) -> None:
        """A store gives a class a new version: what is compared instead are its attributes, but for those stored."""
        changed = self._changed_classes
        for key, guard in list(self._guards.items()) if changed else ():
            if guard.kind != "type_version" or guard.origin is None:
                continue
            if not changed.keys().isdisjoint(guard.origin.value.__mro__):
                del self._guards[key]
                for base in guard.origin.value.__mro__:
                    if changed.keys().isdisjoint(base.__mro__):
                        self.use_class(base)
                    else:
                        self._guard_class_attributes(base, changed.get(base, set()))

    def _guard_class_attributes(self, cls: type, besides: set[str]) -> None:
        before = {k: v for k, v in vars(cls).items() if k not in besides}
        for (key, name), (_, _, old, *_) in self.log._named.items():
            if key == id(cls) and name not in besides:
                before.pop(name, None)
                before |= {} if old is MISSING else {name: old}
        unchanged = ClassState(cls, before, frozenset(besides))
        self.guard(
            "id", self.const(unchanged, f"attributes of {cls.__qualname__}").child("call", "get"), True
        )

    def guard_distinct(self) -> None:
        """An object that the trace changed must not be another object that the trace used."""
        changed = {type(obj) for obj in self._objects.values() if obj in self.log}
        for cls in changed:
            origins = tuple(self.origins[k] for k, obj in self._objects.items() if type(obj) is cls)
            if len(origins) > 1:
                self.guard("distinct", origins[0], origins, key=cls)

    def own_dict(self, obj: Any, own: dict[str, Any]) -> dict[str, Any]:
        """`obj.__dict__` read by the user's code."""
        if id(obj) in self.origins:
            self._owners[id(own)] = obj
            if id(own) not in self.origins:
                self._register(own, self.origins[id(obj)].child("dict", None))
                self.log.touch_own(obj, own)
        return own

    def memo(self, obj: Any) -> dict[Any, Any]:
        found = self.attributes.get(id(obj))
        if found is None:
            found = self.attributes[id(obj)] = {}
            self._keep.append(obj)
        return found


def _follow(made: Any, now: Any) -> None:
    """Changes a copy of a container as little as possible: iterators over it go on, or fail, as over the container."""
    if isinstance(made, dict):
        for key in [k for k in made if k not in now]:
            del made[key]
        for key, value in now.items():
            if made.get(key, MISSING) is not value:
                dict.__setitem__(made, key, value)
        if list(made) != list(now):
            dict.clear(made)
            dict.update(made, now)
    elif len(made) != len(now) or any(v is not w for v, w in zip(made, now)):
        if isinstance(made, list):
            made[:] = now
        else:
            made.clear()
            made.extend(now)


def _input_name(origin: Origin) -> str:
    """How graphs call the tensor at `origin`: `x`, `layers_0_weight`."""
    parts: list[str] = []
    at: Origin | None = origin
    while at is not None:
        if at.kind not in ("cell", "dict") and at.key not in ("_modules", "_parameters", "_buffers"):
            parts.append(key_name(at.key))
        at = at.base
    return "_".join(reversed(parts)) if len(parts) < 12 else "_".join(reversed(parts[:11]))
