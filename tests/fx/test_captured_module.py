"""Tracing with example inputs: the graph computes what the module does, and refuses other inputs."""

import copy
import pickle
import warnings
from collections import namedtuple

import pytest
import torch
from torch import nn

import smelt
from smelt import fx

Pair = namedtuple("Pair", ["left", "right"])


class Branches(nn.Module):
    """Needs sizes, lengths and values of its arguments."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.norm = nn.BatchNorm1d(4)
        self.act = nn.ReLU(inplace=True)
        self.mix = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Tanh())

    def forward(self, x, extra, flag=True, *, steps=2):
        for layer in self.layers[: len(extra["parts"])]:
            x = self.act(layer(x))
        x = self.norm(x)
        if x.shape[0] > 2 and flag:
            x = x * steps
        for part in extra["parts"]:
            x = x + part
        x = self.mix(self.mix(x))
        return {"x": x, "rest": [x.view(-1), extra["parts"][0], steps], "w": self.layers[0].weight}


def make():
    torch.manual_seed(0)
    return Branches(), torch.randn(3, 4), {"parts": [torch.randn(4), torch.randn(3, 1)]}


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        a, b = list(a.values()), list(b.values())
    if isinstance(a, (list, tuple)):
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    else:
        assert a == b


FORMS = [{}, {"leaves": ()}, {"dynamic": True}, {"level": "aten"}]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_it_computes_what_the_module_does(form):
    module, x, extra = make()
    before = copy.deepcopy(module.state_dict())
    traced = smelt.symbolic_trace(module, example_inputs=(x, extra), example_kwargs={"steps": 3}, **form)
    same(dict(module.state_dict()), dict(before))  # tracing computes nothing
    eager = copy.deepcopy(module)
    for made in (copy.deepcopy(traced), pickle.loads(pickle.dumps(traced)), fx.nest(copy.deepcopy(traced))):
        reference = copy.deepcopy(eager)
        same(made(x, extra, steps=3), reference(x, extra, steps=3))
        buffers = dict(made.named_buffers())
        for name, value in reference.named_buffers():  # batch norm has updated its statistics
            same(buffers[name], value)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_gradients_are_the_modules(form):
    module, x, extra = make()
    module.train(
        "level" not in form
    )  # the backward of a batch norm reads statistics that a functional graph writes
    traced = smelt.symbolic_trace(copy.deepcopy(module), example_inputs=(x, extra), **form)
    for made in (module, traced):
        made(x, extra)["x"].square().sum().backward()
    grads = {name: p.grad for name, p in traced.named_parameters()}
    for name, p in module.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(grads[name], p.grad, rtol=1e-4, atol=1e-5)


def test_modules_are_found_again():
    module, x, extra = make()
    traced = smelt.symbolic_trace(module, example_inputs=(x, extra))
    called = [n.target for n in traced.graph.nodes if n.op == "call_module"]
    mixed = ["mix.0", "mix.1", "mix.2"]
    assert called == ["layers.0", "act", "layers.1", "act", "norm", *mixed, *mixed]
    functions = smelt.symbolic_trace(module, example_inputs=(x, extra), leaves=())
    assert {n.op for n in functions.graph.nodes} == {
        "placeholder", "get_attr", "call_function", "call_method", "output"
    }  # fmt: skip
    stacks = [[path for path, _ in n.meta.get("nn_module_stack", {}).values()] for n in functions.graph.nodes]
    assert ["", "mix", "mix.2"] in stacks
    aten = smelt.symbolic_trace(module, example_inputs=(x, extra), level="aten")
    targets = {n.target for n in aten.graph.nodes if n.op == "call_function"}
    assert torch.ops.aten.addmm.default in targets and not {"call_module", "call_method"} & {
        n.op for n in aten.graph.nodes
    }


def test_other_inputs_are_refused():
    module, x, extra = make()
    traced = smelt.symbolic_trace(module, example_inputs=(x, extra))
    for args, what in (
        ((torch.randn(4, 4), extra), r"x is float32\[4, 4\], the graph was traced with float32\[3, 4\]"),
        ((x.double(), extra), r"x is float64\[3, 4\]"),
        ((x, extra, False), "flag is False, the graph was traced with True"),
    ):
        with pytest.raises(smelt.errors.SmeltError, match=what):
            traced(*args)


def test_sizes_that_decide_nothing_are_free():
    def program(x, y):
        scaled = x * x.shape[1]
        return (x.reshape(x.shape[0] * x.shape[1]) * 2, x + y, scaled) if x.shape[0] > 2 else x

    traced = smelt.symbolic_trace(program, example_inputs=(torch.ones(3, 4), torch.ones(3, 4)), dynamic=True)
    for rows, columns in ((3, 4), (7, 5)):
        x, y = torch.randn(rows, columns), torch.randn(rows, columns)
        same(traced(x, y), program(x, y))
    with pytest.raises(smelt.errors.SmeltError, match="x is float32"):
        traced(torch.ones(2, 4), torch.ones(2, 4))  # takes the other branch
    with pytest.raises(smelt.errors.SmeltError, match="y is float32"):
        traced(torch.ones(5, 4), torch.ones(6, 4))


@pytest.mark.parametrize(
    "program, args",
    [
        (lambda x: Pair(x + 1, x), (torch.ones(2),)),
        (lambda *xs, **named: sum(xs) + named["z"], (torch.ones(2), torch.full((2,), 2.0))),
        (lambda x, y: (x + y, x), (torch.ones(2),) * 2),
        (lambda x: None, (torch.ones(2),)),
        (lambda x: (x.relu_(), x), (torch.tensor([-1.0, 1.0]),)),
        (lambda pair: pair.left - pair.right, (Pair(torch.ones(2), torch.zeros(2)),)),
        (lambda x: x * CONSTANT, (torch.ones(2),)),
    ],
    ids=["named tuple", "variadic", "one tensor twice", "nothing", "in place", "nested", "constant"],
)
def test_arguments_and_results(program, args):
    kwargs = {"z": torch.full((2,), 5.0)} if program.__code__.co_flags & 8 else {}
    clone = lambda: copy.deepcopy(args)  # noqa: E731
    traced = smelt.symbolic_trace(program, example_inputs=clone(), example_kwargs=kwargs)
    ours, theirs = clone(), clone()
    same(traced(*ours, **kwargs), program(*theirs, **kwargs))
    same(ours, theirs)


def test_constants_belong_to_the_result():
    class M(nn.Module):
        def forward(self, x):
            return Pair(x * CONSTANT, x)

    module = M()
    traced = smelt.symbolic_trace(module, example_inputs=(torch.ones(2),))
    assert not list(module.buffers()) and not [n for n in vars(module) if "constant" in n]
    same(traced(torch.ones(2)), module(torch.ones(2)))


CONSTANT = torch.tensor([2.0, 3.0])


def test_attributes_that_the_program_sets_are_not_set():
    class Counts(nn.Module):
        calls = 0

        def __init__(self):
            super().__init__()
            self.seen = 0

        def forward(self, x):
            self.seen += 1
            return x * 2

    module = Counts()
    with pytest.warns(
        UserWarning, match=r"Counts sets the attribute 'seen' of the model at .*test_captured_module.py:\d+"
    ):
        traced = smelt.symbolic_trace(module, example_inputs=(torch.ones(2),))
    assert module.seen == 0
    same(traced(torch.ones(2)), torch.full((2,), 2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        smelt.symbolic_trace(nn.Linear(2, 2), example_inputs=(torch.ones(2),))


def test_a_condition_on_data_is_an_error_on_its_line():
    def program(x):
        return x.relu() if x.sum() > 0 else x

    with pytest.raises(fx.TraceError, match=r"test_captured_module.py:\d+ in .*program") as caught:
        smelt.symbolic_trace(program, example_inputs=(torch.ones(2),))
    assert "torch.where" in str(caught.value)


def test_exceptions_of_the_program_propagate():
    def program(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        smelt.symbolic_trace(program, example_inputs=(torch.ones(2),))


def test_an_object_cannot_be_returned():
    with pytest.raises(smelt.errors.SmeltError, match="the result holds a object"):
        smelt.symbolic_trace(lambda x: (x + 1, OBJECT), example_inputs=(torch.ones(2),))


OBJECT = object()


def test_a_captured_graph_compiles_and_is_traced_again():
    module, x, extra = make()
    module.eval()
    traced = smelt.symbolic_trace(module, example_inputs=(x, extra))
    same(smelt.compile(traced, fullgraph=True)(x, extra), module(x, extra))
    again = smelt.symbolic_trace(traced, example_inputs=(x, extra), level="aten")
    same(again(x, extra), module(x, extra))
