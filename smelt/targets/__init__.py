"""The devices that graphs are compiled for: one `Target` for each graph, with all that depends on the machine (`cpu`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from smelt.config import Config
from smelt.errors import Unsupported
from smelt.plan.target import Target
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.targets import cpu

# By type of device.
TARGETS: dict[str, Callable[[Config], Target]] = {"cpu": cpu.target}


def maker(devices: Iterable[torch.device]) -> Callable[[Config], Target]:
    """What makes the targets of graphs whose tensors are on `devices`. Raises Unsupported where there is no target."""
    devices = set(devices)
    elsewhere = {str(d) for d in devices if d.type not in TARGETS}
    if elsewhere:
        detail = f"a tensor on {', '.join(sorted(elsewhere))}; this backend compiles for the CPU only so far"
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, detail))
    beside = sorted({d.type for d in devices} - {"cpu"})
    return TARGETS[beside[0] if beside else "cpu"]
