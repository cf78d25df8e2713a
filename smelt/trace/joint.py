"""The joint graph: forward and backward of one trace as one functional aten graph.

Autograd has followed the fakes while the user's code ran. When the code has ended, `record` asks it for the gradients of
what the function returns, with fakes for the tangents: the same dispatch mode that recorded the forward records the
backward behind it. Functionalization then takes both at once, and `Whole` cuts the result out as a `Joint`.

What the caller gets is not always a value of the joint graph. A view of an input, or of another result, must be a view to
autograd as well: a later in-place write through one has to be seen by the other. So only the tensors that such results
look at are values of the graph, and each `Result` says how it is taken from one, outside of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch._ops import OpOverload
from torch.autograd.graph import GradientEdge, _engine_run_backward
from torch.utils.hooks import RemovableHandle

from smelt.errors import Unsupported
from smelt.graph import passes, state
from smelt.graph.ir import Graph, Line, Node, TensorSpec, argument_nodes, map_nodes
from smelt.graph.specs import empty_like_spec
from smelt.ops.kinds import effects
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.trace.fake import FakeTensor, fakes_in, wrap
from smelt.trace.opaque import OpaqueCall

if TYPE_CHECKING:
    from smelt.trace.record import Trace


class NotDifferentiable(Unsupported):
    """A trace without a joint graph: its torch-level graph runs under autograd instead."""


@dataclass(frozen=True)
class Step:
    """One view operator. Where `args` and `kwargs` hold `HERE`, the tensor that is looked at goes. `item`: which result."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    item: int | None


HERE = Node("placeholder", "here", (), {}, "here")


@dataclass(frozen=True)
class Result:
    """How one output of the trace is had: value `index` of the joint graph, or input `index`, looked at through `steps`.

    `detached`: autograd does not see what it is a view of.
    """

    kind: Literal["value", "input"]
    index: int
    steps: tuple[Step, ...] = ()
    detached: bool = False


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
    writes: tuple[
        tuple[int, int], ...
    ] = ()  # (primal, forward output): where autograd must see the primal being written


@dataclass(frozen=True)
class Recorded:
    """What `record` leaves for `Whole`. `start`: how many records, and aten nodes, the forward has."""

    values: tuple[FakeTensor, ...]
    results: tuple[Result, ...]  # of kind input: `index` counts `Trace.inputs`
    written: tuple[
        FakeTensor, ...
    ]  # inputs that autograd must see being written; they are the last of `values`
    tangents: tuple[FakeTensor, ...]
    with_tangent: tuple[int, ...]  # which values
    sources: tuple[FakeTensor, ...]  # the inputs that have a gradient
    gradients: tuple[FakeTensor | None, ...]  # of the sources, then of the cuts
    cuts: tuple[int, ...]  # which values other values are computed from
    start: tuple[int, int]

    @property
    def fakes(self) -> list[FakeTensor]:
        """All that the joint graph returns."""
        return [*self.values, *(g for g in self.gradients if g is not None)]


def record(trace: Trace, outputs: Sequence[FakeTensor]) -> Recorded:
    """Records the backward. The trace must still be entered. Raises NotDifferentiable."""
    try:
        return _record(trace, outputs)
    except Unsupported:
        raise
    except RuntimeError as error:  # what autograd says of a view on which it has given up
        raise refuse(str(error)) from error


