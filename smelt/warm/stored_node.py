"""The autograd node of a stored entry with gradients, as bytes (`plan/value_encoding.py`)."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from smelt.autograd.node_data import HistoryData, Layout, NodeData, SavedValue, Substitute
from smelt.errors import PlanError
from smelt.plan.value_encoding import decode, encoded
from smelt.warm.stored_entry import Damaged


@dataclass(frozen=True)
class StoredNode:
    """The parts of a node. `data`, `history`, `substitutes`, `devices`: of its `JointNode`; `conditions`: of its `Joint`;
    `counters`: the inputs
    whose writes do not count, and those whose writes do (`preserve_input_counters`); `temporaries`: names of inputs that the
    backwards may free."""

    data: NodeData
    history: HistoryData | None
    substitutes: tuple[Substitute, ...]
    devices: tuple[torch.device, ...]
    conditions: tuple[int | None, ...]
    counters: tuple[tuple[int, ...], tuple[int, ...]]
    temporaries: tuple[str, ...]

    def to_bytes(self) -> bytes:
        """The stored bytes."""
        return encoded(self, {cls: (number, names) for number, (cls, names) in _RECORDS.items()})


_RECORDS: dict[int, tuple[type, tuple[str, ...]]] = {
    number: (cls, tuple(f.name for f in fields(cls)))
    for number, cls in enumerate((StoredNode, NodeData, Layout, SavedValue, HistoryData, Substitute))
}


def node_from(data: bytes) -> StoredNode:
    """The node that `to_bytes` wrote. Raises Damaged."""
    try:
        found = decode(data, _RECORDS)
    except PlanError as error:
        raise Damaged(str(error)) from None
    if not isinstance(found, StoredNode):
        raise Damaged("no node")
    return found
