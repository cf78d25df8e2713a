"""CPython's own tests, each test method compiled, against the same method run as it is.

    python -m benchmarks.sweep_cpython [--modules NAME ...] [--part K/N] [--limit SECONDS] [--out FOLDER]

The modules are those of the running Python's `test` package that test the language, its data types and the parts of the
library that compute (`MODULES`); one that is not installed is left out. Each module runs in two processes, first as it is,
then with every method that passed compiled (the backend runs graphs operator by operator: no test has a tensor). A process
has `--limit` seconds; one that hangs or dies names the test that ran, and another process takes over behind it.

benchmarks/results/cpython.md is the table, written after each module; a part of the modules writes cpython-K-of-N.md. The
tests that may differ are listed in docs/cpython.md, each with its reason: the sweep fails if any other does.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
import types
import unittest
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch

import smelt

RESULTS = Path(__file__).parent / "results"
ACCEPTED = Path(__file__).parent.parent / "docs" / "cpython.md"
LIMIT = 120.0
PASSED = "pass"
_NAMES = """
    abc abstract_numbers array ast asyncgen augassign base64 baseexception binascii binop bisect bool builtin bytes
    calendar call class cmath codecs collections colorsys compare compile complex configparser contains context contextlib
    contextlib_async copy copyreg coroutines csv dataclasses datetime decimal decorators defaultdict deque descr dict
    dict_version dictcomps dictviews difflib dis dynamic dynamicclassattribute enum enumerate eof except_star
    exception_group exception_hierarchy exception_variations exceptions extcall float fnmatch format fractions frame
    fstring funcattrs functools future_stmt generator_stop generators genericalias genericclass genexps getopt global
    grammar graphlib hash heapq html index inspect int int_literal isinstance iter iterlen itertools json keyword
    keywordonlyarg list listcomps locale long longexp marshal math memoryview metaclass minidom named_expressions
    numeric_tower opcache operator optparse ordered_dict patma pep646_syntax pickle plistlib positional_only_arg pow pprint
    print property queue raise random range re reprlib richcmp scope set setcomps shlex slice sort statistics strftime
    string string_literals strptime struct structseq subclassinit super syntax tempfile textwrap threading_local tokenize
    traceback tuple type_annotations typechecks types typing unary unicode unpack unpack_ex unparse urlparse userdict
    userlist userstring uuid weakref weakset with xml_etree yield_from zipfile zlib
"""
MODULES = tuple("test_" + name for name in _NAMES.split())


# ------------------------------------------------------------------------------------- in the process of a module


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


def compile_method(test: unittest.TestCase) -> None:
    """The test's method, compiled, in place of the method. Attributes of the method (`expectedFailure`) are kept."""
    method = getattr(test, test._testMethodName)
    if isinstance(method, types.MethodType) and isinstance(method.__func__, types.FunctionType):
        compiled = smelt.compile(method.__func__, backend="eager")
        setattr(test, test._testMethodName, types.MethodType(compiled, test))


def run_module(name: str, only: set[str] | None, compiled: bool, out: TextIO) -> None:
    """Runs the tests of `test.<name>` whose id is in `only` (None: all that are methods)."""
    from test import support

    support.use_resources = []  # no network, no sound, no long computations
    suite = unittest.defaultTestLoader.loadTestsFromName(f"test.{name}")
    for holder, at in cases(suite):
        test = holder._tests[at]
        name_of_test = test.id()
        if hasattr(test, "_dt_test") or (only is not None and name_of_test not in only):  # a doctest
            holder._tests[at] = unittest.TestSuite()
        elif compiled:
            compile_method(test)  # type: ignore[arg-type]
    suite.run(Recorder(out))


def child(name: str, only: Path | None, compiled: bool, out: Path) -> None:
    """The whole of a module's process."""
    logging.getLogger("smelt").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    wanted = set(json.loads(only.read_text())) if only is not None else None
    with out.open("a", encoding="utf-8") as lines:
        run_module(name, wanted, compiled, lines)
        lines.write(json.dumps({"done": name}) + "\n")


# ------------------------------------------------------------------------------------------------ the processes


@dataclass
class Outcomes:
    """What the tests of a module gave, by id, in the order in which they ran."""

    found: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def passed(self) -> list[str]:
        return [test for test, found in self.found.items() if found == PASSED]


def run_tests(name: str, only: list[str] | None, compiled: bool, limit: float) -> Outcomes:
    """The tests of one module, each process taking over behind the test at which the last one hung or died."""
    outcomes, left = Outcomes(), only
    start = time.perf_counter()
    while left is None or left:
        how = _process(name, left, compiled, limit, outcomes)
        if not how:
            break
        running = next((test for test, found in outcomes.found.items() if not found), None)
        if running is None or left is None:  # outside of all tests, or as it is
            break
        outcomes.found[running] = how
        left = [test for test in left if test not in outcomes.found]
    for test in left or ():
        outcomes.found.setdefault(test, "did not run")
    outcomes.seconds = time.perf_counter() - start
    return outcomes


