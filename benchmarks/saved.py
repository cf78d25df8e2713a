"""How many bytes of activations a forward call leaves behind for its backward, counted exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


def saved_bytes(forward: Callable[[], Any], given: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages that autograd saves in `forward()`, each once; those of `given` tensors (parameters, buffers,
    inputs) do not count: they are there anyway. A compiled graph's node saves through the same hooks as eager's nodes."""
    excluded = {t.untyped_storage().data_ptr() for t in given}
    sizes: dict[int, int] = {}
    alive: list[torch.Tensor] = []  # an address names one storage as long as that lives

    def pack(t: torch.Tensor) -> torch.Tensor:
        storage = t.untyped_storage()
        alive.append(t)
        if storage.data_ptr() not in excluded:
            sizes[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = forward()
    del out
    return sum(sizes.values())
