"""The objects that a call of a cached function may read, found without running it, and their state when a call is captured.

The search follows code: from a function to its closure, its defaults, and the values of all names of its code in the globals
of the functions and in the modules that it reaches. Library functions and classes end the search. So does a name that finds
objects in other ways (`globals`): what the call reads is then unknown.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.class_caches import cached_by_class
from smelt.capture.base.native_functions import is_native_module, nested_codes
from smelt.capture.base.value_kinds import (
    CONTAINER_BASES,
    FunctionType,
    cell_value,
    instance_dict,
    is_constant,
    is_identity,
    is_special_name,
    items_of,
)
from smelt.capture.environment.mutation_log import slot_names
from smelt.capture.environment.overlay import read_slot
from smelt.capture.vm.vm import VM
from smelt.guards import global_state
from smelt.guards.leaf_equality import same_leaf
from smelt.guards.weak_identity import WeakIdentity, weak
from smelt.torch_private import DisableTorchFunction
from smelt.tracing.symbolic.numbers_in_containers import has_symbols
from smelt.tracing.symbolic.sym_numbers import NUMBERS

_MAX_OBJECTS = 20_000
# A function that uses one of these names may reach objects that the search cannot find.
_FINDERS = frozenset((
    "globals", "eval", "exec", "modules", "import_module", "get_objects", "_getframe",
    "getattr", "vars", "__dict__", "attrgetter", "asdict", "astuple", "copy", "deepcopy",
))  # fmt: skip

_CONSTRUCTORS = frozenset(("__init__", "__new__", "__post_init__"))

_DESCRIPTORS = (
    types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType,
)  # fmt: skip


class _Unknown(Exception):
    """What a call reads is not known."""


class _Search:
    """The objects that a call may read, each once, and the named values of namespaces, each once."""

    def __init__(self, roots: Iterable[object], results: bool = True) -> None:
        self._results = results  # whether the results in caches count
        self._pending: list[object] = list(roots)
        self._seen: dict[int, object] = {}
        self._names: set[str] = set()
        self.namespaces: dict[int, Mapping[str, object]] = {0: dict(sys.modules)}  # `import` reads them
        self.read: set[tuple[int, str]] = set()  # ids of namespaces, and names

    def objects(self) -> Iterator[object]:
        """The objects. Raises _Unknown if there are too many, or one of the functions finds others."""
        while self._pending or self._read_names():
            x = self._pending.pop()
            if id(x) in self._seen or is_constant(x) or type(x) in NUMBERS or _is_library(x):
                continue
            if len(self._seen) == _MAX_OBJECTS:
                raise _Unknown
            self._seen[id(x)] = x
            yield x
            self._pending += self._parts(x)

    def _read_names(self) -> bool:
        for key, namespace in self.namespaces.items():
            for name in self._names & namespace.keys():
                if (key, name) not in self.read:
                    self.read.add((key, name))
                    self._pending.append(namespace[name])
        return bool(self._pending)

    def _parts(self, x: object) -> Iterable[object]:
        if isinstance(x, torch.Tensor):
            return ()
        if isinstance(x, types.ModuleType):
            self.namespaces[id(vars(x))] = vars(x)
            return ()
        if isinstance(x, weakref.ReferenceType):
            return (x(),)
        if isinstance(x, types.CellType):
            return (cell_value(x),)
        if isinstance(x, functools._lru_cache_wrapper):
            return _parts_of_cache(x) if self._results else (x.__wrapped__,)
        if isinstance(x, type):  # the function may call it
            self._names |= _CONSTRUCTORS
            return type(x), *self._parts_of_class(x)
        if not isinstance(x, FunctionType):
            return self._parts_of_object(x)
        names = {name for code in nested_codes(x.__code__) for name in code.co_names}
        if not _FINDERS.isdisjoint(names):
            raise _Unknown
        if not names.isdisjoint(("type", "__class__")):
            names |= _CONSTRUCTORS
        self._names |= names
        self.namespaces[id(x.__globals__)] = x.__globals__
        defaults = (*(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values())
        return *(x.__closure__ or ()), *defaults, *x.__dict__.values()

    def _parts_of_object(self, x: object) -> Iterable[object]:
        """The parts of an instance or a C object. Code reads attributes of instances by name."""
        kind = type(x)
        if not _native.made_by_python(kind) or isinstance(x, (*CONTAINER_BASES, tuple)):
            return gc.get_referents(x)
        attributes = self.namespaces[id(x)] = _attributes(x)
        names = attributes.keys() & _library_names(kind)
        self.read.update((id(x), name) for name in names)
        return *self._parts_of_class(kind), *(attributes[name] for name in names)

    def _parts_of_class(self, kind: type) -> Iterator[object]:
        """The special methods, which code calls without their names; it reads other attributes by name."""
        for base in kind.__mro__:
            if not _is_library(base):
                self.namespaces[id(base)] = vars(base)
                for name, value in vars(base).items():
                    if is_special_name(name) and name not in _CONSTRUCTORS:
                        self.read.add((id(base), name))
                        yield value

    def reads(self, owner: object, name: str) -> bool:
        """Whether one of the functions may read this name of a class or of a module's globals."""
        return id(owner) in self.namespaces and (name in self._names or (id(owner), name) in self.read)


