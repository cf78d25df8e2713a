"""The facts that a capture rests on, as guards.

What always holds: every fact that was learnt from an environment object is guarded, unless the trace itself wrote it.
"""

from __future__ import annotations

import _thread
import array
import collections
import copyreg
import functools
import operator
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.class_caches import cached_by_class
from smelt.capture.base.type_lookup import type_find
from smelt.capture.base.value_kinds import (
    IMMUTABLE_TYPE_FLAG,
    LEAF_TYPES,
    FunctionType,
    MethodType,
    is_constant,
    is_identity,
    is_nan,
    is_interned,
)
from smelt.capture.environment.source_index import Sources
from smelt.errors import Unsupported
from smelt.graph.ir import Line
from smelt.guards.guard import Guard, GuardKind
from smelt.guards.source import Source
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.tracing.fake.fake_tensor import FakeTensor

# Each has classes of views of its own.
_MAPPINGS: tuple[dict[object, object], ...] = ({}, collections.OrderedDict())
KEY_WRAPPER = type(functools.cmp_to_key(lambda a, b: 0))  # holds a function that comparing it calls
UNGUARDABLE: frozenset[type] = frozenset(
    {
        *(type(view) for m in _MAPPINGS for view in (m.keys(), m.values(), m.items())),
        types.MappingProxyType, np.ndarray, memoryview, bytearray, array.array, _thread.LockType, type(_thread.RLock()),
        KEY_WRAPPER,
    }
)  # fmt: skip
# Objects of C that never change but hold what no guard can read.
IMMUTABLE_HOLDERS = frozenset(
    {operator.itemgetter, operator.attrgetter, operator.methodcaller, re.Pattern, re.Match}
)


def _note_slots(cls: type) -> None:
    """`copy` and `pickle` keep the names of a class's slots in the class: asked for now, that is no change of it later. A
    metaclass may take every attribute for a part of what it describes: that of protocols does."""
    for base in cls.__mro__:
        if not base.__flags__ & IMMUTABLE_TYPE_FLAG and type(base) is type:
            copyreg._slotnames(base)  # type: ignore[attr-defined]


