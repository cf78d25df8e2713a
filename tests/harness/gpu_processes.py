"""Programs in processes of their own that have a GPU, or the simulated device, with or without the compiler."""

import json
import os
from pathlib import Path

import pytest
import torch

from tests.harness.processes import start
from tests.simulated import cuda
from tests.simulated.compiled import SHARED_CODE

SIMULATED = not torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(
    SIMULATED and cuda.why_not() is not None, reason="no GPU, and none can be simulated"
)

# Activates the simulated device, with or without the compiler.
ACTIVATE = """
from tests.simulated import cuda
from smelt import _native
cuda.activate()
_native.use_driver(str(cuda.driver()))
"""
# What programs may call for results that have a form in JSON.
PLAIN = """
import torch

def plain(value):
    if isinstance(value, torch.Tensor):
        return [str(value.device), value.tolist()]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value
"""
WITH_COMPILER = """
from tests.simulated import compiled
compiled.activate()
"""


def process(folder: Path, program: str, arguments: list[str], *, compiles: bool, **variables: str) -> object:
    """What `main` of a module prints as JSON. `compiles`: whether it needs the compiler."""
    (folder / "programs_on_gpu.py").write_text(PLAIN + program)
    (folder / "code").mkdir(exist_ok=True)
    activate = (WITH_COMPILER if compiles else ACTIVATE) if SIMULATED else ""
    text = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); sys.argv[1:] = {arguments!r}\n"
        f"{activate}\nimport programs_on_gpu as p; p.main()"
    )
    env = {**os.environ, "SMELT_CACHE_DIR": str(folder / "cache"), SHARED_CODE: str(folder / "code")}
    done = start(text, env={**env, **variables})
    assert done.returncode == 0, done.stderr
    assert "smelt" not in done.stderr, done.stderr
    return json.loads(done.stdout)


def close(a: object, b: object) -> bool:
    """Whether nested numbers agree."""
    if isinstance(a, (list, dict)):
        items = a.items() if isinstance(a, dict) else enumerate(a)
        return type(a) is type(b) and len(a) == len(b) and all(close(v, b[k]) for k, v in items)
    return a == pytest.approx(b, rel=1e-4, abs=1e-5) if isinstance(a, float) else a == b
