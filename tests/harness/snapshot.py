"""Everything that can be seen of some objects, as a flat list of facts that compares with another world's list.

`snapshot(roots)` walks the objects in a fixed order and notes one fact for each place: its path, what kind of object is
there, and what is compared (tensors are cloned). An object met again is noted as the number of its first place, storage
of tensors likewise, so that two snapshots agree only where aliasing agrees. `difference(got, want)` names the first
place that differs. Iterators and generators are compared by what they still give, so looking at one exhausts it.
"""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import math
import re
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy
import torch

from smelt import _native
from tests.harness.agreement import TOLERANCES

LIMIT = 32  # items taken from an iterator

_ATOMS = (
    type(None),
    bool,
    int,
    str,
    bytes,
    range,
    type(...),
    type(NotImplemented),
    torch.dtype,
    torch.device,
    torch.layout,
)
_ATOMS += (torch.memory_format, types.ModuleType, types.CodeType, types.BuiltinFunctionType, slice)
_ITERATORS: tuple[type, ...] = (types.GeneratorType, map, filter, zip, enumerate, reversed)
_ITERATORS += tuple(
    type(iter(c)) for c in ([], (), {}, {}.values(), {}.items(), set(), "", b"", range(0), range(1 << 70))
)
_ITERATORS += (type(reversed([])), type(reversed({})), type(iter(int, 1)), type(iter(collections.deque())))
_ITERATORS += tuple(c for c in vars(itertools).values() if isinstance(c, type))
_VIEWS = (type({}.keys()), type({}.values()), type({}.items()))
_CLASS_NOISE = {
    "__dict__",
    "__weakref__",
    "__doc__",
    "__module__",
    "__qualname__",
    "__abstractmethods__",
    "_abc_impl",
}
_CLASS_NOISE |= {"__static_attributes__", "__firstlineno__", "__annotations__", "__slotnames__"}
_CLASS_NOISE |= {"__annotate_func__", "__annotations_cache__"}  # where annotations are from 3.14 on


def _is_leaf(t: torch.Tensor) -> bool | None:
    """None for a view that autograd has given up on, which says so by an error."""
    try:
        return t.is_leaf
    except RuntimeError:
        return None


class Fact(NamedTuple):
    path: str
    kind: str
    value: Any


