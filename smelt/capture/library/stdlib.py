"""Functions of the standard library and of torch that read the interpreter's state, have effects, or copy objects."""

from __future__ import annotations

import contextvars
import functools
import inspect
import os
import sys
import typing
from types import FunctionType
from typing import Any, cast

import torch
from torch import nn

from smelt.capture.base.frames import VMCallable
from smelt.capture.base.handlers import (
    BUILTINS,
    FUNCTIONS,
    TENSOR_METHODS,
    Handler,
    builtin,
    function,
    method,
    unsupported,
)
from smelt.capture.base.values import MISSING
from smelt.capture.library.autograd.tensor_state import make_parameter
from smelt.capture.machine.vm import VM
from smelt.capture.outside import wrapping
from smelt.capture.protocol import attributes, library_reads, python_functions
from smelt.reasons import TENSOR_SUBCLASS, UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT
from smelt.trace.fake import FakeTensor

# --------------------------------------------------------------------------------------- interpreter state


@builtin(sys.exc_info)
def _exc_info(vm: VM, args: Any, kwargs: Any) -> Any:
    error = vm.handled_exception()
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


@builtin(sys.exception)
def _exception(vm: VM, args: Any, kwargs: Any) -> Any:
    return vm.handled_exception()


def _group_method(name: str) -> Handler:
    """`split` and `subgroup` want a function, of Python: they get one that goes to the VM."""

    def handler(vm: VM, group: Any, condition: Any) -> Any:
        called = vm.native_callable(condition)
        condition = condition if called is condition else lambda error: called(error)
        return vm.native(getattr(group, name), (condition,))

    return handler


for _name in ("split", "subgroup"):
    method(BaseExceptionGroup, _name)(_group_method(_name))
    method(ExceptionGroup, _name)(_group_method(_name))


@builtin(sys._getframe)
def _getframe(vm: VM, args: Any, kwargs: Any) -> Any:
    raise unsupported("sys._getframe")


@builtin(contextvars.ContextVar.get)
def _context_get(vm: VM, args: Any, kwargs: Any) -> Any:
    return context_get(vm, *args)


@method(contextvars.ContextVar, "get")
def context_get(vm: VM, variable: Any, *default: Any) -> Any:
    if id(variable) in vm.contexts.variables:
        return vm.contexts.variables[id(variable)]
    outside, memo = vm.outside, vm.outside.memo.of(variable)
    outside.facts.use_identity(variable)
    reader = memo.setdefault("reader", functools.partial(variable.get, MISSING))
    value, origin = reader(), outside.origins.const(reader).child("call", "get")
    if value is not MISSING:
        return wrapping.wrap(outside, value, origin)
    outside.facts.guard("id", origin, MISSING)  # it is not set
    if default:
        return default[0]
    reader = memo.setdefault("default reader", variable.get)
    return wrapping.wrap(outside, reader(), outside.origins.const(reader).child("call", "get"))


@method(contextvars.ContextVar, "set")
def _context_set(vm: VM, variable: Any, value: Any) -> Any:
    token = variable.set(value)
    vm.contexts.tokens.append((variable, token))
    vm.contexts.variables[id(variable)] = value
    return token


@method(contextvars.ContextVar, "reset")
def _context_reset(vm: VM, variable: Any, token: Any) -> None:
    if id(token) in vm.outside.origins:
        raise unsupported("ContextVar.reset to what was before the call", UNSUPPORTED_EFFECT)
    variable.reset(token)
    vm.contexts.tokens[:] = [(v, t) for v, t in vm.contexts.tokens if t is not token]
    vm.contexts.variables.pop(id(variable), None)
    if any(v is variable for v, _ in vm.contexts.tokens):
        vm.contexts.variables[id(variable)] = variable.get()


# --------------------------------------------------------------------------------------------------- torch


def _constantly(value: Any) -> Handler:
    return lambda vm, args, kwargs: value


# Library code that does less when it is compiled (no hooks that are always called, ...): it must do what it does in eager.
_UNAWARE = ("torch.nn.modules.module", "torch._functorch", "torch.func", "torch.optim")


@function(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)
def _is_compiling(vm: VM, args: Any, kwargs: Any) -> bool:
    name = vm.frame.globals.get("__name__") if vm.frame is not None else None
    return not (isinstance(name, str) and name.startswith(_UNAWARE)) and vm.is_compiling()


_jit: Any = torch.jit
for _found in (torch.compiler.is_exporting, _jit.is_scripting, _jit.is_tracing):
    FUNCTIONS[_found] = BUILTINS[_found] = _constantly(False)
BUILTINS[torch._C._get_tracing_state] = _constantly(None)
BUILTINS[torch._C._is_tracing] = _constantly(False)


