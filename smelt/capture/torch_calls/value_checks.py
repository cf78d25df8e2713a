"""Operators that check the values of a tensor below what is recorded of them: the graph makes the check as a call of its
own, and where that fails the original function runs and raises eager's error. And `torch._assert` of what is no tensor."""

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
    """`q` of `quantile(x, q)` is between 0 and 1."""
    if type(q) is FakeTensor:
        inside = run_native(vm, torch.logical_and, (q >= 0, q <= 1), {})
        vm.call_native(assert_async, (run_native(vm, torch.all, (inside,), {}),))


def _row(name: str) -> None:
    operator: Callable[..., object] = getattr(torch, name)

    @builtin(operator)
    def call(vm: VM, args: Args, kwargs: Kwargs) -> object:
        result = run_native(vm, operator, args, kwargs)
        _check_quantiles(vm, args[1] if len(args) > 1 else kwargs.get("q"))
        return result

    TENSOR_METHODS[name] = lambda vm, tensor, *args, **kwargs: call(vm, (tensor, *args), kwargs)


for _name in ("quantile", "nanquantile"):
    _row(_name)


@function(assert_condition)
def _assert(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """Of a number or bool it is Python's `assert`, whose message is read only if that fails."""
    condition = args[0] if args else kwargs.get("condition")
    call = call_native_python if issubclass(type(condition), torch.Tensor) else interpret
    return call(vm, assert_condition, args, kwargs)
