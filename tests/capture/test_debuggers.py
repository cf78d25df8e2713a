"""Debuggers and coverage tools: `breakpoint()`, sys.settrace, sys.monitoring."""

from __future__ import annotations

import cProfile
import io
import pdb
import sys

import pytest
import torch

import smelt
from smelt.report.inspect import entries, reasons
from tests.harness.processes import start


def stepped(x):
    y = x + 1
    z = y * 2
    return z


FIRST = stepped.__code__.co_firstlineno
LINES = [FIRST + 1, FIRST + 2, FIRST + 3]


@pytest.fixture
def session(monkeypatch):
    """Runs a debugger with these commands at each `breakpoint()`; returns what it has printed."""

    def run(commands: str):
        out = io.StringIO()
        monkeypatch.setattr(
            sys,
            "breakpointhook",
            lambda: pdb.Pdb(stdin=io.StringIO(commands), stdout=out, nosigint=True).set_trace(
                sys._getframe(1)
            ),
        )
        return out

    before = sys.gettrace()
    yield run
    sys.settrace(before)


def test_a_breakpoint_shows_the_variables_and_steps(session):
    def fn(x, stops):
        y = x + 1
        if stops:
            breakpoint()
        z = y * 2
        return z

    f, x = smelt.compile(fn), torch.ones(2)
    assert f(x, False).tolist() == [4, 4]
    for _ in range(2):  # at each call, not only where it is captured
        out = session("p y\nn\np z\np x\nc\n")
        assert f(x, True).tolist() == [4, 4]
        said = out.getvalue()
        assert "tensor([2., 2.])" in said and "tensor([4., 4.])" in said and "tensor([1., 1.])" in said
        assert "NameError" not in said and "z = y * 2" in said
    assert f(x, False).tolist() == [4, 4]
    assert [reason.kind.id for reason in reasons(f)] == ["debugger"]


def test_a_breakpoint_in_a_callee_shows_the_callers(session):
    def callee(x):
        w = x * 3
        breakpoint()
        return w

    def fn(x):
        outer = x + 1
        return callee(outer) - 1

    out = session("p w\nup\np outer\nc\n")
    assert smelt.compile(fn)(torch.ones(2)).tolist() == [5, 5]
    assert "tensor([6., 6.])" in out.getvalue() and "tensor([2., 2.])" in out.getvalue()


def test_a_breakpoint_after_a_graph_break_stops_there(session):
    ran = []

    def fn(x):
        y = x + 1
        ran.append(len(ran))
        smelt.graph_break()
        w = y * 2
        breakpoint()
        return w + y

    out = session("p w, y\nc\n")
    assert smelt.compile(fn)(torch.ones(2)).tolist() == [6, 6]
    assert "(tensor([4., 4.]), tensor([2., 2.]))" in out.getvalue()
    assert ran == [0]


def traced_lines(call, code_names=("stepped",)):
    """The result of `call()` and the lines of `stepped` that sys.settrace reports meanwhile."""
    lines = []

    def trace(frame, event, arg):
        if event == "line" and frame.f_code.co_filename == __file__ and frame.f_code.co_name in code_names:
            lines.append(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call(), lines
    finally:
        sys.settrace(before)


def test_a_tracer_sees_each_line_at_each_call():
    f, x = smelt.compile(stepped), torch.ones(2)
    for compiled in (False, True):
        for _ in range(2):
            result, lines = traced_lines(lambda: f(x))
            assert result.tolist() == [4, 4] and lines == LINES
        assert len(entries(f)) == compiled
        assert f(x).tolist() == [4, 4]
    assert len(entries(f)) == 1


def test_a_tracer_sees_lines_of_modules_and_of_what_they_call():
    class Model(torch.nn.Module):
        def forward(self, x):
            return stepped(x)

    model = smelt.compile(Model())
    model(torch.ones(2))
    assert traced_lines(lambda: model(torch.ones(2)))[1] == LINES


def test_an_explanation_says_that_calls_are_traced():
    explanation, _ = traced_lines(lambda: str(smelt.explain(stepped)(torch.ones(2))))
    assert "a debugger or coverage tool follows lines, so calls run eagerly" in explanation


def test_an_option_keeps_calls_compiled():
    f = smelt.compile(stepped, options={"compile_under_tracers": True})
    f(torch.ones(2))
    result, lines = traced_lines(lambda: f(torch.ones(2)))
    assert result.tolist() == [4, 4] and lines == []
    assert len(entries(f)) == 1


def test_profilers_see_compiled_calls():
    f, x = smelt.compile(stepped), torch.ones(2)
    f(x)
    profile = cProfile.Profile()
    profile.enable()
    f(x)
    profile.disable()
    names = {entry.code.co_name for entry in profile.getstats() if not isinstance(entry.code, str)}
    assert "stepped" not in names  # the compiled frame ran


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is of Python 3.12")
@pytest.mark.parametrize("tool", (1, 3))
def test_a_tool_that_monitors_lines_sees_them(tool):
    monitoring = sys.monitoring
    f, x = smelt.compile(stepped), torch.ones(2)
    f(x)
    lines = []
    monitoring.use_tool_id(tool, "lines")
    try:
        monitoring.register_callback(
            tool,
            monitoring.events.LINE,
            lambda code, line: lines.append(line) if code.co_name == "stepped" else None,
        )
        monitoring.set_events(tool, monitoring.events.LINE)
        f(x)
        monitoring.set_events(tool, 0)
        assert lines == LINES
        f(x)
    finally:
        monitoring.free_tool_id(tool)
    assert lines == LINES and len(entries(f)) == 1


def test_one_warning_says_that_calls_run_eagerly():
    done = start(
        """
import sys, torch, smelt
f = smelt.compile(lambda x: x + 1)
f(torch.ones(2))
sys.settrace(lambda *event: None)
f(torch.ones(2))
f(torch.ones(2))
sys.settrace(None)
"""
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "smelt: a debugger or coverage tool follows lines, so compiled functions run eagerly"
    )
