"""The figures of a report against the events that they come from, and what a report says where it has none."""

from __future__ import annotations

import linecache
import sys
import time
import types
from pathlib import Path

import pytest
import torch
from timm.layers import Mlp

import smelt
from smelt import events
from smelt.errors import OptionError


def toy(x):
    y = x.sin() + 1
    if y.sum() > 1e9:
        print("large")  # an effect, for which the graph breaks at the condition
        return y
    return y.softmax(-1)


def test_time_of_compilation_is_that_of_the_events():
    x, seconds = torch.ones(8, requires_grad=True), []
    with events.timed(lambda name, s: seconds.append(s)):
        explanation = smelt.explain(toy)(x)
        with explanation.watching():
            time.sleep(0.3)  # the program's own time
            explanation.result.sum().backward()
    report = explanation.report()
    outermost = [p.ms for p in report.phases if p.name == "compile"]
    assert len(outermost) == len(seconds) == 4  # the function, its resume function, a backward of each
    assert report.compile_ms == sum(outermost) == pytest.approx(1e3 * sum(seconds), rel=0.1)
    ends = [p.start_ms + p.ms for p in report.phases]
    assert report.compile_ms < max(ends) - min(p.start_ms for p in report.phases) - 290
    for phase in report.phases:
        assert any(p.contains(phase) for p in report.phases if p.name == "compile"), phase
    assert f"compiled in {report.compile_ms / 1e3:.2f} s" in str(explanation)


def test_the_cost_of_a_break_has_no_compilation():
    model = torch.nn.Linear(4, 4)

    def step(x):
        loss = model(x).sum()
        if loss.item() > 1e9:
            print("large")
        loss.backward()  # of a graph that ended before
        return loss

    def slow(event):
        if event.kind == "backward-start":
            time.sleep(0.5)

    with events.subscribed(slow):
        explanation = smelt.explain(step)(torch.ones(4))
    report = explanation.report()
    assert report.compile_ms > 500
    assert [b.line.text for b in report.breaks if "backward()" in b.line.text]
    costs = [b.cost_ms for b in report.breaks if b.cost_ms is not None]
    assert all(0 < cost < 450 for cost in costs)
    assert costs or smelt.config.DEFAULT.verify  # verified frames are not timed


def test_counts_add_up_neither_levels_nor_entries():
    explanation = smelt.explain(toy, dynamic=False)(torch.ones(8, requires_grad=True))
    explanation.call(torch.ones(4)).call(torch.ones(2)).call(torch.ones(2))
    report = explanation.report()
    counts = report.counts
    assert {g.level for g in report.graphs} >= {"torch", "joint", "forward"}
    assert counts.graphs == counts.entries == 6 and counts.recompiles == 4
    assert len(report.recompiles) == 2 * (
        1 + 2
    )  # the third call was rejected by two entries of each function
    assert len({r.call for r in report.recompiles if r.compiled}) == 4
    assert counts.kernels + counts.extern_calls == len(report.kernels)
    assert counts.guards == sum(len(e.guards) for f in report.frames for e in f.entries)
    text = str(explanation)
    assert "6 graphs, 1 break, 4 recompiles, 6 entries" in text
    assert "\nrecompiles (4)\n" in text and "\ngraphs (6, at each level)\n" in text


def test_calls_beyond_the_limit_are_no_recompiles():
    def f(x, n):
        return x * 2 if n in (1, 2, 3, 4, 5) else x

    explanation = smelt.explain(f, dynamic=False, options={"recompile_limit": 2})(torch.ones(3), 1)
    for n in range(2, 6):
        explanation.call(torch.ones(n), n)
    counts = explanation.report().counts
    assert counts.recompiles == counts.entries - 1


# ------------------------------------------------------------------------------------------- why there is nothing


def notes(explanation):
    return [note.text for note in explanation.report().notes]


def test_compiled_before_the_report_observed():
    compiled = smelt.compile(toy)
    compiled(torch.ones(3))
    explanation = smelt.explain(compiled)(torch.ones(3))
    [note] = notes(explanation)
    assert note.startswith("2 of 2 entries were compiled before") and "smelt.reset()" in note
    assert (
        "compiled before this report" in str(explanation) and "compiled before" in explanation._repr_html_()
    )
    assert explanation.report().compile_ms == 0


