"""PyTorch's own tests of torch.fx, with smelt.fx in its place.

    python -m benchmarks.sweep_fx TESTS [--files NAME ...] [--only PATTERN] [--limit SECONDS] [--details FILE]

TESTS is the folder `test/` of PyTorch's sources (2.6). No test of PyTorch's is in this repository. Each test runs in smelt,
then with the installed torch's own torch.fx, in other processes; a test that torch does not pass is not valid (the tests are
of an older version).

In the tests' modules, and only there, each name of torch.fx stands for that of smelt.fx where smelt has one of its own
(`OURS`): `torch.fx.symbolic_trace`, `from torch.fx import Tracer`, `import torch.fx as fx`. A test counts if it traces with
smelt, rewrites a pattern, transforms a graph or propagates shapes, or fails before it can. `PRIVATE` names mark tests that
stand on torch's private parts: benchmarks/results/fx-tests.md counts them apart.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.machinery
import importlib.util
import inspect
import json
import os
import re
import sys
import types
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.fx
import torch.fx.passes.shape_prop

import smelt.fx
from benchmarks.sweep_pytorch import first_line, import_file
from benchmarks.unittest_runs import PASSED, Finder, Limits, Recorder, commit, here, run_suite, run_tests

RESULTS = Path(__file__).parent / "results"
FILES = (  # test_fx imports the tests of others
    "test_fx",
    "fx/test_fx_split",
    "fx/test_fx_node_hook",
    "fx/test_fx_traceback",
    "fx/test_fx_xform_observer",
    "fx/test_lazy_graph_module",
    "fx/test_partitioner_order",
)
# The others are one test per operator, of torch.fx's tables of signatures, and one per model of torchvision.
EACH = r"^(?!.*(TestNormalizeOperators|TestOperatorSignatures|TestVisionTracing))"
NOTHING = "traces nothing"
_FX = "torch.fx"
_ROOT = "__fx_of_smelt__"

# What smelt has of its own, for what torch has. Other names are torch's in both.
OURS: dict[int, Any] = {
    id(theirs): ours
    for theirs, ours in (
        (torch.fx.symbolic_trace, smelt.fx.symbolic_trace),
        (torch.fx.Tracer, smelt.fx.Tracer),
        (torch.fx.Proxy, smelt.fx.Proxy),
        (torch.fx.Graph, smelt.fx.Graph),
        (torch.fx.Transformer, smelt.fx.Transformer),
        (torch.fx.proxy.TraceError, smelt.fx.TraceError),
        (torch.fx.proxy.Attribute, smelt.fx.Attribute),
        (torch.fx.proxy.ParameterProxy, smelt.fx.ParameterProxy),
        (torch.fx.replace_pattern, smelt.fx.replace_pattern),
        (torch.fx.subgraph_rewriter.replace_pattern_with_filters, smelt.fx.replace_pattern_with_filters),
        (torch.fx.passes.shape_prop.ShapeProp, smelt.fx.ShapeProp),
    )
}
# In a test's source: names of torch that start with an underscore, and those of torch's experiments.
PRIVATE = re.compile(r"\._[a-z]\w*|\b_[a-z]\w+\.|\bfx\.experimental|RewritingTracer|torch\.jit|torch\._")

uses = 0  # in the current test


def _counted(owner: Any, name: str) -> None:
    """Count the calls of a function of smelt's, which a class or module holds."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def count(*args: Any, **kwargs: Any) -> Any:
        global uses
        uses += 1
        return function(*args, **kwargs)

    setattr(owner, name, count)


class _Facade(types.ModuleType):
    """A module of torch.fx with smelt's names."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(module.__name__)
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        return of_smelt(getattr(self.__dict__["_module"], name))


def of_smelt(value: Any) -> Any:
    """What stands for a value of torch.fx: smelt's, if it has one of its own."""
    if isinstance(value, types.ModuleType) and value.__name__.startswith(_FX):
        return _Facade(value)
    return OURS.get(id(value), value)


