"""What smelt says unasked: on a terminal a line about graph breaks, once a process, and the progress of long compilations;
everywhere that a debugger or coverage tool keeps calls eager.

`SMELT_HINTS=0` turns off what is for terminals.
"""

from __future__ import annotations

import _thread
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from smelt import _native, config
from smelt.ranks import Rank, own_rank

log = logging.getLogger("smelt")

LONG = 2.0  # seconds of a compilation after which its progress is shown
_INTERVAL = 0.5  # seconds between two updates


@dataclass
class _Counts:
    breaks: int = 0
    fallbacks: int = 0
    were_said: bool = False


_counts = _Counts()
_compiling = False


def are_enabled() -> bool:
    """Whether hints are shown."""
    return config.HINTS and sys.stderr is not None and sys.stderr.isatty()


def count(*, breaks: int = 0, fallbacks: int = 0) -> None:
    """Count what a call's captures found; when the first call that has any ends, one line says how many."""
    if _counts.were_said or not (breaks or fallbacks) or not are_enabled():
        return
    _counts.breaks += breaks
    _counts.fallbacks += fallbacks
    _native.set_at_end_of_call(_say)


def _say() -> None:
    """Print the line, unless compiled functions that have not ended called the one that just did."""
    frame = sys._getframe().f_back
    while frame is not None:
        if frame.f_code.co_filename.startswith("<smelt "):
            return
        frame = frame.f_back
    _native.set_at_end_of_call(None)
    _counts.were_said = True
    numbers = ((_counts.breaks, "graph break"), (_counts.fallbacks, "fallback"))
    found = ", ".join(f"{n} {what}{'s'[: n != 1]}" for n, what in numbers if n)
    rank = own_rank()
    where = f"{rank}: " if rank else ""
    print(
        f"smelt: {where}{found}; {_command(rank)} says where and why (SMELT_HINTS=0 hides this line)",
        file=sys.stderr,
    )


def _say_that_lines_are_traced() -> None:
    log.warning(
        "smelt: a debugger or coverage tool follows lines, so compiled functions run eagerly, and their lines are seen; "
        "options={'compile_under_tracers': True} keeps them compiled"
    )


_native.set_on_line_tracer(_say_that_lines_are_traced)


def _command(rank: Rank | None) -> str:
    script = sys.argv[0] if sys.argv else ""
    is_script = script.endswith(".py") and os.path.exists(script)
    command = f"`torchrun ... -m smelt explain {script}`" if rank else f"`smelt explain {script}`"
    return command if is_script else "smelt.explain(function)(...)"


@contextmanager
def progress(name: str) -> Iterator[None]:
    """Show how long a compilation takes while it does, from `LONG` seconds on; of those of several threads the first."""
    global _compiling
    if _compiling or not are_enabled():
        yield
        return
    _compiling = True
    line = _Progress(name)
    # Not a threading.Thread: those count where a capture asks whether other threads may have changed what it guards.
    _thread.start_new_thread(line.show, ())
    try:
        yield
    finally:
        _compiling = False
        line.clear()


class _Progress:
    """A line that a thread updates until `clear` removes it."""

    def __init__(self, name: str) -> None:
        self._name, self._text, self._is_over = name, "", False
        self._writing, self._running = _thread.allocate_lock(), _thread.allocate_lock()
        self._running.acquire()

    def show(self) -> None:
        start = time.perf_counter()
        while not self._running.acquire(timeout=_INTERVAL if self._text else LONG):
            with self._writing:
                if self._is_over:
                    return
                self._text = f"smelt: compiling {self._name}, {time.perf_counter() - start:.0f} s"
                _write(
                    f"\r{self._text}\r"
                )  # returns the cursor, so that the next message overwrites the line

    def clear(self) -> None:
        self._running.release()
        # a terminal may hang; a forked process has no thread to wait for
        held = self._writing.acquire(timeout=1.0)
        self._is_over = True
        if self._text:
            _write(f"\r{' ' * len(self._text)}\r")
        if held:
            self._writing.release()


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass  # the terminal is gone
