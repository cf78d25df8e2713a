"""What the VM does for builtins, C methods and library functions that read objects or call Python back.

Three tables: `BUILTINS` by C callable, `METHODS` by (builtin base class, method name), `FUNCTIONS` by Python function. A
handler takes `(vm, args, kwargs)` and returns the result; what it read from outside is guarded when it returns.
"""

from __future__ import annotations

import builtins
import collections
import contextvars
import copy
import functools
import inspect
import itertools
import logging
import operator
import sys
import types
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn

from smelt.capture import attributes, calls, polyfills
from smelt.capture.attributes import python_method
from smelt.capture.frames import Generator
from smelt.capture.values import (
    CONTAINER_BASES,
    LEAF_TYPES,
    MISSING,
    FunctionType,
    MethodType,
    instance_dict,
    is_constant,
    is_identity,
)
from smelt.errors import Unsupported
from smelt.reasons import NEEDS_AUTOGRAD, SIDE_EFFECT_IO, UNSUPPORTED_CALL, UNSUPPORTED_OBJECT, Reason
from smelt.trace.fake import FakeTensor

Handler = Callable[..., Any]
BUILTINS: dict[Any, Handler] = {}
METHODS: dict[tuple[type, str], Handler] = {}
FUNCTIONS: dict[Any, Handler] = {}


def _in(table: dict[Any, Handler], *keys: Any) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        for key in keys:
            table[key] = handler
        return handler

    return add


def builtin(*callables: Any) -> Callable[[Handler], Handler]:
    return _in(BUILTINS, *callables)


def function(*functions: Any) -> Callable[[Handler], Handler]:
    return _in(FUNCTIONS, *functions)


def method(base: type, *names: str) -> Callable[[Handler], Handler]:
    return _in(METHODS, *((base, n) for n in names))


def unsupported(detail: str, kind: Any = UNSUPPORTED_CALL) -> Unsupported:
    return Unsupported(Reason(kind, detail))


# --------------------------------------------------------------------------------------------- types, identity


@builtin(isinstance)
def _isinstance(vm: Any, args: Any, kwargs: Any) -> bool:
    obj, classes = args
    if type(obj) is Generator:
        obj = _REAL_GENERATOR
    elif type(obj) is VMCallable:
        obj = obj.function
    return isinstance(obj, classes)


_REAL_GENERATOR = (_ for _ in ())


@builtin(type)
def _type(vm: Any, args: Any, kwargs: Any) -> Any:
    if len(args) == 1:
        return vm.class_of(args[0])
    made = type(*args, **kwargs)
    vm.outside.forget_class(made)
    return made


@builtin(super)
def _super(vm: Any, args: Any, kwargs: Any) -> Any:
    if args:
        return super(*args)
    frame = vm.frame
    code = frame.code
    cell = frame.locals[code.nlocals - code.nfree + code.free_names.index("__class__")]
    first = frame.locals[0]
    if type(first) is types.CellType:
        first = first.cell_contents
    return super(cell.cell_contents, first)


@builtin(callable)
def _callable(vm: Any, args: Any, kwargs: Any) -> bool:
    return callable(args[0])


@builtin(id)
def _id(vm: Any, args: Any, kwargs: Any) -> int:
    return id(args[0])


@builtin(builtins.__build_class__)
def _build_class(vm: Any, args: Any, kwargs: Any) -> Any:
    body, name, *bases = args
    if "metaclass" in kwargs or any(type(b) is not type for b in bases if isinstance(b, type)):
        if not all(type(b) in (type, type(nn.Module)) for b in bases):
            raise unsupported(f"class {name} with a metaclass", UNSUPPORTED_OBJECT)
    written = tuple(bases)
    bases = tuple(types.resolve_bases(bases))
    meta, namespace, kwds = types.prepare_class(name, bases, dict(kwargs))
    cell = vm.run_class_body(body, namespace)
    if bases != written:
        namespace["__orig_bases__"] = written
    made = meta(name, bases, namespace, **kwds)
    if isinstance(cell, types.CellType):
        cell.cell_contents = made
    vm.outside.forget_class(made)
    return made


