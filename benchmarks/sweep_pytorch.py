"""PyTorch's own tests of its compiler, with smelt in place of torch.compile.

    python -m benchmarks.sweep_pytorch TESTS [--files NAME ...] [--limit SECONDS] [--valid FILE] [--failing]

TESTS is the folder `test/` of PyTorch's sources (2.6: as in Debian's source package `pytorch` 2.6.0). No test of PyTorch's
is in this repository. `FILES` are those that run by default.

Each test runs in smelt first (`benchmarks/in_place_of_dynamo.py`), then, if it compiles anything, with torch.compile of the
installed torch, in other processes. A test that torch does not pass is not valid (the tests are of an older version). A
test has `--limit` seconds; one that hangs or dies names itself, and another process continues behind it. `--valid` keeps
what torch gave in a file, so that another run need not repeat it; with `--failing` torch runs only the tests that smelt does
not pass, and all others count as valid.

benchmarks/results/pytorch-tests.md is the table, written after each file from what pytorch-tests.json keeps. Of each test
that does not hold, pytorch-tests-reasons.json has a verdict and a reason, written by hand (`Verdict`). `--files` without a
name writes only the table.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import gc
import importlib
import json
import logging
import os
import re
import sys
import traceback
import types
import unittest
from pathlib import Path
from typing import Any, Literal, TextIO, TypedDict

import torch

import smelt
from benchmarks import in_place_of_dynamo
from benchmarks.unittest_runs import (
    PASSED,
    Limits,
    Outcomes,
    Recorder,
    commit,
    here,
    relative_names,
    run_suite,
    run_tests,
)

RESULTS = Path(__file__).parent / "results"
REASONS = RESULTS / "pytorch-tests-reasons.json"
LIMIT = 60.0
PROCESS = 3600.0
TEXTS = "counts or texts"
NOTHING = "compiles nothing"
_DYNAMO = """
    activation_checkpointing after_aot aot_autograd aot_autograd_cache autograd_function backends backward_higher_order_ops
    base_output bytecode_utils compile compiler_bisector comptime config ctx_manager cudagraphs debug_utils decorators
    deviceguard exc exceptions export_mutations frame_init functions fx_passes_pre_grad global graph_deduplication
    graph_region_tracker guard_manager higher_order_ops hooks inline_inbuilt_nn_modules input_attr_tracking interop logging
    metrics_context minifier misc model_output modes modules nops optimizers pgo pre_dispatch prim_hop_base profiler
    python_autograd recompile_ux recompiles reconstruct reorder_logs repros resume sdpa skip_guard_eval_unsafe
    skip_non_tensor sources structured_trace subclasses subgraphs torchrec trace_rules unspec utils verify_correctness view
