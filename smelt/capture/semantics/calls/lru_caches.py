"""Calls of `functools.lru_cache` functions."""

from __future__ import annotations

import contextlib
import enum
import functools
import operator
import types
from collections.abc import Callable, Iterator

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import FUNCTIONS, Args, Kwargs, unsupported
from smelt.capture.base.native_functions import is_native_module
from smelt.capture.base.value_kinds import (
    CONTAINER_BASES,
    MISSING,
    FunctionType,
    has_identity_hash,
    is_constant,
    is_identity,
    items_of,
)
from smelt.capture.environment import wrap_values
from smelt.capture.environment.side_effects import CacheHit, Call
from smelt.capture.semantics.calls import library_reads
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.graph.operator_effects import effects
from smelt.reasons import OUTPUT, UNSUPPORTED_EFFECT
from smelt.torch_private import DisableTorchFunction, OpOverload
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
    if not vm.assumptions.may_break and any(isinstance(v, torch.Tensor) for v in (*args, *kwargs.values())):
        return _call_memoized(vm, fn, args, kwargs)
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


def _call_memoized(vm: VM, fn: functools._lru_cache_wrapper[object], args: Args, kwargs: Kwargs) -> object:
    """Call of a cached function with tensors where the graph cannot break. A memo of this capture replaces the cache, whose
    entries keep tensors alive. Raises Unsupported where results may show that no other call's entry is used."""
    tensors = [v for v in _parts_of((args, (*kwargs.values(),))) if isinstance(v, torch.Tensor)]
    own_scope = (
        vm.assumptions.choosing or vm.trace.call.is_opaque or any(type(t) is not FakeTensor for t in tensors)
    )
    if own_scope:  # a branch, checkpoint or transform: its tensors do not leave it
        return vm.call(fn.__wrapped__, args, kwargs)
    memo, key = vm.held.memos.setdefault(id(fn), []), [*args, (*kwargs.items(),)]
    nodes = vm.trace.tape.aten.graph.nodes
    for i, (known, result, count, node) in enumerate(memo):
        is_cut_out = count and (
            count > len(nodes) or nodes[count - 1] is not node
        )  # with a branch of `torch.cond`
        if not is_cut_out and _is_same_key(vm, fn, key, known):
            memo.append(memo.pop(i))
            return result
    if all(map(vm.trace.is_environment, tensors)):  # else no other call has these tensors
        result = _compute_repeatably(vm, fn, args, kwargs)
        vm.held.cached.append((fn.__qualname__, tensors, [*_states(vm, result)]))
    else:
        result = vm.call(fn.__wrapped__, args, kwargs)
    memo.append((key, result, len(nodes), nodes[-1] if nodes else None))
    limit = fn.cache_parameters()["maxsize"]
    del memo[: 0 if limit is None else max(0, len(memo) - limit)]
    return result


def _is_same_key(vm: VM, fn: functools._lru_cache_wrapper[object], a: object, b: object) -> bool:
    """Whether two arguments, or sequences of them, are equal keys of the cache. Guards that."""
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(_is_same_key(vm, fn, x, y) for x, y in zip(a, b))
    if fn.cache_parameters()["typed"] and vm.class_of(a) is not vm.class_of(b):
        return False
    if FakeTensor in (type(a), type(b)):
        for tensor in (a, b):
            hash(tensor)  # so that guards tell the environment's tensors apart
        return a is b
    if has_symbols((a, b)) or (is_constant(a) and is_constant(b)):
        return vm.truth(vm.binary(operator.eq, a, b))
    if not (is_identity(a) or has_identity_hash(a)):
        raise unsupported(f"{fn.__qualname__} is cached, and what it is called with is no known key")
    return vm.is_same(a, b)


def _parts_of(x: object) -> Iterator[object]:
    if isinstance(x, (tuple, list)):
        for part in x:
            yield from _parts_of(part)
    else:
        yield x


def _compute_repeatably(
    vm: VM, fn: functools._lru_cache_wrapper[object], args: Args, kwargs: Kwargs
) -> object:
    """The function's result. Raises Unsupported if it has effects or draws random numbers."""
    log, nodes = vm.env.log, vm.trace.tape.aten.graph.nodes
    before, first = (log.changed, len(log.deferred_calls)), len(nodes)
    result = vm.call(fn.__wrapped__, args, kwargs)
    random = any(effects(n.target).random for n in nodes[first:] if isinstance(n.target, OpOverload))
    if random or before != (log.changed, len(log.deferred_calls)):
        raise unsupported(f"{fn.__qualname__}, which is cached, has effects", UNSUPPORTED_EFFECT)
    return result


def _states(vm: VM, x: object) -> Iterator[tuple[object, object]]:
    """The tensors and containers of a result, each with its version or items."""
    if isinstance(x, torch.Tensor):
        yield x, _state(x)
    elif isinstance(x, (*CONTAINER_BASES, tuple)) and id(x) not in vm.env.sources:
        items = list(x) if isinstance(x, tuple) else items_of(x)
        yield x, items
        for item in items:
            yield from _states(vm, item)


def _state(x: object) -> object:
    if isinstance(x, torch.Tensor):
        with DisableTorchFunction():
            return x._version
    return list(x) if isinstance(x, tuple) else items_of(x)


def check_repeatable(vm: VM) -> None:
    """Raise Unsupported if the capture changed what a cached function was called with or returned: then an entry of another
    call has other contents."""
    for name, tensors, states in vm.held.cached:
        written = any(t.storage_key in vm.trace.writes.storages for t in tensors)
        if written or any(not _is_same_state(state, _state(x)) for x, state in states):
            raise unsupported(f"what {name}, which is cached, takes or returns changes", UNSUPPORTED_EFFECT)


def _is_same_state(a: object, b: object) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_is_same_state, a, b))
    if isinstance(a, tuple) and isinstance(b, tuple):  # a pair of a dictionary
        return a is b or all(map(operator.is_, a, b))
    return a is b or (type(a) is int and a == b)


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
