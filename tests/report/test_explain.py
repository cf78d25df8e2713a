"""`smelt.explain`: what a user reads of a call."""

import dataclasses
import json
import resource
import time
import traceback

import pytest
import torch
from torch import nn

import smelt
from benchmarks.models import tensors
from smelt import events
from smelt.report.inspect import records
from smelt.report.report_data import OF_COST, OF_RESUME_FUNCTION
from tests.harness.models import MODELS


def toy(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        print("negative")
        b = b * -1
    return x * b


def lines_of(rows):
    return [row["line"]["text"] for row in rows]


def test_a_break_is_told_with_its_line_and_what_to_do():
    explanation = smelt.explain(toy)(torch.randn(10), torch.ones(10))
    data = explanation.to_dict()
    [broke] = data["breaks"]
    assert broke["id"] == "data-dependent-condition" and "torch.where" in broke["hint"]
    assert broke["line"]["text"] == "if b.sum() < 0:" and broke["line"]["file"] == __file__
    text = str(explanation)
    assert text.startswith("toy: 2 graphs, 1 break, 0 recompiles, 2 entries, compiled in ")
    assert (
        "test_explain.py:" in text
        and "if b.sum() < 0:" in text
        and "fix: Keep effects out of both branches" in text
    )
    assert max(map(len, text.splitlines())) <= 120
    at = {(row["line"], event) for row in data["lines"] for event in row["events"]}
    assert (broke["line"]["line"], "break") in at and (broke["line"]["line"] - 1, "captured") in at
    assert "if b.sum() < 0:" in data["sources"][0]["text"]


def test_all_of_it_is_json():
    explanation = smelt.explain(toy)(torch.randn(10, requires_grad=True), torch.ones(10))
    data = explanation.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert list(data) == [f.name for f in dataclasses.fields(explanation.report())]
    assert {"version", "frames", "graphs", "kernels", "memory", "phases", "lines", "sources"} <= data.keys()


def test_the_result_is_the_calls_and_nothing_stays_subscribed():
    x, y = torch.randn(10), torch.ones(10)
    calls = []

    def f(a, b):
        calls.append(1)
        return toy(a, b)

    torch.testing.assert_close(smelt.explain(f)(x, y).result, toy(x, y))
    assert len(calls) == 1
    seen = []
    with events.subscribed(seen.append):
        smelt.explain(f)(x, y)
        seen.clear()
        explanation = smelt.explain(smelt.compile(f))
        events.emit("capture-start", "nobody", attempt=None)
    assert [e.name for e in seen] == ["nobody"]
    assert "nobody" not in str(explanation(x, y))


# -------------------------------------------------------------------------------------------------- training


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(2)])
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.norm(x)


def test_a_model_in_training():
    model, x = Block(), torch.randn(8, 16)
    explanation = smelt.explain(model)(x)
    assert "backward" not in {p["name"] for p in explanation.to_dict()["phases"]}
    with explanation.watching():
        explanation.result.sum().backward()
    data = explanation.to_dict()
    graphs = {graph["level"]: graph for graph in data["graphs"]}
    assert list(graphs) == ["torch", "joint", "forward", "backward"]
    assert {"capture", "partition", "lower", "fuse", "codegen", "backward"} <= {
        p["name"] for p in data["phases"]
    }
    assert {k["graph"] for k in data["kernels"]} == {graphs["forward"]["id"], graphs["backward"]["id"]}
    modules = {node["name"]: node["module"] for node in graphs["torch"]["nodes"]}
    assert modules["linear"] == "layers.0" and modules["tanh"] == "layers" and modules["layer_norm"] == "norm"
    for level in ("joint", "backward"):  # a gradient's nodes are of the module whose gradient it is
        of = {
            node["name"]: node["module"] for node in graphs[level]["nodes"] if node["op"].startswith("call")
        }
        assert of["native_layer_norm_backward"] == "norm" and of["tanh_backward_1"] == "layers"
        assert of["mm_1"] == "layers.1" and of["mm_2"] == of["sum_1"] == "layers.0"
        assert {name for name, module in of.items() if module is None} <= {
            "tanh_1",
            "tanh_backward",
        }  # the model's own
    lines = {node["line"]["line"] for node in graphs["forward"]["nodes"] if node["line"]}
    assert lines < {row["line"] for row in data["lines"]}


