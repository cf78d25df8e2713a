"""Version counters: with which a tensor counts its writes, so that autograd notices that what it saved was written.

A view shares the counter of what it looks at, and so does a result of `detach()`. What `.data` gives (and
`unsafe_chunk`) shares the memory, and counts for itself. Fakes have the counters that eager's tensors have; a graph gives
views. `Counters` says where the two differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.graph.graph_callable import Compiled
from smelt.torch_private import set_version_counter
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in
from smelt.tracing.fake.memory_aliases import alias_like
from smelt.tracing.record.trace_parts import TraceParts


@dataclass(frozen=True)
class Counters:
    """`own`: by position of an output, the first output with its counter, where no input has it. `uncounted`: inputs whose
    memory is written, which their own counters do not show."""

    own: tuple[tuple[int, int], ...] = ()
    uncounted: tuple[int, ...] = ()

    @classmethod
    def of(cls, parts: TraceParts, inputs: Sequence[FakeTensor], outputs: Sequence[FakeTensor]) -> Counters:
        """Those of a trace with these inputs, of which no more is recorded: fakes are counted up to see who shares a
        counter. Call it with the recording modes out of the way."""
        written = [(i, f) for i, f in enumerate(inputs) if f.storage_key in parts.writes.storages]
        uncounted = tuple(i for i, f in written if not f.is_inference() and f._version == 0)
        return cls(tuple(_own(parts, outputs)), uncounted)

    def preserve_input_counters(self, graph: Compiled) -> Compiled:
        """`graph`, which writes the inputs without counting where eager does not count."""
        uncounted = self.uncounted
        if not uncounted:
            return graph

        def call(tensors: tuple[Any, ...]) -> Sequence[Any]:
            written = tuple(tensors[i] for i in uncounted)
            versions = tuple(t._version for t in written)
            results = graph(tensors)
            set_version_counter(written, versions)
            return results

        return call

    def separate_output_counters(self, graph: Compiled) -> Compiled:
        """`graph`, whose outputs have the counters of eager's."""
        own = self.own
        if not own:
            return graph

        def call(tensors: tuple[Any, ...]) -> Sequence[Any]:
            given = graph(tensors)
            results = list(given)
            for i, first in own:
                results[i] = given[i].data if i == first else alias_like(results[first], given[i])
            return results

        return call


NO_COUNTERS = Counters()


def _own(parts: TraceParts, outputs: Sequence[FakeTensor]) -> list[tuple[int, int]]:
    """`Counters.own`: of outputs without gradients, whose memory others see or autograd may have saved."""
    computed = [(i, f) for i, f in enumerate(outputs) if not parts.inputs.holds(f) and not f.is_inference()]
    if not computed:
        return []
    of_inputs = {f.storage_key for f in parts.inputs}
    owners = _owners(parts, {f.storage_key for _, f in computed} - of_inputs)
    found: list[tuple[int, int]] = []
    first: list[int] = []
    for i, fake in computed:
        owner = owners.get(fake.storage_key)
        if fake is owner or fake.requires_grad:
            continue
        others = [f for f in (*parts.inputs, *outputs) if f.storage_key == fake.storage_key and f is not fake]
        if owner is not None and owner.requires_grad:  # autograd may have saved it
            others.append(owner)
        sharing = [f for f in others if parts.inputs.holds(f) or f is owner]
        if not others or any(_share_counter(fake, f) for f in sharing):
            continue
        same = next((k for k in first if _share_counter(fake, outputs[k])), i)
        if same == i:
            first.append(i)
        found.append((i, same))
    return found


def _owners(parts: TraceParts, storages: set[int]) -> dict[int, FakeTensor]:
    """The first tensor of each of these storages."""
    owners: dict[int, FakeTensor] = {}
    for entry in parts.tape.entries:
        for fake in fakes_in(entry.out):
            if fake.storage_key in storages:
                owners.setdefault(fake.storage_key, fake)
    return owners


def _share_counter(a: FakeTensor, b: FakeTensor) -> bool:
    if a.storage_key != b.storage_key or b.is_inference():
        return False
    before = a._version
    torch.autograd.graph.increment_version([b])
    return a._version != before