# ------------------------------------------------------------------------------------------------- attributes


@builtin(getattr)
def _getattr(vm: Any, args: Any, kwargs: Any) -> Any:
    if len(args) == 2:
        return attributes.load_attr(vm, *args)
    obj, name, default = args
    return attributes.load_default(vm, obj, name, default)


@builtin(hasattr)
def _hasattr(vm: Any, args: Any, kwargs: Any) -> bool:
    obj, name = args
    return attributes.load_default(vm, obj, name, MISSING) is not MISSING


@builtin(setattr)
def _setattr(vm: Any, args: Any, kwargs: Any) -> None:
    attributes.store_attr(vm, *args)


@builtin(delattr)
def _delattr(vm: Any, args: Any, kwargs: Any) -> None:
    attributes.delete_attr(vm, *args)


@builtin(object.__getattribute__)
def _object_getattribute(vm: Any, args: Any, kwargs: Any) -> Any:
    obj, name = args
    return attributes.load_generic(vm, obj, name, use_getattr=False)


@builtin(object.__setattr__)
def _object_setattr(vm: Any, args: Any, kwargs: Any) -> None:
    attributes.store_generic(vm, *args)


@builtin(object.__delattr__)
def _object_delattr(vm: Any, args: Any, kwargs: Any) -> None:
    obj, name = args
    vm.outside.touch(obj)
    vm.outside.attributes.pop(id(obj), None)
    object.__delattr__(obj, name)


@builtin(object.__init__, object.__init_subclass__)
def _object_init(vm: Any, args: Any, kwargs: Any) -> None:
    return None


@function(nn.Module.__getattr__)
def _module_getattr(vm: Any, args: Any, kwargs: Any) -> Any:
    obj, name = args
    return attributes._module_entry(vm, obj, name, instance_dict(obj) or {})


@function(nn.Module.__setattr__)
def _module_setattr(vm: Any, args: Any, kwargs: Any) -> None:
    attributes._store_in_module(vm, *args)


@builtin(vars)
def _vars(vm: Any, args: Any, kwargs: Any) -> Any:
    if not args:
        return vm.local_names(vm.frame)
    return attributes.load_attr(vm, args[0], "__dict__")


@builtin(locals)
def _locals(vm: Any, args: Any, kwargs: Any) -> Any:
    return vm.local_names(vm.frame)


@builtin(dir)
def _dir(vm: Any, args: Any, kwargs: Any) -> Any:
    if not args:
        return sorted(vm.local_names(vm.frame))
    if id(args[0]) in vm.outside.origins and not isinstance(args[0], (type, types.ModuleType)):
        raise unsupported("dir() of an outside object")
    return dir(args[0])


# -------------------------------------------------------------------------------------------------- containers


@builtin(len)
def _len(vm: Any, args: Any, kwargs: Any) -> int:
    (obj,) = args
    if type(obj) is FakeTensor:
        if not obj.spec.shape:
            raise TypeError("len() of a 0-d tensor")
        return attributes.shape_of(obj)[0]
    found = python_method(vm, obj, "__len__")
    if found is not None:
        return vm.call_function(found, (obj,))
    return container_len(vm, obj)


def container_len(vm: Any, obj: Any) -> int:
    outside = vm.outside
    if isinstance(obj, CONTAINER_BASES) and id(obj) in outside.origins and obj not in outside.log:
        outside.guard("len", outside.origins[id(obj)], len(obj))
    return len(obj)


@builtin(iter)
def _iter(vm: Any, args: Any, kwargs: Any) -> Any:
    if len(args) == 2:
        return iter(VMCallable(vm, args[0]), args[1])
    return vm.get_iter(args[0])


