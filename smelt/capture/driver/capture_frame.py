"""One capture: the VM runs a frame from its argument slots to its end, or to a graph break.

`capture_frame` returns the graphs, the guards, the frame's exit and the effects. It leaves environment objects unchanged,
whatever happens.
"""

from __future__ import annotations

import functools
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.base.value_kinds import MISSING, NULL, FunctionType
from smelt.capture.base.vm_frames import Frame, is_smelt_scope
from smelt.capture.driver.capture_attempts import Attempt, FailedAttempt, Stop
from smelt.capture.driver.capture_errors import UserException
from smelt.capture.emit.compiled_frame import collected, is_created
from smelt.capture.environment import environment_mutations, wrap_values
from smelt.capture.environment.environment import Environment
from smelt.capture.environment.python_random import Draw
from smelt.capture.environment.side_effects import Call, DelItem, Effect, SetChange
from smelt.capture.environment.symbolic_size_policy import Path, Range
from smelt.capture.graph_breaks import finalizers, graph_break
from smelt.capture.graph_breaks.frame_exits import FrameExit, Return
from smelt.capture.graph_breaks.graph_break import Break
from smelt.capture.graph_breaks.live_locals import used_slots
from smelt.capture.graph_breaks.resume_functions import OriginalCode
from smelt.capture.interpreter.interpreter import Interpreter, Stopped
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.proxies.text_proxy import TextProxy, Unreadable
from smelt.capture.reconstruction.reconstruction_order import collect_fakes, find_reachable
from smelt.capture.semantics import cells
from smelt.capture.semantics.calls import lru_caches
from smelt.capture.semantics.values import context_managers
from smelt.capture.stdlib import weak_references
from smelt.capture.stdlib.output import warnings_calls
from smelt.capture.torch_calls import function_transforms, storages
from smelt.capture.torch_calls.autograd import custom_functions, hooks, opaque_calls, tensor_state
from smelt.capture.vm.vm import VM
from smelt.errors import NeedsFixedSize, Unsupported
from smelt.graph import torch_settings
from smelt.graph.sample_sizes import syms_of
from smelt.guards import global_state
from smelt.guards.guard import Guard
from smelt.guards.guard_kinds import are_disjoint
from smelt.guards.object_lifetimes import Lifetimes, lifetimes_of
from smelt.guards.source import Source
from smelt.reasons import CHANGING_VALUE, DATA_DEPENDENT, DATA_DEPENDENT_SHAPE, UNSUPPORTED_EFFECT, Reason
from smelt.runtime.gc_pause import collections_postponed
from smelt.runtime.recursion_limit import deep_recursion
from smelt.shapes.divisibility import is_remainder
from smelt.shapes.expr import Size, Sym, free_syms, subs
from smelt.torch_private import set_grad_enabled
from smelt.tracing.fake.fake_tensor import FakeTensor, hashed_fakes
from smelt.tracing.record.traced import Traced
from smelt.tracing.symbolic.symbolic_numbers import Symbols
from smelt.user_lines import parameters_called


@dataclass
class CapturedFrame:
    """The result of a capture. The values in `ending` and `effects` are real objects in which tensors are fakes."""

    traced: Traced
    input_sources: tuple[Source, ...]
    guards: tuple[Guard, ...]
    frame_exit: FrameExit
    source_of: Callable[[object], Source | None]
    effects: tuple[Effect, ...]
    draws: tuple[Draw, ...]
    code: types.CodeType
    name: str
    env: Environment
    has_handlers: bool  # the program has exception handlers
    user_modes: int  # the number of innermost torch-function modes of the call whose handlers capture calls
    assumed: bool  # a condition on a tensor was assumed
    release: Callable[[], None]  # `VM.release`, to be called when this is no longer needed

    @functools.cached_property
    def lifetimes(self) -> Lifetimes:
        """The objects that every call which the guards accept keeps alive."""
        return lifetimes_of(self.guards)

    @property
    def result(self) -> object:
        """The frame's return value."""
        assert isinstance(self.frame_exit, Return)
        return self.frame_exit.result


