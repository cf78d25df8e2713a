"""Scripts that `verify` writes: run alone, they fail as long as compiled code is wrong."""

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import smelt
from tests.harness.wrong_lowering import wrong

ROOT = Path(__file__).parents[2]


@pytest.fixture
def reproducer(caplog):
    """The path that the only warning names."""
    caplog.set_level(logging.WARNING, logger="smelt")

    def path():
        [record] = caplog.records
        return Path(re.search(r"reproducer: (\S+\.py)", record.getMessage())[1])

    return path


def joined(x, y):
    a = (x + y).relu()
    b = a * y
    return b.sum(0), x.softmax(-1)


def run_alone(*command):
    return subprocess.run(
        [sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("rows", [4, 100])
def test_one_fails_by_itself(reproducer, rows):
    """With tensors in its text, and with tensors beside it."""
    x, y = torch.randn(rows, 5), torch.randn(rows, 5)
    if rows == 100:
        x, y = x.t(), y.t()
    with wrong("aten.mul.Tensor"):
        smelt.compile(joined, options={"verify": 1})(x, y)
    path = reproducer()
    assert path.with_name("tensors.pt").exists() is (rows == 100)
    made = run_alone("-m", "tests.harness.wrong_lowering", "aten.mul.Tensor", path)
    assert made.returncode == 1 and "AssertionError: result 0: " in made.stderr, made.stderr
    mended = run_alone(path)
    assert (mended.returncode, mended.stdout) == (0, "no difference\n"), mended.stderr


def test_one_of_a_backward(reproducer):
    x = torch.randn(40, 5, requires_grad=True)
    with wrong("aten.tanh_backward.default"):
        smelt.compile(lambda x: x.tanh().sum(), options={"verify": 1})(x).backward()
    made = run_alone("-m", "tests.harness.wrong_lowering", "aten.tanh_backward.default", reproducer())
    assert made.returncode == 1 and "AssertionError: result 0: " in made.stderr, made.stderr