class GuardFacts:
    """The guards of one capture. `real` gives the tensor from outside that a fake stands for, `where` the user's line
    that is run."""

    def __init__(
        self,
        sources: Sources,
        where: Callable[[], Line | None],
        real: Callable[[FakeTensor], torch.Tensor | None],
    ) -> None:
        self._sources = sources
        self.where = where
        self._real = real
        self.by_key: dict[tuple[object, ...], Guard] = {}
        self._functions: set[int] = set()  # guarded already, or made by the trace
        self._classes: set[type] = set()
        self.compared: set[type] = set()  # those of objects of which the program sees which are one

    @property
    def guards(self) -> tuple[Guard, ...]:
        """All guards, in the order in which the facts were learnt."""
        return tuple(self.by_key.values())

    def guard(self, kind: GuardKind, source: Source | None, value: object = None, key: object = None) -> None:
        """Adds a guard; `key` tells apart guards of one kind at one source."""
        k = (kind, source, key)
        if k not in self.by_key:
            self.by_key[k] = Guard(kind, source, value, self.where())

    def use_class(self, cls: type) -> None:
        """The trace depends on what the class's attributes are now."""
        if cls in self._classes:
            return
        self._classes.add(cls)
        if (
            not cls.__flags__ & IMMUTABLE_TYPE_FLAG
            and not self._sources.is_created_class(cls)
            and cls is not FakeTensor
        ):
            _note_slots(cls)
            self.guard("type_version", self._sources.const(cls), _native.type_version(cls))

    def use_identity(self, value: object) -> None:
        """The trace depends on which object `value` is: its hash, its address."""
        if isinstance(value, tuple):
            for part in value:
                self.use_identity(part)
            return
        source = self._sources.get(id(value))
        if source is None or source.kind == "const" or is_constant(value):
            return
        if is_identity(value) and not self._sources.is_guarded_by_code(value):
            return
        self.guard("id", source, self._real(value) if type(value) is FakeTensor else value)

    def use_differences(self, *values: object) -> None:
        """The trace depends on which of these, and of the objects in them, are one: sets and dictionaries look elements up,
        sequences compare theirs."""
        pending, seen = [*values], set()
        while pending:
            value = pending.pop()
            kind = type(value)
            if kind in LEAF_TYPES or id(value) in seen:
                continue
            seen.add(id(value))
            base = next((b for b in _COMPARED if isinstance(value, b)), None)
            if isinstance(value, dict):
                pending += dict.values(value)
            elif base is not None:
                pending += base.__iter__(value)
            else:
                self.compared.add(kind)
                pending += (value.__self__,) if type(value) is MethodType else ()

    def use_order(self, elements: set[object] | frozenset[object]) -> None:
        """The trace depends on the order of these, and so on the addresses of those that are hashed by them."""
        held = tuple(set.__iter__(elements) if isinstance(elements, set) else frozenset.__iter__(elements))
        if len(held) > 1:
            for value in held:
                self.use_identity(value.__self__ if type(value) is MethodType else value)

    def use_constant(self, value: object) -> None:
        """The trace depends on which of several equal constants `value` is."""
        if not is_interned(value):
            self._use_constants(lambda part: part is value)

    def use_nan(self, value: object) -> None:
        """The trace depends on which NaN `value` is, if it is one: containers find it by its identity."""
        if is_nan(value):
            self._use_constants(is_nan)

    def _use_constants(self, meant: Callable[[object], bool]) -> None:
        for guard in self.guards:
            if guard.kind == "eq" and any(map(meant, _parts(guard.value))):
                self.guard("id", guard.source, guard.value)

    def use_content(self, value: object) -> None:
        """The trace depends on what an immutable object of C holds."""
        if type(value) in IMMUTABLE_HOLDERS:
            self.use_identity(value)

    def use_digits(self, *values: object) -> None:
        """The trace depends on how many digits the text of an integer may have, if one of `values` may have too many, or is
        the error of too many: native code makes integers of such texts, and texts of such integers."""
        if any(map(_has_many_digits, values)) or any(map(_is_of_too_many_digits, values)):
            source = self._sources.const(sys.get_int_max_str_digits).child("call", None)
            self.guard("eq", source, sys.get_int_max_str_digits())

    def use_function(self, function: FunctionType) -> None:
        """The trace depends on the function's code and defaults."""
        if id(function) not in self._functions:
            self._functions.add(id(function))
            value = (function.__code__, function.__defaults__, function.__kwdefaults__)
            self.guard("function", self._sources.const(function), value)

    def mark_function_guarded(self, function: FunctionType) -> None:
        """The code and defaults of `function` are guarded part by part."""
        self._functions.add(id(function))

    def register_created_function(self, function: FunctionType) -> None:
        """`function` was made by the trace: nothing about it needs a guard."""
        self._functions.add(id(function))
        self._sources.register_created_function(function)

    def check_readable(self, value: object, special: str | None = None) -> None:
        """Raises Unsupported for an environment object of C that shows the contents of others, which nothing guards; also where
        the method `special` that is to be called of it is code of C that is not known."""
        if id(value) not in self._sources:
            return
        kind: object = type(value)
        if kind in UNGUARDABLE or (special is not None and not _is_known_reader(kind, special)):
            raise Unsupported(Reason(UNSUPPORTED_OBJECT, f"an outside {type(value).__qualname__} is read"))


_LEAST_LIMIT = sys.int_info.str_digits_check_threshold  # that `sys.set_int_max_str_digits` may set
_LEAST_LONG = 10**_LEAST_LIMIT


def _has_many_digits(value: object) -> bool:
    kind = type(value)
    if kind is int:
        return not -_LEAST_LONG < cast(int, value) < _LEAST_LONG
    return kind in (str, bytes, bytearray) and len(cast(str, value)) > _LEAST_LIMIT


def _is_of_too_many_digits(error: object) -> bool:
    """Whether native code raised it for an integer, or a text, of too many digits."""
    said = error.args[0] if type(error) is ValueError and error.args else None
    return type(said) is str and sys.set_int_max_str_digits.__name__ in said


# What is compared element by element. A subclass may have an `__iter__` and a `__len__` of its own.
_COMPARED: tuple[Any, ...] = (tuple, frozenset, list, collections.deque)


def _parts(constant: object) -> Iterator[object]:
    """A constant and, if it is a tuple or frozenset, all that is in it."""
    yield constant
    for part in constant if isinstance(constant, (tuple, frozenset)) else ():
        yield from _parts(part)


@cached_by_class
def _is_known_reader(cls: type, special: str) -> bool:
    owner = getattr(type_find(cls, special), "__objclass__", None)
    if owner is None or owner is np.dtype or issubclass(owner, np.generic):
        return True
    return owner.__module__.partition(".")[0] in _KNOWN_READERS


_KNOWN_READERS = frozenset(("builtins", "collections", "_collections", "itertools", "re", "torch", "types"))
