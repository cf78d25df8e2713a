"""Extraction of the joint graph from the functional graph of forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from smelt.graph import graph_passes
from smelt.graph.ir import Graph, Node, argument_nodes
from smelt.ops.may_raise import must_run
from smelt.tracing.backward.conditional_gradients import resolve
from smelt.tracing.backward.custom_function_backward import check_all_linear, check_linear
from smelt.tracing.backward.freed_graphs import FreedValue
from smelt.tracing.backward.joint import Joint, RecordedBackward
from smelt.tracing.backward.not_differentiable import refuse
from smelt.tracing.backward.torch_level_index import TorchLevelTensor, torch_level_tensors
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.functionalize.functionalize import Functional
from smelt.tracing.record.trace_parts import TraceParts


@dataclass(frozen=True)
class JointBuilder:
    """A copy of the functional graph of forward and backward, taken before the forward's graph loses what only the
    backward needs. `backward`: the nodes recorded by the backward; `returned`: the nodes that the joint graph
    returns."""

    recorded: RecordedBackward
    graph: Graph
    copy_of: dict[Node, Node]
    backward: frozenset[Node]
    returned: list[Node | None]
    input_ids: tuple[int, ...]  # ids of the fakes that are the inputs of the trace
    torch_tensors: tuple[TorchLevelTensor | None, ...]
    must_be_linear: bool  # user code of wrapper subclasses recorded the backward of several results

    @classmethod
    def of(
        cls,
        parts: TraceParts,
        recorded: RecordedBackward,
        functional: Functional,
        returned: Sequence[Node | None],
    ) -> JointBuilder:
        """The builder for a functional graph without placeholders or output; `returned`: the nodes of `recorded.fakes`."""
        graph = functional.graph
        candidates = (*recorded.values, *recorded.epilogue_fakes)
        leaves = [f.aten_node for f in (*parts.inputs, *recorded.tangents) if f.aten_node is not None]
        numbers = [n.node(parts.tape.aten) for n in parts.numbers.by_expression.values()]
        body = [n for n in graph.nodes if n.op != "placeholder"]
        copy, copy_of = graph_passes.copied([*leaves, *numbers, *body], graph.constants)
        copy.nodes = [copy_of[n] for n in body]
        return cls(
            recorded,
            copy,
            copy_of,
            backward=frozenset(copy_of[n] for n in functional.backward),
            returned=[None if n is None else copy_of[n] for n in returned],
            input_ids=tuple(map(id, parts.inputs)),
            torch_tensors=()
            if parts.wrapper_gradients.is_used  # the torch-level graph has other derivatives
            else torch_level_tensors(parts, candidates),
            must_be_linear=parts.wrapper_gradients.count_results(
                [candidates[i] for i in recorded.with_tangent]
            )
            > 1,
        )

    def written(self, returned: Sequence[Node | None]) -> Iterator[tuple[FakeTensor, Node]]:
        """The inputs whose writes autograd must see, and their values among `returned`, the nodes of `recorded.fakes`."""
        recorded = self.recorded
        last = returned[len(recorded.values) - len(recorded.written) : len(recorded.values)]
        yield from zip(recorded.written, last, strict=True)  # type: ignore[misc]

    def _stays(self, node: Node) -> bool:
        """Whether a node without users stays. Eager runs only the part of the backward that gradients need, so unused
        nodes of torch's formulas must not raise."""
        return graph_passes.stays_in_backward(node) if node in self.backward else must_run(node)

    def read(self) -> set[Node]:
        """The nodes of the trace's aten graph whose copies are used by returned nodes or must run."""
        used = {n for n in self.returned if n is not None}
        for node in reversed(self.graph.nodes):
            if node in used or self._stays(node):
                used.update(argument_nodes(node))
        return {node for node, copy in self.copy_of.items() if copy in used}

    def joint(self, inputs: Sequence[FakeTensor], placeholders: Sequence[Node]) -> Joint:
        """The joint graph. `inputs` are those of the finished trace; `placeholders` their nodes, then those of the
        numbers."""
        recorded, graph = self.recorded, self.graph
        position_of = {id(f): i for i, f in enumerate(inputs)}

        def position(index: int) -> int:
            return position_of[self.input_ids[index]]

        primals = [self.copy_of.get(n) or graph_passes.copied([n], {})[0].nodes[0] for n in placeholders]
        for i, node in enumerate(primals):
            node.name = node.target = f"primals_{i + 1}"
        tangents = [self.copy_of[t.aten_node] for t in recorded.tangents if t.aten_node is not None]
        n_values = len(recorded.values)
        nodes = iter(self.returned[n_values:])
        found = resolve(graph, tangents, [None if g is None else next(nodes) for g in recorded.gradients])
        of_inputs = [
            (g, condition, position_of[id(f)])
            for g, condition, f in zip(found.gradients, found.conditions, recorded.sources)
            if id(f) in position_of
        ]
        if recorded.with_tangent and not of_inputs:
            raise refuse("a result requires gradients, which no input does")
        n_sources = len(recorded.sources)
        flags = list(dict.fromkeys(c for _, c, _ in of_inputs if c is not None))
        if any(found.conditions[n_sources:]):
            raise refuse("a gradient of a result, which one branch gives")
        of_cuts = found.gradients[n_sources:]
        returned = (*self.returned[:n_values], *flags, *(g for g, _, _ in of_inputs), *of_cuts)
        specs = tuple(None if n is None else n.spec for n in returned)
        output = Node("output", "output", (returned,), {}, "output", specs)
        graph.nodes = [*primals, *tangents, *graph.nodes, output]
        backward = self.backward | found.masks
        graph_passes.eliminate_dead(graph, keep=self._stays)
        if not {a for node in graph for a in argument_nodes(node)} <= set(graph.nodes):
            raise refuse("the backward reads a tensor or a number that the forward does not")
        if len(tangents) > 1:
            check_linear(graph, tangents, recorded.calls, list(nodes))
        if self.must_be_linear:
            check_all_linear(graph, tangents, backward)
        graph_passes.eliminate_detach(graph, everywhere=True)
        graph_passes.eliminate_common(graph, among=backward)
        return Joint(
            graph=graph,
            n_primals=len(primals),
            n_outputs=n_values,
            tangents=recorded.with_tangent,
            gradients=tuple(i for _, _, i in of_inputs),
            conditions=tuple(None if c is None else flags.index(c) for _, c, _ in of_inputs if flags),
            leaves=sum(f.is_leaf for f in recorded.sources if id(f) in position_of),
            saved_primals=frozenset(
                position_of[self.input_ids[i]]
                for i in recorded.saved_inputs
                if self.input_ids[i] in position_of
            ),
            saved_outputs=recorded.saved_outputs,
            cuts=recorded.cuts,
            backward=backward & set(graph.nodes),
            results=tuple(r.renumbered(position) for r in recorded.results),
            writes=tuple(
                (position_of[id(f)], n_values - len(recorded.written) + i)
                for i, f in enumerate(recorded.written)
            ),
            flags=recorded.flags.renumbered(position),
            conflicts=recorded.conflicts,
            torch_level_tensors=self.torch_tensors,
            freed=tuple(self._renumbered(s, position_of) for s in recorded.freed),
            tangent_order=recorded.tangent_order,
            epilogue=tuple(replace(t, source=t.source.renumbered(position)) for t in recorded.epilogue),
        )

    def _renumbered(self, freed: FreedValue, position_of: Mapping[int, int]) -> FreedValue:
        """`freed` with positions among the inputs of the finished trace; unused inputs are omitted."""
        used = [position_of[self.input_ids[i]] for i in freed.inputs if self.input_ids[i] in position_of]
        if not used:
            raise refuse("a result requires gradients, which no input does")
        return replace(freed, inputs=tuple(used))
