"""Each rule of `RETRY_RULES`: a program that triggers it, its attempts in order, and eager's results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

import smelt
from smelt import events
from smelt.capture.driver import frame_compiler
from smelt.capture.driver.capture_attempts import Attempt, FailedAttempt, Stop, Success, _next, first_success
from smelt.capture.driver.capture_errors import UserException, WorldChanged
from smelt.capture.driver.capture_frame import capture_frame
from smelt.capture.environment.symbolic_size_policy import SymbolicSizes
from smelt.capture.proxies.text_proxy import Unreadable
from smelt.errors import BackendError, NeedsFixedSize, Unsupported, VerificationError
from smelt.reasons import TENSOR_CONDITION, Reason
from smelt.report.inspect import entries, reasons
from smelt.tracing.backward.not_differentiable import NotDifferentiable
from smelt.tracing.functionalize.view_copies import NotCopies
from smelt.tracing.symbolic.symbolic_numbers import PlainNumbersOnly

X = torch.arange(6.0).reshape(3, 2)
Y = torch.arange(4.0).reshape(2, 2)


# ---------------------------------------------------------------------------------------------------- programs


@dataclass
class Seen:
    """The attempts of each call that captured something; those of resume functions left out."""

    calls: list[list[str]] = field(default_factory=list)
    current: list[Attempt] = field(default_factory=list)

    def __call__(self, event: events.Event) -> None:
        if event.kind == "capture-start" and not event.name.startswith(("resume", "continuation")):
            self.current.append(event.data["attempt"])

    def end_call(self) -> None:
        if self.current:
            self.calls.append([described(a) for a in self.current])
            self.current = []


def described(attempt: Attempt) -> str:
    """An attempt in a few words."""
    words = [
        (bool(attempt.symbolic), "symbolic"),
        (not attempt.symbolic_counts, "plain"),
        (not attempt.copies, "views"),
        (not attempt.reports_compiling, "as eager"),
        (attempt.stop is not None, f"stop {len(attempt.stop.path) if attempt.stop else 0} deep"),
    ]
    return ", ".join(word for holds, word in words if holds) or "first"


def text_of_a_number_is_read() -> Any:
    def f(x: Any, step: float) -> Any:
        return x + len(str(step)) + step

    return f


def number_that_makes_the_program_raise() -> Any:
    def f(x: Any, step: int) -> Any:
        if step > 5:
            raise ValueError("too far")
        return x + step

    return f


def raises_while_compiling() -> Any:
    def f(x: Any) -> Any:
        if torch.compiler.is_compiling():
            raise ValueError("not while compiling")
        return x + 1

    return f


def always_raises() -> Any:
    def f(x: Any) -> Any:
        smelt.is_compiling()
        raise ValueError("in any case")

    return f


def view_at_an_index_in_a_tensor() -> Any:
    def f(table: Any, at: Any) -> Any:
        return table[at]

    return f


def condition_in_a_call() -> Any:
    def inner(x: Any) -> Any:
        return x + 1 if x.sum().tolist() > 0 else x - 1

    def f(x: Any) -> Any:
        return inner(x) * 2

    return f


def condition_next_to_an_object_without_reconstruction() -> Any:
    def inner(x: Any) -> Any:
        held = memoryview(b"abc")
        y = x + 1 if x.sum().tolist() > 0 else x - 1
        return y + len(held)

    def f(x: Any) -> Any:
        return inner(x) * 2

    return f


def condition_without_a_possible_break() -> Any:
    def f(x: Any) -> Any:
        held = memoryview(b"abc")
        y = x + 1 if x.sum().tolist() > 0 else x - 1
        return y + len(held)

    return f


def hash_of_a_number_in_a_tensor() -> Any:
    def f(x: Any, step: Any) -> Any:
        return x * hash(step.item())

    return f


STEPS = [(X, 1.5), (X, 2.5), (X, 13.25)]
PAIR = [(X,), (Y,)]
ONE = torch.tensor(1)
PROGRAMS: dict[str, tuple[Callable[[], Any], list[tuple[Any, ...]], list[list[str]]]] = {
    "Unreadable": (
        text_of_a_number_is_read,
        STEPS,
        [["first"], ["symbolic", "first"], ["symbolic", "first"]],
    ),
    "PlainNumbersOnly": (
        hash_of_a_number_in_a_tensor,
        [(x, torch.tensor(step)) for x, step in STEPS],
        [["first", "plain", "stop 1 deep"]],
    ),
    "Exception": (
        number_that_makes_the_program_raise,
        [(X, 1), (X, 7), (X, 2)],
        [["first"], ["symbolic", "plain"], ["symbolic"]],
    ),
    "UserException": (raises_while_compiling, PAIR, [["first", "as eager"], ["as eager"]]),
    "UserException, final": (always_raises, PAIR, [["first", "as eager"]] * 2),
    "NotCopies": (
        view_at_an_index_in_a_tensor,
        [(X, ONE), (Y, ONE)],
        [["first", "views", "views, stop 1 deep"], ["views", "views, stop 1 deep"]],
    ),
    "Unsupported": (condition_in_a_call, PAIR, [["first", "stop 2 deep"]] * 2),
    "Unsupported, in the caller": (
        condition_next_to_an_object_without_reconstruction,
        PAIR,
        [["first", "stop 2 deep", "stop 1 deep"]] * 2,
    ),
    "Unsupported, final": (condition_without_a_possible_break, PAIR, [["first", "stop 1 deep"]] * 2),
}


def outcome(fn: Any, args: tuple[Any, ...]) -> Any:
    try:
        return fn(*args).tolist()
    except ValueError as e:
        return str(e)


def run(program: Any, calls: list[tuple[Any, ...]], backend: Any = "eager") -> list[list[str]]:
    """Calls a program compiled and eager, and compares. Returns its attempts."""
    compiled, seen = smelt.compile(program, backend=backend), Seen()
    with events.subscribed(seen):
        for args in calls:
            assert outcome(compiled, args) == outcome(program, args)
            seen.end_call()
    return seen.calls


@pytest.mark.parametrize("name", PROGRAMS)
def test_attempts_in_order(name: str) -> None:
    make, calls, attempts = PROGRAMS[name]
    assert run(make(), calls) == attempts


def test_backend_without_number_inputs() -> None:
    def f(x: Any, step: float) -> Any:
        return x * step

    def tensors_only(module: Any, inputs: Any) -> Any:
        if not all(isinstance(x, torch.Tensor) for x in inputs):
            raise TypeError("a number")
        return module

    assert run(f, STEPS, tensors_only) == [["first"], ["symbolic", "plain"], ["plain"]]


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x + 1

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * torch.rand_like(grad)


def test_no_joint_graph() -> None:
    """A backward that draws random numbers stays as it is. That there is no joint graph is found once."""
    wanted: list[bool] = []

    def note(event: events.Event) -> None:
        if event.kind == "capture-start":
            wanted.append(event.data["attempt"].joint_graph)

    def f(x: Any) -> Any:
        return Noisy.apply(x) * 2

    compiled = smelt.compile(f)
    with events.subscribed(note):
        for x in (X, Y.double()):
            own = x.clone().requires_grad_()
            assert compiled(own).tolist() == f(own).tolist()
    assert wanted == [True, False, False]


@pytest.mark.parametrize(
    "only_thread, later",
    [pytest.param(True, [], id="no other thread"), pytest.param(False, [["first"]], id="other threads")],
)
def test_state_changes_once_during_capture(
    monkeypatch: pytest.MonkeyPatch, only_thread: bool, later: list[list[str]]
) -> None:
    """Captured once more, from the start. A second change is final, unless another thread may have made it: then the next
    call is captured."""
    changes = [1]

    def accepts(*args: Any) -> None:
        if changes and changes.pop():
            raise WorldChanged("changed")

    monkeypatch.setattr(frame_compiler, "verify_accepts", accepts)
    monkeypatch.setattr(frame_compiler, "is_only_thread", lambda: only_thread)

    def f(x: Any) -> Any:
        return x + 1

    assert run(f, [(X,), (X,)]) == [["first", "first"]]
    changes += [1, 1]
    assert run(f, [(X,), (X,)]) == [["first", "first"], *later]
    assert not changes


@pytest.mark.parametrize("only_thread", [True, False])
@pytest.mark.parametrize(
    "error", [WorldChanged("changed"), RuntimeError("dictionary changed size during iteration")]
)
def test_state_changes_during_each_capture(
    monkeypatch: pytest.MonkeyPatch, error: Exception, only_thread: bool
) -> None:
    """Other threads that outrun every capture have a reason of their own; no bug of smelt is reported."""

    def refuses(*args: Any) -> None:
        raise error

    monkeypatch.setattr(frame_compiler, "verify_accepts", refuses)
    monkeypatch.setattr(frame_compiler, "is_only_thread", lambda: only_thread)
    compiled = smelt.compile(lambda x: x + 1, options={"recompile_limit": 3})
    for _ in range(3):
        assert compiled(X).tolist() == (X + 1).tolist()
    assert [r.kind.id for r in reasons(compiled)] == (["internal-error"] if only_thread else [])
    for _ in range(2):
        assert compiled(X).tolist() == (X + 1).tolist()
    assert [r.kind.id for r in reasons(compiled)] == [
        "internal-error" if only_thread else "changed-meanwhile"
    ]


@pytest.mark.parametrize("only_thread", [True, False])
def test_a_capture_that_raises_where_eager_does_not(
    monkeypatch: pytest.MonkeyPatch, only_thread: bool
) -> None:
    """Another thread may have put right what the capture found; the next call is captured."""
    broken = [True]

    def failing(fn: Any, slots: Any, attempt: Any, *, name: str) -> Any:
        if broken:
            return FailedAttempt(UserException(KeyError("scale")))
        return capture_frame(fn, slots, attempt, name=name)

    monkeypatch.setattr(frame_compiler, "capture_frame", failing)
    monkeypatch.setattr(frame_compiler, "is_only_thread", lambda: only_thread)
    compiled = smelt.compile(lambda x: x + 1)
    assert compiled(X).tolist() == (X + 1).tolist()
    assert [r.kind.id for r in reasons(compiled)] == (["internal-error"] if only_thread else [])
    broken.clear()
    assert compiled(X).tolist() == (X + 1).tolist()
    assert len(entries(compiled)) == (0 if only_thread else 1)


# --------------------------------------------------------------------------------------------------- the table

FIRST = Attempt(frozenset({("arg", 0), ("arg", 1)}), symbolic_counts=True, joint_graph=True)
PLAIN = FIRST.specialized()
REASON = Reason(TENSOR_CONDITION, "a tensor")


def refused(*path: int) -> Unsupported:
    error = Unsupported(REASON)
    error.path = path
    return error


HERE = refused(3, 2)
INNER, OUTER = Stop((3, 2), HERE), Stop((3,), HERE)
NUMBERS: dict[str, Any] = {"used_symbols": True}
SHOWN = frozenset({frozenset({("arg", 0, "shape", 1)})})
WITHOUT_SHOWN = replace(FIRST, sizes=FIRST.sizes.specializing(SHOWN, False))
# What fails in turn, and the attempts that follow each time; last, where the next capture starts (None: an error is final).
ROWS: dict[str, tuple[list[FailedAttempt], list[Attempt], Attempt | None]] = {
    "nothing": ([], [], FIRST),
    "numbers shown": (
        [FailedAttempt(Unreadable(REASON), True, formatted_numbers=frozenset({("arg", 1)}))],
        [replace(FIRST, symbolic=frozenset({("arg", 0)}))],
        FIRST,
    ),
    "sizes shown": (
        [FailedAttempt(Unreadable(REASON), formatted_sizes=SHOWN)],
        [WITHOUT_SHOWN],
        WITHOUT_SHOWN,
    ),
    "a step count shown": (
        [FailedAttempt(Unreadable(REASON), True, frozenset({("count",)}), frozenset({("count",)}))],
        [replace(FIRST, symbolic_counts=False)],
        FIRST,
    ),
    "plain numbers only": ([FailedAttempt(PlainNumbersOnly(REASON), True)], [PLAIN], FIRST),
    "an error": ([FailedAttempt(ZeroDivisionError(), True)], [PLAIN], FIRST),
    "an error with plain numbers": ([FailedAttempt(ZeroDivisionError())], [], None),
    "an error in any case": ([FailedAttempt(ZeroDivisionError(), True)] * 2, [PLAIN], None),
    "a backend without numbers": ([FailedAttempt(BackendError(), True)], [PLAIN], PLAIN),
    "a backend that fails": ([FailedAttempt(BackendError())], [], None),
    "no joint graph": (
        [FailedAttempt(NotDifferentiable(REASON))],
        [replace(FIRST, joint_graph=False, may_join=False)],
        replace(FIRST, joint_graph=False, may_join=False),
    ),
    "told": (
        [FailedAttempt(UserException(ValueError(), queried_compiling=True))],
        [replace(FIRST, reports_compiling=False)],
        replace(FIRST, reports_compiling=False),
    ),
    "not told": ([FailedAttempt(UserException(ValueError()))], [], None),
    "copies": ([FailedAttempt(NotCopies())], [replace(FIRST, copies=False)], replace(FIRST, copies=False)),
    "copies, once more": ([FailedAttempt(NotCopies())] * 2, [replace(FIRST, copies=False)], None),
    "the world changed": ([FailedAttempt(WorldChanged())], [FIRST], FIRST),
    "the world changed again": ([FailedAttempt(WorldChanged())] * 2, [FIRST], None),
    "a wrong tree": ([FailedAttempt(VerificationError())], [], None),
    "a break": ([FailedAttempt(HERE)], [replace(FIRST, stop=INNER)], FIRST),
    "a break further out": (
        [FailedAttempt(HERE), FailedAttempt(refused(9, 9, 9))],
        [replace(FIRST, stop=INNER), replace(FIRST, stop=OUTER)],
        FIRST,
    ),
    "no break": (
        [FailedAttempt(HERE)] * 3,
        [replace(FIRST, stop=INNER), replace(FIRST, stop=OUTER)],
        None,
    ),
    "numbers are symbolic again behind a break": (
        [FailedAttempt(PlainNumbersOnly(REASON), True), FailedAttempt(HERE)],
        [PLAIN, replace(FIRST, stop=INNER)],
        FIRST,
    ),
    "from the start without copies": (
        [FailedAttempt(HERE), FailedAttempt(NotCopies())],
        [replace(FIRST, stop=INNER), replace(FIRST, copies=False)],
        replace(FIRST, copies=False),
    ),
    "no joint graph before a break": (
        [FailedAttempt(HERE), FailedAttempt(NotDifferentiable(REASON))],
        [replace(FIRST, stop=INNER), replace(FIRST, stop=INNER, joint_graph=False, may_join=False)],
        replace(FIRST, joint_graph=False, may_join=False),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_rules(name: str) -> None:
    failures, attempts, start = ROWS[name]
    pending, made = list(failures), []

    def capture(attempt: Attempt) -> FailedAttempt | None:
        made.append(attempt)
        return pending.pop(0) if pending else None

    done = first_success(FIRST, capture)
    assert made == [FIRST, *attempts]
    assert done == (Success(made[-1], start) if start is not None else failures[0].error)


def test_fullgraph() -> None:
    assert first_success(replace(FIRST, may_break=False), lambda attempt: FailedAttempt(HERE)) is HERE


def test_the_backend_error_is_final_if_the_retry_cannot_be_captured() -> None:
    refused = BackendError("no code for it")
    pending = [FailedAttempt(refused, used_symbols=True), FailedAttempt(HERE)]
    assert first_success(replace(FIRST, may_break=False), lambda attempt: pending.pop(0)) is refused


def test_dynamic_numbers() -> None:
    changed = {("arg", 2)}
    assert FIRST.generalized(changed, set()).symbolic == FIRST.symbolic | changed
    assert PLAIN.generalized(changed, changed) == PLAIN


def test_dynamic_sizes() -> None:
    first, second = ("arg", 0, "x"), ("arg", 1, "y")
    wanted = replace(PLAIN, sizes=SymbolicSizes(enabled=True))
    changed = wanted.generalized(set(), {(first, 4)})
    assert changed.sizes.observed == {(first, 4)} and not changed.symbolic
    failed = FailedAttempt(NeedsFixedSize("", frozenset()), sizes=frozenset((frozenset((first,)),)))
    row, weaker = _next(changed, changed, failed, set()) or (None, None)
    assert (
        row and row.persists and weaker and weaker.sizes.specialized == {first} and not weaker.sizes.distinct
    )
    together = replace(failed, sizes=frozenset((frozenset((first, second)),)))
    row, weaker = _next(changed, changed, together, set()) or (None, None)
    assert weaker and not weaker.sizes.specialized and weaker.sizes.distinct == {first, second}
    row, weaker = _next(changed, changed, replace(failed, sizes=frozenset()), set()) or (None, None)
    assert weaker and not weaker.sizes.enabled


def test_a_specialized_size_that_changes_is_retried() -> None:
    place = ("arg", 0, "x")
    fixed = SymbolicSizes(enabled=True).specializing([frozenset((place,))], now=False)
    again = fixed.with_observed({(place, 4)})
    assert not again.is_specialized(place) and again.includes(place, 5, False)
    stays = again.specializing([frozenset((place,))], now=False).without_call_facts()
    assert stays.with_observed({(place, 5)}).is_specialized(place)
    worked = again.without_call_facts().specializing(
        [frozenset((place,))], now=False
    )  # it has had an entry with a symbol since
    assert not worked.with_observed({(place, 6)}).is_specialized(place)


def test_sizes_that_must_be_equal() -> None:
    first, second, third = ("arg", 0, "x"), ("arg", 1, "y"), ("arg", 2, "z")
    start = replace(
        PLAIN, sizes=SymbolicSizes(enabled=True).with_observed({(first, 3), (second, 4), (third, 5)})
    )
    blamed = frozenset((frozenset((second,)),))
    failed = FailedAttempt(NeedsFixedSize("", frozenset()), sizes=blamed, equal=frozenset((first, second)))
    row, weaker = _next(start, start, failed, set()) or (None, None)
    assert row and row.persists and weaker and not weaker.sizes.specialized
    assert weaker.sizes.history(first) == weaker.sizes.history(second) == {first, second}
    assert weaker.sizes.history(third) == {5}
    more = weaker.sizes.with_equal(frozenset((second, third)))
    assert more.equal == {frozenset((first, second, third))}
    together = replace(failed, sizes=frozenset((frozenset((first, second)),)))  # that did not help
    row, last = _next(weaker, weaker, together, set()) or (None, None)
    assert last and last.sizes.specialized == {first, second} and not last.sizes.distinct
