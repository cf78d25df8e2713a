"""`FrameCompiler`: the callback of the native hook at a cache miss.

It captures the frame, compiles the graph with a backend, emits the compiled frame, builds its guard tree and installs both
as an entry. Invariant: one capture at a time in the process; if anything fails, the entries of the function do not change,
and the call runs eagerly (or raises, with `fullgraph`).
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

from smelt import _native, events, recompile_limits, terminal_hints
from smelt._native import isinstance
from smelt.capture.driver.cache_entries import (
    Backend,
    Callees,
    Entry,
    HookResult,
    MadePlans,
    NewEntry,
    Record,
    wrap,
)
from smelt.capture.driver.cache_misses import (
    changing_classes,
    changing_values,
    explain_cache_miss,
    misfit,
    recompile_limit_reason,
    recompile_message,
)
from smelt.capture.driver.capture_attempts import (
    Attempt,
    FailedAttempt,
    Success,
    drop_tracebacks,
    first_success,
    reason_for,
)
from smelt.capture.driver.capture_errors import NotRepeatable, UserException, WorldChanged, summary
from smelt.capture.driver.capture_frame import CapturedFrame, capture_frame, divided_sizes, needed_sizes
from smelt.capture.driver.compile_frame import (
    compiled_frame,
    compiled_graph,
    direct_callee,
    is_functional,
    stage,
)
from smelt.capture.driver.dynamic_int_arguments import int_arguments
from smelt.capture.driver.entry_eviction import superseded_entries
from smelt.capture.driver.guard_tree_checks import is_only_thread, verified, verify_accepts, verify_refuses
from smelt.capture.driver.zero_one_specialization import Trial, accept_size_one, small_unbacked_sizes
from smelt.capture.emit.eager_fallback import eager_rerun_of, repeats_effects
from smelt.capture.emit.torch_graph_overrides import EditedProgram, edited_program
from smelt.capture.environment.symbolic_size_policy import SymbolicSizes
from smelt.capture.graph_breaks.generator_entry import generator_factory
from smelt.capture.graph_breaks.generator_steps import is_step
from smelt.capture.graph_breaks.resume_functions import ResumeFunctions
from smelt.capture.interpreter.interpreter import decoded
from smelt.capture.semantics.values import context_managers, raise_exceptions
from smelt.config import Config
from smelt.errors import (
    ArtifactError,
    BackendError,
    MarkedSizeError,
    NeedsFixedSize,
    RefusedOperator,
    SmeltError,
    Unsupported,
    VerificationError,
)
from smelt.graph.graph_overrides import edited
from smelt.guards import tree_layout
from smelt.guards.changed_numbers import changed_numbers, changed_sizes
from smelt.guards.global_state import modes_set_aside
from smelt.guards.guard_failures import Failure
from smelt.guards.source import Source
from smelt.reasons import (
    ANOTHER_TRACER,
    BACKEND_FAILED,
    CHANGING_VALUE,
    INTERNAL,
    OUTRUN,
    RECOMPILE_LIMIT,
    USER_EXCEPTION,
    Reason,
)
from smelt.runtime.fork_locks import CAPTURE, hold_at_fork
from smelt.runtime.gc_pause import collections_postponed
from smelt.runtime.thread_state import thread
from smelt.torch_private import compiler_stance, forward_mode_level
from smelt.tracing.backward.not_differentiable import NotDifferentiable
from smelt.tracing.record.traced import Traced
from smelt.user_lines import title_of

log = logging.getLogger("smelt")
# held during capture, while environment objects may hold fakes
_lock = hold_at_fork(threading.RLock(), CAPTURE)


def _log(level: int, message: str, *args: object) -> None:
    """Log a message. Suppresses exceptions of handlers, and of logging itself where the program has mocked a builtin."""
    with suppress(Exception):
        log.log(level, message, *args)


def _user_wants_raised(error: Exception, config: Config) -> bool:
    """Whether the user's options request that this error is raised."""
    return isinstance(error, (ArtifactError, MarkedSizeError)) or (
        isinstance(error, VerificationError) and config.verify_stages
    )


