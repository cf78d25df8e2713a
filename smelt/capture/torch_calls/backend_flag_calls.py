"""Functions that set process-wide backend flags (`graph/backend_flags.py`): capture calls them and restores the flags at its
end."""

from __future__ import annotations

from types import FunctionType

from smelt.capture.base.call_handlers import Args, Kwargs, function
from smelt.capture.semantics.calls import library_reads, native_calls
from smelt.capture.semantics.values import context_managers
from smelt.capture.vm.vm import VM
from smelt.graph.backend_flags import SETTINGS


def _register(setter: FunctionType) -> None:
    @function(setter)
    def call(vm: VM, args: Args, kwargs: Kwargs) -> object:
        context_managers.save_process_settings(vm, setter)
        library_reads.use_native_function(vm.env, setter)
        return native_calls.run_native(vm, setter, args, kwargs)


for _setter in SETTINGS:
    _register(_setter)
