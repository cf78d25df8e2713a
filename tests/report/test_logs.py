"""`SMELT_LOGS`, `smelt.set_logs` and `SMELT_LOGS_JSON`: what is told, to whom, and that nothing is where nobody asks."""

from __future__ import annotations

import json
import logging
import os
import subprocess

import pytest
import torch

import smelt
import smelt.report.inspect
from smelt import events
from smelt.report import logs
from tests.harness.processes import start


@pytest.fixture(autouse=True)
def silent_again():
    before = list(events._subscribers)
    yield
    smelt.set_logs(json="", **dict.fromkeys(logs.NAMES, False))
    assert events._subscribers == before


def f(x):
    y = x.sin() + 1
    smelt.graph_break()
    return y @ y


def told(capsys, **names: bool) -> str:
    """What goes to stderr while `f` is compiled for two sizes. pytest's own handlers are not there, as in a program that
    has not set up logging."""
    root = logging.getLogger()
    kept, root.handlers = root.handlers, []
    try:
        smelt.set_logs(**names)
        compiled = smelt.compile(f)
        compiled(torch.randn(4, 4))
        compiled(torch.randn(5, 5))
    finally:
        root.handlers = kept
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("breaks", "[smelt.breaks] graph break in f: graph-break-requested"),
        ("recompiles", "entry 0 rejected the call: L['x'].shape: expected (4, 4), found (5, 5)"),
        ("guards", "is_tensor(L['x'], torch.float32, shape=[4, 4]"),
        ("graphs", "sin = x.sin()"),
        ("fusion", "kernel sin_add(in p0: float32, out p1: float32)"),
        ("kernels", "[smelt.kernels] kernels: sin_add; called: none"),
        ("plan", "launch sin_add(r0, r1)"),
        ("perf", "[smelt.perf] f: captured in "),
    ],
)
def test_each_name_tells_what_it_is_for_and_nothing_else(capsys, name, said):
    text = told(capsys, **{name: True})
    assert said in text
    heads = {line.split("]")[0] for line in text.splitlines() if line.startswith("[smelt.")}
    assert heads == {f"[smelt.{name}"}


def test_a_recompile_is_one_line_with_the_guard_of_the_entry_that_fits_best(caplog):
    """The second entry has another dtype, which the third call does not have either: the first fits but for its size."""
    smelt.set_logs(recompiles=True)
    with events.subscribed((found := []).append):
        compiled = smelt.compile(lambda x, factor: (x * factor).relu())
        for x in (torch.ones(4, 8), torch.ones(4, 8).double(), torch.ones(5, 8)):
            compiled(x, 2.0)
    first, second = (r.getMessage() for r in caplog.records if r.name == "smelt.recompiles")
    assert first.endswith(
        "entry 0 rejected the call: L['x'].dtype: expected torch.float32, found torch.float64"
    )
    assert second.endswith(
        "entry 0 rejected the call: L['x'].shape: expected (4, 8), found (5, 8); so did 1 other entry (`smelt explain` "
        "shows all)"
    )
    latest = [event.data for event in found if event.kind == "recompile"][-1]
    assert latest["entry"] == 0 and latest["failures"][0] is latest["failure"]
    assert str(latest["failures"][1]) == "L['x'].dtype: expected torch.float64, found torch.float32"
    assert smelt.report.inspect.entries(compiled)[-1].reason is latest["failure"]


def test_sizes_that_may_not_be_any_are_told(caplog):
    smelt.set_logs(sizes=True)
    smelt.compile(lambda x: x * hash(x.shape[0]), dynamic=True)(torch.randn(3, 3))
    [record] = [r for r in caplog.records if r.name == "smelt.sizes"]
    assert "L['x'].shape[0]: the program needs its value: the size is specialized at" in record.getMessage()


def test_without_logs_nothing_is_told(capsys):
    assert told(capsys) == ""
    assert told(capsys, breaks=False) == ""


def test_a_program_that_has_set_up_logging_gets_records(caplog, capsys):
    smelt.set_logs(breaks=True)
    smelt.compile(f)(torch.randn(3, 3))
    [record] = [r for r in caplog.records if r.name == "smelt.breaks"]
    assert record.levelno == logging.INFO
    assert record.getMessage().startswith("graph break in f: graph-break-requested")
    assert "smelt.breaks" not in capsys.readouterr().err


def test_what_a_handler_raises_does_not_end_the_call():
    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("a handler's own error")

    handler = Failing()
    logger = logging.getLogger("smelt.breaks")
    logger.addHandler(handler)
    try:
        smelt.set_logs(breaks=True)
        x = torch.randn(3, 3)
        torch.testing.assert_close(smelt.compile(f)(x), f(x))
    finally:
        logger.removeHandler(handler)


