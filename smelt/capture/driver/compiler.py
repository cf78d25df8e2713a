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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from smelt import _native, events
from smelt.capture.breaks.resume import Resumes
from smelt.capture.driver.run import CapturedFrame, Stop, UserException, capture_frame
from smelt.capture.emit.compiled_frame import CompiledFrame, emit
from smelt.capture.emit.replay import stores_of
from smelt.capture.emit.rerun import is_repeatable
from smelt.capture.interpreter.interpreter import decoded
from smelt.capture.protocol import raising
from smelt.capture.rebuilding.reach import reach
from smelt.config import Config
from smelt.errors import BackendError, SmeltError, Unsupported, VerificationError
from smelt.graph.ir import Line
from smelt.guards import build
from smelt.guards.evaluate import changed_numbers, first_failing, format_guard, format_guards
from smelt.guards.explain import Failure, explain, explain_guard
from smelt.guards.guard import Guard
from smelt.reasons import BACKEND_FAILED, INTERNAL, RECOMPILE_LIMIT, USER_EXCEPTION, Reason
from smelt.runtime.collector import collector_off
from smelt.runtime.forks import CAPTURE, hold_at_fork
from smelt.trace.copies import NotCopies
from smelt.trace.not_differentiable import NotDifferentiable
from smelt.trace.traced import Traced

Graph = Callable[[tuple[Any, ...]], Sequence[Any]]
Backend = Callable[[Traced, Config], Graph]
Answer = bool | Callable[[], None]  # see _native.wrap

log = logging.getLogger("smelt")
# held while capturing: outside objects may hold fakes meanwhile
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


@dataclass(frozen=True, eq=False)
class Entry:
    """One compiled variant of a function, as people look at it.

    `facts` are its guards as data, `guards` as text; `source` is the compiled frame; `reason` is the guard of the latest
    older entry that failed and so made this one necessary; `graph` is what the backend returned;
    `tree` is the native guard tree; `seconds` is what making the entry took.
    """

    name: str
    facts: tuple[Guard, ...]
    source: str
    reason: Failure | None
    traced: Traced
    graph: Graph
    tree: Any
    seconds: float

    @property
    def computes(self) -> bool:
        """Whether its graph holds an operation."""
        return any(node.op.startswith("call") for node in self.traced.aten_graph)

    @property
    def guards(self) -> str:
        return format_guards(self.facts)


@dataclass(eq=False)
class Record:
    """What is known of one compiled function besides its native entries."""

    entries: list[Entry] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    breaks: list[Reason] = field(default_factory=list)  # why entries end in a resume function
    failures: int = 0  # captures that ended in an exception of the user's code
    outrun: int = 0  # captures after which the world was another
    dynamic: set[tuple[Any, ...]] = field(default_factory=set)  # paths of origins whose number has changed
    plain_numbers: bool = False  # they are part of the trace nevertheless
    plain_gradients: Reason | None = None  # why autograd follows the graph operator by operator
    as_eager: bool = False  # the program is told that it is not being compiled
    only_views: bool = False  # a tensor as an index breaks the graph


_compilers: weakref.WeakValueDictionary[int, FrameCompiler] = (
    weakref.WeakValueDictionary()
)  # by id of the code object


def wrap(fn: FunctionType, compiler: FrameCompiler) -> Any:
    """The native callable that answers calls of `fn` from compiled entries and asks `compiler` where there are none.

    `fn` should be a copy with a code object of its own: `entries_of` and `reasons_of` find the compiler by it. Entries
    belong to the callable, so that the garbage collector sees them.
    """
    wrapped = _native.wrap(fn, compiler)
    compiler.target = weakref.ref(wrapped)
    compiler.name = fn.__qualname__
    _compilers[id(fn.__code__)] = compiler
    return wrapped


def entries_of(code: CodeType) -> list[Entry]:
    """The compiled variants of the function whose code object this is, oldest first."""
    compiler = _compilers.get(id(code))
    return [] if compiler is None else list(compiler.record.entries)


