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
from typing import TextIO

from smelt import events
from smelt.errors import OptionError

NAMES = {
    "breaks": "where graphs break and which calls run eagerly: the reason, the line, what to do",
    "recompiles": "the guard that refused a call: what it expects, and what the call brought",
    "sizes": "which sizes may not be any: what needs numbers, equal sizes or a range, and where",
    "guards": "the guards of each new entry, with the lines that they are for",
    "graphs": "the graph of each new entry, as Python",
    "fusion": "kernels as loops, the calls between them, and what was not fused and why",
    "kernels": "names of the generated kernels, and of the ATen operators that are called",
    "plan": "the steps that run at a call",
    "perf": "how long each stage of a compilation took",
}
HELP = "help"


class _Stderr(logging.Handler):
    """Writes to the current sys.stderr, which programs and test runners replace."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"[{record.name}] {record.getMessage()}", file=sys.stderr, flush=True)


class _Logs:
    """The logging subscriber; `on`: the enabled names."""

    def __init__(self) -> None:
        self.on: frozenset[str] = frozenset()
        self._stderr = _Stderr()

    def __call__(self, event: events.Event) -> None:
        with suppress(Exception):  # what handlers raise is no reason to end a compilation
            for name in self.on & _texts().LOGS_OF.get(event.kind, frozenset()):
                for text in _texts().texts(name, event):
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
            self._file: TextIO = open(path, "a", encoding="utf-8")  # noqa: SIM115 (it lives as long as the process)
        except OSError as error:
            raise OptionError(f"logs as JSON: {path!r} cannot be written: {error.strerror}") from None
        self._lock = threading.Lock()

    def __call__(self, event: events.Event) -> None:
        with suppress(Exception):
            told = {
                "time": time.time(),
                "kind": event.kind,
                "name": event.name,
                "data": _texts().plain(event.data),
            }
            line = json.dumps(told) + "\n"
            with self._lock:
                self._file.write(line)
                self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


_logs = _Logs()
_lines: _JsonLines | None = None


def _texts() -> ModuleType:
    from smelt.report import log_texts  # noqa: PLC0415

    return log_texts


def set_logs(*, json: str | os.PathLike[str] | None = None, **names: bool) -> None:
    """Turn logs on and off by name; other logs stay as they are.

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
    asked = [name.strip() for name in environment.get("SMELT_LOGS", "").split(",") if name.strip()]
    if HELP in asked:
        print(help_text(), file=sys.stderr)
    wanted = [name for name in asked if name != HELP]
    _check(wanted, "SMELT_LOGS")
    set_logs(json=environment.get("SMELT_LOGS_JSON") or None, **dict.fromkeys(wanted, True))


def help_text() -> str:
    """The names, each with its contents."""
    rows = [f"  {name:<10}  {what}" for name, what in NAMES.items()]
    return "\n".join(["SMELT_LOGS takes names, separated by commas:", *rows])
