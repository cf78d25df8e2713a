"""Calls: what happens for each kind of callable.

Python functions are bound to slots and interpreted; functions of C, and Python functions of torch and the standard library
that are leaves, run for real on fakes; classes are constructed step by step; an `nn.Module` goes to its `forward`.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import functools
import io
import operator
import random
import re
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from smelt.capture.base.frames import Frame, VMCallable
from smelt.capture.base.handlers import BUILTINS, CODES, FUNCTIONS, METHODS, TENSOR_METHODS
from smelt.capture.base.native_functions import (
    PURE_METHODS,
    PURE_TYPES,
    REFUSED,
    is_native_module,
    is_never_entered,
    refusal,
    runs_natively,
    setting,
)
from smelt.capture.base.type_info import ABSENT, FUNCTION, NON_DATA
from smelt.capture.base.values import (
    CONTAINER_BASES,
    LEAF_TYPES,
    MISSING,
    NULL,
    BuiltinType,
    FunctionType,
    MethodType,
    is_constant,
    is_identity,
)
from smelt.capture.machine.vm import VM
from smelt.capture.outside import changes, contents, wrapping
from smelt.capture.outside.effects import Call
from smelt.capture.protocol import (
    attributes,
    callbacks,
    context_managers,
    library_reads,
    operators,
    symbolic_numbers,
)
from smelt.capture.protocol.arity import accepts
from smelt.capture.protocol.binding import bind
from smelt.capture.protocol.containers import mapping_or_pairs
from smelt.errors import Unsupported
from smelt.reasons import (
    DEBUGGER,
    DISABLED,
    GRAPH_BREAK_REQUESTED,
    OUTPUT,
    RANDOM_STATE,
    SIDE_EFFECT_IO,
    TENSOR_SUBCLASS,
    UNSUPPORTED_CALL,
    UNSUPPORTED_OBJECT,
    Reason,
)
from smelt.trace.fake import FakeTensor
from smelt.trace.symbols import plain, plain_parts

COROUTINE, ASYNC_GENERATOR = 0x80, 0x200
_Args = Sequence[Any]
_Kwargs = dict[str, Any]

_module_call = nn.Module.__call__
_lru_cache = functools._lru_cache_wrapper
_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
_module_globals = vars(torch.nn.modules.module)


def unsupported_call(detail: str) -> Unsupported:
    return Unsupported(Reason(UNSUPPORTED_CALL, detail))


def call(vm: VM, fn: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """`fn(*args, **kwargs)`."""
    caller = CALLERS.get(type(fn))
    if caller is not None:
        return caller(vm, fn, args, kwargs)
    if isinstance(fn, type):
        return construct(vm, fn, args, kwargs)
    return call_object(vm, fn, args, kwargs)


# ----------------------------------------------------------------------------------------- Python functions


def call_function(vm: VM, fn: FunctionType, args: _Args, kwargs: _Kwargs | None = None) -> Any:
    kwargs = kwargs if kwargs is not None else {}
    handler = FUNCTIONS.get(fn)
    if handler is not None:
        vm.frames.tail = None
        return handler(vm, args, kwargs)
    if fn in REFUSED:
        raise Unsupported(Reason(*REFUSED[fn]))
    if fn.__dict__:
        kept = _kept_from_torch_compile(fn)
        if kept is not None:
            return call_function(vm, kept, args, kwargs)
        _check_marks(fn)
        if "__smelt_is_compiling__" in fn.__dict__:
            return vm.is_compiling()
    if runs_natively(fn):
        return call_native_python(vm, fn, args, kwargs)
    if is_never_entered(fn):
        kind = {"pdb": DEBUGGER, "bdb": DEBUGGER, "random": RANDOM_STATE}.get(fn.__module__, SIDE_EFFECT_IO)
        raise Unsupported(Reason(kind, f"{fn.__module__}.{fn.__qualname__}"))
    return interpret(vm, fn, args, kwargs)


def _kept_from_torch_compile(fn: FunctionType) -> FunctionType | None:
    """What a function of `torch.optim` was before torch disabled it for its own compiler, as it does when it is used."""
    if "_torchdynamo_disable" not in fn.__dict__:
        return None
    original = fn.__dict__.get("_torchdynamo_orig_callable")
    own = type(original) is FunctionType and str(original.__globals__.get("__name__")).startswith(
        "torch.optim"
    )
    return original if own else None


def _check_marks(fn: FunctionType) -> None:
    marks = fn.__dict__
    if marks.get("_torchdynamo_disable") or marks.get("__smelt_disable__"):
        raise Unsupported(Reason(DISABLED, fn.__qualname__))
    if marks.get("__smelt_graph_break__"):
        raise Unsupported(Reason(GRAPH_BREAK_REQUESTED, ""))


def interpret(vm: VM, fn: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """Runs a Python function in the VM."""
    vm.outside.facts.use_function(fn)
    code = vm.decode(fn.__code__)
    if code.flags & (COROUTINE | ASYNC_GENERATOR):
        raise unsupported_call(f"{fn.__qualname__} is asynchronous")
    return vm.run(vm.direct(Frame(code, fn, bind(vm, fn, code, args, kwargs))))


# ------------------------------------------------------------------------------------------ native callables


def call_native_python(vm: VM, fn: FunctionType, args: _Args, kwargs: _Kwargs) -> Any:
    """A Python function of torch or the standard library, run for real."""
    vm.frames.tail = None
    handler = CODES.get(fn.__code__)
    if handler is not None:
        return handler(vm, fn, args, kwargs)
    refused = setting(fn)
    if refused is not None:
        raise Unsupported(Reason(*refused))
    library_reads.use_native(vm.outside, fn)
    library_reads.use_state(vm, args)
    if fn.__name__ == "__exit__" and args:
        context_managers.left(vm, args[0])
    if fn.__name__ == "__enter__" and args:
        callbacks.check_mode(vm, args[0])
        context_managers.use_state(vm, args[0])
    if fn.__globals__.get("__name__") in _INTROSPECTION:
        return _introspect(vm, fn, args, kwargs)
    return run_native(vm, fn, args, kwargs)


# Modules whose functions look at functions and classes, or keep them: they are given the user's own.
_INTROSPECTION = frozenset(("inspect", "typing", "typing_extensions", "types", "enum", "abc", "dataclasses"))


def _introspect(vm: VM, fn: Any, args: _Args, kwargs: _Kwargs) -> Any:
    for value in (*args, *kwargs.values()):
        if type(value) is FunctionType and id(value) in vm.outside.origins:
            library_reads.use_signature(vm.outside, value)

    def given(value: Any) -> Any:
        return value if type(value) in _SHOWN else vm.native_argument(contents.view(vm.outside, value))

    return wrapping.fake(
        vm.outside, vm.native(fn, [given(v) for v in args], {k: given(v) for k, v in kwargs.items()})
    )


_SHOWN = (FunctionType, MethodType, types.BuiltinFunctionType)


def run_native(vm: VM, fn: Any, args: _Args, kwargs: _Kwargs) -> Any:
    view = functools.partial(contents.view, vm.outside)
    args = [
        a if type(a) in LEAF_TYPES or type(a) is FakeTensor else vm.native_argument(view(a)) for a in args
    ]
    if kwargs:
        kwargs = {k: vm.native_argument(view(v)) for k, v in kwargs.items()}
    result = vm.native(fn, args, kwargs)
    if type(result) is VMCallable:
        return result.function
    return result if type(result) is FakeTensor else wrapping.fake(vm.outside, result)


def call_builtin(vm: VM, fn: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """A function or bound method written in C."""
    vm.frames.tail = None
    handler = BUILTINS.get(fn) if fn.__hash__ is not None else None
    if handler is not None:
        return handler(vm, args, kwargs) if accepts(fn, args, kwargs) else _misused(vm, fn, args, kwargs)
    owner = fn.__self__
    if owner is None or isinstance(owner, (types.ModuleType, type)) or _is_binding(owner):
        refused = REFUSED.get(fn) or refusal(fn)
        if refused is not None:
            raise Unsupported(Reason(*refused))
        return run_native(vm, fn, args, kwargs)
    if id(fn) in vm.outside.origins:  # stored by itself
        origin = vm.outside.origins[id(fn)]
        owner = wrapping.wrap(vm.outside, owner, origin.child("member", "__self__"))
        fn = getattr(owner, fn.__name__)
        if not _is_known(owner):
            _check_native_object(vm, fn.__name__, owner)
    return call_bound(vm, fn.__name__, fn, owner, args, kwargs)


def has_effects(fn: Any) -> bool:
    """Whether the VM must make a call of a C function that native code holds: it has a handler, is refused, or changes
    the object that it is bound to."""
    if fn.__hash__ is None:
        return True
    owner = fn.__self__
    if owner is None or isinstance(owner, (types.ModuleType, type)) or _is_binding(owner):
        return fn in BUILTINS or fn in REFUSED or refusal(fn) is not None
    return not _is_constant_owner(owner)


def _is_constant_owner(owner: Any) -> bool:
    return type(owner) in LEAF_TYPES or type(owner) in (tuple, frozenset, FakeTensor)


def _misused(vm: VM, fn: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """A builtin raises its own error for arguments that it does not take."""
    fn(*args, **kwargs)
    raise unsupported_call(f"{fn.__name__} with {len(args)} arguments")


def _is_binding(owner: Any) -> bool:
    """pybind11 functions are builtins whose `__self__` is their record."""
    return type(owner).__name__.startswith("pybind11_detail_function_record")


def _is_known(owner: Any) -> bool:
    return type(owner) in LEAF_TYPES or isinstance(owner, (*CONTAINER_BASES, str, tuple, torch.Tensor))


def call_bound(vm: VM, name: str, fn: Any, owner: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """A C method `name` of `owner`; `fn` is bound to it."""
    kind = type(owner)
    if kind is FakeTensor:
        handler = TENSOR_METHODS.get(name)
        state = attributes.TENSOR_STATE.get(name)
        # `x.name` bound earlier, or `Tensor.name(x)`
        if state is not None and handler is None and vm.trace.is_input(owner):
            real = vm.trace.real(owner)
            assert real is not None
            state(vm, owner, real, name)
        return run_native(vm, fn, args, kwargs) if handler is None else handler(vm, owner, *args, **kwargs)
    if args and vm.trace.numbers.symbols is not None and name in symbolic_numbers.LOOKUPS:
        args = (plain_parts(args[0]), *args[1:])
    if args and type(args[0]) is FakeTensor and name in symbolic_numbers.LOOKUPS:
        args = (operators.found_by(vm, owner, args[0]), *args[1:])
    handler = METHODS.get((_base_type(kind), name))
    if handler is not None:
        if not accepts(getattr(_base_type(kind), name, None), (owner, *args), kwargs):
            return _misused(vm, fn, args, kwargs)
        return handler(vm, owner, *args, **kwargs)
    if name in _NODE_METHODS and isinstance(owner, torch.autograd.graph.Node):
        raise unsupported_call(f"{name} of a node of autograd")
    vm.outside.facts.check_readable(owner)
    if name == "__exit__":
        context_managers.left(vm, owner)
    if isinstance(owner, io.IOBase):
        handler = METHODS.get((io.IOBase, name))
        if handler is not None:
            return handler(vm, owner, *args, **kwargs)
    if isinstance(owner, CONTAINER_BASES):
        return _call_container(vm, name, fn, owner, args, kwargs)
    if id(owner) in vm.outside.origins and kind not in LEAF_TYPES and not isinstance(owner, (str, tuple)):
        _check_native_object(vm, name, owner)
    if isinstance(owner, torch.Tensor):
        return run_native(vm, fn, args, kwargs)
    args = [vm.native_argument(contents.view(vm.outside, a)) for a in args]
    return wrapping.fake(vm.outside, vm.native(fn, args, kwargs))


_NODE_METHODS = frozenset(("register_hook", "register_prehook", "_register_hook_dict"))


def is_opaque(value: Any) -> bool:
    """Whether a value is an instance of a C class whose contents the VM cannot guard."""
    kind = type(value)
    if (
        kind.__flags__ & (1 << 9)
        or kind in LEAF_TYPES
        or kind in PURE_TYPES
        or kind in CALLERS
        or is_identity(value)
    ):
        return False
    return not isinstance(value, _TRANSPARENT)


# Numbers, texts and dates of C, whose value is guarded.
_IMMUTABLE = (
    int, float, complex, str, bytes, decimal.Decimal, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo
)  # fmt: skip
_TRANSPARENT = (*CONTAINER_BASES, tuple, frozenset, torch.Tensor, BaseException, *_IMMUTABLE)


def _base_type(kind: type) -> type:
    return next((b for b in CONTAINER_BASES if issubclass(kind, b)), kind)


def _check_native_object(vm: VM, name: str, owner: Any) -> None:
    kind = type(owner)
    vm.outside.facts.use_content(owner)
    if kind in PURE_TYPES or isinstance(owner, (enum.Enum, *_IMMUTABLE)):
        return
    if isinstance(owner, BaseException):
        contents.open_exception(vm.outside, owner)
        if name in ("split", "subgroup", "derive"):
            return
    if name in PURE_METHODS and (name.startswith("__") or kind.__module__ == "datetime"):
        return  # `get` of a queue takes something out
    if isinstance(owner, random.Random):
        raise Unsupported(Reason(RANDOM_STATE, f"random.{name}"))
    raise unsupported_call(f"method {name} of an outside {kind.__qualname__}, whose effects are not known")


# Methods of containers that do not look into the elements.
_BLIND_METHODS = frozenset(
    (
        "append", "appendleft", "clear", "copy", "extend", "insert", "items", "keys", "pop", "popleft", "reverse",
        "rotate", "values",
    )
)  # fmt: skip


def _directly(fn: Any, args: _Args, kwargs: _Kwargs) -> Any:
    return fn(*args, **kwargs)


def _call_container(vm: VM, name: str, fn: Any, owner: Any, args: _Args, kwargs: _Kwargs) -> Any:
    outside = vm.outside
    if name == "update" and isinstance(owner, dict):
        args = [mapping_or_pairs(vm, a) for a in args]
    elif name in ("extend", "update", "union", "intersection", "difference", "fromkeys", "extendleft"):
        args = [
            vm.iterable(a) if not isinstance(a, dict) else contents.view(outside, a, deep=False) for a in args
        ]
    run = _directly if name in _BLIND_METHODS else vm.native
    if name == "sort":
        kwargs = {k: vm.native_argument(v) for k, v in kwargs.items()}
    if id(owner) not in outside.origins:
        return wrapping.fake(outside, run(fn, args, kwargs))
    seen = contents.open(outside, owner)
    if name in PURE_METHODS:
        return wrapping.fake(outside, run(getattr(seen, name) if seen is not owner else fn, args, kwargs))
    if name == "remove" and seen is not owner and isinstance(owner, list):
        at = vm.native(seen.index, args)
        assert isinstance(at, int)
        changes.touch(outside, owner)
        return list.__delitem__(owner, at)
    changes.touch(outside, owner)
    return wrapping.fake(outside, run(fn, args, kwargs))


def call_descriptor(vm: VM, fn: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """`dict.get(d, k)`, `object.__init__(x)`, ...: an unbound method of a C class."""
    vm.frames.tail = None
    handler = BUILTINS.get(fn)
    if handler is not None:
        return handler(vm, args, kwargs)
    if not args:
        return fn(*args, **kwargs)
    refused = REFUSED.get(fn)
    if refused is not None:
        raise Unsupported(Reason(*refused))
    owner = args[0]
    if type(owner) is FakeTensor and issubclass(torch.Tensor, fn.__objclass__):
        return call_bound(vm, fn.__name__, functools.partial(fn, owner), owner, args[1:], kwargs)
    if isinstance(owner, torch.Tensor):
        return run_native(vm, fn, args, kwargs)
    return call_bound(vm, fn.__name__, functools.partial(fn, owner), owner, args[1:], kwargs)


def call_lru_cached(vm: VM, fn: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """A cached function: its own cache answers, and is guarded; where it cannot be, the function is interpreted."""
    handler = FUNCTIONS.get(fn.__wrapped__)
    if handler is not None:
        return handler(vm, args, kwargs)
    args, kwargs = [plain(a) for a in args], {k: plain(v) for k, v in kwargs.items()}
    origin = vm.outside.origins.get(id(fn))
    if origin is None:  # made by the trace, and so is what it holds
        return vm.native(fn, args, kwargs)
    wrapping.wrap(vm.outside, fn.__wrapped__, origin.child("attr", "__wrapped__"))
    if all(_is_key(a) for a in (*args, *kwargs.values())) and not _makes_tensors(fn.__wrapped__):
        if not _OUTPUT.isdisjoint(getattr(getattr(fn.__wrapped__, "__code__", None), "co_names", ())):
            return _cached_output(vm, fn, args, kwargs)
    found = library_reads.cached_call(vm, fn, args, kwargs)
    return call(vm, fn.__wrapped__, args, kwargs) if found is MISSING else found


_OUTPUT = frozenset(
    (
        "print",
        "write",
        "warn",
        "warning",
        "warning_once",
        "warn_once",
        "debug",
        "info",
        "error",
        "critical",
        "log",
    )
)


def _cached_output(vm: VM, fn: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """A cached function that writes something: the compiled frame calls it for real, so that its cache decides."""
    vm.frames.tail = None
    log = vm.outside.log
    calls, changed = len(log.calls), log.changed
    result = call(vm, fn.__wrapped__, args, kwargs)
    if log.changed != changed or not is_constant(result):
        raise Unsupported(Reason(OUTPUT, f"{fn.__qualname__}, which is cached, does more than write"))
    del log.calls[calls:]
    vm.outside.origins.const(fn)
    log.call(Call(fn, (*args, *kwargs.values()), tuple(kwargs)))
    return result


def _is_key(value: Any) -> bool:
    return (
        is_constant(value)
        or isinstance(value, (type, enum.Enum, FunctionType, types.ModuleType))
        or type(value).__module__ == "logging"
    )


def _makes_tensors(fn: Any) -> bool:
    code = getattr(fn, "__code__", None)
    return code is None or "torch" in code.co_names


def call_partial(vm: VM, fn: Any, args: _Args, kwargs: _Kwargs) -> Any:
    target = attributes.load_partial_attr(vm, fn, "func")
    bound = attributes.load_partial_attr(vm, fn, "args")
    keywords = attributes.load_partial_attr(vm, fn, "keywords")
    if keywords:
        keywords = (
            contents.view(vm.outside, keywords, deep=False)
            if id(keywords) in vm.outside.origins
            else keywords
        )
        kwargs = {**keywords, **kwargs}
    return call(vm, target, (*bound, *args), kwargs)


def call_method(vm: VM, fn: MethodType, args: _Args, kwargs: _Kwargs) -> Any:
    if id(fn) in vm.outside.origins:
        function, owner = (attributes.bound_part(vm, fn, n) for n in ("__func__", "__self__"))
    else:
        function, owner = fn.__func__, fn.__self__
    return call(vm, function, (owner, *args), kwargs)


def call_torch_operator(vm: VM, fn: Any, args: _Args, kwargs: _Kwargs) -> Any:
    return run_native(vm, fn, args, kwargs)


def call_getter(vm: VM, fn: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """operator.attrgetter and itemgetter."""
    vm.frames.tail = None
    vm.outside.facts.use_content(fn)
    parts = fn.__reduce__()[1]
    (obj,) = args
    if isinstance(fn, operator.attrgetter):
        found = [
            functools.reduce(lambda o, n: attributes.load_attr(vm, o, n), path.split("."), obj)
            for path in parts
        ]
    else:
        found = [vm.subscript(obj, key) for key in parts]
    return found[0] if len(found) == 1 else tuple(found)


# --------------------------------------------------------------------------------------------------- objects


def call_object(vm: VM, obj: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """An instance with `__call__`."""
    how, found, _ = vm.type_info(type(obj)).find("__call__")
    vm.outside.facts.use_class(type(obj))
    if found is _module_call or (how is FUNCTION and found.__module__ == "smelt.api"):
        return call_module(vm, obj, args, kwargs)  # a compiled module inside another: one graph
    original = getattr(obj, "_smelt_original", None) if type(obj).__module__ == "smelt._native" else None
    if original is not None:
        return call(vm, original, args, kwargs)
    if how is FUNCTION:
        return call_function(vm, found, (obj, *args), kwargs)
    if how is ABSENT:
        raise TypeError(f"{type(obj).__name__!r} object is not callable")
    if how is not NON_DATA:
        return call(vm, attributes.load_attr(vm, obj, "__call__"), args, kwargs)
    if type(obj) is weakref.ref and id(obj) in vm.outside.origins:
        return wrapping.wrap(vm.outside, obj(), vm.outside.origins[id(obj)].child("call", None))
    kind = (type(obj).__module__, type(obj).__name__)
    if kind[0].startswith("torch") or type(obj) in PURE_TYPES or kind in _NUMPY_FUNCTIONS:
        return run_native(vm, obj, args, kwargs)
    raise unsupported_call(f"calling a {type(obj).__qualname__}")


_NUMPY_FUNCTIONS = {("numpy", "ufunc"), ("numpy", "_ArrayFunctionDispatcher")}


def call_module(vm: VM, module: nn.Module, args: _Args, kwargs: _Kwargs) -> Any:
    """`nn.Module.__call__`: straight to `forward` when no hook is registered anywhere, guarded."""
    if torch.is_grad_enabled() and _has_backward_hooks(module):
        raise unsupported_call("a module with backward hooks")
    if _has_hooks(vm, module):
        return interpret(vm, nn.Module._call_impl, (module, *args), kwargs)
    origin = vm.outside.origins.get(id(module))
    if origin is not None:
        vm.outside.facts.guard("no_hooks", origin)
    function, owner = attributes.load_method(vm, module, "forward")
    vm.frames.module_callers.append(vm.frame)
    try:
        if function is NULL:
            return call(vm, owner, args, kwargs)
        return call_function(vm, function, (owner, *args), kwargs)
    finally:
        vm.frames.module_callers.pop()


def _has_backward_hooks(module: nn.Module) -> bool:
    own = module.__dict__
    return any(own.get(n) for n in ("_backward_hooks", "_backward_pre_hooks")) or any(
        _module_globals[n] for n in ("_global_backward_hooks", "_global_backward_pre_hooks")
    )


def _has_hooks(vm: VM, module: nn.Module) -> bool:
    own = module.__dict__
    if any(
        own.get(n) for n in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    ):
        return True
    if any(_module_globals[n] for n in _GLOBAL_HOOKS):
        return True
    for name in _GLOBAL_HOOKS:
        vm.outside.facts.guard("len", vm.outside.origins.const(_module_globals).child("item", name), 0)
    return False


def construct(vm: VM, cls: type, args: _Args, kwargs: _Kwargs) -> Any:
    """`cls(*args, **kwargs)`."""
    vm.frames.tail = None
    handler = BUILTINS.get(cls)
    if handler is not None:
        return handler(vm, args, kwargs) if accepts(cls, args, kwargs) else _misused(vm, cls, args, kwargs)
    meta = type(cls)
    if meta is not type:
        how, found, _ = vm.type_info(meta).find("__call__")
        if how is FUNCTION:
            if isinstance(cls, enum.EnumMeta) or runs_natively(found):
                return run_native(vm, cls, args, kwargs)
            return call_function(vm, found, (cls, *args), kwargs)
    return instantiate(vm, cls, args, kwargs)


def instantiate(vm: VM, cls: type, args: _Args, kwargs: _Kwargs) -> Any:
    """`type.__call__`: `__new__`, then `__init__`."""
    refused = setting(cls)
    if refused is not None:
        raise Unsupported(Reason(*refused))
    info = vm.type_info(cls)
    vm.outside.facts.use_class(cls)
    if info.find("__del__")[0] is not ABSENT:
        error = unsupported_call(f"{cls.__qualname__}, which has a finalizer, is instantiated")
        error.breaks = False  # a resume function would keep it alive
        raise error
    _, new, _ = info.find("__new__")
    init_how, init, _ = info.find("__init__")
    new = new.__func__ if isinstance(new, staticmethod) else new
    python_init = init_how is FUNCTION and init is not None
    if type(new) is FunctionType:
        if runs_natively(new):
            return run_native(vm, cls, args, kwargs)
        obj = call_function(vm, new, (cls, *args), kwargs)
        if not isinstance(obj, cls):
            return obj
    elif python_init:
        if runs_natively(init) and not _calls_back(args, kwargs):
            return run_native(vm, cls, args, kwargs)
        obj = _new_object(vm, cls, new, args, kwargs)
    else:
        return _construct_native(vm, cls, args, kwargs)
    if python_init:
        call_function(vm, init, (obj, *args), kwargs)
    elif init is not object.__init__:
        vm.native(init, (obj, *args), kwargs)
    return obj


def _calls_back(args: _Args, kwargs: _Kwargs) -> bool:
    return any(type(a) in (FunctionType, MethodType) for a in (*args, *kwargs.values()))


def _new_object(vm: VM, cls: type, new: Any, args: _Args, kwargs: _Kwargs) -> Any:
    if new is object.__new__ or issubclass(cls, (dict, list, set)):
        return new(cls)
    return vm.native(new, (cls, *args), kwargs)


def _construct_native(vm: VM, cls: type, args: _Args, kwargs: _Kwargs) -> Any:
    if issubclass(cls, CONTAINER_BASES) and args:
        args = [vm.iterable(args[0]), *args[1:]]
    if issubclass(cls, BaseException) or issubclass(cls, CONTAINER_BASES) or issubclass(cls, tuple):
        return vm.native(cls, args, kwargs)
    if issubclass(cls, torch.Tensor) and cls is not torch.Tensor:
        raise Unsupported(Reason(TENSOR_SUBCLASS, cls.__qualname__))
    refused = refusal(cls.__new__) if cls.__new__ is not object.__new__ else None
    if refused is not None:
        raise Unsupported(Reason(*refused))
    return run_native(vm, cls, args, kwargs)


def call_method_wrapper(vm: VM, fn: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """`x.__add__` of a C class, bound."""
    vm.frames.tail = None
    handler = BUILTINS.get(getattr(fn.__objclass__, fn.__name__, None))
    if handler is not None:
        return handler(vm, (fn.__self__, *args), kwargs)
    if fn.__name__ in ("__set__", "__delete__") and args and type(args[0]) is FakeTensor:
        return attributes.store_attr(vm, args[0], fn.__self__.__name__, *args[1:])
    return call_bound(vm, fn.__name__, fn, fn.__self__, args, kwargs)


CALLERS: dict[type, Callable[..., Any]] = {
    FunctionType: call_function,
    MethodType: call_method,
    types.BuiltinFunctionType: call_builtin,
    types.MethodDescriptorType: call_descriptor,
    types.WrapperDescriptorType: call_descriptor,
    types.ClassMethodDescriptorType: call_descriptor,
    types.MethodWrapperType: call_method_wrapper,
    type(re.compile("").match): call_builtin,
    functools.partial: call_partial,
    _lru_cache: call_lru_cached,
    type: construct,
    torch._ops.OpOverloadPacket: call_torch_operator,
    torch._ops.OpOverload: call_torch_operator,
    operator.attrgetter: call_getter,
    operator.itemgetter: call_getter,
}


# ------------------------------------------------------------ what native code is given


def native_callable(vm: VM, fn: Any) -> Callable[..., object]:
    """`fn` as native code may call it."""
    if type(fn) is BuiltinType:
        return VMCallable(vm, fn) if has_effects(fn) else fn
    return VMCallable(vm, fn) if _is_python(vm, fn) else fn


def native_argument(vm: VM, value: Any) -> Any:
    """An argument of a native function: Python callables come back to the VM. Raises Unsupported for an outside
    object of C that holds data (an array, a buffer): what native code reads from it could not be guarded."""
    kind = type(value)
    if kind in (FunctionType, MethodType):
        return VMCallable(vm, value) if _is_python(vm, value) else value
    if kind is functools.partial or (kind is BuiltinType and has_effects(value)):
        return VMCallable(vm, value)
    vm.outside.facts.use_content(value)
    if id(value) in vm.outside.origins and is_opaque(value):
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, f"native code reads an outside {kind.__qualname__}"))
    return value


def _is_python(vm: VM, fn: Any) -> bool:
    kind = type(fn)
    if kind is FunctionType:
        return fn in FUNCTIONS or fn in REFUSED or not is_native_module(fn.__globals__.get("__name__"))
    if kind is MethodType:
        return _is_python(vm, fn.__func__)
    if kind is functools.partial:
        return True
    vm.outside.facts.use_content(fn)
    if isinstance(fn, type):
        return type(fn) is type and vm.type_info(fn).find("__init__")[0] is FUNCTION and fn not in BUILTINS
    return vm.type_info(kind).find("__call__")[0] is FUNCTION
