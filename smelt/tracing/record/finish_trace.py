"""From what was recorded to the finished graphs."""

from __future__ import annotations

import weakref
from collections.abc import Container, Sequence
from dataclasses import replace

import torch

from smelt.errors import NeedsFixedSize, Unsupported
from smelt.graph import graph_passes
from smelt.graph.free_symbols import symbols_in
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes, map_nodes
from smelt.graph.sample_sizes import syms_of
from smelt.ops.may_raise import must_run
from smelt.reasons import DATA_DEPENDENT, Reason
from smelt.shapes.expr import Sym, leaves
from smelt.tracing.backward.joint import RecordedBackward
from smelt.tracing.backward.joint_builder import JointBuilder
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in
from smelt.tracing.fake.returned_views import Views
from smelt.tracing.fake.version_counters import Counters
from smelt.tracing.functionalize.functionalize import functionalize
from smelt.tracing.record.number_inputs import NumberInput
from smelt.tracing.record.tape import Tape
from smelt.tracing.record.trace_inputs import Inputs
from smelt.tracing.record.trace_parts import TraceParts
from smelt.tracing.record.traced import SizeInput, SizesOfData, Traced, needs_grad
from smelt.tracing.symbolic.symbolic_layouts import ITSELF, SizeSource


def build(
    parts: TraceParts,
    outputs: Sequence[FakeTensor],
    recorded: RecordedBackward | None,
    joins: bool = True,
) -> Traced:
    """The two graphs of a trace; where its backward was recorded, the joint graph too. `joins`: equal nodes of the aten
    graph become one."""
    _note_gradients(parts.tape, parts.inputs)
    impure = _impure_calls(parts.tape)
    torch_graph, aten_graph = parts.tape.torch.graph, parts.tape.aten.graph
    _fold_pinned(parts)
    more, start = (recorded.fakes, recorded.start) if recorded else ([], None)
    given = recorded.written if recorded else ()
    aten_graph, ends, written, late = functionalize(parts, [*outputs, *more], start, given)
    whole = JointBuilder.of(parts, recorded, aten_graph, late, ends[len(outputs) :]) if recorded else None
    if whole is not None:  # the joint graph leaves these writes to its caller
        aten_graph.nodes += [_write(parts.tape, f, n) for f, n in whole.written(ends[len(outputs) :])]
    _end(torch_graph, [fake.torch_node for fake in outputs])
    _end(aten_graph, ends[: len(outputs)])
    graph_passes.eliminate_dead(torch_graph, keep=lambda node: node in impure)
    graph_passes.eliminate_dead(aten_graph, keep=must_run)
    graph_passes.eliminate_detach(aten_graph)
    if joins:
        graph_passes.eliminate_common(aten_graph)
    used = {n for graph in (torch_graph, aten_graph) for node in graph for n in argument_nodes(node)}
    read = used | whole.read() if whole else used  # numbers that only the backward reads are inputs, too
    given_numbers = [n for n in parts.numbers.by_expression.values() if not read.isdisjoint(n.nodes.values())]
    data, _ = _of_data(parts, given_numbers)
    there = _symbols_there(parts, used, None if whole else aten_graph, data)
    sized, as_sizes = _sized(parts, used, there), _numbers_as_sizes(parts, there)
    used |= {parts.inputs.aten_node(fake) for fake, _ in sized.values()}
    inputs = tuple(f for f in parts.inputs if f.aten_node in used or f.torch_node in used)
    read |= {node for number in as_sizes.values() for node in number.nodes.values()}
    given_numbers = [n for n in parts.numbers.by_expression.values() if not read.isdisjoint(n.nodes.values())]
    data, numbers = _of_data(parts, given_numbers)
    places = [n.node(parts.tape.torch) for n in numbers], [n.node(parts.tape.aten) for n in numbers]
    _begin(torch_graph, [*(parts.inputs.torch_node(f) for f in inputs), *places[0]])
    _begin(aten_graph, [*(parts.inputs.aten_node(f) for f in inputs), *places[1]])
    return Traced(
        torch_graph=torch_graph,
        aten_graph=aten_graph,
        inputs=inputs,
        mutated=frozenset(i for i, f in enumerate(inputs) if id(f) in written or any(f is g for g in given)),
        outputs=tuple(outputs),
        needs_grad=needs_grad(parts, outputs),
        _examples=[weakref.ref(parts.inputs.real(f)) for f in inputs],  # type: ignore[arg-type]
        numbers=tuple(n for n in numbers if not n.is_of_data),
        data=data,
        sizes={
            sym: SizeInput(
                next(i for i, f in enumerate(inputs) if f is fake),
                source,
                parts.inputs.hint(sym),
                parts.inputs.bounds(sym),
            )
            for sym, (fake, source) in sized.items()
        }
        | {
            sym: SizeInput(
                len(inputs) + numbers.index(number),
                SizeSource(ITSELF),
                parts.inputs.hint(sym),
                parts.inputs.bounds(sym),
            )
            for sym, number in as_sizes.items()
        },
        joint=whole.joint(inputs, aten_graph.placeholders) if whole else None,
        counters=Counters.of(parts, inputs, outputs),
        views=Views()
        if not whole and needs_grad(parts, outputs)
        else Views.of(parts, outputs, joint=whole is not None),
    )