@builtin(next)
def _next(vm: Any, args: Any, kwargs: Any) -> Any:
    try:
        return vm.next(args[0])
    except StopIteration:
        if len(args) > 1:
            return args[1]
        raise


def _from_iterable(make: Any) -> Handler:
    def handler(vm: Any, args: Any, kwargs: Any) -> Any:
        if not args:
            return make(**kwargs)
        return make(vm.elements(args[0]), *args[1:], **kwargs)

    return handler


_make: Any
for _make in (
    tuple,
    list,
    set,
    frozenset,
    collections.deque,
    enumerate,
    all,
    any,
    sum,
    torch.Size,
    itertools.chain.from_iterable,
):
    BUILTINS[_make] = _from_iterable(_make)


def _quantifier(stop: bool) -> Handler:
    def handler(vm: Any, args: Any, kwargs: Any) -> bool:
        for value in vm.elements(args[0]):
            if vm.truth(value) is stop:
                return stop
        return not stop

    return handler


BUILTINS[all] = _quantifier(False)
BUILTINS[any] = _quantifier(True)


@builtin(sum)
def _sum(vm: Any, args: Any, kwargs: Any) -> Any:
    total = kwargs.get("start", args[1] if len(args) > 1 else 0)
    for value in vm.elements(args[0]):
        total = vm.binary(operator.add, total, value)
    return total


@builtin(reversed)
def _reversed(vm: Any, args: Any, kwargs: Any) -> Any:
    (obj,) = args
    found = python_method(vm, obj, "__reversed__")
    if found is not None:
        return vm.call_function(found, (obj,))
    if python_method(vm, obj, "__getitem__") is not None:
        return vm.call(polyfills.reversed_sequence, (obj,), {})
    return reversed(vm.iterable(obj))


@builtin(zip)
def _zip(vm: Any, args: Any, kwargs: Any) -> Any:
    return zip(*[vm.iterable(a) for a in args], **kwargs)


@builtin(map)
def _map(vm: Any, args: Any, kwargs: Any) -> Any:
    fn, *rest = args
    return map(vm.native_callable(fn), *[vm.iterable(a) for a in rest])


@builtin(filter)
def _filter(vm: Any, args: Any, kwargs: Any) -> Any:
    fn, values = args
    return filter(None if fn is None else vm.native_callable(fn), vm.iterable(values))


@builtin(sorted)
def _sorted(vm: Any, args: Any, kwargs: Any) -> Any:
    kwargs = {k: vm.native_argument(v) for k, v in kwargs.items()}
    return sorted(vm.elements(args[0]), **kwargs)


def _extreme(choose: Any) -> Handler:
    def handler(vm: Any, args: Any, kwargs: Any) -> Any:
        kwargs = {k: vm.native_argument(v) for k, v in kwargs.items()}
        if len(args) == 1:
            return choose(vm.elements(args[0]), **kwargs)
        return choose(*args, **kwargs)

    return handler


BUILTINS[min] = _extreme(min)
BUILTINS[max] = _extreme(max)


@builtin(functools.reduce)
def _reduce(vm: Any, args: Any, kwargs: Any) -> Any:
    fn, values, *rest = args
    return functools.reduce(vm.native_callable(fn), vm.elements(values), *rest)


def _dict_maker(make: Any) -> Handler:
    def handler(vm: Any, args: Any, kwargs: Any) -> Any:
        return make(*[mapping_or_pairs(vm, a) for a in args], **kwargs)

    return handler


BUILTINS[dict] = _dict_maker(dict)
BUILTINS[collections.OrderedDict] = _dict_maker(collections.OrderedDict)


@builtin(collections.Counter)
def _counter(vm: Any, args: Any, kwargs: Any) -> Any:
    return collections.Counter(
        *[mapping(vm, a) if isinstance(a, dict) else vm.elements(a) for a in args], **kwargs
    )


