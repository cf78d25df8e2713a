"""Calls of `functools.lru_cache` functions."""

from __future__ import annotations

import contextlib
import enum
import functools
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import FUNCTIONS, LAZY_FUNCTIONS, Args, Kwargs, unsupported
from smelt.capture.base.native_functions import is_native_module
from smelt.capture.base.value_kinds import (
    CONTAINER_BASES,
    MISSING,
    FunctionType,
    has_identity_hash,
    instance_dict,
    is_constant,
    is_identity,
    is_nan,
    items_of,
)
from smelt.capture.environment import wrap_values
from smelt.capture.environment.mutation_log import slot_names
from smelt.capture.environment.side_effects import CacheHit, Call
from smelt.capture.semantics.calls import library_reads
from smelt.capture.semantics.calls.cached_reads import ReadState, reads_unchanged
from smelt.capture.semantics.calls.python_functions import interpret
from smelt.capture.vm.vm import VM
from smelt.capture.vm.vm_state import CachedCall, Memo, RepeatableCall
from smelt.errors import Unsupported
from smelt.graph.ir import Node
from smelt.graph.operator_effects import Effects, effects
from smelt.reasons import OUTPUT, UNSUPPORTED_EFFECT
from smelt.torch_private import DisableTorchFunction, OpOverload
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.numbers_in_containers import has_symbols
from smelt.tracing.symbolic.sym_numbers import NUMBERS, specialize
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
    raise _unknown_key(fn)


def _call_memoized(vm: VM, fn: functools._lru_cache_wrapper[object], args: Args, kwargs: Kwargs) -> object:
    """Call of a cached function with tensors where the graph cannot break. A memo of this capture replaces the cache, whose
    entries keep tensors alive. Raises Unsupported where the program may see that the cache returns no result of
    an earlier call."""
    args, kwargs = tuple(args), dict(kwargs)  # the called frame may change its own
    parts = [*_parts_of((*args, *kwargs.values()))]
    for part in parts:
        if type(part).__hash__ is None and type(part) not in NUMBERS:
            vm.call(hash, (part,), {})  # raises TypeError
    tensors = [v for v in parts if isinstance(v, torch.Tensor)]
    if vm.assumptions.choosing or any(type(t) is not FakeTensor for t in tensors):
        # tensors of a branch or transform do not leave it; eager runs branches by torch's compiler, which ignores the cache
        return _call_repeatable(vm, fn, args, kwargs)
    is_shared = all(map(vm.trace.is_environment, tensors)) and not vm.env.sources.is_created_function(fn)
    is_known = all(isinstance(v, torch.Tensor) or has_symbols(v) or _is_known_key(v) for v in parts)
    if vm.trace.call.is_opaque:  # nor do those of a checkpoint
        if is_shared and not is_known:
            raise _unknown_key(fn)
        result = _call_repeatable(vm, fn, args, kwargs)
        if is_shared:
            _declare_call(vm, fn, args, kwargs)
        return result
    calls, nodes = vm.held.memos.setdefault(id(fn), Memo(fn)).calls, vm.trace.tape.aten.graph.nodes
    for i, call in enumerate(calls):
        is_cut_out = call.count and (  # with a branch of `torch.cond`
            call.count > len(nodes) or nodes[call.count - 1] is not call.last
        )
        if not is_cut_out and _is_same_call(vm, fn, call, args, kwargs):
            calls.append(calls.pop(i))
            return call.result
    # Else no other call has these tensors, or this function.
    if is_shared:
        if not is_known:
            raise _unknown_key(fn)
        result = _call_repeatable(vm, fn, args, kwargs)
        _declare_call(vm, fn, args, kwargs)
    else:
        result = vm.call(fn.__wrapped__, args, kwargs)
    calls.append(CachedCall(args, kwargs, result, len(nodes), nodes[-1] if nodes else None))
    limit = fn.cache_parameters()["maxsize"]
    del calls[: 0 if limit is None else max(0, len(calls) - limit)]
    return result


