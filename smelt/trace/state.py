"""torch's thread-local settings that torch-level graphs must repeat: grad mode and autocast.

They are not recorded when they change (context managers do it in many ways) but when a recorded call runs under settings
other than the graph's so far: the nodes that `difference` gives are put before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_EFFECT, Reason

State = tuple[bool, bool, bool, torch.dtype, bool, torch.dtype]

_grad, _inference, _autocast, _autocast_dtype = (
    torch.is_grad_enabled,
    torch.is_inference_mode_enabled,
    torch.is_autocast_enabled,
    torch.get_autocast_dtype,
)


def read() -> State:
    """(grad mode, inference mode, then for cpu and cuda: autocast enabled, autocast dtype)."""
    return (
        _grad(), _inference(), _autocast("cpu"), _autocast_dtype("cpu"), _autocast("cuda"), _autocast_dtype("cuda"),
    )  # fmt: skip


def difference(old: State, new: State) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """The calls that lead from `old` to `new`. Raises Unsupported for a change of inference mode."""
    if old[1] != new[1]:
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "inference mode was switched inside the function"))
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
    if old[0] != new[0]:
        calls.append((torch._C._set_grad_enabled, (new[0],)))
    for device, i in (("cpu", 2), ("cuda", 4)):
        if old[i] != new[i]:
            calls.append((torch.set_autocast_enabled, (device, new[i])))
            if not new[i]:  # eager drops the casts of parameters when it leaves autocast
                calls.append((torch.clear_autocast_cache, ()))
        if old[i + 1] != new[i + 1]:
            calls.append((torch.set_autocast_dtype, (device, new[i + 1])))
    return calls
