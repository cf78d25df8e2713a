"""Building the finished graphs of a trace from its tape."""

from __future__ import annotations

import weakref
from collections.abc import Container, Sequence
from dataclasses import replace

from smelt.errors import NeedsFixedSize, Unsupported
from smelt.graph import graph_passes
from smelt.graph.free_symbols import symbols_in
from smelt.graph.input_writes import WRITE_INPUT
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes, map_nodes
from smelt.graph.sample_sizes import syms_of
from smelt.graph.unbacked_sizes import AS_SIZES
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
from smelt.tracing.record.traced import SizeInput, Traced, UnbackedSizes, needs_grad
from smelt.tracing.symbolic.symbolic_layouts import ITSELF, SizeSource
from smelt.tracing.symbolic.unbacked_numbers import held_leaves


def build(
    parts: TraceParts,
    outputs: Sequence[FakeTensor],
    recorded: RecordedBackward | None,
    cse: bool = True,
) -> Traced:
    """The two graphs of a trace, and the joint graph if its backward was recorded. `cse`: eliminate common
    subexpressions of the aten graph."""
    _mark_requires_grad(parts.tape, parts.inputs)
    effectful = _effectful_calls(parts.tape)
    torch_graph, aten_graph = parts.tape.torch.graph, parts.tape.aten.graph
    _fold_specialized(parts)
    joint_fakes, start = (recorded.fakes, recorded.start) if recorded else ([], None)
    by_caller = recorded.written if recorded else ()
    functional = functionalize(parts, [*outputs, *joint_fakes], start, by_caller)
    aten_graph = functional.graph
    returned, joint_returned = functional.outputs[: len(outputs)], functional.outputs[len(outputs) :]
    joint = JointBuilder.of(parts, recorded, functional, joint_returned) if recorded else None
    if joint is not None:  # the joint graph leaves these writes to its caller
        aten_graph.nodes += [_write(parts.tape, f, n) for f, n in joint.written(joint_returned)]
    _add_output(torch_graph, [fake.torch_node for fake in outputs])
    _add_output(aten_graph, returned)
    graph_passes.eliminate_dead(torch_graph, keep=lambda node: node in effectful or node.target is AS_SIZES)
    graph_passes.eliminate_dead(aten_graph, keep=must_run)
    graph_passes.eliminate_detach(aten_graph)
    if cse:
        graph_passes.eliminate_common(aten_graph)
    used = {n for graph in (torch_graph, aten_graph) for node in graph for n in argument_nodes(node)}
    read = used | joint.read() if joint else used  # numbers that only the backward reads are inputs as well
    unbacked, _ = _split_unbacked(parts, _numbers_read(parts, read))
    symbols = _used_symbols(parts, used, None if joint else aten_graph, unbacked)
    sized, as_sizes = _size_sources(parts, used, symbols), _numbers_as_sizes(parts, symbols)
    used |= {parts.inputs.aten_node(fake) for fake, _ in sized.values()}
    if recorded:
        used |= {parts.inputs.aten_node(f) for f in _gradient_inputs(parts, recorded)}
    inputs = tuple(f for f in parts.inputs if f.aten_node in used or f.torch_node in used)
    read |= {node for number in as_sizes.values() for node in number.nodes.values()}
    unbacked, numbers = _split_unbacked(parts, _numbers_read(parts, read))
    for graph, builder, node_of in (
        (torch_graph, parts.tape.torch, parts.inputs.torch_node),
        (aten_graph, parts.tape.aten, parts.inputs.aten_node),
    ):
        _set_placeholders(graph, [*map(node_of, inputs), *(n.node(builder) for n in numbers)])
    return Traced(
        torch_graph=torch_graph,
        aten_graph=aten_graph,
        inputs=inputs,
        mutated=frozenset(
            i for i, f in enumerate(inputs) if id(f) in functional.written or any(f is g for g in by_caller)
        ),
        outputs=tuple(outputs),
        needs_grad=needs_grad(parts, outputs),
        _examples=[weakref.ref(parts.inputs.real(f)) for f in inputs],  # type: ignore[arg-type]
        numbers=tuple(n for n in numbers if not n.is_unbacked),
        unbacked=unbacked,
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
        joint=joint.joint(inputs, aten_graph.placeholders) if joint else None,
        through_wrappers=recorded is not None and parts.wrapper_gradients.is_used,
        counters=Counters.of(parts, inputs, outputs),
        module_calls=tuple(parts.module_calls.ended),
        same_results=parts.torch_recorder.same_results,
        boundaries=tuple(
            f.torch_node for f in parts.autograd.hooked if f.torch_node and not parts.inputs.holds(f)
        ),
        views=Views()
        if not joint and needs_grad(parts, outputs)
        else Views.of(parts, outputs, joint=joint is not None),
    )


def _gradient_inputs(parts: TraceParts, recorded: RecordedBackward) -> list[FakeTensor]:
    """The inputs with a gradient that no graph reads: those of wrapper subclasses."""
    found = {id(f) for f, _, _ in parts.wrapper_gradients.gradient_inputs()}
    return [f for f, g in zip(recorded.sources, recorded.gradients) if g is not None and id(f) in found]


def _numbers_read(parts: TraceParts, read: Container[Node | None]) -> list[NumberInput]:
    return [n for n in parts.numbers.by_expression.values() if any(node in read for node in n.nodes.values())]