def test_phases_of_a_backward_are_of_the_frame_it_belongs_to():
    def f(x):
        y = x.sin().exp()
        smelt.graph_break()
        return y.cos().sum()

    explanation = smelt.explain(f)(torch.randn(4, requires_grad=True))
    with explanation.watching():
        explanation.result.backward()
    data = explanation.to_dict()
    frames = [frame["name"] for frame in data["frames"]]
    assert [p["frame"] for p in data["phases"] if p["name"] == "backward"] == frames[::-1]
    assert {p["frame"] for p in data["phases"] if p["name"] == "lower"} == set(frames)


def test_memory_is_that_of_the_partition_against_what_eager_keeps():
    """Two tanhs: each result is kept; eager keeps what a hook on the original sees, too."""

    def f(x):
        return torch.cos(torch.cos(x)).sum()

    explanation = smelt.explain(f)(torch.randn(100, 100, requires_grad=True))
    memory = explanation.to_dict()["memory"]
    assert memory["saved_bytes"] == 0  # cos is computed again, from the input, which the caller holds
    assert (
        memory["eager_saved_bytes"] == 100 * 100 * 4
    )  # of the inner one; the outer reads it, the inner the input
    assert "0 B; eager keeps 39.1 KiB" in str(explanation)


@pytest.mark.parametrize("name", ["BERT", "MobileNetV3-L"])
def test_what_eager_keeps_is_what_an_eager_run_of_the_model_keeps(name):
    model, inputs = MODELS[name]()
    model.train()
    kept = []
    held = [*model.parameters(), *model.buffers(), *inputs.values()]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        held += tensors(model(**inputs))
    own = {t.untyped_storage().data_ptr() for t in held}
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    memory = smelt.explain(model)(**inputs).to_dict()["memory"]
    assert memory["eager_saved_bytes"] == sum(n for at, n in storages.items() if at not in own)
    assert 0 < memory["saved_bytes"] < memory["eager_saved_bytes"]


def test_measuring_leaves_random_numbers_and_gradients_alone():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    x = torch.randn(4, 8)
    torch.manual_seed(0)
    compiled = smelt.compile(model)
    compiled(x)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    explanation = smelt.explain(model)(x)
    explanation.result.sum().backward()
    before = [p.grad.clone() for p in model.parameters()]
    assert explanation.to_dict()["memory"]["eager_saved_bytes"] > 0
    str(explanation), explanation._repr_html_()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before))


def test_code_of_the_users_does_not_run_to_measure():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    explanation = smelt.explain(lambda x: Twice.apply(x).sin())(torch.randn(3, requires_grad=True))
    assert explanation.to_dict()["memory"]["eager_saved_bytes"] is None


# ------------------------------------------------------------------------------------------ more than one call


def test_a_recompile_names_the_guard_and_both_values():
    def scaled(x, n):
        return x * n if n > 2 else x

    explanation = smelt.explain(scaled, dynamic=False)(torch.randn(3), 3)
    explanation.call(torch.randn(3), 4).call(torch.randn(3), 4)
    data = explanation.to_dict()
    [recompile] = data["recompiles"]
    assert (recompile["frame"].split(".")[-1], recompile["entry"]) == ("scaled", 0)
    assert (recompile["guard"], recompile["was"], recompile["now"]) == ("L['n'] == 3", "3", "4")
    assert "L['n']: was 3, now 4" in str(explanation)


FACTORS = {"first": 3}


def test_a_line_whose_guard_failed_is_marked():
    def scaled(x):
        return x * FACTORS["first"]

    explanation = smelt.explain(scaled, dynamic=False)(torch.randn(3))
    FACTORS["first"] = 5
    data = explanation.call(torch.randn(3)).to_dict()
    [row] = [row for row in data["lines"] if "recompiled" in row["events"]]
    assert row["line"] == scaled.__code__.co_firstlineno + 1
    assert data["recompiles"][0]["line"]["line"] == row["line"]


