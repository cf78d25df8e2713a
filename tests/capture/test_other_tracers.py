"""A compiled function under another tracer of torch: the original runs, so the tracer sees its operators and modules."""

import functools
import inspect
import re
import threading
import types
import warnings

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn
from torch._higher_order_ops.foreach_map import foreach_map
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import smelt
from smelt import _native
from smelt.report.inspect import graph_count
from tests.harness.threads import in_threads

X = torch.arange(6.0).reshape(2, 3) / 5 - 0.4
V = torch.linspace(-1, 1, 6).reshape(2, 3)


def fn(x):
    return torch.relu(x * 2) + x @ x.T.sum(0).diag()[:1, :1].expand(3, 3)


class Held(nn.Module):
    """Calls its argument, a function or a module, between its own operators."""

    def __init__(self, part):
        super().__init__()
        self.part = part
        self.after = nn.Linear(3, 2)

    def forward(self, x):
        return self.after(self.part(x * 3))


def held(part):
    torch.manual_seed(0)
    return Held(part)


def text(traced):
    """The operators that a tracer recorded, and their results for another input."""
    code = traced.code if isinstance(traced, torch.fx.GraphModule) else str(traced.graph)
    return re.sub(r"\.___torch_mangle_\d+", "", code), traced(V)


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def seen_by(mode, f):
    with mode:
        f(X)
    return mode.seen


def flops(f):
    with FlopCounterMode(display=False) as counter:
        f(X)
    return counter.get_total_flops()


def on_fakes(f):
    with FakeTensorMode() as mode:
        out = f(mode.from_tensor(X))
        return type(out), out.shape, out.fake_mode is mode


def on_fakes_outside_of_their_mode(f):
    out = f(FakeTensorMode().from_tensor(X))
    return type(out), out.shape


def functionalized(f):
    with FunctionalTensorMode():
        out = f(FunctionalTensor.to_functional(X))
        torch._sync(out)
        return torch._from_functional_tensor(out.elem)


def tangent(f):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(X, V))).tangent


class Tracing(torch.fx.Tracer):
    pass


TRACERS = {
    "jit.trace": lambda f: text(torch.jit.trace(f, (X,))),
    "jit.trace of a caller": lambda f: text(torch.jit.trace(lambda x: f(x) + 1, (X,))),
    "jit.trace of a module": lambda f: text(torch.jit.trace(held(f), (X,))),
    "jit.script": lambda f: text(torch.jit.script(f)),
    "make_fx": lambda f: text(make_fx(f)(X)),
    "make_fx, fakes": lambda f: text(make_fx(f, tracing_mode="fake")(X)),
    "fx": lambda f: text(torch.fx.symbolic_trace(f)),
    "fx, a tracer of one's own": lambda f: str(Tracing().trace(lambda x: f(x) + 1)),
    "fx of a module": lambda f: text(torch.fx.symbolic_trace(held(f))),
    "export": lambda f: text(torch.export.export(held(f), (X,)).module()),
    "vmap": lambda f: torch.vmap(lambda row: f(row[None]))(X),
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum())(X),
    "jacfwd": lambda f: torch.func.jacfwd(f)(X),
    "hessian": lambda f: torch.func.hessian(lambda x: f(x * x).sum())(X),
    "linearize": lambda f: torch.func.linearize(f, X)[1](V),
    "functionalize": lambda f: torch.func.functionalize(f)(X),
    "functional tensors": functionalized,
    "fake tensors": on_fakes,
    "fake tensors outside of their mode": on_fakes_outside_of_their_mode,
    "forward mode": tangent,
    "a dispatch mode": lambda f: seen_by(Operators(), f),
    "a function mode": lambda f: seen_by(Functions(), f),
    "a counter of operators": flops,
}