class _Walk:
    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.numbers: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.alive: list[Any] = []  # what an iterator gave must not be freed, or its id would come again

    def note(self, path: str, kind: str, value: Any = None) -> None:
        self.facts.append(Fact(path, kind, value))

    def visit(self, o: Any, path: str) -> None:
        if isinstance(o, _native.Wrapped):
            o = o._smelt_original
        if type(o) is float or type(o) is complex:
            return self.note(path, type(o).__name__, o)
        if isinstance(o, _ATOMS) and type(o) in _ATOMS:
            return self.note(path, type(o).__name__, _address_free(repr(o)))
        if isinstance(o, enum.Enum):
            return self.note(path, "enum", (type(o).__qualname__, o.name))
        if _is_constant(o):
            return self.note(
                path, type(o).__name__, _address_free(repr(o))
            )  # whether constants are shared is no matter
        if id(o) in self.numbers:
            return self.note(path, "again", self.numbers[id(o)])
        self.numbers[id(o)] = len(self.numbers)
        self.alive.append(o)
        self.describe(o, path)

    def describe(self, o: Any, path: str) -> None:
        if isinstance(o, type):
            return self.of_class(o, path)
        self.note(path, "type", f"{type(o).__module__}.{type(o).__qualname__}")
        for kind, method in _METHODS:
            if isinstance(o, kind):
                method(self, o, path)
        self.attributes(o, path)

    def attributes(self, o: Any, path: str) -> None:
        for cls in type(o).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name in ("__dict__", "__weakref__"):
                    continue
                name = f"_{cls.__name__.lstrip('_')}{name}" if name[:2] == "__" != name[-2:] else name
                member = cls.__dict__.get(name)
                if isinstance(member, types.MemberDescriptorType):
                    try:
                        self.visit(member.__get__(o), f"{path}.{name}")
                    except AttributeError:
                        self.note(f"{path}.{name}", "unset")
        try:
            own = object.__getattribute__(o, "__dict__")
        except AttributeError:
            return
        for name, value in own.items() if isinstance(own, dict) else ():
            self.visit(value, f"{path}.{name}")

    def of_class(self, cls: type, path: str) -> None:
        self.note(path, "class", f"{cls.__module__}.{cls.__qualname__}")
        if "<locals>" in cls.__qualname__:
            for name, value in cls.__dict__.items():
                if name not in _CLASS_NOISE and not isinstance(value, (types.MemberDescriptorType,)):
                    self.visit(value, f"{path}.{name}")

    def of_tensor(self, t: torch.Tensor, path: str) -> None:
        leaf = _is_leaf(t)
        about = f"{t.dtype} {tuple(t.shape)} on {t.device}, requires_grad={t.requires_grad}, leaf={leaf}"
        if t.layout is torch.strided:
            about += f", strides {t.stride()}, storage {self.storage(t)}"
        self.note(path, "tensor", about)
        self.note(
            path,
            "values",
            t.detach().to_dense().clone() if t.layout is not torch.strided else t.detach().clone(),
        )
        if leaf is True and t.grad is not None:
            self.visit(t.grad, f"{path}.grad")

    def storage(self, t: torch.Tensor) -> int | None:
        """The number of the tensor's storage; None for an empty one, which has no address of its own."""
        return (
            self.storages.setdefault(t.untyped_storage().data_ptr(), len(self.storages))
            if t.numel()
            else None
        )

    def of_items(self, o: Iterable[Any], path: str) -> None:
        items = list(_plain_iter(o))
        self.note(path, "len", len(items))
        for i, item in enumerate(items):
            self.visit(item, f"{path}[{i}]")

    def of_set(self, o: Any, path: str) -> None:
        items = sorted(_plain_iter(o), key=lambda item: (type(item).__name__, _address_free(repr(item))))
        self.of_items(items, path)

    def of_dict(self, o: dict[Any, Any], path: str) -> None:
        self.note(path, "len", dict.__len__(o))
        items = collections.OrderedDict.items if isinstance(o, collections.OrderedDict) else dict.items
        for i, (key, value) in enumerate(list(items(o))):
            self.visit(key, f"{path}.keys[{i}]")
            self.visit(value, f"{path}[{_address_free(repr(key)) if isinstance(key, (str, int)) else i}]")
        if isinstance(o, collections.defaultdict):
            self.visit(o.default_factory, f"{path}.default_factory")

    def of_function(self, f: types.FunctionType, path: str) -> None:
        self.note(path, "function", (f.__module__, f.__qualname__, f.__code__.co_firstlineno))
        for name in ("__defaults__", "__kwdefaults__"):
            self.visit(getattr(f, name), f"{path}.{name}")
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
            self.visit(cell, f"{path}<{name}>")

    def of_cell(self, cell: Any, path: str) -> None:
        try:
            self.visit(cell.cell_contents, f"{path}.cell_contents")
        except ValueError:
            self.note(path, "empty cell")

    def of_iterator(self, o: Iterator[Any], path: str) -> None:
        try:
            for i in range(LIMIT):
                self.visit(next(o), f"{path}.next{i}")
        except BaseException as e:
            self.visit(e, f"{path}.end")

    def of_coroutine(self, o: Any, path: str) -> None:
        try:
            for i in range(LIMIT):
                self.visit(o.send(None), f"{path}.send{i}")
        except BaseException as e:
            self.visit(e, f"{path}.end")

    def of_exception(self, e: BaseException, path: str) -> None:
        self.note(path, "str", _address_free(str(e)))
        self.visit(e.args, f"{path}.args")
        for name in ("__cause__", "__context__", "__suppress_context__"):
            self.visit(getattr(e, name), f"{path}.{name}")
        if isinstance(e, BaseExceptionGroup):
            self.visit(e.exceptions, f"{path}.exceptions")
        if isinstance(e, StopIteration):
            self.visit(e.value, f"{path}.value")

    def of_named(self, names: tuple[str, ...], o: Any, path: str) -> None:
        for name in names:
            self.visit(getattr(o, name), f"{path}.{name}")

    def of_value(self, o: Any, path: str) -> None:
        self.note(path, "value", _address_free(repr(o)))

    def of_number(self, o: Any, path: str) -> None:
        if isinstance(o, numpy.floating):
            return  # compared with a tolerance
        self.note(
            path,
            "number",
            {int: int, float: float, complex: complex, str: str, bytes: bytes}[_base(o)].__repr__(o),
        )

    def of_floating(self, o: numpy.floating[Any], path: str) -> None:
        self.note(path, "float", float(o))

    def of_array(self, o: numpy.ndarray, path: str) -> None:
        self.note(path, "array", f"{o.dtype} {o.shape} {o.strides}")
        if o.dtype != object:
            self.note(
                path,
                "values",
                torch.from_numpy(o.copy()) if o.dtype.kind in "biuf" and o.dtype.isnative else repr(o),
            )

    def of_weakref(self, o: Any, path: str) -> None:
        self.visit(o(), f"{path}()")

    def of_rng(self, o: torch.Generator, path: str) -> None:
        self.note(path, "values", o.get_state())


