"""Why a guard fails for a call: the expected and the found value, for recompile events and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from smelt.guards.guard import Guard, first_failing
from smelt.guards.read_source import Reader


@dataclass(frozen=True)
class Failure:
    """A guard that does not hold: what the compiled entry expects at `source`, and what the call has there."""

    guard: Guard
    source: str
    expected: str
    found: str

    def __str__(self) -> str:
        line = f" (needed at {self.guard.line})" if self.guard.line else ""
        return f"{self.source}: expected {self.expected}, found {self.found}{line}"


def explain(guards: Iterable[Guard], slots: Sequence[object]) -> Failure | None:
    """The first of `guards` that fails for these argument slots, explained; None if all hold."""
    guard = first_failing(guards, slots)
    return None if guard is None else explain_guard(guard, slots)


def explain_guard(guard: Guard, slots: Sequence[object]) -> Failure:
    """The failure of `guard`, which is known to fail for these argument slots."""
    return Failure(guard, *guard.kind.failure(guard.source, guard.value, Reader(slots)))
