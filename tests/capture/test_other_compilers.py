"""Calls of other compilers' results (TorchScript, torch.compile, torch.export) in a compiled function; checkpoints with a
policy."""

import contextlib
import copy
import functools
import sys
import weakref

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import smelt
from smelt.report.inspect import graph_count, reasons
from tests.harness.agreement import same

torch.manual_seed(0)
X, WEIGHT = torch.randn(4, 3), torch.randn(3, 3)
PLAIN = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
SCRIPTED, TRACED = torch.jit.script(copy.deepcopy(PLAIN)), torch.jit.trace(copy.deepcopy(PLAIN), (X,))
EXPORTED = torch.export.export(copy.deepcopy(PLAIN), (X,)).module()
COMPILED = torch.compile(copy.deepcopy(PLAIN), backend="eager")
HOOKED = torch.compile(copy.deepcopy(PLAIN), backend="eager")
HOOKED.register_forward_hook(lambda module, args, out: out * 2)


@torch.jit.script
def scripted(a, b: int):
    if bool(a.sum() > 0):
        return a * b
    return a - b


@torch.compile(backend="eager")
def compiled_by_torch(x, scale=2):
    return x.sin() * scale


def policy(ctx, op, *args, **kwargs):
    return (
        CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE
    )


asked = []


def noting_policy(ctx, op, *args, **kwargs):
    asked.append(op)
    return CheckpointPolicy.PREFER_RECOMPUTE


def region(x):
    return (x @ WEIGHT).sin() @ WEIGHT


def selective(which):
    context_fn = functools.partial(create_selective_checkpoint_contexts, which)
    return lambda x: checkpoint(region, x, use_reentrant=False, context_fn=context_fn) * 2


TRACER = "another tracer of torch"
SCRIPT = ["a function or module of TorchScript (aten::Bool reads the value of a tensor)"]
PROGRAMS = {
    "scripted function": (lambda x: scripted(x * 2, 3) + 1, 2, SCRIPT),
    "scripted module": (lambda x: SCRIPTED(x * 2) + 1, 1, []),
    "traced module": (lambda x: TRACED(x * 2) + 1, 1, []),
    "exported module": (lambda x: EXPORTED(x * 2) + 1, 1, []),
    "function of torch.compile": (lambda x: compiled_by_torch(x * 2, scale=3) + 1, 1, []),
    "module of torch.compile": (lambda x: COMPILED(x * 2) + 1, 1, []),
    "module of torch.compile with a hook": (lambda x: HOOKED(x * 2) + 1, 1, []),
    "a call of make_fx": (lambda x: make_fx(lambda a: a.sin() * 2)(x)(x) + 1, 3, [TRACER]),
    "a call of symbolic_trace": (
        lambda x: torch.fx.symbolic_trace(lambda a: a.sin() * 2)(x) + 1,
        3,
        [TRACER],
    ),
    "policy as a function": (selective(policy), 1, []),
    "policy as a list": (selective([torch.ops.aten.mm.default]), 1, []),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    fn, graphs, details = PROGRAMS[name]
    compiled = smelt.compile(fn)
    for _ in range(3):
        a, b = (X.clone().requires_grad_() for _ in range(2))
        found, expected = compiled(a), fn(b)
        torch.testing.assert_close(found, expected)
        found.sin().sum().backward()
        expected.sin().sum().backward()
        torch.testing.assert_close(a.grad, b.grad)
    assert graph_count(compiled) == graphs and [r.detail for r in reasons(compiled)] == details


def test_policy_with_effects_is_called_as_in_eager():
    fn = selective(noting_policy)
    seen = []
    for f in (fn, smelt.compile(fn)):
        asked.clear()
        f(X.clone().requires_grad_()).sum().backward()
        seen.append(list(asked))
    assert seen[0] and seen[0] == seen[1]


class Falling:
    """Attributes without a descriptor are looked up by `__getattr__`."""

    @property
    def missing(self):
        raise AttributeError("not here")

    def __getattr__(self, name):
        if name == "absent":
            raise AttributeError("nor here")
        return len(name)


class FallingModule(nn.Module):
    @property
    def missing(self):
        raise AttributeError("not here")


def test_a_property_that_raises_attribute_error_is_looked_up_by_getattr():
    x, module = Falling(), FallingModule()

    def fn(t):
        try:
            text = module.missing
        except AttributeError as error:
            text = str(error), error.__context__
        return t + x.missing, hasattr(x, "missing"), getattr(x, "absent", 3), hasattr(module, "missing"), text

    compiled = smelt.compile(fn)
    assert compiled(X)[1:] == fn(X)[1:]
    assert torch.equal(compiled(X)[0], X + 7) and graph_count(compiled) == 1 and not reasons(compiled)


def test_counting_operators():
    """A dispatch mode of torch's, entered by the program."""

    def fn(x):
        with FlopCounterMode(display=False) as counter:
            y = x @ WEIGHT
        return y * counter.get_total_flops()

    compiled = smelt.compile(fn)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), fn(X))
    assert not any(r.kind.id == "internal-error" for r in reasons(compiled))


