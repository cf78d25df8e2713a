"""One capture: a frame is run by the VM from its argument slots to its end, or up to where the graph breaks.

`capture_frame` gives the graphs, the guards, how the frame ends and the effects. Whatever happens, outside objects are
afterwards as they were before.
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
from smelt.capture.base.vm_frames import Frame, is_smelts
from smelt.capture.driver.capture_attempts import Attempt, FailedAttempt, Stop
from smelt.capture.driver.capture_errors import UserException
from smelt.capture.environment import environment_mutations, wrap_values
from smelt.capture.environment.environment import Outside
from smelt.capture.environment.python_random import Draw
from smelt.capture.environment.side_effects import Effect
from smelt.capture.environment.symbolic_size_policy import Path, Range
from smelt.capture.graph_breaks import graph_break
from smelt.capture.graph_breaks.frame_exits import Ending, Return
from smelt.capture.graph_breaks.graph_break import Break
from smelt.capture.graph_breaks.resume_functions import Originals
from smelt.capture.interpreter.interpreter import Interpreter, Stopped
from smelt.capture.reconstruction.reconstruction_order import collect_fakes, reach
from smelt.capture.semantics import cells
from smelt.capture.semantics.values import context_managers
from smelt.capture.torch_calls import function_transforms
from smelt.capture.torch_calls.autograd import custom_functions, hooks, opaque_calls, tensor_state
from smelt.capture.vm.vm import VM
from smelt.errors import NeedsFixedSize, Unsupported
from smelt.graph import torch_settings
from smelt.graph.sample_sizes import syms_of
from smelt.guards import global_state
from smelt.guards.guard import Guard
from smelt.guards.object_lifetimes import Lifetimes, lifetimes_of
from smelt.guards.source import Source
from smelt.reasons import DATA_DEPENDENT, DATA_DEPENDENT_SHAPE, UNSUPPORTED_EFFECT, Reason
from smelt.runtime.gc_pause import collections_postponed
from smelt.runtime.recursion_limit import deep_recursion
from smelt.shapes.divisibility import is_remainder
from smelt.shapes.expr import Size, Sym, free_syms, subs
from smelt.torch_private import set_grad_enabled
from smelt.tracing.fake.fake_tensor import FakeTensor, hashed
from smelt.tracing.record.traced import Traced
from smelt.tracing.symbolic.symbolic_numbers import Symbols


@dataclass
class CapturedFrame:
    """What a capture gives. The values in `ending` and `effects` are real objects in which tensors are fakes."""

    traced: Traced
    input_sources: tuple[Source, ...]
    guards: tuple[Guard, ...]
    ending: Ending
    source_of: Callable[[object], Source | None]
    effects: tuple[Effect, ...]
    draws: tuple[Draw, ...]
    code: types.CodeType
    name: str
    filename: str
    first_line: int
    outside: Outside
    handles: bool  # the program has handlers for exceptions
    assumed: bool  # what a condition on a tensor is
    release: Callable[[], None]  # to be called when this is no longer needed: `VM.release`

    @functools.cached_property
    def lifetimes(self) -> Lifetimes:
        """What each call keeps alive that the guards accept."""
        return lifetimes_of(self.guards)

    @property
    def result(self) -> object:
        """What the frame returned."""
        assert isinstance(self.ending, Return)
        return self.ending.result


@contextmanager
def _quiet() -> Iterator[None]:
    """No garbage collection (a third of the time otherwise), room for the recursion of the VM, modes restored."""
    grad = torch.is_grad_enabled()
    try:
        with collections_postponed(), deep_recursion():
            yield
    finally:
        set_grad_enabled(grad)


def capture_frame(
    fn: FunctionType, slots: Sequence[object], attempt: Attempt, *, name: str
) -> CapturedFrame | FailedAttempt:
    """Captures a call of `fn` whose frame has these argument slots, to its end or up to the stop of `attempt`.

    What can end an attempt: `Unsupported` (with the user's line and stack, and the `path` of a stop before the instruction
    that raised it), `NotDifferentiable` where the attempt wants a joint graph, `NotCopies` where it allows copies,
    `UserException`, and errors of smelt itself.
    """
    vm = _prepared(attempt)
    captured = None
    with _quiet():
        try:
            captured = _capture(vm, fn, slots, name, attempt.stop)
            return captured
        except Exception as e:
            if vm.outside.sizes.are_in_vain:  # whatever it is, it may be due to a size that was not a number
                return _failed(vm, _in_vain(vm.outside))
            if isinstance(e, NeedsFixedSize):
                e = _of_data(vm, e)
            if isinstance(e, Unsupported):
                vm.locate(e)
                e.__traceback__ = None  # its frames would keep alive what the call was given
            return _failed(vm, e)
        finally:
            context_managers.leave_contexts(vm)
            function_transforms.restore(vm.contexts.transforms)
            vm.outside.log.roll_back()
            vm.exceptions.restore()
            if vm.trace.numbers.symbols is not None:
                vm.trace.numbers.symbols.release()
            vm.trace.numbers.for_data = None  # it keeps the machine alive, which keeps it
            vm.outside.sizes.end()
            if captured is None:
                vm.release()


def _prepared(attempt: Attempt) -> VM:
    """A VM that assumes what `attempt` says."""
    vm = Interpreter()
    vm.trace.autograd.wants_joint = attempt.joint_graph
    vm.trace.copies.allowed = attempt.copies
    vm.frames.depth_limit -= _stack_depth()
    vm.stopping.path = attempt.stop.path if attempt.stop else ()
    vm.outside.numbers.dynamic = attempt.symbolic
    vm.outside.numbers.follows_counts = attempt.counts_symbolic
    vm.outside.numbers.decides = attempt.decides
    vm.outside.sizes.places.policy = attempt.sizes
    if attempt.data_sizes and attempt.assumes:
        vm.trace.numbers.for_data = lambda: _symbols_for_data(vm, attempt.data_is)
    vm.outside.looks_ahead = attempt.looks_ahead
    vm.disclosed.compiling = attempt.says_compiling
    vm.disclosed.assumes = attempt.assumes
    vm.disclosed.selects = attempt.selects
    vm.disclosed.trusts_marks = attempt.trusts_marks
    return vm


def _of_data(vm: VM, error: NeedsFixedSize) -> Unsupported:
    """The error itself, unless data decide the sizes that something needs as numbers: then the graph ends before it."""
    known = vm.trace.numbers.symbols and vm.trace.numbers.symbols.known
    found = known.of(sorted(error.symbols, key=str)) if known else []
    if not found or vm.outside.sizes.found_at(error.symbols):
        return error
    names = " and ".join(f"{n.sym} is {n.what}" for n in found)
    made = Unsupported(Reason(DATA_DEPENDENT_SHAPE, f"{error.reason.detail}, where {names}"))
    made.path, made.breaks = error.path, error.breaks
    return made


def _symbols_for_data(vm: VM, number: int | None) -> Symbols:
    symbols = vm.outside.numbers.symbols()
    symbols.known.taken_for = number
    return symbols


def _failed(vm: VM, error: Exception) -> FailedAttempt:
    symbols = vm.trace.numbers.symbols
    if isinstance(error, NeedsFixedSize):
        error.sources = vm.outside.sizes.sources(error.symbols)
    return FailedAttempt(
        error,
        used_data=symbols is not None and bool(symbols.known.numbers),
        choosing=vm.disclosed.choosing > 0,
        marked=vm.disclosed.in_marked > 0,
        used_symbols=vm.trace.numbers.symbols is not None,
        shown=frozenset(vm.disclosed.shown_numbers),
        shown_sizes=vm.outside.sizes.found_at(vm.disclosed.shown_sizes),
        counts=frozenset(source.path for source in vm.outside.numbers.unguarded),
        sizes=needed_sizes(vm.outside, error),
        divisors=divided_sizes(vm.outside, error),
        ranges=narrowed_sizes(vm.outside, error),
        alike=alike_sizes(vm.outside, error),
        following=following_sizes(vm, error),
    )


def needed_sizes(outside: Outside, error: Exception) -> frozenset[frozenset[Path]]:
    """Where each symbolic size was found that must be a number, by what was asked of it or by the error."""
    named = error.symbols if isinstance(error, NeedsFixedSize) else frozenset()
    return outside.sizes.found_at(outside.sizes.needed | named)


def alike_sizes(outside: Outside, error: Exception) -> frozenset[Path]:
    """Where the sizes were found that it is enough to take for one."""
    if not isinstance(error, NeedsFixedSize) or outside.sizes.needed:
        return frozenset()
    return frozenset[Path]().union(*outside.sizes.found_at(error.alike))


def following_sizes(vm: VM, error: Exception) -> frozenset[tuple[Path, Size]]:
    """Where a size was found that is computed from others, and where those were; each named by one of its places. A symbol
    that this capture does not have stands for how many times one is as much as others: it has no place."""
    sizes, symbols = vm.outside.sizes, vm.trace.numbers.symbols
    if not isinstance(error, NeedsFixedSize) or symbols is None or sizes.needed:
        return frozenset()
    found: set[tuple[Path, Size]] = set()
    for sym, size in error.follows.items():
        places = {s: sizes.whole_at(s) for s in (sym, *free_syms(size)) if s in symbols.hints}
        if not all(places.values()):
            continue  # data decide it, or it is but a part of a size
        named = {s: Sym(str(min(at, key=str)), 2) for s, at in places.items()}
        times = {s: Sym(f"{named[sym]} times", 2) for s in free_syms(size) - places.keys()}
        found |= {(path, named[s]) for s in free_syms(size) & places.keys() for path in places[s]}
        found |= {(path, subs(size, named | times)) for path in places[sym]}
    return frozenset(found)


def divided_sizes(outside: Outside, error: Exception) -> frozenset[tuple[Path, int]]:
    """Where sizes were found of which it may be enough to know the remainder, and by what they are divided."""
    if not isinstance(error, NeedsFixedSize) or outside.sizes.needed:
        return frozenset()
    divided = (
        (sym, by) for sym, by in error.divisors.items() if not is_remainder(sym)
    )  # those are numbers then
    places = ((outside.sizes.found_at((sym,)), by) for sym, by in divided)
    return frozenset((path, by) for groups, by in places for paths in groups for path in paths)


def narrowed_sizes(outside: Outside, error: Exception) -> frozenset[tuple[Path, Range]]:
    """Where sizes were found that it may be enough to know a range of, and which."""
    named = error.ranges if isinstance(error, NeedsFixedSize) else {}
    found = {**outside.sizes.places.narrowed, **named}
    needed = outside.sizes.needed
    return outside.sizes.places.in_ranges((sym, ends) for sym, ends in found.items() if sym not in needed)


def _capture(
    vm: VM, fn: FunctionType, slots: Sequence[object], name: str, stop: Stop | None
) -> CapturedFrame:
    outside, trace = vm.outside, vm.trace
    vm.contexts.under_modes = context_managers.is_under_modes()
    function_transforms.check_start(vm.contexts.transforms)
    global_state.settle()
    snapshot = global_state.snapshot()
    outside.facts.guard("global_state", None, snapshot)
    outside.sources.const(fn)
    outside.facts.made_function(fn)  # entries belong to its code object
    code = vm.decode(fn.__code__)
    hashed.clear()
    depth = torch_settings.autocast_depth()
    with trace:
        inside = global_state.snapshot()
        frame = Frame(code, fn, [NULL] * code.nlocals)
        roots = [Source("arg", code.local_names[i], None, i) for i in range(len(slots))]
        outside.sizes.begin(roots, slots)
        for i in outside.sizes.places.policy.in_order(len(slots)):
            frame.locals[i] = wrap_values.wrap(outside, slots[i], roots[i])
        try:
            ending = _run_root(vm, frame, stop)
            _check_left(vm, ending)
            if not isinstance(ending, Return):
                context_managers.check_replayed(inside)
            settings = context_managers.settings(vm)
        finally:
            # while the modes of the trace are on, as they were when the contexts were entered
            context_managers.leave_contexts(vm)
            function_transforms.restore(vm.contexts.transforms)
        effects = (*outside.log.effects(), *settings)
        custom_functions.record_backward(vm, _left_behind(ending, effects))
        environment_mutations.guard_distinct(outside)
        environment_mutations.guard_changed_classes(outside)
        _guard_hashed(vm)
        _guard_offsets(vm)
        _guard_written(vm)
        _guard_gone(vm)
        hooks.check_unwritten(vm)
        opaque_calls.check_held(vm)
        outside.log.roll_back()
        fakes = _fakes(vm, ending, effects)
        tensor_state.check_left(vm, fakes)
        if vm.contexts.under_modes:
            custom_functions.check_history([*fakes, *trace.inputs])
        trace.copies.check((*fakes, *trace.writes.counted_from_start))
        _check_needed(outside)
        traced = trace.finish(fakes)
        # Backwards are recorded there, whose C++ code may have asked for numbers as well.
        _check_needed(outside)
    if global_state.snapshot() != snapshot or torch_settings.autocast_depth() != depth:
        raise Unsupported(
            Reason(UNSUPPORTED_EFFECT, "global state (grad mode, autocast, ...) is different at the end")
        )
    return CapturedFrame(
        traced=traced,
        input_sources=tuple(outside.sources[id(f)] for f in traced.inputs),
        guards=(*outside.facts.guards, *_overlap_guards(vm, traced)),
        ending=ending,
        source_of=outside.sources.of,
        effects=effects,
        draws=tuple(outside.log.draws),
        code=fn.__code__,
        name=name,
        filename=fn.__code__.co_filename,
        first_line=fn.__code__.co_firstlineno,
        outside=outside,
        handles=vm.exceptions.some_handler,
        assumed=vm.disclosed.assumed,
        release=vm.release,
    )


def _check_needed(outside: Outside) -> None:
    if outside.sizes.are_in_vain:
        raise _in_vain(outside)


def _in_vain(outside: Outside) -> NeedsFixedSize:
    sizes = outside.sizes
    what = "it is needed as a number" if sizes.needed else "the range is needed in which it lies"
    error = NeedsFixedSize(what, sizes.needed or frozenset(sizes.places.narrowed))
    error.reason = replace(error.reason, line=sizes.needed_at)
    return error


def _run_root(vm: VM, frame: Frame, stop: Stop | None) -> Ending:
    vm.frames.root = frame
    frame.stop = vm.stopping.path[0] if vm.stopping.path else 0
    vm.running = True
    try:
        ending = _run_to_end(vm, frame)
        if ending is None:
            assert stop is not None
            return _plan_break(vm, stop)
    finally:
        vm.running = False
    if stop is not None:
        raise RuntimeError("capture did not come by the instruction at which it was to stop")
    return ending


def _run_to_end(vm: VM, frame: Frame) -> Return | None:
    """Runs `frame`; None where it came to the instruction at which it is to stop."""
    try:
        return Return(vm.run(frame))
    except Stopped:
        return None
    except Unsupported:
        raise
    except BaseException as e:
        if isinstance(e, KeyboardInterrupt) and e is not vm.exceptions.own_interrupt:
            raise
        if vm.failure is not None:
            raise vm.failure from e
        # what ends here may let go of the traceback of its cause; an exception from outside keeps its own
        cause = None if id(e) in vm.outside.sources else e
        raise UserException(e, vm.where(), vm.disclosed.was_asked) from cause


def _stack_depth() -> int:
    """How many frames there are below the captured one, without those of smelt."""
    depth, frame = 0, sys._getframe().f_back
    while frame is not None:
        depth, frame = depth + (not is_smelts(frame.f_globals)), frame.f_back
    return depth


def _plan_break(vm: VM, stop: Stop) -> Break:
    frames = vm.stopping.frames
    _check_generators(vm)
    function_transforms.check_break(vm.contexts.transforms)
    for frame in frames:
        frame.pc -= 1
        cells.register_cells(vm, frame)
    planned = graph_break.plan(Originals(vm.decode), vm.decode, frames, stop.reason)
    _check_references(vm, planned)
    return planned


def _check_references(vm: VM, planned: Break) -> None:
    """A weak reference that is not read any more is gone behind the break; in eager it is counted and calls its function."""
    sources, going_on = vm.outside.sources, {id(v) for v in planned.roots}
    for value in (v for frame in vm.stopping.frames for v in (*frame.locals, *frame.stack)):
        if not issubclass(type(value), (weakref.ref, *weakref.ProxyTypes)) or id(value) in sources:
            continue
        if id(value) not in going_on and _is_missed(vm, value, planned):
            raise Unsupported(
                Reason(UNSUPPORTED_EFFECT, "a graph break while a variable is a weak reference")
            )


def _is_missed(vm: VM, variable: object, planned: Break) -> bool:
    """Whether what is behind the break can tell that a weak reference is gone. What a proxy leads to is not known."""
    if type(variable) in weakref.ProxyTypes:
        return True
    reference, sources = cast("weakref.ref[object]", variable), vm.outside.sources
    target = reference()
    if target is None or id(target) in sources or reference.__callback__ is not None:
        return target is not None
    return any(x is target for x in reach(planned.roots, sources.of).alive)


def _check_generators(vm: VM) -> None:
    """A generator with a `finally` to run must be dropped when the user's code drops it: a resume function's caller would
    keep it alive longer."""
    held = {id(v) for frame in vm.stopping.frames for v in (*frame.stack, *frame.locals)}
    for generator in filter(None, (ref() for ref in vm.frames.generators)):
        if id(generator) in held and generator.protected:
            raise Unsupported(
                Reason(UNSUPPORTED_EFFECT, "a graph break while a generator is inside of `try` or `with`")
            )


def _check_left(vm: VM, ending: Ending) -> None:
    if vm.failure is not None:  # swallowed by native code
        raise vm.failure
    if vm.contexts.entered and isinstance(ending, Return):
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a context manager is entered and not left"))
    if vm.contexts.tokens:
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a ContextVar is set"))
    if vm.disclosed.choosing:
        raise Unsupported(Reason(DATA_DEPENDENT, "a branch was left by an exception"))


def _fakes(vm: VM, ending: Ending, effects: Sequence[Effect]) -> list[FakeTensor]:
    """The tensors that the frame's end and stores need."""
    return collect_fakes(_left_behind(ending, effects), vm.outside.sources.of)


