"""`cls(...)`: class instantiation. `__new__` and `__init__` are each interpreted or run natively."""

from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Callable

import torch

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.call_handlers import BUILTINS, TENSOR_METHODS, Args, Kwargs, unsupported
from smelt.capture.base.native_functions import refusal, runs_natively, setting_refusal
from smelt.capture.base.type_lookup import ABSENT, FUNCTION, type_find
from smelt.capture.base.value_kinds import CONTAINER_BASES, FunctionType, MethodType
from smelt.capture.base.vm_frames import with_result_handler
from smelt.capture.semantics import result_polyfills
from smelt.capture.semantics.calls.arity import accepts, raise_misuse
from smelt.capture.semantics.calls.native_calls import run_native, set_user_module
from smelt.capture.semantics.calls.python_functions import call_function
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import SIDE_EFFECT_IO, TENSOR_SUBCLASS, UNSUPPORTED_CALL, Reason
from smelt.tracing.fake.fake_tensor import FakeTensor


def construct(vm: VM, cls: type, args: Args, kwargs: Kwargs) -> object:
    """`cls(*args, **kwargs)` by a handler, by the `__call__` of a metaclass, or as `type.__call__`."""
    call_site = vm.frames.take_call_site()
    handler = BUILTINS.get(cls)
    if handler is not None:
        return handler(vm, args, kwargs) if accepts(cls, args, kwargs) else raise_misuse(cls, args, kwargs)
    meta = type(cls)
    if meta is not type:
        vm.env.facts.use_class(meta)
        how, found, _ = vm.type_info(meta).find("__call__")
        if how is FUNCTION:
            if isinstance(cls, enum.EnumMeta) or runs_natively(found):
                return set_user_module(vm, run_native(vm, cls, args, kwargs))
            vm.frames.call_site = call_site
            return call_function(vm, found, (cls, *args), kwargs)
    if cls.__module__ == "typing":
        return set_user_module(vm, instantiate(vm, cls, args, kwargs))
    vm.frames.call_site = call_site
    return instantiate(vm, cls, args, kwargs)


def instantiate(vm: VM, cls: type, args: Args, kwargs: Kwargs) -> object:
    """`type.__call__`: `__new__`, then `__init__`."""
    call_site = vm.frames.take_call_site()
    if not _may_break_inside(cls):
        call_site = None
    info = vm.type_info(cls)
    refused = setting_refusal(cls)
    if refused is not None and not _is_interpreted(*info.find("__init__")[:2]):
        raise Unsupported(Reason(*refused))
    vm.env.facts.use_lookups(cls)
    if info.find("__del__")[0] is not ABSENT:
        is_progress_bar = cls.__module__.partition(".")[0] == "tqdm"
        kind = SIDE_EFFECT_IO if is_progress_bar else UNSUPPORTED_CALL
        error = unsupported(f"{cls.__qualname__}, which has a finalizer, is instantiated", kind)
        error.breaks = (
            is_progress_bar  # a resume function would keep it alive; the iterator holds a progress bar
        )
        raise error
    _, new, _ = info.find("__new__")
    init_how, init, _ = info.find("__init__")
    new = new.__func__ if isinstance(new, staticmethod) else new
    python_init = init_how is FUNCTION and init is not None
    if type(new) is FunctionType:
        if new is torch.nn.Parameter.__new__:  # only plain parameters have a handler
            raise Unsupported(Reason(TENSOR_SUBCLASS, cls.__qualname__))
        if runs_natively(new):
            return run_native(vm, _native_constructor(vm, cls), args, kwargs)
        vm.frames.call_site = with_result_handler(
            call_site, result_polyfills.init_created, cls, tuple(args), kwargs
        )
        obj = call_function(vm, new, (cls, *args), kwargs)
        if not isinstance(obj, cls):
            return obj
    elif python_init:
        if runs_natively(init) and not _receives_functions(args, kwargs):
            return run_native(vm, _native_constructor(vm, cls), args, kwargs)
        obj = _new_object(vm, cls, new, args, kwargs)
    else:
        return _construct_native(vm, cls, args, kwargs)
    if python_init:
        vm.frames.call_site = with_result_handler(call_site, result_polyfills.check_init, obj)
        result = call_function(vm, init, (obj, *args), kwargs)
        if result is not None:
            raise TypeError(f"__init__() should return None, not {vm.class_of(result).__name__!r}")
    elif init is not object.__init__:
        vm.call_native(init, (obj, *args), kwargs)
    return obj


