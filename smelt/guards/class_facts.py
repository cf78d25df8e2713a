"""What a guard knows of a class: its version, and the attributes to compare once the version differs.

A class's version changes with any attribute of the class or of a base. Most changes decide nothing: a counter of calls or
of instances, a cache, a registry. So a guard whose version differs compares attributes (here `ClassFacts.admits`, in C++
`native/guards/checks/classes.cpp`), and holds if they agree.

It compares all special methods, all attributes with a `__get__`, and the values of the names that the trace looked up in any
class. It does not compare names that other guards cover. A class that native code may have read is compared completely: new
attributes count, too.

An expected value holds no reference that would keep a class alive through its own attributes:

    weak reference                     to an object with weak references
    (LEAF, value)                      a constant, compared by value
    (ADDRESS, type, id)                a descriptor that the class itself created for a slot or its dictionary
    (PARTS, type, names, values)       a property, staticmethod or classmethod, by the functions that it holds
    (IDENTITY, value)                  any other object
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from smelt import _native
from smelt.guards.leaf_equality import same_leaf

Expected = Any  # a weak reference or a tuple

LEAF, IDENTITY, ADDRESS, PARTS = range(4)  # checks/classes.cpp has the same numbers

_LEAVES = frozenset({int, float, bool, str, bytes, complex, type(None)})
_OWN_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
# The attributes of a descriptor that hold functions.
DESCRIPTOR_PARTS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}
_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE

# weak reference to a class, its version (0: immutable), expected attributes, names that other guards cover (None: all
# attributes are compared)
ClassPart = tuple[weakref.ref[type], int, dict[str, Expected], frozenset[str] | None]


@dataclass(frozen=True, eq=False)
class ClassFacts:
    """A class at `version`. `names`: those looked up in any class; `parts`: the classes along the method resolution order,
    or none if only the version is known."""

    version: int
    names: frozenset[str] = frozenset()
    parts: tuple[ClassPart, ...] = ()

    @property
    def native(self) -> tuple[int, frozenset[str], tuple[ClassPart, ...]]:
        """The value of the native check."""
        return self.version, self.names, self.parts

    def admits(self, cls: type) -> bool:
        """Whether the class has its version, or the attributes that the trace depends on are unchanged."""
        return _native.type_version(cls) == self.version or (bool(self.parts) and self.changed(cls) is None)

    def changed(self, cls: type) -> str | None:
        """The first attribute that differs; "__mro__" if the bases do; None if none differs."""
        if len(cls.__mro__) != len(self.parts):
            return "__mro__"
        for base, (reference, version, expected, covered) in zip(cls.__mro__, self.parts):
            if reference() is not base:
                return "__mro__"
            if not version or _native.type_version(base) == version:
                continue
            own = base.__dict__
            missing = next((name for name in expected if name not in own), None)
            if missing is not None:
                return missing
            for name, value in own.items():
                if name in expected:
                    if not _is_expected(value, expected[name]):
                        return name
                elif covered is None or (name not in covered and self._decides(name, value)):
                    return name
        return None

    def _decides(self, name: str, value: object) -> bool:
        return name in self.names or is_always_compared(name, value)

    def implies(self, other: ClassFacts) -> bool:
        """Whether `other` admits each class that these facts admit; False where that is unknown."""
        if self.version == other.version and not other.parts:
            return True
        if len(self.parts) != len(other.parts) or not other.parts or not self.names >= other.names:
            return False
        return all(map(_implies, self.parts, other.parts))


def _implies(narrow: ClassPart, wide: ClassPart) -> bool:
    covered = narrow[3] is None or (wide[3] is not None and narrow[3] <= wide[3])
    return (
        covered
        and narrow[0] is wide[0]
        and all(name in narrow[2] and _same(narrow[2][name], value) for name, value in wide[2].items())
    )


def is_always_compared(name: str, value: object) -> bool:
    """Whether an attribute is compared even if the trace did not look its name up."""
    return (len(name) > 4 and name[:2] == name[-2:] == "__") or _has_get(type(value))


def _has_get(cls: type) -> bool:
    return any("__get__" in base.__dict__ for base in cls.__mro__)


def class_part(cls: type, names: frozenset[str], covered: frozenset[str] | None) -> ClassPart:
    """The facts about the attributes that a class itself has now."""
    if cls.__flags__ & _IMMUTABLE:
        return weakref.ref(cls), 0, {}, None
    expected = {
        name: _expected(value, cls)
        for name, value in cls.__dict__.items()
        if covered is None or (name not in covered and (name in names or is_always_compared(name, value)))
    }
    return weakref.ref(cls), _native.type_version(cls), expected, covered


def _expected(value: object, owner: type | None = None) -> Expected:
    kind = type(value)
    if kind in _LEAVES:
        return LEAF, value
    if kind in DESCRIPTOR_PARTS:
        names = DESCRIPTOR_PARTS[kind]
        return PARTS, kind, names, tuple(_expected(getattr(value, name)) for name in names)
    if kind in _OWN_DESCRIPTORS and value.__objclass__ is owner:  # type: ignore[attr-defined]
        return ADDRESS, kind, id(value)
    try:
        return weakref.ref(value)
    except TypeError:
        return IDENTITY, value


def _is_expected(value: object, expected: Expected) -> bool:
    if type(expected) is weakref.ref:
        return expected() is value
    tag = expected[0]
    if tag == LEAF:
        return same_leaf(value, expected[1])
    if tag == IDENTITY:
        return value is expected[1]
    if type(value) is not expected[1]:
        return False
    if tag == ADDRESS:
        return id(value) == expected[2]
    return all(_is_expected(getattr(value, name), part) for name, part in zip(expected[2], expected[3]))


def _same(a: Expected, b: Expected) -> bool:
    """Whether two expected values are of one object; runs no code of its class."""
    if type(a) is weakref.ref or type(b) is weakref.ref:
        return a is b
    if a[0] != b[0]:
        return False
    if a[0] == LEAF:
        return same_leaf(a[1], b[1])
    if a[0] == PARTS:
        return a[1] is b[1] and len(a[3]) == len(b[3]) and all(map(_same, a[3], b[3]))
    return all(x is y or (type(x) is type(y) is int and x == y) for x, y in zip(a[1:], b[1:]))


def class_facts(
    cls: type,
    version: int,
    names: Iterable[str],
    covered: Iterable[tuple[type, str]],
    complete: Iterable[type],
) -> ClassFacts:
    """The facts about a class that had `version` when the trace first used it.

    Args:
        names: looked up in any class.
        covered: attributes that other guards cover, or that the trace stored without a read, each with its owner.
        complete: classes that native code may have read.
    """
    if _native.type_version(cls) != version or not version:
        return ClassFacts(version)  # it changed during capture
    whole = {base for each in complete for base in each.__mro__}
    own: dict[type, set[str]] = {}
    for owner, name in covered:
        own.setdefault(owner, set()).add(name)
    looked_up = frozenset(names)
    parts = (
        class_part(base, looked_up, None if base in whole else frozenset(own.get(base, ())))
        for base in cls.__mro__
    )
    return ClassFacts(version, looked_up, tuple(parts))
