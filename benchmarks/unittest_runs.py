"""Runs of unittest suites in processes of their own, for sweeps over the tests of others.

A forked process runs the tests and writes a line as each begins and ends. Where a test hangs or ends the process, the next
process continues behind it. `Outcomes` holds what the tests gave.
"""

from __future__ import annotations

import datetime
import functools
import importlib.machinery
import json
import logging
import os
import platform
import signal
import subprocess
import sysconfig
import tempfile
import time
import traceback
import types
import unittest
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TextIO

import torch

import smelt
from benchmarks.measure import machine

PASSED = "pass"

# Runs the tests whose ids are in the set (None: all) and has a `Recorder` write to the file.
Work = Callable[["set[str] | None", TextIO], None]


class Recorder(unittest.TestResult):
    """Writes a line as each test begins, and one as it ends: what it gave, and in a few words why."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self.out = out
        self.found = PASSED
        self.why = ""

    def _write(self, **line: str) -> None:
        self.out.write(json.dumps(line) + "\n")
        self.out.flush()

    def _note(self, found: str, why: str = "") -> None:
        if self.found == PASSED:
            self.found, self.why = found, why

    def startTest(self, test: unittest.TestCase) -> None:
        self.found, self.why = PASSED, ""
        self._write(began=test.id())
        super().startTest(test)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self._write(ended=test.id(), found=self.found, why=self.why)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._note("error", self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    addFailure = addError

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.addError(subtest, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._note("skip", reason)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._note("expected failure")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._note("unexpected success")


def cases(suite: unittest.TestSuite) -> Iterator[tuple[unittest.TestSuite, int]]:
    """Where each test of `suite` stands: the suite that holds it, and its index there."""
    for at, test in enumerate(suite._tests):
        if isinstance(test, unittest.TestSuite):
            yield from cases(test)
        else:
            yield suite, at


def run_suite(suite: unittest.TestSuite, record: Recorder, lists: bool, only: set[str] | None) -> None:
    """Runs the tests of `suite` whose ids are in `only` (None: all), or lists all without running them."""
    for holder, at in cases(suite):
        test = holder._tests[at]
        if lists:
            record.startTest(test)  # type: ignore[arg-type]
            record.stopTest(test)  # type: ignore[arg-type]
        if lists or (only is not None and test.id() not in only):
            holder._tests[at] = unittest.TestSuite()
    suite.run(record)


class Finder(importlib.machinery.PathFinder):
    """Finds the modules of a folder of tests, and those named in `also`, and loads them with `loader`."""

    def __init__(
        self, folder: Path, loader: type[importlib.machinery.SourceFileLoader], also: Sequence[str] = ()
    ) -> None:
        self._folder, self._loader, self._also = folder, loader, also

    def find_spec(  # type: ignore[override]
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return None
        if fullname not in self._also and self._folder not in Path(spec.loader.path).parents:
            return None
        spec.loader = self._loader(fullname, spec.loader.path)
        return spec


# ------------------------------------------------------------------------------------------------ the processes


@dataclass(frozen=True)
class Limits:
    """Seconds that a process may take, and one test of it."""

    process: float
    test: float = float("inf")


@dataclass
class Outcomes:
    """What the tests of a module gave, by id, in the order in which they ran."""

    found: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    failed: str = ""  # the traceback of what the process raised outside of tests

    def passed(self) -> list[str]:
        return [test for test, found in self.found.items() if found == PASSED]


def run_tests(work: Work, only: list[str] | None, limits: Limits) -> Outcomes:
    """What the tests of `work` gave, each process continuing behind the test at which the last one hung or died."""
    outcomes, left = Outcomes(), only
    start = time.perf_counter()
    while left is None or left:
        how = _process(work, left, limits, outcomes)
        if not how:
            break
        running = next((test for test, found in outcomes.found.items() if not found), None)
        if (
            running is None or left is None
        ):  # outside of all tests, or the names of those behind it are not known
            break
        outcomes.found[running] = how
        left = [test for test in left if test not in outcomes.found]
    for test in left or ():
        outcomes.found.setdefault(test, "did not run")
    outcomes.seconds = time.perf_counter() - start
    return outcomes


def _process(work: Work, only: list[str] | None, limits: Limits, outcomes: Outcomes) -> str:
    """Runs one process, adds what it wrote, and returns how it ended, where it did not end well."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out.jsonl"
        process = os.fork()  # torch is imported once; no thread runs yet
        if process == 0:
            _child(work, only, out)
        how = _end(process, limits, out)
        done = _read(out, outcomes)
    return "" if done else how or "ended the process"


def _child(work: Work, only: list[str] | None, out: Path) -> NoReturn:
    """The whole of a process, a group of its own."""
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        os.environ["TMPDIR"] = str(out.parent)
        tempfile.tempdir = None
        logging.getLogger("smelt").setLevel(logging.CRITICAL)
        torch.set_num_threads(1)
        with out.open("a", encoding="utf-8") as lines:
            work(set(only) if only is not None else None, lines)
            lines.write(json.dumps({"done": True}) + "\n")
    except BaseException:  # for instance from the import of the tests
        with out.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"failed": traceback.format_exc()}) + "\n")
    finally:
        os._exit(0)


def _end(process: int, limits: Limits, out: Path) -> str:
    over = time.monotonic() + limits.process
    written, since = 0, time.monotonic()
    while time.monotonic() < (min(over, since + limits.test) if written else over):
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return "" if code >= 0 else f"killed by signal {-code}"
        size = out.stat().st_size if out.exists() else 0
        if size != written:
            written, since = size, time.monotonic()
        time.sleep(0.05)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return f"ran when {min(limits.process, limits.test):.0f} s were over"


def _read(path: Path, outcomes: Outcomes) -> bool:
    done = False
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        line = json.loads(text)
        done |= "done" in line
        outcomes.failed = line.get("failed", outcomes.failed)
        if "began" in line:
            outcomes.found[line["began"]] = ""
        if "ended" in line:
            outcomes.found[line["ended"]], outcomes.why[line["ended"]] = line["found"], line["why"]
    return done


# ------------------------------------------------------------------------------------------------ for the tables


@functools.cache
def commit() -> str:
    """The commit that is checked out, and whether the code differs from it."""
    git = ("git", "-C", str(Path(__file__).parent))
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "../smelt"]).returncode
    return name.stdout.strip() + (" with changes" if changed else "")


def here() -> str:
    """The date, the versions, the machine."""
    known = machine()
    return (
        f"{datetime.date.today()}, smelt {smelt.__version__}, torch {torch.__version__}, CPython "
        f"{platform.python_version()}, {known['cpu']}"
    )


def relative_names(text: str) -> str:
    """`text` with the names of the standard library's files relative to its folder: results show no machine's paths."""
    return text.replace(sysconfig.get_path("stdlib") + "/", "")