@contextmanager
def _capture_settings() -> Iterator[None]:
    """Postpone garbage collection (else a third of the time), raise the recursion limit, restore the grad mode."""
    grad = torch.is_grad_enabled()
    try:
        with collections_postponed(), deep_recursion():
            yield
    finally:
        set_grad_enabled(grad)


def capture_frame(
    fn: FunctionType, slots: Sequence[object], attempt: Attempt, *, name: str
) -> CapturedFrame | FailedAttempt:
    """Capture a call of `fn` whose frame has these argument slots, to its end or to the stop of `attempt`.

    Errors that end an attempt: `Unsupported` (with the user's line and stack, and the `path` of a stop before the
    instruction that raised it), `NotDifferentiable` if the attempt records a joint graph, `NotCopies` if it allows copies,
    `UserException`, and internal errors of smelt.
    """
    vm = _new_vm(attempt)
    captured = None
    with _capture_settings():
        try:
            captured = _capture(vm, fn, slots, name, attempt.stop)
            return captured
        except Exception as e:
            if vm.env.sizes.need_recapture:  # a size that was not specialized may cause any error
                return _failed(vm, _recapture_error(vm.env))
            if isinstance(e, NeedsFixedSize):
                e = _unbacked_error(vm, e)
            if isinstance(e, Unsupported):
                vm.locate(e)
                if isinstance(e, Unreadable):
                    e.reason = _changing_value(vm, e, attempt.unguarded) or e.reason
                e.__traceback__ = None  # its frames would keep the call's arguments alive
            return _failed(vm, e)
        finally:
            context_managers.revert_contexts(vm)
            function_transforms.restore(vm.contexts.transforms)
            vm.env.log.roll_back()
            vm.exceptions.restore()
            if vm.trace.numbers.symbols is not None:
                vm.trace.numbers.symbols.release()
            vm.trace.numbers.symbols_for_unbacked = None  # a reference cycle with the VM
            vm.env.sizes.end()
            if captured is None:
                vm.release()


def _new_vm(attempt: Attempt) -> VM:
    """A VM with the assumptions of `attempt`."""
    vm = Interpreter()
    vm.trace.autograd.wants_joint = attempt.joint_graph
    vm.trace.autograd.hides_intermediates = attempt.hides_intermediates
    vm.trace.copies.allowed = attempt.copies
    vm.trace.module_calls.records = attempt.records_modules
    vm.frames.depth_limit -= _stack_depth()
    vm.stop_point.path = attempt.stop.path if attempt.stop else ()
    vm.env.numbers.dynamic = attempt.symbolic
    vm.env.facts.unguarded = attempt.unguarded
    vm.env.facts.unknown = attempt.unknown
    vm.env.numbers.symbolic_counts = attempt.symbolic_counts
    vm.env.numbers.guards_conditions = attempt.guards_conditions
    vm.env.sizes.symbol_sources.policy = attempt.sizes
    if attempt.unbacked_sizes and attempt.assumes:
        vm.trace.numbers.symbols_for_unbacked = lambda: _unbacked_symbols(vm, attempt.unbacked_value)
    vm.env.looks_ahead = attempt.looks_ahead
    vm.assumptions.compiling = attempt.reports_compiling
    vm.assumptions.assumes = attempt.assumes
    vm.assumptions.selects = attempt.selects
    vm.assumptions.captures_jumps = attempt.captures_jumps
    vm.assumptions.uncaptured_jumps = attempt.uncaptured_jumps
    vm.assumptions.joins_numbers = attempt.joins_numbers
    vm.assumptions.trusts_marks = attempt.trusts_marks
    vm.assumptions.records_warnings = attempt.records_warnings
    vm.assumptions.assigns_data = attempt.assigns_data
    vm.env.log.refuses = None if attempt.defers_drops else finalizers.has_finalizer
    vm.assumptions.may_break = attempt.may_break
    return vm


def _unbacked_error(vm: VM, error: NeedsFixedSize) -> Unsupported:
    """`error`, or, if the sizes that must be specialized are unbacked, an error that breaks the graph."""
    known = vm.trace.numbers.symbols and vm.trace.numbers.symbols.unbacked
    found = known.among(sorted(error.symbols, key=str)) if known else []
    if not found or vm.env.sizes.paths_of(error.symbols):
        return error
    names = " and ".join(f"{n.sym} is {n.what}" for n in found)
    unsupported = Unsupported(Reason(DATA_DEPENDENT_SHAPE, f"{error.reason.detail}, where {names}"))
    unsupported.path, unsupported.breaks = error.path, error.breaks
    return unsupported


