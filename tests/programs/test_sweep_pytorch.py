"""The sweep over PyTorch's own tests: what it writes of tests that pass, differ in counts only, fail or compile nothing."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.in_place_of_dynamo import derived_names, is_about_the_compiler
from benchmarks.sweep_pytorch import REASONS, VERDICTS, Row, Verdict, kind, outdated, report

SAMPLE = '''
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter, a_decorator_of_an_older_torch
from torch._dynamo.test_case import TestCase


class Sample(TestCase):
    def test_passes(self):
        counter = CompileCounter()
        compiled = torch.compile(lambda x: x + 1, backend=counter, fullgraph=True)
        self.assertEqual(compiled(torch.ones(2)), torch.full((2,), 2.0))
        self.assertEqual(counter.frame_count, 1)

    def test_differs_in_counts(self):
        counter = CompileCounter()
        torch._dynamo.optimize(counter)(lambda x: x + 1)(torch.ones(2))
        self.assertEqual(counter.op_count, 17)

    def test_continues_behind_a_count(self):
        counter = CompileCounter()
        torch._dynamo.optimize(counter)(lambda x: x + 1)(torch.ones(2))
        self.assertEqual(counter.op_count, 17)
        self.assertEqual(1, 2)

    def test_reads_a_graph_that_is_not_there(self):
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        graphs = []
        graph = graphs[0]

    @a_decorator_of_an_older_torch
    def test_fails(self):
        compiled = torch.compile(lambda x: x + 1, backend="aot_eager_decomp_partition")
        self.assertEqual(compiled(torch.ones(2)), torch.ones(2))

    def test_expects_an_exception_of_the_compiler(self):
        def f(x):
            torch._dynamo.graph_break()
            return x

        with self.assertRaisesRegex(torch._dynamo.exc.Unsupported, "a text of Dynamo's"):
            torch.compile(f, backend="eager", fullgraph=True)(torch.ones(2))

    def test_expects_an_exception_of_the_program(self):
        def f(x):
            raise ValueError("one")

        with self.assertRaisesRegex(ValueError, "another"):
            torch.compile(f, backend="eager")(torch.ones(2))

    def test_differs_in_names_of_a_graph(self):
        backend = torch._dynamo.testing.EagerAndRecordGraphs()
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
        names = set()
        names.update(name for name in dir(backend.graphs[0]))
        self.assertEqual(names, {"a name that Dynamo chooses"})

    def test_differs_in_what_a_graph_computes(self):
        backend = torch._dynamo.testing.EagerAndRecordGraphs()
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
        value = backend.graphs[0](torch.ones(2))
        self.assertEqual(value, torch.ones(2))

    def test_compiles_nothing(self):
        self.assertEqual(torch.ones(2).sum(), 2)

    def test_ends_the_process(self):
        torch.compile(lambda x: x)(torch.ones(2))
        import os
        os._exit(3)

    def test_hangs(self):
        torch.compile(lambda x: x)(torch.ones(2))
        while True:
            pass
'''  # fmt: skip

RUN = """
import functools, json, sys
from pathlib import Path
from benchmarks.in_place_of_dynamo import install
from benchmarks.sweep_pytorch import run_file
from benchmarks.unittest_runs import Limits, run_tests

install(Path(sys.argv[1]))  # torch's compiler is imported once
work = functools.partial(run_file, "part/test_sample", Path(sys.argv[1]))
listed = list(run_tests(functools.partial(work, "list"), None, Limits(60)).found)
outcomes = run_tests(functools.partial(work, "smelt"), listed, Limits(60, 2))
print(json.dumps({test.rsplit(".")[-1]: found for test, found in outcomes.found.items()}))
"""


def test_each_test_gives_its_class(tmp_path: Path) -> None:
    file = tmp_path / "part" / "test_sample.py"
    file.parent.mkdir()
    file.write_text(SAMPLE)
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[2]))
    run = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert json.loads(run.stdout) == {
        "test_compiles_nothing": "compiles nothing",
        "test_continues_behind_a_count": "error",
        "test_differs_in_counts": "counts or texts",
        "test_differs_in_names_of_a_graph": "counts or texts",
        "test_differs_in_what_a_graph_computes": "error",
        "test_ends_the_process": "ended the process",
        "test_expects_an_exception_of_the_compiler": "counts or texts",
        "test_expects_an_exception_of_the_program": "error",
        "test_fails": "error",
        "test_hangs": "ran when 2 s were over",
        "test_passes": "pass",
        "test_reads_a_graph_that_is_not_there": "counts or texts",
    }


def test_statements_about_the_compiler() -> None:
    assert is_about_the_compiler("self.assertEqual(cnt.frame_count, 2)")
    assert is_about_the_compiler("assert len(backend.graphs) == 1")
    assert not is_about_the_compiler("self.assertEqual(x.grad, y.grad)")
    assert not is_about_the_compiler("self.assertTrue(same(opt_fn(x), graph_break_in(x)))")


def test_variables_about_the_compiler() -> None:
    (function,) = ast.parse(
        """def test():
    graph = backend.graphs[0]
    names = []
    for name in graph.code.split():
        names.append(graph_break_of(name))
    count = len(names)
    result = graph(x)
    wrapped = graph.forward(x)
    mixed = counters["stats"]
    mixed = f(x)
    same = compiled(x), counters["stats"]
"""
    ).body
    assert derived_names(function) == {"graph", "names", "count"}


def test_the_report_counts_reasons_without_what_differs_from_program_to_program() -> None:
    assert kind("Unsupported: 'f' cannot be captured at line 3") == kind(
        "Unsupported: 'g' cannot be captured at line 4"
    )
    row = Row(commit="c", on="here", tests=4, compile=3, valid=3, passed=1, unchecked=0, texts={"t.a": "counts"},
              differ={"t.b": "Unsupported: 'f'"}, seconds=1.0)  # fmt: skip
    text = report({"dynamo/test_a": row}, {})
    assert "| dynamo/test_a | 4 | 3 | 3 | 1 | 1 | 0 | 0 | 1 | 1 |" in text
    assert "| 1 | Unsupported: … |" in text
    assert "| `t.b` | Unsupported: 'f' |  |" in text
    verdicts: dict[str, Verdict] = {
        "t.b": {"verdict": "refusal", "reason": "eager runs f"},
        "t.a": {"verdict": "open", "reason": "later"},
    }
    text = report({"dynamo/test_a": row}, verdicts)
    assert "| dynamo/test_a | 4 | 3 | 3 | 1 | 1 | 1 | 0 | 0 | 1 |" in text
    assert "| 1 | Unsupported: … |" not in text
    assert "| `t.b` | Unsupported: 'f' | eager runs f |" in text
    assert outdated({"dynamo/test_a": row}, verdicts) == ["t.a"]


def test_verdicts() -> None:
    verdicts = json.loads(REASONS.read_text(encoding="utf-8"))
    assert verdicts and all(v.keys() == {"verdict", "reason"} and v["reason"] for v in verdicts.values())
    assert {v["verdict"] for v in verdicts.values()} <= {*VERDICTS}
