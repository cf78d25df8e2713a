"""Why the entries of a function did not answer a call, in words."""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType

from smelt.capture.driver.cache_entries import Entry, Record
from smelt.graph.ir import Line
from smelt.guards.guard_failures import Failure, explain, explain_guard
from smelt.reasons import RECOMPILE_LIMIT, Reason


def explain_cache_miss(entry: Entry, slots: Sequence[object]) -> Failure | None:
    """What the native tree of `entry` found wrong with a call, with the two values."""
    index = entry.tree.explain(*slots)
    if index is not None and index >= 0:
        return explain_guard(entry.facts[index], slots)
    return explain(entry.facts, slots)


def recompile_limit_reason(record: Record, latest: Failure | None, code: CodeType) -> Reason:
    """The reason of a function with too many entries: it names what keeps changing, with the values it had."""
    values: dict[str, list[str]] = {}
    for failure in [*(e.reason for e in record.entries), latest]:
        if failure is not None:
            values.setdefault(failure.source, [failure.expected]).append(failure.found)
    changing = "; ".join(
        f"{source} was {', '.join(dict.fromkeys(found))}" for source, found in values.items()
    )
    detail = f"{len(record.entries)} times, which is the limit; {changing or 'its guards did not hold'}"
    return Reason(RECOMPILE_LIMIT, detail, Line(code.co_filename, code.co_firstlineno, code.co_qualname))
