"""Class functions: `isinstance`, `issubclass`, `type`, `super`, `id`, `typing.cast`, and class creation."""

from __future__ import annotations

import builtins
import functools
import types
import typing
from collections.abc import Callable, MutableMapping
from typing import cast

import torch

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.call_handlers import (
    BUILTINS,
    CLASS_METHODS,
    Args,
    Kwargs,
    breakable,
    builtin,
    function,
    unsupported,
)
from smelt.capture.base.native_functions import is_native_module, runs_natively
from smelt.capture.base.type_lookup import FUNCTION
from smelt.capture.base.value_kinds import LEAF_TYPES, MISSING, NULL, FunctionType
from smelt.capture.base.vm_frames import Coroutine, Frame, Generator, VMCallable
from smelt.capture.proxies.array_proxy import ArrayProxy, BoundMethod
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.proxies.text_proxy import TextProxy, unreadable
from smelt.capture.semantics import attributes, cells
from smelt.capture.semantics.attributes import python_method
from smelt.capture.semantics.calls import library_reads, native_callbacks
from smelt.capture.vm.vm import VM
from smelt.tracing.fake.fake_tensor import FakeTensor, check_class
from smelt.tracing.symbolic.sym_nodes import UnbackedComparison
from smelt.tracing.symbolic.sym_numbers import NUMBERS, hint, specialize
from smelt.tracing.symbolic.symbolic_ranges import PROXY_EXAMPLES


@builtin(builtins.isinstance)
def _isinstance(vm: VM, args: Args, kwargs: Kwargs) -> bool:
    value, classes = args
    if type(value) is FakeTensor and value.subclass is not None:
        return _is_instance_of_subclass(vm, value, value.subclass, classes)
    obj = _example(vm, value)
    if obj is not value and not _looks_at_class_only(classes):
        if type(value) not in NUMBERS:
            raise unreadable("a metaclass checks an object that is not known", value)
        obj = specialize(value)
    return _check_class(vm, builtins.isinstance, obj, type(obj), classes)


def _example(vm: VM, value: object) -> object:
    """An object of the class that `value` stands for."""
    kind = type(value)
    if kind in _EXAMPLES:
        return _EXAMPLES[kind]
    if isinstance(value, VMCallable):
        return value.function
    if isinstance(value, OpaqueProxy):
        vm.class_of(value)  # refused if no guard checks it
        return value.value
    return value.example() if isinstance(value, (ArrayProxy, NumberProxy)) else hint(value)


_CHECKERS = frozenset(("abc", "torch"))  # packages whose metaclasses look at the classes of objects


def _looks_at_class_only(classes: object) -> bool:
    """Whether `isinstance(obj, classes)` depends on the class of `obj` alone, if that is no tensor."""
    if isinstance(classes, (tuple, types.UnionType)):
        return all(map(_looks_at_class_only, classes if isinstance(classes, tuple) else classes.__args__))
    check = getattr(type(classes), "__instancecheck__", None)
    package = getattr(check, "__module__", None) or ""
    return not isinstance(check, FunctionType) or package.partition(".")[0] in _CHECKERS


def _is_instance_of_subclass(vm: VM, fake: FakeTensor, subclass: type, classes: object) -> bool:
    """`isinstance` of a fake that represents a tensor subclass."""
    if isinstance(classes, tuple):
        return any(_is_instance_of_subclass(vm, fake, subclass, cls) for cls in classes)
    if classes is torch.nn.Parameter:
        return bool(getattr(fake, "_is_param", False))
    if type(classes) not in (type, type(torch.Tensor), type(torch.nn.Parameter)):
        check_class(fake, f"isinstance(..., {classes!r})")
    return classes in subclass.__mro__


builtin(issubclass)(lambda vm, args, kwargs: _check_class(vm, issubclass, args[0], type(args[0]), args[1]))


def _check_class(vm: VM, check: Callable[..., bool], obj: object, kind: type, classes: object) -> bool:
    """`check(obj, classes)`, natively unless metaclasses, `__subclasshook__` or a `__class__` property are Python code."""
    plain = type(classes) is type or (type(classes) is tuple and all(type(c) is type for c in classes))
    nested = type(classes) is tuple and any(type(c) is tuple for c in classes)
    if (plain or nested) and (kind in LEAF_TYPES or _has_plain_class_attr(vm, kind)):
        levels = max(vm.frames.depth_limit - vm.frames.depth, 0)
        if plain or _is_deeply_nested(classes, levels - _RESERVED_LEVELS):
            return _native.call_within(levels, check, obj, classes) if nested else check(obj, classes)
    library_reads.use_registrations(vm, obj, classes)
    _use_classes(vm, classes)
    return native_callbacks.call_in_window(vm, check, (obj, classes))


def _use_classes(vm: VM, classes: object) -> None:
    """Guard the classes in nested tuples and unions, and their metaclasses, which may implement the check."""
    pending = [classes]
    while pending:
        found = pending.pop()
        if isinstance(found, type):
            vm.env.facts.use_class(type(found))
            vm.env.facts.use_class(found)
        elif isinstance(found, (tuple, types.UnionType)):
            pending += found if isinstance(found, tuple) else found.__args__