def _record(trace: Trace, outputs: Sequence[FakeTensor]) -> Recorded:
    _check(trace, outputs)
    written = tuple(f for f in trace.inputs if f.grad_fn is not trace.first_history.get(id(f)))
    values, results = _results(trace, outputs)
    values = (*values, *written)
    with_tangent = tuple(i for i, v in enumerate(values) if v.requires_grad)
    sources = tuple(f for f in trace.inputs if id(f) in trace.first_history)
    tangents = tuple(_tangent(values[i]) for i in with_tangent)
    for k, tangent in enumerate(tangents):
        trace.add_tangent(tangent, f"tangents_{k + 1}")
    start = len(trace.records), len(trace.aten.graph.nodes)
    gradients: Sequence[Any] = [None] * len(sources)
    cuts = _cuts(values, with_tangent)
    through: dict[int, Any] = dict.fromkeys(cuts)
    if tangents and sources:
        with (
            trace.recording_backward(_line_of_nodes(trace)),
            _cut_at(values, with_tangent, tangents, through),
        ):
            try:
                # What `torch.autograd.grad` calls; itself it imports sympy, for sizes that are symbols.
                gradients = _engine_run_backward(
                    tuple(values[i] for i in with_tangent if i not in through),
                    tuple(t for i, t in zip(with_tangent, tangents) if i not in through),
                    keep_graph=False,
                    create_graph=False,
                    inputs=tuple(_edge(trace, f) for f in sources),
                    allow_unreachable=True,
                    accumulate_grad=False,
                )
            except Unsupported as error:
                raise NotDifferentiable(error.reason) from error
            except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError) as error:
                raise refuse(f"its backward raises {type(error).__name__}: {error}") from error
    gradients = [*gradients, *through.values()]
    if any(g is not None and type(g) is not FakeTensor for g in gradients):
        raise refuse("a gradient is not a tensor of the trace")
    return Recorded(values, results, written, tangents, with_tangent, sources, tuple(gradients), cuts, start)


def _cuts(values: Sequence[FakeTensor], with_tangent: Sequence[int]) -> tuple[int, ...]:
    """The values that others are computed from. Autograd must know them as such: someone may ask for their gradients, put
    hooks on them, or change what flows through them. In the order of their computation."""
    place = {(values[i].grad_fn, values[i].output_nr): i for i in with_tangent}
    pending: list[Any] = list({fn for fn, _ in place})
    seen = set(pending)
    found: set[int] = set()
    while pending:
        for following, output in pending.pop().next_functions:
            if following is None:
                continue
            if (following, output) in place:
                found.add(place[following, output])
            if following not in seen:
                seen.add(following)
                pending.append(following)
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


def refuse(detail: str) -> NotDifferentiable:
    return NotDifferentiable(Reason(UNSUPPORTED_OBJECT, f"no ahead-of-time gradients: {detail}"))


def _check(trace: Trace, outputs: Sequence[FakeTensor]) -> None:
    if trace.needs_autograd or trace.hooked:
        raise refuse("a call changes what autograd knows of a tensor")
    if any(f.device.type != "cpu" for f in trace.inputs):
        raise refuse("a tensor that is not on the CPU")
    for node in trace.torch.graph:
        if type(node.target) is OpaqueCall and not node.target.is_checkpoint:
            raise refuse("a custom autograd.Function")
        if (
            passes.changes_state(node)
            and node.target not in state.SETTINGS
            and type(node.target) is not OpaqueCall
        ):
            raise refuse(f"{node.name} changes what autograd knows of a tensor")
    inference = trace.first_state[1]
    for fake in trace.inputs:
        if fake.grad_fn is not trace.first_history.get(id(fake)) and _storage(fake) not in trace.written:
            raise refuse("what autograd knows of an input changes")
    for fake in outputs:
        if fake.is_inference() is not inference:
            raise refuse("an inference tensor is returned")
        if fake.requires_grad and fake.is_leaf and not trace.is_input(fake):
            raise refuse("a leaf made inside is returned")


def _edge(trace: Trace, fake: FakeTensor) -> Any:
    history = trace.first_history[id(fake)]
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
            with contextlib.suppress(
                RuntimeError
            ):  # of a view whose base was written: it has no node any more
                if fake.grad_fn is not None:
                    lines.setdefault(fake.grad_fn, made.node.line)
    return lines


# ------------------------------------------------------------------------------------------- results


def _storage(fake: FakeTensor) -> int:
    return fake.elem.untyped_storage()._cdata


