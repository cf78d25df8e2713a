"""How long kernels took, as `smelt.explain` tells: of calls that were asked for, never of a call more."""

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

import smelt
from smelt.errors import OptionError
from smelt.report.kernel_times import KernelTimes
from tests.harness.hosts import generate_products


def f(x, w):
    return torch.sort(F.softmax(x, -1) * w).values.tanh().sum()


X, W = torch.randn(32, 64), torch.randn(64)


def timed(explanation, graph=None):
    """The kernels of a graph, and whether each was timed."""
    kernels = explanation.to_dict()["kernels"]
    return {k["name"]: k["us"] is not None for k in kernels if graph in (None, k["graph"])}


def test_no_call_is_made_that_was_not_asked_for():
    calls = []

    def counted(x):
        calls.append(1)
        return torch.sin(x)

    explanation = smelt.explain(counted)(X)
    assert len(calls) == 1 and timed(explanation) == {"sin": False}
    assert "kernels, most bytes first" in str(explanation) and " us" not in str(explanation)

    explanation = smelt.explain(counted, times=3)(X)
    assert len(calls) == 1 + 4 and timed(explanation) == {"sin": True}
    torch.testing.assert_close(explanation.result, torch.sin(X))


def test_each_kernel_and_call_has_its_time_and_rate():
    explanation = smelt.explain(f, times=3)(X, W)
    kernels = explanation.to_dict()["kernels"]
    assert "aten.sort.default" in timed(explanation) and all(timed(explanation).values())
    for k in kernels:
        moved = k["reads_bytes"] + k["writes_bytes"]
        assert k["us"] > 0 and k["bytes_per_second"] == pytest.approx(moved / k["us"] * 1e6, rel=0.01)
    longest = max(kernels, key=lambda k: k["us"])
    [section] = [part for part in str(explanation).split("\n\n") if part.startswith("kernels, longest first")]
    assert section.splitlines()[1].startswith(f"  {longest['name']} (")
    assert f"{longest['us']:.1f} us (" in section and "GB/s)" in section


def test_a_backward_that_is_called_while_it_is_timed():
    x = X.clone().requires_grad_()
    explanation = smelt.explain(f)(x, W)
    with explanation.timing():
        for _ in range(3):
            explanation.compiled(x, W).backward()
    levels = {g["level"]: g["id"] for g in explanation.to_dict()["graphs"]}
    for level in ("forward", "backward"):
        found = timed(explanation, levels[level])
        assert found and all(found.values()), level


@pytest.mark.parametrize("fused", [False, True])
def test_a_product_with_the_kernel_that_it_fused(fused, monkeypatch):
    generate_products(monkeypatch)

    def product(a, b):
        c = torch.relu(a @ b)
        return c if fused else (c, c.sum(), a @ b)

    given = torch.randn(64, 64), torch.randn(64, 64)
    explanation = smelt.explain(product, times=2)(*given)
    found = [(k["name"], k["us"] is not None) for k in explanation.to_dict()["kernels"]]
    assert ("aten.mm.default", True) in found
    if fused:
        assert found == [("aten.mm.default", True), ("relu", False)]


def test_sizes_of_a_graph_for_any_are_not_known():
    explanation = smelt.explain(lambda x: torch.sin(x), dynamic=True, times=2)(X)
    [kernel] = explanation.to_dict()["kernels"]
    assert kernel["us"] > 0 and kernel["bytes_per_second"] is None


def test_graphs_that_events_do_not_tell_apart_have_no_times():
    explanation = smelt.explain(lambda x: torch.sin(x), dynamic=False)(X)
    explanation.call(torch.randn(3))
    with explanation.timing():
        explanation.compiled(X)
    assert [k["us"] for k in explanation.to_dict()["kernels"]] == [None, None]


def test_each_graph_behind_a_break():
    def broken(x):
        y = torch.sin(x)
        if y.sum() > 1e9:
            print("large")
            return y
        return torch.cos(y)

    assert timed(smelt.explain(broken, times=2)(X)) == {"sin_sum_gt": True, "cos": True}


def test_what_writes_inputs():
    def update(p, g):
        p.sub_(g * 0.1)

    assert list(timed(smelt.explain(update, times=2)(X.clone(), X)).values()) == [True]


def test_one_profiler_at_a_time():
    explanation = smelt.explain(f)(X, W)
    with profile(activities=[ProfilerActivity.CPU]) as outer:
        with pytest.raises(RuntimeError, match="torch's profiler is on"), explanation.timing():
            pass
        explanation.compiled(X, W)
    assert not any(timed(explanation).values())
    assert any(event.name.startswith("smelt graph f") for event in outer.events())


@pytest.mark.parametrize("times", [-1, 1.5, True])
def test_other_times(times):
    with pytest.raises(OptionError, match="times must be an int from 0 on"):
        smelt.explain(f, times=times)


def test_times_of_nothing():
    assert KernelTimes().of([]) == []