@builtin(collections.defaultdict)
def _defaultdict(vm: Any, args: Any, kwargs: Any) -> Any:
    factory, *rest = args if args else (None,)
    if factory is not None and factory not in (list, dict, set, int, float, tuple, str, bool):
        factory = vm.native_callable(factory)
    return collections.defaultdict(factory, *[mapping_or_pairs(vm, a) for a in rest], **kwargs)


def mapping_or_pairs(vm: Any, obj: Any) -> Any:
    if isinstance(obj, dict):
        return mapping(vm, obj)
    if python_method(vm, obj, "keys") is not None:
        return mapping(vm, obj)
    return [tuple(vm.iterable(pair)) if not isinstance(pair, tuple) else pair for pair in vm.elements(obj)]


def mapping(vm: Any, obj: Any) -> Any:
    """What `**obj` or `dict.update(obj)` reads, as a dictionary."""
    if isinstance(obj, dict) and python_method(vm, obj, "keys") is None:
        return vm.outside.view(obj, deep=False)
    keys = vm.elements(vm.call(attributes.load_attr(vm, obj, "keys"), (), {}))
    return {k: vm.subscript(obj, k) for k in keys}


# ------------------------------------------------------------------------------------ methods of containers


def _known_key(vm: Any, obj: Any, key: Any) -> bool:
    """Whether a read of `obj[key]` can be guarded alone."""
    outside = vm.outside
    return id(obj) in outside.origins and obj not in outside.log and (is_constant(key) or is_identity(key))


@method(dict, "get")
def _dict_get(vm: Any, obj: Any, key: Any, default: Any = None) -> Any:
    if _known_key(vm, obj, key):
        present = dict.__contains__(obj, key)
        vm.outside.guard("contains", vm.outside.origins[id(obj)], (key, present), key=key)
        return vm.outside.item(obj, key, dict.__getitem__(obj, key)) if present else default
    found = dict.get(obj, key, MISSING)
    if found is MISSING:
        return default
    return vm.item_value(obj, key, found)


@method(dict, "__contains__")
def _dict_contains(vm: Any, obj: Any, key: Any) -> bool:
    return contains_key(vm, obj, key)


def contains_key(vm: Any, obj: Any, key: Any) -> bool:
    present = dict.__contains__(obj, key)
    if _known_key(vm, obj, key):
        vm.outside.guard("contains", vm.outside.origins[id(obj)], (key, present), key=key)
    return present


@method(dict, "setdefault")
def _dict_setdefault(vm: Any, obj: Any, key: Any, default: Any = None) -> Any:
    if contains_key(vm, obj, key):
        return vm.item_value(obj, key, dict.__getitem__(obj, key))
    vm.outside.touch(obj)
    return dict.setdefault(obj, key, default)


@method(dict, "pop")
def _dict_pop(vm: Any, obj: Any, key: Any, *default: Any) -> Any:
    if not contains_key(vm, obj, key):
        if default:
            return default[0]
        raise KeyError(key)
    value = vm.item_value(obj, key, dict.__getitem__(obj, key))
    vm.outside.touch(obj)
    type(obj).pop(obj, key)
    return value


@method(dict, "__getitem__")
def _dict_getitem(vm: Any, obj: Any, key: Any) -> Any:
    return vm.item_value(obj, key, dict.__getitem__(obj, key))


@method(dict, "__setitem__")
def _dict_setitem(vm: Any, obj: Any, key: Any, value: Any) -> None:
    vm.outside.touch(obj)
    if isinstance(obj, collections.OrderedDict):
        collections.OrderedDict.__setitem__(obj, key, value)
    else:
        dict.__setitem__(obj, key, value)


@method(list, "__getitem__")
def _list_getitem(vm: Any, obj: Any, key: Any) -> Any:
    if isinstance(key, slice) and id(obj) in vm.outside.origins:
        return list.__getitem__(vm.outside.open(obj), key)
    return vm.item_value(obj, key, list.__getitem__(obj, key))


@method(list, "__len__")
def _list_len(vm: Any, obj: Any) -> int:
    return container_len(vm, obj)


