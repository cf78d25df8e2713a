"""CPython's own tests, each test method compiled, against the same method run as it is.

    python -m benchmarks.sweep_cpython [--modules NAME ...] [--part K/N] [--limit SECONDS] [--out FOLDER]

The modules are those of the running Python's `test` package that test the language, its data types and the parts of the
library that compute (`MODULES`); one that is not installed is left out. Each module runs in two processes, first as it is,
then with every method that passed compiled (the backend runs graphs operator by operator: no test has a tensor). A process
has `--limit` seconds; one that hangs or dies names the test that ran, and another process takes over behind it.

benchmarks/results/cpython.md is the table, written after each module from what cpython.json keeps; a run of some modules
puts their rows in place of older ones, and each row says of which commit it is. The tests that may differ are listed in
docs/cpython.md, each with its reason: the sweep fails if any other does.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib.util
import json
import sys
import types
import unittest
from pathlib import Path
from typing import TextIO, TypedDict

import smelt
from benchmarks.unittest_runs import (
    PASSED,
    Limits,
    Outcomes,
    Recorder,
    cases,
    commit,
    here,
    relative_names,
    run_tests,
)

RESULTS = Path(__file__).parent / "results"
ACCEPTED = Path(__file__).parent.parent / "docs" / "cpython.md"
LIMIT = 120.0
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


def compile_method(test: unittest.TestCase) -> None:
    """The test's method, compiled, in place of the method. Attributes of the method (`expectedFailure`) are kept."""
    method = getattr(test, test._testMethodName)
    if isinstance(method, types.MethodType) and isinstance(method.__func__, types.FunctionType):
        compiled = smelt.compile(method.__func__, backend="eager")
        setattr(test, test._testMethodName, types.MethodType(compiled, test))


def run_module(name: str, compiled: bool, only: set[str] | None, out: TextIO) -> None:
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


# ------------------------------------------------------------------------------------------------- the table


class Row(TypedDict):
    """A module of the table, as cpython.json keeps it. `differ`: tests that pass only as they are, with what they gave."""

    commit: str
    on: str  # the date, the versions, the machine
    limit: float
    tests: int
    passed: int
    differ: dict[str, str]
    seconds: tuple[float, float]


def row(plain: Outcomes, compiled: Outcomes, limit: float) -> Row:
    passed = plain.passed()
    differ = {test: _short(compiled, test) for test in passed if compiled.found.get(test) != PASSED}
    seconds = (round(plain.seconds, 1), round(compiled.seconds, 1))
    return Row(commit=commit(), on=here(), limit=limit, tests=len(plain.found), passed=len(passed),
               differ=differ, seconds=seconds)  # fmt: skip


def accepted() -> dict[str, str]:
    """The tests that docs/cpython.md lists, with their reasons."""
    rows = (
        line.split("|")
        for line in ACCEPTED.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    )
    return {cells[1].strip().strip("`"): cells[2].strip() for cells in rows}


def report(rows: dict[str, Row]) -> str:
    passed, differ = sum(r["passed"] for r in rows.values()), sum(len(r["differ"]) for r in rows.values())
    lines = [
        "# CPython's own tests",
        "",
        f"{passed} tests of {len(rows)} modules pass as they are; {differ} of them do not pass compiled. Written by "
        "`python -m benchmarks.sweep_cpython`; docs/cpython.md has the reasons. Where the modules ran:",
        "",
    ]
    runs = collections.Counter((r["commit"], r["limit"], r["on"]) for r in rows.values())
    lines += [
        f"- {count} modules on the code of {commit}, {limit:.0f} s a process: {on}"
        for (commit, limit, on), count in runs.items()
    ]
    lines += [
        "",
        "| module | commit | tests | pass | differ compiled | seconds | compiled |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {name} | {r['commit']} | {r['tests']} | {r['passed']} | {len(r['differ'])} | {r['seconds'][0]:.0f} | "
        f"{r['seconds'][1]:.0f} |"
        for name, r in sorted(rows.items())
    ]
    lines += ["", "| test | compiled it |", "| --- | --- |"]
    lines += [f"| `{test}` | {why} |" for _, r in sorted(rows.items()) for test, why in r["differ"].items()]
    return "\n".join(lines) + "\n"


def merge(folder: Path, new: dict[str, Row]) -> None:
    """Adds rows to cpython.json of `folder`, in place of older ones of these modules, and writes the table anew."""
    kept = folder / "cpython.json"
    rows: dict[str, Row] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    rows.update(new)
    kept.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    (folder / "cpython.md").write_text(report(rows), encoding="utf-8")


def _short(outcomes: Outcomes, test: str) -> str:
    last = outcomes.why.get(test, "").strip().splitlines()[-1:]
    text = " ".join([outcomes.found.get(test, "did not run"), *last])
    return relative_names(text)[:150].replace("|", "\\|")


def chosen(names: list[str], part: str) -> list[str]:
    """The modules that are there, of the part `K/N` of them."""
    index, count = (int(n) for n in part.split("/"))
    there = [n for n in names if importlib.util.find_spec(f"test.{n}") is not None]
    return there[index - 1 :: count]


def sweep(names: list[str], limit: float, folder: Path, details: Path | None) -> set[str]:
    """Runs the modules, and returns the tests that differ."""
    differ: set[str] = set()
    for name in names:
        plain = run_tests(functools.partial(run_module, name, False), None, Limits(limit))
        compiled = run_tests(functools.partial(run_module, name, True), plain.passed(), Limits(limit))
        new = row(plain, compiled, limit)
        print(f"{name}: {new['passed']} pass, {len(new['differ'])} differ", flush=True)
        merge(folder, {name: new})
        differ.update(new["differ"])
        for test in new["differ"] if details is not None else ():
            with details.open("a", encoding="utf-8") as out:
                out.write(f"=== {test}: {compiled.found.get(test)}\n{compiled.why.get(test, '')}\n")
    return differ


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--modules", nargs="+", default=list(MODULES), help="as in test_list")
    parser.add_argument("--part", default="1/1", help="K/N: every Nth module, from the Kth")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds a process")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--details", type=Path, help="a file for the tracebacks of the tests that differ")
    options = parser.parse_args()
    differ = sweep(chosen(options.modules, options.part), options.limit, options.out, options.details)
    sys.exit(bool(differ - accepted().keys()))


if __name__ == "__main__":
    main()
