"""Cost of graph breaks: compiled frames read the clock before and after the eager instruction, for a while. What fusion
across a break would save is not measured: only a capture without the break could show it.

A compiled frame ends in a comment that names the break, the instruction, and a tail call
(`capture/graph_breaks/graph_break.py`). The clock stops while smelt compiles, such as the backward of an instruction that
calls `backward()`. The frame's code is replaced by code from the same source with the clock on the same
lines, so that tracebacks stay the same.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from types import CodeType, FunctionType

from smelt.capture.driver.cache_entries import Entry
from smelt.capture.graph_breaks.code_positions import location_table
from smelt.capture.graph_breaks.graph_break import comment_of
from smelt.reasons import Reason

_MARK = "# graph break: "
_BEGAN, _CLOCK, _NOTE = "__smelt_began", "__smelt_clock", "__smelt_note"


class BreakCosts:
    """Measures while attached. Measurements are retained."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}  # by the comment that names the break
        self._was: dict[FunctionType, CodeType] = {}
        self._compiled = 0.0  # seconds of compilation

    def compiled(self, name: str, seconds: float) -> None:
        """Stop the clock for a compilation that has ended; a timer of `events.timed`."""
        self._compiled += seconds

    def _clock(self) -> float:
        return time.perf_counter() - self._compiled

    def attach(self, entries: Iterable[Entry]) -> None:
        """Let the frames of these entries read the clock, if they do not yet."""
        for entry in entries:
            function = entry.callees[0]
            if type(function) is FunctionType and function not in self._was:
                self._attach(function, entry.source)

    def _attach(self, function: FunctionType, source: str) -> None:
        lines = source.splitlines()
        marks = [i for i, line in enumerate(lines) if line.lstrip().startswith(_MARK)]
        if len(marks) != 1:
            return
        found = _with_clock(lines, marks[0], function.__code__)
        if found is None:
            return
        seconds = self._seconds.setdefault(lines[marks[0]].strip().removeprefix(_MARK), [])
        function.__globals__.update({_CLOCK: self._clock, _NOTE: seconds.append})
        self._was[function], function.__code__ = function.__code__, found

    def detach(self) -> None:
        """Restore the frames' code."""
        for function, code in self._was.items():
            function.__code__ = code  # frames that run still find the clock among their globals
        self._was.clear()

    def ms(self, reason: Reason) -> float | None:
        """The median over the measured calls, in milliseconds without compilation; None if there are none. The clock
        itself takes less than a microsecond."""
        seconds = [
            s for s in self._seconds.get(comment_of(reason), ()) if s > 0
        ]  # another thread may have compiled
        return 1e3 * statistics.median(seconds) if seconds else None


def _with_clock(lines: list[str], mark: int, code: CodeType) -> CodeType | None:
    """The code of the frame with the clock, to replace `code`; None if it has no break."""
    indent = len(lines[mark]) - len(lines[mark].lstrip())
    timed = list(lines)
    timed[mark] = f"{' ' * indent}{_BEGAN} = {_CLOCK}()"
    for i in range(mark + 1, len(lines)):
        text = lines[i].lstrip()
        own = len(lines[i]) - len(text)
        if own < indent:
            break
        if text.startswith("return "):
            timed[i] = f"{' ' * own}{_NOTE}({_CLOCK}() - {_BEGAN}); {text}"
    whole = compile("\n".join(timed) + "\n", code.co_filename, "exec", dont_inherit=True)
    functions = [c for c in whole.co_consts if isinstance(c, CodeType) and _BEGAN in c.co_varnames]
    if len(functions) != 1 or functions[0].co_freevars != code.co_freevars:
        return None
    made = functions[0].replace(co_flags=code.co_flags, co_name=code.co_name, co_qualname=code.co_qualname)
    positions = set(code.co_positions())
    if len(positions) == 1:  # tracebacks show it as one line of the user's
        units = len(made.co_code) // 2
        table = location_table([(units, positions.pop())], code.co_firstlineno)
        made = made.replace(co_firstlineno=code.co_firstlineno, co_linetable=table)
    return made
