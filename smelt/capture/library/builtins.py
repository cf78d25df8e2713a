"""Builtins of the language: types, attributes, text, numbers, operators and iterators as functions."""

from __future__ import annotations

import builtins
import functools
import itertools
import operator
import types
from typing import Any, cast

import torch
from torch import nn

from smelt.capture.base.frames import Frame, Generator, VMCallable
from smelt.capture.base.handlers import BUILTINS, Handler, builtin, function, unsupported
from smelt.capture.base.native_functions import is_native_module, runs_natively
from smelt.capture.base.type_info import FUNCTION
from smelt.capture.base.values import (
    LEAF_TYPES,
    MISSING,
    NULL,
    FunctionType,
    has_identity_hash,
    instance_dict,
)
from smelt.capture.machine.vm import VM
from smelt.capture.outside import changes, contents
from smelt.capture.protocol import attributes, callbacks, formatting, library_reads, scopes
from smelt.capture.protocol.attributes import python_method
from smelt.capture.standins.arrays import Array
from smelt.capture.standins.texts import Text
from smelt.trace.fake import FakeTensor
from smelt.trace.symbols import hint

# --------------------------------------------------------------------------------------------- types, identity


@builtin(isinstance)
def _isinstance(vm: VM, args: Any, kwargs: Any) -> bool:
    obj, classes = args
    if type(obj) is Generator:
        obj = _REAL_GENERATOR
    elif type(obj) is VMCallable:
        obj = obj.function
    elif type(obj) is Text:
        obj = ""
    elif type(obj) is Array:
        obj = obj.example()
    obj = hint(obj)
    return _check_class(vm, isinstance, obj, type(obj), classes)


@builtin(issubclass)
def _issubclass(vm: VM, args: Any, kwargs: Any) -> bool:
    return _check_class(vm, issubclass, args[0], type(args[0]), args[1])


def _check_class(vm: VM, check: Any, obj: Any, kind: type, classes: Any) -> bool:
    """Metaclasses, `__subclasshook__` and a property `__class__` may be Python code."""
    plain = type(classes) is type or (type(classes) is tuple and all(type(c) is type for c in classes))
    if plain and (kind in LEAF_TYPES or vm.type_info(kind).find("__class__")[2] in (object, torch.Tensor)):
        return check(obj, classes)
    library_reads.use_registrations(vm, obj, classes)
    return callbacks.in_window(vm, check, (obj, classes))


_REAL_GENERATOR = (_ for _ in ())


@builtin(type)
def _type(vm: VM, args: Any, kwargs: Any) -> Any:
    if len(args) == 1 and not kwargs:
        return vm.class_of(args[0])
    if len(args) != 3:
        raise TypeError("type() takes 1 or 3 arguments")
    name, bases, namespace = args
    return _made_by(vm, type, name, bases, namespace, kwargs)


@builtin(super)
def _super(vm: VM, args: Any, kwargs: Any) -> Any:
    if args:
        return super(*args)
    frame = vm.calling
    code = frame.code
    cell = frame.locals[code.nlocals - code.nfree + code.free_names.index("__class__")]
    first = frame.locals[0]
    if type(first) is types.CellType:
        first = first.cell_contents
    return super(cell.cell_contents, first)


@builtin(callable)
def _callable(vm: VM, args: Any, kwargs: Any) -> bool:
    return callable(args[0])


@builtin(id)
def _id(vm: VM, args: Any, kwargs: Any) -> int:
    vm.outside.facts.use_identity(args[0])
    return id(
        vm.trace.real(args[0]) if type(args[0]) is FakeTensor and vm.trace.is_input(args[0]) else args[0]
    )


@builtin(builtins.__build_class__)
def _build_class(vm: VM, args: Any, kwargs: Any) -> Any:
    body, name, *written = args
    bases = _resolved_bases(vm, tuple(written))
    kwds = dict(kwargs)
    meta = kwds.pop("metaclass", None) or (type(bases[0]) if bases else type)
    if isinstance(meta, type):
        meta = types._calculate_meta(meta, bases)  # type: ignore[attr-defined]
    namespace = _prepared(vm, meta, name, bases, kwds)
    cell = _run_class_body(vm, body, namespace)
    if bases != tuple(written):
        namespace["__orig_bases__"] = tuple(written)
    made = _made_by(vm, meta, name, bases, namespace, kwds)
    if isinstance(cell, types.CellType) and isinstance(made, type):
        cell.cell_contents = made
    return made


def _run_class_body(vm: VM, body: FunctionType, namespace: Any) -> object:
    """Runs the code between `class` and its end; gives the cell of `__class__`, if there is one."""
    code = vm.decode(body.__code__)
    frame = Frame(code, body, [NULL] * code.nlocals)
    frame.namespace = namespace
    return vm.run(frame)


