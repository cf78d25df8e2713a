"""Subgraphs: the functions that higher-order operators take, as graphs (`smelt.graph.subgraphs`).

The VM runs each function once, on the tensors of the trace. The torch-level nodes that this records are cut out into a
graph, which is then traced with its own fakes, as any program is. This gives the functional aten graph and, for gradients,
the joint graph, whose backward is a subgraph too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch

from smelt._native import isinstance
from smelt.autograd.unsegmented_backward import unsegmented
from smelt.errors import Unsupported
from smelt.graph import graph_passes, torch_settings
from smelt.graph.ir import Graph, Node, NumberSpec, TensorSpec, argument_nodes, map_nodes
from smelt.graph.sample_sizes import syms_of
from smelt.graph.subgraphs import Program, draws
from smelt.graph.symbolic_strides import is_contiguous
from smelt.graph.tensor_specs import empty_like_spec, make_spec, row_major_spec
from smelt.graph.user_kernel_calls import KernelLaunch
from smelt.ops.may_raise import must_run
from smelt.ops.node_builders import CLONE, EMPTY, FULL
from smelt.reasons import DATA_DEPENDENT, Reason
from smelt.shapes.expr import Expression, Sym
from smelt.shapes.substitute import substitute
from smelt.torch_private import (
    DisableTorchDispatch,
    DisableTorchFunction,
    EnableTorchFunction,
    current_dispatch_modes,
    current_function_modes,
    pop_torch_dispatch_stack,
    pop_torch_function_stack,
    push_on_torch_dispatch_stack,
    push_on_torch_function_stack,
)
from smelt.tracing.backward.joint import Joint
from smelt.tracing.backward.not_differentiable import NotDifferentiable
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in
from smelt.tracing.record.number_inputs import NumberInput
from smelt.tracing.record.opaque_call_recorder import OpaqueCall
from smelt.tracing.record.recorded_results import fresh_fake
from smelt.tracing.record.tape import TapeEntry
from smelt.tracing.record.trace import Trace
from smelt.tracing.record.trace_parts import TraceParts
from smelt.tracing.record.traced import Traced
from smelt.tracing.symbolic.symbolic_layouts import SymbolicLayout
from smelt.tracing.symbolic.symbolic_numbers import Symbols
from smelt.tracing.symbolic.unbacked_numbers import HeldNumber, held_leaves


def refuse(what: str) -> Unsupported:
    """The error for functions that cannot be subgraphs: the graph breaks at the choice between them."""
    return Unsupported(Reason(DATA_DEPENDENT, what))


# --------------------------------------------------------------------------------------------- cutting out


@dataclass(frozen=True)
class TapePosition:
    """The lengths of the tape, its graphs and its writes before a function runs, and the settings then."""

    entries: int
    aten: int
    torch: int
    writes: int
    settings: torch_settings.TorchSettings


def mark(parts: TraceParts) -> TapePosition:
    """The current tape position, from which nodes can be cut out."""
    with parts.call.paused():
        torch.clear_autocast_cache()  # a cached cast belongs to one graph only
    settings = torch_settings.read()
    parts.torch_recorder.record_settings(settings)
    tape = parts.tape
    n_aten, n_torch, n_writes = (
        len(tape.aten.graph.nodes),
        len(tape.torch.graph.nodes),
        len(parts.writes.calls),
    )
    return TapePosition(len(tape.entries), n_aten, n_torch, n_writes, settings)


def cut_out(parts: TraceParts, start: TapePosition, end: TapePosition | None = None) -> list[Node]:
    """Remove the nodes recorded since `start` (up to `end`), except constants; return those of the torch level."""
    tape = parts.tape
    end = end or mark(parts)
    removed = tape.entries[start.entries : end.entries]
    tape.entries[start.entries : end.entries] = [e for e in removed if e.node.op == "get_attr"]
    del parts.writes.calls[start.writes : end.writes]
    _remove(tape.aten.graph.nodes, slice(start.aten, end.aten))
    return _remove(tape.torch.graph.nodes, slice(start.torch, end.torch))


def _remove(nodes: list[Node], positions: slice) -> list[Node]:
    removed = nodes[positions]
    nodes[positions] = [n for n in removed if n.op == "get_attr"]
    return [n for n in removed if n.op != "get_attr"]


@dataclass(frozen=True)
class RecordedFunction:
    """The torch-level nodes of a function, and the tensors that it returned."""

    nodes: list[Node]
    results: Sequence[FakeTensor]

    def reads(self) -> Iterator[Node]:
        """The nodes outside of the function that it reads."""
        own = set(self.nodes)
        check_nodes(self.nodes)
        for node in self.nodes:
            yield from (n for n in argument_nodes(node) if n not in own)
        yield from (
            f.torch_node for f in self.results if f.torch_node is not None and f.torch_node not in own
        )

    def graph(
        self,
        placeholders: Sequence[Node],
        written: Sequence[Node] = (),
        holders: Mapping[Node, Node] | None = None,
    ) -> Graph:
        """The function as a graph with inputs for the nodes `placeholders`. Copies take the place of those that the function
        returns, and of those that are `written`. `holders`: the placeholders that hold the numbers which it reads."""
        graph = Graph("torch")
        inputs = {p: _placeholder(f"operand_{i}", p.spec) for i, p in enumerate(placeholders)}
        copies = inputs | {p: _clone(inputs[p]) for p in written}
        read = {n for node in self.nodes for n in argument_nodes(node)}
        for number, holder in (holders or {}).items():
            if number in read:
                copies[number] = Node("call_method", "item", (inputs[holder],), {}, number.name, number.spec)
        for node in self.nodes:
            args, kwargs = (map_nodes(a, copies.__getitem__) for a in (node.args, node.kwargs))
            copies[node] = Node(node.op, node.target, args, kwargs, node.name, node.spec, node.line)
        results = [f.torch_node for f in self.results if f.torch_node is not None]
        copied = [
            _clone(copies[n]) if n in inputs or n in results[:i] else None for i, n in enumerate(results)
        ]
        graph.nodes = [
            *inputs.values(),
            *(n for n in copies.values() if n.op != "placeholder"),
            *filter(None, copied),
        ]
        _end(graph, [copy or copies[n] for n, copy in zip(results, copied)])
        graph_passes.eliminate_dead(graph, keep=lambda n: n.op != "get_attr")
        return graph


def check_nodes(nodes: Iterable[Node]) -> None:
    """Raise Unsupported for nodes that a function of a higher-order operator may not have."""
    for node in nodes:
        _check(node)
        if str(getattr(node.target, "__name__", node.target)) in _CHANGES_METADATA:
            raise refuse("one changes the sizes or strides of a tensor in place")


_CHANGES_METADATA = frozenset(
    (
        "t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_", "resize_", "resize_as_",
        "set_", "detach_", "rename_", "sparse_resize_", "resize_as_sparse_",
    )
)  # fmt: skip


def _check(node: Node) -> None:
    if type(node.target) in (OpaqueCall, KernelLaunch) or node.target is torch.autograd.grad:
        raise refuse("a subgraph that calls autograd")
    if graph_passes.changes_state(node) and node.target not in torch_settings.CHANGES:
        raise refuse("one changes the state of autograd")


def _clone(node: Node) -> Node:
    return Node("call_method", "clone", (node,), {}, f"copy_of_{node.name}", node.spec)


def _placeholder(name: str, spec: object) -> Node:
    return Node("placeholder", name, (), {}, name, spec)


def _end(graph: Graph, results: Sequence[Node]) -> None:
    specs = tuple(n.spec for n in results)
    graph.nodes.append(Node("output", "output", (tuple(results),), {}, "output", specs))


def proxy_like(parts: TraceParts, fake: FakeTensor, requires_grad: bool = False) -> FakeTensor:
    """A proxy with the layout of `fake` and its own storage, which no node computes."""
    with parts.call.paused(), DisableTorchDispatch():
        proxy = fresh_fake(parts.inputs, with_own_storage(fake.spec))
        if requires_grad:
            proxy.requires_grad_()
    node = proxy.aten_node = _placeholder("carried", proxy.spec)
    proxy.torch_node = _placeholder("carried", proxy.spec)
    parts.tape.entries.append(TapeEntry(node, proxy))  # until its function is cut out
    return proxy


@dataclass(frozen=True)
class Operands:
    """The tensors and the symbolic numbers that functions read, and the nodes of both at the torch level."""

    tensors: Sequence[FakeTensor]
    numbers: Sequence[object]
    nodes: Sequence[Node]


def operands(parts: TraceParts, functions: Sequence[RecordedFunction], own: Sequence[Node]) -> Operands:
    """What the functions read, except the tensors of the nodes `own`."""
    fakes = {f.torch_node: f for entry in parts.tape.entries for f in fakes_in(entry.out)}
    fakes.update((f.torch_node, f) for f in parts.inputs)
    read = dict.fromkeys(n for function in functions for n in function.reads() if n not in own)
    inputs = {n.nodes.get("torch"): n for n in parts.numbers.by_expression.values()}
    numbers = {node: inputs[node].symbol.number() for node in read if isinstance(node.spec, NumberSpec)}
    found = {node: fakes.get(node) for node in read if node not in numbers}
    tensors = [f for f in found.values() if f is not None]
    if len(tensors) < len(found):
        raise refuse("a subgraph that reads an object of the graph that is no tensor")
    if any(f.subclass is not None or f.device.type != "cpu" for f in tensors):
        raise refuse("a subgraph on tensors that are not plain CPU tensors")
    return Operands(tensors, list(numbers.values()), [*found, *numbers])


# -------------------------------------------------------------------------------------- tracing the subgraphs

Record = Callable[[TraceParts, Program, Sequence[object]], Sequence[FakeTensor]]


@dataclass(frozen=True)
class TracedSubgraph:
    """A traced subgraph. `fakes`: its operands that are tensors; `numbers`: those that the graphs take after them. The
    tensors at `held` hold the last of these."""

    traced: Traced
    fakes: list[FakeTensor]
    numbers: list[NumberInput]
    held: tuple[int, ...]


def trace(
    parts: TraceParts,
    graph: Graph,
    specs: Sequence[TensorSpec],
    numbers: Sequence[object],
    sources: Sequence[int],
    record: Record,
    may_draw: bool,
) -> TracedSubgraph:
    """Trace `graph`, of the torch level, on tensors with these specs and on numbers, with the symbols of `parts`. `sources`:
    the indices of the tensors that require gradients; `record`: records a nested program; `may_draw`: it may draw random
    numbers. Raises Unsupported for a graph that cannot be a subgraph."""
    symbols = parts.numbers.symbols
    with parts.call.paused(), _without_modes():
        inner = Trace(parts.call.where)
        inner.autograd.wants_joint = bool(sources)
        inner.numbers.symbols = symbols
        try:
            with EnableTorchFunction(), inner:
                fakes = [_operand(inner, spec, i in sources) for i, spec in enumerate(specs)]
                results = _replay(inner, graph, [*fakes, *numbers], record)
                before = {f.storage_key for f in fakes}
                inner.record_backward(results)
                traced = inner.finish(results)
        except NotDifferentiable as error:
            raise Unsupported(error.reason) from error
        finally:
            inner.release_inputs()
    storages = [f.storage_key for f in results]
    if not may_draw and any(map(draws, traced.aten_graph)):
        raise refuse("one draws random numbers")
    if traced.mutated or len(set(storages)) < len(storages) or before & {*storages}:
        raise refuse("a subgraph that returns or writes its operands")
    traced.release_examples()
    inputs: Iterable[NumberInput] = inner.numbers.by_expression.values()
    by_node = {n.nodes.get("aten"): n for n in inputs}
    taken = [by_node[p] for p in traced.aten_graph.placeholders[len(traced.inputs) :]]
    held = tuple(i for n in taken if (i := _holder(n, fakes)) is not None)
    return TracedSubgraph(traced, fakes, taken, held)


def _holder(number: NumberInput, fakes: Sequence[FakeTensor]) -> int | None:
    """The operand that holds a number among the inputs of a graph; None for a number from outside."""
    expression = number.symbol.expression
    held = [i for key in held_leaves(expression) for i, f in enumerate(fakes) if f is key.carrier]
    if held and expression.op != "leaf":
        raise refuse("a subgraph that computes with a number")
    return held[0] if held else None


def _number(inner: Trace, holder: FakeTensor, kind: type) -> object:
    """The number that an operand holds, as an input of the subgraph."""
    held = HeldNumber(Sym("number"), "a number that a loop computes", 1, holder)
    return cast(Symbols, inner.numbers.symbols).leaf(held, kind(1))


def _operand(inner: Trace, spec: TensorSpec, requires_grad: bool) -> FakeTensor:
    """A new input of a trace with this layout, in which sizes may be symbols."""
    symbols, layout = inner.numbers.symbols, None
    with DisableTorchDispatch(), DisableTorchFunction():
        if symbols is not None and syms_of(spec):
            shape, stride, _ = symbols.layout(spec)
            layout = SymbolicLayout(tuple(shape), tuple(stride), {})
            spec = substitute(spec, symbols.hints)
        real = empty_like_spec(spec, torch.device("cpu")).requires_grad_(requires_grad)
    return inner.fake(real, layout=layout)


def _replay(inner: Trace, graph: Graph, operands: Sequence[object], record: Record) -> list[FakeTensor]:
    values: dict[Node, object] = dict(zip(graph.placeholders, operands))
    for node in graph.nodes[len(operands) : -1]:
        args, kwargs = (map_nodes(a, values.__getitem__) for a in (node.args, node.kwargs))
        if isinstance(node.target, Program):
            values[node] = record(inner, node.target, args)
        elif node.target == "item":
            values[node] = _number(inner, cast(FakeTensor, args[0]), node.spec.type)
        elif node.op == "call_method":
            values[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
        else:
            values[node] = node.target(*args, **kwargs)
    return [cast(FakeTensor, values[n]) for n in graph.output.args[0]]


@contextmanager
def _without_modes() -> Iterator[None]:
    """Disable the modes of the enclosing trace."""
    dispatch, function = current_dispatch_modes(), current_function_modes()
    for _ in dispatch:
        pop_torch_dispatch_stack(None)
    for _ in function:
        pop_torch_function_stack()
    try:
        yield
    finally:
        for mode in dispatch:
            push_on_torch_dispatch_stack(mode)
        for mode in function:
            push_on_torch_function_stack(mode)


# ----------------------------------------------------------------------------------------------- aten graphs


Numbers = Mapping[Expression, NumberInput]


def numbers_read(subgraphs: Iterable[TracedSubgraph]) -> Numbers:
    """The numbers from outside that the subgraphs take."""
    found = (n for subgraph in subgraphs for n in subgraph.numbers if _holder(n, subgraph.fakes) is None)
    return {n.symbol.expression: n for n in found}


def _number_inputs(subgraph: TracedSubgraph, inputs: Sequence[Node], numbers: Numbers) -> list[Node]:
    """The placeholders of `numbers`, then of those that tensors hold. `inputs`: those of the tensors and numbers that the
    subgraph reads."""
    own = inputs[len(subgraph.traced.inputs) :]
    known = {n.symbol.expression: node for n, node in zip(subgraph.numbers, own)}
    held = (n for n in subgraph.numbers if _holder(n, subgraph.fakes) is not None)
    return [
        known.get(n.symbol.expression) or _placeholder(f"unused_number_{i}", NumberSpec(type(n.symbol.value)))
        for i, n in enumerate((*numbers.values(), *held))
    ]


def _set_inputs(
    graph: Graph, known: dict[int, Node], fakes: Sequence[FakeTensor], more: Sequence[Node] = ()
) -> None:
    """Replace the placeholders of `graph` by those of all operands and `more`."""
    inputs = [known.get(id(f)) or _placeholder(f"unused_{i}", f.spec) for i, f in enumerate(fakes)]
    graph.nodes[:] = [*inputs, *more, *(n for n in graph.nodes if n.op != "placeholder")]


Flag = bool | Node  # whether something holds: known, or as a node of the joint graph
FLAG = make_spec((), (), torch.bool, torch.device("cpu"))


@dataclass(frozen=True)
class Gradients:
    """The aten graph of the row-major gradients of operands. Its inputs are all tensors among the operands, the tangents of
    the results that can have one, with the layouts of these, what the forward has kept, and `n_numbers` numbers. It
    recomputes the rest of the forward, as torch's own operators do. `defined`: for each operand whether it has a gradient;
    `kept`: nodes of the joint graph."""

    graph: Graph
    defined: list[Flag]
    kept: list[Node]
    n_numbers: int

    def pad(self, before: Sequence[TensorSpec], after: Sequence[TensorSpec]) -> None:
        """Add unused inputs before and after those for what was kept."""
        nodes, n = self.graph.nodes, len(self.graph.placeholders) - self.n_numbers
        unused = [_placeholder(f"kept_elsewhere_{i}", spec) for i, spec in enumerate((*before, *after))]
        nodes[n:n] = unused[len(before) :]
        at = n - len(self.kept)
        nodes[at:at] = unused[: len(before)]


def gradients(
    subgraph: TracedSubgraph,
    results: Sequence[tuple[TensorSpec, bool]],
    sources: Sequence[int],
    numbers: Numbers,
    zeros: bool,
    is_costly: Callable[[Node], bool],
) -> Gradients:
    """The gradients of the operands `sources`, zeros for those that have none. `results`: each with whether it can have a
    tangent. Unless `zeros`, keeps the results of costly operators, and raises Unsupported if the tangents decide which
    operands have gradients."""
    joint = subgraph.traced.joint
    graph = Graph("aten")
    inputs: Sequence[Node] = ()
    primals: dict[int, Node] = {}
    tangents: dict[int, Node] = {}
    found: dict[int, Node | None] = {}
    flags: dict[int, Node | None] = {}
    if joint is not None:
        _check_joint(joint)
        graph = _only_gradients(joint)
        inputs, fakes = graph.placeholders, subgraph.traced.inputs
        primals = dict(zip(map(id, fakes), inputs))
        tangents = dict(zip(joint.tangents, inputs[joint.n_primals :]))
        found = {id(fakes[i]): n for i, n in zip(joint.gradients, graph.output.args[0])}
        known = joint.graph.output.args[0][joint.n_outputs :]
        conditions = zip(joint.gradients, joint.conditions)
        flags = {id(fakes[i]): known[flag] for i, flag in conditions if flag is not None}
        graph.nodes.pop()
    tangent_inputs = []
    for i, (spec, is_differentiable) in enumerate(results):
        if is_differentiable:
            index = joint.results[i].index if joint is not None else -1
            tangent_inputs.append(tangents.get(index) or _placeholder(f"unused_tangent_{i}", spec))
    forward = [n for n in joint.graph if n not in joint.backward] if joint is not None else []
    costly = {n.name for n in forward if draws(n) or (not zeros and n.op == "call_function" and is_costly(n))}
    kept = _without(graph, costly)
    number_inputs = _number_inputs(subgraph, inputs, numbers)
    more = [*tangent_inputs, *kept.values(), *number_inputs]
    _set_inputs(graph, primals, subgraph.fakes, more)
    operands = [subgraph.fakes[i] for i in sources]
    if not zeros:
        _check_reached(graph, tangent_inputs, [found.get(id(f)) for f in operands])
    elif flags:
        raise refuse("a subgraph with gradients that one branch gives")
    _end(graph, [_gradient(graph, i, f, found.get(id(f))) for i, f in zip(sources, operands)])
    graph_passes.eliminate_dead(graph)
    defined = [flags.get(id(f)) or found.get(id(f)) is not None for f in operands]
    return Gradients(graph, defined, [n for n in forward if n.name in kept], len(number_inputs))


def _without(graph: Graph, costly: Container[str]) -> dict[str, Node]:
    """Replace the results of these nodes that others read by placeholders; return these, by the names of the results."""
    sources = {node for node in graph.nodes if node.name in costly}
    results = [
        n for n in graph.nodes if n in sources or (n.target is operator.getitem and n.args[0] in sources)
    ]
    removed = {n for n in results if draws(n) or not isinstance(n.spec, TensorSpec) or _is_kept(n)}
    removed |= {n for n in results if n.target is operator.getitem and n.args[0] in removed}
    read = {a for n in graph.nodes if n not in removed for a in argument_nodes(n)}
    found = {n: _placeholder(f"{n.name}_kept", n.spec) for n in results if n in removed and n in read}
    if any(not _is_kept(n) for n in found):
        raise refuse("a result of one that is not row-major")
    graph.nodes[:] = [n for n in graph.nodes if n not in removed]
    for node in graph.nodes:
        node.args, node.kwargs = (map_nodes(a, lambda n: found.get(n, n)) for a in (node.args, node.kwargs))
    return {n.name: placeholder for n, placeholder in found.items()}


def _is_kept(node: Node) -> bool:
    """Whether a result may be kept: as a row-major tensor, which the other branch creates uninitialized."""
    spec = node.spec
    return isinstance(spec, TensorSpec) and is_contiguous(spec.shape, spec.stride)


def _check_reached(graph: Graph, tangents: Sequence[Node], found: Sequence[Node | None]) -> None:
    """Raise Unsupported unless each gradient that there is depends on all tangents."""
    reached: dict[Node, frozenset[Node]] = {node: frozenset((node,)) for node in tangents}
    for node in graph.nodes:
        reached[node] = reached.get(node, frozenset()).union(*(reached[n] for n in argument_nodes(node)))
    if not any(found):
        raise refuse("only one result requires gradients")
    if any(n is not None and len(reached[n]) < len(tangents) for n in found):
        raise refuse("branches with results that have gradients of different tensors")


def forward_graph(
    subgraph: TracedSubgraph, numbers: Numbers, more: Sequence[Flag | TensorSpec] = ()
) -> Graph:
    """The aten graph of the forward, with an input for each tensor among the operands, each of the numbers, and each that a
    tensor holds. It also returns `more`, uninitialized memory for a spec."""
    traced, joint = subgraph.traced, subgraph.traced.joint
    whole = traced.aten_graph if joint is None else joint.graph
    nodes = [n for n in whole.nodes[:-1] if joint is None or n not in joint.backward]
    graph, copy_of = graph_passes.copied(nodes, whole.constants)
    outputs = whole.output.args[0]
    indices = range(len(outputs)) if joint is None else [result.index for result in joint.results]
    returned = [copy_of[outputs[i]] for i in indices]
    inputs = graph.placeholders
    primals = dict(zip(map(id, traced.inputs), inputs))
    _set_inputs(graph, primals, subgraph.fakes, _number_inputs(subgraph, inputs, numbers))
    for i, value in enumerate(more):
        if isinstance(value, Node):
            returned.append(copy_of[value])
            continue
        spec = FLAG if isinstance(value, bool) else with_own_storage(value)
        options = {"dtype": spec.dtype, "device": spec.device}
        args: list[object]
        if isinstance(value, bool):
            target, args = FULL, [[], value]
        else:
            target, args = EMPTY, [list(spec.shape), list(spec.stride)]
        returned.append(Node("call_function", target, tuple(args), options, f"constant_{i}", spec))
        graph.nodes.append(returned[-1])
    _end(graph, returned)
    graph_passes.eliminate_dead(graph, keep=must_run)
    return graph


def _check_joint(joint: Joint) -> None:
    plain = all(r.kind == "value" and not r.steps and not r.detached for r in joint.results)
    if not plain or joint.writes or joint.freed or joint.flags.enabled:
        raise refuse("one changes the state of autograd")


def _only_gradients(joint: Joint) -> Graph:
    graph, _ = graph_passes.copied(joint.graph.nodes, joint.graph.constants)
    returned = graph.output.args[0][joint.n_forward :]
    specs = tuple(None if n is None else n.spec for n in returned)
    graph.nodes[-1] = Node("output", "output", (returned,), {}, "output", specs)
    graph_passes.eliminate_dead(graph)
    with _without_modes():
        return unsegmented(graph, joint) if joint.cuts else graph


def _gradient(graph: Graph, i: int, fake: FakeTensor, found: Node | None) -> Node:
    """The gradient of an operand, row-major; zeros where there is none."""
    spec = row_major(fake.spec)
    if found is not None and found.spec.stride == spec.stride and found.op != "placeholder":
        return found
    name = f"gradient_of_{i}"
    if found is None:
        options = {"dtype": spec.dtype, "device": spec.device}
        node = Node("call_function", FULL, (list(spec.shape), 0), options, name, spec)
    else:
        options = {"memory_format": torch.contiguous_format}
        node = Node("call_function", CLONE, (found,), options, name, spec)
    graph.nodes.append(node)
    return node


def with_own_storage(spec: TensorSpec) -> TensorSpec:
    """The same shape and strides, with its own storage."""
    return make_spec(spec.shape, spec.stride, spec.dtype, spec.device)


def row_major(spec: TensorSpec) -> TensorSpec:
    """The same shape in row-major order, with its own storage."""
    return row_major_spec(spec.shape, spec.dtype, spec.device)