def _is_constant(o: Any) -> bool:
    return type(o) in _ATOMS or (type(o) in (tuple, frozenset) and all(map(_is_constant, o)))


def _base(o: Any) -> type:
    return next(kind for kind in (int, float, complex, str, bytes) if isinstance(o, kind))


def _plain_iter(o: Any) -> Iterator[Any]:
    """The content, through the builtin base's own `__iter__`: a subclass's would run user code."""
    for base in (list, tuple, set, frozenset, collections.deque):
        if isinstance(o, base):
            return base.__iter__(o)
    return iter(o)


def _named(*names: str) -> Any:
    return lambda walk, o, path: walk.of_named(names, o, path)


_METHODS: list[tuple[Any, Any]] = [
    (torch.Tensor, _Walk.of_tensor),
    (torch.Generator, _Walk.of_rng),
    (numpy.floating, _Walk.of_floating),
    ((int, float, complex, str, bytes), _Walk.of_number),
    ((list, tuple, collections.deque, *_VIEWS), _Walk.of_items),
    ((set, frozenset), _Walk.of_set),
    (dict, _Walk.of_dict),
    (types.MappingProxyType, lambda walk, o, path: walk.of_dict(dict(o), path)),
    (types.FunctionType, _Walk.of_function),
    (types.MethodType, _named("__self__", "__func__")),
    ((staticmethod, classmethod), _named("__func__")),
    (property, _named("fget", "fset", "fdel")),
    (functools.partial, _named("func", "args", "keywords")),
    (types.CellType, _Walk.of_cell),
    (_ITERATORS, _Walk.of_iterator),
    (types.CoroutineType, _Walk.of_coroutine),
    (BaseException, _Walk.of_exception),
    (collections.deque, _named("maxlen")),
    (numpy.ndarray, _Walk.of_array),
    (weakref.ref, _Walk.of_weakref),
    ((bytearray, memoryview), lambda walk, o, path: walk.note(path, "bytes", bytes(o))),
    ((re.Pattern, numpy.integer, numpy.bool_, numpy.character, types.GenericAlias, types.UnionType), _Walk.of_value),
]  # fmt: skip