def reasons_of(code: CodeType) -> tuple[Reason, ...]:
    """Why the function whose code object this is, is not one graph: calls that ran eagerly, then graph breaks, each oldest
    first; then the same for its resume functions."""
    records = [record for _, record in records_of(code)]
    return tuple(dict.fromkeys(r for record in records for r in (*record.reasons, *record.breaks)))


def records_of(code: CodeType) -> list[tuple[str, Record]]:
    """Name and record of the function whose code object this is, and of its resume functions in order of creation."""
    compiler = _compilers.get(id(code))
    if compiler is None:
        return []
    resumes = [(c.__wrapped__.__qualname__, c.__wrapped__.__code__) for c in compiler.resumes.callables]
    found = [(name, _compilers.get(id(c))) for name, c in resumes]
    return [(compiler.name, compiler.record), *((n, c.record) for n, c in found if c is not None)]


def reset() -> None:
    """Drops the entries and reasons of every compiled function; each compiles again at its next call."""
    for compiler in list(_compilers.values()):
        compiler.clear()


class WorldChanged(VerificationError):
    """What was guarded is no longer as it was when the frame was captured."""


class FrameCompiler:
    """The hook's callback of one compiled function: `compiler(fn, slots)` returns whether to look for an entry again.

    Args:
        backend: compiles a traced graph; gets (traced, config), returns a callable on a tuple of tensors.
        fullgraph: raise Unsupported or BackendError instead of running eagerly.
        dynamic: None or False (numbers that change are not generalised); every shape is compiled by itself.
        resumes: of the function that this one is a resume function of.
    """

    def __init__(
        self,
        backend: Backend,
        config: Config,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        resumes: Resumes | None = None,
    ) -> None:
        self.name = ""
        self.resumes = Resumes(self._wrap_resume, decoded) if resumes is None else resumes
        self.backend = backend
        self.config = config
        self.fullgraph = fullgraph
        self.dynamic = dynamic
        self.record = Record()
        self.target: Callable[[], Any] = lambda: None  # the native callable, held weakly

    def __call__(self, fn: FunctionType, slots: tuple[object, ...]) -> Answer:
        if _thread.capturing or _thread.disabled:
            return False
        table = self._table(fn)
        before = _native.count(table)
        with _lock:
            if (
                _native.count(table) != before
            ):  # another thread compiled meanwhile, perhaps for this very call
                return True
            _thread.capturing = True
            try:
                with raising.called_while_handling(sys.exception()):
                    return self._compile(fn, slots)
            finally:
                _thread.capturing = False

    def clear(self) -> None:
        """Forgets all entries and reasons."""
        target = self.target()
        if target is not None:
            _native.clear(target)
        self.record = Record()
        self.resumes.clear()

    def _wrap_resume(self, fn: FunctionType) -> Any:
        """The callable of a resume function, which shares all resume functions with this one."""
        compiler = FrameCompiler(self.backend, self.config, False, self.dynamic, self.resumes)
        wrapped = wrap(fn, compiler)
        wrapped._smelt_original = fn
        return wrapped

    def _table(self, fn: FunctionType) -> Any:
        """What natively holds the entries: the callable that `wrap` made, else the code object."""
        target = self.target()
        return fn.__code__ if target is None else target

    def _compile(self, fn: FunctionType, slots: tuple[object, ...]) -> Answer:
        record = self.record
        try:
            why = self._explain_miss(record, slots)
            if len(record.entries) >= self.config.recompile_limit:
                raise Unsupported(_limit_reason(record, self.config, why, fn.__code__))
            with collector_off():
                try:
                    self._add_whole_or_broken(fn, slots, why)
                except WorldChanged:  # once more; an import that the backend makes may have been the cause
                    self._add_whole_or_broken(fn, slots, why)
                except NotCopies:  # from the start: what breaks is another instruction
                    record.only_views = True
                    self._add_whole_or_broken(fn, slots, why)
        except UserException as e:
            detail = f"{type(e.error).__name__}: {e.error}"
            self._remember(fn.__qualname__, Reason(USER_EXCEPTION, detail, e.line), logging.DEBUG)
            record.failures += 1
            if record.failures > self.config.recompile_limit:
                _native.close(self._table(fn))
            return functools.partial(self._not_raised, fn, e)
        except Unsupported as e:
            return self._give_up(fn, e.reason, e)
        except BackendError as e:
            return self._give_up(fn, Reason(BACKEND_FAILED, _summary(e.__cause__ or e)), e)
        except VerificationError as e:
            if isinstance(e, WorldChanged) and self._outrun():
                return False
            if self.config.verify:
                raise
            return self._give_up(fn, Reason(INTERNAL, _summary(e)), e)
        except Exception as e:
            return self._give_up(fn, Reason(INTERNAL, _summary(e)), e)
        return True

    def _outrun(self) -> bool:
        """Whether other threads may have changed the world during capture: then this call runs eagerly, the next may not."""
        self.record.outrun += 1
        return not _alone() and self.record.outrun <= self.config.recompile_limit

    def _add_whole_or_broken(self, fn: FunctionType, slots: tuple[object, ...], why: Failure | None) -> None:
        """An entry for the whole frame, or for what comes before the instruction that cannot be captured."""
        try:
            self._add_entry(fn, slots, why)
            return
        except Unsupported as e:
            if self.fullgraph:
                raise
            error = e  # outside of this block exceptions of the user's code do not get it as their context
        if not self._add_broken(fn, slots, why, error):
            raise error
        _let_go(error)

    def _add_broken(
        self, fn: FunctionType, slots: tuple[object, ...], why: Failure | None, error: Unsupported
    ) -> bool:
        """Breaks in the frame that failed; where that cannot be, in the nearest caller that can, which calls for real."""
        for depth in range(len(error.path), 0, -1):
            try:
                self._add_entry(fn, slots, why, Stop(error.path[:depth], error.reason))
            except Unsupported as e:
                _let_go(e)
                continue
            self._note_break(fn.__qualname__, error.reason)
            return True
        return False

    def _note_break(self, name: str, reason: Reason) -> None:
        events.emit("graph-break", name, reason=reason)
        if reason not in self.record.breaks:
            self.record.breaks.append(reason)
            log.info("smelt: graph break in %s: %s", name, reason)

    def _add_entry(
        self, fn: FunctionType, slots: tuple[object, ...], why: Failure | None, stop: Stop | None = None
    ) -> None:
        """The pipeline of one frame."""
        start = time.perf_counter()
        name = fn.__qualname__
        events.emit("capture-start", name)
        captured = self._capture(fn, slots, stop)
        events.emit("capture-end", name, seconds=time.perf_counter() - start)
        try:
            self._install(fn, slots, captured, why, start)
        except BackendError:
            if not captured.traced.numbers:
                raise
            self.record.plain_numbers = True  # a backend that takes tensors only
            self._add_entry(fn, slots, why, stop)
        finally:
            captured.release()

    def _capture(self, fn: FunctionType, slots: tuple[object, ...], stop: Stop | None) -> CapturedFrame:
        """A program that raises only because it is told that it is being compiled is told from then on that it is not:
        it must not raise where eager does not."""
        record = self.record
        try:
            return self._capture_once(fn, slots, stop)
        except UserException as e:
            if not e.told:
                raise
        record.as_eager = True  # also while the frame is captured up to a break that this attempt comes to
        try:
            return self._capture_once(fn, slots, stop)
        except UserException:
            record.as_eager = False  # eager raises too
            raise

    def _capture_once(self, fn: FunctionType, slots: tuple[object, ...], stop: Stop | None) -> CapturedFrame:
        """With the joint graph, where the backend can use one and there is one."""
        record = self.record
        capture = functools.partial(
            capture_frame,
            fn,
            slots,
            self.config,
            name=fn.__qualname__,
            dynamic=frozenset() if record.plain_numbers else frozenset(record.dynamic),
            stop=stop,
            compiling=not record.as_eager,
            copies=not record.only_views,
            counts=self.dynamic is not False and not record.plain_numbers,
        )
        if getattr(self.backend, "differentiates", False) and record.plain_gradients is None:
            try:
                return capture(differentiate=True)
            except NotDifferentiable as e:
                events.emit("no-joint-graph", fn.__qualname__, reason=e.reason)
                log.debug("smelt: %s: %s", fn.__qualname__, e.reason)
                record.plain_gradients = e.reason
                _let_go(e)
        return capture()

    def _install(
        self,
        fn: FunctionType,
        slots: tuple[object, ...],
        captured: CapturedFrame,
        why: Failure | None,
        start: float,
    ) -> None:
        """Compiles what was captured, and installs it."""
        name = fn.__qualname__
        graph = self._compiled_graph(name, captured)
        frame = _emitted(fn, captured, graph, self.resumes)
        with _stage("guards", name):
            spec = build.build(captured.guards, frame.collect)
            tree = _native.GuardTree(spec.native)
            _verify_accepts(tree, spec, slots)
        compiled = _checked(frame, spec) if self.config.verify else frame.function
        seconds = time.perf_counter() - start
        _native.add_entry(self._table(fn), tree, compiled)
        self.record.entries.append(
            Entry(name, spec.guards, frame.source, why, captured.traced, graph, tree, seconds)
        )
        events.emit(
            "entry-installed",
            name,
            seconds=seconds,
            guards=len(spec.guards),
            inputs=len(captured.input_origins),
        )

    def _compiled_graph(self, name: str, captured: CapturedFrame) -> Graph:
        """What the backend makes of the graph."""
        start = time.perf_counter()
        events.emit("backend-start", name)
        try:
            return self.backend(captured.traced, self.config)
        except (Unsupported, BackendError):
            raise
        except Exception as e:
            raise BackendError(f"the backend failed on {name}: {_summary(e)}") from e
        finally:
            captured.traced.forget_examples()
            events.emit("backend-end", name, seconds=time.perf_counter() - start)

    # ---- what went wrong

    def _explain_miss(self, record: Record, slots: tuple[object, ...]) -> Failure | None:
        """Emits a "recompile" event for each entry that refused the call; returns the latest entry's failure."""
        failure = None
        for number, entry in enumerate(record.entries):
            if self.config.verify and first_failing(entry.facts, slots) is None and _alone():
                raise VerificationError(
                    f"entry {number} of {entry.name} refused a call that its guards accept"
                )
            failure = _explain(entry, slots)
            if self.dynamic is not False:
                record.dynamic |= changed_numbers(entry.facts, slots)
            events.emit("recompile", entry.name, entry=number, failure=failure)
        return failure

    def _give_up(self, fn: FunctionType, reason: Reason, error: Exception) -> bool:
        """This call runs eagerly; later ones too when the same thing stood in the way before, or smelt itself failed."""
        if self.fullgraph:
            if isinstance(error, SmeltError):
                raise error.with_traceback(None)
            raise Unsupported(reason) from error
        if reason.kind in (INTERNAL, BACKEND_FAILED):
            log.debug("%s", "".join(traceback.format_exception(error)))
        new = self._remember(fn.__qualname__, reason)
        if not new or reason.kind in (INTERNAL, BACKEND_FAILED, RECOMPILE_LIMIT):
            _native.close(self._table(fn))
        _let_go(error)
        return False

    def _not_raised(self, fn: FunctionType, error: UserException) -> None:
        """The eager run of a call did not raise what its capture raised: that was smelt's own error."""
        record = self.record
        record.reasons = [r for r in record.reasons if r.kind is not USER_EXCEPTION or r.line != error.line]
        detail = f"capture raised {_summary(error.error)}, the function itself did not"
        self._give_up(fn, Reason(INTERNAL, detail, error.line), error)

    def _remember(self, name: str, reason: Reason, level: int = logging.WARNING) -> bool:
        """Keeps, emits and logs a reason, once for each kind and line; False when it was known."""
        events.emit("fallback", name, reason=reason)
        known = any(r.kind is reason.kind and r.line == reason.line for r in self.record.reasons)
        if not known:
            self.record.reasons.append(reason)
            log.log(level, "smelt: %s runs eagerly: %s", name, reason)
        return not known