def _declare_call(
    vm: VM, fn: functools._lru_cache_wrapper[object], args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """Have the compiled frame declare a call that the graph makes, in place of the entry that eager creates."""
    values = (*args, *kwargs.values())
    read = [v for v in values if not (isinstance(v, torch.Tensor) or has_symbols(v))]
    replaced = library_reads.ReplacedCall(fn, ReadState(fn, read))
    vm.env.sources.const(replaced)
    vm.env.log.defer_call(CacheHit(replaced, values, tuple(kwargs)))


def _is_same_call(
    vm: VM, fn: functools._lru_cache_wrapper[object], call: CachedCall, args: Args, kwargs: Kwargs
) -> bool:
    """Whether a call has the key of another one. Guards that."""
    if len(call.args) != len(args) or list(call.kwargs) != list(kwargs):
        return False
    pairs = [*zip(call.args, args), *zip(call.kwargs.values(), kwargs.values())]
    if fn.cache_parameters()["typed"] and any(vm.class_of(a) is not vm.class_of(b) for a, b in pairs):
        return False
    return all(_is_same_key(vm, fn, a, b) for a, b in pairs)


def _is_same_key(vm: VM, fn: functools._lru_cache_wrapper[object], a: object, b: object) -> bool:
    """Whether two arguments are equal keys of the cache. Guards that."""
    if type(a) is type(b) is tuple:
        return len(a) == len(b) and all(_is_same_key(vm, fn, x, y) for x, y in zip(a, b))
    if FakeTensor in (type(a), type(b)):
        for tensor in (a, b):
            hash(tensor)  # so that guards tell the environment's tensors apart
        return a is b
    if is_nan(a) or is_nan(b):
        vm.env.facts.use_nan(a)
        vm.env.facts.use_nan(b)
        return a is b
    if has_symbols((a, b)) or (is_constant(a) and is_constant(b)):
        return a is b or vm.truth(vm.binary(operator.eq, a, b))
    if not _is_known_key(a):
        raise _unknown_key(fn)
    return vm.is_same(a, b)


def _is_known_key(x: object) -> bool:
    return is_constant(x) or is_identity(x) or has_identity_hash(x)


def _unknown_key(fn: functools._lru_cache_wrapper[object]) -> Unsupported:
    name = library_reads.function_name(fn)
    return unsupported(f"{name} is cached, and what it is called with is no known key")


def _parts_of(x: object) -> Iterator[object]:
    if isinstance(x, tuple):
        for part in tuple.__iter__(x):
            yield from _parts_of(part)
    else:
        yield x


def _call_repeatable(vm: VM, fn: functools._lru_cache_wrapper[object], args: Args, kwargs: Kwargs) -> object:
    """The result of a call whose entry another call may use. Raises Unsupported if it has effects or draws randomly."""
    log, nodes, values = vm.env.log, vm.trace.tape.aten.graph.nodes, (*args, *kwargs.values())
    writes, deferred, first = log.writes, len(log.deferred_calls), len(nodes)
    result = vm.call(fn.__wrapped__, args, kwargs)
    is_shared = all(vm.trace.is_environment(t) for t in _parts_of(values) if isinstance(t, torch.Tensor))
    made = {n for n in nodes[first:] if n.op != "placeholder"}
    calls = [(n, effects(n.target)) for n in nodes[first:] if isinstance(n.target, OpOverload)]
    if (
        log.writes != writes
        or any(type(call) is not CacheHit for call in log.deferred_calls[deferred:])
        or any(e.random for _, e in calls)
        or not _written_by(nodes[first:]) <= made
    ):
        name = library_reads.function_name(fn)
        raise unsupported(f"{name}, which is cached, has effects", UNSUPPORTED_EFFECT)
    read = {_base_of(x) for n, _ in calls for x in _nodes_in((n.args, n.kwargs))} - made
    states = [*_states(vm, fn, result)]
    vm.held.repeatable.append(RepeatableCall(fn, values, read, made, states, 0 if is_shared else writes))
    return result


def _written_by(nodes: Iterable[Node]) -> set[Node]:
    """The nodes that created the memory that `nodes` write."""
    calls = ((n, effects(n.target)) for n in nodes if isinstance(n.target, OpOverload))
    return {_base_of(w) for n, e in calls for name in e.writes for w in _nodes_in(_argument(n, e, name))}


def _nodes_in(x: object) -> Iterator[Node]:
    if isinstance(x, Node):
        yield x
    elif isinstance(x, (tuple, list, dict)):
        for part in x.values() if isinstance(x, dict) else x:
            yield from _nodes_in(part)


def _argument(node: Node, effect: Effects, name: str) -> object:
    at = effect.names.index(name) if name in effect.names else len(node.args)
    return node.args[at] if at < len(node.args) else node.kwargs.get(name)


def _base_of(node: Node) -> Node:
    """The node that created the memory of this node's result."""
    while True:
        if node.target is operator.getitem:
            node = node.args[0]
        if not isinstance(node.target, OpOverload):
            return node
        effect = effects(node.target)
        shared = [r.arg for r in effect.results if r.kind != "fresh"]
        inner = next(_nodes_in([_argument(node, effect, name) for name in shared]), None)
        if inner is None:
            return node
        node = inner


def _states(
    vm: VM, fn: functools._lru_cache_wrapper[object], x: object
) -> Iterator[tuple[object, list[object]]]:
    """The objects of a result, each with its state. Raises Unsupported for one whose state is unknown."""
    if is_constant(x) or is_identity(x) or type(x) in NUMBERS or id(x) in vm.env.sources:
        return
    if not isinstance(x, (torch.Tensor, tuple, *CONTAINER_BASES)) and instance_dict(x) is None:
        name = library_reads.function_name(fn)
        raise unsupported(f"{name}, which is cached, returns a {type(x).__qualname__}", UNSUPPORTED_EFFECT)
    state = _state(x)
    yield x, state
    for part in [] if isinstance(x, torch.Tensor) else state:
        for item in part if type(part) is tuple else (part,):
            yield from _states(vm, fn, item)


def _state(x: object) -> list[object]:
    """The version and the attributes of a tensor, the items of a container, the attributes of an instance."""
    own = instance_dict(x)
    state: list[object] = [*(own or {}).items()]
    if isinstance(x, torch.Tensor):
        with DisableTorchFunction():
            return [*state, x._version]
    if isinstance(x, tuple):
        return [*state, *tuple.__iter__(x)]
    if isinstance(x, CONTAINER_BASES):
        return [*state, *items_of(x)]
    return [*state, *((n, getattr(x, n, None)) for n in slot_names(type(x)))]


def check_repeatable(vm: VM) -> None:
    """Raise Unsupported if the capture changed what a cached function read or returned: then an entry of another call has
    other contents."""
    if not vm.held.repeatable:
        return
    inputs, nodes = vm.trace.inputs, vm.trace.tape.aten.graph.nodes
    storages = vm.trace.writes.storages
    written = {_base_of(inputs.aten_node(t)) for key in storages for t in inputs.in_storage(key)}
    for call in vm.held.repeatable:
        if (
            not call.read.isdisjoint(written)
            or not call.made.isdisjoint(_written_by(n for n in nodes if n not in call.made))
            or any(t.storage_key in storages for t in _parts_of(call.values) if type(t) is FakeTensor)
            or not all(_is_same_state(state, _state(x)) for x, state in call.states)
            or (
                vm.env.log.writes != call.writes
                and not reads_unchanged(vm, call.fn, call.values, tensors=False)
            )
        ):
            name = library_reads.function_name(call.fn)
            raise unsupported(f"what {name}, which is cached, reads or returns changes", UNSUPPORTED_EFFECT)


def _is_same_state(a: list[object], b: list[object]) -> bool:
    return len(a) == len(b) and all(map(_is_same_part, a, b))


def _is_same_part(a: object, b: object) -> bool:
    if type(a) is type(b) is tuple and len(a) == len(b):
        return a is b or all(map(_is_same_part, a, b))
    return a is b or (type(a) is type(b) is int and a == b)


def _is_recomputable(module: str) -> bool:
    """Whether this module's cached functions return equal results without identity: einops computes shapes from shapes."""
    return is_native_module(module) or module.partition(".")[0] == "einops"


def _find_backend(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """`einops._backends.get_backend(tensor)`, after native code has filled einops' table of backends: the first call for a
    class of tensors is no effect of the program."""
    find = sys.modules["einops._backends"].get_backend
    kind = vm.class_of(args[0]) if args else None
    if kind in (torch.Tensor, torch.nn.Parameter):
        with vm.trace.paused():
            find(kind(torch.empty(0)))
    return interpret(vm, find, args, kwargs)


LAZY_FUNCTIONS["einops._backends", "get_backend"] = _find_backend


def _check_no_effects(vm: VM, fn: functools._lru_cache_wrapper[object], args: Args, kwargs: Kwargs) -> None:
    """Raise Unsupported if the function has effects: then only the compiled frame may call it."""
    vm.frames.call_site = None
    log = vm.env.log
    calls, changed, writes = len(log.deferred_calls), log.changed, log.writes
    log.deferred_calls.append(Call(fn, ()))  # so that cached functions it calls are interpreted too
    try:
        vm.call(fn.__wrapped__, args, kwargs)
    except Unsupported:
        raise
    except Exception:
        del log.deferred_calls[calls:]
        if (log.changed, log.writes) == (
            changed,
            writes,
        ):  # the compiled frame repeats the call for the cache's statistics
            repeated = functools.partial(_call_suppressed, fn)
            vm.env.sources.const(repeated)
            log.defer_call(CacheHit(repeated, (*args, *kwargs.values()), tuple(kwargs)))
        raise
    if (log.changed, log.writes) != (changed, writes) or not all(
        _is_cached_call(call.target) for call in log.deferred_calls[calls:]
    ):
        raise unsupported(
            f"{library_reads.function_name(fn)}, which is cached, has effects", UNSUPPORTED_EFFECT
        )
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
    calls, changed, writes = len(log.deferred_calls), log.changed, log.writes
    result = vm.call(fn.__wrapped__, args, kwargs)
    if (log.changed, log.writes) != (changed, writes) or not is_constant(result):
        raise unsupported(f"{library_reads.function_name(fn)}, which is cached, does more than write", OUTPUT)
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