def _unbacked_symbols(vm: VM, number: int | None) -> Symbols:
    symbols = vm.env.numbers.symbols()
    symbols.unbacked.specialized_value = number
    return symbols


def _changing_value(vm: VM, error: Unreadable, unguarded: frozenset[Path]) -> Reason | None:
    """The reason for an error about an unguarded object, or about a string that shows unguarded strings or numbers; else
    None."""
    opaque = [s.source for s in _read_sources(vm, error) if type(vm.env.wrapped.unread[s]) is OpaqueProxy]
    numbers = sorted(vm.assumptions.formatted_numbers, key=lambda source: source.source)
    changing = [s.source for s in (*vm.env.wrapped.unread, *numbers) if s.path in unguarded]
    if not changing:
        return None
    detail = f"characters of text with {' or '.join(changing)} in it, which differs from call to call"
    if opaque:
        detail = f"the value of {' or '.join(opaque)}"
    return replace(error.reason, kind=CHANGING_VALUE, detail=detail)


def _read_sources(vm: VM, error: Exception) -> list[Source]:
    """The sources of the strings and objects that change and that the program read, as far as `error` knows them."""
    pending = list(error.values) if isinstance(error, Unreadable) else []
    values: list[object] = []
    for value in pending:
        values.append(value)
        if type(value) is TextProxy:
            pending += value.args
    return [source for source, proxy in vm.env.wrapped.unread.items() if any(v is proxy for v in values)]


def _failed(vm: VM, error: Exception) -> FailedAttempt:
    symbols = vm.trace.numbers.symbols
    if isinstance(error, NeedsFixedSize):
        error.sources = vm.env.sizes.sources(error.symbols)
    return FailedAttempt(
        error,
        used_unbacked=symbols is not None and bool(symbols.unbacked.numbers),
        selecting=vm.assumptions.choosing > 0,
        jump=vm.conditional_jumps.running,
        captured_jumps=vm.conditional_jumps.captured > 0,
        joined_numbers=vm.conditional_jumps.joined_numbers,
        marked=vm.assumptions.marked_depth > 0,
        used_symbols=vm.trace.numbers.symbols is not None,
        formatted_numbers=frozenset(source.path for source in vm.assumptions.formatted_numbers),
        unread=frozenset(source.path for source in vm.env.wrapped.unread),
        read=frozenset(source.path for source in _read_sources(vm, error)),
        formatted_sizes=vm.env.sizes.paths_of(vm.assumptions.formatted_sizes),
        counts=frozenset(source.path for source in vm.env.numbers.unguarded),
        sizes=needed_sizes(vm.env, error),
        divisors=divided_sizes(vm.env, error),
        ranges=narrowed_sizes(vm.env, error),
        equal=equal_sizes(vm.env, error),
        derived=derived_sizes(vm, error),
    )


def needed_sizes(env: Environment, error: Exception) -> frozenset[frozenset[Path]]:
    """The paths of each symbolic size that must be specialized, for the program or for the failed operation."""
    named = error.symbols if isinstance(error, NeedsFixedSize) else frozenset()
    return env.sizes.paths_of(env.sizes.needed | named)


def equal_sizes(env: Environment, error: Exception) -> frozenset[Path]:
    """The paths of the sizes that only need to share a symbol."""
    if not isinstance(error, NeedsFixedSize) or env.sizes.needed:
        return frozenset()
    return frozenset[Path]().union(*env.sizes.paths_of(error.equal))