def same(a, b):
    """Equal, tensors bit by bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize("name", TRACERS)
def test_function_is_traced_through(name, called_before):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = TRACERS[name](fn)
        compiled = smelt.compile(fn)
        if called_before:
            compiled(X)
        assert same(TRACERS[name](compiled), expected)
        assert same(TRACERS[name](compiled), expected)
    torch.testing.assert_close(compiled(V), fn(V))
    assert graph_count(compiled) and not _native.is_closed(compiled)


MODULE_TRACERS = {
    "jit.trace": lambda m: text(torch.jit.trace(m, (X,))),
    "jit.script": lambda m: text(torch.jit.script(m)),
    "fx": lambda m: text(torch.fx.symbolic_trace(m)),
    "export": lambda m: text(torch.export.export(m, (X,), strict=False).module()),
    "make_fx": lambda m: text(make_fx(m)(X)),
    "functional_call": lambda m: torch.func.functional_call(
        m, {name: value * 2 for name, value in m.named_parameters()}, (X,)
    ),
}


@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize("name", MODULE_TRACERS)
def test_submodule_is_traced_through(name, called_before):
    torch.manual_seed(0)
    part = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    compiled = smelt.compile(part)
    if called_before:
        compiled(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, got = MODULE_TRACERS[name](held(part)), MODULE_TRACERS[name](held(compiled))
    if not name.startswith("jit."):  # whose text names the classes of modules
        assert same(got, expected)
    torch.testing.assert_close(got[1], expected[1])


def test_torch_compile_traces_through():
    compiled = smelt.compile(fn)

    @torch.compile(backend="eager", fullgraph=True)
    def outer(x):
        return compiled(x) + 1

    torch.testing.assert_close(outer(X), fn(X) + 1)

    @functools.wraps(compiled)
    def doubled(x):
        return compiled(x) * 2

    @torch.compile(backend="eager", fullgraph=True)
    def outermost(x):
        return doubled(x) + 1

    torch.testing.assert_close(outermost(X), fn(X) * 2 + 1)


def test_transform_around_a_call_does_not_disable_other_calls():
    compiled = smelt.compile(fn)
    for _ in range(4):
        torch.vmap(lambda row: compiled(row[None]))(X)
        with FakeTensorMode() as mode:
            compiled(mode.from_tensor(X))
    assert not _native.is_closed(compiled)


def test_compiled_function_passes_function_checks():
    compiled = smelt.compile(fn)
    assert isinstance(compiled, types.FunctionType) and inspect.isfunction(compiled)
    assert type(compiled) is _native.Wrapped


def test_is_traced():
    assert not _native.is_traced()
    with FakeTensorMode():
        assert _native.is_traced()
    answers = []
    torch.vmap(lambda x: answers.append(_native.is_traced()) or x)(X)
    torch.jit.trace(lambda x: answers.append(_native.is_traced()) or x * 2, (X,), check_trace=False)
    torch.fx.symbolic_trace(lambda x: answers.append(_native.is_traced()) or x)
    elsewhere = threading.Thread(target=lambda: answers.append(_native.is_traced()))
    torch.fx.symbolic_trace(
        lambda x: (elsewhere.start(), elsewhere.join(), answers.append(_native.is_traced())) and x
    )
    with torch.no_grad(), torch.inference_mode(), torch.device("cpu"), torch.autocast("cpu"):
        answers.append(_native.is_traced())
    per_thread = hasattr(torch.fx._symbolic_trace, "_is_fx_tracing_tls")  # since torch 2.14
    assert answers == [True, True, True, not per_thread, True, False] and not _native.is_traced()


def test_tracing_is_detected_per_thread():
    def work():
        for _ in range(20):
            answers = [_native.is_traced()]
            torch.fx.symbolic_trace(lambda x: answers.append(_native.is_traced()) or x)
            assert [*answers, _native.is_traced()] == [False, True, False]

    work()
    for _ in range(3):  # one after the other: before torch 2.14 the flag is one for all threads
        in_threads([work])
    work()


@pytest.mark.skipif(
    not hasattr(torch.autograd.graph, "node_creation_hook"), reason="torch has node_creation_hook since 2.14"
)
@pytest.mark.parametrize("inside", [False, True])
def test_hooks_of_nodes_see_eagers(inside):
    def program(x, names):
        with torch.autograd.graph.node_creation_hook(lambda node: names.append(node.name())):
            return (x * 2).sin()

    compiled = smelt.compile(program if inside else fn)
    seen = []
    for run in (program if inside else fn, compiled, compiled):
        names, x = [], X.clone().requires_grad_()
        if inside:
            run(x, names)
        else:
            with torch.autograd.graph.node_creation_hook(lambda node, to=names: to.append(node.name())):
                run(x)
        seen.append(names)
    assert seen[0] and seen[1] == seen[0] and seen[2] == seen[0]


def with_modes_left(x):
    with _python_dispatch._disable_current_modes():
        y = x.sin()
    return y * 2


def with_fakes_left(x):
    with unset_fake_temporarily():
        y = x.sin()
    return y * 2


def operators_of_a_list(x):
    """Torch's own error, in the middle of its modes."""
    return foreach_map(lambda a, b: a + b, [x, x], [x, x * 2])[1]


@pytest.mark.parametrize(
    "f", [with_modes_left, with_fakes_left, operators_of_a_list], ids=lambda f: f.__name__
)
def test_modes_are_restored_after_a_failed_capture(f):
    def outcome(g):
        try:
            return g(X)
        except Exception as error:
            return type(error), str(error)

    before = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    compiled = smelt.compile(f)
    expected = outcome(f)
    for _ in range(3):
        found = outcome(compiled)
        assert (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()) == before
        torch.testing.assert_close(found, expected) if isinstance(found, torch.Tensor) else None
        assert type(found) is type(expected)