def _native_constructor(vm: VM, cls: type) -> Callable[..., object]:
    """A native callable that creates an instance of `cls`. The metaclass's `__call__` has already run."""
    constructors = (type_find(cls, name) is type_find(object, name) for name in ("__new__", "__init__"))
    if not all(constructors):  # those of object read no attributes
        vm.env.facts.use_class(cls)
    if type(cls) is not type and vm.type_info(type(cls)).find("__call__")[0] is FUNCTION:
        return functools.partial(type.__call__, cls)
    return cls


def _may_break_inside(cls: type) -> bool:
    """Whether a graph may break while `cls` is instantiated: it is a user class whose C bases support it. Library
    constructors contain nothing to compile."""
    root = cls.__module__.partition(".")[0]
    if root == "torch" or root in sys.stdlib_module_names:
        return False
    return all(_native.made_by_python(base) or base in (object, *CONTAINER_BASES) for base in cls.__mro__)


def _is_interpreted(how: object, init: object) -> bool:
    """Whether the VM interprets this `__init__` and so observes its effects."""
    return how is FUNCTION and type(init) is FunctionType and not runs_natively(init)


def _receives_functions(args: Args, kwargs: Kwargs) -> bool:
    """Whether a native `__init__` receives a function, which it may call."""
    return any(type(a) in (FunctionType, MethodType) for a in (*args, *kwargs.values()))


def _new_object(vm: VM, cls: type, new: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    if new is type.__new__:
        return BUILTINS[new](vm, (cls, *args), kwargs)
    if new is object.__new__ or issubclass(cls, (dict, list, set)):
        return new(cls)
    if _is_alias(new, args, kwargs):
        return TENSOR_METHODS["as_subclass"](vm, args[0], cls)
    return vm.call_native(new, (cls, *args), kwargs)


def _is_alias(new: object, args: Args, kwargs: Kwargs) -> bool:
    """Whether a subclass of torch.Tensor is called with a tensor: the result is an alias of it, as of `as_subclass`."""
    return new is torch.Tensor.__new__ and len(args) == 1 and not kwargs and type(args[0]) is FakeTensor


def _construct_native(vm: VM, cls: type, args: Args, kwargs: Kwargs) -> object:
    """An instance of a class whose `__new__` and `__init__` are both written in C."""
    if issubclass(cls, type) and cls.__new__ is type.__new__:
        return _new_object(vm, cls, type.__new__, args, kwargs)
    if issubclass(cls, CONTAINER_BASES) and args:
        args = [vm.iterable(args[0]), *args[1:]]
    if issubclass(cls, BaseException) or issubclass(cls, CONTAINER_BASES) or issubclass(cls, tuple):
        return vm.call_native(_native_constructor(vm, cls), args, kwargs)
    if issubclass(cls, torch.Tensor) and cls is not torch.Tensor:
        if _is_alias(cls.__new__, args, kwargs):
            return TENSOR_METHODS["as_subclass"](vm, args[0], cls)
        raise Unsupported(Reason(TENSOR_SUBCLASS, cls.__qualname__))
    refused = refusal(cls.__new__) if cls.__new__ is not object.__new__ else None
    if refused is not None:
        raise Unsupported(Reason(*refused))
    return run_native(vm, _native_constructor(vm, cls), args, kwargs)
