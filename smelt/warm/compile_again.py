"""The graphs of stored entries, compiled where an entry has no plan for a call: for other sizes, or a backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from smelt import pipeline, targets
from smelt.autograd.double_backward import DoubleBackward
from smelt.autograd.undefined_tangents import without_gradients, without_tangents
from smelt.backends.eager import eager_beneath_node
from smelt.backends.size_dispatch import Instance, WithEagerFallback, eager_fallback
from smelt.backends.unbacked_subgraphs import devices_of
from smelt.config import Config
from smelt.errors import BackendError, NeedsFixedSize
from smelt.exported.aten_graphs import restored
from smelt.graph.graph_callable import Compiled
from smelt.graph.ir import Graph
from smelt.recompile_limits import LocalSpecializations
from smelt.shapes.expr import Sym, Values
from smelt.shapes.substitute import substitute
from smelt.tracing.record.traced import MadePlan, Role, compile_deferred
from smelt.warm.add_plans import AddPlans
from smelt.warm.graph_forms import double_backward, read_graphs
from smelt.warm.stored_entry import StoredEntry, constant

T = TypeVar("T")

_NO_VALUES: Values = {}


@dataclass
class _Backward:
    """A part of the backward. `at_sizes`: its plan for given sizes; None until it compiles, and if `needs_fixed_size`."""

    graph: Graph
    donated: frozenset[int]
    at_sizes: Callable[[Values], Compiled] | None = None
    needs_fixed_size: bool = False


class CompileAgain:
    """Compiles the graphs of a stored entry. New plans are added to the entry. A graph that fails to compile runs eagerly,
    or raises BackendError with `fullgraph`."""

    def __init__(self, key: str, stored: StoredEntry, config: Config, fullgraph: bool) -> None:
        self._form, self._config = stored.data["graph"], config
        self._on_failure = self._raise if fullgraph else None
        self._graphs = read_graphs(stored.graphs)
        self._add = AddPlans(key, stored, config)
        self._constants = {str(i): constant(form) for i, form in enumerate(self._form["constants"])}
        self._backwards: dict[Role, _Backward] = {}
        self._double_backwards: dict[tuple[int, ...], DoubleBackward] = {}
        # A backward compiles after the capture, which can no longer specialize sizes (`compile_joint`).
        self._specializations = LocalSpecializations(config)

    def sized(self, numbers: Sequence[int]) -> Instance | Compiled:
        """The graph for these sizes, as `SizeDispatch` takes it."""
        return self._instances(self._values(numbers))

    def forward(self, numbers: Sequence[int]) -> Compiled:
        """The forward of a joint graph for these sizes."""
        values, none = self._values(numbers), frozenset[int]()
        return self._compile_deferred(
            lambda: self._forward_at(values),
            lambda: eager_beneath_node(substitute(self._graph("forward"), values), none),
        )

    def backward(self, role: Role, numbers: Sequence[int], temporaries: Sequence[str]) -> Compiled:
        """A part of the backward. `temporaries`: the names of the inputs that it may free."""
        values = self._values(numbers)
        if role not in self._backwards:
            self._backwards[role] = _Backward(*self._part(role, temporaries))
        part = self._backwards[role]

        def eagerly() -> Compiled:
            return eager_beneath_node(substitute(part.graph, values), part.donated)

        def compiled() -> Compiled:
            if part.at_sizes is None and not part.needs_fixed_size:
                try:
                    part.at_sizes = self._compiled(part.graph, role, part.donated, self._symbols)
                except NeedsFixedSize:
                    part.needs_fixed_size = True
            if part.at_sizes is not None:
                return part.at_sizes(values)
            if not self._specializations.allow_another():
                return eagerly()
            concrete = substitute(part.graph, values)
            return self._compiled(concrete, role, part.donated, made_for=values)({})

        return self._compile_deferred(compiled, eagerly)

    def _part(self, role: Role, temporaries: Sequence[str]) -> tuple[Graph, frozenset[int]]:
        _, undefined, reach, omitted, _ = role
        graph = without_tangents(self._graph(f"backward {reach}"), frozenset(undefined))
        graph = without_gradients(graph, frozenset(omitted))
        return graph, frozenset(i for i, p in enumerate(graph.placeholders) if p.name in temporaries)

    def double_backward(self, numbers: Sequence[int]) -> DoubleBackward:
        """What computes gradients with a history."""
        key = tuple(numbers)
        if key not in self._double_backwards:
            values = {Sym(s.name, s.lo, s.hi): n for s, n in zip(self._symbols, numbers, strict=True)}
            made = double_backward(self._graphs["double"], self._constants).at(values)
            assert made is not None, "`FoundNode` has checked `may_copy` for these sizes"
            self._double_backwards[key] = made
        return self._double_backwards[key]

    def _compiled(
        self,
        graph: Graph,
        role: Role,
        donated: frozenset[int] = frozenset(),
        symbols: tuple[Sym, ...] = (),
        made_for: Values = _NO_VALUES,
    ) -> Callable[[Values], Compiled]:
        def on_plan(plan: Any, values: Values) -> None:
            self._add(MadePlan(role, graph, plan, values or made_for))

        target = targets.factory(devices_of(graph))(self._config)
        compilation = pipeline.Compilation(
            self._config, target, symbols, donated, self._form["title"], role[0] != "graph", on_plan
        )
        return pipeline.compile_graph(graph, compilation)

    def _graph(self, name: str) -> Graph:
        # A stored graph has its symbols without `likely`.
        named = {Sym(sym.name, sym.lo, sym.hi): sym for sym in self._symbols}
        return substitute(restored(self._graphs[name], self._constants), named)

    @cached_property
    def _instances(self) -> WithEagerFallback:
        return WithEagerFallback(
            self._compile_deferred,
            lambda values: (self._at_sizes(values),),
            lambda values: eager_fallback(substitute(self._graph("graph"), values)),
        )

    @cached_property
    def _at_sizes(self) -> Callable[[Values], Compiled]:
        return self._compiled(self._graph("graph"), ("graph",), symbols=self._symbols)

    @cached_property
    def _forward_at(self) -> Callable[[Values], Compiled]:
        return self._compiled(self._graph("forward"), ("forward",), symbols=self._symbols)

    def _values(self, numbers: Sequence[int]) -> Values:
        return dict(zip(self._symbols, numbers, strict=True))

    @cached_property
    def _symbols(self) -> tuple[Sym, ...]:
        return tuple(Sym(name, low, high, likely=likely) for name, low, high, likely in self._form["symbols"])

    def _compile_deferred(self, compile_graph: Callable[[], T], run_eagerly: Callable[[], T]) -> T:
        return compile_deferred(compile_graph, run_eagerly, self._form["title"], self._on_failure)

    def _raise(self, error: Exception) -> None:
        raise BackendError(f"a part of {self._form['title']} could not be compiled: {error!r}") from error
