"""Windows: native calls whose Python callbacks return to the VM.

Containers, `repr`, `sorted` and `isinstance` call special methods of user classes. `call_native` decides from the argument
types whether a call may do so, and then runs it in a window of the frame hook: `call_from_native` receives every Python
function that native code starts, and the VM interprets it. Calls on tensors, numbers and strings only, which are nearly
all, run directly.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

import torch

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.call_handlers import handler_of, unsupported
from smelt.capture.base.native_functions import POLYFILLS, REFUSED, runs_natively
from smelt.capture.base.value_kinds import CONTAINER_BASES, MISSING, BuiltinType, FunctionType
from smelt.capture.environment import container_contents, environment_mutations, wrap_values
from smelt.capture.proxies.array_proxy import has_scalar, hidden_refusal
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.proxies.text_proxy import TextProxy, Unreadable, unreadable
from smelt.capture.semantics import number_semantics
from smelt.capture.semantics.calls.argument_binding import VARARGS, VARKEYWORDS
from smelt.capture.semantics.calls.process_dependence import note_native_call
from smelt.capture.semantics.values import numpy_errors
from smelt.capture.vm.native_reachability import may_call_python
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.graph.pytree import leaves
from smelt.reasons import (
    DATA_DEPENDENT,
    TENSOR_SUBCLASS,
    UNSUPPORTED_EFFECT,
    UNSUPPORTED_OBJECT,
    Reason,
)
from smelt.torch_private import pop_function_mode, pop_function_mode_temporarily, push_function_mode
from smelt.tracing.fake.fake_tensor import FakeTensor, class_of_fake
from smelt.tracing.symbolic.numbers_in_containers import specialize_nested
from smelt.tracing.symbolic.sym_numbers import NUMBERS, specialize, wrap_symbolic

R = TypeVar("R")

# ------------------------------------------------------------------------------------------------------ calls


def call_native(
    vm: VM, fn: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object] | None = None
) -> object:
    """`fn(*args, **kwargs)` for a C function, or a Python function that runs natively.

    Raises what `fn` raises, and Unsupported if capture failed in Python code that `fn` called, whatever native code did with
    that error.
    """
    if (fn is float or fn is int) and len(args) == 1 and not kwargs and type(args[0]) is FakeTensor:
        args = (number_semantics.symbolic_item(vm, args[0]),)
    symbols = vm.trace.numbers.symbols
    if symbols is not None:
        result = number_semantics.native_call(fn, args, kwargs)
        if result is not NotImplemented:
            return result
        args, kwargs = number_semantics.native_arguments(fn, args, kwargs, symbols.has_proxies)
    if vm.env.native_views.stale:
        container_contents.refresh_copies(vm.env)
    vm.env.facts.use_digits(*args)
    note_native_call(vm.env.facts, fn, args)
    traced = numpy_errors.is_traced(fn, args)
    if traced or numpy_errors.is_numpy_call(fn, args):
        with numpy_errors.observe_errors(vm, fn, traced):
            return _call_directly(vm, fn, args, kwargs)
    return _call_directly(vm, fn, args, kwargs)


def _call_directly(
    vm: VM, fn: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object] | None
) -> object:
    kinds = vm.classes.native_reachability
    for value in args:
        if kinds.get(type(value)) is not False and may_call_python(kinds, value):
            return call_in_window(vm, fn, args, kwargs)
    if kwargs and any(may_call_python(kinds, value) for value in kwargs.values()):
        return call_in_window(vm, fn, args, kwargs)
    if type(fn) not in _NO_BOUND_OBJECT and may_call_python(kinds, fn):
        return call_in_window(vm, fn, args, kwargs)
    call = vm.trace.call
    dispatched_before, call.dispatches_handlers = call.dispatches_handlers, True
    named = kwargs or call.consume_empty_kwargs()
    try:
        result = fn(*args) if named is None else fn(*args, **named)
    except Exception as e:
        vm.env.facts.use_digits(e)
        refused = hidden_refusal(e)  # NumPy's C code replaces a refusal by another error
        if vm.trace.writes.frozen and "read-only" in str(e):
            refused = unsupported(
                "a NumPy array that shares memory with a tensor is written", UNSUPPORTED_EFFECT
            )
        if refused is None and isinstance(e, TypeError) and has_scalar((args, kwargs)):
            refused = unsupported("a NumPy scalar is passed to torch", DATA_DEPENDENT)
        if refused is not None:
            raise refused from e
        check_error_class_name(fn, e, (args, kwargs))
        raise
    finally:
        call.dispatches_handlers = dispatched_before
    if vm.failure is not None:
        raise vm.failure
    vm.env.facts.use_digits(result)
    return wrap_symbolic(result)


_NO_BOUND_OBJECT = (FunctionType, type)
# Torch pops a mode while it calls the mode's `__torch_function__`.
_MODE_STACK_FUNCTIONS: set[object] = {pop_function_mode_temporarily, pop_function_mode, push_function_mode}


def call_in_window(
    vm: VM, fn: Callable[..., R], args: Sequence[object], kwargs: Mapping[str, object] | None = None
) -> R:
    """`fn(*args, **kwargs)` in a window. Raises as `call_native`."""
    if vm.env.wrapped.unread and not _passes_on(fn):
        opaque = leaves((args, kwargs), OpaqueProxy)
        if opaque:
            raise unreadable("native code reads an object that changes", *opaque)
    if vm.env.numbers.has_proxies and not _passes_on(fn):
        numbers = leaves((args, kwargs), NumberProxy)
        if numbers:
            name = getattr(fn, "__name__", "native code")
            raise unreadable(f"{name}() of a number that a tensor holds", *numbers)
    for value in args:
        vm.env.facts.use_class(type(value))
        if isinstance(value, type):
            vm.env.facts.use_class(value)
        if type(value) is TextProxy and not (isinstance(fn, type) and issubclass(fn, BaseException)):
            raise unreadable("native code reads the text of a tensor", value)
    return _run_in_window(vm, vm.call_from_native, fn, args, kwargs)


def _passes_on(fn: object) -> bool:
    """Whether a native function only passes on or compares elements of its arguments. `OpaqueProxy` refuses comparisons."""
    owner = getattr(fn, "__self__", None) if type(fn) is BuiltinType else getattr(fn, "__objclass__", None)
    owner = owner if isinstance(owner, type) else type(owner)
    return issubclass(owner, (*CONTAINER_BASES, tuple)) or any(fn is each for each in _CONTAINER_FUNCTIONS)


_CONTAINER_FUNCTIONS = (
    list, tuple, dict, collections.deque, zip, enumerate, reversed, operator.add, operator.mul, operator.iadd, operator.imul,
    operator.eq, operator.ne, operator.contains,
)  # fmt: skip


def _run_in_window(
    vm: VM,
    callback: Callable[..., object],
    fn: Callable[..., R],
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
) -> R:
    """`fn(*args, **kwargs)` in a window whose `callback` receives every Python function that native code starts."""
    call = vm.trace.call
    dispatched_before, call.dispatches_handlers = call.dispatches_handlers, True
    named = kwargs or call.consume_empty_kwargs()
    try:
        result = _native.call_with_frame_hook(
            fn, tuple(args), None if named is None else dict(named), callback
        )
    except BaseException as e:
        if vm.failure is not None and e is not vm.failure:
            raise vm.failure from e
        vm.env.facts.use_digits(e)
        check_error_class_name(fn, e, (args, kwargs))
        raise
    finally:
        call.dispatches_handlers = dispatched_before
    if vm.failure is not None:
        raise vm.failure
    vm.env.facts.use_digits(result)
    return result


def check_error_class_name(fn: Callable[..., object], error: BaseException, values: object) -> None:
    """Raise Unsupported if an error message may contain the class name of a fake whose tensor has another class."""
    if isinstance(error, (TypeError, AttributeError)) and FakeTensor.__name__ in str(error):
        if any(class_of_fake(fake) is not torch.Tensor for fake in leaves(values, FakeTensor)):
            name = getattr(fn, "__name__", type(fn).__name__)
            raise unsupported(f"an error of {name}() that names a class", TENSOR_SUBCLASS) from error


def native_lookup(vm: VM, fn: Callable[..., object], obj: object, key: object, *arguments: object) -> object:
    """`fn(obj, key, *rest)` of a container method that hashes only the key and compares it with keys of the same hash."""
    container, obj = obj, vm.env.overlay.now(obj)
    if vm.trace.numbers.symbols is not None:
        key = specialize_nested(key)
    vm.env.facts.use_nan(key)
    vm.env.facts.use_differences(key)
    if vm.classes.native_reachability.get(type(key)) is not False and may_call_python(
        vm.classes.native_reachability, key
    ):
        try:
            return call_in_window(vm, fn, (obj, key, *arguments))
        finally:
            environment_mutations.mark_copies_stale(vm.env, container)
    if vm.trace.call.modes and type(key) in (FakeTensor, slice) and not isinstance(container, (dict, set)):
        return call_native(vm, fn, (obj, key, *arguments))  # dispatches `__index__`
    if isinstance(container, (dict, set)):
        is_environment_object = id(container) in vm.env.sources
        callback = functools.partial(_refuse_comparison, vm) if is_environment_object else vm.call_from_native
        return _run_in_window(vm, callback, fn, (obj, key, *arguments))
    return fn(obj, key, *arguments)


def _refuse_comparison(vm: VM, fn: FunctionType, *slots: object) -> object:
    """Frame hook callback during a lookup in an environment container, which guards repeat without user code."""
    if runs_natively(fn):
        return _native.NATIVELY
    error = unsupported(f"keys are compared by {fn.__qualname__}", UNSUPPORTED_OBJECT)
    vm.locate(error)
    raise error


def check_enterable_mode(vm: VM, manager: object) -> None:
    """Raise Unsupported for a torch mode with a user handler, which torch would run inside every operator."""
    for name in ("__torch_function__", "__torch_dispatch__"):
        found = vm.type_info(type(manager)).find(name)[1]
        found = getattr(found, "__func__", found)
        if type(found) is FunctionType:
            if not runs_natively(found):
                what = f"entering {type(manager).__qualname__}, which has a {name}"
                raise unsupported(what)
            vm.contexts.under_modes = True


def call_from_native(vm: VM, fn: FunctionType, *slots: object) -> object:
    """Frame hook callback of a window: native code starts `fn`, whose frame has these argument slots. Returns the call's
    result, or NATIVELY to run the function as it is."""
    name = fn.__globals__.get("__name__") or ""
    if name.startswith("smelt.") and name not in POLYFILLS:
        _native.skip(fn)
        return _native.NATIVELY
    if vm.failure is not None:
        raise vm.failure
    if (
        fn in _MODE_STACK_FUNCTIONS
        or fn is vm.frames.running_natively
        or (handler_of(fn) is None and fn not in REFUSED and runs_natively(fn))
    ):
        return _native.NATIVELY
    if vm.classes.under_construction:
        _record_new_class(vm, slots)
    call = vm.trace.call
    dispatched_before, call.dispatches_handlers = call.dispatches_handlers, False
    try:
        args, kwargs = _frame_arguments(vm, fn, slots)
        result = vm.call_function(fn, args, kwargs)
        if type(result) is TextProxy and _is_special_method(vm, fn, slots, _TEXT_RESULTS):
            raise Unreadable(Reason(DATA_DEPENDENT, f"native code reads the result of {fn.__qualname__}"))
    except Unsupported as e:
        vm.locate(e)
        raise
    finally:
        call.dispatches_handlers = dispatched_before
    if type(result) in NUMBERS:
        exact = fn.__name__ in _EXACT_RESULTS or _is_special_method(vm, fn, slots, _EXACT_RESULTS)
        return specialize(result) if exact else result
    return result


def _is_special_method(vm: VM, fn: FunctionType, slots: Sequence[object], names: frozenset[str]) -> bool:
    """Whether the class of the first argument has `fn` itself, not a wrapper that calls it, under one of these names."""
    return bool(slots) and any(vm.type_info(type(slots[0])).find(name)[1] is fn for name in names)


_TEXT_RESULTS = frozenset(("__repr__", "__str__", "__format__"))
# Special methods whose result C code requires to be a plain number.
_EXACT_RESULTS = frozenset(
    ("__hash__", "__len__", "__length_hint__", "__index__", "__int__", "__float__", "__bool__")
)


def _record_new_class(vm: VM, slots: Sequence[object]) -> None:
    """Record a class that C code is creating when it first appears: in `__set_name__` or `__init_subclass__`, which run
    before native code returns the class."""
    for value in slots:
        if isinstance(value, type) and id(value) not in vm.env.sources:
            if (value.__name__, value.__bases__) == vm.classes.under_construction[-1]:
                vm.env.sources.register_created_class(value)


def _frame_arguments(
    vm: VM, fn: FunctionType, slots: Sequence[object]
) -> tuple[list[object], dict[str, object]]:
    """Arguments of the call that filled these frame slots. Defaults are omitted: binding them again guards them."""
    code, fake = fn.__code__, functools.partial(wrap_values.to_fake, vm.env)
    count, named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames
    args = [fake(v) for v in slots[:count]]
    extra_arguments = cast("tuple[object, ...]", slots[named]) if code.co_flags & VARARGS else ()
    defaults = fn.__defaults__ or ()
    if extra_arguments:
        args += [fake(v) for v in extra_arguments]
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
        extra_keywords = cast("dict[str, object]", slots[-1])
        kwargs.update({n: fake(v) for n, v in extra_keywords.items()})
    return args, kwargs
