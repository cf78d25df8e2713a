"""`Environment`: the state of one capture about the objects from outside of the call.

The functions of `wrap_values.py` (reads), `container_contents.py` (containers that native code reads) and
`environment_mutations.py` (changes) take an `Environment`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.capture.environment.dynamic_numbers import DynamicNumbers
from smelt.capture.environment.dynamic_sizes import DynamicSizes
from smelt.capture.environment.guard_facts import GuardFacts
from smelt.capture.environment.mutation_log import MutationLog
from smelt.capture.environment.overlay import Overlay
from smelt.capture.environment.source_index import Sources
from smelt.capture.proxies.array_proxy import ArrayProxy
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.proxies.text_proxy import TextProxy
from smelt.graph.ir import Line
from smelt.guards.source import Source
from smelt.tracing.record.trace import Trace
from smelt.tracing.symbolic.numpy_numbers import NumpyNumber


class Memo:
    """Cached results of guarded reads."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.reads: dict[int, dict[object, Any]] = {}  # attribute and item reads, by id of the object
        # functions that run natively and whose reads are guarded (`library_reads.use_native_function`)
        self.native_functions: set[int] = set()
        self._readers: dict[
            int, set[int]
        ] = {}  # by id of a dictionary: the objects whose attributes it holds

    def reads_of(self, obj: object) -> dict[object, Any]:
        """The cached attribute and item reads of `obj`."""
        reads = self.reads.get(id(obj))
        if reads is None:
            reads = self.reads[id(obj)] = {}
            self._sources.keep_alive(obj)
        return reads

    def record_attribute(self, entries: dict[str, object], obj: object, name: str, value: object) -> None:
        """Cache that the attribute `name` of `obj` is `value`, until the dictionary `entries` changes."""
        self.reads_of(obj)[name] = value
        self._readers.setdefault(id(entries), set()).add(id(obj))

    def forget(self, obj: object) -> None:
        """Drop the cached reads that a change of `obj` invalidates."""
        for key in (id(obj), *self._readers.pop(id(obj), ())):
            self.reads.pop(key, None)


@dataclass
class WrappedObjects:
    """Environment objects that `wrap_values.py` has wrapped, by id."""

    arrays: dict[int, ArrayProxy | NumpyNumber] = field(default_factory=dict)  # and scalars that change
    # the nested tensor of fakes for a nested tensor
    nested: dict[int, torch.Tensor] = field(default_factory=dict)
    ragged_sizes: dict[int, torch.Tensor] = field(default_factory=dict)  # the tensors that they belong to
    tuples: dict[int, Any] = field(default_factory=dict)  # the copy of a tuple with fakes in place of tensors
    # strings and other objects that change from call to call
    unread: dict[Source, TextProxy | OpaqueProxy] = field(default_factory=dict)
    # all but constants, tensors, and objects that their type or identity guard tells apart
    objects: dict[int, Any] = field(default_factory=dict)

    @property
    def has_opaque(self) -> bool:
        """Whether the program has been given an `OpaqueProxy`."""
        return any(type(proxy) is OpaqueProxy for proxy in self.unread.values())


@dataclass
class NativeViews:
    """Containers that native code reads (`container_contents.py`), by id."""

    # contents are guarded: whether they include tensors
    guarded: dict[int, bool] = field(default_factory=dict)
    # of those that do: the container, and its copy with fakes
    copies: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    # of lists with dynamic numbers: the copy with symbolic ones
    numbers: dict[int, list[Any]] = field(default_factory=dict)
    stale: set[int] = field(default_factory=set)  # may have changed since their copies were created
    in_progress: set[int] = field(default_factory=set)  # being viewed: a container may hold itself


@dataclass
class MutationConstraints:
    """State that changes of environment objects must respect (`environment_mutations.py`)."""

    frozen: set[int] = field(default_factory=set)  # ids of objects that must not change
    owners: dict[int, Any] = field(default_factory=dict)  # id of an instance dictionary -> its instance


class Environment:
    """The objects of one capture that come from outside of the call."""

    looks_ahead = True  # iterators of the environment are advanced in the graph

    def __init__(self, trace: Trace, current_line: Callable[[], Line | None]) -> None:
        self.trace = trace
        self.sources = Sources()
        self.overlay = Overlay(self.sources)
        self.log = MutationLog(self.overlay, current_line)
        self.facts = GuardFacts(self.sources, current_line, trace.real)
        self.numbers = DynamicNumbers(trace, self.facts)
        self.sizes = DynamicSizes(self.numbers)
        self.memo = Memo(self.sources)
        self.wrapped = WrappedObjects()
        self.native_views = NativeViews()
        self.mutation_constraints = MutationConstraints()
        self.consumed: dict[int, int] = {}  # by id of an iterator: how many items the trace consumed

    def class_attribute(self, cls: type, name: str) -> object:
        """The value that a class itself holds under a name; MISSING if it has none. The trace depends on the name."""
        self.facts.class_names.add(name)
        return self.overlay.name(cls, name)
