"""`torch.cond` with gradients and `while_loop` are subgraphs of the graph."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops import map as map_rows
from torch._higher_order_ops import scan, while_loop

import smelt
from smelt import events
from smelt.plan.steps import RunPlans
from smelt.report.inspect import graph_count, reasons
from tests.harness.agreement import same
from tests.harness.catalogue import TORCH

COMPILES = TORCH == "torch 2.11"  # there `torch.cond` calls `torch.compile` in a way that breaks the graph

torch.manual_seed(0)
LAYER, NORM = nn.Linear(4, 4), nn.LayerNorm(4)
BIG = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))
W = nn.Parameter(torch.randn(4, 4))
PARAMETERS = [*LAYER.parameters(), *NORM.parameters(), *BIG.parameters(), W]


def positive(a):
    return a.sum() > 0


def layer(x):
    return torch.cond(positive(x), lambda a: LAYER(a).relu(), lambda a: a.cos() @ a, (x,))


def between(x):
    h = (x @ W).tanh()
    return torch.cond(positive(x), BIG, lambda a: (a @ W).exp().log1p(), (h,)).sin() + h


def several(x):
    y, z = torch.cond(positive(x), lambda a: (LAYER(a), a.sum(0)), lambda a: (a @ W, a.mean(0)), (x,))
    return y * 2 + z


def one_of_several(x):
    return torch.cond(positive(x), lambda a: (LAYER(a), a.sum(0)), lambda a: (a @ W, a.mean(0)), (x,))[1]


def one_from_the_other(x):
    def first(a):
        h = LAYER(a)
        return h, h.relu() @ W

    return torch.cond(positive(x), first, lambda a: (a * 2, a @ a), (x,))


def containers(x):
    def apart(d):
        return {"p": d["x"] - d["y"][0]}

    return torch.cond(positive(x), lambda d: {"p": d["x"] @ d["y"][0]}, apart, ({"x": x, "y": [W]},))["p"]


def nested(x):
    def first(a):
        return torch.cond(a.max() > 1, LAYER, lambda b: b @ W, (a * 2,)) + 1

    def second(a):
        return torch.cond(a.min() < -1, NORM, lambda b: b + W, (a,))

    return torch.cond(positive(x), first, second, (x,))


def in_turn(x):
    return torch.cond(
        positive(x), LAYER, lambda a: a @ W, (torch.cond(positive(-x), NORM, lambda a: a * 2, (x,)),)
    )


def detached(x):
    return torch.cond(positive(x), lambda a: LAYER(a).detach() * 1, lambda a: a @ W, (x,))


def constant(x):
    return torch.cond(positive(x), lambda a: torch.ones(4, 4), lambda a: a @ W, (x,))


def without_gradients(x):
    return torch.cond(positive(x), torch.no_grad()(lambda a: a @ W), LAYER, (x,))


def infinite_elsewhere(x):
    return torch.cond(
        positive(x), lambda a: (a - a.amax()).abs().sqrt() @ W, lambda a: (a * 0).exp() @ W, (x,)
    )


def literals(x):
    scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return torch.cond(positive(x), lambda a: a * scale @ W, lambda a: a @ W + torch.arange(4), (x,))


def written(x):
    return torch.cond(positive(x), lambda a: (a @ W).add_(1).relu_(), lambda a: LAYER(a).mul_(2), (x,))


def transposed(x):
    return torch.cond(positive(x), lambda a: (a @ W).t(), lambda a: LAYER(a).t(), (x,))


def part(x):
    return torch.cond(positive(x), lambda a: (a @ W)[1:], lambda a: LAYER(a)[1:], (x,))


def attention(x):
    def attend(a):
        return F.scaled_dot_product_attention(a[None], a[None], (a @ W)[None])[0]

    return torch.cond(positive(x), attend, LAYER, (x,))


def closure(x):
    s = x.sin()
    return torch.cond(positive(x), lambda a: LAYER(a) * s, lambda a: a @ W + s, (x,))


def operand_of_an_operand(x):
    y = x @ W
    return torch.cond(positive(x), lambda a, b: LAYER(a) * b, lambda a, b: a - b.t(), (x, y))


def scanned(x):
    def step(c, row):
        return torch.cond(row.sum() > 1, lambda u: u * 2, lambda u: (u + 1).cumsum(0), (c,)), c * row

    return scan(step, torch.zeros(4), x, dim=0)[1]


def mapped(x):
    return map_rows(lambda r: torch.cond(r.sum() > 1, lambda u: u @ W, lambda u: u.cumsum(0), (r,)), x)


CONDITIONS = [
    layer, between, several, one_of_several, one_from_the_other, containers, nested, in_turn, detached, constant,
    without_gradients, infinite_elsewhere, literals, written, transposed, part, attention, closure,
    operand_of_an_operand, scanned, mapped,
]  # fmt: skip


def results(fn, x):
    """The result of a call, and the gradients of all its inputs."""
    x = x.detach().requires_grad_()
    for p in PARAMETERS:
        p.grad = None
    out = fn(x)
    tensors = [out] if isinstance(out, torch.Tensor) else list(out)
    if any(t.requires_grad for t in tensors):
        sum(t.square().sum() for t in tensors).backward()
    gradients = [x.grad, *(p.grad for p in PARAMETERS)]
    return [(t.detach(), t.requires_grad, t.stride()) for t in tensors], gradients


def chosen(pred, true_fn, false_fn, operands=()):
    """The semantics of `torch.cond`."""
    return true_fn(*operands) if pred else false_fn(*operands)


def repeated(cond_fn, body_fn, carried):
    """The semantics of `while_loop`."""
    while cond_fn(*carried):
        carried = body_fn(*carried)
    return carried


@pytest.mark.parametrize("fn", CONDITIONS, ids=lambda f: f.__name__)
def test_cond_with_gradients(fn, monkeypatch):
    x = torch.randn(4, 4).abs()
    given = (x, -x, x * 2)
    with monkeypatch.context() as patched:
        if fn not in (scanned, mapped):
            patched.setattr(torch, "cond", chosen)  # torch's own runs torch's compiler, for seconds
        expected = [results(fn, g) for g in given]
    compiled = smelt.compile(fn)
    for g, (tensors, gradients) in zip(given, expected):
        found, found_gradients = results(compiled, g)
        for (a, _, stride), (b, _, other) in zip(found, tensors):
            torch.testing.assert_close(a, b)
            assert stride == other
        for a, b in zip(found_gradients, gradients):
            zeros = torch.zeros(()) if a is None else torch.zeros_like(a)
            a, b = zeros if a is None else a, zeros if b is None else b
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert (graph_count(compiled) == 1 and not reasons(compiled)) or COMPILES


@pytest.mark.parametrize("fn", [layer, several, detached, constant], ids=lambda f: f.__name__)
@pytest.mark.skipif(COMPILES, reason="breaks on torch 2.11")
def test_unused_operands_have_zero_gradients(fn):
    """As in torch's compiler, all results require gradients, and every operand of a branch has one."""
    x = torch.randn(4, 4).abs()
    expected = [results(fn, g) for g in (x, -x)]
    compiled = smelt.compile(fn)
    for g, e in zip((x, -x), expected):
        same(results(compiled, g), e)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "smelt"])
