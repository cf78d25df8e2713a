"""References from a stored entry to the live objects of another process.

    table     := object*                     objects that guards compare by identity, or that the compiled frame uses
    object    := reference digest            a later object may refer to earlier ones by their number
    reference := "root"                      the compiled function
               | "modules"                   sys.modules
               | "module" name               sys.modules[name]
               | "dict" name                 its dictionary
               | "name" module qualname      found from its module by its own name
               | "globals" object            the globals of a function
               | "member" object name part   a function in the dictionary of a class; part: of a property, ...
               | "base" object index         of the method resolution order of a class
               | "type" node                 the class of the object at a node of the guard tree
               | "at" node                   the object at a node of the guard tree
               | "continuation" name         a continuation that a global of a continuation stack calls, or a part of it

A resolved object must have the stored digest; the root, modules and namespaces have none, guards check what is read of them.
Distinct rows must resolve to distinct objects.
Nothing here runs code of the program.
"""

from __future__ import annotations

import enum
import hashlib
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from smelt import _native
from smelt.guards.class_facts import DESCRIPTOR_PARTS, class_part
from smelt.guards.named_objects import name_of, named
from smelt.guards.read_source import ACCESSORS, FAILURES
from smelt.guards.stored_form import Unstorable
from smelt.runtime.tail_calls import CONTINUATION_STACK_MODULE, TailCall
from smelt.torch_private import OpOverload, OpOverloadPacket
from smelt.warm.digests import class_name, digest_of

Reference = tuple[Any, ...]
# What native guard trees are built from: (parent, kind, key, checks, number in `inputs`).
Node = tuple[int, str, Any, tuple[Any, ...], int]

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_C_FUNCTIONS = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip
_BY_DIGEST = (
    types.FunctionType,
    types.ModuleType,
    OpOverload,
    OpOverloadPacket,
    type,
    enum.Enum,
    *_C_FUNCTIONS,
)


class Missing(Exception):
    """This process has no object for a reference."""


def read_node(
    nodes: Sequence[Node], index: int, root: Callable[[int], object], key: Callable[[Any], Any]
) -> object:
    """The object at a node. `root` returns that of a node without parent. Raises FAILURES."""
    chain = []
    while nodes[index][0] >= 0:
        chain.append(nodes[index])
        index = nodes[index][0]
    found = root(index)
    for _, kind, at, *_ in reversed(chain):
        found = ACCESSORS[kind](found, key(at))
    return found


# ------------------------------------------------------------------------------------------------------------- writing


