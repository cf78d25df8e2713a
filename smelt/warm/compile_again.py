"""The graphs of stored entries, compiled where an entry has no plan for a call: for other sizes, or a backward."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from smelt import _native, pipeline, targets
from smelt.backends.size_dispatch import eager_fallback
from smelt.backends.unbacked_subgraphs import devices_of
from smelt.config import Config
from smelt.errors import ExportError, PlanError
from smelt.exported.aten_graphs import as_data, restored
from smelt.exported.program_file import RECORDS, GraphData, encoded
from smelt.graph.graph_callable import Compiled
from smelt.graph.ir import Graph
from smelt.guards.stored_form import Unstorable
from smelt.plan.serialization import packed
from smelt.plan.value_encoding import decode
from smelt.shapes.expr import Sym, Values
from smelt.shapes.substitute import substitute
from smelt.tracing.record.traced import MadePlan, Role
from smelt.warm.add_plans import AddPlans
from smelt.warm.stored_entry import StoredEntry, constant, constant_form

log = logging.getLogger("smelt")


def stored_graphs(graphs: Mapping[str, Graph]) -> tuple[bytes, list[list[Any]]]:
    """The stored form of graphs, and their constants. Raises Unstorable."""
    constants: list[torch.Tensor] = []

    def name_of(tensor: torch.Tensor) -> str:
        constants.append(tensor)
        return str(len(constants) - 1)

    try:
        data = encoded({name: as_data(graph, name_of) for name, graph in graphs.items()})
    except (ExportError, PlanError) as error:
        raise Unstorable(str(error)) from None
    if any(tensor.device.type != "cpu" for tensor in constants):
        raise Unstorable("a constant on a GPU")
    return packed(data), [constant_form(tensor) for tensor in constants]


class CompileAgain:
    """Compiles the graphs of a stored entry, each once for all sizes. New plans are added to the entry."""

    def __init__(self, key: str, stored: StoredEntry, config: Config) -> None:
        self._stored, self._config = stored, config
        self._add = AddPlans(key, stored, config)
        self._compiled: dict[Role, Callable[[Values], Compiled]] = {}

    def __call__(self, role: Role, numbers: Sequence[int]) -> tuple[Compiled] | Compiled:
        """What `SizeDispatch` gets for new sizes."""
        values = dict(zip(self._symbols, numbers, strict=True))
        try:
            if role not in self._compiled:
                self._compiled[role] = self._compile(role)
            return (self._compiled[role](values),)
        except Exception as error:
            log.warning("smelt: a part of %s could not be compiled: %r", self._title, error)
            return eager_fallback(substitute(self._graph(role), values))

    def _compile(self, role: Role) -> Callable[[Values], Compiled]:
        graph = self._graph(role)

        def on_plan(plan: Any, values: Values) -> None:
            self._add(MadePlan(role, graph, frozenset(), plan, values))

        target = targets.factory(devices_of(graph))(self._config)
        compilation = pipeline.Compilation(self._config, target, self._symbols, title=self._title)
        return pipeline.compile_graph(graph, replace(compilation, on_plan=on_plan))

    def _graph(self, role: Role) -> Graph:
        named = {
            Sym(sym.name, sym.lo, sym.hi): sym for sym in self._symbols
        }  # bytes do not tell what is likely
        return substitute(restored(self._data[role[0]], self._constants), named)

    @property
    def _title(self) -> str:
        return str(self._stored.data["graph"]["title"])

    @cached_property
    def _symbols(self) -> tuple[Sym, ...]:
        rows = self._stored.data["graph"]["symbols"]
        return tuple(Sym(name, low, high, likely=likely) for name, low, high, likely in rows)

    @cached_property
    def _data(self) -> Mapping[str, GraphData]:
        data: Mapping[str, GraphData] = decode(_native.unpacked(self._stored.graphs), RECORDS)
        return data

    @cached_property
    def _constants(self) -> Mapping[str, torch.Tensor]:
        forms = self._stored.data["graph"]["constants"]
        return {str(i): constant(form) for i, form in enumerate(forms)}
