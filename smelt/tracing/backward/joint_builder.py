"""The joint graph cut out of the functional graph of forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from smelt.graph import graph_passes
from smelt.graph.ir import Graph, Node, argument_nodes
from smelt.ops.may_raise import must_run
from smelt.tracing.backward.custom_function_backward import check_linear
from smelt.tracing.backward.freed_graphs import FreedValue
from smelt.tracing.backward.joint import Joint, RecordedBackward
from smelt.tracing.backward.not_differentiable import refuse
from smelt.tracing.backward.torch_level_index import TorchLevelTensor, torch_level_tensors
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.trace_parts import TraceParts


@dataclass(frozen=True)
class JointBuilder:
    """A copy of the functional graph of forward and backward, taken before the forward's graph loses what only the
    backward needs. `late`: the nodes that the backward gave; `ends`: those that the joint graph returns."""

    recorded: RecordedBackward
    graph: Graph
    copy_of: dict[Node, Node]
    late: frozenset[Node]
    ends: list[Node | None]
    input_ids: tuple[int, ...]  # ids of the fakes that are the inputs of the trace
    places: tuple[TorchLevelTensor | None, ...]

    @classmethod
    def of(
        cls,
        parts: TraceParts,
        recorded: RecordedBackward,
        graph: Graph,
        late: frozenset[Node],
        ends: Sequence[Node | None],
    ) -> JointBuilder:
        """`graph` is functional and has no placeholders or output yet; `ends` are the nodes of `recorded.fakes`."""
        leaves = [f.aten_node for f in (*parts.inputs, *recorded.tangents) if f.aten_node is not None]
        numbers = [n.node(parts.tape.aten) for n in parts.numbers.by_expression.values()]
        rest = [n for n in graph.nodes if n.op != "placeholder"]
        whole, copy_of = graph_passes.copied([*leaves, *numbers, *rest], graph.constants)
        whole.nodes = [copy_of[n] for n in rest]
        returned = [None if n is None else copy_of[n] for n in ends]
        input_ids = tuple(map(id, parts.inputs))
        given_or_taken = (*recorded.values, *recorded.epilogue_fakes)
        places = torch_level_tensors(parts, given_or_taken)
        late = frozenset(copy_of[n] for n in late)
        return cls(recorded, whole, copy_of, late, returned, input_ids, places)

    def written(self, ends: Sequence[Node | None]) -> Iterator[tuple[FakeTensor, Node]]:
        """The inputs that autograd must see being written, and their values among `ends`, the nodes of `recorded.fakes`."""
        recorded = self.recorded
        last = ends[len(recorded.values) - len(recorded.written) : len(recorded.values)]
        yield from zip(recorded.written, last, strict=True)  # type: ignore[misc]

    def _stays(self, node: Node) -> bool:
        """Whether a node without users stays. Eager runs of the backward what gradients need, so nothing else raises."""
        return graph_passes.has_effect(node) if node in self.late else must_run(node)

    def read(self) -> set[Node]:
        """The nodes of the trace's aten graph whose copies are read by what is returned, or must run."""
        used = {n for n in self.ends if n is not None}
        for made in reversed(self.graph.nodes):
            if made in used or self._stays(made):
                used.update(argument_nodes(made))
        return {node for node, copy in self.copy_of.items() if copy in used}

    def joint(self, inputs: Sequence[FakeTensor], placeholders: Sequence[Node]) -> Joint:
        """`inputs` are those of the finished trace; `placeholders` their nodes, and then those of the numbers."""
        recorded, graph = self.recorded, self.graph
        position = {id(f): i for i, f in enumerate(inputs)}

        def place(index: int) -> int:
            return position[self.input_ids[index]]

        primals = [self.copy_of.get(n) or graph_passes.copied([n], {})[0].nodes[0] for n in placeholders]
        for i, node in enumerate(primals):
            node.name = node.target = f"primals_{i + 1}"
        tangents = [self.copy_of[t.aten_node] for t in recorded.tangents if t.aten_node is not None]
        n_values = len(recorded.values)
        ends = iter(self.ends[n_values:])
        gradients = [None if g is None else next(ends) for g in recorded.gradients]
        kept = [(g, position[id(f)]) for g, f in zip(gradients, recorded.sources) if id(f) in position]
        if recorded.with_tangent and not kept:
            raise refuse("a result requires gradients, which no input does")
        of_cuts = gradients[len(recorded.sources) :]
        returned = (*self.ends[:n_values], *(g for g, _ in kept), *of_cuts)
        specs = tuple(None if n is None else n.spec for n in returned)
        output = Node("output", "output", (returned,), {}, "output", specs)
        graph.nodes = [*primals, *tangents, *graph.nodes, output]
        graph_passes.eliminate_dead(graph, keep=self._stays)
        if not {a for node in graph for a in argument_nodes(node)} <= set(graph.nodes):
            raise refuse("the backward reads a tensor or a number that the forward does not")
        if len(tangents) > 1:
            check_linear(graph, tangents, recorded.calls, list(ends))
        graph_passes.eliminate_detach(graph, everywhere=True)
        graph_passes.eliminate_common(graph, among=self.late)
        late = self.late & set(graph.nodes)
        return Joint(
            graph=graph,
            n_primals=len(primals),
            n_outputs=n_values,
            tangents=recorded.with_tangent,
            gradients=tuple(i for _, i in kept),
            leaves=sum(f.is_leaf for f in recorded.sources if id(f) in position),
            cuts=recorded.cuts,
            backward=late,
            results=tuple(r.renumbered(place) for r in recorded.results),
            writes=tuple(
                (position[id(f)], n_values - len(recorded.written) + i)
                for i, f in enumerate(recorded.written)
            ),
            flags=recorded.flags.renumbered(place),
            conflicts=recorded.conflicts,
            torch_level_tensors=self.places,
            freed=tuple(self._placed(s, position) for s in recorded.freed),
            computed=recorded.tangent_order,
            taken=tuple(replace(t, source=t.source.renumbered(place)) for t in recorded.epilogue),
        )

    def _placed(self, freed: FreedValue, position: Mapping[int, int]) -> FreedValue:
        """`spent`, counting the inputs of the finished trace: those that no node reads are left out."""
        used = [position[self.input_ids[i]] for i in freed.inputs if self.input_ids[i] in position]
        if not used:
            raise refuse("a result requires gradients, which no input does")
        return replace(freed, inputs=tuple(used))
