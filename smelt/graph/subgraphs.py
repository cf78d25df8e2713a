"""Subgraphs: the bodies of higher-order operators (`torch.cond`, `while_loop`).

At the torch level such an operator is one call of a `Program`, which autograd sees as one node. At the aten level it
is a call of `smelt::run_graphs(graphs, tensors)`, where `graphs` is a `Handle`, by which the operator finds an
`Inner`. A subgraph reads only its placeholders and constants, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from smelt.graph.free_symbols import symbols_of_arguments
from smelt.graph.graph_callable import Compiled, GraphFunction
from smelt.graph.ir import Graph, TensorSpec
from smelt.graph.object_handles import found, handles_in
from smelt.graph.pytree import leaves
from smelt.graph.tensor_specs import empty_like_spec
from smelt.shapes.expr import Expr
from smelt.torch_private import OpOverload

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Choice:
    """`tensors`: a condition, then the operands of both graphs. The first graph runs if the condition holds, else the
    second."""

    name = "cond"

    def __call__(self, graphs: Sequence[Compiled], tensors: Tensors) -> Tensors:
        condition, *operands = tensors
        return graphs[0 if bool(condition) else 1](tuple(operands))


@dataclass(frozen=True)
class Loop:
    """`tensors`: `carried` loop-carried values, then invariants. While the first graph returns true, the second
    returns the next carried values; both take all tensors."""

    carried: int
    name = "while_loop"

    def __call__(self, graphs: Sequence[Compiled], tensors: Tensors) -> Tensors:
        goes_on, step = graphs
        values, others = tuple(tensors[: self.carried]), tuple(tensors[self.carried :])
        while bool(goes_on((*values, *others))[0]):
            values = tuple(step((*values, *others)))
        return values


Rule = Choice | Loop


def _interpreted(graph: Graph) -> Compiled:
    function = GraphFunction(graph)
    if graph.level == "torch":
        return lambda tensors: function(*tensors)
    specs = [p.spec for p in graph.placeholders]
    return lambda tensors: function(*(t if _fits(t, s) else _copied(t, s) for t, s in zip(tensors, specs)))


class Inner:
    """The payload of `run_graphs`: aten `graphs`, run by a rule. A call interprets them; in a graph that is being compiled,
    plans take their place (`plan/subplans.py`)."""

    def __init__(self, rule: Rule, graphs: Sequence[Graph]) -> None:
        self.rule = rule
        self.graphs = tuple(graphs)
        self._functions = tuple(map(_interpreted, graphs))

    def __call__(self, tensors: Tensors) -> list[torch.Tensor]:
        """The results, which share memory neither with each other nor with the arguments."""
        storages = {t.untyped_storage()._cdata for t in tensors}
        results = []
        for result in self.rule(self._functions, tensors):
            storage = result.untyped_storage()._cdata
            results.append(result.clone() if storage in storages else result)
            storages.add(storage)
        return results


def _fits(tensor: torch.Tensor, spec: TensorSpec) -> bool:
    return tensor.stride() == spec.stride or tensor.numel() < 2


def _copied(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    return empty_like_spec(replace(spec, offset=0), spec.device).copy_(tensor)


def _run(graphs: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    results: list[torch.Tensor] = found(graphs)(tensors)
    return results


_library = torch.library.Library("smelt", "FRAGMENT")
_library.define("run_graphs(int graphs, Tensor[] tensors) -> Tensor[]")
_library.impl("run_graphs", _run, "CompositeExplicitAutograd")
RUN_GRAPHS: OpOverload = torch.ops.smelt.run_graphs.default


# ---------------------------------------------------------------------------------------------- the torch level


@dataclass(eq=False)
class Program:
    """The call at the torch level: `graphs`, run by a rule. Tensors of float types that require gradients are
    differentiated by running the executed graph again, as torch's own operators do. `exact`: gradients reach no operand that
    the executed graph does not read, for which torch's operators give zeros."""

    rule: Rule
    graphs: tuple[Graph, ...]
    exact: bool = False
    __name__: str = field(init=False)

    def __post_init__(self) -> None:
        self.__name__ = self.rule.name
        self._inner = Inner(self.rule, self.graphs)

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            made: tuple[torch.Tensor, ...] = _Differentiated.apply(self, *tensors)  # type: ignore[no-untyped-call]
            return made
        return self.run(tensors)

    def run(self, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        """The results, computed so that autograd sees each operation."""
        return tuple(self._inner(tensors))


class _Differentiated(torch.autograd.Function):
    """A program as one autograd node; all its results of float types require gradients."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, program: Program, *tensors: torch.Tensor
    ) -> Tensors:
        results = program.run(tensors)
        ctx.program = program  # type: ignore[attr-defined]
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*(r for r in results if not has_gradients(r.dtype)))
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
            results = ctx.program.run(inputs)  # type: ignore[attr-defined]
        ends = [(r, g) for r, g in zip(results, tangents) if r.requires_grad]
        sources = [t for t in inputs if t.requires_grad]
        found: Tensors = [torch.zeros_like(t) for t in sources]
        if ends:
            found = torch.autograd.grad(
                [r for r, _ in ends],
                sources,
                [g for _, g in ends],
                create_graph=history,
                materialize_grads=True,
            )
        gradients = iter(found)
        return (None, *(next(gradients) if t.requires_grad else None for t in inputs))


def has_gradients(dtype: torch.dtype) -> bool:
    """Whether tensors of this type can be differentiated."""
    return dtype.is_floating_point or dtype.is_complex


def depends_inside(graph: Graph) -> bool:
    """Whether an object behind a handle in a call's arguments (an inner graph, a user's kernel) may depend on symbols, which
    `substitute` does not reach."""
    handles = [handle for node in graph for handle in handles_in((node.args, node.kwargs))]
    return any(not isinstance(h.inner, Inner) or any(map(_depends, h.inner.graphs)) for h in handles)


def _depends(graph: Graph) -> bool:
    specs = [spec for node in graph for spec in leaves(node.spec, TensorSpec)]
    sizes = [size for s in specs for size in (*s.shape, *s.stride, s.offset)]
    return (
        any(isinstance(size, Expr) for size in sizes)
        or bool(symbols_of_arguments(graph))
        or depends_inside(graph)
    )