def test_second_derivatives(backend):
    def fn(x):
        return torch.cond(positive(x), lambda a: (a @ W).tanh(), lambda a: (a * a).sin(), (x,))

    def plain(x):
        return (x @ W).tanh() if x.sum() > 0 else (x * x).sin()

    def derivatives(f, x):
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(f(x).square().sum(), x, create_graph=True)
        return first.detach(), torch.autograd.grad(first.square().sum(), x)[0]

    compiled = smelt.compile(fn, backend=backend)
    x = torch.randn(4, 4).abs()
    for given in (x, -x):
        same(derivatives(compiled, given), derivatives(plain, given))


def test_second_derivatives_within_the_function_break_the_graph():
    """The gradients that the graph computes have no history."""

    def derivatives(x, cond):
        y = cond(positive(x), lambda a: (a @ W).tanh(), lambda a: (a * a).sin(), (x,))
        return torch.autograd.grad(y.square().sum(), x, create_graph=True)[0] + y

    compiled = smelt.compile(lambda x: derivatives(x, torch.cond))
    for given in (torch.rand(4, 4), -torch.rand(4, 4)):
        x = given.requires_grad_()
        expected = torch.autograd.grad(derivatives(x, chosen).square().sum(), x)[0]
        torch.testing.assert_close(torch.autograd.grad(compiled(x).square().sum(), x)[0], expected)
    assert reasons(compiled)


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), nn.Parameter(torch.rand(4))
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x):
        h = self.layer(x)
        first = lambda t: (t * self.scale).softmax(-1) + self.shift  # noqa: E731
        return torch.cond(positive(h), first, lambda t: self.layer(t).tanh() - self.shift, (h,)) * 2


