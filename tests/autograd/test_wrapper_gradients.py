"""Gradients through wrapper subclasses: parameters, inputs and results are wrappers, and so are their gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import smelt
from smelt.errors import Unsupported
from smelt.report.inspect import graph_count
from tests.harness.agreement import check_no_failure
from tests.harness.wrappers import Pair, Plainly, Quantized, agree, shown


def two(rows=2, seed=0, requires_grad=True):
    torch.manual_seed(seed)
    return TwoTensor(torch.randn(rows, 3), torch.randn(rows, 3)).requires_grad_(requires_grad)


def pair(seed=0):
    return Pair(two(seed=seed).a, two(seed=seed).b, "label").requires_grad_()


def total(out):
    outs = out if isinstance(out, tuple) else (out,)
    return sum((o * o).sum() for o in outs if o.requires_grad)


def step(fn, args, loss):
    """Results and gradients."""
    out = fn(*args)
    loss(out).backward()
    return shown(out), [shown(a.grad) for a in args]


def check(fn, *calls, loss=total, graphs=1, **options):
    """Compare results and gradients of each call, eager and compiled."""
    compiled = smelt.compile(fn, **{"fullgraph": True, **options})
    for make in calls:
        assert agree(step(compiled, make(), loss), step(fn, make(), loss))
    check_no_failure(compiled)
    assert graphs is None or graph_count(compiled) == graphs
    return compiled


def squared(p):
    return (p * p + 1).tanh()


def summed(p):
    return p.exp().sum(0)


def normalized(p):
    return F.layer_norm(p, (3,)).softmax(-1)


def parts(p):
    return torch.cat([q * (i + 2) for i, q in enumerate(p.chunk(2))])


def viewed(p):
    return (p * p).view(-1)


def detached(p):
    return p * p.detach()


def without_gradients_between(p):
    with torch.no_grad():
        q = p * 2
    return p * q


def written_inside(p):
    q = p * 2
    q.mul_(3).add_(p)
    return q * q


def returned_too(p):
    return p, p * 2


def two_results(p):
    return p.sin(), p.cos() * p


PROGRAMS = [
    squared, summed, normalized, parts, viewed, detached, without_gradients_between, written_inside, returned_too,
    two_results,
]  # fmt: skip


@pytest.mark.parametrize(
    "make, program", [(two, p) for p in PROGRAMS] + [(pair, p) for p in PROGRAMS if p is not normalized]
)
def test_a_wrapper_that_requires_gradients(make, program):
    check(program, lambda: (make(),), lambda: (make(seed=1),))


@pytest.mark.parametrize("program", [squared, two_results])
def test_the_aten_graph_run_eagerly(program):
    check(program, lambda: (two(),), lambda: (two(seed=1),), backend="aot_eager")


def test_wrappers_of_wrappers():
    check(lambda p: p.sin() * p, *[lambda: (Pair(pair().detach(), pair(1).detach()).requires_grad_(),)] * 2)


def test_several_inputs_with_and_without_gradients():
    def fn(p, w, x):
        return (p @ w.t()) * x

    check(fn, *[lambda: (two(), two(4, 1), torch.ones(4))] * 2)
    check(fn, *[lambda: (two(), two(4, 1, requires_grad=False), torch.ones(4))] * 2)


def test_one_of_several_results_is_differentiated():
    for used in (0, 1):
        check(two_results, *[lambda: (two(),)] * 2, loss=lambda out, used=used: out[used].sum())


def test_results_are_differentiated_one_after_the_other():
    def gradients(fn):
        p = two()
        first, second = fn(p)
        first.sum().backward()
        found = [shown(p.grad)]
        second.sum().backward()
        return [*found, shown(p.grad)]

    assert agree(gradients(smelt.compile(two_results, fullgraph=True)), gradients(two_results))


def test_an_input_that_is_no_leaf_and_hooks():
    def gradients(fn):
        seen, p = [], two()
        p.register_hook(lambda g: seen.append(shown(g)))
        q = p * 3
        q.register_hook(lambda g: seen.append(shown(g)))
        out = fn(q)
        out.register_hook(lambda g: seen.append(shown(g)))
        out.retain_grad()
        (out * out).sum().backward()
        return seen, shown(p.grad), shown(out.grad)

    assert agree(gradients(smelt.compile(squared, fullgraph=True)), gradients(squared))


def test_a_break_between_operators():
    def fn(p):
        q = p * 2
        if q.a.sum() > -100:
            q = q.sin()
        return q * p

    check(fn, *[lambda: (two(),)] * 3, graphs=2, fullgraph=False)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(3, 4), nn.Linear(4, 3)
        for layer in (self.up, self.down):
            layer.weight = nn.Parameter(TwoTensor(layer.weight.detach(), layer.weight.detach() * 2))
            layer.bias = nn.Parameter(TwoTensor(layer.bias.detach(), layer.bias.detach() * 2))

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_a_model_with_wrapper_parameters_trains(optimizer):
    def trained(compiles):
        model = Model()
        fn = smelt.compile(model, fullgraph=True) if compiles else model
        optim = optimizer(model.parameters(), 0.1)
        for seed in range(4):
            optim.zero_grad()
            total(fn(two(5, seed, requires_grad=False))).backward()
            optim.step()
        return [shown(p) for p in model.parameters()]

    assert agree(trained(True), trained(False))


@pytest.mark.parametrize("program", [squared, summed, viewed, written_inside, two_results])
def test_sizes_that_change(program):
    check(program, *[lambda n=n: (two(n),) for n in (2, 5, 7, 4, 9)], graphs=2)


def test_sizes_of_an_inner_wrapper_change():
    def nested(n):
        return TwoTensor(two(n).detach(), two(n, 1).detach()).requires_grad_()

    def fn(p):
        return p.cos() * p.sin()

    check(fn, *[lambda n=n: (nested(n),) for n in (2, 5, 7)], graphs=None, dynamic=True)


def test_sizes_that_change_below_parameters():
    model = Model()
    compiled = smelt.compile(model, fullgraph=True)

    def outcome(fn, n):
        model.zero_grad()
        out = fn(torch.ones(n, 3))
        total(out).backward()
        return shown(out), [shown(p.grad) for p in model.parameters()]

    for n in (2, 5, 7, 4, 9):
        assert agree(outcome(compiled, n), outcome(model, n))
    assert graph_count(compiled) == 2


@pytest.mark.parametrize("kind", [Plainly, Quantized])
def test_a_plain_gradient_of_a_wrapper(kind):
    """A weight that its class multiplies dequantized has a plain gradient."""

    def weight():
        torch.manual_seed(0)
        return nn.Parameter(kind.of(torch.randn(4, 3)))

    check(lambda x, w: x @ w.t(), *[lambda: (torch.ones(2, 3, requires_grad=True), weight())] * 2)
    check(lambda x, w: F.linear(x, w), *[lambda: (torch.ones(2, 3, requires_grad=True), weight())] * 2)


def _forward_method(gm, examples):
    return gm.forward


class Mixed(nn.Module):
    """Plain parameters, of a layer that reads wrappers, have wrappers as gradients."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.scale = nn.Conv1d(2, 3, 2), nn.Parameter(torch.randn(3, 1))
        self.wrapped = nn.Parameter(
            TwoTensor(torch.randn(3, 2), TwoTensor(torch.randn(3, 2), torch.ones(3, 2)))
        )

    def forward(self, x):
        return (self.conv(x) * self.scale.exp()).tanh() * (self.wrapped + 2 * self.scale)


