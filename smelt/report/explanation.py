"""`Explanation`, the result of `smelt.explain`: text, notebook display, plain data."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smelt import events
from smelt.capture.driver.cache_entries import Entry
from smelt.report import inspect
from smelt.report.break_costs import BreakCosts
from smelt.report.eager_saved_bytes import eager_saved_bytes
from smelt.report.event_collector import Watch
from smelt.report.explanation_html import fragment
from smelt.report.explanation_text import plain
from smelt.report.kernel_times import KernelTimes
from smelt.report.report_data import rows


class Explanation:
    """What compiling `compiled` did in the calls made through this object. Prints as text, displays in notebooks.

    Attributes:
        compiled: the callable that `smelt.compile` returned.
        result: the result of the latest call, None before the first.

    Entries, breaks and graphs cover everything in `compiled`; phases, recompiles and kernels cover the calls of this
    object and those under `watching()`.
    """

    def __init__(self, compiled: Callable[..., Any]) -> None:
        inspect.records(compiled)  # raises TypeError for what smelt.compile did not return
        self.compiled = compiled
        self.result: Any = None
        self._watch = Watch()
        self._costs = BreakCosts()
        self._times = KernelTimes()
        self._eager: dict[int, tuple[Entry, int | None]] = {}  # by id of the entry, which is kept alive

    def call(self, *args: Any, **kwargs: Any) -> Explanation:
        """Call `compiled` once with these arguments and return this object. Exceptions propagate."""
        with self.watching():
            self.result = self.compiled(*args, **kwargs)
        return self

    @contextmanager
    def watching(self) -> Iterator[Explanation]:
        """Include compilations within the context, such as that of a backward, which happens when its first gradient
        arrives."""
        with events.subscribed(self._watch), events.subscribed(self._measure):
            self._costs.attach(self._entries())
            try:
                yield self
            finally:
                self._costs.detach()

    @contextmanager
    def timing(self) -> Iterator[Explanation]:
        """Like `watching`, and time the kernels of each call within the context with torch's profiler; reports show
        the median of each. Times of a first call are those of cold caches. Raises RuntimeError if the profiler is
        already on."""
        with self.watching(), self._times.recording():
            yield self

    def _measure(self, event: events.Event) -> None:
        if event.kind == "entry-installed":  # before the call goes on in what was installed
            self._costs.attach(self._entries())

    def _entries(self) -> list[Entry]:
        return [entry for _, record in inspect.records(self.compiled) for entry in record.entries]

    def to_dict(self) -> dict[str, Any]:
        """Everything as data that can be written as JSON; docs/explain.md lists the keys. For the first entry with a
        backward it measures what eager would save for it."""
        name = getattr(self.compiled, "__qualname__", None) or type(_original(self.compiled)).__name__
        return rows(
            name,
            inspect.records(self.compiled),
            self._watch,
            self._eager_bytes,
            self._costs.ms,
            self._times,
        )

    def save(self, path: str | Path) -> Path:
        """Write a report and return its path: JSON if the name ends in `.json`, one HTML file if it ends in `.html`.

        Raises ValueError for other endings.
        """
        path = Path(path)
        if path.suffix == ".json":
            path.write_text(json.dumps(self.to_dict(), indent=1), encoding="utf-8")
        elif path.suffix == ".html":
            importlib.import_module("smelt.report.html_report").write(
                path, self.to_dict()
            )  # it is large, and rarely asked for
        else:
            raise ValueError(
                f"a report is written as .json or .html, not as {path.suffix or 'a file without ending'!r}"
            )
        return path

    def __str__(self) -> str:
        return plain(self.to_dict())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return fragment(self.to_dict())

    def _eager_bytes(self, entry: Entry) -> int | None:
        if id(entry) not in self._eager:
            self._eager[id(entry)] = entry, eager_saved_bytes(entry)
        return self._eager[id(entry)][1]


def _original(compiled: Any) -> Any:
    state = getattr(compiled, "_smelt", None)
    return compiled if state is None else state.original
