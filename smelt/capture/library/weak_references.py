"""Weak references to functions that the trace made: capture keeps these alive, eager lets them go."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from smelt.capture.base.handlers import Args, Handler, Kwargs, builtin, unsupported
from smelt.capture.base.values import FunctionType
from smelt.capture.machine.vm import VM
from smelt.capture.protocol.native_calls import run_native


def _making(reference: Callable[..., object]) -> Handler:
    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        if args and type(args[0]) is FunctionType and vm.outside.origins.is_made_function(args[0]):
            error = unsupported("a weak reference to a function made inside")
            error.breaks = False  # a resume function would keep it alive
            raise error
        return run_native(vm, reference, args, kwargs)

    return handler


@builtin(weakref.WeakMethod)
def _weak_method(vm: VM, args: Args, kwargs: Kwargs) -> object:
    raise unsupported("a weak reference to a method, which holds the function weakly too")


for _reference in (weakref.ref, weakref.proxy):
    builtin(_reference)(_making(_reference))
