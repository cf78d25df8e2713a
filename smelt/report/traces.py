"""The graphs of one call as values: the result of `smelt.trace(fn)(*args)`.

A call is captured as one graph, or as several if it breaks. Each graph has a torch level, which records the program's
calls, and an aten level, which records the resulting operators; with gradients also the joint graph of forward and
backward, and the forward and backward that it is cut into. Each is a `GraphView`: it prints as a Python program, that
program runs, and it runs as modified after its nodes were changed and `recompile()` was called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch.fx import GraphModule

from smelt import events
from smelt.autograd.partition import Partition, partition
from smelt.backends.fx_bridge import to_fx
from smelt.backends.smelt import cut_for_training
from smelt.capture.driver.cache_entries import Entry
from smelt.config import Config
from smelt.errors import OptionError, SmeltError, Unsupported, nearest
from smelt.graph.free_symbols import dimensions, symbols_of_arguments
from smelt.graph.graph_callable import GraphFunction
from smelt.graph.graph_passes import copied
from smelt.graph.ir import Graph, Node
from smelt.guards.guard import Guard
from smelt.reasons import Reason
from smelt.report.artifact_text import comment
from smelt.report.inspect import reasons, records
from smelt.shapes.expr import Sym
from smelt.tracing.backward.joint import Joint
from smelt.tracing.operator_sets import SETS, OperatorSet, lowered

T = TypeVar("T")


class GraphView(GraphFunction):
    """A graph to print, walk, edit and run.

    `code` is a Python program, with the user's line above the statements that it caused; calling the view runs that
    program on one value per placeholder and returns a tuple. `nodes` have torch.fx's opcodes: placeholder, get_attr,
    call_function, call_method, output; call_module never occurs, as modules are traced through. After nodes are
    changed, `recompile()` regenerates `code`. The graph belongs to the trace: compiled code does not change with it.
    """

    @property
    def nodes(self) -> list[Node]:
        """The nodes in execution order."""
        return self.graph.nodes

    def to_fx(self) -> GraphModule:
        """The graph as a new torch.fx.GraphModule, as backends of torch.compile receive it (`backends/fx_bridge.py`).

        Raises SmeltError for a graph with symbolic sizes among its arguments.
        """
        _check_sizes(self.graph)
        return to_fx(self.graph)

    def lower(self, operators: OperatorSet) -> GraphView:
        """The graph in the operators of a set (`tracing/operator_sets.py`): "core", torch's core ATen, or "prims", torch's
        primitives and the operators that have no decomposition. It takes and returns what this graph does.

        Raises OptionError for another set, SmeltError for a torch-level graph.
        """
        if operators not in SETS:
            raise OptionError(f"lower: unknown operators {operators!r}; {nearest(str(operators), SETS)}")
        if self.graph.level != "aten":
            raise SmeltError(
                "lower: only aten-level graphs have operators of these sets: `aten`, `joint`, ..."
            )
        return GraphView(lowered(self.graph, operators))

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run `code`. Raises TypeError for a wrong number of inputs, SmeltError if the inputs do not determine all
        sizes."""
        wanted = [p.name for p in self.graph.placeholders]
        if len(inputs) != len(wanted):
            raise TypeError(f"the graph takes {len(wanted)} inputs ({', '.join(wanted)}), got {len(inputs)}")
        _check_sizes(self.graph, dimensions(self.graph.placeholders))
        return super().__call__(*inputs)

    def __str__(self) -> str:
        return self.code

    def __repr__(self) -> str:
        names = ", ".join(p.name for p in self.graph.placeholders)
        return f"<{self.graph.level}-level graph of {len(self.nodes)} nodes, inputs: {names or 'none'}>"


def _check_sizes(graph: Graph, known: Iterable[Sym] = ()) -> None:
    missing = symbols_of_arguments(graph) - frozenset(known)
    if missing:
        names = ", ".join(sorted(sym.name for sym in missing))
        raise SmeltError(
            f"no input determines the size {names}: trace with dynamic=False, or without "
            "marks, to specialize it"
        )


