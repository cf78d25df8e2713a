"""Functions that tell whether the program is being compiled, exported, scripted or traced."""

from __future__ import annotations

from typing import Any

import torch

from smelt.capture.base.handlers import BUILTINS, FUNCTIONS, Args, Handler, Kwargs, function
from smelt.capture.machine.vm import VM


def _constantly(value: object) -> Handler:
    return lambda vm, args, kwargs: value


# Library code that does less when it is compiled (no hooks that are always called, ...): it must do what it does in eager.
_UNAWARE = ("torch.nn.modules.module", "torch._functorch", "torch.func", "torch.optim")


@function(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)
def _is_compiling(vm: VM, args: Args, kwargs: Kwargs) -> bool:
    name = vm.frame.globals.get("__name__") if vm.frame is not None else None
    return not (isinstance(name, str) and name.startswith(_UNAWARE)) and vm.is_compiling()


_jit: Any = torch.jit
for _found in (torch.compiler.is_exporting, _jit.is_scripting, _jit.is_tracing):
    FUNCTIONS[_found] = BUILTINS[_found] = _constantly(False)
BUILTINS[torch._C._get_tracing_state] = _constantly(None)
BUILTINS[torch._C._is_tracing] = _constantly(False)
