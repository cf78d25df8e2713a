"""Programs of tests/parity with their tensors on the simulated device: autograd's threads, nodes that draw, refusals."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulated import cuda

ROOT = Path(__file__).parent.parent.parent


FILES = ("test_second_derivatives.py", "test_views_read_further.py", "test_numbers_that_do_not_fit.py")


def test_all_pass() -> None:
    if reason := cuda.why_not():
        pytest.skip(reason)
    files = [f"tests/parity/{file}" for file in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"SMELT_DEVICE": "cuda"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-4000:]
