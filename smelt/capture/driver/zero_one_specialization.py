"""0/1 specialization: whether a graph that was recorded for sizes of at least 2 is also valid for sizes 0 and 1.

Torch handles such sizes specially, and the program may. So a trial captures the function again with one size taken for 1, or
with all unbacked sizes taken for 0, and for 1. If graphs, guards and compiled frame are equal, the graph is valid for them;
with unbacked sizes, its subgraphs then run eagerly (`backends/unbacked_subgraphs.py`).
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
from smelt.graph.structural_equality import Values, same_for, structurally_equal
from smelt.guards.changed_numbers import Path, size_source
from smelt.guards.guard import Guard
from smelt.guards.tensor_facts import ANY_OR_ONE
from smelt.shapes.expr import Size, Sym
from smelt.tracing.backward.joint import Joint
from smelt.tracing.record.traced import Traced

_NOT_COMPARED = frozenset({"graph", "backward", "torch_level_tensors", "n_primals"})
# globals of compiled frames
_FRAME_SPECIFIC = frozenset({"random_state", "set_random_state", "__builtins__"})


@dataclass(frozen=True)
class Trial:
    """The result of an attempt, to be compared with that for other sizes."""

    fn: FunctionType
    slots: Sequence[object]
    attempt: Attempt
    captured: CapturedFrame
    resume_functions: ResumeFunctions
    functional: bool


def small_unbacked_sizes(trial: Trial) -> frozenset[int]:
    """Which of 0 and 1 are valid values of the unbacked sizes."""
    return frozenset(n for n in (0, 1) if _is_valid_for(trial, replace(trial.attempt, unbacked_value=n), n))


def accept_size_one(trial: Trial) -> None:
    """Extend the captured frame to calls with a size of 1, if it is valid for them: a size that was 1 before, or whose mark
    allows 1. At most one size is extended, because each combination of several would need a trial."""
    captured, attempt = trial.captured, trial.attempt
    sizes, traced = captured.env.sizes, captured.traced
    for sym in traced.sizes if traced.unbacked is None else ():
        paths = sizes.symbol_sources.paths.get(sym, set())
        if sizes.may_be_one.isdisjoint(paths) or not paths <= sizes.observed.keys() or sym.lo != 2:
            continue
        ones = replace(attempt, sizes=replace(attempt.sizes, ones=frozenset(paths)))
        if _is_valid_for(trial, ones, 1):
            size_input = replace(traced.sizes[sym], may_be_one=True)
            captured.traced = replace(traced, sizes={**traced.sizes, sym: size_input})
            captured.guards = tuple(_with_any_or_one(guard, paths) for guard in captured.guards)
            return


def _with_any_or_one(guard: Guard, paths: Collection[Path]) -> Guard:
    facts = guard.facts
    if facts is None or guard.source is None:
        return guard
    shape = tuple(
        ANY_OR_ONE if size_source(guard.source, dim).path in paths else n for dim, n in enumerate(facts.shape)
    )
    if shape == facts.shape:
        return guard
    return Guard(guard.kind.name, guard.source, replace(facts, shape=shape), guard.line)


def _is_valid_for(trial: Trial, attempt: Attempt, number: int) -> bool:
    """Whether `attempt`, in which some sizes are `number`, captures the same as the trial's attempt."""
    if not isinstance(trial.captured.frame_exit, Return):
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
    if (a.unbacked is None) != (b.unbacked is None) or not isinstance(other.frame_exit, Return):
        return False
    if any(getattr(a, fact) != getattr(b, fact) for fact in ("mutated", "needs_grad", "counters", "views")):
        return False
    paired = _paired_sizes(a, b, number)
    if paired is None:
        return False
    values, others = paired
    has_backed_sizes = a.unbacked is None
    if has_backed_sizes and not same_for(_strides(a), _strides(b), values, others):
        return False
    # If there is a joint graph, that is what runs. Autograd recorded its backward; for a size of 1 it omits sums along that
    # dimension, which have no effect there.
    if (a.joint is None or has_backed_sizes) and not structurally_equal(
        a.aten_graph, b.aten_graph, values, others
    ):
        return False
    if not structurally_equal(a.torch_graph, b.torch_graph, values, others):
        return False
    if not _same_joint(a.joint, b.joint, values, others, backward=not has_backed_sizes):
        return False
    known: dict[tuple[str, str], list[Guard]] = {}
    for guard in captured.guards:
        known.setdefault(_subject(guard), []).append(guard)
    if not all(any(_same_guard(g, k) for k in known.get(_subject(g), ())) for g in other.guards):
        return False
    return _same_frame(trial, other)


