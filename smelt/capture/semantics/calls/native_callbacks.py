"""Windows: native calls during which Python functions that C code starts come back to the VM.

Containers, `repr`, `sorted` or `isinstance` call special methods of the user's classes. `native` finds out whether a call
may do so, from the types of what it is given, and then makes it inside a window of the frame hook: `called_back` gets every
Python function that native code starts, and has the VM interpret it. Calls on tensors, numbers and strings alone, which is
nearly all, are made directly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

import torch

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.call_handlers import handler_of
from smelt.capture.base.native_functions import POLYFILLS, REFUSED, runs_natively
from smelt.capture.base.value_kinds import MISSING, FunctionType
from smelt.capture.environment import container_contents, environment_mutations, wrap_values
from smelt.capture.proxies.array_proxy import has_scalar, hidden_refusal
from smelt.capture.proxies.text_proxy import Text, Unreadable
from smelt.capture.semantics import number_semantics
from smelt.capture.semantics.calls.argument_binding import VARARGS, VARKEYWORDS
from smelt.capture.semantics.values import numpy_errors
from smelt.capture.vm.native_reachability import calls_back
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.graph.pytree import leaves
from smelt.reasons import (
    DATA_DEPENDENT,
    TENSOR_SUBCLASS,
    UNSUPPORTED_CALL,
    UNSUPPORTED_EFFECT,
    UNSUPPORTED_OBJECT,
    Reason,
)
from smelt.torch_private import pop_function_mode, pop_function_mode_temporarily, push_function_mode
from smelt.tracing.fake.fake_tensor import FakeTensor, class_of_fake
from smelt.tracing.symbolic.numbers_in_containers import plain_parts
from smelt.tracing.symbolic.sym_numbers import NUMBERS, own, plain

R = TypeVar("R")

# ------------------------------------------------------------------------------------------------------ calls


def native(
    vm: VM, fn: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object] | None = None
) -> object:
    """`fn(*args, **kwargs)` for a function of C, or a Python function that runs natively.

    Raises what it raises, and Unsupported where Python code that it called could not be captured, whatever the
    native code made of that error."""
    if (fn is float or fn is int) and len(args) == 1 and not kwargs and type(args[0]) is FakeTensor:
        args = (number_semantics.in_tensor(vm, args[0]),)
    symbols = vm.trace.numbers.symbols
    if symbols is not None:
        result = number_semantics.native_call(fn, args, kwargs)
        if result is not NotImplemented:
            return result
        args, kwargs = number_semantics.native_arguments(fn, args, kwargs, symbols.has_standins)
    if vm.outside.opened.stale:
        container_contents.update_copies(vm.outside)
    vm.outside.facts.use_digits(*args)
    traced = numpy_errors.is_traced(fn, args)
    if traced or numpy_errors.computes(fn, args):
        with numpy_errors.noted(vm, fn, traced):
            return _called(vm, fn, args, kwargs)
    return _called(vm, fn, args, kwargs)


def _called(
    vm: VM, fn: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object] | None
) -> object:
    kinds = vm.classes.native_reach
    for value in args:
        if kinds.get(type(value)) is not False and calls_back(kinds, value):
            return in_window(vm, fn, args, kwargs)
    if kwargs and any(calls_back(kinds, value) for value in kwargs.values()):
        return in_window(vm, fn, args, kwargs)
    if type(fn) not in _UNBOUND and calls_back(kinds, fn):
        return in_window(vm, fn, args, kwargs)
    call = vm.trace.call
    asked, call.asks = call.asks, True
    named = kwargs or call.take_no_keywords()
    try:
        result = fn(*args) if named is None else fn(*args, **named)
    except Exception as e:
        vm.outside.facts.use_digits(e)
        refused = hidden_refusal(e)  # NumPy's C code makes other errors of a refusal
        if vm.trace.writes.frozen and "read-only" in str(e):
            refused = Unsupported(
                Reason(UNSUPPORTED_EFFECT, "a NumPy array is written that a tensor looks at")
            )
        if refused is None and isinstance(e, TypeError) and has_scalar((args, kwargs)):
            refused = Unsupported(Reason(DATA_DEPENDENT, "torch is given a NumPy scalar"))
        if refused is not None:
            raise refused from e
        check_class_named(fn, e, (args, kwargs))
        raise
    finally:
        call.asks = asked
    if vm.failure is not None:
        raise vm.failure
    vm.outside.facts.use_digits(result)
    return own(result)


_UNBOUND = (FunctionType, type)
# Torch leaves a mode while it asks the mode's `__torch_function__`.
_PROTOCOL: set[object] = {
    pop_function_mode_temporarily,
    pop_function_mode,
    push_function_mode,
}


def in_window(
    vm: VM, fn: Callable[..., R], args: Sequence[object], kwargs: Mapping[str, object] | None = None
) -> R:
    """`fn(*args, **kwargs)` in a window. Raises what `native` does."""
    for value in args:
        vm.outside.facts.use_class(value if isinstance(value, type) else type(value))
        if type(value) is Text and not (isinstance(fn, type) and issubclass(fn, BaseException)):
            raise Unreadable(Reason(DATA_DEPENDENT, "native code reads the text of a tensor"))
    return _diverted(vm, vm.called_back, fn, args, kwargs)


def _diverted(
    vm: VM,
    callback: Callable[..., object],
    fn: Callable[..., R],
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
) -> R:
    """`fn(*args, **kwargs)` in a window in which `callback` gets every Python function that native code starts."""
    call = vm.trace.call
    asked, call.asks = call.asks, True
    named = kwargs or call.take_no_keywords()
    try:
        result = _native.call_with_frame_hook(
            fn, tuple(args), None if named is None else dict(named), callback
        )
    except BaseException as e:
        if vm.failure is not None and e is not vm.failure:
            raise vm.failure from e
        vm.outside.facts.use_digits(e)
        check_class_named(fn, e, (args, kwargs))
        raise
    finally:
        call.asks = asked
    if vm.failure is not None:
        raise vm.failure
    vm.outside.facts.use_digits(result)
    return result


def check_class_named(fn: Callable[..., object], error: BaseException, given: object) -> None:
    """Raises Unsupported where the text of an error may name the class of a fake, which is not that of the tensor."""
    if isinstance(error, (TypeError, AttributeError)) and FakeTensor.__name__ in str(error):
        if any(class_of_fake(fake) is not torch.Tensor for fake in leaves(given, FakeTensor)):
            name = getattr(fn, "__name__", type(fn).__name__)
            raise Unsupported(Reason(TENSOR_SUBCLASS, f"an error of {name}() that names a class")) from error


def keyed(vm: VM, fn: Callable[..., object], obj: object, key: object, *rest: object) -> object:
    """`fn(obj, key, *rest)` of a container. Only the key is hashed, and compared with keys of the same hash."""
    container, obj = obj, vm.outside.overlay.now(obj)
    if vm.trace.numbers.symbols is not None:
        key = plain_parts(key)
    vm.outside.facts.use_nan(key)
    vm.outside.facts.use_differences(key)
    if vm.classes.native_reach.get(type(key)) is not False and calls_back(vm.classes.native_reach, key):
        try:
            return in_window(vm, fn, (obj, key, *rest))
        finally:
            environment_mutations.touched(vm.outside, container)
    if vm.trace.call.modes and type(key) in (FakeTensor, slice) and not isinstance(container, (dict, set)):
        return native(vm, fn, (obj, key, *rest))  # asks about `__index__`
    if isinstance(container, (dict, set)):
        outside = id(container) in vm.outside.sources
        callback = functools.partial(_compared_outside, vm) if outside else vm.called_back
        return _diverted(vm, callback, fn, (obj, key, *rest))
    return fn(obj, key, *rest)


def _compared_outside(vm: VM, fn: FunctionType, *slots: object) -> object:
    """What the frame hook asks while a key is looked for in a container from outside: guards look for it again, and run no
    code of the user's."""
    if runs_natively(fn):
        return _native.NATIVELY
    error = Unsupported(Reason(UNSUPPORTED_OBJECT, f"keys are compared by {fn.__qualname__}"))
    vm.locate(error)
    raise error