def test_nothing_was_compiled():
    from smelt.report.explanation import Explanation

    assert "it was not called" in str(Explanation(smelt.compile(toy)))
    with torch.compiler.set_stance("force_eager"):
        assert "the stance force_eager" in str(smelt.explain(toy)(torch.ones(3)))
    assert "no graph: " in str(smelt.explain(lambda x: x)(torch.ones(3)))
    assert "no kernels: the backend" in str(smelt.explain(torch.sin, backend="aot_eager")(torch.ones(3)))
    assert notes(smelt.explain(torch.sin)(torch.ones(3))) == []


@pytest.mark.parametrize("fn", [None, torch.nn.Linear])
def test_what_cannot_be_explained_is_named(fn):
    with pytest.raises(
        TypeError, match=f"smelt.explain: fn must be a function.*, got .*{getattr(fn, '__name__', fn)}"
    ):
        smelt.explain(fn)


def test_nothing_to_explain_of_a_disabled_compilation():
    with pytest.raises(OptionError, match="disable=True compiles nothing"):
        smelt.explain(toy, disable=True)


class _State:
    mode = None


def test_missing_times_are_explained():
    state = _State()

    def f(x):
        if state.mode is None:
            state.mode = "set"
        return (x.sin() + 1).softmax(-1)

    explanation = smelt.explain(f, times=2)(torch.ones(4, 64))
    kernels = explanation.report().kernels
    found = [note.text for note in explanation.report().notes if note.view == "kernels"]
    assert len(found) == 2 and all("no times for kernels of graph" in text for text in found)
    assert all(k.us is None for k in kernels) and "cannot tell it from 1 more" in found[0]
    [section] = [part for part in str(explanation).split("\n\n") if part.startswith("kernels")]
    assert found[0][:60] in section

    other = smelt.explain(lambda x: x.cos(), times=2)(torch.ones(4))
    assert notes(other) == []
    other.call(torch.ones(5, 5, dtype=torch.complex64))
    [note] = notes(other)
    assert "the timed calls ran another entry" in note or "cannot tell it from 1 more" in note


def test_missing_times_of_a_backward_are_explained():
    explanation = smelt.explain(toy, times=2)(torch.ones(8, requires_grad=True))
    with explanation.watching():
        explanation.result.sum().backward()
    backward = {g.id for g in explanation.report().graphs if g.level == "backward"}
    found = [text for text in notes(explanation) if "no times" in text]
    assert len(backward) == len(found) == 2  # the function's, and its resume function's
    for text in found:
        assert int(text.partition(":")[0].split()[-1]) in backward
        assert "ran no backward of it. Call backward() within `with explanation.timing():`" in text
    with explanation.timing():
        explanation.compiled(torch.ones(8, requires_grad=True)).sum().backward()
    assert notes(explanation) == []
    assert all(k.us is not None for k in explanation.report().kernels)


def test_the_users_files_come_before_installed_ones():
    layer = Mlp(4)
    report = smelt.explain(lambda x: layer(x))(torch.ones(3, 4)).report()
    assert [Path(source.file).name for source in report.sources] == [Path(__file__).name, "mlp.py"]


def test_the_lines_of_a_notebook_are_those_of_its_tracebacks(monkeypatch):
    file = "/tmp/ipykernel_1/2947186604.py"
    source = "def cell(x):\n    return x * x.sum().tolist()\n"
    monkeypatch.setitem(linecache.cache, file, (len(source), None, source.splitlines(keepends=True), file))
    named = types.SimpleNamespace(format_code_name=lambda name: ("Cell", "In[2]") if name == file else None)
    shell = types.SimpleNamespace(compile=named)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    namespace = {}
    exec(compile(source, file, "exec"), namespace)
    explanation = smelt.explain(namespace["cell"])(torch.ones(3))
    report = explanation.report()
    assert "at Cell In[2]:2: return x * x.sum().tolist()" in str(explanation)
    assert "2947186604" not in str(explanation)
    assert [(s.file, s.text) for s in report.sources] == [("Cell In[2]", source)]
    assert {line for kernel in report.kernels for line in kernel.lines} == {"Cell In[2]:2 in cell"}