def _of_data(
    parts: TraceParts, numbers: Sequence[NumberInput]
) -> tuple[SizesOfData | None, list[NumberInput]]:
    """What the graph has of numbers that data decide; `numbers` in their order. Raises Unsupported for a number that is
    computed from such a one and from a number of the program's."""
    symbols = parts.numbers.symbols
    if symbols is None or not symbols.known.numbers:
        return None, list(numbers)
    own = [n for n in numbers if not n.is_of_data]
    of_data = [n for n in numbers if n.is_of_data]
    expressions = [symbols.over_sizes(n.symbol.expression) for n in of_data]
    if None in expressions:
        raise Unsupported(
            Reason(DATA_DEPENDENT, "a number of the program's goes with one that the graph gives")
        )
    known = symbols.known
    hints = {sym: number.hint for sym, number in known.numbers.items()}
    made = SizesOfData(hints, tuple(known.conditions), tuple(e for e in expressions if e is not None))
    return made, [*own, *of_data]


def _symbols_there(
    parts: TraceParts, used: Container[Node | None], graph: Graph | None, data: SizesOfData | None
) -> set[Sym]:
    """The symbols of sizes in `graph` (None: all that there are), in the specs of used inputs, and in what data decide."""
    if not parts.numbers.sizes:
        return set()
    there = set(parts.numbers.sizes) if graph is None else set(symbols_in(graph.nodes))
    for fake in parts.inputs:
        if fake.aten_node in used or fake.torch_node in used:
            there |= syms_of(fake.spec)
    if data is not None:
        there = there.union(*(c.symbols for c in data.conditions), *map(leaves, data.numbers))
    return there


def _sized(
    parts: TraceParts, used: Container[Node | None], there: set[Sym]
) -> dict[Sym, tuple[FakeTensor, SizeSource]]:
    """For each symbol of `there`, an input in which it is found, and where: a used input, if one has the symbol. The other
    symbols of an input that is one for this alone come to be `there`, too."""
    found: dict[Sym, tuple[FakeTensor, SizeSource]] = {}
    while missing := [sym for sym in parts.inputs.sized if sym in there and sym not in found]:
        for sym in missing:
            places = parts.inputs.sized[sym]
            among = [place for place in places if place[0].aten_node in used or place[0].torch_node in used]
            found[sym] = (among or places)[0]
            there |= syms_of(found[sym][0].spec)
    return found


def _numbers_as_sizes(parts: TraceParts, there: Container[Sym]) -> dict[Sym, NumberInput]:
    """The symbols of `there` that are numbers of the program's. Raises NeedsFixedSize for one that must be the same at each
    call."""
    symbols = parts.numbers.symbols
    found: dict[Sym, NumberInput] = {}
    for sym, symbol in symbols.numbers.items() if symbols is not None else ():
        if sym in there:
            if symbol.symbols.is_pinned(symbol.expression):
                raise NeedsFixedSize(f"{sym} was needed as a number", frozenset((sym,)))
            found[sym] = parts.numbers.input(symbol)
            for builder in (parts.tape.torch, parts.tape.aten):
                found[sym].node(builder)
    return found


def _write(tape: Tape, fake: FakeTensor, value: Node) -> Node:
    name = tape.aten.name("copy")
    return Node("call_function", torch.ops.aten.copy_.default, (fake.aten_node, value), {}, name, fake.spec)


def _fold_pinned(parts: TraceParts) -> None:
    """Numbers that turned out to be the same at every call are constants of the graphs."""
    folded = {
        node: n.symbol.value
        for n in parts.numbers.by_expression.values()
        if n.is_pinned
        for node in n.nodes.values()
    }
    if not folded:
        return
    for node in (*parts.tape.torch.graph, *parts.tape.aten.graph):
        node.args = map_nodes(node.args, lambda n: folded.get(n, n))
        node.kwargs = map_nodes(node.kwargs, lambda n: folded.get(n, n))


def _end(graph: Graph, outputs: Sequence[Node | None]) -> None:
    specs = tuple(n.spec if n is not None else None for n in outputs)
    graph.nodes.append(Node("output", "output", (tuple(outputs),), {}, "output", specs))


def _begin(graph: Graph, placeholders: list[Node]) -> None:
    graph.nodes[:] = placeholders + [n for n in graph.nodes if n.op != "placeholder"]


def _note_gradients(tape: Tape, inputs: Inputs) -> None:
    """Nodes learn which of their tensors require grad (known only now: autograd sets it after an operator ran)."""
    for fake in (*inputs, *(f for entry in tape.entries for f in fakes_in(entry.out))):
        if fake.requires_grad:
            for node in (fake.aten_node, fake.torch_node):
                if node is not None and type(node.spec) is TensorSpec and not node.spec.requires_grad:
                    node.spec = replace(node.spec, requires_grad=True)


def _impure_calls(tape: Tape) -> set[Node]:
    """Torch-level nodes that must stay although nobody uses their result."""
    nodes = (entry.node for entry in tape.entries)
    impure = {n.source for n in nodes if must_run(n) and n.source is not None}
    stateful = {n for n in tape.torch.graph if n.op != "placeholder" and graph_passes.changes_state(n)}
    return impure | stateful | tape.kept
