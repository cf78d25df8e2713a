"""What backends for torch.compile read besides the graph."""

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx

import smelt
from smelt.report import inspect
from tests.harness.agreement import compare, observe


def nop(gm, inputs):
    return gm.forward


AOT = aot_autograd(fw_compiler=nop)


def scale(x, n):
    return x + x * n


def scale_by_expression(x, n):
    return x * (n * 2 - 3) + n // 2


def flatten(x, n):
    return x.flatten() * x.shape[0] + n


def view(x, n):
    return x.view(x.shape[0] * 2, -1).softmax(0) * x.shape[1] * n


def halves(x, n):
    return x[: x.shape[0] // 2].sum() + x.new_zeros(x.shape[1], n).sum(1)


def broadcasts(x, n):
    return x.expand(n, *x.shape).cumsum(0) / n


def add_outer(x, n):
    return x.t() @ x + x.shape[0] - n


CALLS = [
    ((4, 6), 5),
    ((5, 8), 6),
    ((3, 4), 7),
    ((7, 2), 2),
    ((6, 6), 9),
    ((1, 4), 1),
    ((2, 2), 0),
    ((4, 6), 3),
]


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize(
    "program", [scale, scale_by_expression, flatten, view, halves, broadcasts, add_outer]
)
def test_numbers_and_sizes_are_not_baked_in(program, dynamic):
    compiled = smelt.compile(program, backend=AOT, dynamic=dynamic)
    for shape, n in CALLS:
        if program is broadcasts and n == 0:
            continue
        x = torch.randn(shape)

        def step(f):
            leaf = x.clone().requires_grad_()
            y = f(leaf, n)
            return y.detach(), torch.autograd.grad(y.square().sum(), leaf)

        compare(observe(lambda: step(compiled), (), 0), observe(lambda: step(program), (), 0))


@pytest.mark.parametrize("number", [(5, 6, -7), (0.5, 0.25, -3.0), (2, 2.0, 3.5), (10**9, 1, 0)])
def test_numbers_of_all_kinds(number):
    compiled = smelt.compile(scale, backend=AOT, dynamic=True)
    for n in number:
        x = torch.arange(3.0)
        assert torch.equal(compiled(x, n), scale(x, n))


def test_one_graph_serves_all_sizes():
    graphs = []

    def backend(gm, inputs):
        graphs.append([type(i) for i in inputs])
        return AOT(gm, inputs)

    compiled = smelt.compile(flatten, backend=backend, dynamic=True)
    for rows in (3, 4, 9):
        x = torch.randn(rows, 4)
        assert torch.equal(compiled(x, rows * 5), flatten(x, rows * 5))
    assert graphs == [[torch.Tensor, torch.SymInt, torch.SymInt]]


@pytest.mark.parametrize(
    "specialize",
    [
        lambda gm, inputs: [int(n) for n in inputs if isinstance(n, torch.SymInt)],
        lambda gm, inputs: [int(s) for n in gm.graph.nodes if n.op == "placeholder" for s in sizes_of(n)],
    ],
)
def test_what_a_backend_specializes_is_guarded(specialize):
    """A backend that reads a number compiles for this number."""
    seen = []

    def backend(gm, inputs):
        numbers = specialize(gm, inputs)
        seen.append(numbers)
        return lambda *args: [out + 0 * sum(numbers) for out in gm.forward(*args)]

    compiled = smelt.compile(flatten, backend=backend, dynamic=True)
    for rows, n in ((3, 5), (4, 5), (4, 6)):
        x = torch.randn(rows, 4)
        assert torch.equal(compiled(x, n), flatten(x, n))
    assert len(inspect.entries(compiled)) == 3


def sizes_of(node):
    value = node.meta["example_value"]
    return value.shape if isinstance(value, torch.Tensor) else [value]


def test_a_backend_that_traces_real_tensors():
    """`make_fx` on example inputs bakes in what it is not told about: real mode knows no symbols."""
    compiled = smelt.compile(scale, backend=lambda gm, inputs: make_fx(gm)(*inputs), dynamic=True)
    for n in (5, 6, 7):
        x = torch.arange(3.0)
        assert torch.equal(compiled(x, n), scale(x, n))


def test_example_values_describe_the_nodes():
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        context = torch._guards.TracingContext.get()
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                tensor = node.meta["example_value"]
                assert context.fake_mode.from_tensor(inputs.pop(0)) is tensor
        return gm.forward

    linear = torch.nn.Linear(4, 3)

    def f(x, y):
        a, b = linear(x).split([1, 2], 1)
        return a * b, y.t().long(), torch.tensor([1.0, 2.0]) * x.detach()[:, :2]

    x, y = torch.randn(5, 4, requires_grad=True), torch.randn(2, 3)[:, 1:]
    expected = f(x, y)
    found = smelt.compile(f, backend=backend)(x, y)
    values = {n.name: n.meta["example_value"] for n in graphs[0].graph.nodes if n.op != "output"}
    for node in graphs[0].graph.nodes:
        if node.op == "output":
            for arg, result, want in zip(node.args[0], found, expected):
                fake = values[arg.name]
                facts = [(t.shape, t.stride(), t.dtype, t.requires_grad) for t in (fake, result, want)]
                assert facts[0] == facts[1] == facts[2]
    assert isinstance(values["split"], tuple)
    assert values["x"].is_leaf and values["y"].stride() == (3, 1)


def test_why_a_graph_ends():
    reasons = []

    def backend(gm, inputs):
        reasons.append(gm.compile_subgraph_reason)
        return gm.forward

    @smelt.compile(backend=backend)
    def f(x):
        x = x + 1
        smelt.graph_break()
        return x * 2

    f(torch.ones(2))
    first, last = reasons
    assert first.graph_break and "break" in first.reason and first.user_stack[-1].name.endswith("f")
    assert not last.graph_break and last.reason == "return_value"


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.to(float),
        lambda x: x.to(dtype=int).sum(),
        lambda x: torch.zeros(2, dtype=bool) | (x > 0),
        lambda x: x.new_ones(2, dtype=float) + x,
        lambda x: x.sum(dtype=float),
        lambda x: torch.tensor([1, 2], dtype=float) * x,
        lambda x: x.view(torch.Size([2, 1])).sum(0),
        lambda x: x.type(torch.DoubleTensor),
        lambda x: x.type(torch.int32),
        lambda x: x[slice(None, None, None), None],
        lambda x: x.as_subclass(torch.Tensor) + 1,
        lambda x: torch.nn.functional.softmax(x, 0, dtype=float),
        lambda x: x * float("inf"),
        lambda x: torch.full((2,), float("nan")) + x,
    ],
)
def test_the_code_of_a_graph_is_python(program):
    codes = []

    def backend(gm, inputs):
        codes.append(gm.code)
        compile(gm.code, "<graph>", "exec")
        again = torch.fx.GraphModule(gm, gm.graph)
        return again.forward

    x = torch.tensor([1.0, -2.0])
    compiled = smelt.compile(program, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0, equal_nan=True)
    assert codes


def returned(x):
    return x


def constant(x):
    smelt.graph_break()
    return 3


def nested(x):
    return {"a": [x, x.shape[0]]}


def counted(x, counter=[0]):  # noqa: B006
    counter[0] += 1
    return x


@pytest.mark.parametrize("program", [returned, constant, nested, counted])
def test_a_graph_without_calls_needs_no_backend(program):
    graphs = []
    x = torch.ones(2)
    smelt.compile(program, backend=lambda gm, inputs: graphs.append(gm) or gm.forward)(x)
    assert not graphs
