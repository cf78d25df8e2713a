"""`__torch_function__`: handlers of tensor subclasses and other objects, executed by the VM.

Torch decides that a call has a handler before anything else happens: the trace's function mode sees each call first and
passes it to `dispatch_handlers`. Calls made by a handler return to the VM and to the mode as in eager: with the innermost
mode popped, or under `DisableTorchFunctionSubclass`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch.autograd.profiler import record_function
from torch.overrides import TorchFunctionMode, handle_torch_function

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, unsupported
from smelt.capture.environment import wrap_values
from smelt.capture.semantics import attributes
from smelt.capture.vm.vm import VM
from smelt.graph.operator_effects import effects
from smelt.reasons import TENSOR_SUBCLASS
from smelt.torch_private import OpOverload, is_torch_function_enabled
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.torch_function_handlers import (
    handler_types,
    handling_class,
    in_order,
    is_handled,
    is_overridable,
    is_under_modes,
    may_be_overridable,
    mode_types,
)
from smelt.tracing.record.wrapper_subclasses import wrappers_in

# Torch functions, and modules of such functions, whose inner calls no mode observes.
_WITHOUT_INNER_CALLS: frozenset[object] = frozenset(
    (
        handle_torch_function, torch.Tensor.__torch_function__.__func__, TorchFunctionMode.__enter__,  # type: ignore[attr-defined]
        TorchFunctionMode.__exit__, torch.nn.Module.__getattr__, torch.nn.Module.__setattr__, torch.inference_mode.__exit__,
        record_function.__enter__, record_function.__exit__,
    )
)  # fmt: skip
_MODULES_WITHOUT_INNER_CALLS = ("torch.compiler", "torch.jit.", "torch._jit_internal", "torch._dynamo.")
# Tensor constructors, which modes observe but classes do not override.
_CONSTRUCTORS = frozenset((torch.tensor, torch.as_tensor, torch.asarray, torch.full))


def needs_override_dispatch(vm: VM, fn: object, args: Sequence[object], kwargs: Kwargs) -> bool:
    """Whether a call of `fn` must go to torch's override dispatch, even if the VM has a handler for it."""
    if not may_be_overridable(fn) or not is_handled(vm.trace.call, tuple(args), kwargs):
        return False
    return is_overridable(fn) or (fn in _CONSTRUCTORS and is_under_modes(vm.trace.call))


def check_replaced_under_modes(vm: VM, fn: Callable[..., object]) -> None:
    """Raise Unsupported for a torch function that the VM replaces, under user modes, which observe torch's own calls."""
    module = str(fn.__module__)
    if (
        module.startswith("torch.")
        and not module.startswith(_MODULES_WITHOUT_INNER_CALLS)
        and fn not in _WITHOUT_INNER_CALLS
    ):
        check_no_user_modes(vm, fn.__qualname__)


def check_no_user_modes(vm: VM, what: str) -> None:
    """Raise Unsupported under user modes, for an operation that the VM does not pass to them."""
    if is_under_modes(vm.trace.call):
        raise unsupported(f"{what} under a mode with a __torch_function__")


def call_operator(vm: VM, fn: Callable[..., object], *args: object) -> object:
    """`fn(*args)` of a tensor, for a C function that runs no Python code except handlers."""
    return vm.call_native(fn, args) if is_handled(vm.trace.call, args) else fn(*args)


def dispatch_handlers(
    vm: VM, func: object, args: tuple[object, ...], kwargs: Mapping[str, object] | None
) -> object:
    """Result of a call's handlers; NotImplemented if torch calls none. Raises Unsupported if all return that."""
    vm.frames.call_site = None
    if vm.trace.call.modes:
        return call_mode_handler(vm, func, mode_types(vm.trace.call, func, args, kwargs or {}), args, kwargs)
    kinds = handler_types(vm.trace.call, func, args, kwargs or {})
    if kinds is None:
        return NotImplemented
    arguments = _handler_arguments(vm, args, kwargs)
    return call_class_handlers(vm, func, kinds, arguments, (*args, *(kwargs or {}).values()))


def _handler_arguments(vm: VM, args: tuple[object, ...], kwargs: Mapping[str, object] | None) -> Args:
    """Arguments of a call as arguments of its handler."""
    arguments = [cast(object, tuple(wrap_values.to_fake(vm.env, v) for v in args))]
    if kwargs is not None:
        arguments.append({k: wrap_values.to_fake(vm.env, v) for k, v in kwargs.items()})
    return arguments


