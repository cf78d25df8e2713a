"""Tests marked `simulated_cuda`: those of a file run in one process of its own, which has the simulated device.

`pytest` there writes a report, and each test here says what it said: a process cannot give the device back.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.simulated import cuda

ROOT = Path(__file__).parent.parent.parent
INSIDE = "SMELT_TESTS_INSIDE_SIMULATED_CUDA"
Report = Iterable[ElementTree.Element]  # failures and skips
REPORTS = pytest.StashKey[dict[Path, dict[str, Report]]]()


def inside() -> bool:
    """Whether this is a process that has the device."""
    return INSIDE in os.environ


def run_elsewhere(item: pytest.Item) -> None:
    """Nothing of the test runs here, nor its fixtures."""
    item.setup = lambda: None
    item.runtest = lambda: _repeat_outcome(item)


def _repeat_outcome(item: pytest.Item) -> None:
    """Passes, fails or skips as the test does in the process of its file."""
    if reason := cuda.why_not():
        pytest.skip(reason)
    reports = item.session.stash.setdefault(REPORTS, {})
    if item.path not in reports:
        reports[item.path] = _run([i for i in item.session.items if i.path == item.path])
    for said in reports[item.path][item.name]:
        if said.tag == "skipped":
            pytest.skip(said.get("message", ""))
        if said.tag in ("failure", "error"):
            pytest.fail(said.text or said.get("message", ""), pytrace=False)


def _run(tests: list[pytest.Item]) -> dict[str, Report]:
    """What was said of each, by its name; where the process died, that."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *(t.nodeid for t in tests)]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | {INSIDE: "1"}, capture_output=True, text=True, timeout=280
        )
        if not report.exists():
            died = ElementTree.Element("failure")
            died.text = f"the process ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
            return {t.name: [died] for t in tests}
        return {str(case.get("name")): case for case in ElementTree.parse(report).iter("testcase")}