METHODS[dict, "__len__"] = METHODS[set, "__len__"] = _list_len


@method(list, "append")
def _list_append(vm: Any, obj: Any, value: Any) -> None:
    vm.outside.touch(obj)
    list.append(obj, value)


@builtin(dict.fromkeys)
def _dict_fromkeys(vm: Any, args: Any, kwargs: Any) -> Any:
    return dict.fromkeys(vm.elements(args[0]), *args[1:])


# ------------------------------------------------------------------------------------------ text and numbers


def _unary_protocol(fn: Any, name: str, fallbacks: tuple[str, ...] = ()) -> None:
    """A builtin that calls one special method: interpreted if it is written in Python."""

    def handler(vm: Any, args: Any, kwargs: Any) -> Any:
        for candidate in (name, *fallbacks):
            found = python_method(vm, args[0], candidate) if args else None
            if found is not None:
                return vm.call_function(found, tuple(args), kwargs)
        return fn(*[vm.outside.view(a) for a in args], **kwargs)

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


@builtin(bool)
def _bool(vm: Any, args: Any, kwargs: Any) -> bool:
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
    "iadd",
    "isub",
    "imul",
]:
    BUILTINS[getattr(operator, _name)] = _operator(getattr(operator, _name))
BUILTINS[operator.getitem] = lambda vm, args, kwargs: vm.subscript(*args)
BUILTINS[operator.contains] = lambda vm, args, kwargs: vm.contains(args[1], args[0])
BUILTINS[operator.is_] = lambda vm, args, kwargs: vm.same(*args)
BUILTINS[operator.truth] = lambda vm, args, kwargs: vm.truth(args[0])
BUILTINS[operator.not_] = lambda vm, args, kwargs: not vm.truth(args[0])


# ------------------------------------------------------------------------------------ Python called by C code


class VMCallable:
    """A Python callable handed to native code: calling it comes back to the VM."""

    __slots__ = ("function", "vm")

    def __init__(self, vm: Any, fn: Any) -> None:
        self.vm = vm
        self.function = fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.vm.call(self.function, args, kwargs)


@builtin(functools.partial)
def _partial(vm: Any, args: Any, kwargs: Any) -> Any:
    return functools.partial(*args, **kwargs)


def _with_callbacks(make: Any) -> Handler:
    def handler(vm: Any, args: Any, kwargs: Any) -> Any:
        args = [vm.native_argument(a) if callable(a) else vm.iterable(a) for a in args]
        return make(*args, **{k: vm.native_argument(v) for k, v in kwargs.items()})

    return handler


for _make in (
    itertools.accumulate, itertools.starmap,
    itertools.takewhile, itertools.dropwhile, itertools.filterfalse, itertools.groupby,
):  # fmt: skip
    BUILTINS[_make] = _with_callbacks(_make)


def _over_iterables(make: Any) -> Handler:
    def handler(vm: Any, args: Any, kwargs: Any) -> Any:
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


# --------------------------------------------------------------------------------------- interpreter state


@builtin(sys.exc_info)
def _exc_info(vm: Any, args: Any, kwargs: Any) -> Any:
    error = vm.handled_exception()
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


@builtin(sys._getframe)
def _getframe(vm: Any, args: Any, kwargs: Any) -> Any:
    raise unsupported("sys._getframe")


@builtin(contextvars.ContextVar.get)
def _context_get(vm: Any, args: Any, kwargs: Any) -> Any:
    return context_get(vm, *args)


@method(contextvars.ContextVar, "get")
def context_get(vm: Any, variable: Any, *default: Any) -> Any:
    if id(variable) in vm.context_values:
        return vm.context_values[id(variable)]
    value = variable.get(*default)
    reader = variable.get
    vm.outside._keep.append(reader)
    if not default or variable.get(*default) is not default[0]:
        origin = vm.outside.const(reader).child("call", "get")
        return vm.outside.wrap(value, origin)
    return value


