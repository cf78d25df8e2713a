"""GPUs of AMD, where asked for by `options={"amd": True}`: as NVIDIA's (`cuda`), but for what is said here.

NEVER RUN on such a GPU. Tests compile the kernels for them, which needs none, and run plans by the simulated device
(`native/devices/hip_driver.cpp` loads and launches there). What is not known to hold on them is left to ATen:

* random numbers: those of hipRAND are others than cuRAND's, which `ops.philox_order` knows;
* products that are generated, layouts of images and rows that are padded: chosen by what cuBLAS and cuDNN do;
* several launches by one: their table would have to be copied to the device;
* replays of CUDA graphs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace

import torch

from smelt import _native
from smelt.config import Config
from smelt.plan.target import Target
from smelt.targets.cuda import COSTS, of_arch, unsupported

ARCHS = ("gfx90a", "gfx942", "gfx950")  # MI200, MI300, MI350: what tests compile for


def target(devices: Sequence[torch.device], config: Config) -> Target:
    """As `cuda.target`. Raises Unsupported where it is not asked for, or where tests compile nothing for the GPU."""
    device = devices[0]
    if (why_not := unusable(device, config)) is not None:
        raise unsupported(device, why_not)
    _native.use_hip()
    return of_arch(devices, config, _arch(device), replace(COSTS, alignment=None), channels_last=False)


def unusable(device: torch.device, config: Config) -> str | None:
    """Why nothing is compiled for it: calls on it run eagerly."""
    if not config.amd:
        return 'smelt\'s kernels have never been run on GPUs of AMD; options={"amd": True} or SMELT_AMD=1 has it try'
    if (arch := _arch(device)) not in ARCHS:
        return f"no kernel of smelt's was ever compiled for {arch}, only for {', '.join(ARCHS)}"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    return None


def _arch(device: torch.device) -> str:
    """Without its modes (`gfx942:sramecc+:xnack-`): code runs in each."""
    name: str = torch.cuda.get_device_properties(device).gcnArchName
    return name.partition(":")[0]
