"""Digests of live objects, to compare an object with the one that a stored entry was made with.

A digest covers code (with its file and lines), defaults, simple function attributes and constants by value, and classes
and C objects by name. Guards check what else the program reads of an object. Other objects raise `Unstorable`.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import marshal
import operator
import struct
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from smelt import _native
from smelt.guards.class_facts import DESCRIPTOR_PARTS
from smelt.guards.stored_form import Unstorable
from smelt.torch_private import OpOverload, OpOverloadPacket

DEPTH = 12  # of objects within objects


# Stands in stored code for `release_arguments`, the only constant that no compiler of Python makes.
_RELEASE = "smelt", "release_arguments"


def code_digest(code: types.CodeType) -> bytes:
    """The digest of a code object, of the code nested in it, and of its file and lines. Raises Unstorable."""
    return hashlib.sha256(code_bytes(code)).digest()


def code_bytes(code: types.CodeType) -> bytes:
    """A code object as bytes. Raises Unstorable for constants that no source has."""
    if _RELEASE in code.co_consts:
        raise Unstorable("a constant of the program that generated code uses")
    if _native.release_arguments in code.co_consts:
        code = code.replace(
            co_consts=tuple(_RELEASE if c is _native.release_arguments else c for c in code.co_consts)
        )
    try:
        # Version 0 writes no references, which would depend on reference counts and on interned texts.
        return marshal.dumps(code, 0)
    except ValueError:
        raise Unstorable(f"the code of {code.co_qualname} has objects as constants") from None


def code_of(data: bytes) -> types.CodeType:
    """The code object of `code_bytes`."""
    code: types.CodeType = marshal.loads(data)
    constants = tuple(_native.release_arguments if c == _RELEASE else c for c in code.co_consts)
    return code.replace(co_consts=constants)


def digest_of(*values: object) -> bytes:
    """The digest of values. Raises Unstorable."""
    writer = _Writer()
    for value in values:
        writer.write(value)
    return hashlib.sha256(b"".join(writer.parts)).digest()


_module_of: Any = type.__dict__["__module__"].__get__
_qualname_of: Any = type.__dict__["__qualname__"].__get__


def class_name(cls: type) -> str:
    """Module and qualified name of a class, read without its metaclass."""
    return f"{_module_of(cls)}.{_qualname_of(cls)}"


class _Writer:
    """Collects what is hashed, in a walk over values. An object that is being walked is written as its depth."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._walked: list[int] = []

    def text(self, *texts: str) -> None:
        for text in texts:
            data = text.encode("utf-8", "surrogatepass")
            self.parts.append(b"%d:%b" % (len(data), data))

    def write(self, value: Any) -> None:
        kind = type(value)
        if kind in _LEAVES:
            data = repr(value).encode("utf-8", "surrogatepass")
            self.parts.append(b"%b:%d:%b" % (kind.__name__.encode(), len(data), data))
            return
        if kind is types.FunctionType and not (value.__defaults__ or value.__kwdefaults__ or value.__dict__):
            self._bare_function(value)
            return
        if kind is float or kind is complex:
            parts = (value,) if kind is float else (value.real, value.imag)
            self.text(kind.__name__, struct.pack(f"<{len(parts)}d", *parts).hex())
            return
        if id(value) in self._walked:
            self.text("again", str(len(self._walked) - self._walked.index(id(value))))
            return
        if len(self._walked) > DEPTH:
            raise Unstorable("objects nested too deep")
        self._walked.append(id(value))
        self._object(value, kind)
        self._walked.pop()

    def _bare_function(self, f: types.FunctionType) -> None:
        name = f.__qualname__.encode("utf-8", "surrogatepass")
        self.parts.append(b"function:%d:%d:%b" % (f.__defaults__ is None, len(name), name))
        self.parts.append(code_digest(f.__code__))

    def all(self, tag: str, values: Iterable[Any]) -> None:
        items = values if type(values) is tuple or type(values) is list else list(values)
        self.parts.append(b"%b:%d:" % (tag.encode(), len(items)))
        for item in items:
            self.write(item)

    def _object(self, value: Any, kind: type) -> None:
        write = _KINDS.get(kind)
        if write is not None:
            write(self, value)
        elif isinstance(value, type):
            self.text(
                "class", class_name(type(value)), str(len(value.__mro__)), *map(class_name, value.__mro__)
            )
        elif isinstance(value, types.ModuleType):
            self.text("module", str(types.ModuleType.__getattribute__(value, "__dict__").get("__name__")))
        elif isinstance(value, enum.Enum):
            self.all("enum", (kind, value._name_, value._value_))
        elif kind.__module__ in ("typing", "typing_extensions") or isinstance(value, _ALIASES):  # annotations
            self.text(class_name(kind), repr(value))
        elif kind is object or kind.__module__ == "_abc" or kind.__name__ == "PyCapsule":
            # A marker, whose identity guards compare; caches of an abstract class; data of pybind11.
            self.text(class_name(kind))
        elif kind.__module__.startswith("torch._C") and "__members__" in vars(kind):  # an enum of pybind11
            self.text(class_name(kind), str(int(value)))
        elif kind.__name__ == "_tuplegetter":
            self.all("field", value.__reduce__()[1])
        elif kind.__name__ == "instancemethod":  # of a class of pybind11
            self.all("instancemethod", (value.__func__,))
        elif isinstance(value, tuple(DESCRIPTOR_PARTS)):  # of a subclass in Python
            base = next(b for b in DESCRIPTOR_PARTS if isinstance(value, b))
            own = object.__getattribute__(value, "__dict__") if kind.__dictoffset__ else {}
            self.all(
                "wrapper", (kind, *(getattr(base, n).__get__(value) for n in DESCRIPTOR_PARTS[base]), own)
            )
        elif _is_plain(kind):
            self.all("instance", (kind, object.__getattribute__(value, "__dict__")))
        elif kind.__module__ == "dataclasses":
            self.all("slots", (kind, *(getattr(value, name) for name in kind.__slots__)))  # type: ignore[attr-defined]
        else:
            raise Unstorable(f"a {class_name(kind)} has no form on disk")


