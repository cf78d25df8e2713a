"""Native calls: C functions and methods, and Python functions of torch and the standard library that the VM treats as
leaves.

A handler replaces the call if there is one. Calls with unknown effects are refused.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import decimal
import enum
import functools
import io
import operator
import random
import types
import warnings
from collections.abc import Callable
from typing import TypeVar, cast

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import (
    BREAKABLE_HANDLERS,
    BUILTINS,
    CODE_HANDLERS,
    METHODS,
    TENSOR_METHODS,
    Args,
    Handler,
    Kwargs,
    class_method_of,
    unsupported,
)
from smelt.capture.base.native_functions import (
    PURE_METHODS,
    PURE_TYPES,
    REFUSED,
    check_decimals,
    is_pybind_method,
    refusal,
    setting_refusal,
)
from smelt.capture.base.value_kinds import (
    CONTAINER_BASES,
    LEAF_TYPES,
    BuiltinType,
    Container,
    FunctionType,
    MethodType,
    items_of,
)
from smelt.capture.base.vm_frames import VMCallable
from smelt.capture.environment import container_contents, wrap_values
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.proxies.text_proxy import TextProxy, unreadable
from smelt.capture.reconstruction.constants import note_type_variable
from smelt.capture.semantics import attributes, number_semantics
from smelt.capture.semantics.calls import library_reads, native_callbacks
from smelt.capture.semantics.calls.arity import accepts, raise_misuse
from smelt.capture.semantics.calls.torch_function_overrides import needs_override_dispatch
from smelt.capture.semantics.values import context_managers
from smelt.capture.semantics.values.container_methods import SEARCHES, call_container_method, search
from smelt.capture.semantics.values.displayed_names import use_names
from smelt.capture.semantics.values.subscripts import lookup_key
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import OUTPUT, RANDOM_STATE, UNSUPPORTED_EFFECT, Reason
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.nested_tensors import is_nested
from smelt.tracing.symbolic.numbers_in_containers import specialize_nested

T = TypeVar("T")
Descriptor = types.MethodDescriptorType | types.WrapperDescriptorType | types.ClassMethodDescriptorType


def call_native_python(vm: VM, fn: FunctionType, args: Args, kwargs: Kwargs) -> object:
    """Call of a Python function of torch or the standard library that runs natively."""
    vm.frames.call_site = None
    handler = CODE_HANDLERS.get(fn.__code__)
    if handler is not None and not needs_override_dispatch(vm, fn, args, kwargs):
        return handler(vm, fn, args, kwargs)
    refused = setting_refusal(fn)
    if refused is not None:
        raise Unsupported(Reason(*refused))
    library_reads.use_native_function(vm.env, fn)
    for value in args:
        if fn.__module__ == "statistics" and isinstance(value, (list, tuple)):
            check_decimals(*value)
        if vm.env.log.is_overlaid(value):
            what = f"{fn.__qualname__} reads a {type(value).__qualname__} that the function has changed"
            raise unsupported(what, UNSUPPORTED_EFFECT)
    library_reads.use_instance_state(vm, args)
    if fn.__name__ == "__exit__" and args:
        return context_managers.leave_manager(vm, args[0], lambda: run_native(vm, fn, args, kwargs))
    if fn.__name__ == "__enter__" and args:
        records = isinstance(args[0], warnings.catch_warnings) and args[0]._record  # type: ignore[attr-defined]
        if records and not vm.assumptions.records_warnings:
            raise unsupported("catch_warnings(record=True) around a graph break", OUTPUT)
        native_callbacks.check_enterable_mode(vm, args[0])
        context_managers.use_manager_state(vm, args[0])
        return context_managers.enter_manager(vm, args[0], lambda: run_native(vm, fn, args, kwargs))
    if fn.__globals__.get("__name__") in _INTROSPECTION:
        return set_user_module(vm, _introspect(vm, fn, args, kwargs))
    result = run_native(vm, fn, args, kwargs)
    return set_user_module(vm, result) if fn.__globals__.get("__name__") == "collections" else result


def set_user_module(vm: VM, value: T) -> T:
    """Set `__module__` of an object that records its caller's module (`namedtuple`, `Enum`, `TypeVar`)."""
    if str(getattr(value, "__module__", "")).startswith("smelt.capture."):
        name = vm.current_frame.globals.get("__name__", "__main__")
        with contextlib.suppress(AttributeError, TypeError):
            setattr(value, "__module__", name)  # noqa: B010
    return note_type_variable(value)


# Modules whose functions inspect or store functions and classes, and so receive the user's own objects.
_INTROSPECTION = frozenset(("inspect", "typing", "typing_extensions", "types", "enum", "abc", "dataclasses"))