def derived_sizes(vm: VM, error: Exception) -> frozenset[tuple[Path, Size]]:
    """The paths and expressions of derived sizes and of the sizes they derive from. A symbol is named by one of its paths; a
    symbol that this capture does not have is an integer factor, and has no path."""
    sizes, symbols = vm.env.sizes, vm.trace.numbers.symbols
    if not isinstance(error, NeedsFixedSize) or symbols is None or sizes.needed:
        return frozenset()
    derived: set[tuple[Path, Size]] = set()
    for sym, size in error.derived.items():
        paths = {s: sizes.paths_of_full_size(s) for s in (sym, *free_syms(size)) if s in symbols.hints}
        if not all(paths.values()):
            continue  # unbacked, or only a factor of a size
        named = {s: Sym(str(min(of_sym, key=str)), 2) for s, of_sym in paths.items()}
        factors = {s: Sym(f"{named[sym]} times", 2) for s in free_syms(size) - paths.keys()}
        derived |= {(path, named[s]) for s in free_syms(size) & paths.keys() for path in paths[s]}
        derived |= {(path, subs(size, named | factors)) for path in paths[sym]}
    return frozenset(derived)


def divided_sizes(env: Environment, error: Exception) -> frozenset[tuple[Path, int]]:
    """The paths and divisors of sizes whose remainder may suffice."""
    if not isinstance(error, NeedsFixedSize) or env.sizes.needed:
        return frozenset()
    divided = (
        (sym, by) for sym, by in error.divisors.items() if not is_remainder(sym)
    )  # those are numbers then
    grouped = ((env.sizes.paths_of((sym,)), by) for sym, by in divided)
    return frozenset((path, by) for groups, by in grouped for paths in groups for path in paths)


def narrowed_sizes(env: Environment, error: Exception) -> frozenset[tuple[Path, Range]]:
    """The paths and ranges of sizes whose range may suffice."""
    sizes = env.sizes
    ranges = {**sizes.symbol_sources.narrowed, **(error.ranges if isinstance(error, NeedsFixedSize) else {})}
    return sizes.symbol_sources.source_ranges(
        (sym, ends) for sym, ends in ranges.items() if sym not in sizes.needed
    )


def _capture(
    vm: VM, fn: FunctionType, slots: Sequence[object], name: str, stop: Stop | None
) -> CapturedFrame:
    env, trace = vm.env, vm.trace
    vm.contexts.under_modes = context_managers.is_under_modes()
    function_transforms.check_start(vm.contexts.transforms)
    global_state.settle()
    snapshot = global_state.snapshot()
    vm.contexts.switches = global_state.switches()
    env.facts.guard("global_state", None, snapshot)
    env.sources.const(fn)
    env.sources.register_created_function(fn)  # entries belong to its code object
    code = vm.decode(fn.__code__)
    hashed_fakes.clear()
    depth = torch_settings.autocast_depth()
    context_managers.enter_modes_of_call(vm)
    with trace:
        state_inside = global_state.snapshot()
        frame = Frame(code, fn, [NULL] * code.nlocals)
        names = parameters_called(fn)
        roots = [
            Source("arg", name, None, i, names=names if name == "args" else ())
            for i, name in enumerate(code.local_names[: len(slots)])
        ]
        env.sizes.begin(roots, slots)
        used = used_slots(code, fn.__code__)
        for i in env.sizes.symbol_sources.policy.argument_order(len(slots)):
            if i in used:
                frame.locals[i] = wrap_values.wrap(env, slots[i], roots[i])
        try:
            frame_exit = _run_root(vm, frame, stop)
            _check_exit(vm, frame_exit)
            if not isinstance(frame_exit, Return):
                context_managers.check_replayed(state_inside)
            settings = context_managers.context_effects(vm)
        finally:
            # under the modes of the trace, as when the contexts were entered
            context_managers.revert_contexts(vm)
            function_transforms.restore(vm.contexts.transforms)
        tensor_state.replay_versions(vm)
        effects = (*env.log.effects(env.native_views.guarded), *settings)
        if vm.assumptions.may_break:
            kept = [e for e in effects if not isinstance(e, (Call, DelItem, SetChange))]
            finalizers.check_overwritten(vm, _live_values(frame_exit, kept))
        custom_functions.record_backward(vm, _live_values(frame_exit, effects))
        environment_mutations.guard_distinct(env)
        _guard_distinct_tensors(vm)
        _guard_offsets(vm)
        _guard_write_permissions(vm)
        _guard_deletions(vm)
        hooks.check_unwritten(vm)
        opaque_calls.check_held(vm)
        storages.check_resized(vm)
        for fake, wrapper, path in trace.wrapper_gradients.gradient_inputs():
            env.sources[id(fake)] = env.sources[id(wrapper)].child("gradient", path)
        env.log.roll_back()
        if vm.assumptions.may_break:
            finalizers.guard_overwritten(vm)
        fakes = _fakes(vm, frame_exit, effects)
        tensor_state.check_left(vm, fakes)
        tensor_state.check_counters(vm, fakes)
        if vm.contexts.under_modes:
            custom_functions.check_history([*fakes, *trace.inputs])
        trace.copies.check((*fakes, *trace.writes.addressed_from_start))
        _check_needed(env)
        traced = trace.finish(fakes)
        env.facts.guard_classes()
        _check_needed(env)  # `finish` records backwards, whose C++ code may need specialized sizes as well
    if (
        global_state.snapshot() != snapshot
        or torch_settings.autocast_depth() != depth
        or global_state.switches() != vm.contexts.switches
    ):
        raise Unsupported(
            Reason(UNSUPPORTED_EFFECT, "global state (grad mode, autocast, ...) is different at the end")
        )
    return CapturedFrame(
        traced=traced,
        input_sources=tuple(env.sources[id(f)] for f in traced.inputs),
        guards=(*env.facts.guards, *_overlap_guards(vm, traced)),
        frame_exit=frame_exit,
        source_of=env.sources.find,
        effects=effects,
        draws=tuple(env.log.draws),
        code=fn.__code__,
        name=name,
        env=env,
        has_handlers=vm.exceptions.has_handlers,
        user_modes=len(global_state.set_aside_modes()),
        assumed=vm.assumptions.assumed,
        release=vm.release,
    )


