"""Graphs with symbolic sizes: one instance for each set of concrete sizes, created when a call brings them.

An instance runs the plan that the graph has for its sizes. Machine code is shared by all instances, and mostly the plan is
instantiated from a symbolic one. Where creating an instance fails in a later call, calls with new sizes run eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from smelt import _native
from smelt.graph.graph_callable import Compiled
from smelt.graph.graph_interpreter import run
from smelt.graph.ir import Graph
from smelt.graph.operator_effects import effects
from smelt.graph.unbacked_sizes import is_unbacked
from smelt.runtime.fork_locks import sizes_lock
from smelt.shapes.expr import Sym, Values, bounds
from smelt.torch_private import OpOverload
from smelt.tracing.fake.returned_views import allow_inplace_writes
from smelt.tracing.record.traced import SizeInput

# What runs, which `SizeDispatch` caches.
Instance = tuple[Compiled]
Create = Callable[[], Instance | Compiled]
CompileDeferred = Callable[[Create, Create], Instance | Compiled]

_EAGER_GRAPHS = 8  # sets of sizes for which the graph of an eager fallback is cached


def dispatch_by_sizes(
    sizes: Mapping[Sym, SizeInput],
    create: Callable[[Values], Instance | Compiled],
    prepare: bool = True,
    budget: _native.ArenaBudget | None = None,
) -> _native.SizeDispatch:
    """Runs the instance for the sizes of the inputs.

    Args:
        create: returns the instance for concrete sizes, or a callable that is not cached. It runs in the present grad mode.
        prepare: whether to create the instance for the sizes of the trace now.
        budget: of the plans of all instances, which are cached while they take little memory; without it, few are.
    """
    grad = torch.is_grad_enabled()

    def instance(numbers: tuple[int, ...]) -> Instance | Compiled:
        values = dict(zip(sizes, numbers, strict=True))
        for sym, number in values.items():
            low, high = bounds(sym)
            if not low <= number <= high and not is_unbacked(sym):  # guards check the others
                raise ValueError(
                    f"smelt: a graph for sizes {sym} from {low} to {high} was called with {number}"
                )
        with torch.set_grad_enabled(grad):
            return create(values)

    sources = [(s.input, s.source) for s in sizes.values()]
    native = _native.SizeDispatch(
        [(i, s.dim, s.divisor, s.over, s.is_remainder) for i, s in sources], instance, sizes_lock, budget
    )
    if prepare:
        native.prepare(tuple(source.hint for source in sizes.values()))
    return native


class WithEagerFallback:
    """Creates instances by `create` until that fails; from then on, `run_eagerly` returns what runs for new sizes.
    `compile_deferred`: handles the failure (`Traced.compile_deferred`).

    A failure for the sizes `first` raises, since the entry is not installed yet.
    """

    def __init__(
        self,
        compile_deferred: CompileDeferred,
        create: Callable[[Values], Instance | Compiled],
        run_eagerly: Callable[[Values], Compiled],
        first: Values | None = None,
    ) -> None:
        self._compile_deferred, self._create, self._first = compile_deferred, create, first
        self._failed = False
        cached = lru_cache(_EAGER_GRAPHS)(lambda items: run_eagerly(dict(items)))
        self.eager: Callable[[Values], Compiled] = lambda values: cached(tuple(values.items()))

    def __call__(self, values: Values) -> Instance | Compiled:
        if self._failed:
            return self.eager(values)
        if values == self._first:
            return self._create(values)
        return self._compile_deferred(lambda: self._create(values), lambda: self._after_failure(values))

    def _after_failure(self, values: Values) -> Compiled:
        self._failed = True
        return self.eager(values)


def eager_fallback(graph: Graph) -> Compiled:
    """Runs `graph`, which needs no gradients, operator by operator. Writes to inputs count in their versions."""
    targets = {
        effects(node.target).argument(name, node.args, node.kwargs)
        for node in graph
        if isinstance(node.target, OpOverload)
        for name in effects(node.target).writes
    }
    mutated = [i for i, p in enumerate(graph.placeholders) if p in targets]

    def call(tensors: tuple[Any, ...]) -> Sequence[Any]:
        counted = [tensors[i] for i in mutated if not tensors[i].is_inference()]
        versions = [t._version for t in counted]
        results = run(graph, tensors)
        uncounted = [t for t, version in zip(counted, versions) if t._version == version]
        torch.autograd.graph.increment_version(uncounted)
        return allow_inplace_writes(results, tensors) if torch.is_grad_enabled() else results

    return call
