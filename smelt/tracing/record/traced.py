"""The result of a trace: two graphs, or three with the joint graph, and their interface."""

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
from smelt.shapes.expr import INFINITE, Expression, Sym, Values
from smelt.shapes.substitute import substitute
from smelt.tracing.backward.joint import Joint
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.fake.returned_views import NO_VIEWS, Views
from smelt.tracing.fake.version_counters import NO_COUNTERS, Counters
from smelt.tracing.record.module_calls import ModuleCall
from smelt.tracing.record.number_inputs import NumberInput
from smelt.tracing.record.trace_parts import TraceParts
from smelt.tracing.symbolic.symbolic_layouts import SizeSource
from smelt.tracing.symbolic.unbacked_numbers import Condition, NumberCondition

log = logging.getLogger("smelt")

T = TypeVar("T")


@dataclass(frozen=True)
class SizeInput:
    """Where a size symbol's value is found: in input number `input`. `hint`: its value when traced. `bounds`: the
    range that decisions of the program or of torch require of later calls. `may_be_one`: the trace also holds for 1,
    which is outside of the symbol's range."""

    input: int
    source: SizeSource
    hint: int
    bounds: tuple[int, int] = (0, INFINITE)
    may_be_one: bool = False


@dataclass(frozen=True)
class UnbackedSizes:
    """A graph's unbacked sizes and numbers.

    `hints`: sample values of their symbols. `conditions`: the assumptions of the graph, besides that each is at least
    2 or one of `small`. `numbers`: those that operators receive, as expressions over symbols; both graphs take them
    last.
    """

    hints: Mapping[Sym, int]
    conditions: tuple[Condition | NumberCondition, ...]
    numbers: tuple[Expression, ...]
    small: frozenset[int] = frozenset()


# Which graph of a trace: ("graph",) without gradients, ("forward",), or ("backward", indices of undefined tangents, its
# `Reach`, indices of omitted gradients, whether deterministic algorithms are requested).
Role = tuple[Any, ...]


@dataclass(frozen=True)
class MadePlan:
    """A plan (`plan.steps.Plan`, or a symbolic one) of one of a trace's graphs, made for the sizes `values`."""

    role: Role
    graph: Graph
    plan: Any
    values: Values


