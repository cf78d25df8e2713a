"""Calls of functions that `functools.lru_cache` caches."""

from __future__ import annotations

import enum
import functools
import types

from smelt.capture.base.handlers import FUNCTIONS, Args, Kwargs
from smelt.capture.base.values import MISSING, FunctionType, is_constant
from smelt.capture.machine.vm import VM
from smelt.capture.outside import wrapping
from smelt.capture.outside.effects import Call
from smelt.capture.protocol import library_reads
from smelt.errors import Unsupported
from smelt.reasons import OUTPUT, Reason
from smelt.trace.symbols import plain


def call_lru_cached(vm: VM, fn: functools._lru_cache_wrapper[object], args: Args, kwargs: Kwargs) -> object:
    """A call of a cached function. Its own cache answers and is guarded; where it cannot be, the function is interpreted."""
    handler = FUNCTIONS.get(fn.__wrapped__)
    if handler is not None:
        return handler(vm, args, kwargs)
    args, kwargs = [plain(a) for a in args], {k: plain(v) for k, v in kwargs.items()}
    origin = vm.outside.origins.get(id(fn))
    if origin is None:  # made by the trace, and so is what it holds
        return vm.native(fn, args, kwargs)
    wrapping.wrap(vm.outside, fn.__wrapped__, origin.child("attr", "__wrapped__"))
    if all(_is_key(a) for a in (*args, *kwargs.values())) and not _makes_tensors(fn.__wrapped__):
        if not _OUTPUT.isdisjoint(getattr(getattr(fn.__wrapped__, "__code__", None), "co_names", ())):
            return _cached_output(vm, fn, args, kwargs)
    found = library_reads.cached_call(vm, fn, args, kwargs)
    return vm.call(fn.__wrapped__, args, kwargs) if found is MISSING else found


# Names that say, where a cached function uses them, that it writes something.
_OUTPUT = frozenset(
    (
        "print", "write", "warn", "warning", "warning_once", "warn_once", "debug", "info", "error", "critical", "log",
    )
)  # fmt: skip


def _cached_output(vm: VM, fn: functools._lru_cache_wrapper[object], args: Args, kwargs: Kwargs) -> object:
    """The call of a cached function that prints or logs: the compiled frame makes it for real, so that its cache decides
    whether anything is written. Raises Unsupported where the function does more than that."""
    vm.frames.tail = None
    log = vm.outside.log
    calls, changed = len(log.calls), log.changed
    result = vm.call(fn.__wrapped__, args, kwargs)
    if log.changed != changed or not is_constant(result):
        raise Unsupported(Reason(OUTPUT, f"{fn.__qualname__}, which is cached, does more than write"))
    del log.calls[calls:]
    vm.outside.origins.const(fn)
    log.call(Call(fn, (*args, *kwargs.values()), tuple(kwargs)))
    return result


def _is_key(value: object) -> bool:
    """Whether the compiled frame may hold `value` for good, to call the function with it."""
    return (
        is_constant(value)
        or isinstance(value, (type, enum.Enum, FunctionType, types.ModuleType))
        or type(value).__module__ == "logging"
    )


def _makes_tensors(fn: object) -> bool:
    code = getattr(fn, "__code__", None)
    return code is None or "torch" in code.co_names