"""
_OTHERS = ("functorch/test_control_flow", "functorch/test_aotdispatch", "inductor/test_torchinductor")
FILES = (*(f"dynamo/test_{name}" for name in _DYNAMO.split()), *_OTHERS)
_GUARD_HOOK = "install_guard_manager_testing_hook"  # of Dynamo's guards; the installed torch calls it with more arguments


# ------------------------------------------------------------------------------------------- in the process of a file


class _Recorder(Recorder):
    """Also writes which tests differ in counts or texts of the compiler only, and which compile nothing."""

    def __init__(self, out: TextIO, folder: Path, compiled: bool) -> None:
        super().__init__(out)
        self.folder = folder
        self.compiled = compiled
        self.warnings = in_place_of_dynamo.Warnings()
        if compiled:
            logger = logging.getLogger("smelt")
            logger.setLevel(logging.WARNING)
            logger.addHandler(self.warnings)

    def startTest(self, test: unittest.TestCase) -> None:
        in_place_of_dynamo.notes.clear()
        in_place_of_dynamo.uses = 0
        self.warnings.bugs.clear()
        if self.compiled:
            smelt.reset()
        super().startTest(test)

    def stopTest(self, test: unittest.TestCase) -> None:
        if self.compiled and self.found == PASSED:
            if not in_place_of_dynamo.uses:
                self.found = NOTHING
            elif in_place_of_dynamo.notes:
                self.found, self.why = TEXTS, in_place_of_dynamo.notes[0]
        if self.warnings.bugs and self.found in (PASSED, TEXTS):
            self.found, self.why = "bug in smelt", self.warnings.bugs[0]
        super().stopTest(test)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        reason = first_line(err[1])
        if not self.compiled:
            self._note("error", reason)
        elif in_place_of_dynamo.stands_on_internals(err[1], self.folder):
            in_place_of_dynamo.note_difference(reason)
        elif not in_place_of_dynamo.uses:
            self._note(NOTHING, reason)
        else:
            self._note("error", reason + "\n" + "".join(traceback.format_exception(*err)))

    addFailure = addError


def first_line(error: BaseException) -> str:
    """The class of an exception and the first line of its text."""
    text = str(error).strip().splitlines()[:1]
    return ": ".join([type(error).__name__, *text])


class _Gone:
    """Stands for a name that the tests import from torch and that the installed torch no longer has."""

    def __bool__(self) -> bool:
        return False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args and callable(args[0]) else self


def import_file(name: str) -> types.ModuleType:
    """The module of that name. A decorator or condition that torch no longer has stands for nothing: a test that needs it
    does not pass with torch either, and is not valid."""
    while True:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            gone = re.match(r"cannot import name '(\w+)' from '([\w.]+)'", str(error))
            if gone is None or not gone[2].startswith(("torch.", "functorch.")):
                raise
            needs_gpu = re.search("requires?_?(cuda|gpu|multigpu|triton)", gone[1], re.IGNORECASE)
            is_error = gone[1].endswith(("Error", "Exception"))
            stand_in: Any = unittest.skip("needs a GPU") if needs_gpu else _Gone()
            if is_error:
                stand_in = type(gone[1], (Exception,), {})
            setattr(sys.modules[gone[2]], gone[1], stand_in)


def run_file(name: str, tests: Path, how: str, only: set[str] | None, out: TextIO) -> None:
    """Runs (`how`: "smelt", "torch"), or only lists ("list"), the tests of a file whose id is in `only` (None: all)."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    file = tests / f"{name}.py"
    sys.argv[:] = [str(file)]
    sys.path[:0] = [str(file.parent), str(tests)]
    if how == "smelt":
        in_place_of_dynamo.install(tests)
    module = import_file(file.stem)
    if (file.parent / "utils.py").exists():
        setattr(importlib.import_module("utils"), _GUARD_HOOK, lambda hook: contextlib.nullcontext())
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    record = _Recorder(out, tests, how == "smelt")
    gc.freeze()  # else each reset, which collects garbage, walks all modules
    run_suite(suite, record, how == "list", only)


# ------------------------------------------------------------------------------------------------- the table


class Row(TypedDict):
    """A file of the table, as pytorch-tests.json keeps it. `texts`: valid tests that differ in counts or texts of the
    compiler only; `differ`: valid tests that do not hold; each with the first line of its reason."""

    commit: str
    on: str
    tests: int
    compile: int  # tests that compile anything
    valid: int  # of them, those that torch passes
    passed: int
    unchecked: int  # of those, tests that torch did not run
    texts: dict[str, str]
    differ: dict[str, str]
    seconds: float


class Verdict(TypedDict):
    """Why a test does not hold. "refusal": the test only asserts that torch's compiler refuses what eager runs; "unlike
    eager": only what torch's compiler does and eager does not. smelt gives eager's result in both. "open": all others."""

    verdict: Literal["refusal", "unlike eager", "open"]
    reason: str


VERDICTS = ("refusal", "unlike eager", "open")


def row(plain: dict[str, str], compiled: Outcomes, unchecked: int) -> Row:
    """`plain`: what torch gave, by test; `unchecked` of them did not run in torch, as smelt passes them."""
    ran = [test for test, found in compiled.found.items() if found not in ("skip", NOTHING)]
    valid = [test for test in ran if plain.get(test) == PASSED]
    reasons = {test: _reason(compiled, test) for test in valid if compiled.found[test] != PASSED}
    texts = {test: why for test, why in reasons.items() if compiled.found[test] == TEXTS}
    differ = {test: why for test, why in reasons.items() if test not in texts}
    return Row(commit=commit(), on=here(), tests=len(compiled.found), compile=len(ran), valid=len(valid),
               passed=len(valid) - len(reasons), unchecked=unchecked,
               texts=texts, differ=differ, seconds=round(compiled.seconds, 1))  # fmt: skip


