"""Lookup of names in classes, along the method resolution order and without running code."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from torch import nn

from smelt import _native
from smelt.capture.base.value_kinds import MISSING, FunctionType, Sentinel

# The kind of a class attribute, which decides how it is read.
ABSENT = Sentinel("absent")
FUNCTION = Sentinel("function")
PROPERTY = Sentinel("property")
CLASS_METHOD = Sentinel("classmethod")
STATIC_METHOD = Sentinel("staticmethod")
CACHED_PROPERTY = Sentinel("cached_property")
NATIVE_DATA = Sentinel("C data descriptor")
PYTHON_DATA = Sentinel("Python data descriptor")
NON_DATA = Sentinel("non-data descriptor")
VALUE = Sentinel("plain value")


_BY_TYPE = {
    FunctionType: FUNCTION,
    property: PROPERTY,
    classmethod: CLASS_METHOD,
    staticmethod: STATIC_METHOD,
    functools.cached_property: CACHED_PROPERTY,
}


Found = tuple[Sentinel, Any, Any]  # kind, value, defining class

_READS, _STORES = 0, 1  # indices in the result of `_native.is_generic`


class TypeInfo:
    """Facts about a class: its lookups so far, and which special methods are written in Python.

    `has_native_getattribute`, `has_native_setattr`: C code other than object's reads and stores attributes of its instances
    (`threading.local`, `decimal.Context`, weak proxies), so that their `__dict__` and classes do not determine them.
    `hides_dict`: its instances have a dictionary that they do not expose (type variables since CPython 3.12).
    `lookup` returns the value that a class itself holds under a name, or MISSING.
    """

    __slots__ = (
        "_lookup", "cls", "found", "getattr", "getattribute", "has_dict", "has_native_getattribute",
        "has_native_setattr", "hides_dict", "is_module", "setattr",
    )  # fmt: skip

    def __init__(self, cls: type, lookup: Callable[[type, str], object]) -> None:
        self.cls = cls
        self._lookup = lookup
        self.found: dict[str, Found] = {}
        self.is_module = issubclass(cls, nn.Module)
        self.has_dict = cls.__dictoffset__ != 0
        self.hides_dict = self.has_dict and type_find(cls, "__dict__") is MISSING
        self.getattribute = self._python("__getattribute__")
        self.has_native_getattribute = self.getattribute is None and not _is_generic(
            cls, "__getattribute__", _READS
        )
        self.setattr = type_find(cls, "__setattr__")
        self.has_native_setattr = False
        if _is_slot(self.setattr, "__setattr__"):
            self.has_native_setattr = not _is_generic(cls, "__setattr__", _STORES)
            self.setattr = None
        self.getattr = type_find(cls, "__getattr__")

    def _python(self, name: str) -> FunctionType | None:
        found = type_find(self.cls, name)
        return found if type(found) is FunctionType else None

    def find(self, name: str) -> Found:
        """Look up `name` on the class without running code; ABSENT if it has none."""
        found = self.found.get(name)
        if found is None:
            found = self.found[name] = self._find(name)
        return found

    def _find(self, name: str) -> Found:
        for base in self.cls.__mro__:
            value = self._lookup(base, name)
            if value is not MISSING:
                return classify(value, base)
        return ABSENT, None, None


def _is_slot(found: object, name: str) -> bool:
    """Whether `found` is the C slot `name` (and not another one, as in `__setattr__ = dict.__setitem__`)."""
    return type(found) is types.WrapperDescriptorType and found.__name__ == name


def _is_generic(cls: type, name: str, which: int) -> bool:
    """Whether the `__getattribute__` or `__setattr__` of `cls` is equivalent to object's."""
    found = type_find(cls, name)
    return _is_slot(found, name) and _native.is_generic(found.__objclass__)[which]  # type: ignore[attr-defined]


def classify(found: object, owner: type) -> Found:
    """Classify `found`, which the class `owner` holds, by the rule of attribute lookup that reads it."""
    cls = type(found)
    kind = _BY_TYPE.get(cls)
    if kind is None:
        get = type_find(cls, "__get__")
        if get is MISSING:
            kind = VALUE
        elif type_find(cls, "__set__") is MISSING and type_find(cls, "__delete__") is MISSING:
            kind = NON_DATA
        elif get is property.__get__:
            kind = PROPERTY
        else:
            kind = PYTHON_DATA if type(get) is FunctionType else NATIVE_DATA
    return kind, found, owner


def type_find(cls: type, name: str) -> object:
    """The unbound value that a class or its bases hold under `name`; MISSING if none does."""
    for base in cls.__mro__:
        found = base.__dict__.get(name, MISSING)
        if found is not MISSING:
            return found
    return MISSING


def fully_qualified_name(cls: type) -> str:
    """Module and name of a class, as `PyType_GetFullyQualifiedName` returns them."""
    module = cls.__module__
    return cls.__qualname__ if module in ("builtins", "__main__") else f"{module}.{cls.__qualname__}"
