"""Python's garbage collector while smelt compiles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """Compiling makes many objects and little garbage: collections would cost several times the work itself, and one of
    all that torch and a model have made takes a third of a second."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
