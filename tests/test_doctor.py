"""`python -m smelt.doctor`: a report of what is here, and of programs that it has compiled and compared."""

import os
import re

import torch

import smelt
from tests.harness.processes import start


def report(before: str = "") -> tuple[int, str]:
    """The status and the report of a process in which `before` ran first."""
    program = f"{before}\nimport runpy\nrunpy.run_module('smelt.doctor', run_name='__main__')"
    done = start(program)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_it_tells_what_is_here_and_what_works():
    status, text = report("import os; os.environ['SMELT_VERIFY'] = '1'")
    assert status == 0, text
    sections = [line for line in text.splitlines() if not line.startswith(" ")]
    assert sections == ["versions:", "machine:", "settings:", "works:", "not built yet:"]
    lines = dict(line.strip().split(": ", 1) for line in text.splitlines() if line.startswith(" "))
    assert lines["torch"].startswith(torch.__version__)
    assert lines["smelt"] == "yes"  # the last of two: under "works"
    assert f"{smelt.__version__}, " in text and "SMELT_VERIFY: 1" in text
    kept = os.environ["SMELT_CACHE_DIR"]
    assert re.fullmatch(rf"{kept}: \d+\.\d of 1074 MB \(kernels of GPUs\)", lines["disk cache"])
    assert {lines[name] for name in ("inference", "training", "bfloat16")} == {"yes"}


def test_it_says_why_nothing_is_compiled():
    status, text = report("import sys; sys.modules['smelt._native'] = None")
    assert status == 1
    assert "what works and what does not:\n  smelt: smelt cannot be imported here" in text
    assert "inference" not in text


def test_it_says_why_nothing_is_kept(tmp_path):
    tmp_path.chmod(0o777)
    _, text = report(f"import os; os.environ['SMELT_CACHE_DIR'] = {str(tmp_path)!r}")
    assert f"disk cache: nothing is kept: {tmp_path} can be written by others (mode 777)" in text
    _, text = report("import os; os.environ['SMELT_KERNEL_CACHE'] = '0'")
    assert "disk cache: nothing is kept: kernel_cache is off" in text


def test_it_says_what_gives_another_result_than_eager():
    """A backend that negates what it returns is planted in the place of smelt's."""
    planted = """
import smelt
right = smelt.compile
smelt.compile = lambda function, **kwargs: lambda *args: -right(function, **kwargs)(*args)
"""
    status, text = report(planted)
    assert status == 1
    assert (
        "what works and what does not:\n  smelt: yes\n  inference: AssertionError: Tensor-likes are not close!"
        in text
    )