def _check_needed(env: Environment) -> None:
    if env.sizes.need_recapture:
        raise _recapture_error(env)


def _recapture_error(env: Environment) -> NeedsFixedSize:
    sizes = env.sizes
    what = (
        "the program needs its value: the size is specialized"
        if sizes.needed
        else "the program needs its range"
    )
    error = NeedsFixedSize(what, sizes.needed or frozenset(sizes.symbol_sources.narrowed))
    error.reason = replace(error.reason, line=sizes.needed_at)
    return error


def _run_root(vm: VM, frame: Frame, stop: Stop | None) -> FrameExit:
    vm.frames.root = frame
    frame.stop = vm.stop_point.path[0] if vm.stop_point.path else 0
    vm.running = True
    try:
        with warnings_calls.show_library_warnings(vm):
            frame_exit = _run_to_end(vm, frame)
        if frame_exit is None:
            assert stop is not None
            return _plan_break(vm, stop)
    finally:
        vm.running = False
    if stop is not None:
        raise RuntimeError("capture did not reach the instruction at which it was to stop")
    return frame_exit


def _run_to_end(vm: VM, frame: Frame) -> Return | None:
    """Run `frame`; None if it reached the stop."""
    try:
        return Return(vm.run(frame))
    except Stopped:
        return None
    except Unsupported:
        raise
    except BaseException as e:
        if isinstance(e, KeyboardInterrupt) and e is not vm.exceptions.program_interrupt:
            raise
        if vm.failure is not None:
            raise vm.failure from e
        # The traceback of a cause may be dropped later; an exception of the environment must keep its own.
        cause = None if id(e) in vm.env.sources else e
        raise UserException(e, vm.current_line(), vm.assumptions.was_queried) from cause


def _stack_depth() -> int:
    """The number of Python frames below the captured one, without those of smelt."""
    depth, frame = 0, sys._getframe().f_back
    while frame is not None:
        depth, frame = depth + (not is_smelt_scope(frame.f_globals)), frame.f_back
    return depth


def _plan_break(vm: VM, stop: Stop) -> Break:
    frames = vm.stop_point.frames
    _check_generators(vm)
    function_transforms.check_break(vm.contexts.transforms)
    for frame in frames:
        frame.pc -= 1
        cells.register_cells(vm, frame)
    originals = OriginalCode(vm.decode, finalizers.referenced_by_weakref(vm))
    planned = graph_break.plan(originals, vm.decode, frames, stop.error)
    _check_references(vm, planned)
    return planned


