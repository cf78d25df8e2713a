"""State that two runs of one graph must not share: written memory, and the states of random generators."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from smelt.graph.ir import Graph, TensorSpec
from smelt.graph.operator_effects import effects
from smelt.graph.pytree import leaves
from smelt.torch_private import OpOverload

States = tuple[torch.Tensor, ...]


def written(graph: Graph) -> frozenset[int]:
    """The inputs that a functional aten graph writes."""
    targets = {
        effects(node.target).argument(name, node.args, node.kwargs)
        for node in graph
        if isinstance(node.target, OpOverload)
        for name in effects(node.target).writes
    }
    return frozenset(i for i, p in enumerate(graph.placeholders) if p in targets)


def isolated_inputs(inputs: Sequence[Any], copied: Collection[int]) -> tuple[Any, ...]:
    """The inputs, with copies at the positions `copied`. Copies have the layouts of the originals and share memory with
    each other as these do."""
    copies: dict[int, torch.UntypedStorage] = {}
    tensors = [inputs[i] for i in copied if isinstance(inputs[i], torch.Tensor)]
    shared = {_memory(t) for t in tensors if _is_plain(t)}

    def isolated(i: int, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if not _is_plain(value):
            return value.detach().clone() if i in copied else value
        memory = _memory(value)
        if memory not in shared:
            return value
        storage = copies.get(memory)
        if storage is None:
            storage = copies[memory] = value.untyped_storage().clone()
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        return made.set_(storage, value.storage_offset(), value.size(), value.stride())

    with torch.no_grad():
        return tuple([isolated(i, value) for i, value in enumerate(inputs)])


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg()


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Generators:
    """The generators that a graph may draw from: those of its devices, and those among its arguments."""

    def __init__(self, graph: Graph) -> None:
        specs = [s for node in graph for s in leaves(node.spec, TensorSpec)]
        gpus = sorted({s.device.index or 0 for s in specs if s.device.type == "cuda"})
        arguments = [g for node in graph for g in leaves((node.args, node.kwargs), torch.Generator)]
        self._all = [
            torch.default_generator,
            *(torch.cuda.default_generators[i] for i in gpus),
            *{id(g): g for g in arguments}.values(),
        ]

    def states(self) -> States:
        """The current states."""
        return tuple([g.get_state() for g in self._all])

    def restore(self, states: States) -> None:
        """Restore earlier states."""
        for generator, state in zip(self._all, states, strict=True):
            generator.set_state(state)
