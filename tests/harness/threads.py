"""Running functions side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

MOST = 120  # seconds


def in_threads(actions: Iterable[Callable[[], Any]]) -> None:
    """Runs each action in a thread of its own, to its end. The first error is raised, as is standing still."""
    errors: list[BaseException] = []

    def run(action: Callable[[], Any]) -> None:
        try:
            action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(a,), daemon=True) for a in actions]
    for t in threads:
        t.start()
    for t in threads:
        t.join(MOST)
    assert not any(t.is_alive() for t in threads), "a thread stands still"
    if errors:
        raise errors[0]