def _specialized_mark(source: Source, size: int, reason: Reason) -> str:
    """The message for a marked size that the program specializes to `size`."""
    shape = source.base
    tensor = source if shape is None or shape.base is None else shape.base
    where = "" if reason.line is None else f" at {reason.line}"
    return (
        f"dimension {source.key} of {tensor.source} is marked as dynamic, but the program specializes it to {size}{where}: "
        f"{reason.detail}. Change that line, or remove the mark (torch's maybe_mark_dynamic is only a hint)"
    )


def _may_be_race(error: Exception) -> bool:
    """Whether another thread may have changed guarded state during the capture."""
    is_mutated = isinstance(error, RuntimeError) and (
        "changed size" in str(error) or "mutated during" in str(error)
    )
    return isinstance(error, WorldChanged) or is_mutated


class FrameCompiler:
    """The hook's callback of one compiled function: `compiler(fn, slots)` returns whether to look for an entry again.

    Args:
        backend: compiles a traced graph; takes (traced, config), returns a callable on a tuple of tensors.
        fullgraph: raise Unsupported or BackendError instead of running eagerly.
        dynamic: which sizes are symbolic, if the backend supports symbolic sizes: True (all), None (those that change
            between calls; likewise numbers), or False (none, and no numbers).
        resume_functions: for a resume function, those of the function that it continues.
    """

    def __init__(
        self,
        backend: Backend,
        config: Config,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        resume_functions: ResumeFunctions | None = None,
    ) -> None:
        self.name = ""
        # the function only creates a generator, whose frame is compiled separately
        self.is_generator_factory = False
        self.resume_functions = (
            ResumeFunctions(self._wrap_resume, decoded) if resume_functions is None else resume_functions
        )
        self.backend = backend
        self.config = config
        self.fullgraph = fullgraph
        self.dynamic = dynamic
        self.record = Record(self.first_attempt())
        self._installed = 0  # the number of entries installed so far, evicted ones included
        self.keep: Callable[[NewEntry], None] | None = None  # stores entries for other processes
        # Makes the callable of a resume function, which looks for stored entries before its compiler is called.
        self.wrap_warm: Callable[[FunctionType, FrameCompiler], _native.Wrapped] | None = None
        # the native callable, held compiler_ref
        self.target: Callable[[], _native.Wrapped | None] = lambda: None

    def __call__(self, fn: FunctionType, slots: tuple[object, ...]) -> HookResult:
        try:
            return self._handle_miss(fn, slots)
        except RecursionError:  # too close to the limit to capture; the function itself may need less
            return False

    def generator_factory(self, fn: FunctionType) -> FunctionType:
        """The replacement of `fn`, which creates a generator or coroutine that is compiled from `yield` to `yield`."""
        self.is_generator_factory = True
        return generator_factory(fn, self.resume_functions, decoded)

    def _handle_miss(self, fn: FunctionType, slots: tuple[object, ...]) -> HookResult:
        if self.is_generator_factory or thread.capturing or thread.disabled or self._is_traced_elsewhere():
            return False
        if self._stance_forbids_compiling(fn, slots):
            return False
        before = self._installed
        with _lock:
            if self._installed != before:  # another thread compiled meanwhile, perhaps for this very call
                return True
            thread.capturing = True
            try:
                caller = raise_exceptions.caller_handling(sys.exception())
                with caller, events.compiling(self.name, fn.__qualname__), self._modes_set_aside():
                    return self._compile(fn, slots)
            finally:
                thread.capturing = False

    def _is_traced_elsewhere(self) -> bool:
        """Whether another tracer is active at this call. Other calls are not affected, so no reason is recorded."""
        if forward_mode_level() >= 0:
            tracer: str | None = "a level of forward mode"
        else:
            with self._modes_set_aside():
                tracer = context_managers.user_function_mode()
        if tracer is None:
            return False
        if self.fullgraph:
            raise Unsupported(Reason(ANOTHER_TRACER, tracer))
        return True

    def _modes_set_aside(self) -> AbstractContextManager[None]:
        """Context without the modes of the user that the capture calls itself. Without `fullgraph`, the function runs
        eagerly under such a mode, which observes every call."""
        return modes_set_aside(context_managers.capturable_modes() if self.fullgraph else 0)

    def _stance_forbids_compiling(self, fn: FunctionType, slots: tuple[object, ...]) -> bool:
        """Whether this call runs eagerly because of `torch.compiler.set_stance`. Raises RuntimeError, as torch does, if the
        stance is "fail_on_recompile". Native code handles "force_eager", under which no entries are looked up."""
        stance = compiler_stance()
        if stance == "fail_on_recompile":
            raise RuntimeError(recompile_message(self.record.entries, fn.__code__, slots))
        is_first = not self.record.entries and not self.record.ran_eagerly_first
        if stance.endswith("eager_then_compile") and is_first:
            self.record.ran_eagerly_first = True
            return True
        return stance == "eager_on_recompile"

    def clear(self) -> None:
        """Forgets all entries and reasons."""
        target = self.target()
        if target is not None:
            _native.clear(target)
        self.record = Record(self.first_attempt())
        self.resume_functions.clear()

    def first_attempt(self) -> Attempt:
        """The attempt with the most assumptions that the backend and the options support."""
        return Attempt(
            symbolic_counts=self.dynamic is not False,
            sizes=SymbolicSizes(
                enabled=self.dynamic is not False and self._backend_takes_sizes(),
                all_dynamic=self.dynamic is True,
            ),
            unbacked_sizes=getattr(self.backend, "takes_data_sizes", False)
            or (self.fullgraph and self._is_foreign),
            joint_graph=self._functional,
            # A joint graph can be differentiated once; "eager" is what errors advise for more.
            may_join=self.fullgraph or self._is_foreign,
            hides_intermediates=self._is_foreign,
            assumes=True,
            selects=True,
            captures_jumps=self.config.control_flow == "graph" and not self._is_foreign,
            may_break=not self.fullgraph,
        )

    @property
    def _functional(self) -> bool:
        return is_functional(self.backend)

    @property
    def _is_foreign(self) -> bool:
        return getattr(self.backend, "is_foreign", False)

    def _backend_takes_sizes(self) -> bool:
        """Whether the backend receives symbolic sizes. A backend from elsewhere may compile for its example inputs alone, so
        it receives them only with `dynamic=True`."""
        requested = self.dynamic is True and self._is_foreign
        return requested or getattr(self.backend, "takes_sizes", False)

    def _wrap_resume(self, fn: FunctionType) -> Any:
        """Wrap a resume function, whose compiler shares all resume functions with this one."""
        compiler = FrameCompiler(self.backend, self.config, False, self.dynamic, self.resume_functions)
        wrapped = wrap(fn, compiler) if self.wrap_warm is None else self.wrap_warm(fn, compiler)
        wrapped._smelt_original = fn
        return wrapped

    def _edited_program(self, traced: Traced) -> EditedProgram | None:
        """The user's replacement of the torch-level graph, compiled like any function. If the backend runs torch-level calls
        eagerly, the replacement is not compiled."""
        function = edited_program(traced)
        if function is None:
            return None
        if getattr(self.backend, "runs_calls", False):
            return EditedProgram(function, function, traced)
        run = wrap(function, FrameCompiler(self.backend, self.config, self.fullgraph, self.dynamic))
        run._smelt_original = function
        return EditedProgram(function, run, traced)

    def _entry_table(self, fn: FunctionType) -> CodeType | _native.Wrapped:
        """The native owner of the entries: the callable that `wrap` created, else the code object."""
        target = self.target()
        return fn.__code__ if target is None else target

    # ---- from a call to an entry

    def _compile(self, fn: FunctionType, slots: tuple[object, ...]) -> HookResult:
        try:
            final = self._add_entry(fn, slots)
        except Exception as e:
            return self._handle_failure(fn, e)
        return True if final is None else self._handle_failure(fn, final)

    def _add_entry(self, fn: FunctionType, slots: tuple[object, ...]) -> Exception | None:
        """Add an entry for the frame, or for its instructions before a graph break. Returns the final error, if any."""
        record = self.record
        why = self._explain_cache_misses(slots)
        n_counted = len(record.entries) - record.allowed
        if recompile_limits.is_reached(n_counted, self.config) and not self._guards_less(slots):
            return Unsupported(recompile_limit_reason(record, why, fn.__code__))
        if not self.fullgraph and recompile_limits.is_near(n_counted, self.config):
            # Each path between two breaks has a graph. From now on paths end at the loop's head, which bounds their number.
            record.start = replace(record.start, looks_ahead=False, guards_conditions=False)
        if not record.entries:  # a resume function inherits the dynamic sizes of its function
            sizes = replace(record.start.sizes, dynamic_values=self.resume_functions.sizes)
            record.start = replace(record.start, sizes=sizes)
        start = record.start.with_resume_facts(self.resume_functions.facts_for(self.target()))
        if self.dynamic is True:
            start = start.generalized(int_arguments(fn.__code__, slots), set())
        begin = time.perf_counter()
        with collections_postponed():
            done = first_success(
                start,
                lambda attempt: self._attempt(fn, slots, attempt, why, begin),
                functools.partial(self._report_retry, fn.__qualname__),
            )
        if not isinstance(done, Success):
            unreplaced = isinstance(done, Unsupported) and done.reason.kind is CHANGING_VALUE
            return Unsupported(recompile_limit_reason(record, why, fn.__code__)) if unreplaced else done
        record.start = replace(done.start, sizes=done.start.sizes.without_call_facts())
        if done.attempt.stop is not None:
            self._record_break(fn.__qualname__, done.attempt.stop.reason)
        return None

    def _guards_less(self, slots: tuple[object, ...]) -> bool:
        """Whether the next captures no longer guard the values, containers and sizes that kept causing recompiles. The
        graph breaks where the program needs one."""
        record = self.record
        values, sizes = changing_values(record, slots)
        if self.fullgraph or self.dynamic is False:
            return False
        start = record.start.without_guards(values, sizes)
        if start == record.start:
            start = start.without_classes(changing_classes(record, slots))
        if start == record.start:
            return False
        record.start = start
        record.allowed = len(record.entries)
        return True

    def _attempt(
        self, fn: FunctionType, slots: tuple[object, ...], attempt: Attempt, why: Failure | None, begin: float
    ) -> FailedAttempt | None:
        """The pipeline of one frame, from capture to the installed entry."""
        name = fn.__qualname__
        start = time.perf_counter()
        events.emit("capture-start", name, attempt=attempt)
        captured = capture_frame(fn, slots, attempt, name=name)
        if isinstance(captured, FailedAttempt):
            return captured
        events.emit("capture-end", name, seconds=time.perf_counter() - start)
        unbacked = captured.traced.unbacked
        used_unbacked = unbacked is not None
        try:
            self.check_marks(name, captured.env.sizes.refused)
            trial = Trial(fn, slots, attempt, captured, self.resume_functions, self._functional)
            if unbacked is not None:
                small = small_unbacked_sizes(trial)
                captured.traced = replace(captured.traced, unbacked=replace(unbacked, small=small))
            if not self._is_foreign:  # torch's code for symbols assumes 2 or more
                accept_size_one(trial)
            self.install(fn, slots, captured, why, begin)
        except MarkedSizeError:
            raise
        except BackendError as e:
            return FailedAttempt(e, used_symbols=bool(captured.traced.numbers), used_unbacked=used_unbacked)
        except NeedsFixedSize as e:
            sizes, divisors = needed_sizes(captured.env, e), divided_sizes(captured.env, e)
            return FailedAttempt(e, sizes=sizes, divisors=divisors, used_unbacked=used_unbacked)
        except Exception as e:
            return FailedAttempt(e, used_unbacked=used_unbacked)
        finally:
            captured.release()
        return None

    def install(
        self,
        fn: FunctionType,
        slots: tuple[object, ...],
        captured: CapturedFrame,
        why: Failure | None,
        begin: float,
    ) -> None:
        """Compile a captured frame and install it as an entry."""
        name = fn.__qualname__
        program = self._edited_program(captured.traced)
        functional = self._functional and program is None
        assumed = captured.assumed or captured.traced.unbacked is not None
        repeatable = eager_rerun_of(captured.traced, functional) is not None
        if assumed and (not repeatable or repeats_effects(captured.traced, captured.assumed)):
            raise NotRepeatable
        captured.traced = replace(
            captured.traced,
            title=self._title(fn),
            graph_break=getattr(captured.frame_exit, "reason", None),
            on_failure=self._failure_callback(fn),
        )
        if self.config.verify:
            captured.traced = replace(captured.traced, on_mismatch=self._mismatch_callback(fn))
        plans = MadePlans()
        if self.keep is not None:
            captured.traced = replace(captured.traced, on_plan=plans, on_node=plans.nodes.append)
        graph = compiled_graph(self.backend, self.config, captured, program)
        frame = edited("frame", compiled_frame(fn, captured, graph, self.resume_functions, functional))
        with stage("guards", name):
            spec = tree_layout.build(captured.guards, frame.collect, captured.lifetimes.objects)
            tree = _native.GuardTree(spec.native)
            verify_accepts(tree, spec.guards, slots)
        if captured.traced.sizes:
            self.resume_functions.sizes = frozenset(size.hint for size in captured.traced.sizes.values())
        seconds = time.perf_counter() - begin
        callees: Callees = frame.function, direct_callee(frame)
        if self.config.verify_stages:
            callees = verified(frame.function, spec.guards), None
        _native.add_entry(self._entry_table(fn), tree, *callees)
        entry = Entry(
            name,
            spec.guards,
            frame.source,
            why,
            captured.traced,
            graph,
            tree,
            callees,
            seconds,
            captured.env.sizes.observed,
        )
        self.record.entries.append(entry)
        self._installed += 1
        self._drop_superseded(fn)
        if self.keep is not None:
            self.keep(NewEntry(entry, fn, slots, spec, captured, plans))
        events.emit(
            "entry-installed",
            name,
            seconds=seconds,
            guards=len(spec.guards),
            inputs=len(captured.input_sources),
            entry=entry,
            sources=captured.input_sources,
            function=fn,
        )

    def _title(self, fn: FunctionType) -> str:
        return title_of(fn.__qualname__, getattr(self.target(), "_smelt_original", fn))

    def _drop_superseded(self, fn: FunctionType) -> None:
        """Evict superseded entries. A concurrent call that misses meanwhile waits for the lock and looks again."""
        record = self.record
        evicted = superseded_entries(record.entries)
        if evicted:
            record.entries[:] = [entry for entry in record.entries if entry not in evicted]
            _native.clear(self._entry_table(fn))
            for entry in record.entries:
                _native.add_entry(self._entry_table(fn), entry.tree, *entry.callees)

    # ---- records and reports

    def _explain_cache_misses(self, slots: tuple[object, ...]) -> Failure | None:
        """Emit a "recompile" event if there are entries, all of which rejected the call; return the failure of the entry
        that it fits best. Numbers and sizes that differ from those of an entry are symbolic from now on."""
        record, failures = self.record, []
        best, least = 0, sys.maxsize
        for number, entry in enumerate(record.entries):
            if self.config.verify_stages:
                verify_refuses(number, entry, slots)
            failures.append(explain_cache_miss(entry, slots))
            numbers = changed_numbers(entry.facts, slots)
            sizes = changed_sizes(entry.facts, slots, entry.sizes)
            record.start = record.start.generalized(numbers, sizes)
            if len(record.entries) > 1 and (distance := misfit(entry, slots)) <= least:
                best, least = number, distance
        if not failures:
            return None
        events.emit("recompile", entry.name, entry=best, failure=failures[best], failures=tuple(failures))
        return failures[best]

    def _report_retry(self, name: str, error: Exception) -> None:
        """Emit the reason why there is no joint graph, or why a size is specialized or restricted."""
        if isinstance(error, NeedsFixedSize):
            events.emit("size-restricted", name, reason=error.reason, sizes=error.sources)
            for source in error.sources:
                self.record.specialized_for.setdefault(source, error.reason)
        if isinstance(error, NotDifferentiable) and self.record.no_joint_graph_reason is None:
            events.emit("no-joint-graph", name, reason=error.reason)
            self.record.no_joint_graph_reason = error.reason

    def check_marks(self, name: str, sizes: Mapping[Source, int]) -> None:
        """Raise MarkedSizeError if the program specializes a size that the user marked as dynamic. Warn, once, if it is
        specialized for another cause."""
        for source, size in sizes.items():
            reason = self.record.specialized_for.get(source.source)
            if reason is not None:
                raise MarkedSizeError(_specialized_mark(source, size, reason))
            if source.path not in self.record.refused:
                self.record.refused.add(source.path)
                _log(
                    logging.WARNING,
                    "smelt: %s of %s is marked to be dynamic, but compiled as %d: elements of the tensor overlap, or another"
                    " size had to be specialized",
                    source.source,
                    name,
                    size,
                )

    def _record_break(self, name: str, reason: Reason) -> None:
        events.emit("graph-break", name, reason=reason)
        terminal_hints.count(breaks=1)
        if reason not in self.record.breaks:
            self.record.breaks.append(reason)
            _log(logging.INFO, "smelt: graph break in %s: %s", name, reason)

    # ---- failures

    def _handle_failure(self, fn: FunctionType, error: Exception) -> HookResult:
        """The hook's result when no attempt created an entry."""
        if isinstance(error, UserException):
            return self.handle_user_exception(fn, error)
        if _may_be_race(error) and not is_only_thread():
            self._record_race(fn, error)
            return False
        if _user_wants_raised(error, self.config):
            raise error
        if isinstance(error, RefusedOperator) and self.fullgraph:
            return functools.partial(self._handle_missing_refusal, fn, error)
        return self._fall_back(fn, reason_for(error), error)

    def _failure_callback(self, fn: FunctionType) -> Callable[[Exception], None]:
        """The callback of a graph when a later call, or a backward, needs a subgraph that cannot be compiled."""
        name, compiler_ref = fn.__qualname__, weakref.ref(self)
        fullgraph, config = self.fullgraph, self.config

        def failed(error: Exception) -> None:
            if _user_wants_raised(error, config):
                raise error
            if fullgraph:
                raise BackendError(f"a part of {name} could not be compiled: {summary(error)}") from error
            _log(logging.DEBUG, "%s", "".join(traceback.format_exception(error)))
            reason = Reason(BACKEND_FAILED, summary(error))
            compiler = compiler_ref()
            if compiler is None:  # a backward outlives the function
                _log(logging.WARNING, "smelt: %s: %s", name, reason)
            else:
                compiler._record_reason(name, reason, is_subgraph=True)

        return failed

    def _mismatch_callback(self, fn: FunctionType) -> Callable[[Reason], None]:
        """The callback of a graph when verification finds wrong results: the function runs eagerly from its next call on."""
        name, compiler_ref, table = fn.__qualname__, weakref.ref(self), weakref.ref(self._entry_table(fn))

        def differs(reason: Reason) -> None:
            compiler, entries = compiler_ref(), table()
            if compiler is None or entries is None:  # a backward outlives the function
                _log(logging.WARNING, "smelt: %s: %s", name, reason)
                return
            compiler._record_reason(name, reason)
            _native.clear(entries)
            _native.close(entries)

        return differs

    def handle_user_exception(self, fn: FunctionType, error: UserException) -> HookResult:
        """Run the call eagerly, so that the user gets eager's exception and traceback."""
        record = self.record
        self._record_reason(fn.__qualname__, reason_for(error), logging.DEBUG)
        drop_tracebacks(error)
        record.failures += 1
        if record.failures > self.config.recompile_limit:
            _native.close(self._entry_table(fn))
        return functools.partial(self._handle_missing_exception, fn, error)

    def _handle_missing_exception(self, fn: FunctionType, error: UserException) -> None:
        """Handle an eager run that did not raise the exception of its capture: an internal error of smelt."""
        record = self.record
        record.reasons = [r for r in record.reasons if r.kind is not USER_EXCEPTION or r.line != error.line]
        if not is_only_thread():
            self._record_race(fn, error.error)
            return
        detail = f"capture raised {summary(error.error)}, the function itself did not"
        self._fall_back(fn, Reason(INTERNAL, detail, error.line), error)

    def _handle_missing_refusal(self, fn: FunctionType, error: RefusedOperator) -> None:
        """Raise smelt's error after an eager run in which torch's compiler did not refuse the operator."""
        self._fall_back(fn, error.reason, error)

    def _record_race(self, fn: FunctionType, error: BaseException) -> None:
        """Record that other threads may have changed guarded state. The next call is captured, up to a limit."""
        self.record.races += 1
        if self.record.races > self.config.recompile_limit:
            reason = Reason(OUTRUN, summary(error))
            self._fall_back(fn, reason, Unsupported(reason))
            _native.close(self._entry_table(fn))

    def _fall_back(self, fn: FunctionType, reason: Reason, error: Exception) -> bool:
        """Run this call eagerly; later ones too if the reason is known already, or if smelt or the backend failed."""
        if isinstance(error, Unsupported) and error.initializes:
            events.emit("eager-fallback", fn.__qualname__, reason=reason)
            drop_tracebacks(error)
            return False
        if self.fullgraph:
            if isinstance(error, SmeltError):
                raise error.with_traceback(None)
            raise Unsupported(reason) from error
        if reason.kind in (INTERNAL, BACKEND_FAILED):
            _log(logging.DEBUG, "%s", "".join(traceback.format_exception(error)))
        if reason.kind is ANOTHER_TRACER:
            drop_tracebacks(error)
            return False
        has_no_graph = is_step(fn) and not any(entry.computes for entry in self.record.entries)
        # A generator without operations loses nothing at the recompile limit.
        level = logging.DEBUG if reason.kind is RECOMPILE_LIMIT and has_no_graph else logging.WARNING
        is_new = self._record_reason(fn.__qualname__, reason, level=level)
        if not is_new or reason.kind in (INTERNAL, BACKEND_FAILED, RECOMPILE_LIMIT):
            _native.close(self._entry_table(fn))
        drop_tracebacks(error)
        return False

    def _record_reason(
        self, name: str, reason: Reason, level: int = logging.WARNING, is_subgraph: bool = False
    ) -> bool:
        """Record, emit and log a reason, once for each kind and line; False if it was known."""
        events.emit("eager-fallback", name, reason=reason)
        known = any(r.kind is reason.kind and r.line == reason.line for r in self.record.reasons)
        if not known:
            self.record.reasons.append(reason)
            terminal_hints.count(fallbacks=level >= logging.WARNING)
            _log(level, "smelt: %s%s runs eagerly: %s", "a part of " if is_subgraph else "", name, reason)
        return not known
