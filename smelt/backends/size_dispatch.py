"""Graphs whose sizes change: an instance for each set of numbers, made when a call comes with them.

An instance is what the graph would be compiled to if its sizes were these numbers. Mostly only its plan is made, as the
machine code is that of a template for all sizes; where there can be no such code, each instance is compiled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from smelt import _native
from smelt.errors import NeedsFixedSize
from smelt.graph.graph_callable import Compiled
from smelt.graph.graph_interpreter import run
from smelt.graph.ir import Graph
from smelt.graph.operator_effects import effects
from smelt.graph.unbacked_sizes import is_of_data
from smelt.runtime.fork_locks import SIZES, hold_at_fork
from smelt.shapes.expr import Sym, Values, bounds
from smelt.torch_private import OpOverload
from smelt.tracing.fake.returned_views import freely_written
from smelt.tracing.record.traced import SizeInput, Traced

log = logging.getLogger("smelt")

# What is kept, and the plans whose memory between calls is its own.
Instance = tuple[Compiled, list[_native.Plan]]

MOST_COMPILED = 8  # sets of sizes that one graph is compiled for, by itself each

# Under which instances are made, one at a time.
LOCK = hold_at_fork(threading.RLock(), SIZES)


def by_sizes(
    sizes: Mapping[Sym, SizeInput], make: Callable[[Values], Instance | Compiled], prepare: bool = True
) -> _native.SizeDispatch:
    """Runs what `make` gives for the sizes of its inputs; a bare callable is not kept. It is asked under the grad mode that
    is on now; for the sizes that the trace saw, at once, if to `prepare`."""
    grad = torch.is_grad_enabled()

    def instance(numbers: tuple[int, ...]) -> Instance | Compiled:
        values = dict(zip(sizes, numbers, strict=True))
        for sym, number in values.items():
            low, high = bounds(sym)
            if not low <= number <= high and not is_of_data(sym):  # which was checked
                raise ValueError(
                    f"smelt: a graph for sizes {sym} from {low} to {high} was called with {number}"
                )
        with torch.set_grad_enabled(grad):
            return make(values)

    sources = [(s.input, s.source) for s in sizes.values()]
    native = _native.SizeDispatch([(i, s.dim, s.divisor, s.over, s.rest) for i, s in sources], instance, LOCK)
    if prepare:
        native.prepare(tuple(source.hint for source in sizes.values()))
    return native


def _kept(make: Callable[[Values], Compiled]) -> Callable[[Values], Compiled]:
    """`make`, which makes nothing again for sizes that came lately."""
    made = lru_cache(MOST_COMPILED)(lambda items: make(dict(items)))
    return lambda values: made(tuple(values.items()))


class EachCompiled:
    """Instances that are compiled one by one, by `compile_at`. When that was done for MOST_COMPILED sets of sizes, others
    are what `run_at` gives, which runs operator by operator. `why`: there is no code for all sizes."""

    def __init__(
        self,
        compile_at: Callable[[Values], Instance],
        run_at: Callable[[Values], Compiled],
        why: NeedsFixedSize,
    ) -> None:
        self._compile_at, self._why = compile_at, why
        self._compiled, self._told = 0, False
        self._run_at = _kept(run_at)

    def __call__(self, values: Values) -> Instance | Compiled:
        if self._compiled < MOST_COMPILED:
            instance = self._compile_at(values)
            self._compiled += 1
            return instance
        if not self._told:
            self._told = True
            log.warning(
                "smelt: a graph was compiled for %d sets of sizes; others run operator by operator, as there is no code "
                "for all sizes: %s",
                MOST_COMPILED,
                self._why.reason.detail,
            )
        return self._run_at(values)


class OrByOperators:
    """What `make` gives, until it fails in a later call than that with the sizes `first`; then what `run_at` gives for sizes
    that are new, which runs operator by operator."""

    def __init__(
        self,
        traced: Traced,
        make: Callable[[Values], Instance | Compiled],
        run_at: Callable[[Values], Compiled],
        first: Values | None = None,
    ) -> None:
        self._traced, self._make, self._first = traced, make, first
        self._failed = False
        self.by_operators = _kept(run_at)

    def __call__(self, values: Values) -> Instance | Compiled:
        if self._failed:
            return self.by_operators(values)
        if values == self._first:  # as the entry is made: there is none where this fails
            return self._make(values)
        return self._traced.later(lambda: self._make(values), lambda: self._given_up(values))

    def _given_up(self, values: Values) -> Compiled:
        self._failed = True
        return self.by_operators(values)


def by_operators(graph: Graph) -> Compiled:
    """Runs `graph`, which needs no gradients, operator by operator. Writes of inputs count in their versions, as they do
    where a plan runs."""
    targets = {
        effects(node.target).argument(name, node.args, node.kwargs)
        for node in graph
        if isinstance(node.target, OpOverload)
        for name in effects(node.target).writes
    }
    written = [i for i, p in enumerate(graph.placeholders) if p in targets]

    def call(tensors: tuple[Any, ...]) -> Sequence[Any]:
        counted = [tensors[i] for i in written if not tensors[i].is_inference()]
        versions = [t._version for t in counted]
        results = run(graph, tensors)
        uncounted = [t for t, version in zip(counted, versions) if t._version == version]
        torch.autograd.graph.increment_version(uncounted)
        return freely_written(results, tensors) if torch.is_grad_enabled() else results

    return call
