"""Capture attempts: a frame is captured with fewer and fewer assumptions until an attempt succeeds.

An `Attempt` holds the assumptions of one capture and what it records. The first attempt of a function makes all assumptions
that may pay off. A `FailedAttempt` holds the error that ended one; the table `RETRY_RULES` maps kinds of errors to the next
attempt. If no rule applies, the error is final, and `reason_for` turns it into the reason why the frame is not compiled.

Termination: each rule drops an assumption, breaks the graph in an outer frame, or applies only once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from smelt._native import isinstance
from smelt.capture.driver.capture_errors import NotRepeatable, UserException, WorldChanged, summary
from smelt.capture.environment.symbolic_size_policy import NO_SYMBOLIC_SIZES, Range, SymbolicSizes
from smelt.capture.graph_breaks.resume_argument_facts import ResumeFacts
from smelt.capture.proxies.text_proxy import Unreadable
from smelt.errors import (
    BackendError,
    DropsObserved,
    NeedsFixedSize,
    RecordsWarnings,
    RefusedOperator,
    SharesCounter,
    Unsupported,
)
from smelt.reasons import BACKEND_FAILED, CHANGING_VALUE, INTERNAL, USER_EXCEPTION, Reason
from smelt.shapes.expr import Size
from smelt.tracing.backward.not_differentiable import NotDifferentiable
from smelt.tracing.functionalize.view_copies import NotCopies
from smelt.tracing.symbolic.symbolic_numbers import PlainNumbersOnly

log = logging.getLogger("smelt")

Path = tuple[object, ...]  # `Source.path`: equal in every capture of a function


@dataclass(frozen=True)
class Stop:
    """The instruction before which capture stops, because capturing it raises `error`.

    `path`: the position of each frame (`Frame.position`), outermost first.
    """

    path: tuple[int, ...]
    error: Unsupported

    @property
    def reason(self) -> Reason:
        """Why the graph breaks there."""
        return self.error.reason


@dataclass(frozen=True)
class Attempt:
    """The assumptions of one capture of a frame; the default makes the fewest.

    `symbolic`: the paths of dynamic numbers, which are symbolic.
    `unguarded`: the paths of numbers, strings and containers that kept causing recompiles: the graph breaks where the
    program needs one.
    `unknown`: of these, the paths of arguments whose classes kept changing: the program may only pass them on.
    `symbolic_counts`: the step counts that optimizers store in tensors, and the numbers of counting iterators, are symbolic
    from the first call on.
    `sizes`: which tensor sizes are symbolic.
    `unbacked_sizes`: unbacked sizes are symbolic, if `assumes`; the graph checks the assumptions about them.
    `unbacked_value`: the value of all unbacked sizes in a trial capture (`zero_one_specialization.py`).
    `joint_graph`: if gradients are needed, the joint graph of forward and backward is recorded.
    `may_join`: gradients of wrapper subclasses may have a joint graph, whatever the backend; it was not refused before.
    `hides_intermediates`: the backend may make the graph one autograd node.
    `copies`: indexing a tensor returns a copy of the row, where eager returns a view.
    `reports_compiling`: the value of `torch.compiler.is_compiling()` in the program.
    `assumes`: a condition on a tensor is assumed to take the branch that does not raise; the graph checks it.
    `looks_ahead`: the next items of the environment's iterators are guarded, and the compiled frame advances the iterators.
    `guards_conditions`: conditions on numbers in the environment's tensors are guarded.
    `selects`: both branches of a small `torch.cond` are computed, and one result is selected.
    `captures_jumps`: both branches of a jump on a tensor are captured, except at those in `uncaptured_jumps`, which says
    why. `joins_numbers`: numbers that differ by branch become proxies.
    `trusts_marks`: functions marked with `torch.compiler.allow_in_graph` run natively, as functions of their arguments.
    `records_warnings`: a `catch_warnings(record=True)` is captured; the graph does not break inside of it.
    `assigns_data`: assignments to the `data` of a tensor are captured.
    `defers_drops`: changes of objects that hold some with finalizers are captured; the compiled frame makes them at its end.
    `records_modules`: the trace records the calls of modules.
    `may_break`: the graph may break before an instruction that cannot be captured.
    `stop`: the instruction before which it breaks.
    """

    symbolic: frozenset[Path] = frozenset()
    unguarded: frozenset[Path] = frozenset()
    unknown: frozenset[Path] = frozenset()
    symbolic_counts: bool = False
    sizes: SymbolicSizes = NO_SYMBOLIC_SIZES
    unbacked_sizes: bool = False
    unbacked_value: int | None = None
    joint_graph: bool = False
    may_join: bool = True
    hides_intermediates: bool = False
    copies: bool = True
    reports_compiling: bool = True
    assumes: bool = False
    looks_ahead: bool = True
    guards_conditions: bool = True
    selects: bool = False
    captures_jumps: bool = False
    uncaptured_jumps: Mapping[object, str] = field(default_factory=dict)
    joins_numbers: bool = True
    trusts_marks: bool = False
    records_warnings: bool = True
    assigns_data: bool = True
    defers_drops: bool = True
    records_modules: bool = False
    may_break: bool = True
    stop: Stop | None = None

    def generalized(self, numbers: set[Path], sizes: set[tuple[Path, int]]) -> Attempt:
        """Make these numbers and sizes (each with an earlier value) symbolic too, if symbolic ones are enabled."""
        attempt = replace(self, symbolic=self.symbolic | numbers) if self.symbolic_counts else self
        return replace(attempt, sizes=self.sizes.with_observed(sizes))

    def without_guards(self, paths: frozenset[Path], sizes: frozenset[Path]) -> Attempt:
        """No longer guard the numbers, strings and containers at `paths`, and the values of `sizes`."""
        attempt = replace(self, symbolic=self.symbolic | paths, unguarded=self.unguarded | paths)
        return replace(attempt, sizes=self.sizes.without_guards(sizes))

    def without_classes(self, paths: frozenset[Path]) -> Attempt:
        """No longer guard the classes of the arguments at `paths`."""
        return replace(self, unguarded=self.unguarded | paths, unknown=self.unknown | paths)

    def with_resume_facts(self, facts: ResumeFacts) -> Attempt:
        """Add the facts about a resume function's arguments, if symbolic numbers are enabled."""
        attempt = replace(self, symbolic=self.symbolic | facts.numbers) if self.symbolic_counts else self
        if not self.sizes.enabled:
            return attempt
        return replace(attempt, sizes=replace(self.sizes, before_break=facts.sizes))

    def specialized(self) -> Attempt:
        """Specialize all numbers and sizes that may be guarded."""
        return replace(
            self,
            symbolic=self.unguarded,
            symbolic_counts=False,
            sizes=NO_SYMBOLIC_SIZES,
            unbacked_sizes=False,
        )


