"""Explanations of cache misses: which guard of an entry failed, and which values keep changing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import CodeType

from smelt.capture.driver.cache_entries import Entry, Record
from smelt.graph.ir import Line
from smelt.guards.changed_numbers import Path, changed_numbers, changed_sizes
from smelt.guards.guard_failures import Failure, explain, explain_guard
from smelt.guards.read_source import Reader
from smelt.reasons import RECOMPILE_LIMIT, Reason


def explain_cache_miss(entry: Entry, slots: Sequence[object]) -> Failure | None:
    """The guard of `entry` that failed for a call, with the expected and the observed value."""
    index = entry.tree.explain(*slots)
    if index is not None and index >= 0:
        return explain_guard(entry.facts[index], slots)
    return explain(entry.facts, slots)


def misfit(entry: Entry, slots: Sequence[object]) -> int:
    """How far `entry` is from serving a call: the number of its guards that do not hold. One about a tensor counts twice if
    not only sizes differ."""
    read = Reader(slots)
    failing = [guard for guard in entry.facts if not guard.holds(read)]
    return len(failing) + sum(
        guard.facts is not None and not changed_sizes([guard], slots) for guard in failing
    )


def changing_values(record: Record, slots: Sequence[object]) -> tuple[frozenset[Path], frozenset[Path]]:
    """Paths of the numbers, strings and containers, and of the sizes of tensors, for which at least half of the entries
    reject a call."""

    return _frequent(record, slots, _changed_values), _frequent(record, slots, _changed_sizes)


def changing_classes(record: Record, slots: Sequence[object]) -> frozenset[Path]:
    """Paths of the arguments for whose classes, or whose dtypes or ranks, at least half of the entries reject a call."""
    return _frequent(record, slots, _changed_classes)


def _frequent(
    record: Record, slots: Sequence[object], changed: Callable[[Entry, Sequence[object]], set[Path]]
) -> frozenset[Path]:
    paths = Counter(path for entry in record.entries for path in changed(entry, slots))
    return frozenset(path for path, n in paths.items() if 2 * n >= len(record.entries))


def _changed_classes(entry: Entry, slots: Sequence[object]) -> set[Path]:
    read = Reader(slots)
    about = (g for g in entry.facts if g.source is not None and g.source.kind == "arg")
    return {g.source.path for g in about if not g.holds(read) and not changed_sizes([g], slots)}  # type: ignore[union-attr]


def _changed_values(entry: Entry, slots: Sequence[object]) -> set[Path]:
    failure = explain_cache_miss(entry, slots)
    paths = changed_numbers(entry.facts, slots)
    if failure is None or failure.guard.source is None or not failure.guard.kind.aspect:
        return paths
    return paths | {failure.guard.source.path}


def _changed_sizes(entry: Entry, slots: Sequence[object]) -> set[Path]:
    return {path for path, size in changed_sizes(entry.facts, slots) if type(size) is int}


def recompile_limit_reason(record: Record, latest: Failure | None, code: CodeType) -> Reason:
    """The reason for a function that reached the recompile limit: the sources that keep changing, with their values.

    Its line is that of the operation that needed the value which changed most often, the function's if no guard has a line.
    """
    values: dict[str, list[str]] = {}
    lines: list[Line] = []
    for failure in [*(e.reason for e in record.entries), latest]:
        if failure is not None:
            values.setdefault(failure.source, [failure.expected]).append(failure.found)
            if failure.guard.line is not None:
                lines.append(failure.guard.line)
    changing = "; ".join(
        f"{source} was {', '.join(dict.fromkeys(found))}" for source, found in values.items()
    )
    detail = f"{len(record.entries)} times, which is the limit; {changing or 'its guards did not hold'}"
    of_function = Line(code.co_filename, code.co_firstlineno, code.co_qualname)
    line = Counter(lines).most_common(1)[0][0] if lines else of_function
    return Reason(RECOMPILE_LIMIT, detail, line)


def recompile_message(entries: Iterable[Entry], code: CodeType, slots: Sequence[object]) -> str:
    """The error for a cache miss where `torch.compiler.set_stance` forbids recompiles; its first sentence is torch's."""
    failures = [explain_cache_miss(entry, slots) for entry in entries]
    lines = [
        "Detected recompile when torch.compile stance is 'fail_on_recompile'. "
        f"filename: '{code.co_filename}', function name: '{code.co_name}', line number: {code.co_firstlineno}",
        *(f"- {failure}" for failure in failures if failure is not None),
    ]
    return "\n".join(lines)
