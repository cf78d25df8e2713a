"""`sys.exception`, `sys.exc_info`, and the methods of exception groups that accept a condition."""

from __future__ import annotations

import sys

from smelt.capture.base.call_handlers import Args, Handler, Kwargs, builtin, method
from smelt.capture.vm.vm import VM


@builtin(sys.exc_info)
def _exc_info(vm: VM, args: Args, kwargs: Kwargs) -> object:
    error = vm.handled_exception()
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


builtin(sys.exception)(lambda vm, args, kwargs: vm.handled_exception())


def _group_method(name: str) -> Handler:
    """Handler of a group method, whose C code takes only a Python function as condition: one that calls the VM."""

    def handler(vm: VM, group: object, condition: object) -> object:
        called = vm.native_callable(condition)
        condition = condition if called is condition else lambda error: called(error)
        return vm.call_native(getattr(BaseExceptionGroup, name), (group, condition))

    return handler


for _name in ("split", "subgroup"):
    method(BaseExceptionGroup, _name)(_group_method(_name))
    method(ExceptionGroup, _name)(_group_method(_name))