def _check_references(vm: VM, planned: Break) -> None:
    """Raise Unsupported for a weak reference that is dead after the break but whose existence the program can observe."""
    sources, live = vm.env.sources, {id(v) for v in planned.roots}
    for value in (v for frame in vm.stop_point.frames for v in (*frame.locals, *frame.stack)):
        if not issubclass(type(value), (weakref.ref, *weakref.ProxyTypes)) or id(value) in sources:
            continue
        if id(value) not in live and _is_observable(vm, value, planned):
            raise Unsupported(
                Reason(UNSUPPORTED_EFFECT, "a graph break while a variable is a weak reference")
            )


def _is_observable(vm: VM, variable: object, planned: Break) -> bool:
    """Whether code after the break can observe that a weak reference is gone. The target of a proxy is unknown."""
    if type(variable) in weakref.ProxyTypes:
        return True
    reference, sources = cast("weakref.ref[object]", variable), vm.env.sources
    target = reference()
    if target is None or id(target) in sources or reference.__callback__ is not None:
        return target is not None
    return any(x is target for x in find_reachable(planned.roots, sources.find).alive)


def _check_generators(vm: VM) -> None:
    """Raise Unsupported for a live generator with a `finally` to run: the caller of a resume function would keep it alive
    for longer than the user's code does."""
    held = {id(v) for frame in vm.stop_point.frames for v in (*frame.stack, *frame.locals)}
    for generator in filter(None, (ref() for ref in vm.frames.generators)):
        if id(generator) in held and generator.has_cleanup:
            raise Unsupported(
                Reason(UNSUPPORTED_EFFECT, "a graph break while a generator is inside of `try` or `with`")
            )


def _check_exit(vm: VM, frame_exit: FrameExit) -> None:
    if vm.failure is not None:  # native code swallowed it
        raise vm.failure
    if vm.contexts.entered and isinstance(frame_exit, Return):
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a context manager is entered and not left"))
    weak_references.check_callbacks(vm)
    lru_caches.check_repeatable(vm)
    if vm.contexts.tokens:
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a ContextVar is set"))
    if vm.assumptions.choosing:
        raise Unsupported(Reason(DATA_DEPENDENT, "a branch was left by an exception"))


def _fakes(vm: VM, frame_exit: FrameExit, effects: Sequence[Effect]) -> list[FakeTensor]:
    """The tensors that the frame's exit and effects need."""
    return collect_fakes(_live_values(frame_exit, effects), vm.env.sources.find)


def _live_values(frame_exit: FrameExit, effects: Sequence[Effect]) -> list[object]:
    operands = [v for e in effects for v in vars(e).values() if v is not e.target and v is not MISSING]
    return [*frame_exit.roots, *operands]


def _guard_distinct_tensors(vm: VM) -> None:
    """Guard that tensors which were put into sets or used as keys are distinct; that those with a ragged size are; and that
    those whose state the program changed are distinct from those whose state it used."""
    trace, sources = vm.trace, vm.env.sources
    if any(f.alternatives for f in (*hashed_fakes.values(), *vm.held.with_grad)):
        trace.copies.distinguished = True  # it may be one that it is compared with
    hashed = [sources[id(f)] for f in hashed_fakes.values() if trace.is_environment(f)]
    hashed_fakes.clear()
    used = _is_state_used(vm)
    inputs = [sources[id(f)] for f in trace.inputs if id(f) in sources] if used else []
    stateful = [s for s in inputs if collected(s) is s and not is_created(s) and used and used(s)]
    ragged = [sources[id(f)] for f in trace.nested.ragged.values() if trace.is_environment(f)]
    for key, distinct in (("hashed", hashed), ("state", stateful), ("ragged", ragged)):
        if len(distinct) > 1:
            vm.env.facts.guard("distinct", distinct[0], tuple(distinct), key=key)


def _is_state_used(vm: VM) -> Callable[[Source], bool] | None:
    """Whether the program used the state of the tensor at a source that it changed on another tensor; None if it changed
    none. Any use of a tensor depends on its `data`, flags and hooks, but not on attributes such as `grad`."""
    trace, sources = vm.trace, vm.env.sources
    called = (f for fakes in trace.autograd.flag_calls.values() for f in fakes)
    hooked = (f for f, _ in vm.held.hooked)
    if trace.inputs.rebound or any(map(trace.is_environment, (*called, *hooked))):
        return lambda source: True
    found = {sources[id(f)] for f in vm.env.log.tensors_with_attributes()}
    if not found:
        return None
    for guard in vm.env.facts.guards:  # an attribute that was read, or is missing, is guarded
        is_missing = guard.kind.of_instance and guard.value != "_is_param"  # every tensor lacks that
        source = guard.source if is_missing else guard.source and guard.source.base
        while source is not None and source not in found:
            found.add(source)
            source = source.base
    return found.__contains__