def test_dropped_modules_do_not_break_the_graph(monkeypatch):
    """After torch.compile was used, each new module has a weak reference with a callback of torch's."""
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    compiled_by_torch(X)

    def fn(x):
        return x * nn.Linear(2, 3).weight.shape[0]

    torch.testing.assert_close(smelt.compile(fn)(X), X * 3)
    assert not unraisable


def test_functions_with_weakref_callbacks():
    """Weak references with callbacks, as torch's compiler creates them, also by partial."""

    def inner(x):
        return x * 2

    weakref.finalize(inner, functools.partial(int, "1"))
    x = torch.ones(3)
    assert torch.equal(smelt.compile(lambda x: inner(x) + 1, fullgraph=True)(x), inner(x) + 1)


# ------------------------------------------------------------------------------- torch.compile in a compiled function


def scaled(x, by=None):
    return x * (2 if by is None else by)


def compiled_and_called(x):
    return torch.compile(scaled, backend="eager")(x)


def compiled_by_a_decorator(x):
    @torch.compile(backend="eager", dynamic=False)
    def inner(y):
        return y + x

    return inner(x) * 2


def compiled_once_called_twice(x):
    f = torch.compile(scaled, backend="eager", dynamic=True)
    return f(x, by=3) + f(x, 1)


def passed_to_native_code(x):
    f = torch.compile(scaled, backend="eager")
    return sum(map(f, [x, x])), callable(f)


@pytest.mark.parametrize(
    "fn", [compiled_and_called, compiled_by_a_decorator, compiled_once_called_twice, passed_to_native_code]
)
def test_torch_compile_inside(fn):
    run = smelt.compile(fn, fullgraph=True)
    got, want = run(X), fn(X)
    assert all(map(torch.equal, got, want)) if isinstance(got, torch.Tensor) else str(got) == str(want)


def test_the_result_of_torch_compile_outlives_the_graph():
    def returned(x):
        f = torch.compile(scaled, backend="eager")
        return f(x), f

    def live_at_a_break(x):
        f = torch.compile(scaled, backend="eager")
        smelt.graph_break()
        return f(x)

    got, f = smelt.compile(returned, fullgraph=True)(X)
    assert torch.equal(got, X * 2) and torch.equal(f(X, 3), X * 3) and f is not scaled
    assert torch.equal(smelt.compile(live_at_a_break)(X), X * 2)


def test_torch_compile_of_a_compiled_function():
    """torch compiles the original, as it does where another function calls the compiled one."""
    compiled = smelt.compile(scaled)
    graphs = []
    again = torch.compile(compiled, backend=lambda gm, inputs: graphs.append(gm) or gm, fullgraph=True)
    for by in (None, 3.0):
        same(again(X, by), scaled(X, by))
    assert len(graphs) == 2 and not graph_count(compiled)
    same(compiled(X), scaled(X))
    same(torch.export.export(Holds(compiled), (X,)).module()(X), scaled(X))