def test_sizes_that_may_not_be_any_are_told():
    linear = torch.nn.Linear(4, 2)

    def f(x):
        return linear(x) * hash(x.shape[0])

    explanation = smelt.explain(f, dynamic=True)(torch.randn(5, 4))
    first = f.__code__.co_firstlineno + 1
    of_features, of_rows = explanation.to_dict()["restricted_sizes"]
    assert (of_rows["sizes"], of_rows["detail"]) == (
        ["L['x'].shape[0]"],
        "the program needs its value: the size is specialized",
    )
    assert of_features["sizes"] == ["L['x'].shape[1]"] and "addmm" in of_features["detail"]
    assert of_rows["line"]["line"] == of_features["line"]["line"] == first
    assert f"needed at test_explain.py:{first}" in str(explanation)


def test_sizes_that_change_are_told():
    explanation = smelt.explain(lambda x: x.sin() * 2)(torch.randn(5, 4)).call(torch.randn(7, 4))
    data = explanation.to_dict()
    [first, second] = data["frames"][0]["entries"]
    assert first["sizes"] == [] and second["sizes"] == ["s0 = x.shape[0]"]
    [recompile] = data["recompiles"]
    assert (recompile["where"], recompile["was"], recompile["now"]) == ("L['x'].shape", "(5, 4)", "(7, 4)")
    assert [kernel["reads_bytes"] for kernel in data["kernels"]] == [5 * 4 * 4, 7 * 4 * 4]


def test_what_was_compiled_before_is_told_as_well():
    compiled = smelt.compile(toy)
    compiled(torch.randn(10), torch.ones(10))
    explanation = smelt.explain(compiled)
    data = explanation(torch.randn(10), torch.ones(10)).to_dict()
    assert len(data["breaks"]) == 1 and data["phases"] == []


# ------------------------------------------------------------------------------------- what was not compiled


def test_a_call_that_runs_eagerly():
    def f(x):
        raise_if_odd(len(x))
        return x + 1

    def raise_if_odd(n):
        if n % 2:
            raise ValueError("odd")

    compiled = smelt.compile(f)
    with pytest.raises(ValueError, match="odd"):
        smelt.explain(compiled)(torch.randn(3))
    data = smelt.explain(compiled)(torch.randn(4)).to_dict()
    [reason] = data["eager"]
    assert reason["id"] == "user-exception" and reason["line"]["text"] == "raise_if_odd(len(x))"


def test_operators_that_aten_does_and_pairs_that_were_not_fused():
    def f(x, w):
        y = torch.relu(x)
        return torch.linalg.qr(y + y @ w)[0]

    data = smelt.explain(f)(torch.randn(4, 4), torch.randn(4, 4)).to_dict()
    assert {"aten.linalg_qr.default": "it has no lowering to loops: ATen's kernel does it"}.items() <= {
        row["target"]: row["why"] for row in data["externs"]
    }.items()
    assert {"a": "add", "b": "relu", "why": "what it needs is computed after the other"}.items() <= data[
        "not_fused"
    ][0].items()


def test_a_convolution_that_aten_does_says_so():
    def f(x, w):
        return torch.relu(torch.nn.functional.conv2d(x, w))

    data = smelt.explain(f)(torch.randn(2, 8, 64, 64), torch.randn(16, 8, 3, 3)).to_dict()
    [convolution] = [k for k in data["kernels"] if "convolution" in k["name"]]
    assert convolution["flops"] == 2 * (2 * 16 * 62 * 62) * (8 * 3 * 3)
    if convolution["kind"] == "extern":  # not generated on this machine
        assert "a product or convolution" in data["externs"][0]["why"]


def test_kernels_tell_bytes_and_operations():
    data = smelt.explain(lambda x, y: (x + y).exp())(torch.randn(8, 100), torch.randn(100)).to_dict()
    [kernel] = data["kernels"]
    assert (kernel["reads_bytes"], kernel["writes_bytes"], kernel["flops"]) == (900 * 4, 800 * 4, 1600)
    assert kernel["kind"] == "generated" and "exp(p0[" in kernel["code"] and kernel["nodes"] == ["add", "exp"]
    data = smelt.explain(lambda x, y: x @ y)(torch.randn(8, 100), torch.randn(100, 4)).to_dict()
    assert data["kernels"][0]["flops"] == 2 * 8 * 4 * 100