def imported(module: str, name: str) -> Any:
    """`from module import name`, in the tests' modules."""
    found = importlib.import_module(module)
    return of_smelt(
        getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")
    )


class _Redirected(ast.NodeTransformer):
    """The names of torch.fx stand for those of `of_smelt`."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        inside = node.module is not None and (node.module == _FX or node.module.startswith(_FX + "."))
        if not inside and not (node.module == "torch" and any(a.name == "fx" for a in node.names)):
            return node
        names = [a for a in node.names if inside or a.name == "fx"]
        others = [a for a in node.names if a not in names]
        statements: list[ast.stmt] = [ast.ImportFrom(node.module, others, 0)] if others else []
        for alias in names:
            text = f"{alias.asname or alias.name} = {_ROOT}({node.module!r}, {alias.name!r})"
            statements += ast.parse(text).body
        return [ast.copy_location(ast.fix_missing_locations(s), node) for s in map(_placed(node), statements)]

    def visit_Import(self, node: ast.Import) -> Any:
        statements: list[ast.stmt] = []
        for alias in node.names:
            if alias.asname and alias.name.startswith(_FX):
                module, _, name = alias.name.rpartition(".")
                statements += ast.parse(f"{alias.asname} = {_ROOT}({module!r}, {name!r})").body
            else:
                statements.append(ast.Import([alias]))
        return [_placed(node)(s) for s in statements]

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and (node.value.id, node.attr) == ("torch", "fx"):
            return _placed(node)(ast.parse(f"{_ROOT}('torch', 'fx')", mode="eval").body)
        return self.generic_visit(node)


def _placed(at: ast.AST) -> Callable[[Any], Any]:
    """Gives a node, and those in it, the line of another."""

    def place(node: Any) -> Any:
        for inner in ast.walk(node):
            ast.copy_location(inner, at)
        return node

    return place


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module with the names of torch.fx redirected."""

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        tree = ast.fix_missing_locations(_Redirected().visit(ast.parse(self.get_data(path), path)))
        return compile(tree, path, "exec", dont_inherit=True)  # type: ignore[no-any-return]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__[_ROOT] = imported
        super().exec_module(module)


class _Recorder(Recorder):
    """Also writes which tests use nothing of smelt's, and, where they are listed, which name private parts of torch."""

    def __init__(self, out: TextIO, how: str) -> None:
        super().__init__(out)
        self.how = how

    def startTest(self, test: unittest.TestCase) -> None:
        global uses
        uses = 0
        super().startTest(test)

    def stopTest(self, test: unittest.TestCase) -> None:
        if self.how == "list":
            self.why = _private_names(test)
        if self.how == "smelt" and self.found == PASSED and not uses:
            self.found = NOTHING
        super().stopTest(test)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._note("error", f"{first_line(err[1])}\n{self._exc_info_to_string(err, test)}")  # type: ignore[attr-defined]

    addFailure = addError


def _private_names(test: unittest.TestCase) -> str:
    method = getattr(type(test), getattr(test, "_testMethodName", ""), None)
    try:
        text = inspect.getsource(inspect.unwrap(method)) if method else ""
    except (OSError, TypeError):
        text = ""
    return " ".join(sorted(set(PRIVATE.findall(text))))


def run_file(name: str, tests: Path, how: str, only: set[str] | None, out: TextIO) -> None:
    """Runs the tests of a file whose id is in `only` (None: all) with smelt.fx ("smelt") or torch.fx ("torch"), or only
    lists them ("list")."""
    file = tests / f"{name}.py"
    sys.argv[:] = [str(file)]
    sys.path[:0] = [str(file.parent), str(tests)]
    os.chdir(tests)
    if how == "smelt":
        sys.meta_path.insert(0, Finder(tests, _Loader))
        for owner, function in (
            (smelt.fx.Tracer, "trace"),
            (smelt.fx.Transformer, "transform"),
            (smelt.fx.ShapeProp, "propagate"),
            (smelt.fx.Proxy, "__init__"),
        ):
            _counted(owner, function)
    suite = unittest.defaultTestLoader.loadTestsFromModule(import_file(file.stem))
    record = _Recorder(out, how)
    run_suite(suite, record, how == "list", only)