def call_mode_handler(
    vm: VM,
    func: object,
    kinds: tuple[type, ...],
    args: tuple[object, ...],
    kwargs: Mapping[str, object] | None,
) -> object:
    """Result of the innermost user mode for a call. The mode is popped while its handler runs."""
    modes = vm.trace.call.modes
    mode, depth = modes.pop(), len(modes)
    try:
        result = _call_handler(vm, mode, func, kinds, _handler_arguments(vm, args, kwargs))
        if len(modes) != depth:
            raise unsupported("a __torch_function__ that leaves a mode, or enters one for good")
    finally:
        modes.append(mode)
    if result is NotImplemented:
        raise unsupported(f"the __torch_function__ of {type(mode).__qualname__}, which handles nothing")
    return result


def call_class_handlers(
    vm: VM, func: object, kinds: tuple[type, ...], arguments: Args, values: Sequence[object]
) -> object:
    """Result of the handlers of the classes `kinds`, whose instances are in `values`, for a call."""
    for cls in kinds if is_torch_function_enabled() else ():
        if cls not in (torch.Tensor, FakeTensor):
            instance = _find_instance(vm, cls, values)
            result = _call_handler(vm, instance, func, kinds, arguments)
            if result is not NotImplemented:
                return result
    raise unsupported(
        f"{getattr(func, '__name__', func)}, which no __torch_function__ handles", TENSOR_SUBCLASS
    )


def call_dispatch(
    vm: VM, func: object, kinds: tuple[type, ...], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> object:
    """Result of the `__torch_dispatch__` of the wrapper subclasses `kinds` for an operator."""
    vm.frames.call_site = None
    _check_written_wrappers(vm, func, args, dict(kwargs))
    arguments = _handler_arguments(vm, args, kwargs)
    dispatches, vm.trace.call.dispatches_handlers = vm.trace.call.dispatches_handlers, False
    try:
        for cls in in_order(kinds):
            handler = attributes.load_attr(vm, cls, "__torch_dispatch__")
            result = vm.call(handler, (func, kinds, *arguments), {})
            if result is not NotImplemented:
                return result
    finally:
        vm.trace.call.dispatches_handlers = dispatches
    raise unsupported(f"{func}, which no __torch_dispatch__ handles", TENSOR_SUBCLASS)


def call_polyfill(vm: VM, fn: Callable[..., object], *args: object) -> object:
    """Result of a Python version of torch's code, which torch's dispatch calls."""
    vm.frames.call_site = None
    dispatches, vm.trace.call.dispatches_handlers = vm.trace.call.dispatches_handlers, False
    try:
        return vm.call(fn, args, {})
    finally:
        vm.trace.call.dispatches_handlers = dispatches


def _check_written_wrappers(vm: VM, func: object, args: tuple[object, ...], kwargs: Kwargs) -> None:
    """Raise Unsupported for an operator that writes a wrapper of the environment, whose version torch would count, or that
    changes the metadata of one."""
    operator = cast(OpOverload, func)
    written = [effects(operator).argument(name, args, kwargs) for name in effects(operator).writes]
    for wrapper in wrappers_in(vm.trace.call, tuple(written), {}):
        if id(wrapper) in vm.env.sources or torch.Tag.inplace_view in operator.tags:
            raise unsupported(f"{func} writes a {type(wrapper).__qualname__}", TENSOR_SUBCLASS)


def _call_handler(vm: VM, owner: object, func: object, kinds: tuple[type, ...], arguments: Args) -> object:
    handler = attributes.load_attr(vm, owner, "__torch_function__")
    return vm.call(handler, (func, kinds, *arguments), {})


def _find_instance(vm: VM, cls: type, values: Sequence[object]) -> object:
    """The instance whose handler torch calls. Raises Unsupported for a tensor without a fake."""
    for value in values:
        if handling_class(value) is cls:
            known = type(value) is FakeTensor or id(value) in vm.trace.call.wrappers
            if isinstance(value, torch.Tensor) and not known:
                raise unsupported(f"a {cls.__qualname__} without a fake", TENSOR_SUBCLASS)
            return value
        if type(value) in (list, tuple, dict):
            inner = list(value.values() if isinstance(value, dict) else cast("Sequence[object]", value))
            found = _find_instance(vm, cls, inner)
            if found is not None:
                return found
    return None