class Holds(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


def test_attributes_and_modules_of_torch_compile_break_the_graph():
    def named(x):
        return torch.compile(scaled, backend="eager").__name__, x + 1

    def of_a_module(x):
        return torch.compile(PLAIN, backend="eager")(x)

    for fn in (named, of_a_module):
        run = smelt.compile(fn)
        with torch.no_grad():
            assert str(run(X)) == str(fn(X)) and reasons(run)[0].kind.id == "unsupported-call"


# ------------------------------------------------------------------------------------------------ compiled autograd


@contextlib.contextmanager
def compiled_autograd(compile=lambda graph: graph):
    """torch's compiled autograd, whose graphs run as they are, or compiled."""
    from torch._dynamo import compiled_autograd

    with compiled_autograd._enable(compile):
        yield
    compiled_autograd.reset()


def one_output(x, w):
    return ((x * 2).sin() @ w).sum()


def two_outputs(x, w):
    return (x * 2).sin() @ w, x.cos() * 3


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
@pytest.mark.parametrize("fn", [one_output, two_outputs])
def test_compiled_autograd(fn, backend):
    compiled = smelt.compile(fn, backend=backend)

    def seen(f, context):
        found = []
        for rows in (3, 3, 4, 5):
            torch.manual_seed(rows)
            x, w = torch.randn(rows, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
            out = f(x, w)
            loss = out if isinstance(out, torch.Tensor) else (out[0] * out[1]).sum() + out[0].mean()
            with context():
                loss.backward(retain_graph=True)
                found += [x.grad.clone(), w.grad.clone()]
                loss.backward()
            found += [x.grad, w.grad]
        return found

    for got, want in zip(seen(compiled, compiled_autograd), seen(fn, contextlib.nullcontext)):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kept", [[0], [1], [0, 1]])
def test_compiled_autograd_of_the_outputs_that_are_kept(kept):
    """What the dropped one would have read is freed."""

    def gradients(f, context):
        found = []
        for rows in (3, 3, 5):
            x, w = torch.ones(rows, 3, requires_grad=True), torch.full((3, 3), 0.5, requires_grad=True)
            outs = [f(x, w)[k] for k in kept] if len(kept) == 1 else f(x, w)
            with context():
                sum(out.sum() for out in outs).backward()
            found += [x.grad, w.grad]
        return found

    same(
        gradients(smelt.compile(two_outputs), compiled_autograd),
        gradients(two_outputs, contextlib.nullcontext),
    )


def test_compiled_autograd_frees_what_is_saved():
    x = torch.ones(2, 3, requires_grad=True)
    y = smelt.compile(one_output)(x, WEIGHT)
    with compiled_autograd():
        y.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            y.backward()


def a_result_that_is_used_further(x):
    y = x * 2
    return (y.sin() * y).sum(), y


def two_results_that_are_used_further(x):
    y = x.exp()
    z = (y * x).tanh()
    return (z * y).sum(), y, z


def a_tensor_with_a_hook(x):
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return (y.sin() * y).sum(), x.cos()


def a_hook_and_a_result(x):
    y = x.sin()
    y.register_hook(lambda g: g + 1)
    z = y * y
    return z.sum(), y * 3, z


@pytest.mark.parametrize("used", [(0,), (0, 1), (1,)])
@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize(
    "fn",
    [
        a_result_that_is_used_further,
        two_results_that_are_used_further,
        a_tensor_with_a_hook,
        a_hook_and_a_result,
    ],
)
def test_compiled_autograd_of_tensors_that_are_seen(fn, hooked, used):
    """Gradients of intermediate tensors pass through their hooks, those of the graph and those that are added outside."""

    def gradients(f, context):
        found = []
        for rows in (3, 3, 4):
            x = torch.linspace(-1, 1, rows).requires_grad_()
            outs = f(x)
            if hooked:
                outs[-1].register_hook(lambda g: found.append(g.clone()))
            loss = sum(outs[k].square().sum() for k in used)
            with context():
                loss.backward(retain_graph=True)
                found.append(x.grad.clone())
                loss.backward()
            found.append(x.grad)
        return found

    same(gradients(smelt.compile(fn), compiled_autograd), gradients(fn, contextlib.nullcontext))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin() * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 * ctx.saved_tensors[0].cos()


def hooked(x, w):
    y = Doubled.apply(x @ w)
    y.register_hook(lambda grad: grad.clamp(max=0.3))
    return (
        torch.cat([y[:, [2, 0]], y.gather(1, torch.zeros(len(x), 1, dtype=torch.long))], 1).logsumexp(1).sum()
    )


def normalized(x, w):
    y = nn.functional.layer_norm(nn.functional.dropout(x @ w, 0.5), (3,))
    return (nn.functional.gelu(y) ** 2).mean() + nn.functional.cross_entropy(y, torch.arange(len(x)) % 3)


def doubles_gradient(leaf):
    leaf.grad.mul_(2)


def on_several_paths(x, w):
    y = (x @ w).relu()
    y.retain_grad()
    return (y.view(-1).cumsum(0) * y.t().reshape(-1)).sum() + nn.functional.linear(y, w).max()


@pytest.mark.parametrize(
    "options", [{"backend": "eager"}, {"fullgraph": True}, {"fullgraph": True, "dynamic": True}]
)
@pytest.mark.parametrize("fn", [hooked, normalized, on_several_paths])
def test_graphs_of_compiled_autograd_are_compiled(fn, options):
    """One graph each, that also accumulates gradients and calls the hooks of leaves."""
    compilations = []

    def compile(graph):
        compilations.append(smelt.compile(graph, **options))
        return compilations[-1]

    def gradients(context):
        found = []
        for rows in (3, 3, 5):
            torch.manual_seed(rows)
            x, w = torch.randn(rows, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
            w.register_post_accumulate_grad_hook(doubles_gradient)
            for _ in range(2):
                with context():
                    fn(x, w).backward()
            found += [x.grad, w.grad]
        return found

    torch.testing.assert_close(
        gradients(lambda: compiled_autograd(compile)), gradients(contextlib.nullcontext)
    )
    assert compilations and not any(reasons(c) for c in compilations)


def test_compiled_autograd_waits_for_all_tangents_of_a_gradient():
    def fn(x, y):
        return y * 1.5, x.sin() + y

    def gradients(f, context):
        x, y = (torch.ones(2, requires_grad=True) for _ in range(2))
        a, b = f(x, y)
        with context():
            (a.sum() + b.sum()).backward()
        return x.grad, y.grad

    same(gradients(smelt.compile(fn), compiled_autograd), gradients(fn, contextlib.nullcontext))