@dataclass(frozen=True, eq=False)
class FailedAttempt:
    """Why an attempt created no entry, and facts about its symbolic numbers.

    `used_symbols`: there were symbolic numbers, which may be the cause.
    `unread`: the paths of strings and other objects that change from call to call, whose values are not guarded. `read`: of
    these, the ones that the error is about, if known.
    `formatted_numbers`, `formatted_sizes`: the paths of symbolic numbers and sizes that the program formatted into text.
    `counts`: the paths of the step counts that were read.
    `selecting`: both branches of a condition were running.
    `jump`: the jump on a tensor whose branches were running. `captured_jumps`: branches of some were captured;
    `joined_numbers`: with numbers that differ.
    `marked`: a function marked with `torch.compiler.allow_in_graph` was running.
    `sizes`: the paths of each symbolic size that must be specialized.
    Facts that may suffice instead: `divisors`, of sizes whose remainder is needed; `ranges` of sizes; `equal`, the paths of
    sizes that must share a symbol; `derived`, sizes as expressions over symbols of others.
    `used_unbacked`: there were unbacked sizes.
    """

    error: Exception
    used_symbols: bool = False
    formatted_numbers: frozenset[Path] = frozenset()
    counts: frozenset[Path] = frozenset()
    selecting: bool = False
    jump: object = None
    captured_jumps: bool = False
    joined_numbers: bool = False
    marked: bool = False
    sizes: frozenset[frozenset[Path]] = frozenset()
    divisors: frozenset[tuple[Path, int]] = frozenset()
    ranges: frozenset[tuple[Path, Range]] = frozenset()
    equal: frozenset[Path] = frozenset()
    derived: frozenset[tuple[Path, Size]] = frozenset()
    used_unbacked: bool = False
    formatted_sizes: frozenset[frozenset[Path]] = frozenset()
    unread: frozenset[Path] = frozenset()
    read: frozenset[Path] = frozenset()


