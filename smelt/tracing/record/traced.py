"""A finished trace."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from smelt.graph import graph_passes
from smelt.graph.ir import Graph, Node, argument_nodes
from smelt.graph.tensor_specs import empty_like_spec
from smelt.ops.may_raise import must_run
from smelt.reasons import Reason
from smelt.shapes.expr import INFINITE, Expression, Sym
from smelt.shapes.substitute import substitute
from smelt.tracing.backward.joint import Joint
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.fake.returned_views import NO_VIEWS, Views
from smelt.tracing.fake.version_counters import NO_COUNTERS, Counters
from smelt.tracing.record.number_inputs import NumberInput
from smelt.tracing.record.trace_parts import TraceParts
from smelt.tracing.symbolic.symbolic_layouts import SizeSource
from smelt.tracing.symbolic.unbacked_numbers import Condition, NumberCondition

log = logging.getLogger("smelt")

T = TypeVar("T")


@dataclass(frozen=True)
class SizeInput:
    """Where the value of a size's symbol is found: in input number `input`. `hint`: what it was when traced. `bounds`: the
    program, or torch, has decided something by it that later calls are required to decide alike, so it is in that range.
    `may_be_one`: the trace is the same where it is 1, which its symbol is not."""

    input: int
    source: SizeSource
    hint: int
    bounds: tuple[int, int] = (0, INFINITE)
    may_be_one: bool = False


@dataclass(frozen=True)
class SizesOfData:
    """What a graph has of numbers that data decide.

    `hints`: what their symbols are taken for. `conditions`: what it is made for, besides that they are at least 2, or among
    `small`. `numbers`: those that operators were given, whose leaves are symbols; both graphs take them last.
    """

    hints: Mapping[Sym, int]
    conditions: tuple[Condition | NumberCondition, ...]
    numbers: tuple[Expression, ...]
    small: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Traced:
    """A finished trace. `inputs[i]` is the fake of placeholder i of both graphs; only inputs that a graph uses are there.

    The aten graph is functional but for `copy_` nodes at its end that write inputs (`mutated`: their positions).
    `needs_grad`: running the aten graph would lose gradients (or that an output is an inference tensor): the joint graph is
    what runs, or autograd has to see the torch-level graph run, operator by operator.
    `differs` is told that compiled code is wrong (the option `verify`); `failed` that a part could not be compiled when a
    later call, or a backward, needed it: it may raise.
    """

    torch_graph: Graph
    aten_graph: Graph
    inputs: tuple[FakeTensor, ...]
    mutated: frozenset[int]
    outputs: tuple[FakeTensor, ...]
    needs_grad: bool
    _examples: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    numbers: tuple[NumberInput, ...] = ()  # Python numbers that both graphs take after the tensors
    counters: Counters = NO_COUNTERS
    views: Views = NO_VIEWS  # of results without gradients
    sizes: Mapping[Sym, SizeInput] = field(default_factory=dict)  # of the symbols in specs and arguments
    data: SizesOfData | None = None  # where there are symbols that data decide
    joint: Joint | None = None  # where gradients are needed, were asked for, and can be had ahead of time
    differs: Callable[[Reason], None] | None = None
    failed: Callable[[Exception], None] | None = None
    title: str = ""  # the function that was traced, for people

    def example_inputs(self) -> tuple[Any, ...]:
        """The tensors that the trace saw, where they still exist, else empty ones like them; then the numbers."""
        found = itertools.zip_longest((ref() for ref in self._examples), self.inputs)
        hints = {sym: place.hint for sym, place in self.sizes.items()}
        tensors = [_empty_like(fake, hints) if real is None else real for real, fake in found]
        return (*tensors, *(n.symbol.value for n in self.numbers))

    @property
    def forward_graph(self) -> Graph:
        """A copy of the aten graph, without what a backward recorded that could raise, which is there beside a joint one."""
        known: set[Node] = set()
        for node in self.aten_graph:
            if known.issuperset(argument_nodes(node)):
                known.add(node)
        forward = (node for node in self.aten_graph if node in known)
        graph, _ = graph_passes.copied(forward, self.aten_graph.constants)
        graph_passes.eliminate_dead(graph, keep=must_run)
        return graph

    def later(self, compiled: Callable[[], T], by_operators: Callable[[], T]) -> T:
        """What `compiled` gives, of a part that is not compiled before a later call, or a backward, needs it. Where that
        fails, what `by_operators` gives, operator by operator."""
        try:
            return compiled()
        except Exception as error:
            if self.failed is None:
                log.warning("smelt: a part of %s could not be compiled: %r", self.title or "a graph", error)
            else:
                self.failed(error)
            return by_operators()

    def forget_examples(self) -> None:
        """Lets go of the tensors that the trace saw: `torch.utils.swap_tensors` refuses those with weak references."""
        self._examples.clear()


def _empty_like(fake: FakeTensor, hints: Mapping[Sym, int]) -> torch.Tensor:
    return empty_like_spec(substitute(fake.spec, hints), fake.device)


def needs_grad(parts: TraceParts, outputs: Sequence[FakeTensor]) -> bool:
    """Whether running the aten graph beneath autograd would lose something that autograd knows of `outputs`, or of an input:
    a history, a flag, being an inference tensor or not."""
    computed = [f for f in outputs if not parts.inputs.holds(f)]
    inference = parts.call_recorder.first_state[1]
    return (
        bool(parts.autograd.restated)
        or any(f.requires_grad or f.is_inference() is not inference for f in computed)
        or any(_has_other_history(parts, f) for f in parts.inputs)
        or _detaches(parts, computed)
    )


def _detaches(parts: TraceParts, computed: Sequence[FakeTensor]) -> bool:
    """Whether a result is a view of an input that requires grad, and does not: autograd knows how it was taken."""
    sources = {f.storage_key for f in parts.inputs if f.requires_grad}
    return any(f.storage_key in sources for f in computed)


def _has_other_history(parts: TraceParts, fake: FakeTensor) -> bool:
    """Whether autograd sees an input differently at the end: it was written with gradients, or its flag was set."""
    real = parts.inputs.real(fake)
    if real is not None and fake.requires_grad != real.requires_grad:
        return True
    return fake.grad_fn is not parts.inputs.first_history.get(id(fake))
