"""Entering and leaving torch's function modes.

The VM does not enter a user's mode for real: the trace records it in `CurrentCall.modes`, and the mode of the trace passes
it the calls that torch would (`torch_function_overrides.call_mode_handler`). Torch's own modes run natively.
"""

from __future__ import annotations

from types import FunctionType
from typing import cast

from torch.overrides import TorchFunctionMode

from smelt.capture.base.call_handlers import Args, Kwargs, function, unsupported
from smelt.capture.semantics.calls.native_calls import call_native_python
from smelt.capture.semantics.values import context_managers
from smelt.capture.vm.vm import VM
from smelt.reasons import UNSUPPORTED_EFFECT
from smelt.torch_private import current_function_mode
from smelt.tracing.record.function_mode import FunctionMode

_enter, _exit = (cast(FunctionType, f) for f in (TorchFunctionMode.__enter__, TorchFunctionMode.__exit__))


@function(_enter)
def _enter_mode(vm: VM, args: Args, kwargs: Kwargs) -> object:
    (mode,) = args
    call = vm.trace.call
    if context_managers.is_flex_attention_mode(mode):
        call.gather_depth += 1
    elif context_managers.is_user_mode(mode):
        if type(current_function_mode()) is not FunctionMode:
            raise unsupported("a mode of the user's inside of one of torch's")
        call.modes.append(mode)
    else:
        return call_native_python(vm, _enter, args, kwargs)
    return context_managers.enter_manager(vm, mode, lambda: mode)


@function(_exit)
def _exit_mode(vm: VM, args: Args, kwargs: Kwargs) -> object:
    mode, call = args[0], vm.trace.call
    if context_managers.is_flex_attention_mode(mode):
        call.gather_depth -= 1
    elif context_managers.is_user_mode(mode):
        if not call.modes or call.modes[-1] is not mode:
            raise unsupported("modes of torch are left in another order than entered", UNSUPPORTED_EFFECT)
        call.modes.pop()
    else:
        return call_native_python(vm, _exit, args, kwargs)
    return context_managers.leave_manager(vm, mode, lambda: None)