def check_mode(vm: VM, manager: object) -> None:
    """Raises Unsupported where `manager` is a mode of torch with a handler of the user's: torch would run that inside every
    operator, where no window is."""
    for name in ("__torch_function__", "__torch_dispatch__"):
        found = vm.type_info(type(manager)).find(name)[1]
        found = getattr(found, "__func__", found)
        if type(found) is FunctionType:
            if not runs_natively(found):
                what = f"entering {type(manager).__qualname__}, which has a {name}"
                raise Unsupported(Reason(UNSUPPORTED_CALL, what))
            vm.contexts.under_modes = True


def called_back(vm: VM, fn: FunctionType, *slots: object) -> object:
    """What the frame hook asks in a window: native code starts `fn`, whose frame has these argument slots. Gives the result
    of the call, or NATIVELY where the function is to run as it is."""
    name = fn.__globals__.get("__name__") or ""
    if name.startswith("smelt.") and name not in POLYFILLS:
        _native.skip(fn)
        return _native.NATIVELY
    if vm.failure is not None:
        raise vm.failure
    if (
        fn in _PROTOCOL
        or fn is vm.frames.natively
        or (handler_of(fn) is None and fn not in REFUSED and runs_natively(fn))
    ):
        return _native.NATIVELY
    if vm.classes.being_made:
        _note_new_class(vm, slots)
    call = vm.trace.call
    asked, call.asks = call.asks, False
    try:
        args, kwargs = _arguments(vm, fn, slots)
        result = vm.call_function(fn, args, kwargs)
    except Unsupported as e:
        vm.locate(e)
        raise
    finally:
        call.asks = asked
    return plain(result) if type(result) in NUMBERS and fn.__name__ in _EXACT else result


# Special methods of which C code takes no stand-in for a number.
_EXACT = frozenset(
    ("__hash__", "__len__", "__length_hint__", "__index__", "__int__", "__float__", "__bool__")
)


def _note_new_class(vm: VM, slots: Sequence[object]) -> None:
    """Notes a class that C code is making where it is first seen: in `__set_name__` or `__init_subclass__`, which run before
    native code gives the class to its caller."""
    for value in slots:
        if isinstance(value, type) and id(value) not in vm.outside.sources:
            if (value.__name__, value.__bases__) == vm.classes.being_made[-1]:
                vm.outside.sources.made_class(value)


def _arguments(vm: VM, fn: FunctionType, slots: Sequence[object]) -> tuple[list[object], dict[str, object]]:
    """The arguments of the call that gave a frame these slots. Defaults are left out: binding them again guards them."""
    code, fake = fn.__code__, functools.partial(wrap_values.fake, vm.outside)
    count, named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames
    args = [fake(v) for v in slots[:count]]
    rest = cast("tuple[object, ...]", slots[named]) if code.co_flags & VARARGS else ()
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
    if code.co_flags & VARKEYWORDS:
        given = cast("dict[str, object]", slots[-1])
        kwargs.update({n: fake(v) for n, v in given.items()})
    return args, kwargs