def _paired_sizes(a: Traced, b: Traced, number: int) -> tuple[Values, Values] | None:
    """The sizes of both traces; a symbol that `b` lacks is `number`. None if `b` has other symbols or numbers."""
    names = {(size_input.input, size_input.source): sym for sym, size_input in a.sizes.items()}
    others: dict[Sym | Node, Size] = {sym: names.get((p.input, p.source), 0) for sym, p in b.sizes.items()}
    if 0 in others.values() or _expressions(a) != _expressions(b):
        return None
    values: dict[Sym | Node, Size] = dict.fromkeys(a.sizes.keys() - others.values(), number)
    if a.unbacked is not None and b.unbacked is not None:
        values |= dict.fromkeys(a.unbacked.hints, number)
        others |= dict.fromkeys(b.unbacked.hints, number)
    return values | _size_placeholders(a), others | _size_placeholders(b)


def _strides(traced: Traced) -> list[tuple[Size, ...]]:
    return [output.spec.stride for output in traced.outputs]


def _size_placeholders(traced: Traced) -> dict[Sym | Node, Size]:
    """The placeholders of numbers that are sizes; a trace that specializes a size has none for it."""
    graphs = [traced.torch_graph, traced.aten_graph, *([traced.joint.graph] if traced.joint else [])]
    return {
        node: number_input.symbol.size
        for graph in graphs
        for node, number_input in zip(graph.placeholders[len(traced.inputs) :], traced.numbers)
        if number_input.symbol.size is not None
    }


def _expressions(traced: Traced) -> list[str]:
    """The expressions of the number inputs that are no sizes."""
    return [repr(n.symbol.expression) for n in traced.numbers if n.symbol.size is None]


def _subject(guard: Guard) -> tuple[str, str]:
    return guard.kind.name, str(guard.source)


def _same_guard(a: Guard, b: Guard) -> bool:
    """Whether two guards of one kind and source are the same."""
    if a.facts is not None and b.facts is not None:  # the size guards of both are already known to agree
        return replace(a.facts, shape=(), stride=()) == replace(b.facts, shape=(), stride=())
    return a.value is b.value or (type(a.value) is type(b.value) and repr(a.value) == repr(b.value))


def _same_joint(a: Joint | None, b: Joint | None, values: Values, others: Values, *, backward: bool) -> bool:
    if a is None or b is None:
        return a is b
    names = (f.name for f in fields(Joint) if f.name not in _NOT_COMPARED)
    if not all(same_for(getattr(a, name), getattr(b, name), values, others) for name in names):
        return False
    parts = a.backward, b.backward
    return not backward or structurally_equal(a.graph, b.graph, values, others, parts=parts)


def _same_frame(trial: Trial, other: CapturedFrame) -> bool:
    """Whether the compiled frames are equal, except for the number inputs of the graph."""
    plain = (replace(c, traced=replace(c.traced, numbers=())) for c in (trial.captured, other))
    try:
        one, two = (
            compiled_frame(trial.fn, c, _no_graph, trial.resume_functions, trial.functional) for c in plain
        )
    except Unsupported:
        return False
    a, b = one.function.__globals__, two.function.__globals__
    names = a.keys() - _FRAME_SPECIFIC - {one.function.__name__}
    return one.source == two.source and a.keys() == b.keys() and all(a[n] is b[n] for n in names)


def _no_graph(inputs: tuple[object, ...]) -> Sequence[object]:
    raise RuntimeError("this frame is not called")
