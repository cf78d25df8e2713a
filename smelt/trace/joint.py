"""The joint graph: forward and backward of one trace as one functional aten graph.

Autograd has followed the fakes while the user's code ran. When the code has ended, `record` asks it for the gradients of
what the function returns, with fakes for the tangents: the same dispatch mode that recorded the forward records the
backward behind it. Functionalization then takes both at once, and `Whole` cuts the result out as a `Joint`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import GradientEdge, _engine_run_backward
from torch.utils.hooks import RemovableHandle

from smelt.errors import Unsupported
from smelt.graph import passes
from smelt.graph.ir import Graph, Line, Node, argument_nodes
from smelt.graph.specs import empty_like_spec
from smelt.trace.fake import FakeTensor, fakes_in, wrap
from smelt.trace.flags import NO_FLAGS, Flags, placed_flags, switched_on
from smelt.trace.functions import UserBackward, check_linear
from smelt.trace.outputs import NotDifferentiable, Result, check_passed_by, placed, read_by, refuse, results

if TYPE_CHECKING:
    from smelt.trace.record import Trace


@dataclass(frozen=True)
class Joint:
    """`graph` takes `primals_1..` (the tensors and numbers of the trace) and `tangents_1..`, and gives the forward's
    outputs, then the gradients (None where there is none): of primals, then of the `cuts`.

    The tangent of a cut stands for all that flows into it, from the other outputs too. The graph is functional but for
    `copy_` nodes that write primals without autograd; those belong to the forward.
    """

    graph: Graph
    n_primals: int
    n_outputs: int
    tangents: tuple[int, ...]  # tangents[k]: the forward output that tangent k belongs to
    gradients: tuple[int, ...]  # gradients[k]: the primal that gradient k belongs to
    backward: frozenset[Node]  # recorded by the backward; all others must run in the forward
    eager_saved: frozenset[Node]  # forward nodes (primals included) that eager's backward reads
    results: tuple[Result, ...] = ()  # how the outputs of the trace are had from the graph's
    cuts: tuple[int, ...] = ()  # the outputs that others are computed from, in the order of their computation
    # (primal, forward output): where autograd must see the primal being written
    writes: tuple[tuple[int, int], ...] = ()
    flags: Flags = NO_FLAGS  # what else autograd is told of primals


@dataclass(frozen=True)
class Recorded:
    """What `record` leaves for `Whole`. `start`: how many records, and aten nodes, the forward has."""

    values: tuple[FakeTensor, ...]
    results: tuple[Result, ...]  # of kind input: `index` counts `Trace.inputs`
    written: tuple[FakeTensor, ...]  # inputs that autograd must see being written: the last of `values`
    tangents: tuple[FakeTensor, ...]
    with_tangent: tuple[int, ...]  # which values
    sources: tuple[FakeTensor, ...]  # the inputs that have a gradient
    gradients: tuple[FakeTensor | None, ...]  # of the sources, then of the cuts
    cuts: tuple[int, ...]  # which values other values are computed from
    start: tuple[int, int]
    flags: Flags  # counts `Trace.inputs`
    calls: tuple[UserBackward, ...] = ()

    @property
    def fakes(self) -> list[FakeTensor]:
        """All that the joint graph returns, then what the calls of the user's give."""
        given = (g for call in self.calls for g in call.gives)
        return [*self.values, *(g for g in self.gradients if g is not None), *given]


def record(trace: Trace, outputs: Sequence[FakeTensor]) -> Recorded:
    """Records the backward. The trace must still be entered. Raises NotDifferentiable."""
    try:
        return _record(trace, outputs)
    except Unsupported:
        raise
    except RuntimeError as error:  # what autograd says of a view on which it has given up
        raise refuse(str(error)) from error


_ERRORS = (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError)