@cached_by_class
def _library_names(kind: type) -> frozenset[str]:
    """The names in the code of the library classes that `kind` inherits from."""
    functions = (
        v for c in kind.__mro__ if _is_library(c) for v in vars(c).values() if isinstance(v, FunctionType)
    )
    return frozenset(n for f in functions for code in nested_codes(f.__code__) for n in code.co_names)


def _attributes(x: object) -> dict[str, object]:
    """The attributes and slots of an instance, without the values of a `cached_property`, which the first read stores."""
    own = instance_dict(x) or {}
    lazy = {
        n for c in type(x).__mro__ for n, v in vars(c).items() if isinstance(v, functools.cached_property)
    }
    slots = {n: read_slot(x, n) for n in slot_names(type(x))}
    return {n: v for n, v in (*own.items(), *slots.items()) if n not in lazy}


def _parts_of_cache(x: object) -> Iterator[object]:
    """The function that is cached, and its results."""
    for part in gc.get_referents(x):
        if type(part) is dict:
            yield from part.values()
        elif type(part) is not object:  # it separates the arguments of a key
            yield part


def _is_library(x: object) -> bool:
    """Whether `x` is a module, a class or a function of torch, of the standard library, or of C, or a descriptor of C."""
    if isinstance(x, types.ModuleType):
        return _is_library_module(x.__name__)
    if isinstance(x, type):
        return not _native.made_by_python(x) or _is_library_module(x.__module__)
    if isinstance(x, FunctionType):
        return _is_library_module(x.__module__)
    if isinstance(x, types.BuiltinFunctionType):
        return isinstance(x.__self__, types.ModuleType)
    return isinstance(x, _DESCRIPTORS)


def _is_library_module(name: object) -> bool:
    if not isinstance(name, str):
        return False
    package = name.partition(".")[0]
    return package == "torch" or package in sys.stdlib_module_names or is_native_module(name)


def changes(vm: VM) -> bool:
    """Whether this capture has changed the environment, or the memory of its tensors."""
    return bool(vm.env.log.changed or _written_storages(vm))


def reads_unchanged(vm: VM, fn: object, values: Iterable[object], tensors: bool = True) -> bool:
    """Whether a call of `fn` with `values` reads nothing that this capture has changed; without `tensors`, their memory does
    not count. The log does not know of changes of what the trace created."""
    log, written = vm.env.log, _written_storages(vm) if tensors else frozenset()
    roots = (fn, *values)
    created = any(_is_created(vm, root) for root in roots)
    search = _Search(roots)
    try:
        for x in search.objects():
            if isinstance(x, (torch.Tensor, np.ndarray)):
                if written and _storage_of(x) in written:
                    return False
            elif isinstance(x, types.CellType):
                if log.has_written_cell(x):
                    return False
            elif isinstance(x, (type, types.ModuleType, FunctionType, functools._lru_cache_wrapper)):
                if x in log:
                    return False
            elif x in log or (created and id(x) not in vm.env.sources):
                return False
    except _Unknown:
        return False
    names = log.written_names()
    return not any(_is_library_scope(owner) or search.reads(owner, name) for owner, name in names)