def _left_behind(ending: Ending, effects: Sequence[Effect]) -> list[object]:
    operands = [v for e in effects for v in vars(e).values() if v is not e.target and v is not MISSING]
    return [*ending.roots, *operands]


def _guard_hashed(vm: VM) -> None:
    """Tensors that were put in sets or used as keys must again be different ones."""
    sources = tuple(vm.outside.sources[id(f)] for f in hashed.values() if vm.trace.is_input(f))
    hashed.clear()
    if len(sources) > 1:
        vm.outside.facts.guard("distinct", sources[0], sources, key="hashed")


def _guard_offsets(vm: VM) -> None:
    """Where in its storage an input starts matters only to what counts from the storage's start."""
    storages = {f.storage_key for f in vm.trace.writes.counted_from_start}
    for fake in vm.trace.inputs if storages else ():
        if fake.storage_key in storages:
            if syms_of(fake.spec):
                raise NeedsFixedSize("an input's storage is addressed from its start", syms_of(fake.spec))
            source = vm.outside.sources[id(fake)].child("member", "storage_offset").child("call", None)
            vm.outside.facts.guard("eq", source, fake.elem.storage_offset())


def _guard_written(vm: VM) -> None:
    """Whether autograd lets an input be written is a part of the trace."""
    for fake, how in vm.trace.writes.of_history.values():
        vm.outside.facts.guard("how_written", vm.outside.sources[id(fake)], how)


