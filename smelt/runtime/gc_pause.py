"""Pauses of Python's garbage collector while smelt compiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smelt import _native


@contextmanager
def collections_postponed() -> Iterator[None]:
    """Postpone garbage collection for the duration of the context, except for explicit calls of `gc.collect`.

    Compiling creates many objects and little garbage: collections would take several times as long as the work itself,
    and one full collection of the objects of torch and a model takes a third of a second. The collector stays enabled,
    since that setting belongs to the user and to all threads.
    """
    were = _native.postpone_collections(True)
    try:
        yield
    finally:
        _native.postpone_collections(were)
