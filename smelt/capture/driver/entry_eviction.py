"""Which entries of a function others have made needless.

A function has entries for each way that it may go, and of each the first is for the numbers of its call alone. Where sizes
change, later ones do what these do, for any size. The first may be faster for its own sizes, so it stays if it is in use; so
do all while they are few, since calls hardly notice them.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.capture.driver.cache_entries import Entry
from smelt.guards.implication import covers

MOST_KEPT = 3


def superseded_entries(entries: Sequence[Entry]) -> list[Entry]:
    """Of `entries`, oldest first, those that are to go: a later one with symbols for sizes accepts all calls that they
    accept, and they have such symbols as well, or have answered one call."""
    if len(entries) <= MOST_KEPT:
        return []
    return [
        entry
        for i, entry in enumerate(entries)
        if (entry.traced.sizes or entry.was_never_reused)
        and any(later.traced.sizes and covers(later.facts, entry.facts) for later in entries[i + 1 :])
    ]
