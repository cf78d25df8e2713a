"""What a thread is doing about compilation. Importing this imports no compiler."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Thread(threading.local):
    """The state of a thread: whether it captures, and the number of active `set_disabled` contexts."""

    capturing = False
    disabled = 0


thread = _Thread()


@contextmanager
def set_disabled() -> Iterator[None]:
    """Disable compilation on this thread within the context; existing entries still run."""
    thread.disabled += 1
    try:
        yield
    finally:
        thread.disabled -= 1