class ObjectTable:
    """The objects of an entry that is being stored. `fn`: its function; `nodes`: those of its guard tree."""

    def __init__(self, fn: types.FunctionType, nodes: Sequence[Node]) -> None:
        self.rows: list[tuple[Reference, bytes]] = []
        self._fn, self._nodes = fn, nodes
        self._numbers: dict[int, int] = {}
        self.objects: list[object] = []
        self._pending: set[int] = set()
        # by id of an object that a guard compares: the nodes of these guards
        self._at: dict[int, list[int]] = {}
        self._types: dict[int, list[int]] = {}  # by id of a class: the nodes of its instances
        self._classes: list[type] = []
        self._functions: list[types.FunctionType] = [fn]
        for number, (_, kind, key, checks, _) in enumerate(nodes):
            if kind == "const":
                self._note(key)
            for _, check, value in checks:
                if check in ("id", "type"):
                    self._note(value)
                    (self._at if check == "id" else self._types).setdefault(id(value), []).append(number)

    def _note(self, value: object) -> None:
        if isinstance(value, type):
            self._classes += (c for c in value.__mro__ if c not in self._classes)
        elif isinstance(value, types.FunctionType):
            self._functions.append(value)

    def number(self, value: object) -> int:
        """The number of an object in the table. Raises Unstorable if nothing finds it in another process."""
        known = self._numbers.get(id(value))
        if known is not None:
            return known
        if id(value) in self._pending:
            raise Unstorable(f"{_text(value)} is found only by itself")
        self._pending.add(id(value))
        try:
            reference = self._reference(value)
        finally:
            self._pending.discard(id(value))
        return self._add(value, reference)

    def number_at(self, value: object, node: int) -> int:
        """The number of a function that only its path finds. Raises Unstorable."""
        if id(value) in self._numbers:
            return self._numbers[id(value)]
        if type(value) is not types.FunctionType or not self._is_readable(node):
            raise Unstorable(f"{_text(value)} is compared by its code")
        return self._add(value, ("at", node))

    def _add(self, value: object, reference: Reference) -> int:
        digest = (
            b""
            if reference[0] in ("root", "modules", "dict", "globals", "module", "continuation")
            else _digest(value, reference)
        )
        self._numbers[id(value)] = len(self.rows)
        self.objects.append(value)
        self.rows.append((reference, digest))
        return self._numbers[id(value)]

    def _reference(self, value: object) -> Reference:
        if value is self._fn:
            return ("root",)
        if type(value) is dict:
            return self._dictionary(value)
        if not isinstance(value, (*_BY_DIGEST, _native.Wrapped, TailCall)):
            raise Unstorable(f"{_text(value)} is compared by identity")
        if isinstance(value, types.ModuleType):
            module = str(types.ModuleType.__getattribute__(value, "__dict__").get("__name__"))
            if sys.modules.get(module) is value:
                return ("module", module)
        name = name_of(value)
        if name is not None:
            return ("name", *name)
        for found in self._elsewhere(value):
            return found
        raise Unstorable(f"{_text(value)} is found by no name and no guard")

    def _dictionary(self, value: dict[Any, Any]) -> Reference:
        if value is sys.modules:
            return ("modules",)
        if value is self._fn.__globals__:
            return ("globals", self.number(self._fn))
        name = value.get("__name__")
        if type(name) is str and name in sys.modules and vars(sys.modules[name]) is value:
            return ("dict", name)
        for function in self._functions:
            if function.__globals__ is value and id(function) not in self._pending:
                return ("globals", self.number(function))
        raise Unstorable(
            f"a dictionary with the keys {', '.join(map(str, list(value)[:3]))}... is compared by identity"
        )

    def _elsewhere(self, value: object) -> Iterator[Reference]:
        for kind, nodes in (("at", self._at.get(id(value), ())), ("type", self._types.get(id(value), ()))):
            for node in nodes:
                if self._is_readable(node):
                    yield kind, node
        if isinstance(value, _C_FUNCTIONS):
            cls, name = getattr(value, "__objclass__", None), value.__name__
            if isinstance(cls, type) and vars(cls).get(name) is value and id(cls) not in self._pending:
                yield "member", self.number(cls), name, ""
        for name, part in _continuations(self._fn):
            if part is value:
                yield "continuation", name
        if isinstance(value, types.FunctionType):
            for cls in self._classes:
                for name, part in _attribute_names(cls, value):
                    if id(cls) not in self._pending:
                        yield "member", self.number(cls), name, part
        if isinstance(value, type):
            for cls in self._classes:
                if cls is not value and value in cls.__mro__ and id(cls) not in self._pending:
                    yield "base", self.number(cls), cls.__mro__.index(value)

    def _is_readable(self, index: int) -> bool:
        """Whether the path to a node starts at an argument, or at an object that is found without it."""
        while self._nodes[index][0] >= 0:
            index = self._nodes[index][0]
        _, kind, key, *_ = self._nodes[index]
        if kind == "arg":
            return True
        if id(key) in self._pending:
            return False
        try:
            self.number(key)
        except Unstorable:
            return False
        return True


def _digest(value: object, reference: Reference) -> bytes:
    # Only its attributes distinguish a class that is found by no name.
    if isinstance(value, type) and reference[0] in ("type", "at", "base"):
        return digest_of(value, dict(_attributes(value)))
    return digest_of(value)


def _attributes(cls: type) -> Iterator[tuple[str, object]]:
    return ((name, value) for name, value in vars(cls).items() if name not in _HIDDEN)


def _attribute_names(cls: type, function: types.FunctionType) -> Iterator[tuple[str, str]]:
    for name, attribute in vars(cls).items():
        if attribute is function:
            yield name, ""
        for part in DESCRIPTOR_PARTS.get(type(attribute), ()):
            if getattr(attribute, part) is function:
                yield name, part


def _continuations(fn: types.FunctionType) -> Iterator[tuple[str, object]]:
    """The globals of a continuation stack, by name, and what they consist of: callables, and the code after a break."""
    own = fn.__globals__
    if own.get("__name__") == CONTINUATION_STACK_MODULE:
        for name, value in own.items():
            yield name, value
            if type(value) is TailCall:
                yield f"{name}.target", value.target
            callee = value.target if type(value) is TailCall else value
            if isinstance(callee, _native.Wrapped):
                yield f"{name}.code", callee.__wrapped__


def _text(value: object) -> str:
    return str(getattr(value, "__qualname__", None) or f"an object of the class {class_name(type(value))}")


# ------------------------------------------------------------------------------------------------------------- reading