# ---------------------------------------------------------------------------------------------------- retry rules


NextAttempt = Callable[[Attempt, Attempt, FailedAttempt], Attempt | None]


@dataclass(frozen=True)
class RetryRule:
    """The next attempt after an error of this type.

    `next_attempt(start, attempt, failed)` returns the next attempt, or None where the rule does not apply; its docstring
    says why. `start` is `attempt` without what is specific to one instruction of the program: the stop, and numbers
    specialized for an error that may not recur. `persists`: if the next attempt succeeds, later captures of the function
    begin with it.
    """

    error: type[Exception] | tuple[type[Exception], ...]
    next_attempt: NextAttempt
    persists: bool = False
    once: bool = False


# The first rule that applies decides.
RETRY_RULES: list[RetryRule] = []


def _rule(
    error: type[Exception] | tuple[type[Exception], ...], persists: bool = False, once: bool = False
) -> Callable[[NextAttempt], NextAttempt]:
    def add(next_attempt: NextAttempt) -> NextAttempt:
        RETRY_RULES.append(RetryRule(error, next_attempt, persists, once))
        return next_attempt

    return add


@_rule(Unreadable, persists=True)
def _join_no_numbers(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """The program may need the value of a number that differs by branch: the rest of the frame is captured for each branch.
    Persists: the program causes it."""
    return replace(start, joins_numbers=False) if failed.joined_numbers and attempt.joins_numbers else None


@_rule(Exception, persists=True)
def _break_at_jump(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """The branches of a jump on a tensor cannot be captured: the graph breaks at the jump, unless specialized sizes may
    suffice. Persists: the program causes it."""
    if failed.jump is None or _specialize_sizes(start, attempt, failed) is not None:
        return None
    why = failed.error.reason.detail if isinstance(failed.error, Unsupported) else "bool() of a tensor"
    return replace(start, uncaptured_jumps={**start.uncaptured_jumps, failed.jump: why}, stop=None)


@_rule((NotDifferentiable, BackendError), persists=True)
def _capture_no_jumps(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """A graph with branches has no joint graph, or the backend refuses it. Persists: the program causes it."""
    return replace(start, captures_jumps=False) if failed.captured_jumps and attempt.captures_jumps else None


_MOST_GUARDED = 4


@_rule(Exception)
def _guard_read_values(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """The program may have read a string or another object that changes from call to call: guard the value that it read, or
    the values of all, if that one is not known or after `_MOST_GUARDED` attempts. Does not persist: the next capture may not
    read them."""
    read = failed.read - attempt.unguarded
    if not read or len(start.symbolic - attempt.symbolic) >= _MOST_GUARDED:
        read = failed.unread - attempt.unguarded
    retry = replace(attempt, symbolic=attempt.symbolic - read)
    return retry if retry != attempt else None


@_rule(NeedsFixedSize, persists=True)
def _specialize_sizes(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """An operation supports specialized sizes only. Starts over, as the program may take another path. Persists: the
    program or the compiler causes it.

    Specializes the sizes that prevented the capture, unless facts about them (equal or derived sizes, divisors, ranges)
    may suffice; all if they are unknown."""
    if not isinstance(failed.error, NeedsFixedSize):
        return None
    sizes = attempt.sizes.weakened(
        failed.sizes,
        failed.error.now,
        equal=failed.equal,
        derived=failed.derived,
        divisors=failed.divisors,
        ranges=failed.ranges,
    )
    return replace(start, sizes=sizes) if sizes != attempt.sizes else None


@_rule(Exception, persists=True)
def _select_no_branches(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """A branch of a condition is more than a small computation, so only one may run. Persists: the program causes it."""
    whole = isinstance(failed.error, RefusedOperator)
    return replace(start, selects=False) if failed.selecting and attempt.selects and not whole else None


@_rule(Unreadable, persists=True)
def _specialize_formatted_sizes(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """The program read text with a symbolic size. Starts over and persists, as for other specialized sizes."""
    sizes = attempt.sizes.specializing(failed.formatted_sizes, False)
    return replace(start, sizes=sizes) if sizes != attempt.sizes else None


@_rule(Unreadable)
def _specialize_formatted_numbers(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """The program read text with a symbolic number. Does not persist: the next capture may take another path."""
    counts = attempt.symbolic_counts and failed.counts.isdisjoint(failed.formatted_numbers)
    formatted = failed.formatted_numbers - attempt.unguarded
    retry = replace(attempt, symbolic=attempt.symbolic - formatted, symbolic_counts=counts)
    return retry if failed.used_symbols and retry != attempt else None


@_rule(PlainNumbersOnly)
def _specialize_numbers(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """An operation has no symbolic form. Does not persist: the next capture may not reach it."""
    retry = attempt.specialized()
    return retry if failed.used_symbols and retry != attempt else None


@_rule(Exception)
def _specialize_numbers_if_raised(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """The program raised, perhaps only because a number was symbolic; if it raises again, the user gets eager's error. Does
    not persist: other arguments may not raise."""
    refused = isinstance(failed.error, (Unsupported, NotCopies, BackendError))
    return None if refused else _specialize_numbers(start, attempt, failed)


@_rule(BackendError, persists=True)
def _specialize_numbers_from_now_on(
    start: Attempt, attempt: Attempt, failed: FailedAttempt
) -> Attempt | None:
    """The graph takes numbers besides tensors, which the backend may not support. Persists: the backend stays the same."""
    retry = replace(start.specialized(), stop=attempt.stop)
    return retry if failed.used_symbols and retry != attempt else None


@_rule(NotDifferentiable, persists=True)
def _record_no_joint_graph(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """The graph has no joint graph, so it runs eagerly under autograd. Persists: an operator mostly causes it, and another
    attempt to record the joint graph costs a capture."""
    return (
        replace(start, joint_graph=False, may_join=False, stop=attempt.stop) if attempt.joint_graph else None
    )


@_rule(Unsupported)
def _record_joint_graph(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """Autograd differentiates wrapper subclasses, whose inner tensors the torch-level graph has. Does not persist: other
    captures may differentiate none."""
    assert isinstance(failed.error, Unsupported)
    joins = failed.error.needs_joint_graph and attempt.may_join and not attempt.joint_graph
    return replace(start, joint_graph=True, stop=attempt.stop) if joins else None


@_rule(UserException, persists=True)
def _report_not_compiling(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """The program queried `is_compiling()` and raised; compiled code must not raise where eager does not. Persists: if it
    does not raise now, that was the cause."""
    assert isinstance(failed.error, UserException)
    queried = attempt.reports_compiling and failed.error.queried_compiling
    return replace(start, reports_compiling=False, stop=attempt.stop) if queried else None


@_rule(NotCopies, persists=True)
def _return_views(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """The program can distinguish a copy from the view that eager returns. Starts over: now the graph breaks at the index
    operation. Persists: the next capture would break there, too."""
    return replace(start, copies=False) if attempt.copies else None


@_rule(NotRepeatable, persists=True)
def _assume_no_conditions(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """A condition was assumed, but effects prevent an eager rerun. Persists: an operator mostly causes it."""
    return replace(start, assumes=False) if attempt.assumes else None


@_rule(WorldChanged, once=True)
def _repeat(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """Guarded state changed during capture, perhaps by an import in the backend. Does not persist."""
    return start


@_rule(Unsupported, persists=True)
def _trust_marks(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """A function cannot be captured, but is marked as depending on its arguments alone. Persists: the function causes it."""
    refused = failed.marked and not attempt.trusts_marks
    return replace(start, trusts_marks=True) if refused else None


@_rule(RecordsWarnings, persists=True)
def _break_before_records(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """The graph cannot break while the program records warnings. Starts over: now it breaks before the recording. Persists:
    the next capture would break there, too."""
    return replace(start, records_warnings=False) if attempt.records_warnings else None


@_rule(SharesCounter, persists=True)
def _break_before_assignment(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """The graph cannot return a view of a tensor whose `data` it set. Starts over: now it breaks before the assignment.
    Persists: the next capture would break there, too."""
    return replace(start, assigns_data=False) if attempt.assigns_data else None


@_rule(DropsObserved)
def _break_at_drops(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """The program drops an object with a finalizer. Starts over: now the graph breaks at the instruction that does. Does not
    persist: most changes of the same owners drop none."""
    return replace(start, defers_drops=False) if attempt.defers_drops else None


@_rule(Unsupported)
def _break_graph(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """An instruction cannot be captured, so the graph breaks before it, in the innermost frame that allows it. If that break
    fails, it breaks in its caller, before the call. Does not persist: the next capture may not reach it."""
    assert isinstance(failed.error, Unsupported)
    stop = attempt.stop
    if stop is None:
        next_stop = Stop(failed.error.path, _of_changing_size(failed.error))
    else:
        next_stop = Stop(stop.path[:-1], stop.error)
    return replace(start, stop=next_stop) if attempt.may_break and next_stop.path else None


@_rule(Unsupported, persists=True)
def _disable_unbacked_sizes(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """An operation does not support an unbacked size, and the graph cannot break before it. Persists: the compiler or the
    program causes it. The error is final if a break is needed and the caller allows none."""
    assert isinstance(failed.error, Unsupported)
    final = not attempt.may_break and bool(failed.error.path)
    disables = failed.used_unbacked and attempt.unbacked_sizes and not final
    return replace(start, unbacked_sizes=False) if disables else None


@_rule(Exception, persists=True)
def _capture_no_jumps_at_last(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """No other rule applies, and an error that is found at the end may be due to captured branches."""
    return _capture_no_jumps(start, attempt, failed)


def _next(
    start: Attempt, attempt: Attempt, failed: FailedAttempt, used: set[RetryRule]
) -> tuple[RetryRule, Attempt] | None:
    """The first rule that applies, and its next attempt; None if the error is final."""
    for rule in RETRY_RULES:
        if isinstance(failed.error, rule.error) and not (rule.once and rule in used):
            retry = rule.next_attempt(start, attempt, failed)
            if retry is not None:
                return rule, retry
    return None


@dataclass(frozen=True)
class Success:
    """`attempt` created an entry; the next capture of the function begins with `start`."""

    attempt: Attempt
    start: Attempt


def first_success(
    start: Attempt,
    capture: Callable[[Attempt], FailedAttempt | None],
    on_retry: Callable[[Exception], None] = lambda error: None,
) -> Success | Exception:
    """Call `capture` with `start`, then with the attempts that the rules select, until it returns None (an entry exists).

    `on_retry` is called with each error that leads to another attempt. Returns the final error: after attempts with a graph
    break, the error for which the graph was to break; the backend's, if the retry with specialized numbers could not be
    captured.
    """
    attempt = start
    used: set[RetryRule] = set()
    backend_error: BackendError | None = None
    while (failed := capture(attempt)) is not None:
        retry = _next(start, attempt, failed, used)
        if retry is None:
            return _final(attempt, failed.error, backend_error)
        rule, attempt = retry
        log.debug("smelt: captured again after %r: %s", failed.error, rule.next_attempt.__doc__)
        on_retry(failed.error)
        if rule.persists:
            start = replace(attempt, stop=None)
        used.add(rule)
        if isinstance(failed.error, BackendError):
            backend_error = failed.error
        drop_tracebacks(failed.error)
        del failed  # the objects that it holds must not live through the next capture
    return Success(attempt, start)


def _final(attempt: Attempt, error: Exception, backend_error: BackendError | None) -> Exception:
    if not isinstance(error, Unsupported):
        return error
    return backend_error or (attempt.stop.error if attempt.stop else _of_changing_size(error))


def _of_changing_size(error: Unsupported) -> Unsupported:
    """`error`, with the reason `changing-value` if it needs a fixed size: no rule could specialize the size, because it kept
    causing recompiles."""
    if not isinstance(error, NeedsFixedSize):
        return error
    return Unsupported(replace(error.reason, kind=CHANGING_VALUE))


def drop_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of a handled error and its causes: their frames hold the user's arguments, and may hold the error,
    so that all would live until the next collection. The error's context, which the user handles, is left alone."""
    cause: BaseException | None = error
    seen: set[int] = set()  # causes may form a cycle
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        cause.__traceback__ = None
        cause = cause.__cause__


# ------------------------------------------------------------------------------------------------- final errors


def reason_for(error: Exception) -> Reason:
    """The reason why a frame whose last attempt ended in `error` is not compiled."""
    if isinstance(error, UserException):
        return Reason(USER_EXCEPTION, summary(error.error), error.line)
    if isinstance(error, Unsupported):
        return error.reason
    if isinstance(error, BackendError):
        return Reason(BACKEND_FAILED, summary(error.__cause__ or error))
    return Reason(INTERNAL, summary(error))
