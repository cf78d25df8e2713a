"""Python's garbage collector while smelt compiles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """Switches the garbage collector off for the duration of the context.

    Compiling makes many objects and little garbage: collections would take several times as long as the work itself, and
    one full collection of what torch and a model hold takes a third of a second.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
