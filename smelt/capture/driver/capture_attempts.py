"""A frame is captured in attempts, each weaker than the one before, until one works.

An `Attempt` says what capture may assume and record. The first attempt of a function assumes all that there is to gain from;
what ends an attempt is a `FailedAttempt`, and the table `WEAKENINGS` says for each kind of error which assumption it speaks
against. Where no row has a weaker attempt, the error is final, and `reason_for` says why the frame is not compiled.

The loop ends: each row drops an assumption, breaks the graph further out, or is taken only once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from smelt._native import isinstance
from smelt.capture.driver.capture_errors import NotRepeatable, UserException, WorldChanged
from smelt.capture.environment.symbolic_size_policy import NO_SYMBOLIC_SIZES, Range, SymbolicSizes
from smelt.capture.graph_breaks.resume_argument_facts import ResumeFacts
from smelt.capture.proxies.text_proxy import Unreadable
from smelt.errors import BackendError, NeedsFixedSize, Unsupported
from smelt.reasons import BACKEND_FAILED, INTERNAL, USER_EXCEPTION, Reason
from smelt.shapes.expr import Size
from smelt.tracing.backward.not_differentiable import NotDifferentiable
from smelt.tracing.functionalize.view_copies import NotCopies
from smelt.tracing.symbolic.symbolic_numbers import PlainNumbersOnly

log = logging.getLogger("smelt")

Path = tuple[object, ...]  # `Source.path`: the same place in every capture of a function


@dataclass(frozen=True)
class Stop:
    """Capture ends before the instruction at `path`, since `error` cannot be captured.

    `path`: how many instructions each frame has begun, outermost first.
    """

    path: tuple[int, ...]
    error: Unsupported

    @property
    def reason(self) -> Reason:
        """Why the graph breaks there."""
        return self.error.reason


@dataclass(frozen=True)
class Attempt:
    """What one capture of a frame may assume and record; without arguments, the least.

    `symbolic`: where numbers were found that differed between calls: they are symbolic.
    `symbolic_counts`: so are the step counts that optimizers keep in tensors, and the numbers that outside iterators count
    up, from the first call on.
    `sizes`: which sizes of tensors are symbolic.
    `data_sizes`: so are sizes that data decide, if `assumes`: the graph checks what was assumed of them.
    `unbacked_value`: each of these is this number, where a capture is to show what becomes of it (`zero_one_specialization.py`).
    `joint_graph`: where gradients are needed, the graph of forward and backward is recorded.
    `copies`: an index in a tensor gives a copy of the row, where eager gives a view.
    `reports_compiling`: what the program is told when it asks whether it is being compiled.
    `assumes`: a condition on a tensor is what goes on, where one branch only raises; the graph checks it.
    `looks_ahead`: what iterators from outside will give is guarded, and the compiled frame advances them afterwards.
    `decides`: conditions on numbers in tensors from outside are guarded.
    `selects`: both branches of a small `torch.cond` are computed, and one result is chosen.
    `trusts_marks`: functions marked with `torch.compiler.allow_in_graph` run natively, as functions of their arguments.
    `may_break`: the graph may end before an instruction that cannot be captured.
    `stop`: where it does.
    """

    symbolic: frozenset[Path] = frozenset()
    symbolic_counts: bool = False
    sizes: SymbolicSizes = NO_SYMBOLIC_SIZES
    unbacked_sizes: bool = False
    unbacked_value: int | None = None
    joint_graph: bool = False
    copies: bool = True
    reports_compiling: bool = True
    assumes: bool = False
    looks_ahead: bool = True
    decides: bool = True
    selects: bool = False
    trusts_marks: bool = False
    may_break: bool = True
    stop: Stop | None = None

    @property
    def has_symbolic_numbers(self) -> bool:
        """Whether any number, or size, may be symbolic."""
        return bool(self.symbolic) or self.symbolic_counts or self.sizes.enabled or self.unbacked_sizes

    def generalized(self, numbers: set[Path], sizes: set[tuple[Path, int]]) -> Attempt:
        """With the numbers and sizes at these symbolic too, unless none is to be; sizes come with what they were before."""
        made = replace(self, symbolic=self.symbolic | numbers) if self.symbolic_counts else self
        return replace(made, sizes=self.sizes.with_observed(sizes))

    def with_resume_facts(self, known: ResumeFacts) -> Attempt:
        """With what is known of what a resume function is handed, unless no number is to be symbolic."""
        made = replace(self, symbolic=self.symbolic | known.numbers) if self.symbolic_counts else self
        return replace(made, sizes=replace(self.sizes, handed=known.sizes)) if self.sizes.enabled else made

    def specialized(self) -> Attempt:
        """With each number and size as a part of the trace."""
        return replace(self, symbolic=frozenset(), symbolic_counts=False, sizes=NO_SYMBOLIC_SIZES, unbacked_sizes=False)


@dataclass(frozen=True, eq=False)
class FailedAttempt:
    """Why an attempt gave no entry, and what was known of symbolic numbers when it failed.

    `used_symbols`: there were some, and they may have been the cause. `shown`: the sources of those that the texts of
    the program show. `counts`: the sources of the step counts that were read. `choosing`: both branches of a condition
    were being tried. `marked`: a function was being captured that is marked with `torch.compiler.allow_in_graph`.
    `sizes`: where each symbolic size was found that is to be a number. `divisors`: by what those are divided of which it may
    be enough to know the remainder, `ranges`: or a range. `alike`: where those were found of which it is enough that they
    are one, `following`: or that those at these places are computed from symbols that stand for those at others.
    `used_unbacked`: there were sizes that data decide. `formatted_sizes`: where the symbolic sizes were found that the
    texts of the program show.
    """

    error: Exception
    used_symbols: bool = False
    shown: frozenset[Path] = frozenset()
    counts: frozenset[Path] = frozenset()
    choosing: bool = False
    marked: bool = False
    sizes: frozenset[frozenset[Path]] = frozenset()
    divisors: frozenset[tuple[Path, int]] = frozenset()
    ranges: frozenset[tuple[Path, Range]] = frozenset()
    alike: frozenset[Path] = frozenset()
    following: frozenset[tuple[Path, Size]] = frozenset()
    used_unbacked: bool = False
    formatted_sizes: frozenset[frozenset[Path]] = frozenset()


# ---------------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Weakening:
    """A row: how to go on after an error of this type.

    `weaker(start, attempt, failed)` gives the next attempt, or None where the row does not apply. `start` is the attempt
    without what is only right for one place in the program: the stop, and numbers made plain for an error that is gone when
    something else changes. `kept`: if the weaker attempt gives an entry, later captures of the function begin with it.
    """

    error: type[Exception]
    because: str
    weaker: Callable[[Attempt, Attempt, FailedAttempt], Attempt | None]
    kept: bool = False
    once: bool = False


def _fixed_sizes(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """Without the sizes that were found in the way, unless it may be enough to know that some of them are one, that one
    follows from others, what they leave when divided, or a range in which they are; without any where these are not known.
    """
    assert isinstance(failed.error, NeedsFixedSize)
    sizes = attempt.sizes
    for known in (
        sizes.with_equal(failed.equal).with_derived(failed.derived),
        sizes.with_divisors(failed.divisors),
        sizes.with_ranges(failed.ranges),
    ):
        if known != sizes:
            return replace(start, sizes=known)
    # What one follows from may have changed in more than one way, of which the next call shows more.
    now = failed.error.now or bool(failed.derived)
    fixed = sizes.specializing(failed.sizes, now) if failed.sizes else NO_SYMBOLIC_SIZES
    if fixed == sizes:  # it did not help
        fixed = NO_SYMBOLIC_SIZES
    return replace(start, sizes=fixed) if fixed != sizes else None


def _fixed_shown_sizes(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    sizes = attempt.sizes.specializing(failed.formatted_sizes, False)
    return replace(start, sizes=sizes) if sizes != attempt.sizes else None


def _plain_shown_numbers(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    counts = attempt.symbolic_counts and failed.counts.isdisjoint(failed.formatted_numbers)
    weaker = replace(attempt, symbolic=attempt.symbolic - failed.formatted_numbers, symbolic_counts=counts)
    return weaker if failed.used_symbols and weaker != attempt else None


def _plain_numbers(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    return attempt.specialized() if failed.used_symbols and attempt.has_symbolic_numbers else None


def _plain_numbers_if_raised(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    refused = isinstance(failed.error, (Unsupported, NotCopies, BackendError))
    return None if refused else _plain_numbers(start, attempt, failed)


def _plain_numbers_from_now_on(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    if not (failed.used_symbols and attempt.has_symbolic_numbers):
        return None
    return replace(start.specialized(), stop=attempt.stop)


def _only_views(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    return replace(start, copies=False) if attempt.copies else None


def _says_not_compiling(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    assert isinstance(failed.error, UserException)
    asked = attempt.reports_compiling and failed.error.asked_compiling
    return replace(start, reports_compiling=False, stop=attempt.stop) if asked else None


def _no_joint_graph(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    return replace(start, joint_graph=False, stop=attempt.stop) if attempt.joint_graph else None


def _assumes_nothing(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    return replace(start, assumes=False) if attempt.assumes else None


def _selects_nothing(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    return replace(start, selects=False) if failed.selecting and attempt.selects else None


def _trusts_marks(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    refused = failed.marked and not attempt.trusts_marks
    return replace(start, trusts_marks=True) if refused else None


def _from_the_start(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    return start


def _up_to_a_break(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """In the innermost frame that can be left. If the break itself fails, in its caller, whose call is made for real."""
    assert isinstance(failed.error, Unsupported)
    stop = attempt.stop
    if stop is None:
        found = Stop(failed.error.path, failed.error)
    else:
        found = Stop(stop.path[:-1], stop.error)
    return replace(start, stop=found) if attempt.may_break and found.path else None


def _without_data_sizes(start: Attempt, attempt: Attempt, failed: FailedAttempt) -> Attempt | None:
    """Without sizes that data decide, where the graph cannot break before what they stand in the way of. Where the caller
    allows no break, and one would be needed, the error is final."""
    assert isinstance(failed.error, Unsupported)
    final = not attempt.may_break and bool(failed.error.path)
    return replace(start, unbacked_sizes=False) if failed.used_unbacked and attempt.unbacked_sizes and not final else None


# The first row that applies decides.
WEAKENINGS: tuple[Weakening, ...] = (
    Weakening(
        NeedsFixedSize,
        "something works for fixed sizes only. From the start, as the program may go another way. Kept: it is the program's"
        " doing, or the compiler's",
        _fixed_sizes,
        kept=True,
    ),
    Weakening(
        Exception,
        "a branch of a condition does more than compute a little, so only one of them may run. Kept: it is the program's"
        " doing",
        _selects_nothing,
        kept=True,
    ),
    Weakening(
        Unreadable,
        "text that shows a symbolic size was read. From the start, and kept, as where a size must be a number for other"
        " reasons",
        _fixed_shown_sizes,
        kept=True,
    ),
    Weakening(
        Unreadable,
        "text that shows a symbolic number was read, so the numbers in texts are part of the trace. Not kept: the next"
        " capture may go another way",
        _plain_shown_numbers,
    ),
    Weakening(
        PlainNumbersOnly,
        "an operation has no symbolic form, so no number is symbolic. Not kept: the next capture may not come to it",
        _plain_numbers,
    ),
    Weakening(
        Exception,
        "the program raised, perhaps only because a number was symbolic; if it raises all the same, the user sees eager's"
        " error. Not kept: other arguments may not raise",
        _plain_numbers_if_raised,
    ),
    Weakening(
        BackendError,
        "the graph takes numbers besides tensors, which a backend may not support. Kept: it is the same backend",
        _plain_numbers_from_now_on,
        kept=True,
    ),
    Weakening(
        NotDifferentiable,
        "the graph has no joint graph, so autograd follows it operator by operator. Kept: it is mostly an operator's doing,"
        " and looking for the joint graph costs a capture",
        _no_joint_graph,
        kept=True,
    ),
    Weakening(
        UserException,
        "the program was told that it is being compiled, and raised; compiled code must not raise where eager does not."
        " Kept: if it does not raise now, that was why",
        _says_not_compiling,
        kept=True,
    ),
    Weakening(
        NotCopies,
        "the program can tell a copy from the view that eager gives. From the start, since now the index itself"
        " cannot be captured, and the graph breaks there. Kept: so it would in the next capture",
        _only_views,
        kept=True,
    ),
    Weakening(
        NotRepeatable,
        "a condition was assumed, and the graph has effects that a call could not be made again after. Kept: it is mostly"
        " an operator's doing",
        _assumes_nothing,
        kept=True,
    ),
    Weakening(
        WorldChanged,
        "what was guarded changed during capture; an import that the backend made may have been the cause. Not kept",
        _from_the_start,
        once=True,
    ),
    Weakening(
        Unsupported,
        "a function cannot be captured whose author says that it depends on its arguments alone. Kept: it is that function's"
        " doing",
        _trusts_marks,
        kept=True,
    ),
    Weakening(
        Unsupported,
        "an instruction cannot be captured, so the graph breaks before it. Not kept: the next capture may not come to it",
        _up_to_a_break,
    ),
    Weakening(
        Unsupported,
        "something cannot be done with a size that data decide, and the graph cannot break before it."
        " Kept: it is the compiler's doing, or the program's",
        _without_data_sizes,
        kept=True,
    ),
)


def _next(
    start: Attempt, attempt: Attempt, failed: FailedAttempt, used: set[Weakening]
) -> tuple[Weakening, Attempt] | None:
    """The row for what went wrong, and the attempt that it leads to; None if the error is final."""
    for row in WEAKENINGS:
        if isinstance(failed.error, row.error) and not (row.once and row in used):
            weaker = row.weaker(start, attempt, failed)
            if weaker is not None:
                return row, weaker
    return None


@dataclass(frozen=True)
class Success:
    """`attempt` gave an entry; the next capture of the function begins with `start`."""

    attempt: Attempt
    start: Attempt


def first_success(
    start: Attempt,
    capture: Callable[[Attempt], FailedAttempt | None],
    note: Callable[[Exception], None] = lambda error: None,
) -> Success | Exception:
    """Calls `capture` with `start` and then with weaker attempts, until it gives None: it has made an entry.

    `note` is called with each error that another attempt is to avoid. Returns the error that no row avoids: after attempts
    up to a graph break, the one for which the graph should have broken; the backend's own, where what it was offered next
    (plain numbers) could not be captured.
    """
    attempt = start
    used: set[Weakening] = set()
    refused: BackendError | None = None
    while (failed := capture(attempt)) is not None:
        found = _next(start, attempt, failed, used)
        if found is None:
            return _final(attempt, failed.error, refused)
        row, attempt = found
        log.debug("smelt: captured again after %r: %s", failed.error, row.because)
        note(failed.error)
        if row.kept:
            start = replace(attempt, stop=None)
        used.add(row)
        if isinstance(failed.error, BackendError):
            refused = failed.error
        let_go(failed.error)
        del failed  # what it holds must not live through the next capture
    return Success(attempt, start)


def _final(attempt: Attempt, error: Exception, refused: BackendError | None) -> Exception:
    if not isinstance(error, Unsupported):
        return error
    return refused or (attempt.stop.error if attempt.stop else error)


def let_go(error: BaseException) -> None:
    """Drops the frames that an error, which is dealt with, has passed: they hold what the user gave, and may hold the error,
    so that all of it would live until the next collection. What the user was handling is left alone."""
    passed: BaseException | None = error
    seen: set[int] = set()  # causes may go round in a circle
    while passed is not None and id(passed) not in seen:
        seen.add(id(passed))
        passed.__traceback__ = None
        passed = passed.__cause__


# ------------------------------------------------------------------------------------------------- final errors


def summary(error: BaseException) -> str:
    """The class of `error` and the first line of its text."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def reason_for(error: Exception) -> Reason:
    """Why a frame is not compiled whose last attempt ended in `error`."""
    if isinstance(error, UserException):
        return Reason(USER_EXCEPTION, f"{type(error.error).__name__}: {error.error}", error.line)
    if isinstance(error, Unsupported):
        return error.reason
    if isinstance(error, BackendError):
        return Reason(BACKEND_FAILED, summary(error.__cause__ or error))
    return Reason(INTERNAL, summary(error))