def _let_go(error: BaseException) -> None:
    """Of the frames that an error, which is dealt with, has passed: they hold what the user gave, and may hold the error, so
    that all of it would live until the next collection. What the user was handling is left alone."""
    passed: BaseException | None = error
    seen: set[int] = set()  # causes may go round in a circle
    while passed is not None and id(passed) not in seen:
        seen.add(id(passed))
        passed.__traceback__ = None
        passed = passed.__cause__


# ------------------------------------------------------------------------------------------------- the steps


def _emitted(fn: FunctionType, captured: CapturedFrame, graph: Graph, resumes: Resumes) -> CompiledFrame:
    traced = captured.traced
    code = fn.__code__
    with _stage("emit", code.co_qualname):
        stores = stores_of(captured.effects)
        operands = [operand for store in stores for operand in store.operands]
        found = reach([*captured.ending.roots, *operands], captured.origin_of)
        inputs = list(zip(traced.inputs, captured.input_origins, strict=True))
        called = graph if _does_something(traced) else None
        symbols = [n.symbol.expression for n in traced.numbers]
        original = fn if is_repeatable(traced.aten_graph) else None
        return emit(
            code,
            found,
            captured.ending,
            stores,
            inputs,
            traced.outputs,
            called,
            resumes,
            symbols,
            original,
            captured.handles,
        )