@dataclass(frozen=True, eq=False)
class TracedGraph:
    """One graph of a call.

    `frame`: its function, or the resume function in which the call continued after a graph break. `reason`: the graph
    break that ends it; None if the function returns. `joint`, `forward` and `backward` are None without gradients, or
    without a joint graph, for the reason `no_joint`. `partition` says what is saved, and why.
    """

    frame: str
    torch: GraphView
    aten: GraphView
    joint: GraphView | None
    forward: GraphView | None
    backward: GraphView | None
    partition: Partition | None
    reason: Reason | None
    no_joint: Reason | None
    guards: tuple[Guard, ...]
    source: str  # the compiled frame
    entry: Entry = field(repr=False)

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Inputs for the torch- and aten-level graph: uninitialized tensors with the layouts of the call's, and its
        numbers."""
        return self.entry.traced.example_inputs()

    def __str__(self) -> str:
        levels = [("torch level", self.torch), ("aten level", self.aten)]
        if self.joint is not None and self.forward is not None and self.backward is not None:
            levels += [("joint", self.joint), ("forward", self.forward), ("backward", self.backward)]
        texts = [f"# {self.frame}, {title}\n\n{view.code}" for title, view in levels]
        if self.partition is not None:
            texts.append(_commented("saved for the backward", self.partition.describe()))
        if self.no_joint is not None:
            texts.append(_commented("no joint graph", str(self.no_joint)))
        if self.reason is not None:
            texts.append(_commented("the graph ends here", str(self.reason)))
        return "\n".join(texts)


def _commented(title: str, text: str) -> str:
    return comment(f"{title}:\n{text}")


def _why_no_joint(graph: TracedGraph) -> str:
    if graph.entry.traced.needs_grad:
        return (
            "its backend has autograd follow the torch-level graph: trace with backend='smelt' or 'aot_eager'"
        )
    return "no gradients are needed: call it with tensors that require grad, and with grad mode on"


@dataclass(frozen=True, eq=False)
class Trace:
    """One call of `name`: `graphs`, in capture order, and the call's `result`.

    `reasons` says why it is not one graph: eager calls, then graph breaks. Segments without tensor computation have no
    graph here. The other attributes are those of the only graph.
    """

    name: str
    graphs: tuple[TracedGraph, ...]
    result: Any
    reasons: tuple[Reason, ...]

    def _only(self) -> TracedGraph:
        if len(self.graphs) != 1:
            why = "; ".join(map(str, self.reasons)) or "it was captured in several parts"
            raise SmeltError(f"{self.name} is {len(self.graphs)} graphs: take one of `graphs`. {why}")
        return self.graphs[0]

    @property
    def torch(self) -> GraphView:
        """The torch-level graph. Like all following attributes, raises SmeltError if there are several graphs."""
        return self._only().torch

    @property
    def aten(self) -> GraphView:
        """The aten-level graph: ATen operators, functional except for `copy_` nodes that write inputs."""
        return self._only().aten

    @property
    def joint(self) -> GraphView:
        """Forward and backward as one graph, of `primals_*` and `tangents_*`. Raises SmeltError where there is none."""
        return self._of_training("joint", lambda g: g.joint)

    @property
    def forward(self) -> GraphView:
        """The forward, which returns the results and the saved values. Raises SmeltError if there is none."""
        return self._of_training("forward", lambda g: g.forward)

    @property
    def backward(self) -> GraphView:
        """The backward, of saved values and tangents. Raises SmeltError if there is none."""
        return self._of_training("backward", lambda g: g.backward)

    @property
    def partition(self) -> Partition:
        """What is saved from forward to backward, and why. Raises SmeltError where there is no joint graph."""
        return self._of_training("partition", lambda g: g.partition)

    def _of_training(self, what: str, read: Callable[[TracedGraph], T | None]) -> T:
        graph = self._only()
        found = read(graph)
        if found is None:
            raise SmeltError(f"{self.name} has no {what} graph: {graph.no_joint or _why_no_joint(graph)}")
        return found

    @property
    def code(self) -> str:
        """The torch-level graph as a Python program."""
        return self.torch.code

    def to_fx(self) -> GraphModule:
        """The torch-level graph as a torch.fx.GraphModule."""
        return self.torch.to_fx()

    def print_tabular(self) -> None:
        """Print the torch-level graph, one row per node."""
        self.torch.print_tabular()

    def __str__(self) -> str:
        eager = [r for r in self.reasons if all(r != g.reason for g in self.graphs)]
        return "\n".join([*map(str, self.graphs), *(_commented("also", str(r)) for r in eager)])

    def __repr__(self) -> str:
        count = len(self.graphs)
        return f"<trace of {self.name}: {count} graph{'' if count == 1 else 's'}>"


def trace_call(
    compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], config: Config
) -> Trace:
    """Call `compiled`, which has not been called before, and return what was captured.

    Raises Unsupported if capture failed for a reason, SmeltError if there was nothing to capture.
    """
    collected = _Collector()
    with events.subscribed(collected):
        result = compiled(*args, **kwargs)
    found = records(compiled)
    no_joint = {id(e): record.no_joint_graph_reason for _, record in found for e in record.entries}
    captured = [e for e in collected.entries if id(e) in no_joint]
    why = reasons(compiled)
    name = found[0][0] if found else getattr(compiled, "__qualname__", type(compiled).__name__)
    graphs = tuple(
        _traced_graph(e, collected.ends.get(id(e)), no_joint[id(e)], config) for e in captured if e.computes
    )
    if not captured:
        if why:
            raise Unsupported(why[0])
        raise SmeltError(
            f"smelt.trace: nothing of {name} was captured. Generators and coroutines are captured when they are iterated, "
            "and nothing is under smelt.disable, another tracer or another capture: trace what computes, outside of these"
        )
    return Trace(name, graphs, result, why)


class _Collector:
    """A subscriber that records the entries that this thread creates, and the graph breaks that end them."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.entries: list[Entry] = []
        self.ends: dict[int, Reason] = {}  # by the id of the entry

    def __call__(self, event: events.Event) -> None:
        if threading.get_ident() != self.thread:
            return
        if event.kind == "entry-installed":
            self.entries.append(event.data["entry"])
        elif event.kind == "graph-break" and self.entries:
            self.ends[id(self.entries[-1])] = event.data["reason"]