# levels below the recursion limit at which the check gets exactly eager's remaining levels
_RESERVED_LEVELS = 10


def _is_deeply_nested(classes: object, levels: int) -> bool:
    """Whether `classes` is nested more than `levels` tuples deep and contains only classes without a custom check."""
    pending = [classes]
    for _ in range(max(levels, 1)):
        items = [item for value in pending if type(value) is tuple for item in value]
        if not items or any(type(item) is not tuple and type(item) is not type for item in items):
            return False
        pending = items
    return True


def _has_plain_class_attr(vm: VM, kind: type) -> bool:
    """Whether reading an instance's `__class__` runs no code of its class."""
    info = vm.type_info(kind)
    return info.getattribute is None and info.find("__class__")[2] in (object, torch.Tensor)


async def _empty_coroutine() -> None:
    """Its coroutine represents the VM's coroutines in `isinstance`."""


_coroutine = _empty_coroutine()
_coroutine.close()
_EXAMPLES: dict[type, object] = {
    Generator: (_ for _ in ()), Coroutine: _coroutine, TextProxy: "", BoundMethod: "".count, UnbackedComparison: True,
    **PROXY_EXAMPLES,
}  # fmt: skip


@builtin(type)
def _type(vm: VM, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 1 and not kwargs:
        return vm.class_of(args[0])
    if len(args) != 3:
        raise TypeError("type() takes 1 or 3 arguments")
    name, bases, namespace = cast("tuple[str, tuple[object, ...], object]", args)
    return _create_class(vm, type, name, bases, namespace, kwargs)


@builtin(super)
def _super(vm: VM, args: Args, kwargs: Kwargs) -> object:
    cls, first = args if len(args) == 2 and not kwargs else (None, None)
    if not args and not kwargs:
        cls, first = _class_and_first_argument(vm, vm.current_frame)
        args = (cls, first)
    if isinstance(first, FakeTensor):
        check_class(first, "super()")
    return super(*args, **kwargs)  # type: ignore[misc]


def _class_and_first_argument(vm: VM, frame: Frame) -> tuple[object, object]:
    """The arguments of `super()` in `frame`; raises RuntimeError where CPython's `super_init_without_args` does."""
    code, first = frame.code, frame.locals[0] if frame.locals else NULL
    if not code.argcount:
        raise RuntimeError("super(): no arguments")
    if type(first) is types.CellType:
        first = cells.cell_contents(vm, frame, 0)
    if first is NULL or first is MISSING:
        raise RuntimeError("super(): arg[0] deleted")
    if "__class__" not in code.free_names:
        raise RuntimeError("super(): __class__ cell not found")
    slot = code.nlocals - code.nfree + code.free_names.index("__class__")
    cls = cells.cell_contents(vm, frame, slot)
    if cls is MISSING:
        raise RuntimeError("super(): empty __class__ cell")
    if not isinstance(cls, type):
        raise RuntimeError(f"super(): __class__ is not a type ({vm.class_of(cls).__name__})")
    return cls, first


@builtin(callable)
def _callable(vm: VM, args: Args, kwargs: Kwargs) -> bool:
    if type(args[0]) is not FakeTensor:
        vm.env.facts.use_lookups(type(args[0]))
    return callable(args[0])


@builtin(id)
def _id(vm: VM, args: Args, kwargs: Kwargs) -> int:
    vm.env.facts.use_identity(args[0])
    vm.env.facts.use_constant(args[0])
    vm.env.facts.depend_on_process("the result of id")
    if type(args[0]) is FakeTensor and args[0].alternatives:
        vm.trace.copies.record_query(args[0])
    return id(
        vm.trace.real(args[0]) if type(args[0]) is FakeTensor and vm.trace.is_input(args[0]) else args[0]
    )


function(typing.cast)(lambda vm, args, kwargs: args[1] if len(args) == 2 else kwargs["val"])


# ------------------------------------------------------------------------------- creating classes and instances


@builtin(builtins.__build_class__)
def _build_class(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """`__build_class__`, which a `class` statement calls."""
    body, name, original_bases = cast(FunctionType, args[0]), cast(str, args[1]), tuple(args[2:])
    bases = _resolve_bases(vm, original_bases)
    kwds = dict(kwargs)
    meta = kwds.pop("metaclass", None) or (type(bases[0]) if bases else type)
    if isinstance(meta, type):
        meta = types._calculate_meta(meta, bases)  # type: ignore[attr-defined]
    namespace = _prepare_namespace(vm, meta, name, bases, kwds)
    cell = _run_class_body(vm, body, namespace)
    if bases != original_bases:
        namespace["__orig_bases__"] = original_bases
    cls = _create_class(vm, meta, name, bases, namespace, kwds)
    if isinstance(cell, types.CellType) and isinstance(cls, type):
        cell.cell_contents = cls
    return cls


def _run_class_body(vm: VM, body: FunctionType, namespace: object) -> object:
    """Run the body of a `class` statement; returns the `__class__` cell, if any."""
    code = vm.decode(body.__code__)
    frame = Frame(code, body, [NULL] * code.nlocals)
    frame.namespace = namespace
    return vm.run(frame)


def _resolve_bases(vm: VM, bases: tuple[object, ...]) -> tuple[object, ...]:
    """Bases of a class; other objects are replaced by the result of their `__mro_entries__`."""
    entries: list[object] = []
    for base in bases:
        found = None if isinstance(base, type) else python_method(vm, base, "__mro_entries__")
        entries += (
            (base,) if found is None else cast("tuple[object, ...]", vm.call_function(found, (base, bases)))
        )
    return tuple(types.resolve_bases(entries))


def _prepare_namespace(
    vm: VM, meta: object, name: str, bases: tuple[object, ...], kwds: Kwargs
) -> MutableMapping[str, object]:
    """The namespace of a class body."""
    prepare = attributes.load_default(vm, meta, "__prepare__", MISSING)
    namespace = {} if prepare is MISSING else vm.call(prepare, (name, bases), kwds)
    if python_method(vm, namespace, "__setitem__") is not None and not is_native_module(
        type(namespace).__module__
    ):
        raise unsupported(f"class {name} whose names are stored in a {type(namespace).__qualname__}")
    return cast("MutableMapping[str, object]", namespace)


def _create_class(
    vm: VM, meta: object, name: str, bases: tuple[object, ...], namespace: object, kwds: Kwargs
) -> object:
    """`meta(name, bases, namespace, **kwds)`."""
    new = vm.type_info(meta).find("__new__")[1] if isinstance(meta, type) else None
    new = getattr(new, "__func__", new)
    if isinstance(meta, type) and (type(new) is not types.FunctionType or runs_natively(new)):
        python_init = vm.type_info(meta).find("__init__")[0] is FUNCTION
        if type(meta) is type and not python_init:
            return _create_class_natively(vm, meta, (name, bases, namespace), kwds)
    cls = vm.call(meta, (name, bases, namespace), kwds)
    if isinstance(cls, type):
        vm.env.sources.register_created_class(cls)
    return cls


def _create_class_natively(vm: VM, constructor: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    """Call a C constructor of a class. `__set_name__` and `__init_subclass__` get the class before it is returned."""
    # C code would use the module of its calling frame.
    if type(args[-1]) is dict and "__module__" not in args[-1]:
        args = (*args[:-1], {**args[-1], "__module__": vm.current_frame.globals.get("__name__", "builtins")})
    bases = cast("tuple[type, ...]", args[-2])
    _use_classes(vm, bases)
    vm.classes.under_construction.append((cast(str, args[-3]), bases))
    try:
        cls = native_callbacks.call_in_window(vm, constructor, args, kwargs)
    finally:
        vm.classes.under_construction.pop()
    vm.env.sources.register_created_class(cast(type, cls))
    return cls


@builtin(type.__new__)
def _type_new(vm: VM, args: Args, kwargs: Kwargs) -> object:
    if len(args) != 4:
        return type.__new__(*args, **kwargs)  # type: ignore[call-overload]  # raises
    return _create_class_natively(vm, type.__new__, args, kwargs)


builtin(type.__init__)(lambda vm, args, kwargs: None)


@builtin(type.__call__)
@breakable
def _type_call(vm: VM, args: Args, kwargs: Kwargs) -> object:
    return vm.instantiate(cast(type, args[0]), args[1:], kwargs)


builtin(object.__init__, object.__init_subclass__)(lambda vm, args, kwargs: None)


BUILTINS[types.SimpleNamespace] = lambda vm, args, kwargs: types.SimpleNamespace(*args, **kwargs)


@builtin(memoryview)
def _memoryview(vm: VM, args: Args, kwargs: Kwargs) -> object:
    (buffer,) = args or kwargs.values()
    if type(buffer) is not bytes:
        error = unsupported("a view of a buffer, which cannot be resized while there is one")
        error.breaks = False  # a resume function would drop the view when it is no longer read
        raise error
    return memoryview(buffer)


@builtin(type.__subclasses__)
def _subclasses(vm: VM, args: Args, kwargs: Kwargs) -> list[type]:
    """`cls.__subclasses__()`, which changes where any class is defined."""
    (cls,) = cast("tuple[type]", args)
    found: list[type] = type.__subclasses__(cls)
    if any(map(vm.env.sources.is_created_class, (cls, *found))):
        raise unsupported("__subclasses__ of a class, or with one, that the function created")
    read = vm.env.memo.reads_of(cls).setdefault("subclasses", functools.partial(type.__subclasses__, cls))
    source = vm.env.sources.const(read).child("call", None)
    vm.env.facts.guard("len", source, len(found))
    for i, subclass in enumerate(found):
        vm.env.facts.guard("id", source.child("item", i), subclass)
        vm.env.sources.const(subclass)
    return found


CLASS_METHODS[type, "__subclasses__"] = _subclasses
