"""Functions that report whether the program is being compiled, exported, scripted or traced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import (
    BUILTINS,
    FUNCTIONS,
    LAZY_FUNCTIONS,
    Args,
    Handler,
    Kwargs,
    builtin,
    function,
)
from smelt.capture.semantics.values import context_managers
from smelt.capture.vm.vm import VM
from smelt.torch_private import (
    get_tracing_state,
    is_profiler_enabled,
    is_torch_function_all_disabled,
    is_torch_function_enabled,
    is_tracing,
    len_torch_function_stack,
    old_is_compiling,
)
from smelt.tracing.record.torch_function_handlers import handling_class, is_under_modes


def _constant_handler(value: object) -> Handler:
    return lambda vm, args, kwargs: value


# The module of torch that would otherwise call torch's compiler; `higher_order_operators.py` replaces its operator.
_REPORTED_TRUE = frozenset({"torch.nn.attention.flex_attention"})


@function(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)
def _is_compiling(vm: VM, args: Args, kwargs: Kwargs) -> bool:
    """False in torch's own code, which otherwise differs from eager (no nested tensors in a `TransformerEncoder`, no global
    hooks); else True, since programs mostly use it to skip what compilers cannot capture."""
    name = vm.frame.globals.get("__name__") if vm.frame is not None else None
    if isinstance(name, str) and (name == "torch" or name.startswith("torch.")):
        return name in _REPORTED_TRUE
    return vm.is_compiling()


# `torch._dynamo.is_compiling` and `torch._utils.is_compiling` are torch's own code as well, but ask for their callers.
LAZY_FUNCTIONS["torch._dynamo.external_utils", "is_compiling"] = _is_compiling


if old_is_compiling is not None:

    @function(old_is_compiling)
    def _old_is_compiling(vm: VM, args: Args, kwargs: Kwargs) -> bool:
        old_is_compiling(*args, **kwargs)
        return _is_compiling(vm, args, kwargs)


_jit: Any = torch.jit
for _found in (torch.compiler.is_exporting, _jit.is_scripting, _jit.is_tracing):
    FUNCTIONS[_found] = BUILTINS[_found] = _constant_handler(False)
BUILTINS[get_tracing_state] = _constant_handler(None)
BUILTINS[is_tracing] = _constant_handler(False)


@builtin(is_profiler_enabled)
def _profiler_enabled(vm: VM, args: Args, kwargs: Kwargs) -> object:
    return context_managers.profiler_state(vm)


# ---- __torch_function__: the program must not see the mode of the trace


_MODES_OF_TRACE = 1


@builtin(len_torch_function_stack)
def _function_modes(vm: VM, args: Args, kwargs: Kwargs) -> int:
    return len_torch_function_stack() - _MODES_OF_TRACE + len(vm.trace.call.modes)


def _some_overridden(vm: VM, values: Iterable[object]) -> bool:
    if is_under_modes(vm.trace.call):
        return True
    has_others = len_torch_function_stack() > _MODES_OF_TRACE
    if has_others and not is_torch_function_all_disabled():
        return True
    return is_torch_function_enabled() and any(handling_class(v) is not None for v in values)


@builtin(torch.overrides.has_torch_function)
def _has_torch_function(vm: VM, args: Args, kwargs: Kwargs) -> bool:
    """Whether an argument or a mode overrides the call. Torch's own modules select other kernels then."""
    (values,) = args
    return _some_overridden(vm, cast("Iterable[object]", values))


@builtin(torch.overrides.has_torch_function_unary, torch.overrides.has_torch_function_variadic)
def _has_torch_function_of_each(vm: VM, args: Args, kwargs: Kwargs) -> bool:
    return _some_overridden(vm, args)