def _traced_graph(
    entry: Entry, reason: Reason | None, no_joint: Reason | None, config: Config
) -> TracedGraph:
    traced = entry.traced
    joint, forward, backward, parts = None, None, None, None
    if traced.joint is not None:
        cut, parts = training_graphs(entry, config)
        joint, forward, backward = map(GraphView, (_copy(cut.graph), parts.forward, parts.backward))
    return TracedGraph(
        frame=entry.name,
        torch=GraphView(_copy(traced.torch_graph)),
        aten=GraphView(traced.forward_graph),
        joint=joint,
        forward=forward,
        backward=backward,
        partition=parts,
        reason=reason,
        no_joint=None if joint is not None else no_joint,
        guards=entry.facts,
        source=entry.source,
        entry=entry,
    )


def _copy(graph: Graph) -> Graph:
    """A copy of the graph; later code may still use the trace's own graphs."""
    made, _ = copied(graph, graph.constants)
    made.level = graph.level
    return made


def training_graphs(entry: Entry, config: Config) -> tuple[Joint, Partition]:
    """The joint graph of an entry and its partition: for the device of its tensors, or for no specific device if smelt
    has no code for that."""
    traced = entry.traced
    assert traced.joint is not None
    try:
        return cut_for_training(traced, config)
    except Unsupported:
        return traced.joint, partition(traced.joint, config)
