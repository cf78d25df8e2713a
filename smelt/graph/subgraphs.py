"""Subgraphs: the bodies of higher-order operators (`torch.cond`, `while_loop`).

At the torch level such an operator is one call of a `Program`, which autograd sees as one node. At the aten level it
is a call of `smelt::run_graphs(graphs, tensors, numbers)`, where `graphs` is a `Handle`, by which the operator finds an
`Inner`. A subgraph reads only its placeholders, constants, and symbols of sizes, and writes nothing. Its placeholders are
the tensors, except those of the rule itself, then the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from smelt._native import loop_history, loop_states
from smelt.graph.free_symbols import graphs_in, symbols_in
from smelt.graph.graph_callable import Compiled, GraphFunction
from smelt.graph.ir import Graph, Node, TensorSpec
from smelt.graph.object_handles import found, handles_in
from smelt.graph.operator_effects import effects
from smelt.graph.tensor_specs import empty_like_spec
from smelt.shapes.expr import Size, Sym
from smelt.shapes.substitute import substitute, substitution
from smelt.torch_private import OpOverload

Tensors = Sequence[torch.Tensor]
Operands = Sequence[Any]  # tensors, then numbers


@dataclass(frozen=True)
class Choice:
    """Operands: a condition, then those of both graphs. The first graph runs if the condition holds, else the second.
    `is_statement`: gradients reach only the operands that the executed graph reads; torch's own operator gives zeros for
    others. `draws`: a graph draws random numbers."""

    is_statement: bool = False
    draws: bool = False
    name = "cond"
    n_own = 1  # operands that are not the graphs'

    def __call__(self, graphs: Sequence[Compiled], operands: Operands) -> Tensors:
        condition, *operands = operands
        return graphs[0 if bool(condition) else 1](tuple(operands))


@dataclass(frozen=True)
class Loop:
    """Operands: `carried` loop-carried values, then invariants. While the first graph returns true, the second returns the
    next carried values; both take all operands. `is_recorded`: a last result is the history of the values, for the backward
    (`_native.loop_history`)."""

    carried: int
    is_recorded: bool = False
    n_own = 0

    @property
    def name(self) -> str:
        """Its name in graphs and plans."""
        return "recorded_while_loop" if self.is_recorded else "while_loop"

    def __call__(self, graphs: Sequence[Compiled], operands: Operands) -> Tensors:
        goes_on, step = graphs
        values, others = tuple(operands[: self.carried]), tuple(operands[self.carried :])
        states = []
        while bool(goes_on((*values, *others))[0]):
            if self.is_recorded:
                states.append(values)
            values = tuple(step((*values, *others)))
        return (*values, loop_history(len(states), states[1:])) if self.is_recorded else values


@dataclass(frozen=True)
class LoopBackward:
    """Operands: the history of a loop, `tangents` of its results, then its own operands. The graphs take these, with the
    values of a step, and return the next tangents, then what the step adds to the gradients of invariants. They run for the
    steps in reverse order; the last graph for all that remain."""

    tangents: int
    carried: int
    name = "while_loop_backward"
    n_own = 1

    def __call__(self, graphs: Sequence[Compiled], operands: Operands) -> Tensors:
        history, *operands = operands
        first = operands[self.tangents : self.tangents + self.carried]
        others = operands[self.tangents + self.carried :]
        gradients, sums = operands[: self.tangents], list[torch.Tensor]()
        states = [first, *loop_states(history)][: int(history)]
        for i, state in enumerate(reversed(states)):
            results = graphs[min(i, len(graphs) - 1)]((*gradients, *state, *others))
            gradients, added = list(results[: self.tangents]), results[self.tangents :]
            sums = [a + b for a, b in zip(sums, added)] if sums else list(added)
        return (*gradients, *sums)


# The stored names of rules; `Loop` has a number besides.
CHOICES = {
    "cond": Choice(),
    "if": Choice(is_statement=True),
    "drawing if": Choice(is_statement=True, draws=True),
}


def is_statement(rule: Rule) -> bool:
    """Whether a rule is that of an `if` of the program."""
    return isinstance(rule, Choice) and rule.is_statement


def stored_name(rule: Rule) -> str:
    """The name of a rule in files."""
    return next((name for name, choice in CHOICES.items() if choice == rule), rule.name)


Rule = Choice | Loop | LoopBackward


def _interpreted(graph: Graph, held: Sequence[int]) -> Compiled:
    function: Callable[..., Tensors] = GraphFunction(graph)
    if graph.level == "torch":
        return lambda tensors: function(*tensors)
    specs = [p.spec for p in graph.placeholders]

    def call(operands: Operands) -> Tensors:
        laid_out = (x if _fits(x, s) else _copied(x, s) for x, s in zip(operands, specs))
        return function(*laid_out, *(operands[i].item() for i in held))

    return call


class Inner:
    """The payload of `run_graphs`: aten `graphs`, run by a rule. A call interprets them; in a graph that is being compiled,
    plans take their place (`plan/subplans.py`). `held`: for each graph, the tensors whose numbers are its inputs after the
    operands."""

    def __init__(self, rule: Rule, graphs: Sequence[Graph], held: Sequence[Sequence[int]] = ()) -> None:
        self.rule = rule
        self.graphs = tuple(graphs)
        self.held = tuple(map(tuple, held)) or ((),) * len(graphs)

    @cached_property
    def _functions(self) -> tuple[Compiled, ...]:
        return tuple(map(_interpreted, self.graphs, self.held))

    def __call__(self, operands: Operands) -> list[torch.Tensor]:
        """The results, which share memory neither with each other nor with the operands."""
        storages = {x.untyped_storage()._cdata for x in operands if isinstance(x, torch.Tensor)}
        results = []
        for result in self.rule(self._functions, operands):
            storage = result.untyped_storage()._cdata
            results.append(result.clone() if storage in storages else result)
            storages.add(storage)
        return results


@substitution(Inner)
def _with_sizes(inner: Inner, values: Mapping[Sym, Size]) -> Inner:
    if not any(sym in values for graph in inner.graphs for sym in symbols_in(graph)):
        return inner
    return Inner(inner.rule, [substitute(graph, values) for graph in inner.graphs], inner.held)


def _fits(operand: Any, spec: Any) -> bool:
    if not isinstance(spec, TensorSpec):
        return True
    return bool(operand.stride() == spec.stride or operand.numel() < 2)


def _copied(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    return empty_like_spec(replace(spec, offset=0), spec.device).copy_(tensor)


def _run(
    graphs: int, tensors: list[torch.Tensor], numbers: Sequence[float] | None = None
) -> list[torch.Tensor]:
    results: list[torch.Tensor] = found(graphs)([*tensors, *(numbers or ())])
    return results


_library = torch.library.Library("smelt", "FRAGMENT")
_library.define("run_graphs(int graphs, Tensor[] tensors, Scalar[]? numbers=None) -> Tensor[]")
_library.impl("run_graphs", _run, "CompositeExplicitAutograd")
RUN_GRAPHS: OpOverload = torch.ops.smelt.run_graphs.default
_library.define(
    "run_drawing_graphs(int graphs, Tensor[] tensors, Scalar[]? numbers=None) -> Tensor[]",
    tags=torch.Tag.nondeterministic_seeded,
)
_library.impl("run_drawing_graphs", _run, "CompositeExplicitAutograd")
RUN_DRAWING_GRAPHS: OpOverload = torch.ops.smelt.run_drawing_graphs.default
RUNS = (RUN_GRAPHS, RUN_DRAWING_GRAPHS)


def draws(node: Node) -> bool:
    """Whether an aten node draws random numbers."""
    return isinstance(node.target, OpOverload) and effects(node.target).random


# ---------------------------------------------------------------------------------------------- the torch level


@dataclass(eq=False)
class Program:
    """The call at the torch level: `graphs`, run by a rule. Tensors of float types that require gradients are
    differentiated by running the executed graph again, as torch's own operators do. `numbers`: how many of the last results
    are Python's numbers, which have no gradients. `least_steps`: the steps of a loop after which gradients reach all
    tensors that require them."""

    rule: Rule
    graphs: tuple[Graph, ...]
    numbers: int = 0
    least_steps: int = 0
    __name__: str = field(init=False)

    def __post_init__(self) -> None:
        self.__name__ = self.rule.name
        self._inner = Inner(self.rule, self.graphs)

    def __call__(self, *operands: Any) -> tuple[torch.Tensor, ...]:
        tensors = [x for x in operands if isinstance(x, torch.Tensor)]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            numbers = operands[len(tensors) :]
            made: tuple[torch.Tensor, ...] = _Differentiated.apply(self, numbers, *tensors)  # type: ignore[no-untyped-call]
            return made
        return self.run(operands)

    def differentiable(self, dtypes: Sequence[torch.dtype]) -> list[bool]:
        """Whether each result, of these types, may have a gradient."""
        return [has_gradients(t) and i < len(dtypes) - self.numbers for i, t in enumerate(dtypes)]

    def run(self, operands: Operands) -> tuple[torch.Tensor, ...]:
        """The results, computed so that autograd sees each operation."""
        return tuple(self._inner(operands))


class _Differentiated(torch.autograd.Function):
    """A program as one autograd node; all its results of float types require gradients."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        program: Program,
        numbers: Sequence[float],
        *tensors: torch.Tensor,
    ) -> Tensors:
        generator = _generator_of(program)
        results = program.run([*tensors, *numbers])
        ctx.program, ctx.numbers = program, numbers  # type: ignore[attr-defined]
        ctx.generator = generator  # type: ignore[attr-defined]
        ctx.save_for_backward(*tensors)
        differentiable = program.differentiable([r.dtype for r in results])
        ctx.mark_non_differentiable(*(r for r, is_one in zip(results, differentiable) if not is_one))
        return results

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *tangents: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        history = torch.is_grad_enabled()
        with torch.enable_grad():
            # what one tensor is computed from, among the others, is none of this node's business
            inputs = [t.view_as(t) if t.requires_grad else t for t in ctx.saved_tensors]  # type: ignore[attr-defined]
            if not history:
                inputs = [t.detach().requires_grad_(t.requires_grad) for t in inputs]
            with _drawing_from(ctx.generator):  # type: ignore[attr-defined]
                results = ctx.program.run([*inputs, *ctx.numbers])  # type: ignore[attr-defined]
        ends = [(r, g) for r, g in zip(results, tangents) if r.requires_grad]
        sources = [t for t in inputs if t.requires_grad]
        zeros = not is_statement(ctx.program.rule)  # type: ignore[attr-defined]
        found: Sequence[torch.Tensor | None] = [torch.zeros_like(t) if zeros else None for t in sources]
        if ends:
            found = torch.autograd.grad(
                [r for r, _ in ends],
                sources,
                [g for _, g in ends],
                create_graph=history,
                allow_unused=True,
                materialize_grads=zeros,
            )
        gradients = iter(found)
        return (None, None, *(next(gradients) if t.requires_grad else None for t in inputs))


def _generator_of(program: Program) -> torch.Tensor | None:
    """The state of the CPU's generator before a program that draws from it."""
    return torch.get_rng_state() if isinstance(program.rule, Choice) and program.rule.draws else None


@contextmanager
def _drawing_from(state: torch.Tensor | None) -> Iterator[None]:
    """Context with the CPU's generator in this state, which it leaves as it was."""
    if state is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(state)
        yield


def has_gradients(dtype: torch.dtype) -> bool:
    """Whether tensors of this type can be differentiated."""
    return dtype.is_floating_point or dtype.is_complex


def has_kernels(graph: Graph) -> bool:
    """Whether the graph, or one inside of it, launches a kernel of the program's, which may depend on symbols that
    `substitute` does not reach."""
    handles = [handle for node in graph for handle in handles_in((node.args, node.kwargs))]
    return any(not isinstance(h.inner, Inner) or any(map(has_kernels, graphs_in(h))) for h in handles)
