"""Guards as data: one `Guard` is one fact that decided a capture and that a call must satisfy to use the compiled frame."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from smelt.graph.ir import Line
from smelt.guards.guard_kinds import KINDS, GuardKind, Read, Subject
from smelt.guards.read_source import FAILURES, Reader
from smelt.guards.source import Source
from smelt.guards.tensor_facts import TensorFacts


@dataclass(frozen=True, init=False)
class Guard:
    """A fact of one kind about the object at `source`. `value` depends on the kind (`guard_kinds.py`)."""

    kind: GuardKind
    source: Source | None
    _stored: Any
    line: Line | None  # the user's line that made it necessary

    def __init__(self, kind: str, source: Source | None, value: object, line: Line | None = None) -> None:
        vars(self).update(kind=KINDS[kind], source=source, _stored=KINDS[kind].store(value), line=line)

    @property
    def value(self) -> Any:
        """The value that the object is compared with; `GONE` if it was destroyed, and the guard cannot hold."""
        return self.kind.load(self._stored)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of all objects that a relation is about."""
        return self.kind.sources(self.source, self.value)

    @property
    def facts(self) -> TensorFacts | None:
        """The metadata that it expects of a tensor; None for other kinds."""
        return self._stored if type(self._stored) is TensorFacts else None

    @property
    def text(self) -> str:
        """The guard as an expression."""
        return self.kind.text("" if self.source is None else self.source.source, self.value)

    def holds(self, read: Read) -> bool:
        """Whether the guard holds for the objects that `read` returns (`Reader`): the reference for the native tree."""
        try:
            return self.kind.holds(self.source, self.value, read)
        except FAILURES:
            return False


def first_failing(guards: Iterable[Guard], slots: Sequence[object]) -> Guard | None:
    """The first of `guards` that does not hold for a call with these argument slots."""
    read = Reader(slots)
    return next((g for g in guards if not g.holds(read)), None)


def covers(wide: Iterable[Guard], narrow: Iterable[Guard]) -> bool:
    """Whether `narrow`, the guards of another capture of the same function, imply each of `wide`. False: they may imply them
    all the same."""
    known: defaultdict[tuple[str, Subject], list[Any]] = defaultdict(list)
    for g in narrow:
        known[g.kind.name, g.kind.subject(g.source, g.value)].append(g.value)
    return all(g.kind.follows(g.source, g.value, known) for g in wide)


def format_guards(guards: Iterable[Guard]) -> str:
    """One guard per line, with the user's line that made it necessary as a comment."""
    rows = [(g.text, g.line) for g in guards]
    width = min(max((len(text) for text, _ in rows), default=0), 76)
    return "\n".join(text if line is None else f"{text:<{width}}  # {line}" for text, line in rows)
