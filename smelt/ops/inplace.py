"""The pure counterpart of an operator that writes its arguments: `add_.Tensor` -> `add.Tensor`, `mm.out` -> `mm`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from smelt.ops.kinds import effects


@dataclass(frozen=True)
class Pure:
    """`op` computes what the writing operator would write. It takes the same arguments, by name, less `dropped` ones.

    `value_of[name]` is the index of the result that holds the new value of the written argument `name`; `n_results` is
    how many leading results correspond to the writing operator's own (fresh) results.
    """

    op: OpOverload
    dropped: frozenset[str]
    value_of: dict[str, int]
    n_results: int


_PURE: dict[OpOverload, Pure | None] = {}


def pure_of(op: OpOverload) -> Pure | None:
    """The pure counterpart, or None where torch has none."""
    if op not in _PURE:
        _PURE[op] = _find(op)
    return _PURE[op]


def _find(op: OpOverload) -> Pure | None:
    info = effects(op)
    namespace, name = op._schema.name.split("::")
    outs = frozenset(a.name for a in op._schema.arguments if a.is_out)
    if outs:
        twin = _twin(namespace, name.removesuffix("_out"), op, outs)
        return Pure(twin, outs, {n: i for i, n in enumerate(info.writes)}, 0) if twin is not None else None
    fresh = sum(r.kind == "fresh" for r in info.results)
    for candidate in (name[:-1] if name.endswith("_") else name, f"{name.removesuffix('_')}_functional"):
        twin = _twin(namespace, candidate, op, frozenset())
        if twin is not None and len(twin._schema.returns) == fresh + len(info.writes):
            return Pure(twin, frozenset(), {n: fresh + i for i, n in enumerate(info.writes)}, fresh)
    return None


def _twin(namespace: str, name: str, op: OpOverload, dropped: frozenset[str]) -> OpOverload | None:
    """The overload of `name` that writes nothing and takes the arguments of `op` less `dropped`."""
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None:
        return None
    want = [_signature(a) for a in op._schema.arguments if a.name not in dropped]
    for overload in packet.overloads():
        found = getattr(packet, overload)
        if [_signature(a) for a in found._schema.arguments] == want and not effects(found).writes:
            return found
    return None


def _signature(argument: Any) -> tuple[str, str]:
    return argument.name, str(argument.type)
