"""`smelt.trace`: the graphs of one call, as values to print, walk, edit and run."""

import pytest
import torch

import smelt
import smelt.report.inspect
from smelt.errors import OptionError, SmeltError, Unsupported
from smelt.report.inspect import kernels
from smelt.report.traces import GraphView


def two_cosines(x):
    return torch.cos(torch.cos(x))


def test_both_levels_print_and_run(capsys):
    x = torch.randn(3, 4)

    def f(x):
        return x.softmax(-1) + 1

    trace = smelt.trace(f)(x)
    torch.testing.assert_close(trace.result, f(x))
    assert "softmax = x.softmax(-1);  x = None  # float32[3, 4]" in trace.torch.code
    assert "torch.ops.aten._softmax.default(x, -1, False)" in trace.aten.code
    assert "f: return x.softmax(-1) + 1\n" in trace.aten.code
    for view in (trace.torch, trace.aten):
        assert torch.equal(view(x)[0], f(x))
        scope = {}
        exec(view.code, scope)
        assert torch.equal(scope["forward"](x)[0], f(x))
    trace.print_tabular()
    assert "call_method" in capsys.readouterr().out
    assert [n.op for n in trace.torch.nodes] == ["placeholder", "call_method", "call_method", "output"]
    assert ".f, torch level\n" in str(trace)


def test_parameters_are_inputs_and_nothing_of_the_module_changes():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = torch.randn(2, 3)
    trace = smelt.trace(model)(x)
    names = [p.name for p in trace.torch.graph.placeholders]
    by_name = {"input": x, "self_0_weight": model[0].weight, "self_0_bias": model[0].bias}
    assert set(names) == by_name.keys()
    assert torch.equal(trace.torch(*(by_name[n] for n in names))[0], model(x))
    assert type(model) is torch.nn.Sequential and all(p.grad is None for p in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_the_graph_module_is_one_of_torch_fx_and_what_backends_are_given():
    given = []

    def backend(gm, example_inputs):
        given.append(gm)
        return gm.forward

    x = torch.randn(5)
    trace = smelt.trace(two_cosines, backend=backend)(x)
    module = trace.to_fx()
    assert isinstance(module, torch.fx.GraphModule) and module.code == given[0].code
    for node in module.graph.nodes:
        if node.target is torch.cos:
            node.target = torch.sin
    module.recompile()
    assert torch.equal(module(x)[0], x.sin().sin())
    assert torch.equal(trace.torch(x)[0], two_cosines(x))


def test_nodes_can_be_edited():
    x = torch.randn(5)
    trace = smelt.trace(two_cosines)(x)
    for node in trace.aten.nodes:
        if node.op == "call_function":
            node.target = torch.ops.aten.sin.default
    assert torch.equal(trace.aten(x)[0], two_cosines(x))
    trace.aten.recompile()
    assert torch.equal(trace.aten(x)[0], x.sin().sin())
    assert "aten.sin.default" in str(trace.aten)


def test_the_joint_graph_and_its_partition():
    """Of the two cosines one tensor is needed, which the caller holds: eager keeps both arguments."""
    x = torch.randn(5, 5, requires_grad=True)
    trace = smelt.trace(two_cosines)(x)
    gradient = torch.randn(5, 5)
    expected = two_cosines(x)
    (wanted,) = torch.autograd.grad(expected, x, gradient)
    with torch.no_grad():
        out, grad = trace.joint(x, gradient)
        torch.testing.assert_close((out, grad), (expected, wanted))
        out, *saved = trace.forward(x)
        assert torch.equal(out, expected) and saved == []
        rows = [("primal", "primals_1", 0), ("alias", "primals_1_alias", 0)]
        assert [(s.kind, s.name, s.nbytes) for s in trace.partition.saved] == rows
        torch.testing.assert_close(trace.backward(x, x, gradient), (wanted,))
    assert isinstance(trace.joint.to_fx(), torch.fx.GraphModule)
    assert x.grad is None and trace.result.grad_fn is not None
    trace.result.backward(gradient)
    torch.testing.assert_close(x.grad, wanted)


def test_what_is_saved_goes_from_forward_to_backward():
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)

    def f(x, w):
        return torch.tanh(x @ w).sum()

    trace = smelt.trace(f)(x, w)
    values = {"x": x.detach(), "w": w.detach()}
    out, *temporaries = trace.forward(*(values[n.name] for n in trace.aten.graph.placeholders))
    primals = [values[n.name] for n in trace.aten.graph.placeholders]
    of = {"primal": primals, "output": [out], "temporary": temporaries}
    saved = [of[s.kind][s.index] for s in trace.partition.saved]
    torch.testing.assert_close(
        set_by_shape(trace.backward(*saved, torch.tensor(1.0))),
        set_by_shape(torch.autograd.grad(f(x, w), (x, w))),
    )
    assert "saved for the backward" in str(trace)


def set_by_shape(tensors):
    return {tuple(t.shape): t for t in tensors}


