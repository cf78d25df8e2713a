"""The devices that graphs are compiled for: one `Target` for each graph, with all that depends on the machine (`cpu`,
`cuda`; torch's builds for AMD's GPUs call these `cuda`, too: `amd`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch

from smelt.config import DEFAULT, Config
from smelt.errors import Unsupported
from smelt.plan.target import Target
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.targets import amd, cpu, cuda

Maker = Callable[[Config], Target]

# By type of device.
TARGETS: dict[str, Callable[..., Maker]] = {
    "cpu": lambda device: cpu.target,
    "cuda": lambda *devices: partial((cuda if torch.version.hip is None else amd).target, devices),
}
CPU = torch.device("cpu")


def maker(devices: Iterable[torch.device]) -> Maker:
    """What makes the targets of graphs whose tensors are on `devices`. Raises Unsupported where there is no target."""
    devices = set(devices)
    elsewhere = {str(d) for d in devices if d.type not in TARGETS}
    if elsewhere:
        raise _unsupported(
            f"a tensor on {', '.join(sorted(elsewhere))}; this backend compiles for CPUs and CUDA"
        )
    beside = sorted(devices - {CPU}, key=str)
    return TARGETS[beside[0].type](*beside) if beside else TARGETS["cpu"](CPU)


def unusable(device: torch.device) -> str | None:
    """Why nothing is compiled for a GPU, unless options say otherwise: calls on it run eagerly."""
    return cuda.unusable(device) if torch.version.hip is None else amd.unusable(device, DEFAULT)


def _unsupported(detail: str) -> Unsupported:
    return Unsupported(Reason(UNSUPPORTED_OBJECT, detail))