@dataclass(frozen=True)
class Traced:
    """A finished trace. `inputs[i]` is the fake of placeholder i of both graphs; inputs that neither graph uses are
    omitted.

    The aten graph is functional except for `copy_` nodes at its end that write inputs (`mutated`: their positions).
    `through_wrappers`: only the joint graph has all gradients: those of wrapper subclasses.
    `boundaries`: the torch-level nodes of tensors with a hook that the graph computes: autograd must see them.
    `needs_grad`: running the aten graph alone would lose gradients, or an output is an inference tensor: the joint
    graph runs, or autograd must see the torch-level graph run eagerly. `on_mismatch` is called when compiled code
    gives wrong results (the option `verify`). `on_failure` is called when deferred compilation of a subgraph fails; it
    may raise. `on_plan` receives each plan of the trace's graphs, backwards too, `on_node` their
    `autograd.compile_joint.JointNode`. `module_calls`: the calls of modules, inner ones first, where recorded.
    `same_results`: torch-level calls that return a tensor of an earlier node, as `add_` does, and that node.
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
    unbacked: UnbackedSizes | None = None  # where there are unbacked sizes
    joint: Joint | None = None  # where gradients are needed and can be computed ahead of time
    through_wrappers: bool = False
    on_mismatch: Callable[[Reason], None] | None = None
    on_failure: Callable[[Exception], None] | None = None
    on_plan: Callable[[MadePlan], None] | None = None
    on_node: Callable[[Any], None] | None = None
    title: str = ""  # the traced function, for messages
    graph_break: Reason | None = None  # the break at which the graph ends
    boundaries: tuple[Node, ...] = ()
    module_calls: tuple[ModuleCall, ...] = ()
    same_results: Mapping[Node, Node] = field(default_factory=dict)

    def example_inputs(self) -> tuple[Any, ...]:
        """The traced tensors that still exist, else empty ones like them; then the numbers."""
        pairs = itertools.zip_longest((ref() for ref in self._examples), self.inputs)
        hints = self.hints
        tensors = [_empty_like(fake, hints) if real is None else real for real, fake in pairs]
        return (*tensors, *(n.symbol.value for n in self.numbers))

    @property
    def hints(self) -> Mapping[Sym, int]:
        """The values of the size symbols in the captured call, and sample values of unbacked ones."""
        unbacked = self.unbacked.hints if self.unbacked is not None else {}
        return {sym: size.hint for sym, size in self.sizes.items()} | dict(unbacked)

    @property
    def forward_graph(self) -> Graph:
        """A copy of the aten graph without nodes of the backward that may raise, which it contains next to a joint
        graph."""
        known: set[Node] = set()
        for node in self.aten_graph:
            if known.issuperset(argument_nodes(node)):
                known.add(node)
        forward = (node for node in self.aten_graph if node in known)
        graph, _ = graph_passes.copied(forward, self.aten_graph.constants)
        graph_passes.eliminate_dead(graph, keep=must_run)
        return graph

    def compile_deferred(self, compile_graph: Callable[[], T], eager_fallback: Callable[[], T]) -> T:
        """`compile_graph()`, for a subgraph that is compiled when a later call or a backward needs it. If that fails,
        `eager_fallback()`."""
        return compile_deferred(compile_graph, eager_fallback, self.title or "a graph", self.on_failure)

    def release_examples(self) -> None:
        """Drop the weak references to the traced tensors: `torch.utils.swap_tensors` refuses tensors with weak
        references."""
        self._examples.clear()


def compile_deferred(
    compile_graph: Callable[[], T],
    eager_fallback: Callable[[], T],
    title: str,
    on_failure: Callable[[Exception], None] | None,
) -> T:
    """`compile_graph()`. If that fails, `eager_fallback()`, unless `on_failure` raises. Without `on_failure`, a warning
    names the graph by its `title`."""
    try:
        return compile_graph()
    except Exception as error:
        if on_failure is None:
            log.warning("smelt: a part of %s could not be compiled: %r", title, error)
        else:
            on_failure(error)
        return eager_fallback()


def _empty_like(fake: FakeTensor, hints: Mapping[Sym, int]) -> torch.Tensor:
    return empty_like_spec(substitute(fake.spec, hints), fake.device)


def needs_grad(parts: TraceParts, outputs: Sequence[FakeTensor]) -> bool:
    """Whether running the aten graph beneath autograd would lose autograd state of `outputs` or of an input: its
    history, a flag, whether it is an inference tensor."""
    computed = [f for f in outputs if not parts.inputs.holds(f)]
    inference = parts.torch_recorder.first_state[1]
    return (
        bool(parts.autograd.flag_calls)
        or any(f.requires_grad or f.is_inference() is not inference for f in computed)
        or any(_has_other_history(parts, f) for f in parts.inputs)
        or _detaches(parts, computed)
    )


def _detaches(parts: TraceParts, computed: Sequence[FakeTensor]) -> bool:
    """Whether a result that requires no grad is a view of an input that does: autograd tracks the view."""
    sources = {f.storage_key for f in parts.inputs if f.requires_grad}
    return any(f.storage_key in sources for f in computed)


def _has_other_history(parts: TraceParts, fake: FakeTensor) -> bool:
    """Whether autograd's state of an input differs at the end: it was written with gradients, or its flag was set."""
    real = parts.inputs.real(fake)
    if real is not None and fake.requires_grad != real.requires_grad:
        return True
    return fake.grad_fn is not parts.inputs.first_history.get(id(fake))