@pytest.mark.skipif(COMPILES, reason="breaks on torch 2.11")
def test_a_training_step():
    def losses(compile_step):
        torch.manual_seed(1)
        model, x = Gate(), torch.randn(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x):
            optimizer.zero_grad()
            loss = (model(x) - 1).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        step = compile_step(step)
        return (
            [step(x * (-1) ** i).detach() for i in range(4)],
            [p.detach() for p in model.parameters()],
            step,
        )

    expected, found = losses(lambda f: f), losses(smelt.compile)
    same(found[:2], expected[:2])
    assert not reasons(found[2])


@pytest.mark.parametrize("numbers", [(2, 0), (0.5, 0.0, float("nan")), (True, False)])
def test_conditions_of_any_dtype(numbers):
    def fn(x, pred):
        first = torch.cond(pred, lambda a: a @ W, lambda a: a * 2 + W, (x,))
        return first, torch.cond(pred[0], lambda: x + 1, lambda: x - 1)

    compiled, x = smelt.compile(fn, fullgraph=True), torch.rand(4, 4)
    for number in numbers:
        pred = torch.tensor([number])
        same(compiled(x, pred), (x @ W, x + 1) if number else (x * 2 + W, x - 1))
    assert graph_count(compiled) == 1


# ---- what the program made and a branch changes: only the branch that is taken may do so


def fills_a_list(x):
    seen = []
    y = torch.cond(positive(x), lambda a: seen.append(1) or a @ W, lambda a: a * 2 + W, (x,))
    return y, len(seen)


def counts(x):
    n = 0

    def first(a):
        nonlocal n
        n += 1
        return a @ W

    return torch.cond(positive(x), first, lambda a: a * 2 + W, (x,)), n


def advances(x):
    items = iter([1])
    y = torch.cond(positive(x), lambda a: a @ W * next(items), lambda a: a * 2 + W, (x,))
    return y, 1 - len(list(items))


class Outside:
    count = 0


OUTSIDE, KEPT = Outside(), {}


def changes_what_was_changed(x):
    OUTSIDE.count = 1

    def first(a):
        OUTSIDE.count = 2
        return a @ W

    return torch.cond(positive(x), first, lambda a: a * 2 + W, (x,)), OUTSIDE.count - 1


def fills_a_list_that_is_kept(x):
    KEPT["list"] = seen = []
    y = torch.cond(positive(x), lambda a: KEPT["list"].append(1) or a @ W, lambda a: a * 2 + W, (x,))
    return y, len(seen)


def fills_a_list_of_a_tensor(x):
    h = x * 1
    h.seen = []
    y = torch.cond(positive(x), lambda a: h.seen.append(1) or a @ W, lambda a: a * 2 + W, (x,))
    return y, len(h.seen)


def changes_a_setting(x):
    y = torch.cond(
        positive(x), lambda a: torch.set_grad_enabled(False) and 0 or a @ W, lambda a: a * 2 + W, (x,)
    )
    n = int(not torch.is_grad_enabled())
    torch.set_grad_enabled(True)
    return y, n


EFFECTS = [
    fills_a_list, counts, advances, changes_what_was_changed, fills_a_list_that_is_kept, fills_a_list_of_a_tensor,
    changes_a_setting,
]  # fmt: skip


@pytest.mark.parametrize("fn", EFFECTS, ids=lambda f: f.__name__)
def test_branches_with_effects_break_the_graph(fn):
    compiled, x = smelt.compile(fn), torch.rand(4, 4)
    for given in (x, -x, x):
        result, n = compiled(given)
        torch.testing.assert_close(result, given @ W if given.sum() > 0 else given * 2 + W)
        assert n == (given.sum() > 0)


# ---- loops


def doubled(x):
    return while_loop(lambda a: a.abs().sum() < 100, lambda a: (a * 1.5 + a.sign(),), (x,))[0]


def counted(x):
    start = torch.zeros((), dtype=torch.int64) + x.argmax() * 0
    return while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, LAYER(a).tanh()), (start, x))


def newton(x):
    def step(v, change):
        w = (v + x.abs() / v) / 2
        return w, (w - v).abs().max()

    return while_loop(lambda v, change: change > 1e-4, step, (x.abs() + 1, x.amax() * 0 + 1))[0]


def exchanged(x):
    more = lambda i, p, q: i < 3  # noqa: E731
    return while_loop(more, lambda i, p, q: (i + 1, q.clone(), p + 1), (x.argmax() * 0, x, x * 2))