@pytest.mark.parametrize("backend", ["smelt", "aot_eager", "eager", _forward_method])
def test_a_plain_parameter_whose_gradient_is_a_wrapper(backend):
    model = Mixed()
    compiled = smelt.compile(model, fullgraph=True, backend=backend)

    def outcome(fn, seed):
        model.zero_grad()
        torch.manual_seed(seed)
        x = TwoTensor(torch.randn(2, 3), torch.randn(2, 3))
        out = fn(x)
        out.sum().backward()
        return shown(out), [shown(p.grad) for p in model.parameters()]

    for seed in range(3):
        assert agree(outcome(compiled, seed), outcome(model, seed))
    check_no_failure(compiled)


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1), (1, 0)])
def test_a_plain_parameter_beside_a_result_of_others(backend, used):
    model = Mixed()

    def program(x, y):
        return model(x), y.sin() + 1

    compiled = smelt.compile(program, fullgraph=True, backend=backend)

    def outcome(fn, seed):
        model.zero_grad()
        torch.manual_seed(seed)
        x, y = TwoTensor(torch.randn(2, 3), torch.randn(2, 3)), torch.randn(3, requires_grad=True)
        out = fn(x, y)
        for i in used:
            out[i].sum().backward()
        return [shown(out[0]), shown(out[1]), shown(y.grad)], [shown(p.grad) for p in model.parameters()]

    for seed in range(3):
        assert agree(outcome(compiled, seed), outcome(program, seed))
    check_no_failure(compiled)


