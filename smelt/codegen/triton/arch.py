"""The GPUs that code is made for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True)
class Arch:
    """A kind of GPU as Triton names it: `cuda` and the compute capability as a number (90 for 9.0)."""

    vendor: str
    version: int | str


@cache
def arch_of(device: torch.device) -> Arch:
    """Of a device of this machine."""
    major, minor = torch.cuda.get_device_capability(device)
    return Arch("cuda", 10 * major + minor)
