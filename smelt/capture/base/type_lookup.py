"""How a name is found in a class, along the method resolution order and without running code; what is known of classes."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from torch import nn

from smelt import _native
from smelt.capture.base.value_kinds import MISSING, FunctionType, Sentinel

# How a name is found in the method resolution order.
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


Found = tuple[Sentinel, Any, Any]  # how, what, in which class

_READS, _STORES = 0, 1  # of what `_native.is_generic` says


class TypeInfo:
    """What the VM knows about a class: its lookups so far, and which special methods are written in Python.

    `reads_own`, `stores_own`: code of C, other than object's, reads and stores attributes of its instances
    (`threading.local`, `decimal.Context`, weak proxies), so that their `__dict__` and classes do not tell them.
    `hides_dict`: its instances have a dictionary that they do not show (type variables since CPython 3.12).
    `look` gives what a class has in itself under a name, MISSING if nothing.
    """

    __slots__ = (
        "_look",
        "cls",
        "found",
        "getattr",
        "getattribute",
        "has_dict",
        "hides_dict",
        "is_module",
        "reads_own",
        "setattr",
        "stores_own",
    )

    def __init__(self, cls: type, look: Callable[[type, str], object]) -> None:
        self.cls = cls
        self._look = look
        self.found: dict[str, Found] = {}
        self.is_module = issubclass(cls, nn.Module)
        self.has_dict = cls.__dictoffset__ != 0
        self.hides_dict = self.has_dict and type_find(cls, "__dict__") is MISSING
        self.getattribute = self._python("__getattribute__")
        self.reads_own = self.getattribute is None and not _is_generic(cls, "__getattribute__", _READS)
        self.setattr = type_find(cls, "__setattr__")
        self.stores_own = False
        if _is_slot(self.setattr, "__setattr__"):
            self.stores_own = not _is_generic(cls, "__setattr__", _STORES)
            self.setattr = None
        self.getattr = type_find(cls, "__getattr__")

    def _python(self, name: str) -> FunctionType | None:
        found = type_find(self.cls, name)
        return found if type(found) is FunctionType else None

    def find(self, name: str) -> Found:
        """What the class has under `name`, without running code; ABSENT if nothing."""
        found = self.found.get(name)
        if found is None:
            found = self.found[name] = self._find(name)
        return found

    def _find(self, name: str) -> Found:
        for base in self.cls.__mro__:
            value = self._look(base, name)
            if value is not MISSING:
                return classify(value, base)
        return ABSENT, None, None


def _is_slot(found: object, name: str) -> bool:
    """Whether `found` is what a class of C does under `name` (and not `__setattr__ = dict.__setitem__`)."""
    return type(found) is types.WrapperDescriptorType and found.__name__ == name


def _is_generic(cls: type, name: str, which: int) -> bool:
    """Whether what `cls` has as `__getattribute__` or `__setattr__` does what object's does."""
    found = type_find(cls, name)
    return _is_slot(found, name) and _native.is_generic(found.__objclass__)[which]  # type: ignore[attr-defined]


def classify(found: object, owner: type) -> Found:
    """By which rule of attribute lookup `found`, which the class `owner` holds, is read."""
    kind = type(found)
    how = _BY_TYPE.get(kind)
    if how is None:
        get = type_find(kind, "__get__")
        if get is MISSING:
            how = VALUE
        elif type_find(kind, "__set__") is MISSING and type_find(kind, "__delete__") is MISSING:
            how = NON_DATA
        elif get is property.__get__:
            how = PROPERTY
        else:
            how = PYTHON_DATA if type(get) is FunctionType else NATIVE_DATA
    return how, found, owner


def type_find(cls: type, name: str) -> object:
    """What the class or its bases hold under `name`, unbound; MISSING if none of them does."""
    for base in cls.__mro__:
        found = base.__dict__.get(name, MISSING)
        if found is not MISSING:
            return found
    return MISSING


def fully_qualified_name(cls: type) -> str:
    """Module and name of a class, as `PyType_GetFullyQualifiedName` gives it."""
    module = cls.__module__
    return cls.__qualname__ if module in ("builtins", "__main__") else f"{module}.{cls.__qualname__}"
