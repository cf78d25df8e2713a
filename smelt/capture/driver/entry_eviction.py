"""Eviction of entries that later entries supersede.

A function has entries for each of its paths. The first entry of a path is specialized to the sizes of its call. If sizes
change, a later entry with symbolic sizes accepts the same calls. The specialized one may be faster for its sizes, so it
stays while it is in use. A few entries cost little at a call, so all stay while there are no more than `MOST_ENTRIES`.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.capture.driver.cache_entries import Entry
from smelt.guards.guard import covers

MOST_ENTRIES = 3


def superseded_entries(entries: Sequence[Entry]) -> list[Entry]:
    """The entries to evict, from all `entries`, oldest first: a later entry with symbolic sizes accepts all their calls, and
    they have symbolic sizes as well or were never reused."""
    if len(entries) <= MOST_ENTRIES:
        return []
    return [
        entry
        for i, entry in enumerate(entries)
        if (entry.traced.sizes or entry.was_never_reused)
        and any(later.traced.sizes and covers(later.facts, entry.facts) for later in entries[i + 1 :])
    ]
