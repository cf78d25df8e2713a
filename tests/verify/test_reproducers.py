"""Scripts that `verify` writes: run alone, they fail as long as compiled code is wrong."""

import logging
import re
from pathlib import Path

import pytest
import torch

import smelt
from tests.harness.processes import start
from tests.harness.wrong_lowering import wrong


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


def run_alone(path, operator=None):
    """What comes of `python path`, where the lowering of `operator` is wrong, if one is named."""
    script = f"import runpy\nrunpy.run_path({str(path)!r}, run_name='__main__')"
    wrongly = f"""
import runpy, sys
sys.argv[1:] = {[operator, str(path)]}
runpy.run_module("tests.harness.wrong_lowering", run_name="__main__")
"""
    return start(script if operator is None else wrongly, timeout=300)


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
    made = run_alone(path, "aten.mul.Tensor")
    assert made.returncode == 1 and "AssertionError: result 0: " in made.stderr, made.stderr
    mended = run_alone(path)
    assert (mended.returncode, mended.stdout) == (0, "no difference\n"), mended.stderr


def test_one_of_a_backward(reproducer):
    x = torch.randn(40, 5, requires_grad=True)
    with wrong("aten.tanh_backward.default"):
        smelt.compile(lambda x: x.tanh().sum(), options={"verify": 1})(x).backward()
    made = run_alone(reproducer(), "aten.tanh_backward.default")
    assert made.returncode == 1 and "AssertionError: result 0: " in made.stderr, made.stderr