def _address_free(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def snapshot(roots: dict[str, Any]) -> list[Fact]:
    """One fact for each place that can be reached from `roots` (name -> object)."""
    walk = _Walk()
    for name, root in roots.items():
        walk.visit(root, name)
    return walk.facts


def tensors_in(root: Any) -> list[torch.Tensor]:
    """The tensors reachable through containers and attributes, each once. Does not touch iterators."""
    found: dict[int, torch.Tensor] = {}
    seen: set[int] = set()
    todo = [root]
    while todo:
        o = todo.pop()
        if id(o) in seen:
            continue
        seen.add(id(o))
        if isinstance(o, torch.Tensor):
            found[id(o)] = o
        elif isinstance(o, dict):
            todo.extend(reversed(list(dict.values(o))))
        elif isinstance(o, (list, tuple, collections.deque)):
            todo.extend(reversed(list(_plain_iter(o))))
        elif not isinstance(o, (type, types.FunctionType, types.ModuleType)) and hasattr(type(o), "__dict__"):
            todo.extend(reversed(list(getattr(o, "__dict__", {}).values())))
    return list(found.values())


def difference(got: list[Fact], want: list[Fact], rtol: float, atol: float) -> str | None:
    """Where the first difference is and what it is; None when there is none."""
    raised = [
        next((f"{f.kind} {f.value}" for f in facts if f.path == "error"), None) for facts in (got, want)
    ]
    if raised[0] != raised[1]:
        said = [
            next((f.value for f in facts if f.path == "error" and f.kind == "str"), "")
            for facts in (got, want)
        ]
        return f"eager raises {raised[1]} {said[1]}; compiled {raised[0]} {said[0]}"
    for g, w in zip(got, want):
        if g.path != w.path or g.kind != w.kind:
            return f"{w.path} is {_text(w)}; compiled: {g.path} is {_text(g)}"
        why = _unequal(g, w, rtol, atol)
        if why is not None:
            return f"{w.path}: {why}"
    if len(got) != len(want):
        longer, rest = ("compiled", got[len(want) :]) if len(got) > len(want) else ("eager", want[len(got) :])
        return f"only {longer} has {rest[0].path}: {_text(rest[0])}"
    return None


def _unequal(g: Fact, w: Fact, rtol: float, atol: float) -> str | None:
    if isinstance(w.value, torch.Tensor):
        if (
            isinstance(g.value, torch.Tensor)
            and w.value.layout is g.value.layout is torch.strided
            and w.value.dtype == g.value.dtype
            and not w.value.is_meta
            and torch.equal(g.value, w.value)
        ):
            return None  # `assert_close` takes twenty times as long
        if w.value.dtype not in (torch.float32, torch.complex64):
            rtol, atol = TOLERANCES.get(w.value.dtype, (0.0, 0.0))
        try:
            torch.testing.assert_close(g.value, w.value, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as e:
            return f"{e}\neager {w.value}\ncompiled {g.value}"
        return None
    if w.kind in ("float", "complex") and _close(g.value, w.value, rtol, atol):
        return None
    if w.path == "printed" and _same_text(g.value, w.value, rtol, atol):
        return None
    return None if g.value == w.value else f"{_text(w)}; compiled {_text(g)}"


def _same_text(got: str, want: str, rtol: float, atol: float) -> bool:
    """Whether two texts differ at most in how numbers of tensors are rounded."""
    parts = [re.split(r"(-?\d+\.\d*(?:e[-+]\d+)?)", text) for text in (got, want)]
    if len(parts[0]) != len(parts[1]) or parts[0][::2] != parts[1][::2]:
        return False
    return all(_close(float(g), float(w), rtol, atol) for g, w in zip(parts[0][1::2], parts[1][1::2]))


def _close(g: complex, w: complex, rtol: float, atol: float) -> bool:
    if isinstance(w, float) and math.isnan(w):
        return math.isnan(g)  # type: ignore[arg-type]
    return g == w if abs(w) == math.inf else abs(g - w) <= atol + rtol * abs(w)


def _text(fact: Fact) -> str:
    return f"{fact.kind} {fact.value}"
