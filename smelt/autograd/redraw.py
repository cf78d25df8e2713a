"""Random numbers that the backward draws again, from the state that the generator had in the forward.

Drawing costs more than reading what was drawn (dropout's mask is kept in one byte an element), but the state takes 5 kB
however many numbers follow. So this is a way for memory budgets below 1. The forward keeps the state just before it draws;
the backward runs the same operator with a generator of its own, which leaves torch's alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from smelt.autograd.rewrites import Formula, NodeMaker
from smelt.graph.ir import Node
from smelt.graph.specs import make_spec
from smelt.ops.registry import row
from smelt.torch_private import OpOverload

aten = torch.ops.aten

_LIBRARY = torch.library.Library("smelt", "FRAGMENT")
_LIBRARY.define("generator_state(Tensor like) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_LIBRARY.impl("generator_state", lambda like: torch.get_rng_state(), "CPU")
STATE: OpOverload = torch.ops.smelt.generator_state.default


@dataclass(frozen=True)
class Redraw:
    """`state`, which the forward computes just before it draws, and how the numbers follow from it."""

    state: Node
    formula: Formula


def redraw(node: Node, make: NodeMaker) -> Redraw | None:
    """How what `node` draws, with torch's generator, is drawn again. None for operators that this is not known of."""
    op = node.target
    redrawn = row(op).redrawn
    if redrawn is None or node.spec.device.type != "cpu":
        return None
    make.begin(node)
    source, *rest = node.args
    size = torch.get_rng_state().numel()
    state = Node(
        *("call_function", STATE, (source,), {}, make.name("generator_state")),
        *(make_spec((size,), (1,), torch.uint8, node.spec.device), node.line, node.source),
    )
    like = source
    if redrawn == "like":
        spec = source.spec
        options = {"dtype": spec.dtype, "device": spec.device}
        like = make(aten.empty_strided.default, list(spec.shape), list(spec.stride), **options)
    args = (state, like, *rest)
    drawn = Node("call_function", _redrawing(op), args, {}, node.name, node.spec, node.line, node.source)
    return Redraw(state, Formula((*make.nodes, drawn)))


@cache
def _redrawing(op: OpOverload) -> OpOverload:
    """The operator that does what `op` does with a generator in the state that is its first argument."""
    schema = str(op._schema)
    arguments = schema[schema.index("(") + 1 : schema.rindex(") ->")]
    arguments = arguments.removesuffix(", *, Generator? generator=None")
    name = f"{str(op).replace('.', '_')}_again"
    _LIBRARY.define(f"{name}(Tensor state, {arguments}) -> Tensor")
    _LIBRARY.impl(name, _with_state(op), "CPU")
    made: OpOverload = getattr(torch.ops.smelt, name).default
    return made


def _with_state(op: OpOverload) -> Callable[..., Any]:
    def run(state: torch.Tensor, *args: Any) -> Any:
        generator = torch.Generator()
        generator.set_state(state)
        return op(*args, generator=generator)

    return run