def _resolved_bases(vm: VM, bases: tuple[Any, ...]) -> tuple[Any, ...]:
    """Bases that are no classes may say what stands for them."""
    entries: list[Any] = []
    for base in bases:
        found = None if isinstance(base, type) else python_method(vm, base, "__mro_entries__")
        entries += (base,) if found is None else cast(tuple[Any, ...], vm.call_function(found, (base, bases)))
    return tuple(types.resolve_bases(entries))


def _prepared(vm: VM, meta: Any, name: str, bases: Any, kwds: Any) -> Any:
    """The mapping in which the body of a class stores its names."""
    prepare = attributes.load_default(vm, meta, "__prepare__", MISSING)
    namespace = {} if prepare is MISSING else vm.call(prepare, (name, bases), kwds)
    if python_method(vm, namespace, "__setitem__") is not None and not is_native_module(
        type(namespace).__module__
    ):
        raise unsupported(f"class {name} whose names are stored in a {type(namespace).__qualname__}")
    return namespace


def _made_by(vm: VM, meta: Any, name: str, bases: Any, namespace: Any, kwds: Any) -> Any:
    new = vm.type_info(meta).find("__new__")[1] if isinstance(meta, type) else None
    new = getattr(new, "__func__", new)
    if isinstance(meta, type) and (type(new) is not types.FunctionType or runs_natively(new)):
        python_init = vm.type_info(meta).find("__init__")[0] is FUNCTION
        if type(meta) is type and not python_init:
            return _new_class(vm, meta, (name, bases, namespace), kwds)
    made = vm.call(meta, (name, bases, namespace), kwds)
    if isinstance(made, type):
        vm.outside.origins.made_class(made)
    return made


def _new_class(vm: VM, make: Any, args: Any, kwargs: Any) -> Any:
    """A class made natively, which runs `__set_name__` and `__init_subclass__`: they get the class before we do."""
    vm.classes.being_made.append((args[-3], args[-2]))
    try:
        made = callbacks.in_window(vm, make, args, kwargs)
    finally:
        vm.classes.being_made.pop()
    vm.outside.origins.made_class(made)
    return made


@builtin(type.__new__)
def _type_new(vm: VM, args: Any, kwargs: Any) -> Any:
    return _new_class(vm, type.__new__, args, kwargs)


@builtin(type.__init__)
def _type_init(vm: VM, args: Any, kwargs: Any) -> None:
    return None


@builtin(type.__call__)
def _type_call(vm: VM, args: Any, kwargs: Any) -> Any:
    return vm.instantiate(args[0], args[1:], kwargs)


# ------------------------------------------------------------------------------------------------- attributes


@builtin(getattr)
def _getattr(vm: VM, args: Any, kwargs: Any) -> Any:
    if len(args) == 2:
        return attributes.load_attr(vm, *args)
    obj, name, default = args
    return attributes.load_default(vm, obj, name, default)


@builtin(hasattr)
def _hasattr(vm: VM, args: Any, kwargs: Any) -> bool:
    obj, name = args
    return attributes.load_default(vm, obj, name, MISSING) is not MISSING


@builtin(setattr)
def _setattr(vm: VM, args: Any, kwargs: Any) -> None:
    attributes.store_attr(vm, *args)


@builtin(delattr)
def _delattr(vm: VM, args: Any, kwargs: Any) -> None:
    attributes.delete_attr(vm, *args)


@builtin(object.__getattribute__)
def _object_getattribute(vm: VM, args: Any, kwargs: Any) -> Any:
    obj, name = args
    return attributes.load_generic(vm, obj, name, use_getattr=False)


@builtin(object.__setattr__)
def _object_setattr(vm: VM, args: Any, kwargs: Any) -> None:
    store = attributes.store_attr if type(args[0]) is FakeTensor else attributes.store_generic
    store(vm, *args)


@builtin(type.__setattr__)
def _type_setattr(vm: VM, args: Any, kwargs: Any) -> None:
    attributes.store_named(vm, *args)


@builtin(object.__delattr__)
def _object_delattr(vm: VM, args: Any, kwargs: Any) -> None:
    obj, name = args
    if type(obj) is FakeTensor:
        return attributes.delete_attr(vm, obj, name)
    changes.touch(vm.outside, obj)
    vm.outside.memo.by_id.pop(id(obj), None)
    object.__delattr__(obj, name)


@builtin(object.__init__, object.__init_subclass__)
def _object_init(vm: VM, args: Any, kwargs: Any) -> None:
    return None


@function(nn.Module.__getattr__)
def _module_getattr(vm: VM, args: Any, kwargs: Any) -> Any:
    obj, name = args
    return attributes.module_entry(vm, obj, name, instance_dict(obj) or {})


@function(nn.Module.__setattr__)
def _module_setattr(vm: VM, args: Any, kwargs: Any) -> None:
    attributes.store_in_module(vm, *args)


