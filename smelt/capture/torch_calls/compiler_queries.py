"""Functions that tell whether the program is being compiled, exported, scripted or traced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import BUILTINS, FUNCTIONS, Args, Handler, Kwargs, builtin, function
from smelt.capture.vm.vm import VM
from smelt.torch_private import (
    get_tracing_state,
    is_torch_function_all_disabled,
    is_torch_function_enabled,
    is_tracing,
    len_torch_function_stack,
)
from smelt.tracing.record.torch_function_handlers import handling_class, is_under_modes


def _constantly(value: object) -> Handler:
    return lambda vm, args, kwargs: value


# Of torch's own modules, the one that would otherwise hand its work to torch's compiler, when all arguments are checked.
# What it calls instead is in `higher_order_operators.py`.
_TOLD_TRUE = frozenset({"torch.nn.attention.flex_attention"})


@function(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)
def _is_compiling(vm: VM, args: Args, kwargs: Kwargs) -> bool:
    """Torch's own code does something else where it is compiled (no nested tensors in a `TransformerEncoder`, no hooks that
    are always called): it is told False, so that it does what it does in eager. Others mostly leave out what compilers
    cannot capture: they are told True."""
    name = vm.frame.globals.get("__name__") if vm.frame is not None else None
    if isinstance(name, str) and (name == "torch" or name.startswith("torch.")):
        return name in _TOLD_TRUE
    return vm.is_compiling()


_jit: Any = torch.jit
for _found in (torch.compiler.is_exporting, _jit.is_scripting, _jit.is_tracing):
    FUNCTIONS[_found] = BUILTINS[_found] = _constantly(False)
BUILTINS[get_tracing_state] = _constantly(None)
BUILTINS[is_tracing] = _constantly(False)


# ---- torch functions: the mode of the trace, which the program is not to see


def _some_overridden(vm: VM, values: Iterable[object]) -> bool:
    if is_under_modes(vm.trace.call):
        return True
    of_the_trace = 1
    others = len_torch_function_stack() > of_the_trace
    if others and not is_torch_function_all_disabled():
        return True
    return is_torch_function_enabled() and any(handling_class(v) is not None for v in values)


@builtin(torch.overrides.has_torch_function)
def _has_torch_function(vm: VM, args: Args, kwargs: Kwargs) -> bool:
    """Whether an argument, or a mode, would be handed the call. Torch's own modules ask, and choose other kernels."""
    (values,) = args
    return _some_overridden(vm, cast("Iterable[object]", values))


@builtin(torch.overrides.has_torch_function_unary, torch.overrides.has_torch_function_variadic)
def _has_torch_function_of_each(vm: VM, args: Args, kwargs: Kwargs) -> bool:
    return _some_overridden(vm, args)
