"""The facts that a capture depends on, as guards.

Invariant: every fact that capture reads from an environment object is guarded, unless the trace itself wrote it.
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
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.class_caches import cached_by_class
from smelt.capture.base.native_functions import is_native_module
from smelt.capture.base.type_lookup import type_find
from smelt.capture.base.value_kinds import (
    IMMUTABLE_TYPE_FLAG,
    LEAF_TYPES,
    FunctionType,
    MethodType,
    is_constant,
    is_identity,
    is_interned,
    is_nan,
    is_special_name,
)
from smelt.capture.base.vm_frames import is_smelt_module
from smelt.capture.environment.source_index import Sources
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.proxies.text_proxy import TextProxy, unreadable
from smelt.errors import Unsupported
from smelt.graph.ir import Line
from smelt.guards.class_facts import ClassFacts, class_facts
from smelt.guards.guard import Guard
from smelt.guards.guard_kinds import KINDS
from smelt.guards.source import Source
from smelt.reasons import CHANGING_VALUE, UNSUPPORTED_OBJECT, Reason
from smelt.tracing.fake.fake_tensor import FakeTensor

_MAPPINGS: tuple[dict[object, object], ...] = ({}, collections.OrderedDict())
KEY_WRAPPER = type(functools.cmp_to_key(lambda a, b: 0))  # its comparison calls the function that it holds
UNGUARDABLE: frozenset[type] = frozenset(
    {
        *(type(view) for m in _MAPPINGS for view in (m.keys(), m.values(), m.items())),
        types.MappingProxyType, np.ndarray, memoryview, bytearray, array.array, _thread.LockType, type(_thread.RLock()),
        KEY_WRAPPER,
    }
)  # fmt: skip
# Immutable objects of C with contents that no guard can read.
IMMUTABLE_HOLDERS = frozenset(
    {operator.itemgetter, operator.attrgetter, operator.methodcaller, re.Pattern, re.Match}
)


def _cache_slot_names(cls: type) -> None:
    """Let `copyreg` cache the slot names in the class now, so that a later `copy` or `pickle` does not change its version.
    Skips classes with a metaclass, which may interpret every class attribute, as that of protocols does."""
    for base in cls.__mro__:
        if not base.__flags__ & IMMUTABLE_TYPE_FLAG and type(base) is type:
            copyreg._slotnames(base)  # type: ignore[attr-defined]


class GuardFacts:
    """The guards of one capture. `real` returns the environment's tensor of a fake, `current_line` the user's line."""

    def __init__(
        self,
        sources: Sources,
        current_line: Callable[[], Line | None],
        real: Callable[[FakeTensor], torch.Tensor | None],
    ) -> None:
        self._sources = sources
        self.current_line = current_line
        self._real = real
        self.by_key: dict[tuple[object, ...], Guard] = {}
        self._functions: set[int] = set()  # guarded already
        self._classes: set[type] = set()
        self._complete: set[type] = set()  # of these, those that native code may read
        self._covered: set[tuple[type, str]] = set()  # attributes of classes that have guards of their own
        self.class_names: set[str] = set()  # looked up in any class
        self.unguarded: frozenset[tuple[object, ...]] = frozenset()  # paths of what kept causing recompiles
        # of these, the paths of arguments whose classes kept changing
        self.unknown: frozenset[tuple[object, ...]] = frozenset()
        self.compared: set[type] = set()  # classes of objects whose identity the program compares
        # whether a class is registered with an abstract class, which the guard of the registry's token stands for
        self.registrations: dict[tuple[type, type], bool] = {}
        # why the capture depends on the process, beyond what guards check; None if it does not
        self.process_dependence: str | None = None
        # that say what `requires_grad` was; guards of tensors imply them
        self.gradient_reads: list[Guard] = []

    @property
    def guards(self) -> tuple[Guard, ...]:
        """All guards, in the order in which they were added."""
        return tuple(self.by_key.values())

    def guard(self, kind: str, source: Source | None, value: object = None, key: object = None) -> None:
        """Add a guard; `key` distinguishes guards of one kind at one source."""
        if value is not None:  # None is the only value of its type
            self.check_guarded(kind, source)
        k = (kind, source, key)
        if k not in self.by_key:
            self.by_key[k] = Guard(kind, source, value, self.current_line())

    def read_requires_grad(self, tensor: Source, value: bool) -> None:
        """Note that the program reads `requires_grad`, for guards that do not compare it otherwise."""
        self.gradient_reads.append(
            Guard("eq", tensor.child("member", "requires_grad"), value, self.current_line())
        )

    def is_type_guarded(self, source: Source) -> bool:
        """Whether a guard implies the type of the constant at `source`."""
        return any((kind, source, None) in self.by_key for kind in ("eq", "number", "type"))

    def check_guarded(self, kind: str, source: Source | None) -> None:
        """Raise Unsupported if a guard of this kind at `source` kept causing recompiles."""
        aspect = KINDS[kind].aspect if self.unguarded else ""
        if aspect and source is not None and source.path in self.unguarded:
            raise Unsupported(Reason(CHANGING_VALUE, f"{aspect} {source}"))

    def use_class(self, cls: type) -> None:
        """Guard all attributes of a class and its bases, which native code may read."""
        self._complete.add(cls)
        self.use_lookups(cls)

    def use_lookups(self, cls: type) -> None:
        """Guard what lookups in a class find: special methods, descriptors, and the names in `class_names`."""
        if cls in self._classes:
            return
        if cls is OpaqueProxy:
            raise unreadable("the program uses an object that changes")
        self._classes.add(cls)
        if (
            not cls.__flags__ & IMMUTABLE_TYPE_FLAG
            and not self._sources.is_created_class(cls)
            and cls is not FakeTensor
        ):
            _cache_slot_names(cls)
            self.guard("type_version", self._sources.const(cls), ClassFacts(_native.type_version(cls)))

    def cover(self, owner: type, name: str) -> bool:
        """Exempt an attribute from the guard of its class: another guard covers it. False where only that guard can, as for
        special names, and classes of the library."""
        if (
            is_special_name(name)
            or owner.__flags__ & IMMUTABLE_TYPE_FLAG
            or is_native_module(owner.__module__)
        ):
            return False
        self._covered.add((owner, name))
        return True

    def guard_classes(self) -> None:
        """Add to the guards of classes what they compare once the version of a class differs."""
        for key, guard in self.by_key.items():
            if type(guard.value) is ClassFacts and guard.source is not None:
                cls, version = guard.source.known, guard.value.version
                facts = class_facts(cls, version, self.class_names, self._covered, self._complete)
                self.by_key[key] = Guard("type_version", guard.source, facts, guard.line)

    def use_identity(self, value: object) -> None:
        """Guard the identity of `value`: the trace depends on its hash or address."""
        if isinstance(value, tuple):
            for part in value:
                self.use_identity(part)
            return
        source = self._sources.get(id(value))
        if type(value) is TextProxy or type(value) is OpaqueProxy:
            raise unreadable("the identity of an object that changes decides", value)
        if source is None or source.kind == "const" or is_constant(value):
            return
        if is_identity(value) and not self._sources.is_guarded_by_code(value):
            return
        self.guard("id", source, self._real(value) if type(value) is FakeTensor else value)

    def use_differences(self, *values: object) -> None:
        """Guard which of these objects, and of the objects that they contain, are identical: lookups in sets and
        dictionaries and comparisons of sequences depend on that."""
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
                self._check_reference(value)
                self.compared.add(kind)
                pending += (value.__self__,) if type(value) is MethodType else ()

    def depend_on_process(self, what: str) -> None:
        """Note that the capture read `what`, which no guard checks because it cannot change within a process. Another
        process must not use the entry."""
        self.process_dependence = self.process_dependence or what

    def use_order(self, elements: set[object] | frozenset[object]) -> None:
        """Guard the iteration order of a set: the addresses of the elements that are hashed by identity."""
        members = tuple(set.__iter__(elements) if isinstance(elements, set) else frozenset.__iter__(elements))
        if len(members) > 1:
            if any(type(value) not in _HASHED_BY_VALUE for value in members):
                self.depend_on_process("the order of a set")
            for value in members:
                self.use_identity(value.__self__ if type(value) is MethodType else value)

    def use_constant(self, value: object) -> None:
        """Guard the identity of a constant among equal constants."""
        if not is_interned(value):
            self._guard_identities(lambda part: part is value)

    def use_nan(self, value: object) -> None:
        """Guard the identity of `value` if it is a NaN: containers find a NaN by identity."""
        if is_nan(value):
            self._guard_identities(is_nan)

    def _guard_identities(self, matches: Callable[[object], bool]) -> None:
        """Guard the identity of all constants that match, or contain a match."""
        for guard in self.guards:
            if guard.kind.is_constant and any(map(matches, _parts(guard.value))):
                self.guard("id", guard.source, guard.value)

    def use_content(self, value: object) -> None:
        """Guard the contents of an immutable object of C, by its identity."""
        self._check_reference(value)
        if type(value) in IMMUTABLE_HOLDERS:
            self.use_identity(value)

    def _check_reference(self, value: object) -> None:
        """Raise Unsupported for a weak reference of the environment that native code compares, hashes or shows: the result
        depends on its referent, and on whether that is alive."""
        if isinstance(value, weakref.ref) and id(value) in self._sources:
            raise Unsupported(
                Reason(UNSUPPORTED_OBJECT, "an environment weak reference is read by native code")
            )

    def use_digits(self, *values: object) -> None:
        """Guard the limit of digits in conversions of integers, if one of `values` may exceed it or is its error."""
        if any(map(_has_many_digits, values)) or any(map(_is_of_too_many_digits, values)):
            source = self._sources.const(sys.get_int_max_str_digits).child("call", None)
            self.guard("eq", source, sys.get_int_max_str_digits())

    def use_function(self, function: FunctionType) -> None:
        """Guard the code and the defaults of a function."""
        is_settled = id(function) in self._functions or is_smelt_module(function.__globals__)
        if not is_settled and not self._sources.is_created_function(function):
            self._functions.add(id(function))
            value = (function.__code__, function.__defaults__, function.__kwdefaults__)
            self.guard("function", self._sources.const(function), value)

    def mark_function_guarded(self, function: FunctionType) -> None:
        """Mark `function` as guarded; the caller guards its code and its defaults one by one."""
        self._functions.add(id(function))

    def check_readable(self, value: object, special: str | None = None) -> None:
        """Raise Unsupported for an environment object of C that exposes unguarded contents of other objects, and for one
        whose method `special` is unknown C code."""
        if id(value) not in self._sources:
            return
        kind: object = type(value)
        if kind in UNGUARDABLE or (special is not None and not _is_known_reader(kind, special)):
            raise Unsupported(
                Reason(UNSUPPORTED_OBJECT, f"an environment {type(value).__qualname__} is read")
            )


# Their hashes are the same in every process: those of texts are randomized, other objects have addresses.
_HASHED_BY_VALUE = frozenset({int, float, bool, complex})
_LEAST_LIMIT = sys.int_info.str_digits_check_threshold  # the least that `sys.set_int_max_str_digits` accepts
_LEAST_LONG = 10**_LEAST_LIMIT


def _has_many_digits(value: object) -> bool:
    kind = type(value)
    if kind is int:
        return not -_LEAST_LONG < cast(int, value) < _LEAST_LONG
    return kind in (str, bytes, bytearray) and len(cast(str, value)) > _LEAST_LIMIT


def _is_of_too_many_digits(error: object) -> bool:
    """Whether native code raised `error` for an integer or a text with too many digits."""
    message = error.args[0] if type(error) is ValueError and error.args else None
    return type(message) is str and sys.set_int_max_str_digits.__name__ in message


# Sequences that are compared element by element. A subclass may override `__iter__` and `__len__`.
_COMPARED: tuple[Any, ...] = (tuple, frozenset, list, collections.deque)


def _parts(constant: object) -> Iterator[object]:
    """A constant and, for a tuple or frozenset, its elements at all depths."""
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