def _does_something(traced: Traced) -> bool:
    called = any(node.op.startswith("call") for node in traced.aten_graph)
    return called or bool(traced.outputs) or traced.needs_grad


def _verify_accepts(tree: Any, spec: build.TreeSpec, slots: tuple[object, ...]) -> None:
    """A fresh guard must accept the call that it was made from. Raises VerificationError naming the guard: WorldChanged
    where the evaluation in Python refuses the call too."""
    if tree.check(*slots) is not None:
        return
    index = tree.explain(*slots)
    which = format_guard(spec.guards[index]) if index is not None and index >= 0 else "an object is missing"
    failing = first_failing(spec.guards, slots)
    second = "none" if failing is None else format_guard(failing)
    kind = VerificationError if failing is None else WorldChanged
    raise kind(f"a fresh guard refuses its own call: {which} (evaluated in Python: {second})")


def _alone() -> bool:
    """Whether no other thread can have changed the world between two looks at it."""
    return threading.active_count() == 1


def _checked(frame: CompiledFrame, spec: build.TreeSpec) -> Callable[..., Any]:
    """Verify mode: the compiled frame, after the Python evaluation of the guards has agreed with the native tree."""

    def checked(*arguments: object) -> Any:
        failing = first_failing(spec.guards, arguments[:-1])
        if failing is not None and _alone():
            raise VerificationError(
                f"the native tree accepts a call that a guard refuses: {format_guard(failing)}"
            )
        return frame.function(*arguments)

    return checked


def _explain(entry: Entry, slots: tuple[object, ...]) -> Failure | None:
    """What the native tree found wrong, with the two values."""
    index = entry.tree.explain(*slots)
    if index is not None and index >= 0:
        return explain_guard(entry.facts[index], slots)
    return explain(entry.facts, slots)


def _limit_reason(record: Record, config: Config, why: Failure | None, code: CodeType) -> Reason:
    """Names what keeps changing, with the values it had."""
    values: dict[str, list[str]] = {}
    for failure in [*(e.reason for e in record.entries), why]:
        if failure is not None:
            values.setdefault(failure.source, [failure.expected]).append(failure.found)
    changing = "; ".join(
        f"{source} was {', '.join(dict.fromkeys(found))}" for source, found in values.items()
    )
    detail = f"{len(record.entries)} times, which is the limit; {changing or 'its guards did not hold'}"
    return Reason(RECOMPILE_LIMIT, detail, Line(code.co_filename, code.co_firstlineno, code.co_qualname))


def _summary(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


@contextmanager
def _stage(stage: str, frame: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    events.emit("stage", stage, frame=frame, seconds=time.perf_counter() - start)
