"""TorchScript functions and modules inside compiled functions: their graphs become part of the captured graph."""

from typing import List, Optional  # noqa: UP035  (TorchScript knows these)

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import smelt
from smelt.report.inspect import graph_count, reasons
from tests.harness.agreement import tensors

torch.manual_seed(0)
X, PICTURES = torch.rand(2, 4), torch.rand(2, 3, 6, 6)


@torch.jit.script
def scripted(x, n: int, s: float = 2.0, other: Optional[torch.Tensor] = None):  # noqa: UP045
    if n > 3:
        x = x * n
    for i in range(n):
        x = x + i
    y, z = x.chunk(2, -1)
    if other is not None:
        y = y + other
    sizes: List[int] = []  # noqa: UP006
    for i in range(3):
        sizes.append(x.size(0) + i)
    made = torch.zeros(2, dtype=x.dtype, device=x.device)
    return (
        torch.cat([y, z], -1) * s,
        x.size(0),
        2**n,
        x.shape[-1] // 2,
        x.sigmoid().clone().mul_(2),
        sizes,
        made,
    )


@torch.jit.script
def by_value(x):
    if bool(x.sum() > 0):
        return x * 2
    return x - 1


@torch.jit.script
def of_a_list(x, parts: List[torch.Tensor]):  # noqa: UP006
    parts.append(x)
    return torch.cat(parts)


@torch.jit.script
def raising(x):
    if x.size(0) == 2:
        raise ValueError("two rows")
    return x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1))
        self.rounds = 3

    def forward(self, x):
        x = self.layers(x) * self.rounds
        means: List[torch.Tensor] = []  # noqa: UP006
        for i in range(self.rounds):
            means.append(x.mean() + i)
        if self.training:
            x = x + 1
        return x.view(x.size(0), -1)[:, : x.size(1) // 2], torch.stack(means)


traced = torch.jit.trace(lambda x: (x * 3).view(x.size(0), -1)[:, : x.size(1) // 2] * 2.5, X)
integers = torch.jit.trace(lambda x: x * 3 + x.sum(), torch.ones(2, dtype=torch.int8))

FUNCTIONS = {
    "a scripted function": lambda x: scripted(x * 2, 5),
    "its other way": lambda x: scripted(x * 2, 2, other=x[:, 2:]),
    "an int for a float": lambda x: scripted(x.long(), 2, 3)[0] * x,
    "a traced function": lambda x: traced(x) + 1,
    "numbers of a traced function": lambda x: integers((x * 9).to(torch.int8)) * x,
}


def outcome(fn, x, model=None):
    torch.manual_seed(1)
    x = x.clone().requires_grad_()
    if model is not None:
        model.zero_grad()
    out = fn(x)
    sum(t.sum() for t in tensors(out) if t.requires_grad).backward()
    state = [] if model is None else [*model.buffers(), *(p.grad for p in model.parameters())]
    return out, x.grad, [t.clone() for t in state]


def agree(found, expected):
    torch.testing.assert_close(found, expected)
    assert [type(v) for v in found[0]] == [type(v) for v in expected[0]]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_captured(name):
    fn = FUNCTIONS[name]
    compiled = smelt.compile(fn, fullgraph=True)
    for _ in range(2):
        agree(outcome(compiled, X), outcome(fn, X))
    assert graph_count(compiled) == 1


@pytest.mark.parametrize("training", (False, True))
@pytest.mark.parametrize(
    "make", (torch.jit.script, lambda m: torch.jit.trace(m, (PICTURES,), check_trace=False))
)
def test_modules_are_captured(make, training):
    model = make(Model().train(training))
    inside = nn.Sequential(nn.Conv2d(3, 3, 1), model)
    start = {k: v.clone() for k, v in inside.state_dict().items()}
    compiled = smelt.compile(lambda x: inside(x), fullgraph=True)
    for _ in range(2):
        both = []
        for fn in (inside, compiled):
            inside.load_state_dict(start)
            both.append(outcome(fn, PICTURES, inside))
        agree(*both)
    assert graph_count(compiled) == 1


def test_module_changes_recompile():
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))

    def fn(x):
        return model(x) * 2

    compiled = smelt.compile(fn)

    def check():
        both = []
        for f in (fn, compiled):
            torch.manual_seed(0)
            both.append(f(X))
        torch.testing.assert_close(*both)

    with torch.no_grad():
        for training in (True, False, True, False):
            model.train(training)
            check()
        next(model.parameters()).add_(1)
        check()
        getattr(model, "0").weight = nn.Parameter(torch.rand(4, 4))
        check()
        hook = register_module_forward_hook(lambda module, args, out: out + 1)
        check()
        hook.remove()
    model = torch.jit.script(nn.Linear(4, 2))
    check()
    assert graph_count(compiled) >= 3


@pytest.mark.parametrize(
    ("fn", "detail"),
    (
        (lambda x: by_value(x * 2) + 1, "aten::Bool reads the value of a tensor"),
        (lambda x: of_a_list(x * 2, [x, x + 1]) + 1, "an argument is a list"),
    ),
)
def test_graph_breaks(fn, detail):
    compiled = smelt.compile(fn)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), fn(X))
    assert graph_count(compiled) == 2
    assert [r.detail for r in reasons(compiled)] == [f"a function or module of TorchScript ({detail})"]


def test_errors_are_torchscripts():
    for fn in (raising, lambda x: raising(x * 1), lambda x: scripted(x, "two")):
        with pytest.raises(Exception) as eager:
            fn(X)
        with pytest.raises(type(eager.value)):
            smelt.compile(fn)(X)


def test_methods_of_a_class_of_the_call_are_marked():
    def f(x):
        class Marked(nn.Module):
            @torch.jit.export
            def exported(self):
                return 3

            @torch.jit.unused
            def unused(self):
                return 4

            @torch.jit.ignore(drop=False)
            def ignored(self):
                return 5

            def forward(self, x):
                return x + self.exported()

        net = Marked()
        marked = net.exported, net.unused, net.ignored
        return net(x), *(method._torchscript_modifier for method in marked)

    compiled, x = smelt.compile(f), torch.ones(2)
    for _ in range(2):
        got, want = compiled(x), f(x)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]
    assert not reasons(compiled)