def _guard_gone(vm: VM) -> None:
    """What was deleted was there before, or not (it was stored first): that decides what is left to do."""
    for gone in vm.outside.log.gone():
        source, fact = vm.outside.sources.known(gone.owner), (gone.name, gone.was_there)
        if gone.kind == "attribute":
            source = source.child("dict", None)
        vm.outside.facts.guard("slot" if gone.kind == "slot" else "contains", source, fact, key=gone.name)


def _overlap_guards(vm: VM, traced: Traced) -> list[Guard]:
    """When inputs are written, that they share no storage with each other and with the rest is part of the trace."""
    if not traced.mutated or len(traced.inputs) < 2:
        return []
    sources = [vm.outside.sources[id(f)] for f in traced.inputs]
    if any(source.kind == "array" for source in sources):
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a tensor is written in place beside a NumPy array"))
    shared: dict[int, list[Source]] = {}
    for fake, source in zip(traced.inputs, sources):
        shared.setdefault(fake.storage_key, []).append(source)
    written = [shared.pop(traced.inputs[i].storage_key, []) for i in sorted(traced.mutated)]
    if any(len(on) != 1 for on in written):
        raise Unsupported(
            Reason(UNSUPPORTED_EFFECT, "a tensor is written in place while another shares its storage")
        )
    # Of those that are only read, some may share a storage: each is compared with the written ones, not with the others.
    ones = [source for (source,) in written]
    apart = [[*ones, *filter(None, nth)] for nth in itertools.zip_longest(*shared.values())] or [ones]
    return [Guard("no_overlap", found[0], tuple(found)) for found in apart if len(found) > 1]