def _is_plain(kind: type) -> bool:
    """Whether all of an instance is its class and its `__dict__`."""
    return (
        kind.__flags__ & _HEAP != 0
        and kind.__basicsize__ == _Plain.__basicsize__
        and bool(kind.__dictoffset__)
    )


_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE


class _Plain:
    pass


def _function(w: _Writer, f: types.FunctionType) -> None:
    marks = {name: value for name, value in f.__dict__.items() if type(value) in _LEAVES}
    w._bare_function(f)
    w.all("defaults", (f.__defaults__, f.__kwdefaults__, sorted(f.__dict__), marks))


def _builtin(w: _Writer, f: Any) -> None:
    owner = getattr(f, "__self__", None)
    if type(owner).__name__ == "PyCapsule" or type(owner).__name__.startswith("pybind11_detail"):
        owner = None  # a function of pybind11
    if owner is not None and not isinstance(owner, (type, types.ModuleType)):
        raise Unstorable(f"the method {f.__qualname__} of an object has no form on disk")
    w.all(type(f).__name__, (f.__module__, f.__qualname__, owner))


def _descriptor(w: _Writer, f: Any) -> None:
    w.text(type(f).__name__, f.__name__, class_name(f.__objclass__))


def _unordered(w: _Writer, values: Any) -> None:
    digests = sorted(digest_of(value) for value in values)
    w.all(type(values).__name__, [d.hex() for d in digests])


def _parts(*names: str) -> Callable[[_Writer, Any], None]:
    return lambda w, value: w.all(type(value).__name__, (getattr(value, name) for name in names))


_ALIASES = (types.GenericAlias, types.UnionType)
_LEAVES = frozenset({int, bool, str, bytes, type(None), type(...), type(NotImplemented), torch.dtype, torch.device,
                     torch.layout, torch.memory_format, torch.Size, range})  # fmt: skip
_KINDS: dict[type, Callable[[_Writer, Any], None]] = {
    tuple: lambda w, v: w.all("tuple", v),
    list: lambda w, v: w.all("list", v),
    dict: lambda w, v: w.all("dict", (x for pair in v.items() for x in pair)),
    types.MappingProxyType: lambda w, v: w.all("proxy", (x for pair in v.items() for x in pair)),
    set: _unordered, frozenset: _unordered,
    slice: _parts("start", "stop", "step"),
    types.FunctionType: _function,
    types.CodeType: lambda w, v: w.text("code", code_digest(v).hex()),
    types.BuiltinFunctionType: _builtin,
    types.MethodType: _parts("__func__", "__self__"),
    **{kind: _parts(*names) for kind, names in DESCRIPTOR_PARTS.items()},
    functools.partial: _parts("func", "args", "keywords"),
    OpOverload: lambda w, v: w.text("op", str(v)), OpOverloadPacket: lambda w, v: w.text("packet", str(v)),
    **dict.fromkeys(
        (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
         types.MemberDescriptorType, types.ClassMethodDescriptorType), _descriptor),
}  # fmt: skip


# ----------------------------------------------------------------------------------------------- torch's own functions


def _namespaces() -> tuple[Any, ...]:
    names = ("torch", "torch.nn.functional", "torch.functional", "torch._tensor", "torch.overrides", "torch._VF",
             "torch._C._nn", "torch.nn.modules.utils", "torch._jit_internal")  # fmt: skip
    return (*(sys.modules[name] for name in names if name in sys.modules), torch.Tensor)


def library_digest() -> bytes:
    """The digest of the functions of torch that capture runs natively: a program may replace them. Guards compare those that
    a capture reads itself, this covers those that torch's functions call."""
    global _library
    found: list[Any] = []
    for space in _namespaces():
        for name, value in vars(space).items():
            kind = type(value)
            if kind is types.FunctionType:
                value = _within(value)
                found += name, value, value.__code__
            elif kind in _NAMED:
                found += name, value, None
    known, digest = _library
    if len(known) == len(found) and all(map(operator.is_, known, found)):  # as at the last call
        return digest
    rows = zip(found[::3], found[1::3], found[2::3])
    parts = [
        (str(name), marshal.dumps(code, 0) if code else value.__qualname__.encode())
        for name, value, code in rows
    ]
    parts.sort()  # modules appear as they are imported
    digest = hashlib.sha256(b"\0".join([p for name, part in parts for p in (name.encode(), part)])).digest()
    _library = found, digest
    return digest


def _within(function: types.FunctionType) -> types.FunctionType:
    """The function inside of torch's wrapper. Calls such as `torch.cond` import torch's compiler, which wraps functions."""
    if function.__code__.co_qualname == "_disable_dynamo.<locals>.inner":
        wrapped = vars(function).get("__wrapped__")
        return wrapped if type(wrapped) is types.FunctionType else function
    return function


_library: tuple[list[Any], bytes] = ([], b"")


_NAMED = frozenset({types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
                    types.GetSetDescriptorType})  # fmt: skip
