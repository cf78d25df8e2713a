"""The driver of capture: what the native hook asks when a call matches no compiled entry.

`FrameCompiler` is that callback. It captures the frame, has a backend compile the graph, emits the compiled frame, builds
its guard tree and installs both as an entry. What always holds: one capture at a time in the process; whatever fails,
the entries of the function are as they were before, and the call runs eagerly (or raises, with `fullgraph`).
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

from smelt import _native, events
from smelt._native import isinstance
from smelt.capture.driver.cache_entries import Answer, Answers, Backend, Entry, Record, wrap
from smelt.capture.driver.cache_misses import explain_cache_miss, recompile_limit_reason
from smelt.capture.driver.capture_attempts import (
    Attempt,
    FailedAttempt,
    Success,
    first_success,
    let_go,
    reason_for,
    summary,
)
from smelt.capture.driver.capture_errors import NotRepeatable, UserException, WorldChanged
from smelt.capture.driver.capture_frame import CapturedFrame, capture_frame, divided_sizes, needed_sizes
from smelt.capture.driver.compile_frame import (
    compiled_frame,
    compiled_graph,
    is_functional,
    stage,
    without_frame,
)
from smelt.capture.driver.dynamic_int_arguments import int_arguments
from smelt.capture.driver.entry_eviction import superseded_entries
from smelt.capture.driver.guard_tree_checks import is_only_thread, verified, verify_accepts, verify_refuses
from smelt.capture.driver.zero_one_specialization import Trial, small_sizes, with_sizes_of_one
from smelt.capture.emit.eager_fallback import repeat_of
from smelt.capture.emit.frame_overrides import edited_frame
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
    NeedsFixedSize,
    SmeltError,
    Unsupported,
    VerificationError,
)
from smelt.guards import tree_layout
from smelt.guards.changed_numbers import changed_numbers, changed_sizes
from smelt.guards.guard_failures import Failure
from smelt.guards.source import Source
from smelt.reasons import (
    ANOTHER_TRACER,
    BACKEND_FAILED,
    INTERNAL,
    OUTRUN,
    RECOMPILE_LIMIT,
    USER_EXCEPTION,
    Reason,
)
from smelt.runtime.fork_locks import CAPTURE, hold_at_fork
from smelt.runtime.gc_pause import collections_postponed
from smelt.torch_private import forward_mode_level
from smelt.tracing.backward.not_differentiable import NotDifferentiable
from smelt.tracing.record.traced import Traced
from smelt.user_lines import title_of

log = logging.getLogger("smelt")
# held while capturing: environment objects may hold fakes meanwhile
_lock = hold_at_fork(threading.RLock(), CAPTURE)


class _Thread(threading.local):
    """This thread's state: inside a capture, and how many `set_disabled` contexts are open."""

    capturing = False
    disabled = 0


_thread = _Thread()


@contextmanager
def set_disabled() -> Iterator[None]:
    """Nothing is newly compiled by this thread for the duration of the context; compiled entries still answer."""
    _thread.disabled += 1
    try:
        yield
    finally:
        _thread.disabled -= 1


def _tell(level: int, message: str, *args: object) -> None:
    """Logs. What handlers raise, or logging itself where the program has put a mock in place of a builtin, is no reason to
    end the call that is told of."""
    with suppress(Exception):
        log.log(level, message, *args)


def _is_asked_for(error: Exception, config: Config) -> bool:
    """Whether the user asked for this to be raised."""
    return isinstance(error, ArtifactError) or (isinstance(error, VerificationError) and config.verify_stages)


def _speaks_of_change(error: Exception) -> bool:
    """Whether what was read may have changed between two looks at it."""
    walked = isinstance(error, RuntimeError) and (
        "changed size" in str(error) or "mutated during" in str(error)
    )
    return isinstance(error, WorldChanged) or walked


