"""The loop of a program that goes over rows, from the statements that compute one row.

Statements are printed as if there were one row. Those that do not change from row to row stand before the loop, but for
loads: what a row shares with all others (a weight) is in the cache, where it takes no registers. What a row reads can be
loaded while the row before it is computed (`ahead`), so that a program waits for memory once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_WORD = re.compile(r"\b[A-Za-z_]\w*\b")
_ASSIGNED = re.compile(r"    ([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*) = (.*)", re.S)
_LOAD = re.compile(r"tl\.load\(p(\d+) ")
_CALLED = re.compile(r"\b(?:tl\.(?:load|reduce|associative_scan)|_\w+)\(")


@dataclass(frozen=True)
class Statement:
    """`names` that it gives (none: it stores), its text, and the words in what it computes."""

    names: tuple[str, ...]
    text: str
    words: frozenset[str]


def statements(lines: Sequence[str]) -> list[Statement]:
    """Of a function's top level."""
    found = []
    for line in lines:
        assigned = _ASSIGNED.fullmatch(line)
        names = tuple(assigned[1].split(", ")) if assigned else ()
        found.append(Statement(names, line, frozenset(_WORD.findall(assigned[2] if assigned else line))))
    return found


def hoist(body: Sequence[Statement], of_rows: frozenset[str]) -> tuple[list[Statement], list[Statement]]:
    """Statements that stand before the loop, and those of each row. `of_rows`: the names that say which row it is."""
    before: list[Statement] = []
    inside: list[Statement] = []
    changing = set(of_rows)
    for s in body:
        if s.names and changing.isdisjoint(s.words) and not _LOAD.search(s.text):
            before.append(s)
        else:
            inside.append(s)
            changing.update(s.names)
    return before, inside


def ahead(inside: Sequence[Statement], of_rows: frozenset[str], read: frozenset[int]) -> list[Statement]:
    """Those loads from the buffers `read` that are of one row and need nothing that is loaded, with what computes where."""
    givers = {name: s for s in inside for name in s.names}
    needed: dict[str, Statement] = {}

    def arithmetic(s: Statement) -> dict[str, Statement] | None:
        """What the statement needs, itself included; None where that is no mere arithmetic."""
        found: dict[str, Statement] = {}
        for word in s.words:
            if word in givers:
                giver = givers[word]
                inner = None if _CALLED.search(giver.text) else arithmetic(giver)
                if inner is None:
                    return None
                found |= inner
        return found | {s.names[0]: s}

    for s in inside:
        load = _LOAD.search(s.text)
        if load is None or int(load[1]) not in read or not s.names:
            continue
        found = arithmetic(s)
        if found is not None and any(not of_rows.isdisjoint(t.words) for t in found.values()):
            needed |= found
    return [s for s in inside if s.names and s.names[0] in needed]


def is_load(s: Statement) -> bool:
    """Whether it loads."""
    return _LOAD.search(s.text) is not None


def suffixed(line: str, names: frozenset[str], suffix: str) -> str:
    """The line with a suffix behind those of its words."""
    return _WORD.sub(lambda m: m[0] + suffix if m[0] in names else m[0], line)
