"""Log texts of events, for people and as JSON values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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

Text = Callable[[Event], str]


def _graph(event: Event) -> str:
    entry: Entry = event.data["entry"]
    return f"{event.name}:\n{code(entry.traced.torch_graph).rstrip()}" if entry.computes else ""


def _restriction(event: Event) -> str:
    sizes, reason = ", ".join(event.data["sizes"]) or "a size", event.data["reason"]
    return f"{event.name}: {sizes}: {reason.detail}{f' at {reason.line}' if reason.line else ''}"


def _recompile(event: Event) -> str:
    why = event.data["failure"] or "a guard that holds again now"
    others = len(event.data["failures"]) - 1
    so_did = f"; so did {others} other {'entry' if others == 1 else 'entries'} (`smelt explain` shows all)"
    return f"{event.name}: entry {event.data['entry']} rejected the call: {why}{so_did if others else ''}"


def _kernels(event: Event) -> str:
    kernels = sorted(kernel_names(event.data["plan"]))
    return f"kernels: {', '.join(kernels) or 'none'}; called: {', '.join(event.data['externs']) or 'none'}"


def _end(what: str) -> Text:
    return lambda e: f"{e.name + ': ' if e.name else ''}{what} {_ms(e)}"


def _ms(event: Event) -> str:
    return f"{1e3 * event.data['seconds']:.1f} ms"


# By log and kind of event, the text of a record; an empty text is not logged.
TEXTS: dict[str, dict[EventKind, Text]] = {
    "breaks": {
        "graph-break": lambda e: f"graph break in {e.name}: {e.data['reason']}",
        "eager-fallback": lambda e: f"{e.name} runs eagerly: {e.data['reason']}",
        "no-joint-graph": lambda e: f"{e.name} runs eagerly under autograd: {e.data['reason']}",
    },
    "recompiles": {
        "recompile": _recompile,
        "unbacked-mismatch": lambda e: f"{e.name} runs eagerly, unbacked sizes differ: {e.data['failure']}",
    },
    "sizes": {"size-restricted": _restriction},
    "guards": {
        "entry-installed": lambda e: f"{e.name}, {e.data['guards']} guards:\n{e.data['entry'].guards}",
    },
    "graphs": {"entry-installed": _graph},
    "fusion": {"schedule": lambda e: "\n" + print_schedule(e.data["schedule"])},
    "kernels": {"plan": _kernels},
    "plan": {"plan": lambda e: "\n" + print_plan(e.data["plan"])},
    "perf": {
        "capture-end": _end("captured in"),
        "stage": lambda e: f"  {e.name} {_ms(e)}",
        "partition": _end("partitioned in"),
        "backend-end": _end("backend took"),
        "backward-compiled": _end("backward compiled in"),
        "entry-installed": _end("ready after"),
    },
}


def texts(logs: Iterable[str], event: Event) -> Iterator[tuple[str, str]]:
    """Name and text of the records that these logs write for an event."""
    for name in logs:
        if event.kind in TEXTS[name] and (text := TEXTS[name][event.kind](event)):
            yield name, text


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