def _is_library_scope(owner: object) -> bool:
    return _is_library_module(owner.get("__name__")) if isinstance(owner, dict) else _is_library(owner)


def _is_created(vm: VM, root: object) -> bool:
    sources = vm.env.sources
    if isinstance(root, (FunctionType, functools._lru_cache_wrapper)):
        return sources.is_created_function(root)
    if isinstance(root, type):
        return sources.is_created_class(root)
    is_value = isinstance(root, torch.Tensor) or is_constant(root) or is_identity(root) or has_symbols(root)
    return not is_value and id(root) not in sources


def _written_storages(vm: VM) -> frozenset[int | None]:
    """The storages of the environment that the trace wrote; None among them, for arrays, if there are any."""
    inputs = vm.trace.inputs
    found = (inputs.real(f) for key in vm.trace.writes.storages for f in inputs.in_storage(key))
    storages = {_storage_of(real) for real in found if real is not None}
    return frozenset(storages | {None}) if storages else frozenset()


def _storage_of(x: torch.Tensor | np.ndarray) -> int | None:
    """The storage of a tensor; None for an array, or a tensor without one of its own."""
    with DisableTorchFunction():
        if isinstance(x, np.ndarray) or type(x) not in (torch.Tensor, torch.nn.Parameter):
            return None
        return x.untyped_storage()._cdata if x.layout is torch.strided else None


# ------------------------------------------------------------------------------------------ calls in one graph


class ReadState:
    """What a call read when it was captured, besides its tensor arguments."""

    def __init__(self, fn: object, values: Iterable[object]) -> None:
        self._parts: dict[object, object] = {None: global_state.snapshot()}  # by id of an object, and name
        self.changes = False  # it read objects whose contents may change
        search = _Search((fn, *values), results=False)
        try:
            for x in search.objects():
                self._add(x)
        except _Unknown:
            self.changes = True
            self._parts[None] = self
        for key, name in search.read:
            self._parts[key, name] = _comparable(search.namespaces[key][name])

    def _add(self, x: object) -> None:
        if isinstance(x, torch.Tensor):
            self._parts[id(x)] = weak(x), version_of(x)
        elif isinstance(x, types.CellType):
            self._parts[id(x)] = weak(x), _comparable(cell_value(x))
        elif isinstance(x, CONTAINER_BASES):
            self.changes = True
            self._parts[id(x)] = weak(x), *map(_comparable, items_of(x))
        elif not isinstance(x, (type, FunctionType, types.ModuleType, functools._lru_cache_wrapper, tuple)):
            self.changes = True

    def equals(self, other: ReadState) -> bool:
        """Whether both read the same. Runs no user code."""
        first, second = self._parts, other._parts
        return self is other or (
            first.keys() == second.keys() and all(_is_same(first[k], second[k]) for k in first)
        )


def _comparable(x: object) -> object:
    """`x` for `_is_same`, without keeping objects alive that have weak references."""
    return tuple(map(_comparable, tuple.__iter__(x))) if isinstance(x, tuple) else weak(x)


def _is_same(a: object, b: object) -> bool:
    if type(a) is type(b) is tuple:
        return len(a) == len(b) and all(map(_is_same, a, b))
    return a is b or (a == b if type(a) is WeakIdentity else is_constant(a) and same_leaf(a, b))


def version_of(tensor: torch.Tensor) -> int | None:
    """How often the memory of a tensor was written in place; None if torch does not count it."""
    with DisableTorchFunction():
        return None if tensor.is_inference() else tensor._version