def _results(
    trace: Trace, outputs: Sequence[FakeTensor]
) -> tuple[tuple[FakeTensor, ...], tuple[Result, ...]]:
    """The values that a joint graph must give, and how the outputs are had from them."""
    inputs = {_storage(f): f for f in reversed(trace.inputs)}
    shared = [_storage(f) for f in outputs]
    values: dict[int, FakeTensor] = {}  # by storage
    results = []
    for fake in outputs:
        key = _storage(fake)
        if key not in inputs and key not in values:
            values[key] = fake if shared.count(key) == 1 else _base(trace, key)
        base = inputs[key] if key in inputs else values[key]
        if base is fake:
            results.append(Result("value", list(values).index(key)))
            continue
        steps, start = _view_of(trace, fake)
        if key in inputs:
            at = next((i for i, f in enumerate(trace.inputs) if f is start), -1)
            kind: Literal["value", "input"] = "input"
        else:
            at = list(values).index(key) if start is base else -1
            kind = "value"
        if at < 0 or (fake.requires_grad and not start.requires_grad):
            raise refuse("results share memory in another way than one being a view of the other")
        results.append(Result(kind, at, steps, start.requires_grad and not fake.requires_grad))
    return tuple(values.values()), tuple(results)


def _view_of(trace: Trace, fake: FakeTensor) -> tuple[tuple[Step, ...], FakeTensor]:
    """The view operators that lead to `fake`, and the tensor that they start from."""
    steps: list[Step] = []
    while True:
        made = _made_by(trace, fake)
        if made is None:
            return tuple(reversed(steps)), fake
        record, item = made
        node = record.node
        if type(node.target) is not OpOverload or not effects(node.target).view:
            return tuple(reversed(steps)), fake
        sources = [n for n in argument_nodes(node) if type(n.spec) is TensorSpec]
        if len(sources) != 1 or any(n not in sources for n in argument_nodes(node)):
            raise refuse("a result is a view that takes several tensors, or numbers that change")
        args, kwargs = (map_nodes(a, lambda n: HERE) for a in (node.args, node.kwargs))
        steps.append(Step(node.target, args, kwargs, item))
        fake = _fake_of(trace, sources[0])


def _made_by(trace: Trace, fake: FakeTensor) -> tuple[Any, int | None] | None:
    """The record that gave `fake`, and which of its results it is; None for an input."""
    if trace.is_input(fake):
        return None
    for record in trace.records:
        if record.out is fake:
            return record, None
        if isinstance(record.out, (list, tuple)):
            for i, out in enumerate(record.out):
                if out is fake:
                    return record, i
    return None


def _fake_of(trace: Trace, node: Node) -> FakeTensor:
    for fake in (*trace.inputs, *(f for r in trace.records for f in fakes_in(r.out))):
        if fake.aten_node is node:
            return fake
    raise refuse("a result is a view of something that the trace does not know")


def _base(trace: Trace, storage: int) -> FakeTensor:
    """The tensor that owns a storage that several outputs look at."""
    for record in trace.records:
        for fake in fakes_in(record.out):
            if _storage(fake) == storage:
                return fake
    raise refuse("results share memory that nothing in the graph made")


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
        of_cuts = gradients[len(recorded.sources) :]
        returned = (*self.ends[:n_values], *(g for g, _ in kept), *of_cuts)
        specs = tuple(None if n is None else n.spec for n in returned)
        output = Node("output", "output", (returned,), {}, "output", specs)
        graph.nodes = [*primals, *tangents, *graph.nodes, output]
        passes.eliminate_dead(graph)
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
            results=tuple(_placed(self.trace, r, position) for r in recorded.results),
            writes=tuple(
                (position[id(f)], n_values - len(recorded.written) + i)
                for i, f in enumerate(recorded.written)
            ),
        )


def _read_by(backward: frozenset[Node], tangents: set[Node]) -> Iterator[Node]:
    """Forward nodes that the backward's nodes take."""
    for node in backward:
        for argument in argument_nodes(node):
            if argument not in backward and argument not in tangents:
                yield argument


def _placed(trace: Trace, result: Result, position: dict[int, int]) -> Result:
    if result.kind != "input":
        return result
    return replace(result, index=position[id(trace.inputs[result.index])])
