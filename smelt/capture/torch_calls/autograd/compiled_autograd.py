"""Graphs of torch's compiled autograd: a call of one of its operators runs the C++ code of a node of autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from smelt.capture.base.call_handlers import LAZY_FUNCTIONS, Args, Kwargs
from smelt.capture.semantics.calls.native_calls import run_native
from smelt.capture.vm.vm import VM


class _Operator(Protocol):
    fn: Callable[..., object]


def _call(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """The operators that the node runs are recorded; it reads nothing but its arguments."""
    operator, *arguments = args
    return run_native(vm, cast(_Operator, operator).fn, arguments, kwargs)


LAZY_FUNCTIONS["torch._dynamo.compiled_autograd", "Op.__call__"] = _call
