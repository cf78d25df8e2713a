"""The autograd node of a found entry with gradients; found entries without gradients do not import this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt import _native
from smelt.autograd.node_data import may_copy
from smelt.runtime import IDLE_ARENAS
from smelt.runtime.fork_locks import backward_lock
from smelt.runtime.uncounted_writes import preserve_input_counters
from smelt.shapes.expr import Sym
from smelt.warm.found_plans import Plans
from smelt.warm.stored_node import node_from


class FoundNode:
    """The autograd nodes of the joint graph, one for each set of sizes. `stored`: the bytes of a `StoredNode`; `symbols`:
    the name, bounds and likely value of each symbol. Raises Damaged for other bytes."""

    def __init__(self, stored: bytes, symbols: Sequence[Sequence[Any]], plans: Plans) -> None:
        self._stored, self._plans = node_from(stored), plans
        self._symbols = [Sym(name, low, high) for name, low, high, _ in symbols]
        self._backwards = _native.ArenaBudget(IDLE_ARENAS, plans.budget)

    def at(self, numbers: tuple[int, ...] = ()) -> _native.Differentiable:
        """What `autograd.compile_joint` returns for these sizes."""
        stored, plans = self._stored, self._plans
        values = dict(zip(self._symbols, numbers, strict=True))
        role = ("forward",)
        forward = plans.at(role, numbers) or (plans.again.forward(numbers) if numbers else plans.first(role))
        if numbers and type(forward) is _native.Plan:
            plans.budget.add(forward)
        history = stored.history
        if history is not None and not may_copy(history.copied_bytes, values):
            history = None

        def backward(defined: Sequence[bool], reach: int = 0, requested: Sequence[bool] = ()) -> Any:
            deterministic = torch.are_deterministic_algorithms_enabled()
            role = "backward", _where_not(defined), int(reach), _where_not(requested), deterministic
            found = plans.at(role, numbers) or plans.again.backward(role, numbers, stored.temporaries)
            if numbers and type(found) is _native.Plan:
                self._backwards.add(found)
            return found

        def substitute(index: int, requested: Sequence[bool]) -> torch.Tensor | None:
            return stored.substitutes[index].at(values, requested)

        def double_backward(*arguments: Any) -> Any:
            return plans.again.double_backward(numbers)(*arguments)

        spec: Any = {
            **stored.data.spec(values),
            **({} if history is None else history.spec(values)),
            "devices": stored.devices,
            "conditions": stored.conditions,
            "forward": preserve_input_counters(forward, *stored.counters),
            "backward": backward,
            "name": "SmeltBackward",
            "lock": backward_lock,
            "double_backward": None if history is None else double_backward,
            "substitute": substitute,
        }
        return _native.Differentiable(spec)


def _where_not(flags: Sequence[bool]) -> tuple[int, ...]:
    return tuple([i for i, flag in enumerate(flags) if not flag])
