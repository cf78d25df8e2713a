"""A progress line on the terminal during compilation: name, stage, elapsed time.

It subscribes to `smelt.events`, writes to stderr if that is a terminal, or to a passed stream, and clears the line
when done.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from smelt import events


class _Line:
    """A subscriber that overwrites the line with the current stage."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.began = time.perf_counter()
        self.name = ""

    def __call__(self, event: events.Event) -> None:
        if event.kind == "capture-start":
            self.began, self.name = time.perf_counter(), event.name
            self.show("capturing")
        elif event.kind == "stage":
            self.show(event.name)
        elif event.kind == "backend-start":
            self.show("compiling")
        elif event.kind in ("entry-installed", "fallback"):
            self.clear()

    def show(self, stage: str) -> None:
        seconds = time.perf_counter() - self.began
        self.stream.write(f"\r\x1b[Ksmelt: {self.name}: {stage} ({seconds:.1f} s)")
        self.stream.flush()

    def clear(self) -> None:
        self.stream.write("\r\x1b[K")
        self.stream.flush()


@contextmanager
def progress(stream: TextIO | None = None) -> Iterator[None]:
    """Show the progress line for the duration of the context, on `stream` (default: stderr if it is a terminal)."""
    if stream is None:
        if not sys.stderr.isatty():
            yield
            return
        stream = sys.stderr
    with events.subscribed(_Line(stream)):
        yield