def test_what_a_break_costs_is_measured_in_the_call_itself():
    @smelt.disable
    def slow(x):
        time.sleep(0.02)
        return x

    def f(x):
        y = slow(x + 1)
        return y * 2

    x = torch.ones(3)
    explanation = smelt.explain(f)(x)
    own = [entry.callees[0].__code__ for _, r in records(explanation.compiled) for entry in r.entries]
    [broke] = explanation.call(x).to_dict()["breaks"]
    assert 20 <= broke["cost_ms"] < 200 and f"ms a call, {OF_COST}" in str(explanation)
    assert own == [entry.callees[0].__code__ for _, r in records(explanation.compiled) for entry in r.entries]
    assert torch.equal(explanation.result, f(x))


def test_phases_within_others_are_named():
    text = str(smelt.explain(lambda x: x.sin() + 1)(torch.ones(3)))
    assert "(compile is all of it; parts of others: lower, fuse, codegen, load)" in text


def test_resume_functions_are_introduced():
    def f(x):
        y = x + 1
        smelt.graph_break()
        return y.sin()

    explanation = smelt.explain(f)(torch.ones(3)).call(torch.ones(4))
    [rest] = [frame for frame in explanation.report().frames if frame.resumes]
    assert str(explanation).replace("\n      ", " ").count(OF_RESUME_FUNCTION.format(rest.resumes)) == 1


def test_tracebacks_are_eagers_while_a_break_is_measured():
    @smelt.disable
    def fails(x):
        raise ValueError("no")

    def f(x):
        y = x + 1
        return fails(y)

    def lines(call):
        with pytest.raises(ValueError, match="no") as caught:
            call(torch.ones(3))
        stack = traceback.extract_tb(caught.value.__traceback__)
        return [(s.name, s.line) for s in stack if s.filename == __file__ and s.name != "lines"]

    assert lines(smelt.explain(f)) == lines(f)


def test_a_backend_that_compiles_nothing_has_no_kernels():
    explanation = smelt.explain(lambda x: x.cos().sum(), backend="aot_eager")(
        torch.ones(3, requires_grad=True)
    )
    data = explanation.to_dict()
    assert data["kernels"] == data["externs"] == [] and data["memory"]["eager_saved_bytes"] == 0
    assert [graph["level"] for graph in data["graphs"]] == ["torch", "joint", "forward", "backward"]


def test_a_generator_has_lines_of_the_users_alone():
    def steps(x):
        yield x + 1
        yield x * 2

    explanation = smelt.explain(steps)(torch.ones(3))
    with explanation.watching():
        assert [t.tolist() for t in explanation.result] == [[2.0] * 3, [2.0] * 3]
    data = explanation.to_dict()
    assert {row["file"] for row in data["lines"]} == {__file__}
    assert sum(graph["operators"] for graph in data["graphs"] if graph["level"] == "torch") == 2


# -------------------------------------------------------------------------------------------------- showing it


def test_html_is_escaped():
    def f(x, text):
        return x + 1 if text == "<script>alert(1)</script>" else x

    html = smelt.explain(f)(torch.randn(3), "<script>alert(1)</script>")._repr_html_()
    assert "<script" not in html and "&lt;script&gt;" in html
    assert html.count("<details") == html.count("</details>") and "color:inherit" in html


def test_a_report_is_saved_as_json(tmp_path):
    explanation = smelt.explain(toy)(torch.randn(10), torch.ones(10))
    path = explanation.save(tmp_path / "report.json")
    assert json.loads(path.read_text())["name"] == "toy"
    with pytest.raises(ValueError, match=r"\.txt"):
        explanation.save(tmp_path / "report.txt")


@pytest.mark.parametrize("name", ("report.json", "report.html"))
def test_a_report_that_does_not_fit_on_the_disk_leaves_the_earlier_one(tmp_path, name):
    explanation = smelt.explain(toy)(torch.randn(10), torch.ones(10))
    (tmp_path / name).write_text("earlier")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            explanation.save(tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "earlier")]


def test_what_is_not_compiled_is_refused():
    with pytest.raises(TypeError, match="must be a function"):
        smelt.explain(3)


@pytest.mark.parametrize("rows", (0, 1, 3))
def test_every_element_of_a_synthetic_input_is_drawn(rows):
    from smelt.report.eager_saved_bytes import _DRAWN, _fill

    for more in (0, 7):
        filled = torch.full((rows * _DRAWN + more,), float("nan"))
        _fill(filled)
        assert not filled.isnan().any()
        assert filled.numel() < 2 or filled.unique().numel() > 1
