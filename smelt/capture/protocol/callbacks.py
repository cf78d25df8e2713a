"""Windows: native calls during which Python functions that C code starts come back to the VM.

Containers, `repr`, `sorted` or `isinstance` call special methods of the user's classes. `native` finds out whether a call
may do so, from the types of what it is given, and then makes it inside a window of the frame hook: `called_back` gets every
Python function that native code starts, and has the VM interpret it. Calls on tensors, numbers and strings alone, which is
nearly all, are made directly.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from smelt import _native
from smelt.capture.base.frames import Generator, VMCallable
from smelt.capture.base.native_functions import REFUSED, is_native_module, runs_natively
from smelt.capture.base.values import LEAF_TYPES, MISSING, FunctionType, MethodType, items_of
from smelt.capture.protocol import symbolic_numbers
from smelt.capture.standins.arrays import hidden_refusal
from smelt.capture.standins.texts import Text, Unreadable
from smelt.errors import Unsupported
from smelt.reasons import DATA_DEPENDENT, UNSUPPORTED_CALL, UNSUPPORTED_EFFECT, Reason
from smelt.trace.fake import FakeTensor
from smelt.trace.symbols import NUMBERS, own, plain_parts

_HEAP_TYPE = 1 << 9
_DEPTH = 4  # how many containers deep the user's objects are looked for
_Parts = Callable[[Any], Iterable[Any]]

# What native code may reach from an object of a C type.
_PARTS: tuple[tuple[type, _Parts], ...] = (
    (dict, lambda x: (part for pair in items_of(x) for part in pair)),
    (list, list.__iter__),
    (tuple, tuple.__iter__),
    (set, set.__iter__),
    (frozenset, frozenset.__iter__),
    (collections.deque, collections.deque.__iter__),
    (types.MappingProxyType, lambda x: (part for pair in x.items() for part in pair)),
    (type({}.keys()), list),
    (type({}.values()), list),
    (type({}.items()), list),
    (type(collections.OrderedDict().keys()), list),
    (type(collections.OrderedDict().values()), list),
    (type(collections.OrderedDict().items()), list),
    (slice, lambda x: (x.start, x.stop, x.step)),
    (functools.partial, lambda x: (x.func, *x.args, *x.keywords.values())),
    (MethodType, lambda x: (x.__func__, x.__self__)),
    (types.BuiltinFunctionType, lambda x: (x.__self__,)),
    (types.MethodWrapperType, lambda x: (x.__self__,)),
    (types.SimpleNamespace, lambda x: vars(x).values()),
    (BaseException, lambda x: x.args),
)
_NEVER: tuple[type, ...] = (
    torch.Tensor,
    types.ModuleType,
    types.CodeType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
_PLAIN = {
    **dict.fromkeys(LEAF_TYPES - {slice}, False),
    FakeTensor: False,
    Text: True,  # so that `in_window` refuses it
    Generator: False,
    VMCallable: False,
    **dict.fromkeys(NUMBERS, False),
}
# Iterators that only hand out what they walk over.
_PLAIN_ITERABLES: tuple[Any, ...] = (
    [],
    (),
    {},
    {}.values(),
    {}.items(),
    set(),
    "",
    b"",
    range(0),
    range(1 << 70),
)
PLAIN_ITERATORS: frozenset[type] = frozenset(
    type(iter(x)) for x in (*_PLAIN_ITERABLES, reversed([]), reversed({}))
)


def _function_calls_back(function: Any) -> bool:
    return not runs_natively(function)


class Kinds(dict[type, Any]):
    """By class: False (never runs Python code), True (does), or what to look at in an instance. A fresh table for one
    capture: classes may change between captures. That a class is what it is found to be is guarded."""

    def __init__(self, use_class: Callable[[type], None]) -> None:
        super().__init__(_PLAIN)
        self.use_class = use_class

    def __missing__(self, kind: type) -> Any:
        self.use_class(kind)
        how = self[kind] = _classify(kind)
        return how


def calls_back(kinds: Kinds, value: Any, depth: int = _DEPTH) -> bool:
    """Whether native code that is given `value` may start Python code of the user through it."""
    kind = type(value)
    how = kinds[kind]
    if how is False or how is True:
        return bool(how)
    if how is _function_calls_back:
        return _function_calls_back(value)
    # A list: each class is guarded.
    return depth > 0 and any([calls_back(kinds, part, depth - 1) for part in how(value)])  # noqa: C419


def _classify(kind: type) -> Any:
    if issubclass(kind, _NEVER):
        return False
    if kind is FunctionType:
        return _function_calls_back
    if any(_is_python_class(base) for base in kind.__mro__) or "__next__" in kind.__dict__:
        return kind not in PLAIN_ITERATORS
    if kind is functools._lru_cache_wrapper:
        return True
    return next((parts for base, parts in _PARTS if issubclass(kind, base)), False)


def _is_python_class(cls: type) -> bool:
    """Whether a class holds Python code that the VM interprets."""
    if not cls.__flags__ & _HEAP_TYPE or is_native_module(cls.__module__):
        return any(type(v) is FunctionType and not runs_natively(v) for v in cls.__dict__.values())
    return any(_is_python_member(v) for v in cls.__dict__.values())


def _is_python_member(value: Any) -> bool:
    kind = type(value)
    if kind is FunctionType:
        return not runs_natively(value)
    if kind in (property, classmethod, staticmethod, functools.cached_property):
        return True
    return bool(kind.__flags__ & _HEAP_TYPE) and any(
        n in base.__dict__ for n in ("__get__", "__call__") for base in kind.__mro__
    )


# ------------------------------------------------------------------------------------------------------ calls


def native(vm: Any, fn: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> Any:
    """`fn(*args, **kwargs)` for a function of C, or a Python function that runs natively.

    Raises what it raises, and Unsupported where Python code that it called could not be captured, whatever the
    native code made of that error."""
    if vm.trace.numbers.symbols is not None:
        result = symbolic_numbers.native_call(fn, args, kwargs)
        if result is not NotImplemented:
            return result
        args, kwargs = symbolic_numbers.native_arguments(fn, args, kwargs)
    if vm.outside.stale:
        vm.outside.update_copies()
    kinds = vm.kinds
    for value in args:
        if kinds.get(type(value)) is not False and calls_back(kinds, value):
            return in_window(vm, fn, args, kwargs)
    if kwargs and any(calls_back(kinds, value) for value in kwargs.values()):
        return in_window(vm, fn, args, kwargs)
    if type(fn) not in _UNBOUND and calls_back(kinds, fn):
        return in_window(vm, fn, args, kwargs)
    try:
        result = fn(*args, **kwargs) if kwargs else fn(*args)
    except Exception as e:
        refused = hidden_refusal(e)  # NumPy's C code makes other errors of a refusal
        if vm.trace.writes.frozen and "read-only" in str(e):
            refused = Unsupported(
                Reason(UNSUPPORTED_EFFECT, "a NumPy array is written that a tensor looks at")
            )
        if refused is not None:
            raise refused from e
        raise
    if vm.failure is not None:
        raise vm.failure
    return own(result)


_UNBOUND = (FunctionType, type)


def in_window(vm: Any, fn: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> Any:
    """The call, in a window."""
    for value in args:
        vm.outside.use_class(value if isinstance(value, type) else type(value))
        if type(value) is Text and not (isinstance(fn, type) and issubclass(fn, BaseException)):
            raise Unreadable(Reason(DATA_DEPENDENT, "native code reads the text of a tensor"))
    if _has_torch_function(vm, args):
        raise Unsupported(Reason(UNSUPPORTED_CALL, "an object with a __torch_function__ of its own"))
    try:
        result = _native.call_window(fn, tuple(args), kwargs or None, vm.called_back)
    except BaseException as e:
        if vm.failure is not None and e is not vm.failure:
            raise vm.failure from e
        raise
    if vm.failure is not None:
        raise vm.failure
    return result


def keyed(vm: Any, fn: Any, obj: Any, key: Any, *rest: Any) -> Any:
    """`fn(obj, key, *rest)` of a container: only the key is hashed and compared, so the contents need no look."""
    if vm.trace.numbers.symbols is not None:
        key = plain_parts(key)
    if vm.kinds.get(type(key)) is not False and calls_back(vm.kinds, key):
        return in_window(vm, fn, (obj, key, *rest))
    return fn(obj, key, *rest)


def _has_torch_function(vm: Any, args: Sequence[Any]) -> bool:
    """Torch would call it below the recording of the trace."""
    return any(type(a) is FakeTensor for a in args) and any(
        vm.kinds.get(type(a)) is True and vm.type_info(type(a)).find("__torch_function__")[1] is not None
        for a in args
    )


def check_mode(vm: Any, manager: Any) -> None:
    """A mode of torch with handlers of the user's would run them inside every operator, where no window is."""
    for name in ("__torch_function__", "__torch_dispatch__"):
        found = vm.type_info(type(manager)).find(name)[1]
        found = getattr(found, "__func__", found)
        if type(found) is FunctionType:
            if not runs_natively(found):
                what = f"entering {type(manager).__qualname__}, which has a {name}"
                raise Unsupported(Reason(UNSUPPORTED_CALL, what))
            vm.under_modes = True