class Resolver:
    """The objects of a stored table in this process, for a call of `fn` with these argument slots. `key`: the key of a
    node from its form; `objects` receives the objects."""

    def __init__(
        self,
        fn: types.FunctionType,
        slots: Sequence[object],
        nodes: Sequence[Node],
        key: Callable[[Any], Any],
        objects: list[Any],
    ) -> None:
        self.objects = objects
        self._fn, self._slots, self._nodes, self._key = fn, slots, nodes, key

    def resolve(self, rows: Sequence[tuple[Reference, bytes]]) -> None:
        """Resolve all rows. Raises Missing if an object is not there, is another, or occurs twice."""
        try:
            for reference, digest in rows:
                found = _READ[reference[0]](self, *reference[1:])
                if digest and _digest(found, reference) != digest:
                    raise Missing(f"{_text(found)} has changed")
                self.objects.append(found)
        except (*FAILURES, Unstorable, RecursionError) as error:
            raise Missing(str(error)) from None
        if len({id(x) for x in self.objects}) != len(self.objects):
            raise Missing("two objects are one")

    def _node(self, index: int) -> object:
        return read_node(self._nodes, index, self._root, self._key)

    def _root(self, index: int) -> object:
        _, kind, key, *_ = self._nodes[index]
        return self._slots[key] if kind == "arg" else self._key(key)

    def _member(self, cls: int, name: str, part: str) -> object:
        found = vars(self.objects[cls])[name]
        if part and type(found) not in DESCRIPTOR_PARTS:
            raise Missing(name)
        return getattr(found, part) if part else found


def _by_name(resolver: Resolver, module: str, qualname: str) -> object:
    found = named(module, qualname)
    if found is None:
        raise Missing(f"{module}.{qualname}")
    return found


def _module(name: str) -> types.ModuleType:
    """The module `name`. Imports modules of torch: torch imports some at the first call of a function (`torch.cond`)."""
    if name not in sys.modules and name.startswith("torch."):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise Missing(str(error)) from None
    return sys.modules[name]


_READ: dict[str, Callable[..., object]] = {
    "root": lambda r: r._fn,
    "modules": lambda r: sys.modules,
    "module": lambda r, name: _module(name),
    "dict": lambda r, name: vars(_module(name)),
    "name": _by_name,
    "globals": lambda r, function: r.objects[function].__globals__,
    "member": Resolver._member,
    "base": lambda r, cls, index: r.objects[cls].__mro__[index],
    "type": lambda r, node: type(r._node(node)),
    "continuation": lambda r, name: dict(_continuations(r._fn))[name],
    "at": Resolver._node,
}


# -------------------------------------------------------------------------------------------------- facts about classes


def store_class_facts(
    native: tuple[Any, ...], number: Callable[[object], int], digests: dict[Any, bytes]
) -> tuple[Any, ...]:
    """The stored form of what a guard knows of a class, from the native value (`ClassFacts`). `digests`: of attributes,
    which guards share. Raises Unstorable."""
    _, names, rows = native
    if not rows:
        raise Unstorable("a class that changed during the capture")
    parts: list[tuple[int, tuple[str, ...] | None, bytes]] = []
    for reference, version, expected, covered in rows:
        cls = reference()
        if cls is None:
            raise Unstorable("a class that is gone")
        if not version:
            parts.append((number(cls), None, b""))
        else:
            parts.append(
                (
                    number(cls),
                    None if covered is None else tuple(sorted(covered)),
                    _facts_digest(cls, expected, digests),
                )
            )
    return tuple(sorted(names)), tuple(parts)


def load_class_facts(
    stored: tuple[Any, ...], objects: Sequence[Any], version: Callable[[type], int], checked: dict[Any, Any]
) -> Any:
    """The native value of the check, for the live class. `checked`: parts of classes that other guards share.
    Raises Missing if the class differs."""
    key, rows = tuple(stored[0]), stored[1]
    names = frozenset(key)
    parts = []
    for number, covered, digest in rows:
        at = number, key, digest, None if covered is None else tuple(covered)
        if at not in checked:
            checked[at] = _checked_part(objects[number], names, covered, bytes.fromhex(digest), checked)
        parts.append(checked[at])
    first = objects[rows[0][0]]
    if tuple(objects[row[0]] for row in rows) != first.__mro__:
        raise Missing(f"the bases of {class_name(first)} have changed")
    return version(first), names, tuple(parts)


def _checked_part(
    cls: type,
    names: frozenset[str],
    covered: Sequence[str] | None,
    digest: bytes,
    digests: dict[Any, Any],
) -> Any:
    part = class_part(cls, names, None if covered is None else frozenset(covered))
    try:
        if digest != (_facts_digest(cls, part[2], digests) if part[1] else b""):
            raise Missing(f"{class_name(cls)} has changed")
    except Unstorable as error:
        raise Missing(str(error)) from None
    return part


def _facts_digest(cls: type, expected: Mapping[str, object], known: dict[Any, bytes]) -> bytes:
    """The digest of the attributes of a class that its guard compares, as they are now. `known`: of each attribute."""
    own, parts = vars(cls), []
    for name in sorted(expected):
        if name not in _HIDDEN:
            digest = known.get((cls, name))
            if digest is None:
                digest = known[cls, name] = digest_of(own.get(name))
            parts.append(digest + name.encode("utf-8", "surrogatepass"))
    return hashlib.sha256(b"\0".join(parts)).digest()


# Attributes that Python or a library adds to a class by itself, and that decide nothing.
_HIDDEN = frozenset({"__weakref__", "__slotnames__", "__doc__", "_abc_impl", "__static_attributes__"})
