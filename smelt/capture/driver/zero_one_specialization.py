"""Sizes of 0 and 1: whether a graph that was recorded for sizes from two on is right for them, too.

Torch makes exceptions for such sizes, and the program may. So the function is captured again with a size taken for 1, or
with all sizes that data decide taken for 0, and for 1. If that comes to the same graphs, guards and compiled frame, the
graph serves them; where data decide, its parts then run operator by operator (`backends/unbacked_subgraphs.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace

from smelt._native import isinstance
from smelt.capture.base.value_kinds import FunctionType
from smelt.capture.driver.capture_attempts import Attempt, FailedAttempt
from smelt.capture.driver.capture_frame import CapturedFrame, capture_frame
from smelt.capture.driver.compile_frame import compiled_frame
from smelt.capture.graph_breaks.frame_exits import Return
from smelt.capture.graph_breaks.resume_functions import ResumeFunctions
from smelt.errors import Unsupported
from smelt.graph.ir import Node
from smelt.graph.structural_equality import Values, structurally_equal, same_for
from smelt.guards.changed_numbers import Path, size_source
from smelt.guards.guard import ANY_OR_ONE, Guard, TensorFacts
from smelt.shapes.expr import Size, Sym
from smelt.tracing.backward.joint import Joint
from smelt.tracing.record.traced import Traced

_LEFT_OUT = frozenset({"graph", "backward", "torch_level_tensors", "n_primals"})
_OWN = frozenset({"random_state", "set_random_state", "__builtins__"})


@dataclass(frozen=True)
class Trial:
    """What an attempt captured, to be compared with what it captures of other sizes. `resumes`, `functional`: what its frame
    is compiled with."""

    fn: FunctionType
    slots: Sequence[object]
    attempt: Attempt
    captured: CapturedFrame
    resume_functions: ResumeFunctions
    functional: bool


def small_sizes(trial: Trial) -> frozenset[int]:
    """Which of 0 and 1 the sizes that data decide may be."""
    return frozenset(n for n in (0, 1) if _is_same(trial, replace(trial.attempt, unbacked_value=n), n))


def with_sizes_of_one(trial: Trial) -> None:
    """Makes what was captured one for calls with a size of 1 as well, if it is right for them: a size that was 1 before, or
    is marked to be. One such size at most, as each combination of several would have to be tried."""
    captured, attempt = trial.captured, trial.attempt
    env, traced = captured.env.sizes, captured.traced
    for sym in traced.sizes if traced.unbacked is None else ():
        paths = env.symbol_sources.paths.get(sym, set())
        if env.may_be_one.isdisjoint(paths) or not paths <= env.observed.keys() or sym.lo != 2:
            continue
        ones = replace(attempt, sizes=replace(attempt.sizes, ones=frozenset(paths)))
        if _is_same(trial, ones, 1):
            place = replace(traced.sizes[sym], may_be_one=True)
            captured.traced = replace(traced, sizes={**traced.sizes, sym: place})
            captured.guards = tuple(_with_any_or_one(guard, paths) for guard in captured.guards)
            return


def _with_any_or_one(guard: Guard, paths: Collection[Path]) -> Guard:
    if guard.kind != "tensor" or guard.source is None:
        return guard
    facts: TensorFacts = guard.value
    shape = tuple(
        ANY_OR_ONE if size_source(guard.source, dim).path in paths else n for dim, n in enumerate(facts.shape)
    )
    return guard if shape == facts.shape else replace(guard, _value=replace(facts, shape=shape))


def _is_same(trial: Trial, attempt: Attempt, number: int) -> bool:
    """Whether this attempt, in which some sizes are `number`, comes to what was captured."""
    if not isinstance(trial.captured.ending, Return):
        return False
    other = capture_frame(trial.fn, trial.slots, attempt, name=trial.captured.name)
    if isinstance(other, FailedAttempt):
        return False
    try:
        return _same(trial, other, number)
    finally:
        other.release()


def _same(trial: Trial, other: CapturedFrame, number: int) -> bool:
    captured = trial.captured
    a, b = captured.traced, other.traced
    if (a.data is None) != (b.data is None) or not isinstance(other.ending, Return):
        return False
    if any(getattr(a, fact) != getattr(b, fact) for fact in ("mutated", "needs_grad", "counters", "views")):
        return False
    paired = _paired(a, b, number)
    if paired is None:
        return False
    values, others = paired
    of_inputs = a.data is None
    if of_inputs and not same_for(_strides(a), _strides(b), values, others):
        return False
    # Where there is a joint graph, that is what runs, of which autograd made the backward. For a size of 1 it leaves sums
    # along that dimension out, which change nothing there.
    if (a.joint is None or of_inputs) and not structurally_equal(a.aten_graph, b.aten_graph, values, others):
        return False
    if not structurally_equal(a.torch_graph, b.torch_graph, values, others):
        return False
    if not _same_joint(a.joint, b.joint, values, others, backward=not of_inputs):
        return False
    if not all(any(_same_guard(g, known) for known in captured.guards) for g in other.guards):
        return False
    return _same_frame(trial, other)


def _paired(a: Traced, b: Traced, number: int) -> tuple[Values, Values] | None:
    """What the sizes of both traces are: where `b` has no symbol for one, `number`. None where it has others, or is given
    other numbers besides."""
    names = {(place.input, place.source): sym for sym, place in a.sizes.items()}
    others: dict[Sym | Node, Size] = {sym: names.get((p.input, p.source), 0) for sym, p in b.sizes.items()}
    if 0 in others.values() or _expressions(a) != _expressions(b):
        return None
    values: dict[Sym | Node, Size] = dict.fromkeys(a.sizes.keys() - others.values(), number)
    if a.data is not None and b.data is not None:
        values |= dict.fromkeys(a.data.hints, number)
        others |= dict.fromkeys(b.data.hints, number)
    return values | _given_sizes(a), others | _given_sizes(b)


def _strides(traced: Traced) -> list[tuple[Size, ...]]:
    return [output.spec.stride for output in traced.outputs]


def _given_sizes(traced: Traced) -> dict[Sym | Node, Size]:
    """The placeholders of numbers that are sizes: a trace of one size has none for it."""
    graphs = [traced.torch_graph, traced.aten_graph, *([traced.joint.graph] if traced.joint else [])]
    return {
        node: given.symbol.size
        for graph in graphs
        for node, given in zip(graph.placeholders[len(traced.inputs) :], traced.numbers)
        if given.symbol.size is not None
    }


def _expressions(traced: Traced) -> list[str]:
    """Of the numbers that are given, and are no sizes."""
    return [repr(n.symbol.expression) for n in traced.numbers if n.symbol.size is None]


def _same_guard(a: Guard, b: Guard) -> bool:
    if (a.kind, str(a.source)) != (b.kind, str(b.source)):
        return False
    if a.kind == "tensor":  # of sizes, both know what was asked
        return bool(replace(a.value, shape=(), stride=()) == replace(b.value, shape=(), stride=()))
    return a.value is b.value or (type(a.value) is type(b.value) and repr(a.value) == repr(b.value))


def _same_joint(a: Joint | None, b: Joint | None, values: Values, others: Values, *, backward: bool) -> bool:
    if a is None or b is None:
        return a is b
    parts = (f.name for f in fields(Joint) if f.name not in _LEFT_OUT)
    if not all(same_for(getattr(a, part), getattr(b, part), values, others) for part in parts):
        return False
    same_places = _places(a, values) == _places(b, others)
    return not backward or (same_places and structurally_equal(a.graph, b.graph, values, others))


def _places(joint: Joint, given: Values) -> list[int]:
    """Which nodes are of the backward, numbers that are given not counted."""
    return [i for i, node in enumerate(n for n in joint.graph if n not in given) if node in joint.backward]


def _same_frame(trial: Trial, other: CapturedFrame) -> bool:
    """Whether the compiled frames are the same, but for the numbers that the graph is given."""
    plain = (replace(c, traced=replace(c.traced, numbers=())) for c in (trial.captured, other))
    try:
        one, two = (compiled_frame(trial.fn, c, _no_graph, trial.resume_functions, trial.functional) for c in plain)
    except Unsupported:
        return False
    a, b = one.function.__globals__, two.function.__globals__
    names = a.keys() - _OWN - {one.function.__name__}
    return one.source == two.source and a.keys() == b.keys() and all(a[n] is b[n] for n in names)


def _no_graph(inputs: tuple[object, ...]) -> Sequence[object]:
    raise RuntimeError("this frame is not called")
