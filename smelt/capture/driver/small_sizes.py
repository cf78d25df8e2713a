"""Sizes of 0 and 1 that data decide: whether a graph that was recorded for sizes from two on is right for them, too.

Torch makes exceptions for such sizes, and the program may. So the function is captured again with all these sizes taken for
0, and for 1. If that comes to the same graphs, guards and compiled frame, the graph serves them; its parts then run operator
by operator (`backends/in_parts.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from smelt._native import isinstance
from smelt.capture.base.values import FunctionType
from smelt.capture.breaks.endings import Return
from smelt.capture.breaks.resume import Resumes
from smelt.capture.driver.attempts import Attempt, FailedAttempt
from smelt.capture.driver.run import CapturedFrame, capture_frame
from smelt.capture.driver.stages import compiled_frame
from smelt.errors import Unsupported
from smelt.graph.alike import alike, same_for
from smelt.graph.ir import Graph, Node
from smelt.graph.sizes import Values
from smelt.guards.guard import Guard
from smelt.tracing.joint import Joint

_LEFT_OUT = frozenset({"graph", "backward", "torch_places"})
_OWN = frozenset({"random_state", "set_random_state", "__builtins__"})


def small_sizes(
    fn: FunctionType,
    slots: Sequence[object],
    attempt: Attempt,
    captured: CapturedFrame,
    resumes: Resumes,
    functional: bool,
) -> frozenset[int]:
    """Which of 0 and 1 the sizes that data decide may be."""
    if not isinstance(captured.ending, Return):
        return frozenset()
    found = []
    for number in (0, 1):
        other = capture_frame(fn, slots, replace(attempt, data_is=number), name=captured.name)
        if isinstance(other, FailedAttempt):
            continue
        try:
            if _same(fn, captured, other, number, resumes, functional):
                found.append(number)
        finally:
            other.release()
    return frozenset(found)


def _same(
    fn: FunctionType,
    captured: CapturedFrame,
    other: CapturedFrame,
    number: int,
    resumes: Resumes,
    functional: bool,
) -> bool:
    a, b = captured.traced, other.traced
    if a.data is None or b.data is None or not isinstance(other.ending, Return):
        return False
    values, others = dict.fromkeys(a.data.hints, number), dict.fromkeys(b.data.hints, number)
    facts = ("mutated", "needs_grad", "counters", "views")
    if any(getattr(a, fact) != getattr(b, fact) for fact in facts) or list(a.sizes) != list(b.sizes):
        return False
    # where there is a joint graph, that is what runs
    if a.joint is None and not alike(a.aten_graph, b.aten_graph, values, others):
        return False
    if not alike(a.torch_graph, b.torch_graph, values, others):
        return False
    if not _same_joint(a.joint, b.joint, values, others):
        return False
    if not all(any(_same_guard(g, known) for known in captured.guards) for g in other.guards):
        return False
    return _same_frame(fn, captured, other, resumes, functional)


def _same_guard(a: Guard, b: Guard) -> bool:
    if (a.kind, str(a.origin)) != (b.kind, str(b.origin)):
        return False
    return a.value is b.value or (type(a.value) is type(b.value) and repr(a.value) == repr(b.value))


def _same_joint(a: Joint | None, b: Joint | None, values: Values, others: Values) -> bool:
    if a is None or b is None:
        return a is b
    parts = (f.name for f in fields(Joint) if f.name not in _LEFT_OUT)
    return (
        alike(a.graph, b.graph, values, others)
        and _places(a.graph, a.backward) == _places(b.graph, b.backward)
        and all(same_for(getattr(a, part), getattr(b, part), values, others) for part in parts)
    )


def _places(graph: Graph, nodes: frozenset[Node]) -> list[int]:
    return [i for i, node in enumerate(graph) if node in nodes]


def _same_frame(
    fn: FunctionType, captured: CapturedFrame, other: CapturedFrame, resumes: Resumes, functional: bool
) -> bool:
    try:
        one, two = (compiled_frame(fn, c, _no_graph, resumes, functional) for c in (captured, other))
    except Unsupported:
        return False
    a, b = one.function.__globals__, two.function.__globals__
    names = a.keys() - _OWN - {one.function.__name__}
    return one.source == two.source and a.keys() == b.keys() and all(a[n] is b[n] for n in names)


def _no_graph(inputs: tuple[object, ...]) -> Sequence[object]:
    raise RuntimeError("this frame is not called")
