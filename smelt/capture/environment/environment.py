"""What a capture knows of the objects from outside of the call, in parts.

`wrap_values.py` reads environment objects, `container_contents.py` looks into containers for native code,
`environment_mutations.py` prepares changes: their functions take an `Environment`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from smelt.capture.environment.dynamic_numbers import DynamicNumbers
from smelt.capture.environment.dynamic_sizes import DynamicSizes
from smelt.capture.environment.guard_facts import GuardFacts
from smelt.capture.environment.mutation_log import MutationLog
from smelt.capture.environment.overlay import Overlay
from smelt.capture.environment.source_index import Sources
from smelt.capture.proxies.array_proxy import Array
from smelt.graph.ir import Line
from smelt.tracing.record.trace import Trace


class Memo:
    """What reads of environment objects gave: the same again, without another look."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.by_id: dict[int, dict[object, Any]] = {}  # attribute and item reads
        self.natives: set[int] = (
            set()
        )  # functions that run natively, with what they read (`library_reads.use_native_function`)
        self._readers: dict[int, set[int]] = {}  # by id of a dictionary: whose attributes were read in it

    def of(self, obj: object) -> dict[object, Any]:
        """What attribute and item reads of `obj` gave."""
        found = self.by_id.get(id(obj))
        if found is None:
            found = self.by_id[id(obj)] = {}
            self._sources.keep(obj)
        return found

    def found_in(self, entries: dict[str, object], obj: object, name: str, value: object) -> None:
        """The attribute `name` of `obj` is `value`, as long as the dictionary `entries` does not change."""
        self.of(obj)[name] = value
        self._readers.setdefault(id(entries), set()).add(id(obj))

    def forget(self, obj: object) -> None:
        """`obj` changes from now on."""
        for key in (id(obj), *self._readers.pop(id(obj), ())):
            self.by_id.pop(key, None)


@dataclass
class Seen:
    """The environment objects that were wrapped (`wrap_values.py`), by id."""

    arrays: dict[int, Array] = field(default_factory=dict)
    tuples: dict[int, Any] = field(default_factory=dict)  # what stands for a tuple: fakes in place of tensors
    objects: dict[int, Any] = field(
        default_factory=dict
    )  # all but constants, tensors, and what identity tells


@dataclass
class Opened:
    """Containers that native code looks into (`container_contents.py`), by id."""

    by_id: dict[int, bool] = field(
        default_factory=dict
    )  # whose contents are guarded: whether they hold tensors
    copies: dict[int, tuple[Any, Any]] = field(
        default_factory=dict
    )  # of those that do: container, copy with fakes
    stale: set[int] = field(default_factory=set)  # those that may have changed since their copies were made
    viewed: set[int] = field(
        default_factory=set
    )  # whose contents are being shown just now: they may hold themselves


@dataclass
class Changed:
    """What changes of environment objects must heed (`environment_mutations.py`)."""

    fixed: set[int] = field(default_factory=set)  # ids of objects that must not be changed
    owners: dict[int, Any] = field(default_factory=dict)  # id of an instance dictionary -> its instance
    classes: dict[type, set[str]] = field(
        default_factory=dict
    )  # the names that were stored before they were read


class Environment:
    """The environment objects of one capture."""

    looks_ahead = True  # iterators from outside are advanced in the graph

    def __init__(self, trace: Trace, where: Callable[[], Line | None]) -> None:
        self.trace = trace
        self.sources = Sources()
        self.overlay = Overlay(self.sources)
        self.log = MutationLog(self.overlay)
        self.facts = GuardFacts(self.sources, where, trace.real)
        self.numbers = DynamicNumbers(trace, self.facts)
        self.sizes = DynamicSizes(self.numbers)
        self.memo = Memo(self.sources)
        self.seen = Seen()
        self.opened = Opened()
        self.changed = Changed()
        self.taken: dict[int, int] = {}  # by id of an outside iterator, how many items the trace took