def in_containers(x):
    step = lambda d: ({"i": d["i"] + 1, "a": d["a"] * 2},)  # noqa: E731
    return while_loop(lambda d: d["i"] < 3, step, ({"i": x.argmax() * 0, "a": x},))


def never(x):
    return while_loop(lambda i, a: i < 0, lambda i, a: (i + 1, a * 2), (x.argmax(), x))


def loop_in_a_loop(x):
    def inner(a):
        return while_loop(lambda b: b.abs().sum() < 20, lambda b: (b * 1.5,), (a,))[0]

    return while_loop(lambda a: a.abs().sum() < 100, lambda a: (inner(a) * 1.5,), (x,))[0]


def condition_in_a_loop(x):
    def step(a):
        return (torch.cond(a.sum() > 20, lambda b: LAYER(b) * 4, lambda b: (b * 2).cumsum(0), (a,)) + a,)

    return while_loop(lambda a: a.abs().sum() < 100, step, (x,))[0]


def loop_in_a_branch(x):
    more, step = lambda i, a: i < 3, lambda i, a: (i + 1, a @ W)
    start = torch.tensor(0)
    return torch.cond(positive(x), lambda b: while_loop(more, step, (start, b))[1], lambda b: b * 2, (x,))


def raises(x):
    index = torch.tensor([9])
    return while_loop(lambda a: a.abs().sum() < 100, lambda a: (a[index] + a,), (x,))[0]


LOOPS = [
    doubled, counted, newton, exchanged, in_containers, never, loop_in_a_loop, condition_in_a_loop, loop_in_a_branch,
    raises,
]  # fmt: skip


@pytest.mark.parametrize("fn", LOOPS, ids=lambda f: f.__name__)
def test_loops_without_gradients(fn, monkeypatch):
    def outcome(f, x):
        try:
            return f(x)
        except IndexError as error:
            return str(error).splitlines()[0]

    x = torch.randn(4, 4).abs()
    given = (x, -x, x * 2)
    with torch.no_grad():
        with monkeypatch.context() as patched:
            patched.setattr(torch, "cond", chosen)
            patched.setitem(globals(), "while_loop", repeated)
            expected = [outcome(fn, g) for g in given]
        compiled = smelt.compile(fn)
        for g, e in zip(given, expected):
            same(outcome(compiled, g), e)
    assert graph_count(compiled) == 1 or COMPILES


@torch.no_grad()
def test_loops_with_effects_run_eagerly():
    def fn(x):
        OUTSIDE.count = 0

        def step(a):
            OUTSIDE.count += 1
            return (a * 2,)

        return while_loop(lambda a: a.sum() < 100, step, (x,))[0], OUTSIDE.count

    compiled = smelt.compile(fn)
    for given, n in ((torch.ones(4), 5), (torch.ones(4) * 9, 2), (torch.ones(4) * 50, 0)):
        result, found = compiled(given)
        assert (result[0], found) == (given[0] * 2**n, n)


def test_loop_results_share_no_memory():
    fn = lambda x: while_loop(lambda i, a: i < 0, lambda i, a: (i + 1, a * 2), (x.argmax(), x))  # noqa: E731
    x = torch.rand(3)
    y = smelt.compile(fn)(x)[1]
    y.add_(1)
    assert not torch.equal(x, y)


def test_loop_with_changing_layouts_raises_as_in_eager():
    def f(x):
        return while_loop(lambda a: a.sum() < 50, lambda a: (a.t() * 2,), (x,))[0]

    raised = []
    for call in (f, smelt.compile(f)):
        with pytest.raises(RuntimeError) as error:
            call(torch.arange(1, 5.0).view(2, 2))
        raised.append(type(error.value))
    assert raised[0] is raised[1]


@pytest.mark.skipif(COMPILES, reason="breaks on torch 2.11")
def test_plans_of_branches_are_steps_of_the_plan():
    """The executor runs them without Python; reports list the call as an operator."""
    plans = []
    with events.subscribed(lambda e: plans.append(e.data) if e.kind == "plan" else None), torch.no_grad():
        smelt.compile(nested)(torch.ones(4, 4))
    assert len(plans) == 7  # two branches, two in each, and the graph
    steps = [step for step in plans[-1]["plan"].steps if isinstance(step, RunPlans)]
    assert [len(step.plans) for step in steps] == [2]
    assert "smelt.run_graphs.default" in plans[-1]["externs"]
