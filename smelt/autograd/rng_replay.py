"""Random numbers that the backward draws again, from the generator state of the forward.

On a CPU, drawing costs more than reading (dropout's mask is saved in one byte per element), but the state takes 5 kB
however many numbers follow. So replay is used for memory budgets below 1. The forward saves the state just before it
draws; the backward runs the same operator with a generator of its own, which leaves torch's unchanged.

On a GPU whose kernels draw (`ops/philox_order.py`) the state is two numbers, and the kernel that reads a dropout's
mask computes the mask from them: it is replayed whatever the budget, and the dropout's result follows from its input
and the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from smelt.autograd.recompute_formulas import Formula, Provision, formula_from
from smelt.config import Config
from smelt.graph.ir import Node
from smelt.graph.tensor_specs import make_spec
from smelt.ops.node_builders import uninitialized
from smelt.ops.philox_order import blocks_that_draw
from smelt.ops.random_numbers import dropped_out
from smelt.ops.registry import row
from smelt.rewrites.graph_rewriter import NodeBuilder
from smelt.torch_private import OpOverload

_LIBRARY = torch.library.Library("smelt", "FRAGMENT")
_LIBRARY.define("generator_state(Tensor like) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_LIBRARY.impl("generator_state", lambda like: torch.get_rng_state(), "CPU")
WHY = "random: its numbers are drawn again"
STATE: OpOverload = torch.ops.smelt.generator_state.default


def replay_draw(node: Node, items: dict[int, Node], make: NodeBuilder, config: Config) -> Provision | None:
    """The provision that replays what `node` draws with torch's generator. None for other operators, and where saving
    is cheaper. `items`: the nodes of its results, for an operator with several."""
    if row(node.target).redrawn == "mask":
        return _replay_dropout(node, items, make, config)
    return _replay_on_cpu(node, make) if config.activation_memory_budget < 1 else None


def _replay_dropout(
    node: Node, items: dict[int, Node], make: NodeBuilder, config: Config
) -> Provision | None:
    x, p, train = node.args
    result, mask = items.get(0), items.get(1)
    if mask is None or train is not True or not 0 < p < 1 or not x.spec.dtype.is_floating_point:
        return None
    # A CUDA graph replay would not change a number that is passed by value.
    by_value = x.spec.device.type == "cuda" and not config.cuda_graphs
    blocks = blocks_that_draw(x.spec.device) if by_value else 0
    if not blocks or any(type(n) is not int or not n for n in x.spec.shape):
        return None
    make.begin(node)
    number = make_spec((), (), torch.int64, torch.device("cpu"))
    smelt = torch.ops.smelt
    state = make.emit(smelt.philox_offset.default, (0, x.spec.device), {}, (number, number), "rng_state")
    seed, offset = make.item(state, 0, "seed"), make.item(state, 1, "offset")
    layout = list(x.spec.shape), list(x.spec.stride), x.spec.offset, x.spec.dtype, x.spec.device
    drawn = make.emit(smelt.dropout_mask.default, (seed, offset, *layout, blocks, p), {}, mask.spec)
    formulas = {mask: Formula((make.rename(drawn, mask.name),))}
    make.begin(node)
    if result is not None and (dropped := formula_from(make, dropped_out(make, x, mask, p), result)):
        formulas[result] = dropped
    return Provision((state, seed, offset), (seed, offset), formulas, WHY)


def _replay_on_cpu(node: Node, make: NodeBuilder) -> Provision | None:
    op = node.target
    redrawn = row(op).redrawn
    if redrawn is None or node.spec.device.type != "cpu":
        return None
    make.begin(node)
    source, *trailing = node.args
    size = torch.get_rng_state().numel()
    spec_of_state = make_spec((size,), (1,), torch.uint8, node.spec.device)
    state = make.emit(STATE, (source,), {}, spec_of_state, "generator_state")
    make.begin(node)
    like = uninitialized(make, source.spec) if redrawn == "like" else source
    drawn = make.emit(_replaying_operator(op), (state, like, *trailing), {}, node.spec)
    make.rename(drawn, node.name)
    return Provision((state,), (state,), {node: Formula(tuple(make.nodes))}, WHY)


@cache
def _replaying_operator(op: OpOverload) -> OpOverload:
    """The operator that does what `op` does with a generator in the state that is its first argument."""
    schema = str(op._schema)
    arguments = schema[schema.index("(") + 1 : schema.rindex(") ->")]
    arguments = arguments.removesuffix(", *, Generator? generator=None")
    name = f"{str(op).replace('.', '_')}_replayed"
    _LIBRARY.define(f"{name}(Tensor state, {arguments}) -> Tensor")
    _LIBRARY.impl(name, _with_state(op), "CPU")
    replayed: OpOverload = getattr(torch.ops.smelt, name).default
    return replayed


def _with_state(op: OpOverload) -> Callable[..., Any]:
    def run(state: torch.Tensor, *args: Any) -> Any:
        generator = torch.Generator()
        generator.set_state(state)
        return op(*args, generator=generator)

    return run