@builtin(torch._C._nn.one_hot)
def _one_hot(vm: VM, args: Any, kwargs: Any) -> Any:
    """As eager does it on a CPU, where classes out of range are an error; its shape function compares instead."""
    call = inspect.signature(_one_hot_signature).bind(*args, **kwargs)
    call.apply_defaults()
    classes, count = call.args
    if type(classes) is not FakeTensor or count < 0 or classes.device.type != "cpu":
        return torch._C._nn.one_hot(*args, **kwargs)
    made = torch.zeros((*classes.shape, count), dtype=torch.int64)
    return made.scatter_(-1, classes.unsqueeze(-1), 1)


def _one_hot_signature(tensor: Any, num_classes: int = -1) -> None: ...


@builtin(nn.Parameter)
def _parameter(vm: VM, args: Any, kwargs: Any) -> Any:
    data = kwargs.get("data", args[0] if args else None)
    requires_grad = kwargs.get("requires_grad", args[1] if len(args) > 1 else True)
    if type(data) is not FakeTensor:
        raise unsupported("nn.Parameter of something that is not a tensor", UNSUPPORTED_OBJECT)
    return make_parameter(vm, data, requires_grad)


@builtin(nn.parameter.Buffer)
def _buffer(vm: VM, args: Any, kwargs: Any) -> Any:
    call = inspect.signature(_buffer_signature).bind(*args, **kwargs)
    call.apply_defaults()
    data, persistent = call.arguments["data"], call.arguments["persistent"]
    if type(data) is not FakeTensor:
        raise unsupported("nn.Buffer of something that is not a tensor", UNSUPPORTED_OBJECT)
    made: Any = data.detach().requires_grad_(data.requires_grad)
    made.persistent, made._is_buffer = persistent, True
    return made


def _buffer_signature(data: Any = None, *, persistent: bool = True) -> None: ...


def _tensor_size(vm: VM, tensor: FakeTensor, dim: Any = None) -> Any:
    shape = attributes.shape_of(tensor)
    return shape if dim is None else shape[dim]


_METADATA: dict[str, Handler] = {
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
TENSOR_METHODS.update(_METADATA)


def _as_subclass(vm: VM, tensor: FakeTensor, cls: type) -> Any:
    raise unsupported(f"a tensor becomes a {cls.__qualname__}", TENSOR_SUBCLASS)


TENSOR_METHODS["as_subclass"] = _as_subclass


def _check_own(vm: VM, tensor: FakeTensor, name: str) -> None:
    if vm.trace.is_input(tensor):
        raise unsupported(f"Tensor.{name} of a tensor from outside", UNSUPPORTED_EFFECT)


def _own_only(name: str) -> Handler:
    def handler(vm: VM, tensor: FakeTensor, *args: Any, **kwargs: Any) -> Any:
        _check_own(vm, tensor, name)
        return wrapping.fake(vm.outside, getattr(tensor, name)(*args, **kwargs))

    return handler


# Methods that change something about a tensor besides its values.
for _name in (
    "rename_", "share_memory_", "set_", "resize_", "resize_as_", "detach_",
    "_clear_non_serializable_cached_data", "__setstate__", "sparse_resize_", "sparse_resize_and_clear_",
    "unsqueeze_", "squeeze_", "transpose_", "t_", "swapaxes_", "swapdims_", "as_strided_", "set_data", "_set_data",
):  # fmt: skip
    if hasattr(torch.Tensor, _name):
        TENSOR_METHODS[_name] = _own_only(_name)


@function(torch.Tensor.__iter__)
def _tensor_iter(vm: VM, args: Any, kwargs: Any) -> Any:
    return iter(args[0].unbind(0))


# ------------------------------------------------------------------------------------- the standard library


@function(typing.cast)
def _cast(vm: VM, args: Any, kwargs: Any) -> Any:
    return args[1] if len(args) == 2 else kwargs["val"]


@builtin(os.fspath)
def _fspath(vm: VM, args: Any, kwargs: Any) -> Any:
    found = attributes.python_method(vm, args[0], "__fspath__") if args else None
    return os.fspath(*args, **kwargs) if found is None else vm.call_function(found, tuple(args))


@function(inspect.signature)
def _signature(vm: VM, args: Any, kwargs: Any) -> Any:
    target = args[0].function if type(args[0]) is VMCallable else args[0]
    library_reads.use_signature(vm.outside, target)
    return inspect.signature(target, *args[1:], **kwargs)


@builtin(functools._lru_cache_wrapper)
def _lru_cache_wrapper(vm: VM, args: Any, kwargs: Any) -> Any:
    return functools._lru_cache_wrapper(*args, **kwargs)


@function(functools.update_wrapper)
def _update_wrapper(vm: VM, args: Any, kwargs: Any) -> Any:
    if id(args[0]) in vm.outside.origins:
        return python_functions.interpret(vm, cast(FunctionType, functools.update_wrapper), args, kwargs)
    return functools.update_wrapper(*args, **kwargs)
