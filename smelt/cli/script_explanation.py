"""One explanation of everything that a script compiles: the data of `smelt.explain` for several functions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smelt import events
from smelt.capture.driver.cache_entries import Record, all_records
from smelt.report import html_report
from smelt.report.break_costs import BreakCosts
from smelt.report.eager_saved_bytes import eager_saved_bytes
from smelt.report.event_collector import Watch
from smelt.report.explanation_text import plain
from smelt.report.report_data import rows

_OF_RECORDS = ("entry-installed", "graph-break", "fallback")  # events that change records


class Watched:
    """Everything compiled under `watching()`, including functions that no longer exist. `name`: the script's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._watch = Watch()
        self._costs = BreakCosts()
        self._before = {record for *_, record in all_records()}  # of functions that are not the script's
        self._found: dict[
            Record, tuple[str, str | None]
        ] = {}  # the function's name, and which one it resumes

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record compilations in this context."""
        with events.subscribed(self._watch), events.subscribed(self._note):
            try:
                yield
            finally:
                self._costs.detach()

    def _note(self, event: events.Event) -> None:
        if event.kind in _OF_RECORDS:
            self._look()
            self._costs.attach(entry for record in self._found for entry in record.entries)

    def _look(self) -> None:
        for name, resumed, record in all_records():
            if record not in self._before:
                self._found.setdefault(record, (name, resumed))

    def to_dict(self) -> dict[str, Any]:
        """Like `Explanation.to_dict` (docs/explain.md); a frame's `resumes` names its function."""
        self._look()
        known = {r: names for r, names in self._found.items() if r.entries or r.reasons or r.breaks}
        data = rows(
            self.name,
            [(name, record) for record, (name, _) in known.items()],
            self._watch,
            eager_saved_bytes,
            self._costs.ms,
        )
        for frame, (_, resumed) in zip(data["frames"], known.values(), strict=True):
            frame["resumes"] = resumed
        return data

    def __str__(self) -> str:
        return plain(self.to_dict())

    def save(self, path: Path) -> None:
        """Write the report: data for a name in `.json`, the page for one in `.html`. Raises OSError."""
        if path.suffix == ".json":
            path.write_text(json.dumps(self.to_dict(), indent=1), encoding="utf-8")
        else:
            html_report.write(path, self.to_dict())