@method(contextvars.ContextVar, "set")
def _context_set(vm: Any, variable: Any, value: Any) -> Any:
    token = variable.set(value)
    vm.context_tokens.append((variable, token))
    vm.context_values[id(variable)] = value
    return token


@method(contextvars.ContextVar, "reset")
def _context_reset(vm: Any, variable: Any, token: Any) -> None:
    variable.reset(token)
    vm.context_tokens[:] = [(v, t) for v, t in vm.context_tokens if t is not token]
    vm.context_values.pop(id(variable), None)
    if any(v is variable for v, _ in vm.context_tokens):
        vm.context_values[id(variable)] = variable.get()


# ------------------------------------------------------------------------------------------- warnings, logs


@builtin(warnings.warn)
@function(warnings.warn)
def _warn(vm: Any, args: Any, kwargs: Any) -> None:
    """A warning that is shown at most once per place is shown now, once; one shown at every call cannot be captured."""
    call = inspect.signature(_warn_signature).bind(*args, **kwargs)
    call.apply_defaults()
    message, category, level = (
        call.arguments["message"],
        call.arguments["category"],
        call.arguments["stacklevel"],
    )
    category = type(message) if isinstance(message, Warning) else category or UserWarning
    frame = vm.frame_at(level)
    name, filename, line = frame.globals.get("__name__", "<string>"), frame.line.filename, frame.line.line
    action = _warning_action(str(message), category, name, line)
    if action == "ignore":
        return
    if action == "error":
        raise message if isinstance(message, Warning) else category(message)
    if action == "always" or action == "all":
        raise unsupported("warnings.warn with the filter 'always'", SIDE_EFFECT_IO)
    registry = frame.globals.setdefault("__warningregistry__", {})
    with vm.trace.paused():
        warnings.warn_explicit(message, category, filename, line, module=name, registry=registry)


def _warn_signature(
    message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **more: Any
) -> None: ...


def _warning_action(text: str, category: type, module: str, line: int) -> str:
    for action, pattern, kind, where, at in warnings.filters:
        matches = (pattern is None or pattern.match(text)) and issubclass(category, kind)
        if matches and (where is None or where.match(module)) and (at == 0 or at == line):
            return action
    return "default"


def _log(level: int | None) -> Handler:
    def handler(vm: Any, args: Any, kwargs: Any) -> None:
        logger = args[0]
        wanted = args[1] if level is None else level
        if logger.isEnabledFor(wanted):
            raise unsupported(f"logging to {logger.name}", SIDE_EFFECT_IO)

    return handler


for _name, _level in (
    ("debug", logging.DEBUG), ("info", logging.INFO), ("warning", logging.WARNING), ("warn", logging.WARNING),
    ("error", logging.ERROR), ("exception", logging.ERROR), ("critical", logging.CRITICAL), ("log", None),
):  # fmt: skip
    _found = getattr(logging.Logger, _name, None)
    if _found is not None:
        FUNCTIONS[_found] = _log(_level)


FUNCTIONS[logging.Logger.isEnabledFor] = lambda vm, args, kwargs: logging.Logger.isEnabledFor(*args)
FUNCTIONS[logging.Logger.getEffectiveLevel] = lambda vm, args, kwargs: logging.Logger.getEffectiveLevel(*args)


# --------------------------------------------------------------------------------------------------- torch


def _constantly(value: Any) -> Handler:
    return lambda vm, args, kwargs: value


for _found in (torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling):
    FUNCTIONS[_found] = _constantly(True)
_jit: Any = torch.jit
for _found in (torch.compiler.is_exporting, _jit.is_scripting, _jit.is_tracing):
    FUNCTIONS[_found] = BUILTINS[_found] = _constantly(False)
BUILTINS[torch._C._get_tracing_state] = _constantly(None)
BUILTINS[torch._C._is_tracing] = _constantly(False)