def test_the_aten_level_has_nothing_of_the_backward():
    """Also of what could raise there, as `index_put` of an index."""

    def f(x, i):
        return x[i] * 2

    x, i = torch.randn(4, requires_grad=True), torch.tensor([1, 1])
    trace = smelt.trace(f)(x, i)
    by_name = {"x": x, "i": i}
    inputs = [by_name[n.name] for n in trace.aten.graph.placeholders]
    assert "tangents" not in trace.aten.code
    torch.testing.assert_close(trace.aten(*inputs)[0], f(x, i))
    compiled = smelt.compile(f)
    compiled(x, i)
    assert "aten.index.Tensor" in kernels(compiled) or "kernel" in kernels(compiled)


def test_edits_reach_nothing_that_runs():
    x = torch.randn(3, requires_grad=True)
    trace = smelt.trace(two_cosines)(x)
    for view in (trace.torch, trace.aten, trace.joint, trace.forward, trace.backward):
        for node in view.nodes:
            if node.op == "call_function":
                node.target = torch.ops.aten.relu.default
    (once,) = torch.autograd.grad(trace.result.sum(), x, create_graph=True)
    torch.testing.assert_close(once, torch.autograd.grad(two_cosines(x).sum(), x)[0])


def test_without_gradients_there_is_no_joint_graph():
    trace = smelt.trace(two_cosines)(torch.randn(3))
    assert trace.graphs[0].joint is None
    with pytest.raises(SmeltError, match="no joint graph: no gradients are needed"):
        _ = trace.joint


def test_a_backend_without_joint_graphs_is_named():
    trace = smelt.trace(two_cosines, backend="eager")(torch.randn(3, requires_grad=True))
    with pytest.raises(SmeltError, match="trace with backend='smelt' or 'aot_eager'"):
        _ = trace.partition


def test_a_function_that_breaks_is_several_graphs():
    def f(inputs):
        x = inputs["x"].cos()
        if x.mean() > 0.5:
            print(end="")
            x = x / 1.1
        return x * inputs["y"]

    trace = smelt.trace(f)({"x": torch.zeros(10), "y": torch.randn(10)})
    first, second = trace.graphs
    assert first.reason.kind.id == "data-dependent-condition" and second.reason is None
    assert trace.reasons == (first.reason,)
    assert first.frame.endswith("f") and second.frame.startswith("resume_in_f_at_")
    assert "torch.ops.aten.mean.default" in first.aten.code and "/ 1.1" not in first.torch.code
    with pytest.raises(SmeltError, match="f is 2 graphs: take one of `graphs`"):
        _ = trace.torch
    assert "the graph ends here" in str(trace)


def test_a_call_is_made_once():
    calls = []
    x = torch.zeros(3)

    def f(x):
        calls.append(1)
        return x.add_(1)

    trace = smelt.trace(f)(x)
    assert calls == [1] and trace.result is x and x.tolist() == [1, 1, 1]
    torch.manual_seed(0)
    drawn = smelt.trace(lambda: torch.rand(3) * 2)().result
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(3) * 2)


def test_what_is_compiled_already_is_traced_anew():
    compiled = smelt.compile(two_cosines)
    x = torch.randn(3)
    compiled(x)
    before = smelt.report.inspect.entries(compiled)
    assert "cos_1" in smelt.trace(compiled)(x).code
    assert smelt.report.inspect.entries(compiled) == before
    model = smelt.compile(torch.nn.Linear(3, 3))
    assert "linear" in smelt.trace(model)(x).code


def test_symbolic_sizes_run_at_any_size():
    def f(x):
        return x.reshape(-1, x.shape[0]) * 2

    trace = smelt.trace(f, dynamic=True)(torch.randn(4, 4))
    other = torch.randn(6, 6)
    assert [n.name for n in trace.aten.graph.placeholders] == ["x", "number"]
    for view in (trace.torch, trace.aten):
        assert torch.equal(view(other, 6)[0], f(other))
    with pytest.raises(SmeltError, match="dynamic=False"):
        _ = trace.aten.to_fx()


def test_what_cannot_be_traced_is_an_error():
    def walks(x):
        yield x + 1

    with pytest.raises(SmeltError, match="nothing of .*walks was captured"):
        smelt.trace(walks)(torch.ones(2))
    with pytest.raises(TypeError, match="must be a function"):
        smelt.trace(3)
    with pytest.raises(OptionError, match="did you mean"):
        smelt.trace(two_cosines, backend="smelk")
    with pytest.raises(OptionError, match="unknown option"):
        smelt.trace(two_cosines, options={"fused": True})

    def raises(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        smelt.trace(raises)(torch.ones(2))
    trace = smelt.trace(two_cosines)(torch.ones(2))
    with pytest.raises(TypeError, match=r"takes 1 inputs \(x\), got 2"):
        trace.aten(torch.ones(2), torch.ones(2))


def test_a_call_that_runs_eagerly_gives_its_reason():
    """It is made all the same."""
    x = torch.zeros(2)

    def fails(gm, example_inputs):
        raise ValueError("no such luck")

    with pytest.raises(Unsupported, match="no such luck") as caught:
        smelt.trace(lambda x: x.add_(1), backend=fails)(x)
    assert caught.value.reason.kind.id == "backend-failed" and x.tolist() == [1, 1]


def test_views_say_what_they_are():
    trace = smelt.trace(two_cosines)(torch.ones(2))
    assert repr(trace).endswith("two_cosines: 1 graph>")
    assert isinstance(trace.torch, GraphView)
    assert repr(trace.torch) == "<torch-level graph of 4 nodes, inputs: x>"
