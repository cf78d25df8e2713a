"""The option `verify`: what differs from eager is found, named and replaced; what does not is left alone."""

import logging
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import smelt
from smelt import pipeline
from smelt.backends.size_dispatch import eager_fallback
from smelt.config import Config
from smelt.report.inspect import entries, reasons
from smelt.verify.shadow_execution import ComparedCall, ShadowExecution
from tests.harness.agreement import same
from tests.harness.traced import trace
from tests.harness.wrong_lowering import wrong


@pytest.fixture
def said(caplog):
    """The warnings."""
    caplog.set_level(logging.WARNING, logger="smelt")
    return lambda: [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def joined(x, y):
    a = (x + y).relu()
    b = a * y
    return b.sum(0), x.softmax(-1)


X, Y = torch.randn(4, 5), torch.randn(4, 5)


def test_a_right_program_is_not_reported(said):
    compiled = smelt.compile(joined, options={"verify": 2})
    for _ in range(4):
        same(compiled(X, Y), joined(X, Y))
    assert said() == []
    assert len(reasons(compiled)) == 0


def test_a_wrong_operator_is_named_once_and_eager_answers(said):
    with wrong("aten.mul.Tensor"):
        compiled = smelt.compile(joined, options={"verify": 2})
        for _ in range(3):
            same(compiled(X, Y), joined(X, Y))
    [text] = said()
    assert "differs-from-eager" in text and "(aten.mul.Tensor, mul in the graph: result 0" in text
    assert f"{__file__}:{joined.__code__.co_firstlineno + 2} in joined" in text
    assert [r.kind.id for r in reasons(compiled)] == ["differs-from-eager"]


def test_it_stops_after_so_many_calls(monkeypatch):
    compared = []
    compare = ComparedCall._compare
    monkeypatch.setattr(ComparedCall, "_compare", lambda *args: (compared.append(1), compare(*args))[1])
    compiled = smelt.compile(joined, options={"verify": 2})
    for _ in range(5):
        compiled(X, Y)
    assert len(compared) == 2
    compiled(X.double(), Y.double())  # another entry
    assert len(compared) == 3


def test_without_it_nothing_is_in_the_way():
    compiled = smelt.compile(joined)
    compiled(X, Y)
    [entry] = entries(compiled)
    assert type(entry.graph).__module__ == "smelt._native"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.out = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        hidden = nn.functional.dropout(torch.tanh(self.norm(self.inner(x))), 0.3, self.training)
        return nn.functional.cross_entropy(self.out(hidden), x[:, 0].long().clamp(0, 2))


def trained(step, model, x):
    """Losses, gradients, buffers and random numbers of three steps."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = step(x)
        loss.backward()
        optimizer.step()
        found += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
    return [*found, *(b.clone() for b in model.buffers()), torch.rand(3)]


def made():
    torch.manual_seed(3)
    return Net()


IMAGES = torch.randn(16, 6)


def test_training_with_buffers_and_dropout(said):
    eager, model = made(), made()
    want = trained(eager, eager, IMAGES)
    got = trained(smelt.compile(model, options={"verify": 2}), model, IMAGES)
    torch.testing.assert_close(got, want)
    assert said() == []


@pytest.mark.parametrize("name", ["aten.tanh_backward.default", "aten._log_softmax.default"])
def test_wrong_operators_of_training(said, name):
    """Of the backward, and of the forward."""
    eager, model = made(), made()
    want = trained(eager, eager, IMAGES)
    with wrong(name):
        got = trained(smelt.compile(model, options={"verify": 1}), model, IMAGES)
    torch.testing.assert_close(got, want)
    [text] = said()
    assert f"({name}, " in text


def step_in_place(x, state):
    state.mul_(0.5).add_(x)
    x[1:] += 1
    return state.view(-1)[:3], x.sum()


def test_writes_of_inputs(said):
    x, state = torch.randn(4, 4), torch.randn(4, 4)
    mine = x.clone(), state.clone()
    compiled = smelt.compile(step_in_place, options={"verify": 2})
    for _ in range(3):
        want, got = step_in_place(x, state), compiled(*mine)
        same(got, want)
        same(mine, (x, state))
        assert got[0].data_ptr() == mine[1].data_ptr()
    assert said() == []


def test_wrong_writes_of_inputs(said):
    x, state = torch.randn(4, 4), torch.randn(4, 4)
    mine = x.clone(), state.clone()
    with wrong("aten.add.Tensor"):
        compiled = smelt.compile(step_in_place, options={"verify": 2})
        for _ in range(3):
            same(compiled(*mine), step_in_place(x, state))
            same(mine, (x, state))
    [text] = said()
    assert "(aten.add.Tensor, " in text


def test_random_numbers_are_drawn_once(said):
    def drawn(x):
        return torch.rand_like(x) + x.uniform_(), torch.randn(3)

    compiled = smelt.compile(drawn, options={"verify": 3})
    torch.manual_seed(1)
    want = [drawn(torch.zeros(4)) for _ in range(2)], torch.rand(2)
    torch.manual_seed(1)
    same(([compiled(torch.zeros(4)) for _ in range(2)], torch.rand(2)), want)
    assert said() == []


def test_errors_of_the_program_pass_through(said):
    def chosen(x, i):
        return x[i] * 2

    compiled = smelt.compile(chosen, options={"verify": 3})
    same(compiled(X, torch.tensor([1])), chosen(X, torch.tensor([1])))
    with pytest.raises(IndexError, match="out of"):
        compiled(X, torch.tensor([9]))
    assert said() == []


def test_sizes_that_change(said):
    compiled = smelt.compile(joined, dynamic=True, options={"verify": 3})
    for n in (3, 7, 12, 5):
        x, y = torch.randn(n, 5), torch.randn(n, 5)
        same(compiled(x, y), joined(x, y))
    assert said() == []


def test_a_wrong_operator_for_any_sizes(said):
    with wrong("aten.mul.Tensor"):
        compiled = smelt.compile(joined, dynamic=True, options={"verify": 1})
        for n in (3, 7):
            x, y = torch.randn(n, 5), torch.randn(n, 5)
            same(compiled(x, y), joined(x, y))
    [text] = said()
    assert "(aten.mul.Tensor, " in text


def test_rounding_is_no_difference(said):
    def rounded(x, w):
        return (x @ w).exp().log().sum(), (x * 1.1 - x).mean(0), x.to(torch.bfloat16).softmax(-1)

    compiled = smelt.compile(rounded, options={"verify": 1})
    compiled(torch.randn(64, 300), torch.randn(300, 80) / 40)
    assert said() == []


def test_results_called_like_what_printed_graphs_call(said):
    """What runs in eager is the graph as Python code."""

    def program(x):
        z = torch.complex(x, x * 2)
        return (z * z.conj() * (1 + 2j)).real.float() + float("inf")

    compiled = smelt.compile(program, options={"verify": 2})
    x = torch.randn(4)
    same(compiled(x), program(x))
    leaf = x.requires_grad_()
    (got,) = torch.autograd.grad(compiled(leaf).sum(), leaf)
    (want,) = torch.autograd.grad(program(leaf).sum(), leaf)
    same(got, want)
    assert said() == []


@pytest.mark.parametrize("options", [{"verify": True}, {"verify": "1"}])
def test_it_is_a_number(options):
    with pytest.raises(smelt.errors.OptionError, match="must be int"):
        smelt.compile(joined, options=options)


def test_several_operators_and_the_stage_that_joins_them(said, monkeypatch):
    """Wrong where they are fused, and right one by one."""
    lower = pipeline.lower_graph

    def wrongly_joined(graph, c):
        calls = sum(node.op == "call_function" for node in graph)
        with wrong("aten.mul.Tensor") if c.config.fuse and calls > 1 else nullcontext():
            return lower(graph, c)

    monkeypatch.setattr(pipeline, "lower_graph", wrongly_joined)
    compiled = smelt.compile(joined, options={"verify": 1})
    same(compiled(X, Y), joined(X, Y))
    [text] = said()
    assert "(aten.relu.default and aten.mul.Tensor, mul in the graph: " in text
    assert "; not with fuse=False; reproducer: " in text


def test_whole_graphs_run_eagerly_too(said):
    with wrong("aten.mul.Tensor"):
        compiled = smelt.compile(joined, fullgraph=True, options={"verify": 1})
        for _ in range(2):
            same(compiled(X, Y), joined(X, Y))
    assert len(said()) == 1


def test_the_rest_of_a_broken_function_stays_compiled(said):
    def broken(x, y):
        a = x * y
        smelt.graph_break()
        return a.relu() + 1

    with wrong("aten.mul.Tensor"):
        compiled = smelt.compile(broken, options={"verify": 1})
        for _ in range(3):
            same(compiled(X, Y), broken(X, Y))
    assert len(said()) == 1


def test_sizes_that_data_decide(said):
    def chosen(x):
        return x[x > 0] * 2, x.sum()

    compiled = smelt.compile(chosen, options={"verify": 2})
    for _ in range(4):
        x = torch.randn(9)
        same(compiled(x), chosen(x))
    assert said() == []
    smelt.reset()  # equal compilations share their entries
    with wrong("aten.mul.Tensor"):
        compiled = smelt.compile(chosen, options={"verify": 2})
        for _ in range(2):
            x = torch.randn(9)
            same(compiled(x), chosen(x))
    [text] = said()
    assert "(aten.mul.Tensor, " in text


def test_recurrent_layers(said):
    """What oneDNN keeps for their backward is filled in parts."""
    torch.manual_seed(0)
    model = nn.LSTM(8, 16, batch_first=True)
    compiled = smelt.compile(model, options={"verify": 2})
    for _ in range(2):
        x = torch.randn(3, 7, 8)
        want = torch.autograd.grad(model(x)[0].sum(), list(model.parameters()))
        got = torch.autograd.grad(compiled(x)[0].sum(), list(model.parameters()))
        torch.testing.assert_close(got, want)
    assert said() == []


# ------------------------------------------------------------------------------------------- what is compared


def graph_of(fn, *inputs):
    return trace(fn, inputs)[1].aten_graph


def beside(compiled, graph, count=1):
    """What runs `compiled` beside `graph`, and the differences that it tells."""
    told = []
    watching = ShadowExecution(Config(verify=count), lambda part, config: compiled, told.append)
    load = watching.wrap(lambda values: compiled, graph, lambda graph, donated: eager_fallback(graph))
    return load({}), told


def raising(tensors):
    raise ValueError("no")


def test_compiled_code_that_raises():
    runs, told = beside(raising, graph_of(lambda x: x + 1, X))
    same(runs((X,))[0], X + 1)
    assert "eager raises nothing, compiled code ValueError: no" in told[0].detail


@pytest.mark.parametrize(
    "change, what",
    [
        (lambda r: r + 1e-3, "result 0: 20 of 20 elements differ"),
        (lambda r: r.where(r != r[1, 2], torch.nan), "result 0: 1 of 20 elements differ; at [1, 2] "),
        (
            lambda r: r.double(),
            "result 0: eager gives torch.float32 of [4, 5] on cpu, compiled code torch.float64",
        ),
        (lambda r: r[:3], "compiled code torch.float32 of [3, 5] on cpu"),
        (lambda r: r.t().contiguous().t(), "result 0: eager gives strides [5, 1], compiled code [1, 4]"),
        (lambda r: torch.rand(3) is None or r, "the state of the random generator afterwards"),
    ],
)
def test_what_is_a_difference(change, what):
    runs, told = beside(lambda tensors: (change(tensors[0] * 3),), graph_of(lambda x: x * 3, X))
    same(runs((X,))[0], X * 3)
    assert what in told[0].detail


def test_what_is_none():
    x = torch.tensor([1.0, torch.nan, torch.inf, -torch.inf, 0.0])
    runs, told = beside(lambda tensors: (tensors[0] * 3 * (1 + 1e-7),), graph_of(lambda x: x * 3, x))
    runs((x,))
    assert told == []


def test_strides_of_dimensions_without_a_second_element_are_none():
    x = torch.ones(3, 1)
    runs, told = beside(
        lambda tensors: (torch.empty_strided((3, 1), (1, 7)).fill_(2),), graph_of(lambda x: x * 2, x)
    )
    runs((x,))
    assert told == []


def test_bfloat16_that_is_rounded_once_is_none():
    """Eager rounds after each operator: float64 says that both are right."""
    x = torch.full((64,), 1.0, dtype=torch.bfloat16)

    def program(x):
        return x + 0.003 + 0.003 + 0.003 - 1

    runs, told = beside(
        lambda tensors: (program(tensors[0].double()).to(torch.bfloat16),), graph_of(program, x)
    )
    runs((x,))
    assert told == []
    runs, told = beside(
        lambda tensors: (program(tensors[0].double()).to(torch.bfloat16) * 100,), graph_of(program, x)
    )
    runs((x,))
    assert len(told) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_that_cancel_out_are_none(said, dtype):
    """The gradient of a bias before batch norm is zero but for rounding, as is that of the only element of a row."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LayerNorm(4)).to(dtype)
    compiled = smelt.compile(model, options={"verify": 4})
    for _ in range(4):
        compiled(torch.randn(6, 3, dtype=dtype)).square().sum().backward()
    single = smelt.compile(nn.LayerNorm(1).to(dtype), options={"verify": 4})
    for _ in range(4):
        single(torch.randn(6, 1, dtype=dtype, requires_grad=True)).square().sum().backward()
    assert said() == []