def _introspect(vm: VM, fn: FunctionType, args: Args, kwargs: Kwargs) -> object:
    for value in (*args, *kwargs.values()):
        if type(value) is FunctionType and id(value) in vm.env.sources:
            library_reads.use_signature(vm.env, value)

    def argument(value: object) -> object:
        if type(value) in _CALLABLES:
            return value
        return vm.native_argument(container_contents.native_view(vm.env, value))

    return wrap_values.to_fake(
        vm.env, vm.call_native(fn, [argument(v) for v in args], {k: argument(v) for k, v in kwargs.items()})
    )


_CALLABLES = (FunctionType, MethodType, BuiltinType)


def registered_or_native(function: Callable[..., object]) -> Handler:
    """What calls of `function` run so far: its handler, else `run_native`. For a handler that leaves other calls to it."""
    return BUILTINS.get(function) or (lambda vm, args, kwargs: run_native(vm, function, args, kwargs))


def run_native(vm: VM, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    """Call `fn` with the arguments that native code may see; returns a VM value. Raises Unsupported if it changes an
    environment container: it receives a copy, and only some container methods are known to be mutators."""
    copies: list[tuple[Container, list[object]]] = []
    args = [
        a if type(a) in LEAF_TYPES or type(a) is FakeTensor else _native_view(vm, a, copies) for a in args
    ]
    if kwargs:
        kwargs = {k: _native_view(vm, v, copies) for k, v in kwargs.items()}
    try:
        result = vm.call_native(fn, args, kwargs)
    finally:
        for view, before in copies:
            _check_unchanged(fn, view, before)
    if type(result) is VMCallable:
        return result.function
    return result if type(result) is FakeTensor else wrap_values.to_fake(vm.env, result)


def _native_view(vm: VM, value: object, copies: list[tuple[Container, list[object]]]) -> object:
    """`value` as an argument of native code. Copies of environment containers are added to `copies`."""
    view = container_contents.native_view(vm.env, value)
    if isinstance(view, CONTAINER_BASES):
        if view is value and id(value) in vm.env.sources:
            view = vm.env.overlay.copy(view)
        if view is not value:
            copies.append((view, items_of(view)))
    return vm.native_argument(view)


def _check_unchanged(fn: object, view: Container, before: list[object]) -> None:
    now = items_of(view)
    same = len(now) == len(before) and (
        all(map(operator.is_, now, before)) or all(map(_is_same_item, now, before))
    )
    if not same:
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        raise Unsupported(
            Reason(UNSUPPORTED_EFFECT, f"{name} changes a {type(view).__qualname__} of the environment")
        )


def _is_same_item(now: object, before: object) -> bool:
    """Whether two container items are the same element or the same key and value."""
    if type(now) is tuple and type(before) is tuple and len(now) == len(before) == 2:
        return all(map(operator.is_, now, before))
    return now is before


def call_builtin(vm: VM, fn: BuiltinType, args: Args, kwargs: Kwargs) -> object:
    """Call of a function or bound method written in C."""
    handler = BUILTINS.get(fn) if fn.__hash__ is not None else None
    if handler not in BREAKABLE_HANDLERS:
        vm.frames.call_site = None
    if handler is not None and not needs_override_dispatch(vm, fn, args, kwargs):
        return handler(vm, args, kwargs) if accepts(fn, args, kwargs) else raise_misuse(fn, args, kwargs)
    owner = fn.__self__
    if isinstance(owner, type) and (handler := class_method_of(fn)):
        return handler(vm, [owner, *args], kwargs)
    if is_free_function(owner):
        if args and is_pybind_method(fn, type(args[0])):
            return call_bound(vm, fn.__name__, functools.partial(fn, args[0]), args[0], args[1:], kwargs)
        refused = REFUSED.get(fn) or refusal(fn)
        if refused is not None:
            raise Unsupported(Reason(*refused))
        if fn is pow or fn is divmod:
            check_decimals(*args)
        return run_native(vm, fn, args, kwargs)
    if id(fn) in vm.env.sources:  # stored as a bound method
        source = vm.env.sources[id(fn)]
        owner = wrap_values.wrap(vm.env, owner, source.child("member", "__self__"))
        fn = getattr(owner, fn.__name__)
        if not _has_known_methods(owner) and (type(owner), fn.__name__) not in METHODS:
            _check_native_object(vm, fn.__name__, owner)
    return call_bound(vm, fn.__name__, fn, owner, args, kwargs)


def is_free_function(owner: object) -> bool:
    """Whether a builtin with this `__self__` is a free function. `__self__` is the bound object of a method, the module or
    class of a function, and a record or a capsule for pybind11 functions."""
    if owner is None or isinstance(owner, (types.ModuleType, type)):
        return True
    return type(owner).__name__.startswith(("pybind11_detail_function_record", "PyCapsule"))


def call_descriptor(vm: VM, fn: Descriptor, args: Args, kwargs: Kwargs) -> object:
    """Call of an unbound method of a C class: `dict.get(d, k)`, `object.__init__(x)`."""
    handler = BUILTINS.get(fn)
    if handler not in BREAKABLE_HANDLERS:
        vm.frames.call_site = None
    if handler is not None and not needs_override_dispatch(vm, fn, args, kwargs):
        return handler(vm, args, kwargs)
    if not args:
        return fn(*args, **kwargs)
    refused = REFUSED.get(fn)
    if refused is not None:
        raise Unsupported(Reason(*refused))
    owner = args[0]
    if type(owner) is TextProxy or type(owner) is OpaqueProxy:
        raise unreadable(f"{fn.__name__} of an object that changes", owner)
    if type(owner) is FakeTensor and issubclass(torch.Tensor, fn.__objclass__):
        return call_bound(vm, fn.__name__, functools.partial(fn, owner), owner, args[1:], kwargs)
    if isinstance(owner, torch.Tensor):
        return run_native(vm, fn, args, kwargs)
    return call_bound(vm, fn.__name__, functools.partial(fn, owner), owner, args[1:], kwargs)


def call_method_wrapper(vm: VM, fn: types.MethodWrapperType, args: Args, kwargs: Kwargs) -> object:
    """Call of a bound slot wrapper of a C class: `x.__add__`."""
    source = vm.env.sources.get(id(fn))
    if source is not None:  # stored as a bound method
        owner = wrap_values.wrap(vm.env, fn.__self__, source.child("member", "__self__"))
        return vm.call(fn.__objclass__.__dict__[fn.__name__], (owner, *args), kwargs)
    handler = BUILTINS.get(getattr(fn.__objclass__, fn.__name__, None))
    if handler not in BREAKABLE_HANDLERS:
        vm.frames.call_site = None
    if handler is not None:
        return handler(vm, (fn.__self__, *args), kwargs)
    if fn.__name__ == "__await__":  # its result runs an environment coroutine
        raise unsupported(f"__await__ of a {type(fn.__self__).__qualname__}")
    if fn.__name__ in _MEMBER_METHODS and args and type(args[0]) is FakeTensor:
        member = cast("types.GetSetDescriptorType", fn.__self__)
        return _MEMBER_METHODS[fn.__name__](vm, args[0], member.__name__, *args[1:])
    return call_bound(vm, fn.__name__, fn, fn.__self__, args, kwargs)


_MEMBER_METHODS: dict[str, Callable[..., object]] = {
    "__get__": lambda vm, tensor, name, cls=None: attributes.load_attr(vm, tensor, name),
    "__set__": attributes.store_attr,
    "__delete__": attributes.store_attr,
}


def call_bound(
    vm: VM, name: str, fn: Callable[..., object], owner: object, args: Args, kwargs: Kwargs
) -> object:
    """Call of the C method `name` of `owner`, as the bound callable `fn`."""
    if type(owner) is FakeTensor:
        return _call_tensor_method(vm, name, fn, owner, args, kwargs)
    kind = type(owner)
    if args and name in number_semantics.LOOKUPS:
        args = (_lookup_key(vm, owner, args[0]), *args[1:])
    base = _base_type(kind, name)
    handler = METHODS.get((base, name))
    if handler is not None:
        if not accepts(getattr(base, name, None), (owner, *args), kwargs):
            return raise_misuse(fn, args, kwargs)
        return handler(vm, owner, *args, **kwargs)
    if name in _NODE_METHODS and isinstance(owner, torch.autograd.graph.Node):
        raise unsupported(f"{name} of a node of autograd")
    vm.env.facts.check_readable(owner)
    if name in _TEXT_METHODS:
        use_names(vm, owner)
    if name not in _EXACT_DECIMAL_METHODS:
        check_decimals(owner)
    if name in _CONTEXT_METHODS:
        context_method, call = (
            _CONTEXT_METHODS[name],
            functools.partial(_call_unhandled, vm, name, fn, owner, args, kwargs),
        )
        return context_method(vm, owner, call)
    return _call_unhandled(vm, name, fn, owner, args, kwargs)


_TEXT_METHODS = ("__repr__", "__str__", "__format__")
# Decimal methods that neither round nor signal to the context.
_EXACT_DECIMAL_METHODS = frozenset(
    (
        "__bool__", "__copy__", "__deepcopy__", "__eq__", "__float__", "__ge__", "__getattribute__", "__gt__", "__hash__",
        "__init__", "__int__", "__le__", "__lt__", "__ne__", "__reduce__", "__repr__", "__str__", "as_integer_ratio",
        "as_tuple", "is_finite", "is_infinite", "is_nan", "is_signed", "is_zero",
    )
)  # fmt: skip
_CONTEXT_METHODS = {"__enter__": context_managers.enter_manager, "__exit__": context_managers.leave_manager}


def _call_unhandled(
    vm: VM, name: str, fn: Callable[..., object], owner: object, args: Args, kwargs: Kwargs
) -> object:
    """Call of a method without a handler, of an object other than a traced tensor."""
    kind = type(owner)
    if isinstance(owner, io.IOBase):
        handler = METHODS.get((io.IOBase, name))
        if handler is not None:
            return handler(vm, owner, *args, **kwargs)
    if name in _REDUCE_METHODS and hasattr(kind, "__next__"):
        raise unsupported(f"{name} of a {kind.__qualname__}, which exposes values of the VM")
    if name in SEARCHES and isinstance(owner, (list, tuple, collections.deque)) and not kwargs:
        return search(vm, name, owner, args)
    if isinstance(owner, CONTAINER_BASES):
        return call_container_method(vm, name, fn, owner, args, kwargs)
    if is_nested(owner) or id(owner) in vm.trace.call.wrappers:
        return run_native(vm, fn, args, kwargs)
    if id(owner) in vm.env.sources and kind not in LEAF_TYPES and not isinstance(owner, (str, tuple)):
        _check_native_object(vm, name, owner)
    if isinstance(owner, torch.Tensor):
        return run_native(vm, fn, args, kwargs)
    if isinstance(owner, tuple):
        container_contents.guard_compared(vm.env, owner)
    args = [vm.native_argument(container_contents.native_view(vm.env, a)) for a in args]
    return wrap_values.to_fake(vm.env, vm.call_native(fn, args, kwargs))


_REDUCE_METHODS = frozenset(("__reduce__", "__reduce_ex__"))


def _call_tensor_method(
    vm: VM, name: str, fn: Callable[..., object], owner: FakeTensor, args: Args, kwargs: Kwargs
) -> object:
    """`x.name(...)` of a tensor: bound earlier, or called as `Tensor.name(x, ...)`."""
    if needs_override_dispatch(vm, getattr(torch.Tensor, name, None), (owner, *args), kwargs):
        return run_native(vm, fn, args, kwargs)
    handler = TENSOR_METHODS.get(name)
    if handler is not None:
        return handler(vm, owner, *args, **kwargs)
    state = attributes.TENSOR_STATE.get(name)
    if state is not None and vm.trace.is_input(owner):
        real = vm.trace.real(owner)
        assert real is not None
        state(vm, owner, real, name)
    return run_native(vm, fn, args, kwargs)


def _lookup_key(vm: VM, owner: object, key: object) -> object:
    """The first argument of a method that searches `owner` for it."""
    if vm.trace.numbers.symbols is not None:
        key = specialize_nested(key)
    return lookup_key(vm, owner, key)


_NODE_METHODS = frozenset(("register_hook", "register_prehook", "_register_hook_dict"))


def _has_known_methods(owner: object) -> bool:
    """Whether the methods of `owner` are known: it is a constant, container, string, tuple or tensor."""
    return type(owner) in LEAF_TYPES or isinstance(owner, (*CONTAINER_BASES, str, tuple, torch.Tensor))


def _base_type(kind: type, name: str) -> type:
    """The class under which `METHODS` has the C method `name` of `kind`."""
    bases = [b for b in CONTAINER_BASES if issubclass(kind, b)] or kind.__mro__
    return next((b for b in bases if (b, name) in METHODS), kind)


# C types of numbers, strings and dates, whose values are guarded.
IMMUTABLE = (
    int, float, complex, str, bytes, decimal.Decimal, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo
)  # fmt: skip


def _check_native_object(vm: VM, name: str, owner: object) -> None:
    """Raise Unsupported for a method of an environment C object that may change it or reads unguarded state."""
    kind = type(owner)
    vm.env.facts.use_content(owner)
    if kind in PURE_TYPES or isinstance(owner, (enum.Enum, *IMMUTABLE)):
        return
    if isinstance(owner, BaseException):
        container_contents.guard_exception(vm.env, owner)
        if name in ("split", "subgroup", "derive"):
            return
    if name in PURE_METHODS and (name.startswith("__") or kind.__module__ == "datetime"):
        return  # a queue's `get` removes an item
    if isinstance(owner, random.Random):
        raise Unsupported(Reason(RANDOM_STATE, f"random.{name}"))
    raise unsupported(f"method {name} of an environment {kind.__qualname__}, whose effects are not known")
