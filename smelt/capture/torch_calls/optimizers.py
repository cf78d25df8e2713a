"""Torch's optimizers. `tensor_item.py` reads the counters and factors that they hold in tensors of one element."""

from __future__ import annotations

from typing import Any

from torch.optim import optimizer

from smelt.capture.base.call_handlers import Args, Kwargs, function
from smelt.capture.semantics.calls import python_functions
from smelt.capture.vm.vm import VM

_zero_grad: Any = optimizer.Optimizer.zero_grad


@function(_zero_grad)
def _set_gradients_to_zero(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """Interpret `zero_grad` without the wrapper that disables torch's compiler and rebinds the method at its first call."""
    return python_functions.interpret(vm, _zero_grad.__wrapped__, args, kwargs)
