"""Operators that check the values of a tensor internally, and `torch._assert` of a Python value.

The graph has the check as an assertion of its own. Where it fails, the original function runs and raises eager's error.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from smelt.capture.base.call_handlers import TENSOR_METHODS, Args, Kwargs, builtin, function
from smelt.capture.semantics.calls.native_calls import call_native_python, run_native
from smelt.capture.semantics.calls.python_functions import interpret
from smelt.capture.vm.vm import VM
from smelt.torch_private import assert_async, assert_condition
from smelt.tracing.fake.fake_tensor import FakeTensor


def _check_quantiles(vm: VM, q: object) -> None:
    """Assert that `q` of `quantile(x, q)` is between 0 and 1."""
    if type(q) is FakeTensor:
        inside = run_native(vm, torch.logical_and, (q >= 0, q <= 1), {})
        vm.call_native(assert_async, (run_native(vm, torch.all, (inside,), {}),))


def _register(name: str) -> None:
    operator: Callable[..., object] = getattr(torch, name)

    @builtin(operator)
    def call(vm: VM, args: Args, kwargs: Kwargs) -> object:
        result = run_native(vm, operator, args, kwargs)
        _check_quantiles(vm, args[1] if len(args) > 1 else kwargs.get("q"))
        return result

    TENSOR_METHODS[name] = lambda vm, tensor, *args, **kwargs: call(vm, (tensor, *args), kwargs)


for _name in ("quantile", "nanquantile"):
    _register(_name)


@function(assert_condition)
def _assert(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """`torch._assert`: of a number or bool it is Python's `assert`, whose message is evaluated only on failure."""
    condition = args[0] if args else kwargs.get("condition")
    call = call_native_python if issubclass(type(condition), torch.Tensor) else interpret
    return call(vm, assert_condition, args, kwargs)