@builtin(nn.Parameter)
def _parameter(vm: Any, args: Any, kwargs: Any) -> Any:
    data = kwargs.get("data", args[0] if args else None)
    requires_grad = kwargs.get("requires_grad", args[1] if len(args) > 1 else True)
    if type(data) is not FakeTensor:
        raise unsupported("nn.Parameter of something that is not a tensor", UNSUPPORTED_OBJECT)
    made = data.detach().requires_grad_(requires_grad)
    made._is_param = True
    return made


@builtin(nn.parameter.Buffer)
def _buffer(vm: Any, args: Any, kwargs: Any) -> Any:
    raise unsupported("nn.Buffer", UNSUPPORTED_OBJECT)


def _tensor_size(vm: Any, tensor: FakeTensor, dim: Any = None) -> Any:
    shape = attributes.shape_of(tensor)
    return shape if dim is None else shape[dim]


TENSOR_METHODS: dict[str, Handler] = {
    "size": _tensor_size,
    "dim": lambda vm, t: len(t.spec.shape),
    "ndimension": lambda vm, t: len(t.spec.shape),
    "numel": lambda vm, t: attributes.shape_of(t).numel(),
    "stride": lambda vm, t, dim=None: t.spec.stride if dim is None else t.spec.stride[dim],
    "is_floating_point": lambda vm, t: t.spec.dtype.is_floating_point,
    "is_complex": lambda vm, t: t.spec.dtype.is_complex,
    "element_size": lambda vm, t: t.spec.dtype.itemsize,
    "get_device": lambda vm, t: -1 if t.spec.device.type == "cpu" else t.spec.device.index,
}


@function(torch.utils.checkpoint.checkpoint)
def _checkpoint(vm: Any, args: Any, kwargs: Any) -> Any:
    """Without gradients there is nothing to recompute."""
    if torch.is_grad_enabled():
        raise unsupported("torch.utils.checkpoint with gradients enabled", NEEDS_AUTOGRAD)
    own = ("use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state", "early_stop")
    return vm.call(args[0], args[1:], {k: v for k, v in kwargs.items() if k not in own})


@function(vars(torch.autograd.Function)["apply"].__func__)
def _autograd_function(vm: Any, args: Any, kwargs: Any) -> Any:
    cls, *rest = args
    if torch.is_grad_enabled():
        raise unsupported(f"torch.autograd.Function {cls.__name__} with gradients enabled", NEEDS_AUTOGRAD)
    forward = attributes.load_attr(vm, cls, "forward")
    if vm.type_info(cls).find("setup_context")[2] not in torch.autograd.Function.__mro__:
        return vm.call(forward, rest, kwargs)  # the context is set up for the backward only
    return vm.call(polyfills.apply_function, (forward, tuple(rest), kwargs), {})


@function(torch.Tensor.__iter__)
def _tensor_iter(vm: Any, args: Any, kwargs: Any) -> Any:
    return iter(args[0].unbind(0))


# ------------------------------------------------------------------------------------- the standard library


@function(copy.deepcopy)
def _deepcopy(vm: Any, args: Any, kwargs: Any) -> Any:
    memo = kwargs.get("memo", args[1] if len(args) > 1 else None)
    return deep_copy(vm, args[0], {} if memo is None else memo)


def deep_copy(vm: Any, obj: Any, memo: dict[int, Any]) -> Any:
    if type(obj) in LEAF_TYPES or is_identity(obj):
        return obj
    if id(obj) in memo:
        return memo[id(obj)]
    if type(obj) is FakeTensor:
        made = memo[id(obj)] = obj.detach().clone()
        if getattr(obj, "_is_param", False):
            made._is_param = True
        return made.requires_grad_(obj.requires_grad) if obj.requires_grad else made
    if isinstance(obj, tuple) and python_method(vm, obj, "__deepcopy__") is None:
        items = [deep_copy(vm, v, memo) for v in obj]
        return obj if all(a is b for a, b in zip(items, obj)) else tuple.__new__(type(obj), items)
    custom = python_method(vm, obj, "__deepcopy__")
    if custom is not None:
        made = memo[id(obj)] = vm.call_function(custom, (obj, memo))
        return made
    return _copy_instance(vm, obj, memo, lambda v: deep_copy(vm, v, memo))


