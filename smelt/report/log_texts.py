"""Log texts of events, for people and as JSON values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from smelt.capture.driver.cache_entries import Entry
from smelt.events import Event, EventKind
from smelt.graph.graph_printer import code
from smelt.guards.guard_failures import Failure
from smelt.plan.plan_printer import print_plan
from smelt.plan.steps import Plan, kernel_names
from smelt.reasons import Reason
from smelt.schedule.schedule import Schedule
from smelt.schedule.schedule_printer import print_schedule
from smelt.user_lines import Line

Text = Callable[[Event], Iterator[str]]


def _break(event: Event) -> Iterator[str]:
    yield f"graph break in {event.name}: {event.data['reason']}"


def _fallback(event: Event) -> Iterator[str]:
    yield f"{event.name} runs eagerly: {event.data['reason']}"


def _no_joint_graph(event: Event) -> Iterator[str]:
    yield f"{event.name} runs operator by operator under autograd: {event.data['reason']}"


def _recompile(event: Event) -> Iterator[str]:
    failure = event.data["failure"]
    why = "a guard, which holds by now" if failure is None else failure
    yield f"{event.name} is compiled again, entry {event.data['entry']} refused the call: {why}"


def _other_sizes(event: Event) -> Iterator[str]:
    yield f"{event.name} runs eagerly, data decided other sizes: {event.data['failure']}"


def _restricted(event: Event) -> Iterator[str]:
    sizes, reason = ", ".join(event.data["sizes"]) or "a size", event.data["reason"]
    at = f" at {reason.line}" if reason.line else ""
    yield f"{event.name}: {sizes}: {reason.detail}{at}"


def _guards(event: Event) -> Iterator[str]:
    yield f"{event.name}, {event.data['guards']} guards:\n{event.data['entry'].guards}"


def _graph(event: Event) -> Iterator[str]:
    if event.data["entry"].computes:
        yield f"{event.name}:\n{code(event.data['entry'].traced.torch_graph).rstrip()}"


def _fusion(event: Event) -> Iterator[str]:
    yield "\n" + print_schedule(event.data["schedule"])


def _kernels(event: Event) -> Iterator[str]:
    kernels = sorted(kernel_names(event.data["plan"]))
    yield f"kernels: {', '.join(kernels) or 'none'}; called: {', '.join(event.data['externs']) or 'none'}"


def _plan(event: Event) -> Iterator[str]:
    yield "\n" + print_plan(event.data["plan"])


def _stage(event: Event) -> Iterator[str]:
    yield f"  {event.name} {_ms(event)}"


def _end(what: str) -> Text:
    def text(event: Event) -> Iterator[str]:
        yield f"{event.name + ': ' if event.name else ''}{what} {_ms(event)}"

    return text


def _ms(event: Event) -> str:
    return f"{1e3 * event.data['seconds']:.1f} ms"


# What each log says of which events.
TEXTS: dict[str, dict[EventKind, Text]] = {
    "breaks": {"graph-break": _break, "fallback": _fallback, "no-joint-graph": _no_joint_graph},
    "recompiles": {"recompile": _recompile, "other-sizes": _other_sizes},
    "sizes": {"size-restricted": _restricted},
    "guards": {"entry-installed": _guards},
    "graphs": {"entry-installed": _graph},
    "fusion": {"schedule": _fusion},
    "kernels": {"plan": _kernels},
    "plan": {"plan": _plan},
    "perf": {
        "capture-end": _end("captured in"),
        "stage": _stage,
        "partition": _end("partitioned in"),
        "backend-end": _end("backend took"),
        "backward-compiled": _end("backward compiled in"),
        "entry-installed": _end("ready after"),
    },
}
LOGS_OF: dict[str, frozenset[str]] = {
    kind: frozenset(name for name, texts in TEXTS.items() if kind in texts)
    for texts in TEXTS.values()
    for kind in texts
}


def texts(name: str, event: Event) -> Iterator[str]:
    """The lines that the log `name` writes for an event."""
    return TEXTS[name][event.kind](event)


def _reason(reason: Reason) -> dict[str, Any]:
    return {
        "id": reason.kind.id,
        "summary": reason.kind.summary,
        "detail": reason.detail,
        "hint": reason.kind.hint,
        "line": plain(reason.line),
        "stack": plain(reason.stack),
    }


def _failure(failure: Failure) -> dict[str, Any]:
    line = plain(failure.guard.line)
    return {"source": failure.source, "expected": failure.expected, "found": failure.found, "line": line}


def _entry(entry: Entry) -> dict[str, Any]:
    return {"guards": entry.guards.splitlines(), "source": entry.source}


PLAIN: dict[type, Callable[[Any], Any]] = {
    Reason: _reason,
    Failure: _failure,
    Line: asdict,
    Entry: _entry,
    Schedule: print_schedule,
    Plan: print_plan,
}


def plain(value: Any) -> Any:
    """`value` as a JSON value. A value without a row in `PLAIN` becomes its text."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if value - value == 0 else str(value)  # JSON has neither infinities nor NaN
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    return PLAIN.get(type(value), str)(value)