def _process(name: str, only: list[str] | None, compiled: bool, limit: float, outcomes: Outcomes) -> str:
    """Runs one process, adds what it wrote, and returns how it ended, where it did not end well."""
    with tempfile.TemporaryDirectory() as scratch:
        out, wanted = Path(scratch) / "out.jsonl", Path(scratch) / "wanted.json"
        command = [
            sys.executable,
            "-m",
            "benchmarks.sweep_cpython",
            "--child",
            name,
            "--written-to",
            str(out),
        ]
        if only is not None:
            wanted.write_text(json.dumps(only))
            command += ["--only", str(wanted)]
        how = _end(subprocess.Popen(
            [*command, *(["--compiled"] if compiled else [])], cwd=Path(__file__).parent.parent, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "TMPDIR": scratch},
        ), limit)  # fmt: skip
        done = _read(out, outcomes)
    return "" if done else how or "ended the process"


def _end(process: subprocess.Popen[bytes], limit: float) -> str:
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return f"ran when {limit:.0f} s were over"
    return "" if process.returncode >= 0 else f"killed by signal {-process.returncode}"


def _read(path: Path, outcomes: Outcomes) -> bool:
    done = False
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        line = json.loads(text)
        done |= "done" in line
        if "began" in line:
            outcomes.found[line["began"]] = ""
        if "ended" in line:
            outcomes.found[line["ended"]], outcomes.why[line["ended"]] = line["found"], line["why"]
    return done


# ------------------------------------------------------------------------------------------------- the table


@dataclass
class Row:
    name: str
    plain: Outcomes
    compiled: Outcomes

    def different(self) -> list[str]:
        """The tests that pass as they are, and not compiled."""
        return [test for test in self.plain.passed() if self.compiled.found.get(test) != PASSED]


def accepted() -> dict[str, str]:
    """The tests that docs/cpython.md lists, with their reasons."""
    rows = (
        line.split("|")
        for line in ACCEPTED.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    )
    return {cells[1].strip().strip("`"): cells[2].strip() for cells in rows}


def report(rows: list[Row]) -> str:
    passed, differ = sum(len(r.plain.passed()) for r in rows), sum(len(r.different()) for r in rows)
    lines = [
        "# CPython's own tests",
        "",
        f"{datetime.date.today()}, smelt {smelt.__version__}, torch {torch.__version__}, CPython "
        f"{platform.python_version()}: {passed} tests of {len(rows)} modules pass as they are; {differ} of them do not pass "
        "compiled. Written by `python -m benchmarks.sweep_cpython`; docs/cpython.md has the reasons.",
        "",
        "| module | tests | pass | differ compiled | seconds | compiled |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {r.name} | {len(r.plain.found)} | {len(r.plain.passed())} | {len(r.different())} | {r.plain.seconds:.0f} | "
        f"{r.compiled.seconds:.0f} |"
        for r in rows
    ]
    lines += ["", "| test | compiled it |", "| --- | --- |"]
    lines += [f"| `{test}` | {_short(row.compiled, test)} |" for row in rows for test in row.different()]
    return "\n".join(lines) + "\n"


def _short(outcomes: Outcomes, test: str) -> str:
    last = outcomes.why.get(test, "").strip().splitlines()[-1:]
    return " ".join([outcomes.found.get(test, "did not run"), *last])[:150].replace("|", "\\|")


def chosen(names: list[str], part: str) -> list[str]:
    """The modules that are there, of the part `K/N` of them."""
    index, count = (int(n) for n in part.split("/"))
    there = [n for n in names if importlib.util.find_spec(f"test.{n}") is not None]
    return there[index - 1 :: count]


def sweep(names: list[str], limit: float, written_to: Path, details: Path | None) -> list[Row]:
    rows = []
    for name in names:
        plain = run_tests(name, None, False, limit)
        rows.append(Row(name, plain, run_tests(name, plain.passed(), True, limit)))
        print(f"{name}: {len(plain.passed())} pass, {len(rows[-1].different())} differ", flush=True)
        written_to.write_text(report(rows), encoding="utf-8")
        for test in rows[-1].different() if details is not None else ():
            with details.open("a", encoding="utf-8") as out:
                out.write(
                    f"=== {test}: {rows[-1].compiled.found.get(test)}\n{rows[-1].compiled.why.get(test, '')}\n"
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--modules", nargs="+", default=list(MODULES), help="as in test_list")
    parser.add_argument("--part", default="1/1", help="K/N: every Nth module, from the Kth")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds a process")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--details", type=Path, help="a file for the tracebacks of the tests that differ")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--compiled", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--written-to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.child, options.only, options.compiled, options.written_to)
        return
    whole = options.part == "1/1" and options.modules == list(MODULES)
    name = "cpython.md" if whole else f"cpython-{options.part.replace('/', '-of-')}.md"
    rows = sweep(chosen(options.modules, options.part), options.limit, options.out / name, options.details)
    known = accepted()
    sys.exit(any(test not in known for row in rows for test in row.different()))


if __name__ == "__main__":
    main()
