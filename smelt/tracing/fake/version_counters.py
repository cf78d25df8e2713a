"""Version counters: the write counts by which autograd detects that a saved tensor was written.

A view shares the counter of its base, and so does a result of `detach()`. A result of `.data` (and of `unsafe_chunk`)
shares the memory but has a counter of its own. Fakes have the counters of eager's tensors; a compiled graph returns
views. `Counters` describes the differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.graph.graph_callable import Compiled
from smelt.runtime.uncounted_writes import preserve_input_counters
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in
from smelt.tracing.fake.memory_aliases import alias_like
from smelt.tracing.record.trace_parts import TraceParts


@dataclass(frozen=True)
class Counters:
    """`outputs`: (output, first output with the same counter), for outputs whose counter no input has. `uncounted`:
    inputs whose memory is written without incrementing their counters; `counted`: inputs in the same storages
    whose writes increment their counters, which uncounted inputs may share."""

    outputs: tuple[tuple[int, int], ...] = ()
    uncounted: tuple[int, ...] = ()
    counted: tuple[int, ...] = ()

    @classmethod
    def of(cls, parts: TraceParts, inputs: Sequence[FakeTensor], outputs: Sequence[FakeTensor]) -> Counters:
        """The counters of a finished recording; versions of fakes are incremented to find shared counters. Call it
        with the recording modes disabled."""
        written = [(i, f) for i, f in enumerate(inputs) if f.storage_key in parts.writes.storages]
        uncounted = tuple(i for i, f in written if not f.is_inference() and f._version == 0)
        storages = {inputs[i].storage_key for i in uncounted}
        counted = tuple(
            i for i, f in written if not f.is_inference() and f._version and f.storage_key in storages
        )
        return cls(tuple(_output_counters(parts, outputs)), uncounted, counted)

    def preserve_input_counters(self, graph: Compiled) -> Compiled:
        """`graph` with the counters of `uncounted` inputs unchanged by its writes, except by those of `counted` inputs."""
        return preserve_input_counters(graph, self.uncounted, self.counted)

    def separate_output_counters(self, graph: Compiled) -> Compiled:
        """`graph` with outputs that have the counters of eager's."""
        outputs = self.outputs
        if not outputs:
            return graph

        def call(tensors: tuple[Any, ...]) -> Sequence[Any]:
            views = graph(tensors)
            results = list(views)
            for i, first in outputs:
                results[i] = views[i].data if i == first else alias_like(results[first], views[i])
            return results

        return call


NO_COUNTERS = Counters()


def _output_counters(parts: TraceParts, outputs: Sequence[FakeTensor]) -> list[tuple[int, int]]:
    """`Counters.outputs`: for outputs without gradients whose memory is visible elsewhere or may be saved by
    autograd."""
    computed = [(i, f) for i, f in enumerate(outputs) if not parts.inputs.holds(f) and not f.is_inference()]
    if not computed:
        return []
    of_inputs = {f.storage_key for f in parts.inputs}
    owners = _owners(parts, {f.storage_key for _, f in computed} - of_inputs)
    counters: list[tuple[int, int]] = []
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
        counters.append((i, same))
    return counters


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