def _split_unbacked(
    parts: TraceParts, numbers: Sequence[NumberInput]
) -> tuple[UnbackedSizes | None, list[NumberInput]]:
    """The graph's unbacked sizes, and `numbers` with the unbacked ones last. Raises Unsupported for a number computed
    from both an unbacked number and one of the program."""
    symbols = parts.numbers.symbols
    if symbols is None or not symbols.unbacked.numbers:
        return None, list(numbers)
    backed = [n for n in numbers if not n.is_unbacked or _is_held(n)]
    unbacked = [n for n in numbers if n.is_unbacked and not _is_held(n)]
    expressions = [symbols.in_size_symbols(n.symbol.expression) for n in unbacked]
    if None in expressions:
        raise Unsupported(Reason(DATA_DEPENDENT, "a number of the program combined with an unbacked one"))
    facts = symbols.unbacked
    hints = {sym: number.hint for sym, number in facts.numbers.items()}
    sizes = UnbackedSizes(hints, tuple(facts.conditions), tuple(e for e in expressions if e is not None))
    return sizes, [*backed, *unbacked]


def _is_held(number: NumberInput) -> bool:
    """Whether the number is one that a tensor holds, which a step of a loop takes like those of the program."""
    expression = number.symbol.expression
    return expression.op == "leaf" and bool(held_leaves(expression))


def _used_symbols(
    parts: TraceParts, used: Container[Node | None], graph: Graph | None, unbacked: UnbackedSizes | None
) -> set[Sym]:
    """The size symbols in `graph` (None: all symbols), in the specs of used inputs, and in conditions on unbacked
    sizes."""
    if not parts.numbers.sizes:
        return set()
    symbols = set(parts.numbers.sizes) if graph is None else set(symbols_in(graph.nodes))
    for fake in parts.inputs:
        if fake.aten_node in used or fake.torch_node in used:
            symbols |= syms_of(fake.spec)
    if unbacked is not None:
        symbols = symbols.union(*(c.symbols for c in unbacked.conditions), *map(leaves, unbacked.numbers))
    return symbols


def _size_sources(
    parts: TraceParts, used: Container[Node | None], symbols: set[Sym]
) -> dict[Sym, tuple[FakeTensor, SizeSource]]:
    """For each of `symbols`, an input that has it and the source in that input: a used input if possible. Adds the other
    symbols of an input that is needed for this alone to `symbols`."""
    found: dict[Sym, tuple[FakeTensor, SizeSource]] = {}
    while missing := [sym for sym in parts.inputs.size_sources if sym in symbols and sym not in found]:
        for sym in missing:
            sources = parts.inputs.size_sources[sym]
            in_used = [s for s in sources if s[0].aten_node in used or s[0].torch_node in used]
            found[sym] = (in_used or sources)[0]
            symbols |= syms_of(found[sym][0].spec)
    return found


def _numbers_as_sizes(parts: TraceParts, used: Container[Sym]) -> dict[Sym, NumberInput]:
    """The `used` symbols that are numbers of the program. Raises NeedsFixedSize for a specialized one."""
    symbols = parts.numbers.symbols
    found: dict[Sym, NumberInput] = {}
    for sym, symbol in symbols.numbers.items() if symbols is not None else ():
        if sym in used:
            if symbol.symbols.is_specialized(symbol.expression):
                raise NeedsFixedSize(f"the program needs the value of {sym}", frozenset((sym,)))
            found[sym] = parts.numbers.input(symbol)
            for builder in (parts.tape.torch, parts.tape.aten):
                found[sym].node(builder)
    return found


def _write(tape: Tape, fake: FakeTensor, value: Node) -> Node:
    name = tape.aten.name("copy")
    return Node("call_function", WRITE_INPUT, (fake.aten_node, value), {}, name, fake.spec)


def _fold_specialized(parts: TraceParts) -> None:
    """Replace number inputs that were specialized by constants in the graphs."""
    folded = {
        node: n.symbol.value
        for n in parts.numbers.by_expression.values()
        if n.is_specialized
        for node in n.nodes.values()
    }
    if not folded:
        return
    for node in (*parts.tape.torch.graph, *parts.tape.aten.graph):
        node.args = map_nodes(node.args, lambda n: folded.get(n, n))
        node.kwargs = map_nodes(node.kwargs, lambda n: folded.get(n, n))


def _add_output(graph: Graph, outputs: Sequence[Node | None]) -> None:
    specs = tuple(n.spec if n is not None else None for n in outputs)
    graph.nodes.append(Node("output", "output", (tuple(outputs),), {}, "output", specs))


def _set_placeholders(graph: Graph, placeholders: list[Node]) -> None:
    graph.nodes[:] = placeholders + [n for n in graph.nodes if n.op != "placeholder"]


def _mark_requires_grad(tape: Tape, inputs: Inputs) -> None:
    """Set `requires_grad` in the specs of nodes; autograd decides it only after an operator ran."""
    for fake in (*inputs, *(f for entry in tape.entries for f in fakes_in(entry.out))):
        if fake.requires_grad:
            for node in (fake.aten_node, fake.torch_node):
                if node is not None and type(node.spec) is TensorSpec and not node.spec.requires_grad:
                    node.spec = replace(node.spec, requires_grad=True)


def _effectful_calls(tape: Tape) -> set[Node]:
    """Torch-level nodes that dead code elimination must not remove."""
    nodes = (entry.node for entry in tape.entries)
    effectful = {n.source for n in nodes if must_run(n) and n.source is not None}
    stateful = {n for n in tape.torch.graph if n.op != "placeholder" and graph_passes.changes_state(n)}
    return effectful | stateful | tape.effectful
