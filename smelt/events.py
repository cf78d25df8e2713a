"""Typed events. Whatever happens during compilation is emitted here; logs, the progress line and reports subscribe.

Subscribers run on the emitting thread, in order of subscription, and must not raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Event:
    """`kind` is one of: capture-start, capture-end, backend-start, backend-end (seconds), stage (name, seconds), plan
    (kernels: how many distinct ones, externs: names of the ATen operators called), fallback (reason), recompile (entry,
    failure), entry-installed. A capture-start says which `attempt` it is."""

    kind: str
    name: str
    data: dict[str, Any]


_subscribers: list[Callable[[Event], None]] = []


def emit(kind: str, name: str = "", **data: Any) -> None:
    if _subscribers:
        event = Event(kind, name, data)
        for subscriber in tuple(_subscribers):
            subscriber(event)


@contextmanager
def subscribed(subscriber: Callable[[Event], None]) -> Iterator[None]:
    """Calls `subscriber` with every event for the duration of the context."""
    _subscribers.append(subscriber)
    try:
        yield
    finally:
        _subscribers.remove(subscriber)