def sweep_file(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The row of a file, as fx-tests.json keeps it."""
    limits = Limits(3600.0, options.limit)
    work = functools.partial(run_file, name, options.tests)
    there = run_tests(functools.partial(work, "list"), None, limits)
    private = there.why
    listed = [test for test in there.found if re.search(options.only, test)]
    smelts = run_tests(functools.partial(work, "smelt"), listed, limits)
    if there.failed or smelts.failed:
        print(f"{name}: {there.failed or smelts.failed}", flush=True)
    ran = [t for t, found in smelts.found.items() if found not in ("skip", NOTHING)]
    theirs = run_tests(functools.partial(work, "torch"), ran, limits)
    valid = [t for t in ran if theirs.found.get(t) == PASSED]
    differ = {t: f"{smelts.found[t]} {smelts.why.get(t, '')}" for t in valid if smelts.found[t] != PASSED}
    if options.details is not None:
        with options.details.open("a", encoding="utf-8") as out:
            for test, why in differ.items():
                out.write(f"=== {test} [{private.get(test, '')}]: {why}\n")
    public = [t for t in valid if not private.get(t)]
    return {
        "commit": commit(), "on": here(), "tests": len(smelts.found), "trace": len(ran), "valid": len(valid),
        "public": len(public), "passed": sum(t not in differ for t in valid),
        "public_passed": sum(t not in differ for t in public),
        "differ": {t: _short(why) + (" (private)" if private.get(t) else "") for t, why in differ.items()},
        "seconds": round(smelts.seconds, 1),
    }  # fmt: skip


def _short(why: str) -> str:
    text = why.strip().splitlines()[0]
    return re.sub(r"(/[\w.+-]+)+/(?=[\w.+-]+)", "", text)[:160].replace("|", "\\|")


def report(rows: dict[str, dict[str, Any]]) -> str:
    """The table of all files, and the tests that do not hold."""
    names = ("tests", "trace", "valid", "passed", "public", "public_passed")
    total = {key: sum(r[key] for r in rows.values()) for key in names}
    lines = [
        "# PyTorch's own tests of torch.fx",
        "",
        f"{total['tests']} tests of {len(rows)} files of PyTorch 2.6 (test_fx imports tests of others); {total['trace']} "
        f"use what smelt has of its own, {total['valid']} of them pass with the installed torch (valid). With smelt "
        f"{total['passed']} pass; of the {total['public']} valid ones whose text names no private part of torch, "
        f"{total['public_passed']} pass. The tests for each operator and each model of torchvision are left out. "
        "Written by `python -m benchmarks.sweep_fx`. Where the files ran:",
        "",
        *sorted({f"- {r['commit']}: {r['on']}" for r in rows.values()}),
        "",
        "| file | tests | use smelt | valid | pass | public | public pass | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, r in sorted(rows.items()):
        cells = " | ".join(str(r[key]) for key in names)
        lines.append(f"| {name} | {cells} | {r['seconds']:.0f} |")
    lines += ["", "| test that does not hold | smelt |", "| --- | --- |"]
    lines += [f"| `{test}` | {why} |" for _, r in sorted(rows.items()) for test, why in r["differ"].items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tests", type=Path, help="the folder test/ of PyTorch's sources")
    parser.add_argument("--files", nargs="*", default=list(FILES), help="as in fx/test_fx_split")
    parser.add_argument("--only", default=EACH, help="a pattern of the tests' names")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a test")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--details", type=Path, help="a file for the tracebacks of tests that do not hold")
    options = parser.parse_args()
    options.tests = options.tests.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / "fx-tests.json"
    for name in options.files:
        row = sweep_file(name, options)
        counts = {key: value for key, value in row.items() if isinstance(value, int)}
        print(f"{name}: {counts}", flush=True)
        rows = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
        rows[name] = row
        kept.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        (options.out / "fx-tests.md").write_text(report(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
