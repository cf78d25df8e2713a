"""AMD GPUs, which `options={"amd": True}` enables: the target of NVIDIA GPUs (`cuda.py`) with the restrictions below.

The target HAS NEVER RUN on an AMD GPU. Tests compile kernels for AMD GPUs, which needs no device, and run plans on the
simulated device (`native/devices/hip_driver.cpp` loads and launches there). ATen keeps what is unverified on AMD GPUs:

* random numbers: hipRAND draws other numbers than cuRAND, whose order `ops.philox_order` implements;
* generated products, channels-last images and padded rows: their cost models describe cuBLAS and cuDNN;
* batched launches: their table would need a copy to the device;
* CUDA graph replay.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace

import torch

from smelt import _native
from smelt.config import Config
from smelt.targets.cuda import COSTS, of_arch, unsupported
from smelt.targets.target import Target

ARCHS = ("gfx90a", "gfx942", "gfx950")  # MI200, MI300, MI350: the architectures that tests compile for


def target(devices: Sequence[torch.device], config: Config) -> Target:
    """`cuda.target` for AMD GPUs. Raises Unsupported without the option `amd`, or where no test compiles for the GPU."""
    device = devices[0]
    if (why_not := unusable(device, config)) is not None:
        raise unsupported(device, why_not)
    _native.use_hip()
    return of_arch(devices, config, _arch(device), replace(COSTS, alignment=None), channels_last=False)


def unusable(device: torch.device, config: Config) -> str | None:
    """Why smelt does not compile for the GPU, so that calls on it run eagerly; None: smelt compiles for it."""
    if not config.amd:
        return 'smelt\'s kernels have never been run on GPUs of AMD; options={"amd": True} or SMELT_AMD=1 has it try'
    if (arch := _arch(device)) not in ARCHS:
        return f"no kernel of smelt's was ever compiled for {arch}, only for {', '.join(ARCHS)}"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    return None


def _arch(device: torch.device) -> str:
    """The architecture without its modes (`gfx942:sramecc+:xnack-`): code runs in all modes."""
    name: str = torch.cuda.get_device_properties(device).gcnArchName
    return name.partition(":")[0]
