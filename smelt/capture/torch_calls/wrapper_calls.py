"""Handlers of the torch functions that wrapper subclasses call (`smelt.tracing.record.wrapper_subclasses`)."""

from __future__ import annotations

import inspect
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, builtin, function, unsupported
from smelt.capture.vm.vm import VM
from smelt.graph.operator_effects import effects
from smelt.reasons import TENSOR_SUBCLASS
from smelt.torch_private import OpOverload, make_wrapper_subclass, return_and_correct_aliasing
from smelt.tracing.record.wrapper_subclasses import is_wrapper_class
from smelt.tracing.symbolic.numbers_in_containers import specialize_nested

_OPTIONS = frozenset(
    ("strides", "storage_offset", "dtype", "layout", "device", "requires_grad", "memory_format", "pin_memory")
)


@builtin(make_wrapper_subclass)
def _make_wrapper(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """`Tensor._make_wrapper_subclass`, for real: the wrapper has no data."""
    cls, *rest = args
    options = specialize_nested({name: value for name, value in kwargs.items() if name != "strides"})
    options |= {"strides": kwargs["strides"]} if "strides" in kwargs else {}
    if not isinstance(cls, type) or not is_wrapper_class(cls) or len(rest) != 1:
        raise unsupported("Tensor._make_wrapper_subclass", TENSOR_SUBCLASS)
    others = {name for name, value in options.items() if name not in _OPTIONS and value not in (None, False)}
    if others or options.get("requires_grad") or options.get("layout", torch.strided) is not torch.strided:
        raise unsupported(
            f"a {cls.__qualname__} that requires gradients or has metadata of its own", TENSOR_SUBCLASS
        )
    vm.env.facts.use_class(cls)
    with vm.trace.paused():
        wrapper: torch.Tensor = make_wrapper_subclass(cls, cast(torch.Size, rest[0]), **options)
    vm.trace.call.wrappers[id(wrapper)] = wrapper
    return wrapper


@function(return_and_correct_aliasing)
def _correct_aliasing(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """The result of a `__torch_dispatch__`: `out`, or the argument that the operator writes and returns. Wrappers
    share no storage, because views of wrappers do not leave the call."""
    call = inspect.signature(return_and_correct_aliasing).bind(*args, **kwargs).arguments
    operator, out = cast(OpOverload, call["func"]), call["out"]
    returned = [r.alias_info for r in operator._schema.returns]
    if not any(alias is not None and alias.is_write for alias in returned):
        return out
    if len(returned) != 1 or len(effects(operator).writes) != 1:
        raise unsupported(f"{operator} in a __torch_dispatch__", TENSOR_SUBCLASS)
    (name,) = effects(operator).writes
    return effects(operator).argument(name, tuple(vm.elements(call["args"])), call["kwargs"])