def _guard_offsets(vm: VM) -> None:
    """Guard the storage offsets of inputs whose storage is addressed from its start."""
    storages = {f.storage_key for f in vm.trace.writes.addressed_from_start}
    for fake in vm.trace.inputs if storages else ():
        if fake.storage_key in storages:
            real = vm.trace.inputs.real(fake)
            offset = (fake.elem if real is None else real).storage_offset()
            if offset and syms_of(fake.spec):
                raise NeedsFixedSize("an input's storage is addressed from its start", syms_of(fake.spec))
            source = vm.env.sources[id(fake)].child("member", "storage_offset").child("call", None)
            vm.env.facts.guard("eq", source, offset)


def _guard_write_permissions(vm: VM) -> None:
    """Guard whether autograd allows an in-place write of an input."""
    for fake, how in vm.trace.writes.autograd_writes.values():
        vm.env.facts.guard("write_restriction", vm.env.sources[id(fake)], how)


def _guard_deletions(vm: VM) -> None:
    """Guard whether each deleted attribute, slot or key existed before: that decides what the compiled frame deletes."""
    for deletion in vm.env.log.deletions():
        source = vm.env.sources.find_or_const(deletion.owner)
        if deletion.kind == "attribute":
            source = source.child("dict", None)
        fact = (deletion.name, deletion.existed)
        vm.env.facts.guard("slot" if deletion.kind == "slot" else "contains", source, fact, key=deletion.name)


def _overlap_guards(vm: VM, traced: Traced) -> list[Guard]:
    """Guards that mutated inputs share no memory with other inputs. Those that share a storage with a mutated input in this
    call must share it, at the same offsets, in every call."""
    inputs = [(f, vm.env.sources[id(f)]) for f in traced.inputs]
    existing = [(f, collected(source)) for f, source in inputs if not is_created(source)]
    mutated = {traced.inputs[i].storage_key for i in traced.mutated}
    if not mutated.intersection(f.storage_key for f, _ in existing) or len(existing) < 2:
        return []
    _check_arrays(vm, existing)
    shared: dict[int, list[tuple[FakeTensor, Source]]] = {}
    for fake, source in existing:
        shared.setdefault(fake.storage_key, []).append((fake, source))
    written = [shared.pop(key) for key in list(shared) if key in mutated]
    guards = [guard for on in written if len(on) > 1 for guard in _guards_of_shared(on)]
    # Inputs that are only read may share a storage: each is compared with the mutated ones, not with the others.
    firsts = [on[0][1] for on in written]
    others = itertools.zip_longest(*([source for _, source in on] for on in shared.values()))
    groups = [[*firsts, *filter(None, nth)] for nth in others] or [firsts]
    return guards + [Guard("no_overlap", group[0], tuple(group)) for group in groups if len(group) > 1]


def _check_arrays(vm: VM, inputs: Sequence[tuple[FakeTensor, Source]]) -> None:
    """Raise Unsupported where a NumPy array shares memory with another input, and some input is written."""
    if all(vm.env.sources[id(f)].kind != "array" for f, _ in inputs):
        return
    one_of_each = {f.storage_key: vm.trace.inputs.real(f) for f, _ in inputs}
    if not are_disjoint(real for real in one_of_each.values() if real is not None):
        raise Unsupported(
            Reason(UNSUPPORTED_EFFECT, "a NumPy array shares memory with another input, and one is written")
        )


def _guards_of_shared(inputs: Sequence[tuple[FakeTensor, Source]]) -> Iterator[Guard]:
    sources = tuple(source for _, source in inputs)
    yield Guard("shared_storage", sources[0], sources)
    for fake, source in inputs:
        offset = source.child("member", "storage_offset").child("call", None)
        yield Guard("eq", offset, fake.elem.storage_offset())
