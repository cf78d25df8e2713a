"""The devices that graphs are compiled for. A `Target` holds all that depends on the machine (`target.py`); each graph has
its own. `cpu.py`, `cuda.py` and `amd.py` define the devices; torch's builds for AMD GPUs call them `cuda` as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch

from smelt.config import Config, defaults
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.targets import amd, cpu, cuda
from smelt.targets.target import Target

Factory = Callable[[Config], Target]

# By device type.
TARGETS: dict[str, Callable[..., Factory]] = {
    "cpu": lambda device: cpu.target,
    "cuda": lambda *devices: partial((cuda if torch.version.hip is None else amd).target, devices),
}
CPU = torch.device("cpu")


def factory(devices: Iterable[torch.device]) -> Factory:
    """The factory of targets for graphs with tensors on `devices`. Raises Unsupported for a device without a target."""
    devices = set(devices)
    unknown = {str(d) for d in devices if d.type not in TARGETS}
    if unknown:
        raise _unsupported(
            f"a tensor on {', '.join(sorted(unknown))}; this backend compiles for CPUs and CUDA"
        )
    gpus = sorted(devices - {CPU}, key=str)
    return TARGETS[gpus[0].type](*gpus) if gpus else TARGETS["cpu"](CPU)


def unusable(device: torch.device) -> str | None:
    """Why smelt does not compile for a GPU under the default options, so that calls on it run eagerly."""
    return cuda.unusable(device) if torch.version.hip is None else amd.unusable(device, defaults())


def _unsupported(detail: str) -> Unsupported:
    return Unsupported(Reason(UNSUPPORTED_OBJECT, detail))
