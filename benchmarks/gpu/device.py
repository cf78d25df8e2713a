"""The GPU that is measured. With SMELT_SIMULATED=1 a simulated one, to try the scripts where there is none: its figures mean
nothing, and torch.compile cannot work on it."""

from __future__ import annotations

import datetime
import os
import shlex
import sys
from importlib import metadata

import torch

SIMULATED = os.environ.get("SMELT_SIMULATED") == "1"


def ready() -> None:
    """Before the first tensor on the device. Ends the program where there is no GPU."""
    if SIMULATED:
        from tests.simulated import compiled

        compiled.activate()
    elif not torch.cuda.is_available():
        sys.exit("needs a GPU; SMELT_SIMULATED=1 tries the script without one")


def facts(module: str) -> dict[str, str]:
    """What the figures belong to: `module` was run with this process's arguments."""
    versions = {name: _version(name) for name in ("torch", "triton", "transformers", "timm")}
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "cuda": str(torch.version.cuda),
        "cpus": str(len(os.sched_getaffinity(0))),
        "python": sys.version.split()[0],
        **versions,
        "command": f"python -m {module} {shlex.join(sys.argv[1:])}".rstrip(),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
