"""Torch's default `__torch_function__`, and `handle_torch_function`."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Sequence
from typing import cast

import torch
from torch.overrides import get_default_nowrap_functions, handle_torch_function

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, builtin, function, unsupported
from smelt.capture.base.native_functions import runs_natively
from smelt.capture.base.value_kinds import FunctionType
from smelt.capture.semantics.calls.torch_function_overrides import call_class_handlers, call_mode_handler
from smelt.capture.torch_calls.tensor_methods import as_subclass
from smelt.capture.vm.vm import VM
from smelt.reasons import TENSOR_SUBCLASS
from smelt.torch_private import DisableTorchFunctionSubclass, disabled_torch_function_impl
from smelt.tracing.fake.fake_tensor import FakeTensor, class_of_fake
from smelt.tracing.fake.plain_tensor_classes import handler_in
from smelt.tracing.record.torch_function_handlers import DEFAULT_HANDLER, in_order, is_under_modes


def _handled(
    func: object, types: Iterable[type], args: Sequence[object] = (), kwargs: Kwargs | None = None
) -> None: ...


_SIGNATURE = inspect.signature(_handled)


def _call_of(args: Args, kwargs: Kwargs) -> tuple[object, Iterable[type], Sequence[object], Kwargs]:
    """The arguments of a handler: function, classes, and the arguments of the call."""
    call = _SIGNATURE.bind(*args, **kwargs)
    call.apply_defaults()
    func, kinds, positional, named = call.args
    if not isinstance(positional, (tuple, list)) or not isinstance(named, (dict, type(None))):
        raise unsupported("a __torch_function__ with unusual arguments", TENSOR_SUBCLASS)
    return func, kinds, positional, named or {}


@function(DEFAULT_HANDLER.__func__)
def _tensor_handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """`Tensor.__torch_function__`: the call, whose results become instances of the class."""
    cls = cast(type, args[0])
    func, kinds, positional, named = _call_of(args[1:], kwargs)
    if not all(issubclass(cls, kind) for kind in vm.elements(kinds)):  # type: ignore[arg-type]
        return NotImplemented
    nodes = vm.trace.tape.torch.graph.nodes
    before = len(nodes)
    with DisableTorchFunctionSubclass():
        result = vm.call(func, positional, dict(named))
        if cls is torch.Tensor or func in get_default_nowrap_functions():
            return result
        created = set(nodes[before:]) if type(func) is not FunctionType or runs_natively(func) else set()
        return _converted(vm, result, cls, created)


def _converted(vm: VM, value: object, cls: type, created: Collection[object]) -> object:
    """`value` with its tensors as instances of `cls`. `created`: the nodes of tensors without other references."""
    if isinstance(value, torch.Tensor):
        if type(value) is not FakeTensor:
            raise unsupported(f"a {type(value).__qualname__} becomes a {cls.__qualname__}", TENSOR_SUBCLASS)
        if issubclass(class_of_fake(value), cls):
            return value
        if value.torch_node not in created:
            return as_subclass(vm, value, cls)
        value.subclass = cls
    if isinstance(value, (tuple, list)):
        return type(value)(_converted(vm, v, cls, created) for v in value)
    return value


@builtin(disabled_torch_function_impl)
def _without_handlers(vm: VM, args: Args, kwargs: Kwargs) -> object:
    func, _, positional, named = _call_of(args[-4:] if len(args) > 4 else args, kwargs)
    with DisableTorchFunctionSubclass():
        return vm.call(func, positional, dict(named))


@function(handle_torch_function)
def _handle(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """`handle_torch_function(func, relevant, *args, **kwargs)`, which torch's overridable Python functions call."""
    func, relevant = args[:2]
    values = vm.elements(relevant)
    kinds = in_order(
        cls for cls in map(vm.class_of, values) if hasattr(cls, "__torch_function__") and handler_in(cls)
    )
    if is_under_modes(vm.trace.call):
        return call_mode_handler(vm, func, kinds, tuple(args[2:]), kwargs)
    return call_class_handlers(vm, func, kinds, (tuple(args[2:]), kwargs), values)
