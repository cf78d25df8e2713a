"""Python's garbage collector while smelt compiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smelt import _native


@contextmanager
def collections_postponed() -> Iterator[None]:
    """No garbage is collected for the duration of the context, unless `gc.collect` is called.

    Compiling makes many objects and little garbage: collections would take several times as long as the work itself, and
    one full collection of what torch and a model hold takes a third of a second. The collector stays enabled: whether it is
    belongs to the user, and to all threads.
    """
    were = _native.postpone_collections(True)
    try:
        yield
    finally:
        _native.postpone_collections(were)