def test_names_that_are_not_named_stay_as_they_are(capsys):
    smelt.set_logs(breaks=True)
    smelt.set_logs(perf=True)
    text = told(capsys, perf=False)
    assert "[smelt.breaks]" in text and "[smelt.perf]" not in text


def test_unknown_names_are_errors_that_list_the_known():
    with pytest.raises(
        smelt.errors.OptionError, match=r"unknown log 'brakes'; did you mean 'breaks'\? Known: b"
    ):
        smelt.set_logs(brakes=True)
    with pytest.raises(
        smelt.errors.OptionError, match="unknown log 'zzz'; Known: breaks, recompiles, sizes, guards"
    ):
        smelt.set_logs(zzz=True)
    with pytest.raises(smelt.errors.OptionError, match="breaks must be a bool, got 'yes'"):
        smelt.set_logs(breaks="yes")
    with pytest.raises(smelt.errors.OptionError, match="cannot be written: No such file"):
        smelt.set_logs(json="/nowhere/at/all")


def test_json_has_an_object_for_each_event(tmp_path):
    path = tmp_path / "events.jsonl"
    smelt.set_logs(json=path)
    compiled = smelt.compile(f)
    compiled(torch.randn(4, 4))
    compiled(torch.randn(5, 5))
    smelt.set_logs(json="")
    compiled(torch.randn(6, 7, 7))  # nobody listens
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(set(event) == {"time", "kind", "name", "data"} for event in found)
    assert sorted(event["time"] for event in found) == [event["time"] for event in found]
    first = {event["kind"]: event for event in reversed(found)}
    assert first["recompile"]["data"]["failure"] == {
        "source": "L['x'].shape",
        "expected": "(4, 4)",
        "found": "(5, 5)",
        "line": None,
    }
    reason = first["graph-break"]["data"]["reason"]
    assert reason["id"] == "graph-break-requested" and reason["line"]["filename"] == __file__
    assert type(first["capture-start"]["data"]["attempt"]) is str  # what is not JSON
    assert "def " in first["entry-installed"]["data"]["entry"]["source"]
    assert len([e for e in found if e["kind"] == "recompile" and e["name"] == "f"]) == 1


def test_numbers_that_json_lacks_are_text():
    from smelt.report.log_texts import plain

    assert plain({"a": float("inf"), 1: (1.5, None, {2})}) == {"a": "inf", "1": [1.5, None, [2]]}


def started(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return start(program, env={**os.environ, **variables})


def test_the_environment_turns_logs_on(tmp_path):
    program = "import smelt, torch; smelt.compile(lambda x: x + 1)(torch.ones(2))"
    done = started(program, SMELT_LOGS="graphs, kernels", SMELT_LOGS_JSON=str(tmp_path / "log"))
    assert done.returncode == 0, done.stderr
    assert "[smelt.graphs] " in done.stderr and "[smelt.kernels] kernels: add; called: none" in done.stderr
    assert '"kind": "entry-installed"' in (tmp_path / "log").read_text()
    done = started("import smelt", SMELT_LOGS="grahps")
    assert done.returncode == 1
    assert "OptionError: SMELT_LOGS: unknown log 'grahps'; did you mean 'graphs'?" in done.stderr


def test_logs_of_several_processes_name_the_rank(tmp_path):
    program = "import smelt, torch; smelt.compile(lambda x: x + 1)(torch.ones(2))"
    of_json = tmp_path / "log"
    ranks = {"RANK": "1", "WORLD_SIZE": "2"}
    done = started(program, SMELT_LOGS="kernels", SMELT_LOGS_JSON=str(of_json), **ranks)
    assert "[smelt.kernels, rank 1 of 2] kernels: add; called: none" in done.stderr
    assert all(json.loads(line)["rank"] == 1 for line in of_json.read_text().splitlines())


def test_help_prints_the_names():
    done = started("import smelt, sys; print('smelt.callables' in sys.modules)", SMELT_LOGS="help")
    assert done.stdout == "False\n"
    assert [line.split()[0] for line in done.stderr.splitlines()[1:]] == list(logs.NAMES)


def test_the_names_are_those_that_texts_exist_for():
    from smelt.report.log_texts import TEXTS

    assert list(TEXTS) == list(logs.NAMES)


def test_lines_that_do_not_fit_are_left_out_with_one_warning(caplog):
    smelt.set_logs(json="/dev/full")
    try:
        smelt.compile(lambda x: x + 1)(torch.ones(3))
    finally:
        smelt.set_logs(json="")
    assert [r.getMessage() for r in caplog.records if "lines of the log" in r.getMessage()] == [
        "smelt: /dev/full: lines of the log are missing: No space left on device"
    ]