def called_back(vm: Any, fn: FunctionType, *slots: Any) -> Any:
    """The hook's question in a window: native code starts `fn`, whose frame has these argument slots."""
    name = fn.__globals__.get("__name__") or ""
    if name.startswith("smelt.") and name != "smelt.capture.protocol.polyfills":
        _native.skip(fn)
        return _native.NATIVELY
    if vm.failure is not None:
        raise vm.failure
    if fn is vm.running_natively or (fn not in vm.functions and fn not in REFUSED and runs_natively(fn)):
        return _native.NATIVELY
    if vm.making_classes:
        _note_new_class(vm, slots)
    try:
        args, kwargs = _arguments(vm, fn, slots)
        return vm.call_function(fn, args, kwargs)
    except Unsupported as e:
        vm.locate(e)
        raise


def _note_new_class(vm: Any, slots: Sequence[Any]) -> None:
    """`__set_name__` and `__init_subclass__` run before the class that is made comes out of native code."""
    for value in slots:
        if isinstance(value, type) and id(value) not in vm.outside.origins:
            if (value.__name__, value.__bases__) == vm.making_classes[-1]:
                vm.outside.forget_class(value)


def _arguments(vm: Any, fn: FunctionType, slots: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The call that gave a frame these slots. Defaults are left to be bound again, where they are guarded."""
    code, fake = fn.__code__, vm.outside.fake
    count, named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames
    args = [fake(v) for v in slots[:count]]
    rest = slots[named] if code.co_flags & 4 else ()
    defaults = fn.__defaults__ or ()
    if rest:
        args += [fake(v) for v in rest]
    else:
        while defaults and len(args) > count - len(defaults) and args[-1] is defaults[len(args) - count - 1]:
            args.pop()
    keyword_defaults = fn.__kwdefaults__ or {}
    kwargs = {
        n: fake(v)
        for n, v in zip(names[count:named], slots[count:named])
        if keyword_defaults.get(n, MISSING) is not v
    }
    if code.co_flags & 8:
        kwargs.update({n: fake(v) for n, v in slots[-1].items()})
    return args, kwargs
