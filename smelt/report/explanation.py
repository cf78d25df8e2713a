"""`Explanation`, the result of `smelt.explain`, and the observation of compilations that it is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from smelt import _native, events
from smelt.capture.driver.cache_entries import Entry
from smelt.ranks import own_rank
from smelt.report import html_report, inspect
from smelt.report.break_costs import BreakCosts
from smelt.report.build_report import FrameRecord, ReportBuilder
from smelt.report.eager_saved_bytes import eager_saved_bytes
from smelt.report.event_collector import EventCollector
from smelt.report.kernel_times import KernelTimes
from smelt.report.report_data import Report, as_json, json_text
from smelt.report.report_text import notebook_html, plain_text
from smelt.runtime.gc_pause import collections_postponed
from smelt.runtime.whole_files import check_writable, write_whole

_INSTALLING = ("entry-installed", "graph-break", "eager-fallback")  # kinds of events that change records


class Observation:
    """Observes compilations and reports on them: as text, as data, as HTML. `name`: the report's title."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._collected = EventCollector()
        self._costs = BreakCosts()
        self._times = KernelTimes()
        self._watched = False
        self._eager: dict[int, tuple[Entry, int | None]] = {}  # by id of the entry, which is kept alive

    def _frames(self) -> Sequence[FrameRecord]:
        """The functions to report on."""
        raise NotImplementedError

    @contextmanager
    def watching(self) -> Iterator[Self]:
        """Include compilations within the context, such as that of a backward, which happens when its first gradient
        arrives."""
        with ExitStack() as observed:
            for timer in (self._collected.compiled, self._costs.compiled):
                observed.enter_context(events.timed(timer))
            for subscriber in (self._collected, self._measure_breaks):
                observed.enter_context(events.subscribed(subscriber))
            self._watched = True
            self._costs.attach(self._entries())
            try:
                yield self
            finally:
                self._costs.detach()

    def _measure_breaks(self, event: events.Event) -> None:
        if event.kind in _INSTALLING:  # before the call continues in the installed frame
            self._costs.attach(self._entries())

    def _entries(self) -> Iterator[Entry]:
        return (entry for frame in self._frames() for entry in frame.record.entries)

    def report(self) -> Report:
        """Everything that was observed, typed. Measures what eager would save for the backward of new entries."""
        measured = self._times, self._eager_bytes, self._costs.ms
        builder = ReportBuilder(self._frames(), self._collected, *measured, self._why_nothing())
        rank = own_rank()
        with collections_postponed():  # its objects are many, and none is garbage
            return builder.build(f"{self._name}, {rank}" if rank else self._name)

    def _why_nothing(self) -> str:
        """Why nothing was compiled, if so, and what to do."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON data, whose keys are the fields of `smelt.report.report_data.Report`."""
        data: dict[str, Any] = as_json(self.report())
        return data

    def save(self, path: str | Path) -> Path:
        """Write a report and return its path: JSON if the name ends in `.json`, one HTML file if it ends in `.html`.

        Raises ValueError for other endings, and OSError if `path` cannot be written.
        """
        path = Path(path)
        if path.suffix not in (".json", ".html"):
            ending = path.suffix or "a file without ending"
            raise ValueError(f"a report is written as .json or .html, not as {ending!r}")
        check_writable(path)
        if path.suffix == ".html":
            html_report.write(path, self.report())
        else:
            report = self.report()
            rows = (f'"{f.name}": {json_text(getattr(report, f.name))}' for f in fields(report))
            write_whole(path, "{\n" + ",\n".join(rows) + "\n}\n")
        return path

    def __str__(self) -> str:
        return plain_text(self.report())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return notebook_html(self.report())

    def _eager_bytes(self, entry: Entry) -> int | None:
        if id(entry) not in self._eager:
            self._eager[id(entry)] = entry, eager_saved_bytes(entry)
        return self._eager[id(entry)][1]


class Explanation(Observation):
    """What compiling `compiled` did in the calls made through this object. Prints as text, displays in notebooks.

    Attributes:
        compiled: the callable that `smelt.compile` returned.
        result: the result of the latest call, None before the first.

    Entries, breaks and graphs cover everything in `compiled`; phases, recompiles and kernels cover the calls of this
    object and those under `watching()`.
    """

    def __init__(self, compiled: Callable[..., Any]) -> None:
        inspect.records(compiled)  # raises TypeError for what smelt.compile did not return
        state = getattr(compiled, "_smelt", None)
        original = compiled if state is None else state.original
        super().__init__(getattr(compiled, "__qualname__", None) or type(original).__name__)
        self.compiled = compiled
        self.result: Any = None

    def _frames(self) -> list[FrameRecord]:
        records = inspect.records(self.compiled)
        return [FrameRecord(name, records[0][0] if i else None, r) for i, (name, r) in enumerate(records)]

    def _why_nothing(self) -> str:
        if not self._watched:
            return "it was not called. Call it with arguments, through this object or .call(...)"
        if _native.lines_are_traced():
            return (
                "a debugger or coverage tool follows lines, so calls run eagerly. Run without it, or set the option "
                "compile_under_tracers"
            )
        return (
            "the function is not compiled (smelt.disable, disable=True, or the stance force_eager), or its call ran within "
            "code that is. Explain the function that computes with tensors"
        )

    def call(self, *args: Any, **kwargs: Any) -> Explanation:
        """Call `compiled` once with these arguments and return this object. Exceptions propagate."""
        with self.watching():
            self.result = self.compiled(*args, **kwargs)
        return self

    @contextmanager
    def timing(self) -> Iterator[Explanation]:
        """Like `watching`, and time the kernels of each call within the context with torch's profiler; reports show
        the median of each. Times of a first call are those of cold caches. Raises RuntimeError if the profiler is
        already on."""
        with self.watching(), self._times.recording():
            yield self


def explained(compiled: Callable[..., Any], times: int = 0) -> Callable[..., Explanation]:
    """The callable that `smelt.explain(fn)` returns, for `fn` compiled: `(*args, **kwargs)` calls it once, then
    `times` more to time its kernels, and returns the explanation."""
    explanation = Explanation(compiled)

    def explain(*args: Any, **kwargs: Any) -> Explanation:
        explanation.call(*args, **kwargs)
        if times:
            with explanation.timing():
                for _ in range(times):
                    explanation.result = compiled(*args, **kwargs)
        return explanation

    return explain