@builtin(vars)
def _vars(vm: VM, args: Any, kwargs: Any) -> Any:
    if not args:
        return scopes.local_names(vm, vm.calling)
    return attributes.load_attr(vm, args[0], "__dict__")


@builtin(dir)
def _dir(vm: VM, args: Any, kwargs: Any) -> Any:
    if not args:
        return sorted(scopes.local_names(vm, vm.calling))
    own = python_method(vm, args[0], "__dir__")
    if own is not None:
        return sorted(vm.elements(vm.call_function(own, (args[0],))))
    if id(args[0]) in vm.outside.origins and not isinstance(args[0], (type, types.ModuleType)):
        raise unsupported("dir() of an outside object")
    return vm.native(dir, args)


# ------------------------------------------------------------------------------------------ text and numbers


def _tells_identity(fn: Any, value: Any) -> bool:
    """Whether the hash or the text of `value` says which object it is."""
    shown: Any = type(value).__repr__
    return has_identity_hash(value) if fn is hash else shown is object.__repr__


def _unary_protocol(fn: Any, name: str, fallbacks: tuple[str, ...] = ()) -> None:
    """A builtin that calls one special method: interpreted if it is written in Python."""

    def handler(vm: VM, args: Any, kwargs: Any) -> Any:
        for candidate in (name, *fallbacks):
            found = python_method(vm, args[0], candidate) if args else None
            if found is not None:
                return vm.call_function(found, tuple(args), kwargs)
        if args and _tells_identity(fn, args[0]):
            vm.outside.facts.use_identity(args[0])
        return vm.native(fn, [vm.native_argument(contents.view(vm.outside, a)) for a in args], kwargs)

    BUILTINS[fn] = handler


for _fn, _name in (
    (abs, "__abs__"),
    (round, "__round__"),
    (hash, "__hash__"),
    (repr, "__repr__"),
    (format, "__format__"),
):
    _unary_protocol(_fn, _name)
_unary_protocol(str, "__str__", ("__repr__",))
_unary_protocol(bytes, "__bytes__")
_unary_protocol(int, "__int__", ("__index__",))
_unary_protocol(float, "__float__")
_unary_protocol(complex, "__complex__")
formatting.install()


@builtin(bool)
def _bool(vm: VM, args: Any, kwargs: Any) -> bool:
    return vm.truth(args[0]) if args else False


def _operator(fn: Any) -> Handler:
    return lambda vm, args, kwargs: vm.binary(fn, *args)


for _name in [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and_",
    "or_",
    "xor",
    "lshift",
    "rshift",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "iadd", "isub", "imul", "imatmul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift",
]:  # fmt: skip
    BUILTINS[getattr(operator, _name)] = _operator(getattr(operator, _name))
BUILTINS[operator.getitem] = lambda vm, args, kwargs: vm.subscript(*args)
BUILTINS[operator.contains] = lambda vm, args, kwargs: vm.contains(args[1], args[0])
BUILTINS[operator.is_] = lambda vm, args, kwargs: vm.same(*args)
BUILTINS[operator.truth] = lambda vm, args, kwargs: vm.truth(args[0])
BUILTINS[operator.not_] = lambda vm, args, kwargs: not vm.truth(args[0])


# ------------------------------------------------------------------------------------ Python called by C code


@builtin(functools.partial)
def _partial(vm: VM, args: Any, kwargs: Any) -> Any:
    return functools.partial(*args, **kwargs)


def _with_callbacks(make: Any) -> Handler:
    def handler(vm: VM, args: Any, kwargs: Any) -> Any:
        args = [vm.native_argument(a) if callable(a) else vm.iterable(a) for a in args]
        return make(*args, **{k: vm.native_argument(v) for k, v in kwargs.items()})

    return handler


_make: Any
for _make in (
    itertools.accumulate, itertools.starmap,
    itertools.takewhile, itertools.dropwhile, itertools.filterfalse, itertools.groupby,
):  # fmt: skip
    BUILTINS[_make] = _with_callbacks(_make)


def _over_iterables(make: Any) -> Handler:
    def handler(vm: VM, args: Any, kwargs: Any) -> Any:
        return make(*[a if type(a) in LEAF_TYPES else vm.iterable(a) for a in args], **kwargs)

    return handler


for _make in (
    itertools.chain, itertools.product, itertools.islice, itertools.zip_longest, itertools.pairwise, itertools.combinations,
    itertools.permutations, itertools.cycle, itertools.compress, itertools.repeat, itertools.count,
):  # fmt: skip
    BUILTINS[_make] = _over_iterables(_make)
BUILTINS[itertools.repeat] = lambda vm, args, kwargs: itertools.repeat(*args, **kwargs)


for _make in (
    property,
    classmethod,
    staticmethod,
    functools.cached_property,
    types.MethodType,
    types.SimpleNamespace,
):
    BUILTINS[_make] = (lambda make: lambda vm, args, kwargs: make(*args, **kwargs))(_make)
