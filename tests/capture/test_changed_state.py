"""State that changes between two calls: a guard must fail, whatever changed and however the program reads it.

Each case changes one thing, compares with eager, reverts the change, and compares again.
"""

from __future__ import annotations

import builtins
import math
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from smelt.backends.eager import eager
from smelt.capture.driver.cache_entries import entries_of, reasons_of, wrap
from smelt.capture.driver.frame_compiler import FrameCompiler
from smelt.config import DEFAULT

SCALE = 2.0
TABLE = {"bias": 1.0, "shift": [0.5, 0.25]}


class Activation(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.relu(x)


class Config:
    eps = 1e-3

    def __init__(self) -> None:
        self.power = 2
        self.names = ("a", "b")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.act = Activation()
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.Tanh()])
        self.register_buffer("offset", torch.ones(3))
        self.config = Config()
        self.optional: Any = None

    def factor(self) -> float:
        return 1.5

    def forward(self, x: Any, flag: bool = True) -> Any:
        x = self.act(self.first(x)) + self.second(x) * self.factor()
        for block in self.blocks:
            x = block(x)
        if hasattr(self, "extra"):
            x = x + self.extra
        if self.optional is not None:
            x = x * self.optional
        x = x**self.config.power + self.config.eps + len(self.config.names)
        return helper(x) + self.offset if flag else x


def helper(x: Any, by: float = 3.0, *, plus: float = 0.0) -> Any:
    y = x * SCALE * by + plus + TABLE["bias"] + sum(TABLE["shift"])  # type: ignore[arg-type, operator]
    return F.gelu(y) * math.pi + max(1, 2)


def hook(module: Any, args: Any, out: Any) -> Any:
    return out * 10


Change = Callable[[Net, pytest.MonkeyPatch], Any]
CHANGES: dict[str, Change] = {
    "forward on the instance": lambda n, m: m.setattr(n.act, "forward", lambda x: x - 1, raising=False),
    "forward on the class": lambda n, m: m.setattr(Activation, "forward", lambda self, x: x + 5),
    "forward of a torch class": lambda n, m: m.setattr(nn.Tanh, "forward", lambda self, x: x + 5),
    "property on the class": lambda n, m: m.setattr(Net, "extra", property(lambda s: 7.0), raising=False),
    "method on the class": lambda n, m: m.setattr(Net, "factor", lambda self: -1.0),
    "method on the instance": lambda n, m: m.setattr(n, "factor", lambda: -1.0, raising=False),
    "attribute that was absent": lambda n, m: m.setattr(n, "extra", 4.0, raising=False),
    "attribute that was None": lambda n, m: m.setattr(n, "optional", 3.0),
    "class attribute": lambda n, m: m.setattr(Config, "eps", 1.0),
    "attribute over a class attribute": lambda n, m: m.setattr(n.config, "eps", 2.0, raising=False),
    "config value": lambda n, m: m.setattr(n.config, "power", 3),
    "config replaced": lambda n, m: m.setattr(n, "config", types.SimpleNamespace(power=1, eps=0.0, names=())),
    "config tuple": lambda n, m: m.setattr(n.config, "names", ("a", "b", "c")),
    "global": lambda n, m: m.setitem(globals(), "SCALE", 4.0),
    "global dictionary": lambda n, m: m.setitem(TABLE, "bias", 9.0),
    "list in a global": lambda n, m: m.setitem(TABLE, "shift", [1.0, 2.0, 3.0]),
    "global function": lambda n, m: m.setitem(globals(), "helper", lambda x: x),
    "defaults": lambda n, m: m.setattr(helper, "__defaults__", (5.0,)),
    "keyword defaults": lambda n, m: m.setattr(helper, "__kwdefaults__", {"plus": 8.0}),
    "code": lambda n, m: m.setattr(helper, "__code__", (lambda x, by, *, plus: x * by).__code__),
    "module attribute": lambda n, m: m.setattr(math, "pi", 3.0),
    "torch function": lambda n, m: m.setattr(F, "gelu", torch.relu),
    "builtin shadowed": lambda n, m: m.setitem(globals(), "max", lambda *a: 100),
    "builtin replaced": lambda n, m: m.setattr(builtins, "max", lambda *a: 100),
    "weight replaced": lambda n, m: m.setitem(n.first._parameters, "weight", nn.Parameter(torch.ones(3, 3))),
    "weight in place": lambda n, m: n.first.weight.data.mul_(2),
    "buffer replaced": lambda n, m: m.setitem(n._buffers, "offset", torch.zeros(3)),
    "buffer dtype": lambda n, m: m.setitem(n._buffers, "offset", torch.zeros(3, dtype=torch.float64)),
    "submodule replaced": lambda n, m: m.setitem(n._modules, "act", nn.Sigmoid()),
    "submodules shared": lambda n, m: m.setitem(n._modules, "second", n.first),
    "parameters shared": lambda n, m: m.setitem(n.second._parameters, "weight", n.first.weight),
    "list grown": lambda n, m: n.blocks.append(nn.ReLU()),
    "list element": lambda n, m: m.setitem(n.blocks._modules, "1", nn.ReLU()),
    "forward hook": lambda n, m: n.act.register_forward_hook(hook),
    "hook on the root": lambda n, m: n.register_forward_hook(hook),
    "pre-hook": lambda n, m: n.first.register_forward_pre_hook(lambda mod, args: (args[0] + 1,)),
    "training mode": lambda n, m: n.train(),
    "class of the instance": lambda n, m: m.setattr(n.act, "__class__", nn.Sigmoid),
}
GLOBAL_STATE: dict[str, Callable[[], Any]] = {
    "grad mode": torch.enable_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default dtype": lambda: _DefaultDtype(),
}


class _DefaultDtype:
    def __enter__(self) -> None:
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *exc: Any) -> None:
        torch.set_default_dtype(torch.float32)


def compiled(n_limit: int = 20) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs)

    call.__code__ = call.__code__.replace()
    config = DEFAULT.with_options({"verify_stages": True, "recompile_limit": n_limit})
    return wrap(call, FrameCompiler(eager, config, fullgraph=True))


def same(c: Any, net: Net, *args: Any) -> None:
    got, want = c(net, *args), net(*args)
    assert got.dtype == want.dtype and got.requires_grad == want.requires_grad
    torch.testing.assert_close(got, want)


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = Net().eval(), torch.randn(2, 3)
    c = compiled()
    same(c, net, x)
    with monkeypatch.context() as m:
        CHANGES[change](net, m)
        same(c, net, x)
        same(c, net, x)
    same(c, net, x)
    assert not reasons_of(c.__code__)


@pytest.mark.parametrize("state", GLOBAL_STATE)
def test_global_state(state: str) -> None:
    net, x = Net().eval(), torch.randn(2, 3)
    c = compiled()
    same(c, net, x)
    with GLOBAL_STATE[state]():
        same(c, net, x)
    same(c, net, x)
    assert len(entries_of(c.__code__)) == 2


def test_irrelevant_changes_do_not_recompile() -> None:
    net, x = Net().eval(), torch.randn(2, 3)
    c = compiled()
    same(c, net, x)
    net.unrelated = 3
    net.config.other = "unread"  # type: ignore[attr-defined]
    net.first.weight.data.add_(1)
    globals()["UNREAD"] = object()
    same(c, net, x)
    same(c, Net().eval(), x)
    assert len(entries_of(c.__code__)) == 1
