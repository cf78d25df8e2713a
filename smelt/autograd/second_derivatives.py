"""Derivatives of derivatives: the torch-level graph runs again under autograd, which then knows how gradients were made.

That needs the graph's inputs, unchanged. The node refers to them weakly, so it costs no memory; who wants a second
derivative with respect to something holds it anyway.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from smelt.graph import torch_settings
from smelt.graph.graph_function import GraphFunction
from smelt.graph.passes import has_effect
from smelt.trace.joint import Joint
from smelt.trace.opaque import OpaqueCall
from smelt.trace.traced import Traced

Gradients = Sequence[torch.Tensor | None]
DoubleBackward = Callable[[tuple[torch.Tensor, ...], tuple[torch.Tensor | None, ...]], Gradients]


def double_backward(traced: Traced, joint: Joint) -> DoubleBackward | None:
    """From the graph's inputs and the tangents (None where undefined) to the gradients, with a history. None for graphs
    that cannot be run a second time: they write, draw random numbers, take numbers that change, or ran under autocast;
    nor for those whose gradients flow through several nodes, or that take gradients of inputs away, or whose checkpoints
    would see other objects."""
    values = [r.index for r in joint.results if r.kind == "value" and not r.steps]
    is_plain = values == list(range(joint.n_outputs)) and len(joint.results) == joint.n_outputs
    checkpoints = [
        n.target for n in traced.torch_graph if type(n.target) is OpaqueCall and n.target.is_checkpoint
    ]
    repeatable = not any(has_effect(node) for node in traced.aten_graph)
    repeatable &= all(call.repeatable for call in checkpoints)
    autocast = any(torch_settings.read()[2::2])
    if (
        not is_plain
        or not repeatable
        or autocast
        or traced.numbers
        or joint.cuts
        or not joint.flags.repeatable
    ):
        return None

    @functools.cache
    def forward() -> GraphFunction:
        return GraphFunction(traced.torch_graph)

    def gradients(primals: tuple[torch.Tensor, ...], tangents: tuple[torch.Tensor | None, ...]) -> Gradients:
        with torch.enable_grad():
            # A checkpoint calls the user's modules, which have parameters of their own and know no views of them.
            seen = primals if checkpoints else tuple(map(_unhooked, primals))
            if checkpoints and any(map(_is_hooked, primals)):
                raise RuntimeError(
                    "smelt: a second derivative through a checkpoint, of a tensor with hooks, which would run twice"
                )
            results = forward()(*seen)
            defined = [(results[i], t) for i, t in zip(joint.tangents, tangents) if t is not None]
            return torch.autograd.grad(
                [result for result, _ in defined],
                [seen[i] for i in joint.gradients],
                [tangent for _, tangent in defined],
                create_graph=True,
                allow_unused=True,
            )

    return gradients


def _is_hooked(primal: torch.Tensor) -> bool:
    return bool(primal._backward_hooks) or primal.retains_grad


def _unhooked(primal: torch.Tensor) -> torch.Tensor:
    """`primal` as a view, whose gradient is asked for in its place: the hooks of `primal` (and what keeps its gradient) run
    once, where the engine that called the node takes that gradient on. What the program finds on a tensor it finds here."""
    if not primal.requires_grad:
        return primal
    view = primal.view_as(primal)
    vars(view).update(vars(primal))
    if isinstance(primal, torch.nn.Parameter):
        view._is_param = True  # type: ignore[attr-defined]
    return view
