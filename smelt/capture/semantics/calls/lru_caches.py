"""Calls of `functools.lru_cache` functions."""

from __future__ import annotations

import contextlib
import enum
import functools
import types
from collections.abc import Callable

from smelt._native import isinstance
from smelt.capture.base.call_handlers import FUNCTIONS, Args, Kwargs, unsupported
from smelt.capture.base.native_functions import is_native_module
from smelt.capture.base.value_kinds import MISSING, FunctionType, is_constant
from smelt.capture.environment import wrap_values
from smelt.capture.environment.side_effects import CacheHit, Call
from smelt.capture.semantics.calls import library_reads
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import OUTPUT, UNSUPPORTED_EFFECT
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.numbers_in_containers import has_symbols
from smelt.tracing.symbolic.sym_numbers import specialize
from smelt.tracing.symbolic.symbolic_ranges import without_proxies


def call_lru_cached(vm: VM, fn: functools._lru_cache_wrapper[object], args: Args, kwargs: Kwargs) -> object:
    """Call of a cached function. Its cached result is guarded; if that is impossible, the function is interpreted."""
    handler = FUNCTIONS.get(fn.__wrapped__)
    if handler is not None:
        return handler(vm, args, kwargs)
    if has_symbols((*args, *kwargs.values())) and _is_recomputable(fn.__module__ or ""):
        return vm.call(fn.__wrapped__, args, kwargs)
    if not vm.assumptions.may_break and any(type(v) is FakeTensor for v in (*args, *kwargs.values())):
        # The alternative is an error. As in torch.compile, the cache, whose entries keep tensors alive, is not used.
        return vm.call(fn.__wrapped__, args, kwargs)
    args = [without_proxies(specialize(a)) for a in args]
    kwargs = {k: without_proxies(specialize(v)) for k, v in kwargs.items()}
    source = vm.env.sources.get(id(fn))
    if source is None and vm.env.sources.is_created_function(fn):  # and the function that it wraps
        return vm.call_native(fn, args, kwargs)
    source = source or vm.env.sources.const(fn)  # a method, guarded through its class
    wrap_values.wrap(vm.env, fn.__wrapped__, source.child("attr", "__wrapped__"))
    values = (*args, *kwargs.values())
    known = all(_is_static_argument(a) for a in values) and not _may_create_tensors(fn.__wrapped__)
    if known and not library_reads.has_entry(fn, args, kwargs):
        if not _OUTPUT_NAMES.isdisjoint(getattr(getattr(fn.__wrapped__, "__code__", None), "co_names", ())):
            return _defer_call(vm, fn, args, kwargs)
    if library_reads.creates_entry(vm, fn, args, kwargs) and not _may_create_tensors(fn.__wrapped__):
        _check_no_effects(vm, fn, args, kwargs)
    found = library_reads.call_cached(vm, fn, args, kwargs)
    if found is not MISSING:
        return found
    if all(library_reads.is_key(vm, v) for v in values):
        return _defer_call(vm, fn, args, kwargs)
    if _is_recomputable(fn.__module__ or ""):
        return vm.call(fn.__wrapped__, args, kwargs)
    raise unsupported(f"{fn.__qualname__} is cached, and what it is called with is no known key")


def _is_recomputable(module: str) -> bool:
    """Whether this module's cached functions return equal results without identity: einops computes shapes from shapes."""
    return is_native_module(module) or module.partition(".")[0] == "einops"


def _check_no_effects(vm: VM, fn: functools._lru_cache_wrapper[object], args: Args, kwargs: Kwargs) -> None:
    """Raise Unsupported if the function has effects: then only the compiled frame may call it."""
    vm.frames.call_site = None
    log = vm.env.log
    calls, changed = len(log.deferred_calls), log.changed
    log.deferred_calls.append(Call(fn, ()))  # so that cached functions it calls are interpreted too
    try:
        vm.call(fn.__wrapped__, args, kwargs)
    except Unsupported:
        raise
    except Exception:
        del log.deferred_calls[calls:]
        if log.changed == changed:  # the compiled frame repeats the call for the cache's statistics
            repeated = functools.partial(_call_suppressed, fn)
            vm.env.sources.const(repeated)
            log.defer_call(CacheHit(repeated, (*args, *kwargs.values()), tuple(kwargs)))
        raise
    if log.changed != changed or not all(_is_cached_call(call.target) for call in log.deferred_calls[calls:]):
        raise unsupported(f"{fn.__qualname__}, which is cached, has effects", UNSUPPORTED_EFFECT)
    del log.deferred_calls[calls:]


def _call_suppressed(fn: Callable[..., object], /, *args: object, **kwargs: object) -> None:
    with contextlib.suppress(Exception):
        fn(*args, **kwargs)


def _is_cached_call(target: object) -> bool:
    return isinstance(target, (functools._lru_cache_wrapper, functools.partial, library_reads.CreatedEntry))


# Names whose use in a cached function means that it writes output.
_OUTPUT_NAMES = frozenset(
    (
        "print", "write", "warn", "warning", "warning_once", "warn_once", "debug", "info", "error", "critical", "log",
    )
)  # fmt: skip


def _defer_call(vm: VM, fn: functools._lru_cache_wrapper[object], args: Args, kwargs: Kwargs) -> object:
    """Call of a cached function without an entry that writes output or follows a call that does. The compiled frame makes
    the call, so that its cache counts it and decides whether it writes. The entry must then be absent or be the one that the
    compiled frame created. Raises Unsupported if the function has other effects."""
    vm.frames.call_site = None
    log = vm.env.log
    calls, changed = len(log.deferred_calls), log.changed
    result = vm.call(fn.__wrapped__, args, kwargs)
    if log.changed != changed or not is_constant(result):
        raise unsupported(f"{fn.__qualname__}, which is cached, does more than write", OUTPUT)
    del log.deferred_calls[calls:]
    entry = library_reads.CreatedEntry(fn, args, kwargs)
    vm.env.facts.guard("id", vm.env.sources.const(entry.holds).child("call", None), True)
    vm.env.sources.const(entry)
    log.defer_call(Call(entry, (*args, *kwargs.values()), tuple(kwargs)))
    return result


def _is_static_argument(value: object) -> bool:
    """Whether the compiled frame may hold `value` permanently as an argument of the call."""
    return (
        is_constant(value)
        or isinstance(value, (type, enum.Enum, FunctionType, types.ModuleType))
        or type(value).__module__ == "logging"
    )


def _may_create_tensors(fn: object) -> bool:
    code = getattr(fn, "__code__", None)
    return code is None or "torch" in code.co_names