def _reason(outcomes: Outcomes, test: str) -> str:
    why = outcomes.why.get(test, "").strip().splitlines()[:1]
    found = outcomes.found[test]
    text = " ".join(why if found in ("error", TEXTS) and why else [found, *why])
    return re.sub(r"(/[\w.+-]+)+/(?=[\w.+-]+)", "", relative_names(text))[:160].replace("|", "\\|")


def kind(reason: str) -> str:
    """A reason without what differs from program to program: names, numbers, lines."""
    return re.sub(r"\s+at line.*|\d+|'[^']*'|`[^`]*`|\"[^\"]*\"", "…", reason)[:100]


def report(rows: dict[str, Row], verdicts: dict[str, Verdict]) -> str:
    """The table of all files, and the tests that do not hold."""
    total = {
        key: sum(r[key] for r in rows.values())
        for key in ("tests", "compile", "valid", "passed", "unchecked")
    }  # type: ignore[literal-required]
    texts = sum(len(r["texts"]) for r in rows.values())
    open_reasons = [why for r in rows.values() for why in _with_verdict(r, verdicts, "open").values()]
    refusals, unlike = (
        sum(len(_with_verdict(r, verdicts, verdict)) for r in rows.values()) for verdict in VERDICTS[:2]
    )
    lines = [
        "# PyTorch's own tests of its compiler",
        "",
        f"{total['tests']} tests of {len(rows)} files of PyTorch 2.6; {total['compile']} compile something, "
        f"{total['valid']} of them pass with the torch.compile of the installed torch (valid). smelt passes "
        f"{total['passed']}; {texts} differ only in what the compiler counts or writes (frames, operators, graphs, guards, "
        f"logs, its own exceptions); {refusals} only assert that torch's compiler refuses what eager runs, and {unlike} "
        f"only what it does and eager does not, where smelt gives eager's result; {len(open_reasons)} do not hold. "
        f"{total['unchecked']} of the tests that smelt passes count as valid without a run in torch (`--failing`). "
        "Written by `python -m benchmarks.sweep_pytorch`. Where the files ran:",
        "",
    ]
    runs = collections.Counter((r["commit"], r["on"]) for r in rows.values())
    lines += [f"- {count} files on the code of {code}: {on}" for (code, on), count in runs.items()]
    lines += [
        "",
        "| file | tests | compile | valid | pass | counts or texts | only refusals | unlike eager | do not hold | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, r in sorted(rows.items()):
        differ = " | ".join(str(len(_with_verdict(r, verdicts, verdict))) for verdict in VERDICTS)
        lines.append(
            f"| {name} | {r['tests']} | {r['compile']} | {r['valid']} | {r['passed']} | {len(r['texts'])} | {differ} | "
            f"{r['seconds']:.0f} |"
        )
    kinds = collections.Counter(map(kind, open_reasons))
    lines += ["", "| tests that do not hold | reason |", "| --- | --- |"]
    lines += [f"| {count} | {why} |" for why, count in kinds.most_common()]
    for verdict, title in zip(
        VERDICTS[::-1], ("do not hold", "only what eager does not do", "only a refusal")
    ):
        lines += ["", f"| test: {title} | smelt | reason |", "| --- | --- | --- |"]
        for _, r in sorted(rows.items()):
            for test, why in _with_verdict(r, verdicts, verdict).items():
                lines.append(f"| `{test}` | {why} | {verdicts[test]['reason'] if test in verdicts else ''} |")
    lines += ["", "| test | counts or texts that differ |", "| --- | --- |"]
    lines += [f"| `{test}` | {why} |" for _, r in sorted(rows.items()) for test, why in r["texts"].items()]
    return "\n".join(lines) + "\n"


def _with_verdict(row: Row, verdicts: dict[str, Verdict], verdict: str) -> dict[str, str]:
    """The tests of a row that do not hold and have this verdict; those without one are open."""
    return {
        test: why
        for test, why in row["differ"].items()
        if (verdicts[test]["verdict"] if test in verdicts else "open") == verdict
    }


def outdated(rows: dict[str, Row], verdicts: dict[str, Verdict]) -> list[str]:
    """The tests with a verdict that hold now, or that are not in the table."""
    return sorted(verdicts.keys() - {test for r in rows.values() for test in r["differ"]})


def merge(folder: Path, new: dict[str, Row]) -> list[str]:
    """Adds rows to pytorch-tests.json of `folder`, in place of older ones of these files, and writes the table anew. Returns
    the tests whose verdict is `outdated`."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "pytorch-tests.json"
    rows: dict[str, Row] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    rows.update(new)
    kept.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    verdicts: dict[str, Verdict] = json.loads(REASONS.read_text(encoding="utf-8"))
    (folder / "pytorch-tests.md").write_text(report(rows, verdicts), encoding="utf-8")
    return outdated(rows, verdicts)


# ------------------------------------------------------------------------------------------------- the sweep


def under_torch(work: Any, wanted: list[str], name: str, keep: Path | None, limits: Limits) -> dict[str, str]:
    """What torch.compile gave for each of the tests `wanted`. `keep`: a file of what it gave before."""
    kept = json.loads(keep.read_text()) if keep is not None and keep.exists() else {}
    known: dict[str, str] = kept.setdefault(f"{torch.__version__} {name}", {})
    missing = [test for test in wanted if test not in known]
    if missing:
        ran = run_tests(work, missing, limits)
        known.update({test: f"{found} {ran.why.get(test, '')}".strip() for test, found in ran.found.items()})
        if keep is not None:
            keep.write_text(json.dumps(kept, indent=0))
    return {test: known[test] for test in wanted if test in known}


def sweep_file(name: str, options: argparse.Namespace) -> Row:
    """Runs the tests of a file."""
    limits = Limits(PROCESS, options.limit)
    work = functools.partial(run_file, name, options.tests)
    there = run_tests(functools.partial(work, "list"), None, limits)
    if there.failed:
        print(f"{name}: {there.failed}", flush=True)
    listed = list(there.found)
    if options.only:
        listed = [test for test in listed if re.search(options.only, test)]
    compiled = run_tests(functools.partial(work, "smelt"), listed, limits)
    ran = [test for test, found in compiled.found.items() if found not in ("skip", NOTHING)]
    for test in ran if options.details is not None else ():
        if compiled.found[test] != PASSED:
            with options.details.open("a", encoding="utf-8") as out:
                out.write(f"=== {test}: {compiled.found[test]}\n{compiled.why.get(test, '')}\n")
    asked = [test for test in ran if compiled.found[test] != PASSED] if options.failing else ran
    plain = under_torch(functools.partial(work, "torch"), asked, name, options.valid, limits)
    unchecked = set(ran) - set(asked)
    return row(dict.fromkeys(unchecked, PASSED) | plain, compiled, len(unchecked))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tests", type=Path, help="the folder test/ of PyTorch's sources")
    parser.add_argument("--files", nargs="*", default=list(FILES), help="as in dynamo/test_misc")
    parser.add_argument("--only", help="a pattern of the tests' names")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds a test")
    parser.add_argument("--valid", type=Path, help="a file that keeps what torch gave")
    parser.add_argument(
        "--failing", action="store_true", help="torch runs only tests that smelt does not pass"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument(
        "--details", type=Path, help="a file for the tracebacks of the tests that do not pass"
    )
    options = parser.parse_args()
    options.tests = options.tests.resolve()
    for name in options.files:
        new = sweep_file(name, options)
        print(f"{name}: {new['tests']} tests, {new['compile']} compile, {new['valid']} valid, {new['passed']} pass, "
              f"{len(new['texts'])} counts or texts, {len(new['differ'])} do not hold", flush=True)  # fmt: skip
        merge(options.out, {name: new})
    if old := merge(options.out, {}):
        print(f"{REASONS.name}: verdicts of tests that hold now or are not in the table: {', '.join(old)}")


if __name__ == "__main__":
    main()
