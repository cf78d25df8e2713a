"""What the events of a script's compilations come to, function by function: the text of `smelt explain`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from smelt.events import Event
from smelt.plan.steps import kernel_names

SHOWN = 20  # names of a list


@dataclass
class _Function:
    """What happened to one function, or to one resume function behind a graph break."""

    entries: list[Event] = field(default_factory=list)
    said: dict[str, int] = field(
        default_factory=dict
    )  # how often each thing happened, in order of the first time

    def count(self, text: str) -> None:
        self.said[text] = self.said.get(text, 0) + 1


class Told:
    """A subscriber that keeps what people ask for first; `str` of it is the text."""

    def __init__(self) -> None:
        self._functions: dict[str, _Function] = {}
        self._kernels: set[str] = set()
        self._called: set[str] = set()

    def __call__(self, event: Event) -> None:
        if event.kind == "plan":
            self._kernels |= kernel_names(event.data["plan"])
            self._called.update(event.data["externs"])
        elif event.kind == "entry-installed":
            self._of(event).entries.append(event)
        elif event.kind in _TEXTS:
            self._of(event).count(_TEXTS[event.kind].format(**event.data))

    def _of(self, event: Event) -> _Function:
        return self._functions.setdefault(event.name, _Function())

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if not self._functions:
            yield "nothing was compiled: the script called no function of smelt.compile or torch.compile"
        for name, function in self._functions.items():
            seconds = sum(event.data["seconds"] for event in function.entries)
            yield f"{name}: {_times(len(function.entries), 'entry', 'entries')}, {1e3 * seconds:.0f} ms"
            for number, event in enumerate(function.entries):
                ms = 1e3 * event.data["seconds"]
                yield f"  entry {number}: {event.data['guards']} guards, {event.data['inputs']} inputs, {ms:.0f} ms"
            for text, times in function.said.items():
                yield f"  {text}" + (f" ({times} times)" if times > 1 else "")
        if self._functions:
            yield f"generated kernels: {_some(self._kernels)}"
            yield f"operators that are called: {_some(self._called)}"


# What is said of an event; its data by name.
_TEXTS = {
    "graph-break": "graph break: {reason}",
    "fallback": "runs eagerly: {reason}",
    "no-joint-graph": "operator by operator under autograd: {reason}",
    "recompile": "entry {entry} refused a call: {failure}",
    "other-sizes": "ran eagerly, data decided other sizes: {failure}",
}


def _some(names: set[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(sorted(names)[:SHOWN]) + (f" and {more} more" if more > 0 else "") or "none"


def _times(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