class FrameCompiler:
    """The hook's callback of one compiled function: `compiler(fn, slots)` returns whether to look for an entry again.

    Args:
        backend: compiles a traced graph; gets (traced, config), returns a callable on a tuple of tensors.
        fullgraph: raise Unsupported or BackendError instead of running eagerly.
        dynamic: which sizes are symbolic, if the backend takes them: True (all that can be), None (those that change, as
            with numbers), or False (none, nor are numbers).
        resumes: of the function that this one is a resume function of.
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
        self.begins = False  # the function only makes a generator or coroutine, whose frame others compile
        self.resume_functions = ResumeFunctions(self._wrap_resume, decoded) if resume_functions is None else resume_functions
        self.backend = backend
        self.config = config
        self.fullgraph = fullgraph
        self.dynamic = dynamic
        self.record = Record(self._first_attempt())
        self._installed = 0  # how many entries were made, those that are gone included
        self.target: Callable[[], _native.Wrapped | None] = lambda: None  # the native callable, held weakly

    def __call__(self, fn: FunctionType, slots: tuple[object, ...]) -> Answer:
        try:
            return self._answer(fn, slots)
        except RecursionError:  # too near the limit to look: the function itself may need less
            return False

    def generator_factory(self, fn: FunctionType) -> FunctionType:
        """What a call of `fn`, which makes a generator or coroutine, is from now on: the frame of what it makes is compiled,
        from one `yield` or `await` to the next."""
        self.begins = True
        return generator_factory(fn, self.resume_functions, decoded)

    def _answer(self, fn: FunctionType, slots: tuple[object, ...]) -> Answer:
        if self.begins or _thread.capturing or _thread.disabled or self._is_traced():
            return False
        before = self._installed
        with _lock:
            if self._installed != before:  # another thread compiled meanwhile, perhaps for this very call
                return True
            _thread.capturing = True
            try:
                with raise_exceptions.caller_handling(sys.exception()):
                    return self._compile(fn, slots)
            finally:
                _thread.capturing = False

    def _is_traced(self) -> bool:
        """Whether this call is not to be captured because of where it is made; calls elsewhere are not concerned, so no
        reason is kept."""
        found = "a level of forward mode" if forward_mode_level() >= 0 else context_managers.user_function_mode()
        if found is None:
            return False
        if self.fullgraph:
            raise Unsupported(Reason(ANOTHER_TRACER, found))
        return True

    def clear(self) -> None:
        """Forgets all entries and reasons."""
        target = self.target()
        if target is not None:
            _native.clear(target)
        self.record = Record(self._first_attempt())
        self.resume_functions.clear()

    def _first_attempt(self) -> Attempt:
        """The attempt that gains most, with this backend and these options."""
        return Attempt(
            symbolic_counts=self.dynamic is not False,
            sizes=SymbolicSizes(
                enabled=self.dynamic is not False and self._takes_sizes(),
                all_dynamic=self.dynamic is True,
            ),
            unbacked_sizes=getattr(self.backend, "takes_data_sizes", False),
            joint_graph=self._functional,
            assumes=True,
            selects=True,
            may_break=not self.fullgraph,
        )

    @property
    def _functional(self) -> bool:
        return is_functional(self.backend)

    def _takes_sizes(self) -> bool:
        """Whether the backend is given symbolic sizes. Those of others may compile for their example inputs alone, so they
        are only if the user says so."""
        asked = self.dynamic is True and getattr(self.backend, "takes_sizes_if_asked", False)
        return asked or getattr(self.backend, "takes_sizes", False)

    def _wrap_resume(self, fn: FunctionType) -> Any:
        """The callable of a resume function, which shares all resume functions with this one."""
        compiler = FrameCompiler(self.backend, self.config, False, self.dynamic, self.resume_functions)
        wrapped = wrap(fn, compiler)
        wrapped._smelt_original = fn
        return wrapped

    def _edited_program(self, traced: Traced) -> EditedProgram | None:
        """What a user has made of the torch-level graph, compiled as any function is. Where the backend runs that graph call
        by call, it is run as it stands."""
        function = edited_program(traced)
        if function is None:
            return None
        if getattr(self.backend, "runs_calls", False):
            return EditedProgram(function, function, traced)
        run = wrap(function, FrameCompiler(self.backend, self.config, self.fullgraph, self.dynamic))
        run._smelt_original = function
        return EditedProgram(function, run, traced)

    def _table(self, fn: FunctionType) -> CodeType | _native.Wrapped:
        """What natively holds the entries: the callable that `wrap` made, else the code object."""
        target = self.target()
        return fn.__code__ if target is None else target

    # ---- from a call to an entry

    def _compile(self, fn: FunctionType, slots: tuple[object, ...]) -> Answer:
        try:
            final = self._add_entry(fn, slots)
        except Exception as e:
            return self._without_entry(fn, e)
        return True if final is None else self._without_entry(fn, final)

    def _add_entry(self, fn: FunctionType, slots: tuple[object, ...]) -> Exception | None:
        """Adds an entry for the whole frame, or for what comes before the instruction that cannot be captured. Returns the
        error that stands in the way."""
        record = self.record
        why = self._explain_misses(slots)
        if len(record.entries) >= self.config.recompile_limit:
            return Unsupported(recompile_limit_reason(record, why, fn.__code__))
        if not self.fullgraph and 2 * len(record.entries) >= self.config.recompile_limit:
            # Each way from a break to the next has a graph; from now on those to the loop's head and from it have.
            record.start = replace(record.start, looks_ahead=False, decides=False)
        if not record.entries:  # of a resume function: what changed in the function changes here
            sizes = replace(record.start.sizes, values=self.resume_functions.sizes)
            record.start = replace(record.start, sizes=sizes)
        start = record.start.with_resume_facts(self.resume_functions.facts_for(self.target()))
        if self.dynamic is True:
            start = start.generalized(int_arguments(fn.__code__, slots), set())
        begin = time.perf_counter()
        with collections_postponed():
            done = first_success(
                start,
                lambda attempt: self._attempt(fn, slots, attempt, why, begin),
                functools.partial(self._note_weakening, fn.__qualname__),
            )
        if not isinstance(done, Success):
            return done
        record.start = replace(done.start, sizes=done.start.sizes.without_call_facts())
        if done.attempt.stop is not None:
            self._note_break(fn.__qualname__, done.attempt.stop.reason)
        return None

    def _attempt(
        self,
        fn: FunctionType,
        slots: tuple[object, ...],
        attempt: Attempt,
        why: Failure | None,
        begin: float,
    ) -> FailedAttempt | None:
        """The pipeline of one frame, from capture to the installed entry."""
        name = fn.__qualname__
        start = time.perf_counter()
        events.emit("capture-start", name, attempt=attempt)
        captured = capture_frame(fn, slots, attempt, name=name)
        if isinstance(captured, FailedAttempt):
            return captured
        events.emit("capture-end", name, seconds=time.perf_counter() - start)
        self._note_refused(name, captured.env.sizes.refused)
        data = captured.traced.unbacked
        used_unbacked = data is not None
        try:
            trial = Trial(fn, slots, attempt, captured, self.resume_functions, self._functional)
            if data is not None:
                small = small_sizes(trial)
                captured.traced = replace(captured.traced, unbacked=replace(data, small=small))
            with_sizes_of_one(trial)
            self._install(fn, slots, captured, why, begin)
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

    def _install(
        self,
        fn: FunctionType,
        slots: tuple[object, ...],
        captured: CapturedFrame,
        why: Failure | None,
        begin: float,
    ) -> None:
        """Compiles what was captured, and installs it."""
        name = fn.__qualname__
        program = self._edited_program(captured.traced)
        functional = self._functional and program is None
        assumed = captured.assumed or captured.traced.unbacked is not None
        if assumed and repeat_of(captured.traced, functional) is None:
            raise NotRepeatable
        captured.traced = replace(captured.traced, title=self._title(fn), on_failure=self._failed(fn))
        if self.config.verify:
            captured.traced = replace(captured.traced, on_mismatch=self._differs(fn))
        graph = compiled_graph(self.backend, self.config, captured, program)
        frame = edited_frame(compiled_frame(fn, captured, graph, self.resume_functions, functional))
        with stage("guards", name):
            spec = tree_layout.build(captured.guards, frame.collect, captured.lifetimes.kept)
            tree = _native.GuardTree(spec.native)
            verify_accepts(tree, spec.guards, slots)
        if captured.traced.sizes:
            self.resume_functions.sizes = frozenset(place.hint for place in captured.traced.sizes.values())
        seconds = time.perf_counter() - begin
        answers: Answers = frame.function, without_frame(frame)
        if self.config.verify_stages:
            answers = verified(frame.function, spec.guards), None
        _native.add_entry(self._table(fn), tree, *answers)
        entry = Entry(
            name,
            spec.guards,
            frame.source,
            why,
            captured.traced,
            graph,
            tree,
            answers,
            seconds,
            captured.env.sizes.observed,
        )
        self.record.entries.append(entry)
        self._installed += 1
        self._drop_superseded(fn)
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
        """Drops the entries that others have made needless. A call of another thread may find none meanwhile; it then waits
        for the lock, and looks again."""
        record = self.record
        gone = superseded_entries(record.entries)
        if gone:
            record.entries[:] = [entry for entry in record.entries if entry not in gone]
            _native.clear(self._table(fn))
            for entry in record.entries:
                _native.add_entry(self._table(fn), entry.tree, *entry.answers)

    # ---- what is noted on the way

    def _explain_misses(self, slots: tuple[object, ...]) -> Failure | None:
        """Emits a "recompile" event for each entry that refused the call; returns the latest entry's failure. Numbers that
        differ from those of an entry are symbolic from now on."""
        record, failure = self.record, None
        for number, entry in enumerate(record.entries):
            if self.config.verify_stages:
                verify_refuses(number, entry, slots)
            failure = explain_cache_miss(entry, slots)
            numbers = changed_numbers(entry.facts, slots)
            sizes = changed_sizes(entry.facts, slots, entry.sizes)
            record.start = record.start.generalized(numbers, sizes)
            events.emit("recompile", entry.name, entry=number, failure=failure)
        return failure

    def _note_weakening(self, name: str, error: Exception) -> None:
        """Says why there is no joint graph, or why a size may not be any, which users wonder about."""
        if isinstance(error, NeedsFixedSize):
            events.emit("size-restricted", name, reason=error.reason, sizes=error.sources)
        if isinstance(error, NotDifferentiable) and self.record.no_joint_graph_reason is None:
            events.emit("no-joint-graph", name, reason=error.reason)
            self.record.no_joint_graph_reason = error.reason

    def _note_refused(self, name: str, sizes: Mapping[Source, int]) -> None:
        """Says, once, that a size is a number that the user has marked to be symbolic."""
        for source, size in sizes.items():
            if source.path not in self.record.refused:
                self.record.refused.add(source.path)
                _tell(
                    logging.WARNING,
                    "smelt: %s of %s is marked to be dynamic, but compiled as %d: the program works for one size only, or"
                    " elements of the tensor overlap",
                    source.source,
                    name,
                    size,
                )

    def _note_break(self, name: str, reason: Reason) -> None:
        events.emit("graph-break", name, reason=reason)
        if reason not in self.record.breaks:
            self.record.breaks.append(reason)
            _tell(logging.INFO, "smelt: graph break in %s: %s", name, reason)

    # ---- what went wrong

    def _without_entry(self, fn: FunctionType, error: Exception) -> Answer:
        """What the hook is answered when no attempt gave an entry."""
        if isinstance(error, UserException):
            return self._raised(fn, error)
        if _speaks_of_change(error) and not is_only_thread():
            self._outrun(fn, error)
            return False
        if _is_asked_for(error, self.config):
            raise error
        return self._give_up(fn, reason_for(error), error)

    def _failed(self, fn: FunctionType) -> Callable[[Exception], None]:
        """What a graph tells that a part of it could not be compiled when a later call, or a backward, needed it."""
        name, weakly, fullgraph, config = fn.__qualname__, weakref.ref(self), self.fullgraph, self.config

        def failed(error: Exception) -> None:
            if _is_asked_for(error, config):
                raise error
            if fullgraph:
                raise BackendError(f"a part of {name} could not be compiled: {summary(error)}") from error
            _tell(logging.DEBUG, "%s", "".join(traceback.format_exception(error)))
            reason = Reason(BACKEND_FAILED, summary(error))
            compiler = weakly()
            if compiler is None:  # a backward outlives the function
                _tell(logging.WARNING, "smelt: %s: %s", name, reason)
            else:
                compiler._remember(name, reason, in_part=True)

        return failed

    def _differs(self, fn: FunctionType) -> Callable[[Reason], None]:
        """What a graph tells that compiled code of it is wrong: the function runs eagerly from its next call on."""
        name, weakly, table = fn.__qualname__, weakref.ref(self), weakref.ref(self._table(fn))

        def differs(reason: Reason) -> None:
            compiler, entries = weakly(), table()
            if compiler is None or entries is None:  # a backward outlives the function
                _tell(logging.WARNING, "smelt: %s: %s", name, reason)
                return
            compiler._remember(name, reason)
            _native.clear(entries)
            _native.close(entries)

        return differs

    def _raised(self, fn: FunctionType, error: UserException) -> Answer:
        """The call runs eagerly, so that the user sees eager's exception and traceback."""
        record = self.record
        self._remember(fn.__qualname__, reason_for(error), logging.DEBUG)
        let_go(error)
        record.failures += 1
        if record.failures > self.config.recompile_limit:
            _native.close(self._table(fn))
        return functools.partial(self._not_raised, fn, error)

    def _not_raised(self, fn: FunctionType, error: UserException) -> None:
        """The eager run of a call did not raise what its capture raised: that was smelt's own error."""
        record = self.record
        record.reasons = [r for r in record.reasons if r.kind is not USER_EXCEPTION or r.line != error.line]
        if not is_only_thread():
            self._outrun(fn, error.error)
            return
        detail = f"capture raised {summary(error.error)}, the function itself did not"
        self._give_up(fn, Reason(INTERNAL, detail, error.line), error)

    def _outrun(self, fn: FunctionType, error: BaseException) -> None:
        """Other threads may have changed the world during capture: this call runs eagerly, the next is captured again, up to
        a limit."""
        self.record.races += 1
        if self.record.races > self.config.recompile_limit:
            reason = Reason(OUTRUN, summary(error))
            self._give_up(fn, reason, Unsupported(reason))
            _native.close(self._table(fn))

    def _give_up(self, fn: FunctionType, reason: Reason, error: Exception) -> bool:
        """This call runs eagerly; later ones too when the same thing stood in the way before, or smelt itself failed."""
        if self.fullgraph:
            if isinstance(error, SmeltError):
                raise error.with_traceback(None)
            raise Unsupported(reason) from error
        if reason.kind in (INTERNAL, BACKEND_FAILED):
            _tell(logging.DEBUG, "%s", "".join(traceback.format_exception(error)))
        if reason.kind is ANOTHER_TRACER:
            let_go(error)
            return False
        is_walk = is_step(fn) and not any(entry.computes for entry in self.record.entries)
        lost_nothing = (
            reason.kind is RECOMPILE_LIMIT and is_walk
        )  # of a generator that only walks over objects
        new = self._remember(
            fn.__qualname__, reason, level=logging.DEBUG if lost_nothing else logging.WARNING
        )
        if not new or reason.kind in (INTERNAL, BACKEND_FAILED, RECOMPILE_LIMIT):
            _native.close(self._table(fn))
        let_go(error)
        return False

    def _remember(
        self, name: str, reason: Reason, level: int = logging.WARNING, in_part: bool = False
    ) -> bool:
        """Keeps, emits and logs a reason, once for each kind and line; False when it was known. `in_part`: the rest of what
        was compiled runs as it is."""
        events.emit("fallback", name, reason=reason)
        known = any(r.kind is reason.kind and r.line == reason.line for r in self.record.reasons)
        if not known:
            self.record.reasons.append(reason)
            _tell(level, "smelt: %s%s runs eagerly: %s", "a part of " if in_part else "", name, reason)
        return not known
