"""Logs on request, through standard `logging`: each name in `NAMES` is a logger `smelt.<name>`.

`SMELT_LOGS=breaks,recompiles` or `smelt.set_logs(breaks=True)` turns them on; a record is one compilation event, at
level INFO. If the program has configured logging, its handlers receive them; otherwise they go to stderr.
`SMELT_LOGS_JSON=file` writes every event as a line of JSON. Without either nothing subscribes to events, and no event
is created.

This module is imported with smelt if the environment asks for logs; the event texts (`log_texts.py`) need the compiler
and are imported at the first event.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import ModuleType

from smelt import events
from smelt.errors import OptionError
from smelt.ranks import own_rank

NAMES = {
    "breaks": "graph breaks and eager calls: reason, line, fix",
    "recompiles": "per call that no entry accepts, the guard of the entry that fits best: expected and observed value",
    "sizes": "restricted sizes: specialized, equal or bounded, and where",
    "guards": "the guards of each new entry, with lines",
    "graphs": "the graph of each new entry, as Python",
    "fusion": "kernels as loops, calls between them, refused fusions with reasons",
    "kernels": "names of generated kernels and called ATen operators",
    "plan": "the steps of a call",
    "perf": "the time of each stage of a compilation",
}
HELP = "help"


class _Stderr(logging.Handler):
    """Writes to the current sys.stderr, which programs and test runners replace."""

    def emit(self, record: logging.LogRecord) -> None:
        rank = own_rank()
        name = f"{record.name}, {rank}" if rank else record.name
        print(f"[{name}] {record.getMessage()}", file=sys.stderr, flush=True)


class _Logs:
    """The logging subscriber; `on`: the enabled names."""

    def __init__(self) -> None:
        self.on: frozenset[str] = frozenset()
        self._stderr = _Stderr()

    def __call__(self, event: events.Event) -> None:
        with suppress(Exception):  # an exception of a handler must not end a compilation
            for name, text in _texts().texts(self.on, event):
                self._log(logging.getLogger(f"smelt.{name}"), text)

    def _log(self, logger: logging.Logger, text: str) -> None:
        if logger.hasHandlers():
            logger.info("%s", text)
        else:
            self._stderr.handle(logger.makeRecord(logger.name, logging.INFO, "", 0, text, (), None))

    def turn(self, on: frozenset[str]) -> None:
        """Enable exactly these names."""
        for name in NAMES:
            logging.getLogger(f"smelt.{name}").setLevel(logging.INFO if name in on else logging.NOTSET)
        if on and not self.on:
            events.subscribe(self)
        elif self.on and not on:
            events.unsubscribe(self)
        self.on = on


class _JsonLines:
    """A subscriber that writes each event as one JSON object per line."""

    def __init__(self, path: str) -> None:
        try:
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (open as long as the process)
        except OSError as error:
            raise OptionError(f"logs as JSON: {path!r} cannot be written: {error.strerror}") from None
        self._path, self._failed = path, False
        self._lock = threading.Lock()

    def __call__(self, event: events.Event) -> None:
        with suppress(Exception):
            rank = own_rank()
            fields = {
                "time": time.time(),
                **({"rank": rank.number} if rank else {}),
                "kind": event.kind,
                "name": event.name,
                "data": _texts().plain(event.data),
            }
            line = (json.dumps(fields) + "\n").encode()
            with self._lock:
                self._append(line)

    def _append(self, line: bytes) -> None:
        """Append the whole line; if it does not fit, nothing, with one warning."""
        written, why = 0, "no space"
        try:
            written = self._file.write(line)
        except OSError as error:
            why = error.strerror or str(error)
        if written == len(line):
            return
        if self._file.seekable() and written:
            self._file.truncate(self._file.tell() - written)
        if not self._failed:
            self._failed = True
            logging.getLogger("smelt").warning("smelt: %s: lines of the log are missing: %s", self._path, why)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


_logs = _Logs()
_lines: _JsonLines | None = None


def _texts() -> ModuleType:
    from smelt.report import log_texts  # noqa: PLC0415

    return log_texts


def set_logs(*, json: str | os.PathLike[str] | None = None, **names: bool) -> None:
    """Turn logs on and off by name; other logs do not change.

    Args:
        json: a file to which every event is appended as a line of JSON; "" stops that.
        names: of `NAMES`, such as `breaks=True`.

    Raises OptionError for an unknown name, a value that is not a bool, or a file that cannot be written.
    """
    _check(names, "set_logs")
    for name, value in names.items():
        if not isinstance(value, bool):
            raise OptionError(f"set_logs: {name} must be a bool, got {value!r}")
    if json is not None:
        _write_to(os.fspath(json))
    off = {name for name, value in names.items() if not value}
    _logs.turn((_logs.on | names.keys()) - off)


def _write_to(path: str) -> None:
    global _lines
    new = _JsonLines(path) if path else None
    if _lines is not None:
        events.unsubscribe(_lines)
        _lines.close()
    _lines = new
    if new is not None:
        events.subscribe(new)


def _check(names: Iterable[str], where: str) -> None:
    for name in names:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ";"
            raise OptionError(f"{where}: unknown log {name!r}{hint} Known: {', '.join(NAMES)}")


def from_environment(environment: Mapping[str, str]) -> None:
    """Turn on the logs of `SMELT_LOGS` and `SMELT_LOGS_JSON`; `SMELT_LOGS=help` prints the names. Raises OptionError."""
    names = [name.strip() for name in environment.get("SMELT_LOGS", "").split(",") if name.strip()]
    if HELP in names:
        print(help_text(), file=sys.stderr)
    wanted = [name for name in names if name != HELP]
    _check(wanted, "SMELT_LOGS")
    set_logs(json=environment.get("SMELT_LOGS_JSON") or None, **dict.fromkeys(wanted, True))


def help_text() -> str:
    """The names, each with its contents."""
    rows = [f"  {name:<10}  {what}" for name, what in NAMES.items()]
    return "\n".join(["SMELT_LOGS takes names, separated by commas:", *rows])