def _record(trace: Trace, outputs: Sequence[FakeTensor]) -> Recorded:
    _check(trace, outputs)
    flags = Flags.of(trace)
    written = tuple(f for f in trace.inputs if f.grad_fn is not trace.first_history.get(id(f)))
    values, found = results(trace, outputs)
    check_passed_by(trace, outputs, values, written)
    values = (*values, *written)
    with_tangent = tuple(i for i, v in enumerate(values) if v.requires_grad)
    sources = tuple(f for i, f in enumerate(trace.inputs) if id(f) in trace.first_history or i in flags.on)
    tangents = tuple(_tangent(values[i]) for i in with_tangent)
    for k, tangent in enumerate(tangents):
        trace.add_tangent(tangent, f"tangents_{k + 1}")
    start = len(trace.records), len(trace.aten.graph.nodes)
    gradients: Sequence[Any] = [None] * len(sources)
    cuts = _cuts(values, with_tangent)
    through: dict[int, Any] = dict.fromkeys(cuts)
    errors = _ERRORS if trace.custom is None else (Exception,)  # a backward of the user's may raise any
    if tangents and sources:
        with (
            trace.recording_backward(_line_of_nodes(trace)),
            _cut_at(values, with_tangent, tangents, through),
            switched_on(sources),
        ):
            try:
                # What `torch.autograd.grad` calls; itself it imports sympy, for sizes that are symbols.
                gradients = trace.run_backward(
                    functools.partial(
                        _engine_run_backward,
                        tuple(values[i] for i in with_tangent if i not in through),
                        tuple(t for i, t in zip(with_tangent, tangents) if i not in through),
                        keep_graph=False,
                        create_graph=False,
                        inputs=tuple(_edge(trace, f) for f in sources),
                        allow_unreachable=True,
                        accumulate_grad=False,
                    )
                )
            except Unsupported as error:
                raise NotDifferentiable(error.reason) from error
            except errors as error:
                raise refuse(f"its backward raises {type(error).__name__}: {error}") from error
    gradients = [*gradients, *through.values()]
    if any(g is not None and type(g) is not FakeTensor for g in gradients):
        raise refuse("a gradient is not a tensor of the trace")
    calls = () if trace.custom is None else tuple(trace.custom.called)
    return Recorded(
        values, found, written, tangents, with_tangent, sources, tuple(gradients), cuts, start, flags, calls
    )


def _cuts(values: Sequence[FakeTensor], with_tangent: Sequence[int]) -> tuple[int, ...]:
    """The values that others are computed from. Autograd must know them as such: someone may ask for their gradients, put
    hooks on them, or change what flows through them. In the order of their computation."""
    place = {(values[i].grad_fn, values[i].output_nr): i for i in with_tangent}
    found = [place[p] for p in read_by({fn for fn, _ in place}) & place.keys()]
    # autograd numbers its nodes as they are made
    return tuple(sorted(found, key=lambda i: values[i].grad_fn._sequence_nr()))  # type: ignore[union-attr]