def _copy_instance(vm: Any, obj: Any, memo: dict[int, Any], part: Callable[[Any], Any]) -> Any:
    cls = type(obj)
    for name in (
        "__reduce__",
        "__reduce_ex__",
        "__getstate__",
        "__setstate__",
        "__getnewargs__",
        "__getnewargs_ex__",
    ):
        if vm.type_info(cls).find(name)[2] not in (
            None,
            object,
            *CONTAINER_BASES,
            collections.OrderedDict,
            collections.defaultdict,
        ):
            raise unsupported(f"copying a {cls.__qualname__}")
    is_container = isinstance(obj, CONTAINER_BASES)
    new: Any = cls.__new__
    if not is_container and new is not object.__new__:
        raise unsupported(f"copying a {cls.__qualname__}")
    made = memo[id(obj)] = _empty_like(obj, cls)
    if isinstance(obj, dict):
        base = collections.OrderedDict if isinstance(obj, collections.OrderedDict) else dict
        for key, value in dict.items(mapping(vm, obj)):
            base.__setitem__(made, part(key), part(value))
    elif isinstance(obj, set):
        made.update(part(v) for v in vm.elements(obj))
    elif is_container:
        made.extend(part(v) for v in vm.elements(obj))
    for name in list(instance_dict(obj) or ()):
        object.__setattr__(
            made, name, part(attributes._instance_value(vm, obj, name, (instance_dict(obj) or {})[name]))
        )
    for name in _slots(cls):
        value = getattr(obj, name, MISSING)
        if value is not MISSING:
            object.__setattr__(made, name, part(attributes.load_generic(vm, obj, name)))
    if instance_dict(obj) is not None and id(obj) in vm.outside.origins and obj not in vm.outside.log:
        own = vm.outside.own_dict(obj, instance_dict(obj))  # type: ignore[arg-type]
        vm.outside.guard("len", vm.outside.origins[id(own)], len(own))
    return made


def _slots(cls: type) -> Iterable[str]:
    return [
        n
        for b in cls.__mro__
        for n, v in b.__dict__.items()
        if type(v) is types.MemberDescriptorType and b.__flags__ & 512
    ]


def _empty_like(obj: Any, cls: Any) -> Any:
    if isinstance(obj, collections.defaultdict):
        return cls.__new__(cls) if cls is not collections.defaultdict else cls(obj.default_factory)
    if isinstance(obj, collections.deque):
        return cls([], obj.maxlen)
    return cls.__new__(cls)


@function(copy.copy)
def _copy(vm: Any, args: Any, kwargs: Any) -> Any:
    (obj,) = args
    if type(obj) in LEAF_TYPES or is_identity(obj) or isinstance(obj, tuple):
        return obj
    custom = python_method(vm, obj, "__copy__")
    if custom is not None:
        return vm.call_function(custom, (obj,))
    if type(obj) is FakeTensor:
        raise unsupported("copy.copy of a tensor")
    return _copy_instance(vm, obj, {}, lambda v: v)


@function(inspect.signature)
def _signature(vm: Any, args: Any, kwargs: Any) -> Any:
    target = args[0].function if type(args[0]) is VMCallable else args[0]
    if isinstance(target, (FunctionType, MethodType)):
        vm.outside.use_function(target.__func__ if isinstance(target, MethodType) else target)
    return inspect.signature(target, *args[1:], **kwargs)


@function(functools.update_wrapper)
def _update_wrapper(vm: Any, args: Any, kwargs: Any) -> Any:
    if id(args[0]) in vm.outside.origins:
        return calls.interpret(vm, functools.update_wrapper, args, kwargs)
    return functools.update_wrapper(*args, **kwargs)
