"""Names of a plan's and its steps' events in a profiler, with the user's lines that caused them.

`smelt graph f (model.py:3) forward`, and within it `smelt: mul_add (model.py:5)`, `smelt: aten::mm (model.py:6)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from smelt.plan.steps import Aten, Launch, ParallelLaunch, Plan, RunPlans, Step
from smelt.user_lines import is_own, location

GRAPH, STEP = "smelt graph", "smelt: "  # what the names begin with

_LINE = re.compile(r"(?P<file>.+?):(?P<line>\d+) in \S+(?:; |$)")  # of a note, which may name several


def of_graph(plan: Plan) -> str:
    """The event around all steps."""
    return f"{GRAPH} {plan.title}" if plan.title else GRAPH


def of_step(step: Step) -> str:
    """The event of a step; empty for a step without one."""
    name = _OF.get(type(step))
    return "" if name is None else name(step)


def of_launch(step: Launch) -> str:
    """The kernel's name and line."""
    return _named(step.kernel, step.note)


def parallel_launch_name(step: ParallelLaunch) -> str:
    """The first kernel's name and the number of the others."""
    first, *others = step.launches
    return _named(f"{first.kernel} and {len(others)} more" if others else first.kernel, first.note)


def of_call(step: Aten) -> str:
    """The operator, whose own event lies within this one; empty if no user line caused the call."""
    return _named(step.op._schema.name, step.note) if _locations(step.note) else ""


def of_rule(step: RunPlans) -> str:
    """The higher-order operator and its line."""
    return _named(step.rule.name, step.note)


def _named(what: str, note: str) -> str:
    locations = _locations(note)
    return f"{STEP}{what} ({', '.join(locations)})" if locations else STEP + what


def _locations(note: str) -> list[str]:
    """The lines of the user's that a step's note names, each once."""
    found = ((m["file"], int(m["line"])) for m in _LINE.finditer(note))
    return list(dict.fromkeys(location(file, line) for file, line in found if not is_own(file)))


_OF: dict[type, Callable[[Any], str]] = {
    Launch: of_launch,
    ParallelLaunch: parallel_launch_name,
    Aten: of_call,
    RunPlans: of_rule,
}
