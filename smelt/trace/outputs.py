"""How the outputs of a trace are had from the values of its joint graph.

What the caller gets is not always a value of the joint graph. A view of an input, or of another result, must be a view to
autograd as well: a later in-place write through one has to be seen by the other. So only the tensors that such results
look at are values of the graph, and each `Result` says how it is taken from one, outside of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from torch._ops import OpOverload

from smelt.errors import Unsupported
from smelt.graph.effects import effects
from smelt.graph.ir import Node, TensorSpec, argument_nodes, map_nodes
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.trace.fake import FakeTensor, fakes_in

if TYPE_CHECKING:
    from smelt.trace.graphs import Record
    from smelt.trace.record import Trace


class NotDifferentiable(Unsupported):
    """A trace without a joint graph: its torch-level graph runs under autograd instead."""


def refuse(detail: str) -> NotDifferentiable:
    return NotDifferentiable(Reason(UNSUPPORTED_OBJECT, f"no ahead-of-time gradients: {detail}"))


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

    `detached`: autograd does not see what it is a view of. `retained`: its gradient is kept.
    """

    kind: Literal["value", "input"]
    index: int
    steps: tuple[Step, ...] = ()
    detached: bool = False
    retained: bool = False


def results(trace: Trace, outputs: Sequence[FakeTensor]) -> tuple[tuple[FakeTensor, ...], tuple[Result, ...]]:
    """The values that a joint graph must give, and how `outputs` are had from them. A `Result` of kind input counts
    `Trace.inputs`. Raises NotDifferentiable."""
    inputs = {f.storage_key: f for f in reversed(trace.inputs)}
    shared = [f.storage_key for f in outputs]
    origins = _Origins(trace)
    values: dict[int, FakeTensor] = {}  # by storage
    index: dict[int, int] = {}  # of each storage's value
    found = []
    for fake, key in zip(outputs, shared):
        if key not in inputs and key not in values:
            index[key] = len(values)
            values[key] = fake if shared.count(key) == 1 else origins.owner(key)
        base = inputs[key] if key in inputs else values[key]
        if base is fake:
            found.append(Result("value", index[key], retained=fake.retains_grad))
            continue
        steps, start = origins.views(fake)
        if key in inputs:
            at = next((i for i, f in enumerate(trace.inputs) if f is start), -1)
            kind: Literal["value", "input"] = "input"
        else:
            at = index[key] if start is base else -1
            kind = "value"
        if at < 0 or (fake.requires_grad and not start.requires_grad):
            raise refuse("results share memory in another way than one being a view of the other")
        is_detached = start.requires_grad and not fake.requires_grad
        retained = fake.retains_grad and fake is not start
        if _passes_custom(fake, start):
            raise refuse("a result is a view that a custom autograd.Function gave")
        found.append(Result(kind, at, steps, is_detached, retained))
    return tuple(values.values()), tuple(found)


def _passes_custom(view: FakeTensor, start: FakeTensor) -> bool:
    """Whether gradients of a view go through the backward of a custom function on the way to what it looks at."""
    node: Any = view.grad_fn
    while node is not None and node is not start.grad_fn:
        if hasattr(type(node), "_forward_cls"):
            return True
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def placed(trace: Trace, result: Result, position: dict[int, int]) -> Result:
    """`result`, counting by `position` (id of an input -> which) instead of `Trace.inputs`."""
    if result.kind != "input":
        return result
    return replace(result, index=position[id(trace.inputs[result.index])])


def read_by(nodes: Iterable[Any]) -> set[tuple[Any, int]]:
    """The results, each as (node of autograd, which), that `nodes` and all nodes behind them are computed from."""
    pending = list(nodes)
    seen = set(pending)
    found: set[tuple[Any, int]] = set()
    while pending:
        for following, output in pending.pop().next_functions:
            if following is not None:
                found.add((following, output))
                if following not in seen:
                    seen.add(following)
                    pending.append(following)
    return found


def check_passed_by(
    trace: Trace, outputs: Sequence[FakeTensor], values: Sequence[FakeTensor], written: Sequence[FakeTensor]
) -> None:
    """Raises NotDifferentiable where gradients would pass a tensor by that others can see: what is taken or written outside
    of the graph's nodes, and what other results are computed from. A hook on it, or `torch.autograd.grad`, would miss what
    flows from those results."""
    own = {id(v) for v in values}
    seen = [*(f for f in (*trace.hooked, *outputs) if not trace.is_input(f) and id(f) not in own), *written]
    places = {(f.grad_fn, f.output_nr) for f in seen if f.grad_fn is not None}
    if places and places & read_by({f.grad_fn for f in (*outputs, *written) if f.grad_fn is not None}):
        raise refuse("a view, or an input that is written, which other results are computed from")


class _Origins:
    """Which record gave a fake."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def views(self, fake: FakeTensor) -> tuple[tuple[Step, ...], FakeTensor]:
        """The view operators that lead to `fake`, and the tensor that they start from."""
        steps: list[Step] = []
        while id(fake) in self._made:
            record, item = self._made[id(fake)]
            node = record.node
            if type(node.target) is not OpOverload or not effects(node.target).view:
                break
            sources = [n for n in argument_nodes(node) if type(n.spec) is TensorSpec]
            if len(sources) != 1 or any(n not in sources for n in argument_nodes(node)):
                raise refuse("a result is a view that takes several tensors, or numbers that change")
            args, kwargs = (map_nodes(a, lambda n: HERE) for a in (node.args, node.kwargs))
            steps.append(Step(node.target, args, kwargs, item))
            if sources[0] not in self._fakes:
                raise refuse("a result is a view of something that the trace does not know")
            fake = self._fakes[sources[0]]
        return tuple(reversed(steps)), fake

    def owner(self, storage: int) -> FakeTensor:
        """The tensor that owns a storage that several outputs look at."""
        for record in self._trace.records:
            for fake in fakes_in(record.out):
                if fake.storage_key == storage:
                    return fake
        raise refuse("results share memory that nothing in the graph made")

    @cached_property
    def _made(self) -> dict[int, tuple[Record, int | None]]:
        """By id of a fake that is no input: the record that gave it, and which of its results it is."""
        made: dict[int, tuple[Record, int | None]] = {}
        for record in self._trace.records:
            several = isinstance(record.out, (list, tuple))
            for i, out in enumerate(record.out if several else (record.out,)):
                if type(out) is FakeTensor and not self._trace.is_input(out):
                    made.setdefault(id(out), (record, i if several else None))
        return made

    @cached_property
    def _fakes(self) -> dict[Node | None, FakeTensor]:
        """The fake of each node."""
        records = (f for r in self._trace.records for f in fakes_in(r.out))
        return {f.aten_node: f for f in reversed([*self._trace.inputs, *records])}