def test_a_plain_input_whose_gradient_is_a_wrapper():
    def outcome(fn, leaf):
        seen, p = [], two()
        x = torch.ones(2, 3, requires_grad=True)
        x.register_hook(lambda g: seen.append(shown(g)))
        out = fn(p, x if leaf else x * 2)
        out.sum().backward()
        return shown(out), shown(p.grad), shown(x.grad), seen

    for fn in (lambda p, x: p * x, lambda p, x: p * x + x.sin(), lambda p, x: (x @ p.t()).tanh()):
        compiled = smelt.compile(fn, fullgraph=True)
        for leaf in (True, False):
            assert agree(outcome(compiled, leaf), outcome(fn, leaf))
        p, x = two(), torch.ones(2, 3, requires_grad=True)
        (gradient,) = torch.autograd.grad(compiled(p, x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="can be differentiated once"):
            gradient.sum().backward()


def test_a_plain_input_that_requires_gradients_from_inside():
    def fn(p, x):
        x.requires_grad_()
        return p * x

    def outcome(fn):
        x = torch.ones(2, 3)
        out = fn(two(), x)
        out.sum().backward()
        return shown(out), shown(x.grad)

    assert agree(outcome(smelt.compile(fn)), outcome(fn))


def plain_with_a_wrapper_as_gradient_of_one_result(p, x):
    return p * x, x * 2


def a_result_that_others_are_computed_from(p, x):
    q = p.sin()
    return q, q.cos()


class Odd(Pair):
    """The second tensor of each result is that of the argument."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        first = [a.first if isinstance(a, cls) else a for a in args]
        (second, *_) = [a.second for a in args if isinstance(a, cls)]
        return cls(func(*first, **(kwargs or {})), second)


def shares_an_input(p, x):
    return p * 2


@pytest.mark.parametrize(
    "program, make",
    [
        (plain_with_a_wrapper_as_gradient_of_one_result, two),
        (a_result_that_others_are_computed_from, two),
        (shares_an_input, lambda: Odd(two().a, two().b).requires_grad_()),
    ],
)
def test_what_is_not_captured(program, make):
    """Whole graphs refuse it with a reason, others break there, with eager's gradients."""

    def arguments():
        return make(), torch.ones(
            2, 3, requires_grad=program is plain_with_a_wrapper_as_gradient_of_one_result
        )

    with pytest.raises(Unsupported, match="gradients through"):
        smelt.compile(program, fullgraph=True)(*arguments())
    compiled = smelt.compile(program)
    for _ in range(2):
        assert agree(step_of_inner(compiled, arguments()), step_of_inner(program, arguments()))
    check_no_failure(compiled)


def step_of_inner(fn, args):
    out = fn(*args)
    outs = out if isinstance(out, tuple) else (out,)
    for o in outs:
        o.backward(torch.ones_like(o).detach(), retain_graph=True)
    return shown(out), shown(args[0].grad)


@pytest.mark.parametrize("program", [squared, parts, two_results, lambda p: p.clone().view(3, -1, 2)])
@pytest.mark.parametrize("backend", ["eager", _forward_method])
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_backend_of_torch_level_graphs_gets_the_halves_of_the_joint_graph(program, backend, dynamic):
    calls = [lambda n=n: (two(n),) for n in (2, 4)]
    check(program, *calls, graphs=None, backend=backend, dynamic=dynamic)
    check(lambda x, w: x @ w.t(), lambda: (torch.ones(2, 3), two(4)), graphs=1, backend=backend)


def test_a_custom_backend_compiles_forward_and_backward():
    graphs = []

    def backend(gm, examples):
        graphs.append(len(examples))
        return gm

    check(lambda p: p.sin() * p.cos(), lambda: (two(),), lambda: (two(seed=1),), backend=backend)
    assert len(graphs) == 2


@pytest.mark.parametrize("backend", ["smelt", "eager", "aot_eager"])
def test_sizes_that_data_decide(backend):
    def fn(p, x):
        return p * 2 * x.nonzero().shape[0]

    check(fn, *[lambda: (two(), torch.ones(3))] * 2, graphs=None, fullgraph=False, backend=backend)


def written_input(p, out):
    with torch.no_grad():
        p.mul_(2)


def written_result(p, out):
    with torch.no_grad():
        out.mul_(2)


@pytest.mark.parametrize("program", [lambda p: (p * p).sin(), lambda p: p.exp(), lambda p: p + 1])
@pytest.mark.parametrize("write", [written_input, written_result])
def test_a_write_between_forward_and_backward(program, write):
    """It raises where eager's backward reads what was written."""

    def outcome(fn):
        p = two()
        out = fn(p)
        loss = out.sum()
        write(p, out)
        try:
            loss.backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            return None
        return shown(p.grad)

    assert agree(outcome(smelt.compile(program, fullgraph=True)), outcome(program))


def test_the_eager_backend_differentiates_twice_where_no_whole_graph_is_asked_for():
    def penalty(call, x, w):
        (first,) = torch.autograd.grad(call(x, w).sum(), w, create_graph=True)
        (first * first).sum().backward()
        return shown(first), shown(w.grad)

    fn = lambda x, w: (x * w).sin()  # noqa: E731
    for make in (lambda: torch.ones(2, 3, requires_grad=True), lambda: two(seed=3)):
        compiled = smelt.compile(fn, backend="eager")
        assert agree(penalty(compiled, two(), make()), penalty(fn, two(), make()))


def test_a_second_derivative_raises():
    p = two()
    (gradient,) = torch.autograd.grad(smelt.compile(squared, fullgraph=True)(p).sum(), p, create_graph=True)
    assert type(gradient) is TwoTensor
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        gradient.sum().backward()


def test_a_second_derivative_of_a_plain_input_raises():
    x = torch.ones(2, 3, requires_grad=True)
    out = smelt.compile(lambda x, w: (x @ w.t()).sum(), fullgraph=True)
    quantized = nn.Parameter(Plainly.of(torch.randn(4, 3)))
    (gradient,) = torch.autograd.grad(out(x, quantized), x, create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        gradient.sum().backward()


def test_a_gradient_of_another_class_raises():
    out = smelt.compile(squared, fullgraph=True)(two())
    with pytest.raises(
        RuntimeError, match="TwoTensor, must be one with the same attributes, but it is a Tensor"
    ):
        out.backward(torch.ones(2, 3))


class Convertible(Pair):
    """As a gradient, it becomes what it is a gradient of."""

    def __coerce_same_metadata_as_tangent__(self, metadata, cls=None):
        if cls is TwoTensor:
            return TwoTensor(self.first, self.second)
        return Convertible(self.first, self.second, metadata) if cls is None else None


def test_a_gradient_of_another_class_converts_itself():
    tangent = Convertible(torch.full((2, 3), 2.0), torch.ones(2, 3))
    p = two()
    smelt.compile(lambda p: p * p, fullgraph=True)(p).backward(tangent)
    assert torch.equal(p.grad.a, 4 * p.a) and torch.equal(p.grad.b, 2 * p.b)
    labeled = Convertible(p.a.detach(), p.b.detach()).requires_grad_()
    smelt.compile(lambda p: p * 3, fullgraph=True)(labeled).backward(
        Convertible(torch.ones(2, 3), torch.ones(2, 3), "other")
    )
    assert torch.equal(labeled.grad.first, torch.full((2, 3), 3.0)) and labeled.grad.label == ""
    with pytest.raises(RuntimeError, match="must be one with the same attributes, but it is a Convertible"):
        smelt.compile(squared, fullgraph=True)(pair()).backward(tangent)


def doubly():
    return TwoTensor(two(2, requires_grad=False), two(2, 1, requires_grad=False))


def plain(seed=0):
    return two(seed=seed).a.detach().requires_grad_()


def backward_with(fn, x, *tangents):
    """The gradients of `x` for each of the tangents of `fn(x)`."""
    out, found = fn(x), []
    for tangent in tangents:
        (gradient,) = torch.autograd.grad(out, x, tangent, retain_graph=True)
        found.append(shown(gradient))
    return found


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
def test_a_gradient_of_a_plain_result_that_is_a_wrapper(backend):
    """The backward's operators run as the wrapper's do, in place of code that reads memory."""
    tangents = [
        two(requires_grad=False),
        doubly(),
        pair().detach(),
        torch.ones(2, 3),
        two(requires_grad=False),
    ]
    for fn in (lambda x: x.sin() * x, lambda x: x.softmax(-1).exp(), lambda x: F.dropout(x * x, 0.5)):
        compiled = smelt.compile(fn, fullgraph=True, backend=backend)
        torch.manual_seed(3)
        mine = backward_with(compiled, plain(), *tangents)
        torch.manual_seed(3)
        assert agree(mine, backward_with(fn, plain(), *tangents))


def test_a_gradient_of_a_plain_result_becomes_plain():
    tangent = Convertible(torch.full((2, 3), 2.0), torch.ones(2, 3))
    tangent.__coerce_same_metadata_as_tangent__ = lambda metadata, cls: tangent.first
    x = plain()
    (gradient,) = torch.autograd.grad(smelt.compile(lambda x: x * x, fullgraph=True)(x), x, tangent)
    assert type(gradient) is torch.Tensor and torch.equal(gradient, 4 * x)


def test_a_gradient_of_a_plain_result_that_is_a_wrapper_raises():
    """The function cannot run again for it, and its backward reads memory that a wrapper does not have."""
    x = plain()
    out = smelt.compile(lambda x: x * 3, fullgraph=True)(x * 1)  # which nothing keeps alive
    with pytest.raises(RuntimeError, match="a plain tensor, is a tensor subclass with its own operators"):
        out.backward(two())
    out.backward(torch.ones(2, 3))
    assert torch.equal(x.grad, torch.full((2, 3), 3.0))


def test_a_gradient_with_more_wrappers_raises():
    out = smelt.compile(squared, fullgraph=True)(two())
    with pytest.raises(RuntimeError, match="must be one with the same attributes, but it is a TwoTensor"):
        out.backward(doubly())
