"""Tests marked `simulated_cuda` run in other processes, which have the simulated device: they cannot give it back.

Files of tests/simulated share a few processes, as each imports torch and the compiler, for seconds; a file elsewhere has its
own. `pytest` there writes a report, and each test here says what it said.
"""

import faulthandler
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
PROCESSES = 3
TIMEOUT = 900  # seconds, of all tests of a process; each has its own limit there
ALONE = {
    "test_amd_there.py",
    "test_first_attention.py",
}  # they need another driver, or a process that did nothing before
FILES = sorted(p.name for p in (ROOT / "tests/simulated").glob("test_*.py"))
Report = Iterable[ElementTree.Element]  # failures and skips
REPORTS = pytest.StashKey[dict[str, dict[tuple[str, str], Report]]]()


def inside() -> bool:
    """Whether this is a process that has the device."""
    return INSIDE in os.environ


def process_of(file: str) -> str:
    """The name of the process that runs the tests of this file, a path below the repository's root."""
    folder, _, name = file.rpartition("/")
    if folder != "tests/simulated" or name in ALONE or name not in FILES:
        return file
    return f"tests/simulated {FILES.index(name) % PROCESSES}"


def run_elsewhere(item: pytest.Item) -> None:
    """Nothing of the test runs here, nor its fixtures."""
    item.add_marker(pytest.mark.timeout(TIMEOUT + 20))
    item.setup = lambda: None
    item.runtest = lambda: _repeat_outcome(item)


def _repeat_outcome(item: pytest.Item) -> None:
    """Passes, fails or skips as the test does in its process."""
    if reason := cuda.why_not():
        pytest.skip(reason)
    reports = item.session.stash.setdefault(REPORTS, {})
    process = process_of(_file(item))
    if process not in reports:
        faulthandler.cancel_dump_traceback_later()  # the limit of one test, not of all that run there
        marked = (i for i in item.session.items if i.get_closest_marker("simulated_cuda"))
        reports[process] = _run([i for i in marked if process_of(_file(i)) == process])
    for said in reports[process][_reported(item)]:
        if said.tag == "skipped":
            pytest.skip(said.get("message", ""))
        if said.tag in ("failure", "error"):
            pytest.fail(said.text or said.get("message", ""), pytrace=False)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _reported(item: pytest.Item) -> tuple[str, str]:
    """As a report names its module, and it."""
    return _file(item).removesuffix(".py").replace("/", "."), item.name


def _run(tests: list[pytest.Item]) -> dict[tuple[str, str], Report]:
    """What was said of each, by its module and name; where the process died or ran out of time, that."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *(t.nodeid for t in tests)]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=os.environ | {INSIDE: "1"},
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired as error:
            return _all_failed(tests, f"{error}\n{(error.stdout or b'').decode(errors='replace')}")
        if not report.exists():
            why = f"the process ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
            return _all_failed(tests, why)
        cases = ElementTree.parse(report).iter("testcase")
        return {(str(case.get("classname")), str(case.get("name"))): case for case in cases}


def _all_failed(tests: list[pytest.Item], why: str) -> dict[tuple[str, str], Report]:
    failure = ElementTree.Element("failure")
    failure.text = why
    return {_reported(t): [failure] for t in tests}
