"""The sweep over CPython's own tests: what it writes of tests that pass, fail, are skipped or expected to fail."""

from __future__ import annotations

import io
import json
import unittest
from pathlib import Path

from benchmarks.sweep_cpython import accepted, chosen, compile_method
from benchmarks.unittest_runs import Recorder, cases, relative_names
from smelt.report import inspect


def sample() -> type[unittest.TestCase]:
    """Made in a function, so that pytest does not run it."""

    class Sample(unittest.TestCase):
        def test_passes(self) -> None:
            self.assertEqual(sum(range(4)), 6)

        def test_fails(self) -> None:
            self.assertEqual(sum(range(4)), 7)

        def test_part_fails(self) -> None:
            for value in (1, 2):
                with self.subTest(value=value):
                    self.assertEqual(value, 1)

        @unittest.skip("not here")
        def test_skipped(self) -> None:
            raise AssertionError

        @unittest.expectedFailure
        def test_expected(self) -> None:
            self.fail()

    return Sample


def outcomes(compiled: bool) -> tuple[dict[str, str], list[unittest.TestCase]]:
    """What the sample's tests gave, by name, and the tests."""
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(sample())
    tests = [holder._tests[at] for holder, at in cases(suite)]
    for test in tests if compiled else ():
        compile_method(test)
    lines = io.StringIO()
    suite.run(Recorder(lines))
    ended = [json.loads(line) for line in lines.getvalue().splitlines() if "ended" in line]
    return {line["ended"].rsplit(".")[-1]: line["found"] for line in ended}, tests


def test_a_compiled_test_gives_what_it_gives_as_it_is() -> None:
    plain, compiled = outcomes(False)[0], outcomes(True)[0]
    assert (
        plain
        == compiled
        == {
            "test_passes": "pass",
            "test_fails": "error",
            "test_part_fails": "error",
            "test_skipped": "skip",
            "test_expected": "expected failure",
        }
    )


def test_the_method_that_runs_is_the_compiled_one() -> None:
    _, tests = outcomes(True)
    methods = [getattr(test, test._testMethodName) for test in tests]
    assert all(inspect.reasons(m.__func__) is not None for m in methods)


def test_parts_are_the_whole() -> None:
    names = ["test_list", "test_dict", "test_no_such_module", "test_set"]
    parts = [chosen(names, f"{k}/2") for k in (1, 2)]
    assert sorted(parts[0] + parts[1]) == sorted(chosen(names, "1/1"))
    assert "test_no_such_module" not in chosen(names, "1/1")


def test_each_accepted_test_has_a_reason() -> None:
    assert all(test.startswith("test.") and reason for test, reason in accepted().items())


def test_results_name_files_relative_to_the_library() -> None:
    assert relative_names(f"error + {io.__file__}") == "error + io.py"
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    named = [
        path.name for path in results.glob("cpython.*") if "/lib/python3" in path.read_text(encoding="utf-8")
    ]
    assert named == []