@contextmanager
def _cut_at(
    values: Sequence[FakeTensor],
    with_tangent: Sequence[int],
    tangents: Sequence[FakeTensor],
    through: dict[int, Any],
) -> Iterator[None]:
    """While the backward is recorded, what flows into the values that `through` has as keys is put there, and their
    tangents, which will hold all of it, flow on instead."""
    handles = []
    number = RemovableHandle.next_id  # programs can see the numbers of their own hooks
    for value, tangent in zip(with_tangent, tangents):
        if value in through:

            def hook(gradient: Any, value: int = value, tangent: FakeTensor = tangent) -> FakeTensor:
                through[value] = gradient
                return tangent

            handles.append(values[value].register_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        RemovableHandle.next_id = number


def _check(trace: Trace, outputs: Sequence[FakeTensor]) -> None:
    if any(f.device.type != "cpu" for f in trace.inputs):
        raise refuse("a tensor that is not on the CPU")
    if any(node.target is forward_ad.enter_dual_level for node in trace.torch.graph):
        raise refuse("forward-mode differentiation")
    inference = trace.first_state[1]
    for fake in trace.inputs:
        if fake.grad_fn is not trace.first_history.get(id(fake)) and fake.storage_key not in trace.written:
            raise refuse("what autograd knows of an input changes")
    for fake in outputs:
        keeps = fake.is_leaf or fake.retains_grad  # others must not be asked
        if keeps and not trace.is_input(fake) and fake.grad is not None:
            raise refuse("a tensor with a gradient is returned")
        if fake.is_inference() is not inference:
            raise refuse("an inference tensor is returned")
        if fake.requires_grad and fake.is_leaf and not trace.is_input(fake):
            raise refuse("a leaf made inside is returned")


def _edge(trace: Trace, fake: FakeTensor) -> Any:
    history = trace.first_history.get(id(fake))
    return fake if history is None else GradientEdge(history, 0)


def _tangent(value: FakeTensor) -> FakeTensor:
    """A fake laid out as the value it belongs to, densely."""
    with torch._C._DisableTorchDispatch():
        # Asked of a CPU's tensor, whose memory nobody touches: for meta tensors torch's Python code answers, slowly.
        dense = torch.empty_like(empty_like_spec(value.spec, torch.device("cpu")))
        elem = torch.empty_strided(dense.size(), dense.stride(), dtype=dense.dtype, device="meta")
        return wrap(elem, value.device)


def _line_of_nodes(trace: Trace) -> dict[Any, Line | None]:
    """The user's line of each node of autograd's graph."""
    lines: dict[Any, Line | None] = {}
    for made in trace.records:
        for fake in fakes_in(made.out):
            if fake._is_view() and fake.storage_key in trace.written:
                continue  # autograd may have given it up, or take the view again, through tensors that nobody names
            if fake.grad_fn is not None:
                lines.setdefault(fake.grad_fn, made.node.line)
    return lines


# ------------------------------------------------------------------------------------------- the graph


@dataclass(frozen=True)
class Whole:
    """A copy of the functional graph of forward and backward, taken before the forward's graph loses what only the
    backward needs. `late`: the nodes that the backward gave; `ends`: those that the joint graph returns."""

    trace: Trace
    recorded: Recorded
    graph: Graph
    copy_of: dict[Node, Node]
    late: frozenset[Node]
    ends: list[Node | None]

    @classmethod
    def of(
        cls,
        trace: Trace,
        recorded: Recorded,
        graph: Graph,
        late: frozenset[Node],
        ends: Sequence[Node | None],
    ) -> Whole:
        """`graph` is functional and has no placeholders or output yet; `ends` are the nodes of `recorded.fakes`."""
        leaves = [f.aten_node for f in (*trace.inputs, *recorded.tangents) if f.aten_node is not None]
        numbers = [n.node(trace.aten) for n in trace.numbers.values()]
        rest = [n for n in graph.nodes if n.op != "placeholder"]
        whole, copy_of = passes.copied([*leaves, *numbers, *rest], graph.constants)
        whole.nodes = [copy_of[n] for n in rest]
        returned = [None if n is None else copy_of[n] for n in ends]
        return cls(trace, recorded, whole, copy_of, frozenset(copy_of[n] for n in late), returned)

    def written(self, ends: Sequence[Node | None]) -> Iterator[tuple[FakeTensor, Node]]:
        """The inputs that autograd must see being written, and their values among `ends`, the nodes of `recorded.fakes`."""
        recorded = self.recorded
        last = ends[len(recorded.values) - len(recorded.written) : len(recorded.values)]
        yield from zip(recorded.written, last, strict=True)  # type: ignore[misc]

    def joint(self, inputs: Sequence[FakeTensor], placeholders: Sequence[Node]) -> Joint:
        """`inputs` are those of the finished trace; `placeholders` their nodes, and then those of the numbers."""
        recorded, graph = self.recorded, self.graph
        position = {id(f): i for i, f in enumerate(inputs)}
        primals = [self.copy_of.get(n) or passes.copied([n], {})[0].nodes[0] for n in placeholders]
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
        passes.eliminate_dead(graph)
        if not {a for node in graph for a in argument_nodes(node)} <= set(graph.nodes):
            raise refuse("the backward reads a tensor or a number that the forward does not")
        if len(tangents) > 1:
            check_linear(graph, tangents, recorded.calls, list(ends))
        passes.eliminate_detach(graph, everywhere=True)
        passes.eliminate_common(graph, among=self.late)
        late = self.late & set(graph.nodes)
        return Joint(
            graph=graph,
            n_primals=len(primals),
            n_outputs=n_values,
            tangents=recorded.with_tangent,
            gradients=tuple(i for _, i in kept),
            cuts=recorded.cuts,
            backward=late,
            eager_saved=frozenset(_read_by(late, set(tangents))),
            results=tuple(placed(self.trace, r, position) for r in recorded.results),
            writes=tuple(
                (position[id(f)], n_values - len(recorded.written) + i)
                for i, f in enumerate(recorded.written)
            ),
            flags=placed_flags(self.trace, recorded.flags, position),
        )


def _read_by(backward: frozenset[Node], tangents: set[Node]) -> Iterator[Node]:
    """Forward nodes that the backward's nodes take."""
    for node in backward:
        for argument in argument_nodes(node):
            if argument not in backward and argument not in tangents:
                yield argument
