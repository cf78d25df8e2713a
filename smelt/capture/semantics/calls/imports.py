"""The import statement and `__import__`. The source of a loaded module is its `sys.modules` entry."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Sequence
from typing import NoReturn

from smelt.capture.base.call_handlers import Args, Kwargs, function, unsupported
from smelt.capture.environment import wrap_values
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import IMPORT, Reason


def run_import(
    vm: VM, name: str, scope: dict[str, object] | None, names: Sequence[str] | None, level: int
) -> object:
    """`__import__(name, scope, None, names, level)`. Raises Unsupported if module code would follow deferred effects."""
    if not level and name not in sys.modules and not vm.env.log.empty:
        raise Unsupported(Reason(IMPORT, name))  # the module's code runs now, before the deferred effects
    with vm.trace.paused():
        module = __import__(name, scope, None, names or (), level)
    sys_name = name if names else name.partition(".")[0]
    if sys.modules.get(sys_name) is module:  # the entry at each call
        wrap_values.wrap(vm.env, module, vm.env.sources.const(sys.modules).child("item", sys_name))
    vm.env.sources.find_or_const(module)
    return module


def raise_import_error(module: types.ModuleType, name: str) -> NoReturn:
    """Raise the ImportError of `from module import name`, whose message has the module's location."""
    stub = types.ModuleType(module.__name__)
    for attribute in ("__spec__", "__file__"):
        if attribute in vars(module):
            setattr(stub, attribute, vars(module)[attribute])
    scope = {"__builtins__": {"__import__": lambda *_: stub}, "__name__": __name__}
    exec(f"from module import {name}", scope)
    raise AssertionError(f"{module.__name__} has no {name}")


@function(importlib.import_module)
def _import_module(vm: VM, args: Args, kwargs: Kwargs) -> object:
    name = args[0] if args else kwargs.get("name")
    if type(name) is not str or name.startswith("."):
        raise unsupported("importlib.import_module of a relative name")
    return run_import(vm, name, None, ("__name__",), 0)
